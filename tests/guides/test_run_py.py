# SPDX-License-Identifier: Apache-2.0
"""examples/run.py: the lines and files of the published program."""
import json
import subprocess

import numpy as np
import pytest

from guide import BIN
from test_entry_points import ROOT, python

RUN = ROOT / "examples/run.py"
DEFAULT = "Born in north-east France, Soyer trained as a"


@pytest.fixture(scope="module")
def run(models, tmp_path_factory):
    engine = tmp_path_factory.mktemp("run") / "engine"
    subprocess.run([BIN / "nereid", "build", models["gpt2"], "-o", engine, "--max_beam_width=2", "--gather_all_token_logits",
                    "--max_prompt_embedding_table_size", "4"], check=True, stdout=subprocess.DEVNULL)

    def run_py(*words, status=0, n=6):
        return python(RUN, "--engine_dir", engine, "--tokenizer_dir", models["gpt2"], "--max_output_len", n, *words,
                      status=status)
    run_py.engine = engine
    return run_py


def test_an_answer_of_the_default_text(run):
    first, second = run().stdout.splitlines()
    assert first == f'Input [Text 0]: "{DEFAULT}"'
    assert second.startswith('Output [Text 0 Beam 0]: "') and second.endswith('"')


def test_several_texts_and_beams(run):
    lines = [line for line in run("--input_text", "a b", "c", "--num_beams", 2).stdout.split("\n") if "[Text" in line]
    assert [line.split(":")[0] for line in lines] == [
        "Input [Text 0]", "Output [Text 0 Beam 0]", "Output [Text 0 Beam 1]", "Input [Text 1]", "Output [Text 1 Beam 0]",
        "Output [Text 1 Beam 1]"]


def test_several_answers_to_a_text(run, tmp_path):
    words = ["--input_text", "a b", "c", "--top_k", 50, "--num_return_sequences", 3]
    said = run(*words).stdout.split("\n")
    lines = [line for line in said if "[Text" in line]
    assert [line.split(":")[0] for line in lines] == [
        f"{what}" for i in (0, 1) for what in (f"Input [Text {i}]", *(f"Output [Text {i} Seq {k} Beam 0]" for k in range(3)))]
    assert len({line.split(":", 1)[1] for line in lines[1:4]}) > 1
    run(*words, "--output_csv", tmp_path / "a.csv", "--output_cum_log_probs_npy", tmp_path / "cum.npy")
    assert len((tmp_path / "a.csv").read_text().splitlines()) == 6 and np.load(tmp_path / "cum.npy").shape == (6, 1)
    assert run(*words, "--streaming").stdout.count("Seq 2 Beam 0") >= 2
    lines = run("--num_beams", 2, "--num_return_sequences", 1).stdout
    assert "Beam 0" in lines and "Beam 1" not in lines


def test_beams_and_repeats_as_they_are_asked_for(run, tmp_path):
    def ids(*words, n=24):
        run("--output_csv", tmp_path / "a.csv", *words, n=n)
        return [[int(x) for x in row.split(",")] for row in (tmp_path / "a.csv").read_text().splitlines()]

    plain = ids()[0]
    unlike = ids("--no_repeat_ngram_size", 1)[0]
    assert len(set(plain[-24:])) < 24 == len(set(unlike[-24:]))
    assert ids("--num_beams", 2, "--beam_search_diversity_rate", 50) != ids("--num_beams", 2)
    assert ids("--num_beams", 2, "--early_stopping", 0)
    assert "no_repeat_ngram_size" in run("--no_repeat_ngram_size", -1, status=1).stderr


def test_a_draft_model_changes_no_answer(run):
    words = ["--draft_target_model_config=[4,[0],[0],False]", "--kv_cache_enable_block_reuse"]
    assert run(*words, "--draft_engine_dir", run.engine, n=24).stdout == run(n=24).stdout
    assert "needs --draft_engine_dir" in run(*words, status=1).stderr
    assert "'/nowhere'" in run(*words, "--draft_engine_dir", "/nowhere", status=1).stderr
    assert "begins with 1 whole number," in run("--draft_target_model_config", "x", "--draft_engine_dir", run.engine, status=1).stderr


