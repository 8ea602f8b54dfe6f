# SPDX-License-Identifier: Apache-2.0
"""examples/summarize.py and examples/mmlu.py: their lines, and that their figures are those of the answers."""
import csv
import json
import math
import re
import subprocess
import sys

import pytest

from guide import BIN
from test_entry_points import ROOT, python

sys.path.insert(0, str(ROOT / "examples"))
import rouge  # noqa: E402

SUMMARIZE = ROOT / "examples/summarize.py"
MMLU = ROOT / "examples/mmlu.py"
STAMP = re.compile(r"\[\d\d/\d\d/\d{4}-\d\d:\d\d:\d\d\] \[TRT-LLM\] \[I\] (.*)")
# What rouge_score 0.1.2 says (F-measures of rouge1, rouge2, rougeL, rougeLsum).
ROUGE = [
    ("The cat sat on the mat.\nIt was a U.S. dog, 3.5 years old.", "A cat sat on a mat\nThe dog was 3 years old and the cat was not.",
     (0.727272727273, 0.258064516129, 0.484848484848, 0.606060606061)),
    ("police killed the gunman", "the gunman police killed", (1.0, 0.666666666667, 0.5, 0.5)),
    ("a b c\nd e", "d e a\nb c c", (0.909090909091, 0.666666666667, 0.545454545455, 0.909090909091)),
    ("x", "", (0, 0, 0, 0)),
    ("naïve Café 7", "Naive cafe 7", (0.285714285714, 0, 0.285714285714, 0.285714285714)),
]
TEXTS = ["The river rose in the night. Nobody was hurt.", "A ship came home after three years.", "Rain fell."]


@pytest.mark.parametrize("reference, prediction, want", ROUGE)
def test_rouge_is_that_of_the_published_program(reference, prediction, want):
    assert list(rouge.scores(reference, prediction).values()) == pytest.approx(want, abs=1e-12)


@pytest.fixture(scope="module")
def engine(models, tmp_path_factory):
    to = tmp_path_factory.mktemp("evaluation") / "engine"
    subprocess.run([BIN / "nereid", "build", models["gpt2"], "-o", to, "--max_beam_width=2", "--dtype=float32"], check=True,
                   stdout=subprocess.DEVNULL)
    return to


@pytest.fixture
def dataset(tmp_path):
    path = tmp_path / "test.jsonl"
    path.write_text("".join(json.dumps({"article": t, "highlights": f"summary {i} of\nit"}) + "\n" for i, t in enumerate(TEXTS)))
    return path


def lines_of(said):
    return [m[1] for m in map(STAMP.match, said.splitlines()) if m]


def values_of(lines, name):
    return [float(line.split(": ")[1].split()[0]) for line in lines if line.strip().startswith(name + ":")]


def test_summarize_prints_the_scores_of_the_answers(engine, models, dataset, tmp_path):
    said = python(SUMMARIZE, "--test_trt_llm", "--test_hf", "--hf_model_dir", models["gpt2"], "--data_type", "fp32",
                  "--engine_dir", engine, "--dataset_path", dataset, "--batch_size", 2, "--max_ite", 9, "--output_len", 8,
                  "--num_beams", 2, "--output_dir", tmp_path / "out").stdout
    lines = lines_of(said)
    assert [line.split(":")[0] for line in lines if line.startswith(("TensorRT", "Hugging", "HF beam"))] == [
        "TensorRT-LLM Generated", "TensorRT-LLM (total latency", "TensorRT-LLM (total output tokens",
        "TensorRT-LLM (tokens per second", "TensorRT-LLM beam 0 result", "TensorRT-LLM beam 1 result",
        "Hugging Face (total latency", "Hugging Face (total output tokens", "Hugging Face (tokens per second",
        "HF beam 0 result", "HF beam 1 result"]
    ours, theirs = ((tmp_path / "out" / name).read_text().splitlines()[2:] for name in ("trtllm.out", "hf.out"))
    assert ours == theirs and len(ours) == len(TEXTS) * 2  # the engine is the checkpoint's, in the same type
    text = (tmp_path / "out/trtllm.out").read_text().split("[0] [Beam 0] ", 1)[1].split("\n[0] [Beam 1] ", 1)[0]
    assert text
    assert len(values_of(lines, "rouge1")) == len(values_of(lines, "rougeLsum")) == 4


def test_summarize_of_the_reference_itself_is_a_hundred(engine, models, tmp_path):
    """The answers of one run are the references of the next."""
    def run(reference, *words):
        data = tmp_path / "d.json"
        data.write_text(json.dumps([{"article": TEXTS[0], "highlights": reference}]))
        return python(SUMMARIZE, "--test_trt_llm", "--engine_dir", engine, "--tokenizer_dir", models["gpt2"], "--dataset_path", data,
                      "--output_len", 12, "--output_dir", tmp_path / "out", "--check_accuracy", "--estimate_accuracy_std_dev", *words,
                      status=None)
    assert "[FAILED] rouge1 (0.0) is smaller than threshold (15.0)." in run("###").stderr
    answer = (tmp_path / "out/trtllm.out").read_text().split("[Beam 0] ", 1)[1].rstrip("\n")
    done = run(answer + " word")
    assert done.returncode == 0, done.stderr
    n = len(rouge.words(answer))
    assert values_of(lines_of(done.stdout), "rouge1") == [pytest.approx(100 * 2 * n / (2 * n + 1))]


