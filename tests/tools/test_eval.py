# SPDX-License-Identifier: Apache-2.0
"""nereid eval: two models compared, questions with several answers, needles."""
import json
import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
NEREID = os.environ.get("NEREID", str(ROOT / "build/bin/nereid"))
sys.path[:0] = [str(ROOT / "tests/tinymodel"), str(ROOT / "tests/model")]
import check_goldens  # noqa: E402
import adapter  # noqa: E402
import make_model  # noqa: E402

TEXT = ROOT / "tests/model/perplexity.txt"
SAMPLES = pathlib.Path(__file__).with_name("eval_samples.jsonl")  # make_eval_samples.py: log likelihoods of transformers


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    home = tmp_path_factory.mktemp("eval")
    for arch in ("llama3", "qwen2"):
        make_model.write_folder(arch, str(home / arch))
    return home


def run(*words, status=0):
    done = subprocess.run([NEREID, *map(str, words)], capture_output=True, text=True)
    assert done.returncode == status, done.stderr
    return done.stderr if status else done.stdout


def evaluate(*words):
    return json.loads(run("eval", *words, "--json"))


def test_answers_are_as_likely_as_lm_eval_finds_them(home):
    said = evaluate(home / "llama3", "--task", SAMPLES, "--compute-dtype", "float32")
    assert said["questions"] == said["file"]["questions"] == 8 and said["file"]["same_choice"] == 1
    assert said["file"]["log_prob_off_max"] < 1e-3
    assert said["acc"] == said["file"]["acc"] == 0.25 and said["acc_norm"] == said["file"]["acc_norm"] == 0.5
    shown = run("eval", home / "llama3", "--task", SAMPLES, "--limit", "3")
    assert "3 questions" in shown and "acc_norm" in shown and "± " in shown


def test_questions_of_a_simple_form(home, tmp_path):
    """The same answers as those of samples, with a space before each."""
    lines = [json.loads(line) for line in SAMPLES.read_text().splitlines()]
    first = lines[0]["arguments"]
    choices = [a["arg_1"][1:] for a in first.values()]
    (tmp_path / "q.jsonl").write_text("\n" + json.dumps(
        {"query": first["gen_args_0"]["arg_0"], "choices": choices, "gold": 1}) + "\n")
    said = evaluate(home / "llama3", "--task", tmp_path / "q.jsonl", "--compute-dtype", "float32")
    told = [r[0][0] for r in lines[0]["resps"]]
    assert said == {"questions": 1, "acc": float(max(told) == told[1]),
                    "acc_norm": float(max(zip([p / len(c) for p, c in zip(told, choices)], range(3)))[1] == 1)}


@pytest.mark.parametrize("line, message", [
    ('{"query": "a"}', "line 1: expected \"arguments\" (samples of lm_eval)"),
    ('{"query": "a", "choices": ["b", 3], "gold": 0}', "\"choices\" 1: expected a text"),
    ('{"query": "a", "choices": ["b", "c"], "gold": 2}', "\"gold\": expected the number of an answer, below 2"),
    ('{"arguments": [["a", {"until": ["."]}]], "target": "b"}', "a task that generates text"),
    ('{"arguments": [["a"], ["b"]], "target": 0}', "\"arguments\" 0: expected a context and a continuation"),
    ('{"query": "a", "choices": ["' + "word " * 700 + '"], "gold": 0}', "can be scored"),
    ("{", "line 1"),
    ("", "holds no questions"),
])
def test_wrong_questions_are_refused_by_name(home, tmp_path, line, message):
    (tmp_path / "q.jsonl").write_text(line + "\n")
    assert message in run("eval", home / "llama3", "--task", tmp_path / "q.jsonl", status=1)