def test_files_hold_the_ids_and_probabilities(run, tmp_path):
    out = {name: tmp_path / "new" / name for name in ("a.csv", "a.npy", "lp.npy", "cum.npy")}
    said = run("--input_text", "a b c", "d", "--top_k", 5, "--output_csv", out["a.csv"], "--output_npy", out["a.npy"],
               "--output_log_probs_npy", out["lp.npy"], "--output_cum_log_probs_npy", out["cum.npy"]).stdout
    assert said == ""
    ids, log_probs, cumulative = np.load(out["a.npy"]), np.load(out["lp.npy"]), np.load(out["cum.npy"])
    assert ids.dtype == np.int32 and ids.shape[0] == 2
    assert np.array_equal(ids, np.loadtxt(out["a.csv"], delimiter=",", dtype=np.int32))
    assert log_probs.dtype == np.float32 and log_probs.shape[:2] == (2, 1) and cumulative.shape == (2, 1)
    # those of tokens count among the best five alone, their sum among all: see normalize_log_probs
    assert (log_probs <= 0).all() and log_probs.min() < 0 and (log_probs.sum(axis=2) > cumulative).all()
    again = run("--input_file", out["a.npy"], "--output_npy", tmp_path / "b.npy", "--max_input_length", 4)
    assert again.stdout == "" and np.load(tmp_path / "b.npy").shape[0] == 2


def test_logits_go_into_files_of_their_own(run, models, tmp_path):
    words = ["--input_text", "a b c", "d", "--output_logits_npy", tmp_path / "new/l.npy", "--output_npy", tmp_path / "a.npy"]
    run(*words)
    context, answers, ids = (np.load(tmp_path / name) for name in ("new/l_context.npy", "new/l_generation.npy", "a.npy"))
    vocab = context.shape[1]
    assert context.dtype == answers.dtype == np.float32 and answers.shape == (2, 1, 6, vocab)
    chosen = answers[:, 0].argmax(-1)
    n = [next(k for k in range(len(row)) if row[k:k + 6].tolist() == new.tolist()) for row, new in zip(ids, chosen)]  # where the answers begin
    assert len(context) == sum(n)
    assert np.allclose(context[n[0] - 1], answers[0, 0, 0], atol=1e-4) and np.allclose(context[-1], answers[1, 0, 0], atol=1e-4)
    words[-3] = tmp_path / "beams.npy"
    run(*words, "--num_beams", 2)
    assert np.array_equal(np.load(tmp_path / "beams_context.npy"), context) and not (tmp_path / "beams_generation.npy").exists()
    plain = tmp_path / "plain"
    subprocess.run([BIN / "nereid", "build", models["gpt2"], "-o", plain], check=True, stdout=subprocess.DEVNULL)
    assert "an engine built with --gather_context_logits or --gather_generation_logits" in run("--engine_dir", plain, *words, status=1).stderr
    subprocess.run([BIN / "nereid", "build", models["gpt2"], "-o", plain, "--gather_context_logits"], check=True, stdout=subprocess.DEVNULL)
    assert "gather_generation_logits" in run("--engine_dir", plain, *words, "--output_generation_logits", status=1).stderr
    words[-3] = tmp_path / "half"
    run("--engine_dir", plain, *words)
    assert (tmp_path / "half_context.npy").exists() and not (tmp_path / "half_generation.npy").exists()


def embeddings(folder):
    data = (folder / "model.safetensors").read_bytes()
    size = int.from_bytes(data[:8], "little")
    at = next(t for name, t in json.loads(data[8:8 + size]).items() if name.endswith("wte.weight"))
    return np.frombuffer(data[8 + size:][slice(*at["data_offsets"])], {"F32": np.float32, "F16": np.float16}[at["dtype"]]).reshape(at["shape"])