def test_perplexity_is_that_of_nereid_eval(engine, models, tmp_path):
    text = tmp_path / "text"
    text.write_text(TEXTS[0])
    (tmp_path / "test.json").write_text(json.dumps([{"text": TEXTS[0]}]))
    lines = lines_of(python(SUMMARIZE, "--test_trt_llm", "--engine_dir", engine, "--tokenizer_dir", models["gpt2"], "--eval_task",
                            "eval_context_ppl", "--dataset_dir", tmp_path, "--tensorrt_llm_ppl_threshold", 1e9, "--check_accuracy").stdout)
    (found,) = values_of(lines, "Per-token perplexity")
    assert not values_of(lines, "rouge1")
    said = subprocess.run([BIN / "nereid", "eval", engine, "-f", text, "--tokenizer-dir", models["gpt2"]], check=True,
                          capture_output=True, text=True).stdout
    want, n = (float(x) for x in re.search(r"perplexity\s+([\d.]+)\s+\((\d+) tokens", said).groups())
    # one token more is in ours, the most probable one; of n tokens n - 1 are predicted
    vocab = json.loads((models["gpt2"] / "config.json").read_text())["vocab_size"]
    assert 0 <= math.log(found) * n - math.log(want) * (n - 1) <= math.log(vocab)


def test_summarize_refuses_by_name(engine, models, dataset, tmp_path):
    common = ["--engine_dir", engine, "--tokenizer_dir", models["gpt2"]]
    assert "--test_trt_llm, --test_hf or both" in python(SUMMARIZE, *common, status=2).stderr
    assert "nothing is downloaded" in python(SUMMARIZE, *common, "--test_trt_llm", status=1).stderr
    (tmp_path / "bad.jsonl").write_text('{"article": "a"}\n')
    assert "entry 1 has no texts 'article' and 'highlights'" in python(
        SUMMARIZE, *common, "--test_trt_llm", "--dataset_path", tmp_path / "bad.jsonl", status=1).stderr
    done = python(SUMMARIZE, *common, "--test_trt_llm", "--dataset_path", dataset, "--min_input_length", 900, status=1)
    assert "--min_input_length 900" in done.stderr


# ---- mmlu.py ----


@pytest.fixture
def questions(tmp_path):
    """Two subjects of different categories, and one that is in none."""
    for part, n in (("dev", 7), ("test", 4)):
        (tmp_path / part).mkdir()
        for subject in ("abstract_algebra", "virology", "of_our_own"):
            with open(tmp_path / part / f"{subject}_{part}.csv", "w", newline="") as f:
                csv.writer(f).writerows([f"What, is {i}?", "one", "two", "three", "four", "ABCD"[i % 4]] for i in range(n))
    return tmp_path


def test_mmlu_counts_right_answers(engine, models, questions):
    words = ["--test_trt_llm", "--engine_dir", engine, "--hf_model_dir", models["gpt2"], "--data_dir", questions]
    names = ["abstract_algebra", "of_our_own", "virology", "math", "health", "STEM", "other (business, health, misc.)"]
    lines = python(MMLU, *words).stdout.splitlines()
    assert [line.split(" - ")[1] for line in lines[:-1]] == names
    assert all(line.startswith("Average accuracy 0.") for line in lines[:3])  # the stand-in knows nothing
    assert lines[-1] == "MMLU weighted average accuracy: 0.00"
    said = python(MMLU, *words, "--check_accuracy", status=1).stderr
    assert said.strip() == "Expected accuracy >= 30.0 while got 0.0"


def test_mmlu_asks_what_the_published_program_asks(questions):
    """Prompts, and the letter that counts: with a model that answers B."""
    sys.path[:0] = [str(ROOT / "scripts")]
    import mmlu
    row = ["What, is 1?", "one", "two", "three", "four", "B"]
    assert mmlu.as_text(row, True) == "What, is 1?\nA. one\nB. two\nC. three\nD. four\nAnswer: B\n\n"

    class Characters:
        encode = staticmethod(list)

    asked = "".join(mmlu.prompt_ids(Characters, "of_our_own", [row, row], row, 1000))
    assert asked == ("The following are multiple choice questions (with answers) about  of our own.\n\n"
                     + 2 * mmlu.as_text(row, True) + mmlu.as_text(row, False))
    assert len(mmlu.prompt_ids(Characters, "of_our_own", [row, row], row, len(asked) - 1)) == len(asked) - len(mmlu.as_text(row, True))

    class B:
        tokenizer, info = Characters, {"max_seq_len": 4096}

        @staticmethod
        def generate(ids, params):
            return [type("Output", (), {"text": " B"}) for _ in ids]

    args = type("Args", (), {"data_dir": questions, "ntrain": 5, "max_ite": 3, "max_input_length": 2048})
    nereid = type("Module", (), {"SamplingParams": dict})
    assert mmlu.answer_subject(args, nereid, B, "virology") == [False, True, False]
    assert mmlu.report({"virology": [True, False], "abstract_algebra": [True, True, True]}) == 80


def test_mmlu_refuses_by_name(engine, models, questions):
    words = ["--test_trt_llm", "--engine_dir", engine, "--tokenizer_dir", models["gpt2"], "--data_dir"]
    assert "/nowhere/test" in python(MMLU, *words, "/nowhere", status=1).stderr
    (questions / "test/virology_test.csv").write_text("What?\n")
    assert "virology_test.csv: row 1 must hold" in python(MMLU, *words, questions, status=1).stderr
    assert "one of them" in python(MMLU, *words, questions, "--test_hf", status=2).stderr