def test_two_models_are_compared(home, tmp_path):
    report = tmp_path / "q/report.json"
    run("quantize", "--model_dir", home / "llama3", "--output_dir", report.parent, "--qformat", "int4_wo", "--eval_dataset", TEXT)
    made = json.loads(report.read_text())
    said = evaluate(home / "llama3", "--compare", report.parent, "-f", TEXT, "--window", "511", "--worst", "4")
    assert said["perplexity"] == pytest.approx([made["perplexity_before"], made["perplexity_after"]], rel=1e-4)
    assert said["kl_divergence"] == pytest.approx(made["kl_divergence"], rel=1e-3)
    assert said["same_best_token"] == pytest.approx(made["same_best_token"], abs=1e-3) and said["tokens"] == made["evaluation_tokens"]
    worst = [w["divergence"] for w in said["worst"]]
    assert len(worst) == 4 and worst == sorted(worst, reverse=True)
    assert worst[-1] >= said["kl_divergence_p99"] > said["kl_divergence_median"] > 0
    text = TEXT.read_text()
    assert all(w["context"] + w["next"] in text for w in said["worst"])
    itself = evaluate(home / "llama3", "--compare", home / "llama3", "-f", TEXT)
    assert itself["kl_divergence"] < 1e-9 and itself["same_best_token"] == 1 and itself["perplexity"][0] == itself["perplexity"][1]
    shown = run("eval", home / "llama3", "--compare", report.parent, "-f", TEXT, "--worst", "1")
    assert shown.count("perplexity") == 2 and " %)" in shown and " -> " in shown


def test_each_of_two_models_has_its_adapter(tmp_path):
    model = tmp_path / "m"
    make_model.write_folder("llama", str(model))
    one = adapter.write("llama", tmp_path / "a")
    words = [model, "--compare", model, "-f", TEXT, "--window", "255"]
    plain = evaluate(*words)["perplexity"][0]
    second, first = evaluate(*words, "--compare_lora_dir", one), evaluate(*words, "--lora_dir", one)
    assert second["perplexity"][0] == first["perplexity"][1] == plain
    assert second["perplexity"][1] == first["perplexity"][0] and second["kl_divergence"] > 0.01
    both = evaluate(*words, "--lora_dir", one, "--compare_lora_dir", one)
    assert both["kl_divergence"] < 1e-9 and both["perplexity"] == [first["perplexity"][0]] * 2
    assert first["perplexity"][0] == pytest.approx(evaluate(model, "-f", TEXT, "--window", "255", "--lora_dir", one)["perplexity"], rel=1e-4)


def test_what_is_not_compared(home, tmp_path):
    said = run("eval", home / "llama3", "-f", TEXT, "--compare_lora_dir", tmp_path, status=2)
    assert "--compare_lora_dir is for OTHER of --compare" in said
    other = tmp_path / "other"
    make_model.write_folder("qwen2", str(other))
    words = json.loads((other / "tokenizer.json").read_text())
    words["normalizer"] = {"type": "Lowercase"}
    (other / "tokenizer.json").write_text(json.dumps(words))
    words = ["--compare", other, "-f", TEXT, "--lora_dir", tmp_path / "none"]  # which is opened before a model reads
    assert "cuts the text into other tokens" in run("eval", home / "qwen2", *words, status=1)


def test_a_needle_is_found_by_a_model_that_reads(home):
    small = check_goldens.real_path("smollm2")
    if small is None:
        pytest.skip("the model is not in the cache")
    (said,) = evaluate(small, "--needle", "300", "--samples", "4")
    assert (said["length"], said["samples"]) == (300, 4) and said["found"] >= 3 and said["log_prob"] > -1


def test_a_needle_is_not_found_by_chance(home):
    said = evaluate(home / "llama3", "--needle", "100,300", "--samples", "3")
    assert [n["length"] for n in said] == [100, 300] and all(n["found"] == 0 and n["log_prob"] < -4 for n in said)
    assert "not at 0 %, 50 %, 100 %" in run("eval", home / "llama3", "--needle", "100", "--samples", "3")


@pytest.mark.parametrize("words, message", [
    (["--needle", "8k"], "--needle '8k': expected lengths in tokens"),
    (["--needle", "20"], "a text of 20 tokens has no room for the question"),
    (["--needle", "100000"], "a text of 100000 tokens; the model takes 512"),
])
def test_wrong_lengths_are_refused_by_name(home, words, message):
    assert message in run("eval", home / "llama3", *words, status=1)