def test_prompt_tables(run, models, tmp_path):
    """Tables of tokens' own embeddings: what the tokens themselves are answered."""
    def new(*words):
        run("--output_csv", tmp_path / "a.csv", "--no-kv_cache_enable_block_reuse", *words)
        return [row.split(",")[-6:] for row in (tmp_path / "a.csv").read_text().splitlines()]

    rows = embeddings(models["gpt2"])
    vocab = len(rows)
    tables = np.stack([rows[[5, 6, 7]], rows[[40, 41, 42]]])
    (tmp_path / "ids.csv").write_text("5,6,7,9,10\n40,41,42,9,10\n")
    (tmp_path / "virtual.csv").write_text(f"{vocab},{vocab + 1},{vocab + 2},9,10\n" * 2)
    (tmp_path / "rest.csv").write_text("9,10\n" * 2)
    first, second = new("--input_file", tmp_path / "ids.csv")
    assert first != second
    bfloat16 = (tables.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16).view("V2")
    for kind, table in (("float32", tables.astype(np.float32)), ("float16", tables.astype(np.float16)), ("bfloat16", bfloat16)):
        np.save(tmp_path / f"{kind}.npy", table)
    table = ["--prompt_table_path", tmp_path / "float32.npy"]
    assert new("--input_file", tmp_path / "virtual.csv", *table) == [first, first]
    assert new("--input_file", tmp_path / "virtual.csv", *table, "--prompt_tasks", "1,0") == [second, first]
    assert new("--input_file", tmp_path / "rest.csv", *table, "--prompt_tasks=0,1", "--num_prepend_vtokens", 3, 3) == [first, second]
    got = {}
    for kind in ("float32", "float16", "bfloat16"):
        words = ["--input_file", tmp_path / "virtual.csv", "--prompt_table_path", tmp_path / f"{kind}.npy", "--output_logits_npy", tmp_path / kind]
        new(*words)
        got[kind] = np.load(tmp_path / f"{kind}_context.npy")
    assert np.allclose(got["float16"], got["float32"], atol=0.02) and np.allclose(got["bfloat16"], got["float32"], atol=0.2)
    np.save(tmp_path / "one.npy", tables[1])
    said = run("--input_text", "a", "--prompt_table_path", tmp_path / "one.npy", "--num_prepend_vtokens", 3).stdout
    assert said.startswith('Input [Text 0]: "a"\n')
    for words, why in ((["--prompt_tasks", "0"], "has 1 tasks, expected 2"), (["--prompt_tasks", "0,2"], "has 2 tasks, from 0 on"),
                       (["--num_prepend_vtokens", 3], "has 1 numbers, expected 2")):
        assert why in run("--input_file", tmp_path / "rest.csv", *table, *words, status=1).stderr
    np.save(tmp_path / "bad.npy", np.zeros((2, 3), np.int32))
    assert "expected [tasks, rows, hidden] of" in run("--prompt_table_path", tmp_path / "bad.npy", status=1).stderr


def test_tokens_and_tokenizers_as_they_are_named(run, models):
    plain = run("--input_text", "a b").stdout
    assert run("--input_text", "a b", "--no_add_special_tokens", "--min_p", 0.1).stdout == plain  # GPT-2 begins with no token of its own
    for name in ("--vocab_file", "--hf_model_dir"):
        words = ["--engine_dir", run.engine, "--max_output_len", 6, "--input_text", "a b", name, models["gpt2"]]
        assert python(RUN, *words).stdout == plain
    assert run("--input_text", "a b", "--ngram_config", "[4, 2, [0]]", n=24).stdout == run("--input_text", "a b", n=24).stdout


def test_input_files(run, tmp_path):
    (tmp_path / "a.csv").write_text("5,6,7\n8\n")
    (tmp_path / "a.txt").write_text("a b\nc\n")
    for name in ("a.csv", "a.txt"):
        assert run("--input_file", tmp_path / name).stdout.count("Input [Text ") == 2
    assert run("--input_file", tmp_path / "a.json").stdout == "Input file format not supported.\n"
    (tmp_path / "bad.npy").write_bytes(b"no")
    assert "is no .npy file" in run("--input_file", tmp_path / "bad.npy", status=1).stderr


def test_streaming_ends_with_the_whole_answer(run):
    whole = run().stdout
    streamed = run("--streaming", "--streaming_interval", 2).stdout
    assert streamed.endswith(whole) and streamed.count("Input [Text 0]") > 1


def test_profiling_prints_its_line(run):
    last = run("--run_profiling", n=2).stdout.splitlines()[-1]
    assert last.startswith("batch_size: 1, avg latency of 10 iterations: : ") and last.endswith(" sec")


def test_what_has_no_effect_is_said_and_what_is_missing_refused(run, models):
    assert "--log_level has no effect" in run("--log_level", "info").stderr
    assert "unrecognized arguments: --beam_width_array" in run("--beam_width_array", "[2]", status=2).stderr
    assert "has no Medusa heads" in run("--medusa_choices", "[[0]]", status=1).stderr
    assert "max_beam_width" in run("--num_beams", 9, status=1).stderr
    done = python(RUN, "--engine_dir", "/nowhere", "--max_output_len", 1, status=1)
    assert done.stderr.startswith("run.py: ") and "/nowhere" in done.stderr
