# SPDX-License-Identifier: Apache-2.0
"""examples/run.py: the lines and files of the published program."""
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
    subprocess.run([BIN / "nereid", "build", models["gpt2"], "-o", engine, "--max_beam_width=2"], check=True,
                   stdout=subprocess.DEVNULL)

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
    assert "--prompt_tasks is not supported" in run("--prompt_tasks", "0", status=2).stderr
    assert "has no Medusa heads" in run("--medusa_choices", "[[0]]", status=1).stderr
    assert "max_beam_width" in run("--num_beams", 9, status=1).stderr
    done = python(RUN, "--engine_dir", "/nowhere", "--max_output_len", 1, status=1)
    assert done.stderr.startswith("run.py: ") and "/nowhere" in done.stderr
