# SPDX-License-Identifier: Apache-2.0
"""`nereid run --json`: an object for each answer, with the text that is printed without."""
import json
import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
NEREID = os.environ.get("NEREID", str(ROOT / "build" / "bin" / "nereid"))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    out = tmp_path_factory.mktemp("run") / "llama"
    subprocess.run([sys.executable, ROOT / "tests/tinymodel/make_model.py", "--arch", "llama", "--out", out], check=True, stdout=subprocess.DEVNULL)
    return out


def run(*words, text=""):
    return subprocess.run([NEREID, *map(str, words)], capture_output=True, input=text, text=True)


def test_each_prompt_has_its_object(model):
    prompts = "the quick brown fox\nover\n"
    plain = run("run", model, "-n", 8, "--temperature", 0, text=prompts)
    done = run("run", model, "-n", 8, "--temperature", 0, "--json", text=prompts)
    assert plain.returncode == done.returncode == 0 and "decode:" not in done.stderr, done.stderr
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert "".join(a["text"] + "\n" for a in answers) == plain.stdout
    for a, said in zip(answers, plain.stderr.splitlines()[-2:], strict=True):
        assert f"prompt: {a['prompt_tokens']} tokens" in said and f"decode: {a['completion_tokens']} tokens" in said
        assert a["finish_reason"] in ("length", "stop") and a["first_token_seconds"] > 0 and a["decode_seconds"] > 0
        assert a["completion_tokens"] == 8 or a["finish_reason"] == "stop"
        assert "seed" not in a  # nothing is drawn


def test_the_seed_is_told_and_gives_the_text_again(model):
    first = json.loads(run("run", model, "-p", "over", "-n", 12, "--ignore-eos", "--json").stdout)
    assert first["completion_tokens"] == 12 and first["finish_reason"] == "length"
    again = json.loads(run("run", model, "-p", "over", "-n", 12, "--ignore-eos", "--json", "--seed", first["seed"]).stdout)
    assert again["text"] == first["text"] and again["seed"] == first["seed"]


def test_drafts_are_counted(model):
    a = json.loads(run("run", model, "-p", "one two one two one two", "-n", 60, "--ignore-eos", "--temperature", 0, "--json",
                       "--speculative-config", '{"method": "ngram", "adaptive": false, "prompt_lookup_min": 1}').stdout)
    assert 0 <= a["accepted_draft_tokens"] <= a["draft_tokens"] and a["draft_tokens"] > 0


@pytest.mark.parametrize("words, why", [
    (["run", "--json", "--echo", "-p", "a"], "--json and --echo: one of them"),
    (["chat", "--json"], "nereid run --chat"),
])
def test_where_it_is_refused(model, words, why):
    done = run(words[0], model, *words[1:])
    assert done.returncode == 2 and why in done.stderr and not done.stdout


def test_a_prompt_that_is_too_long_says_by_what(model, tmp_path):
    text = "the quick fox " * 300

    def why(path, *words):
        done = run("run", path, *words, "--prompt-file", prompt)
        assert done.returncode == 1 and not done.stdout and "TRTLLM" not in done.stderr, done
        return done.stderr.splitlines()[-1]

    prompt = tmp_path / "prompt.txt"
    prompt.write_text(text)
    n = len(run("tokenize", model, text=text).stdout.split())
    assert why(model) == f"nereid run: the prompt has {n} tokens; the model was made for 512, of which one at least is the answer's"
    for i, (words, limit) in enumerate(((["--max_input_len", 20, "--max_seq_len", 100], "takes 20 (--max_input_len 20"),
                                        (["--max_seq_len", 100], "takes 99 (--max_seq_len 100"))):
        subprocess.run([NEREID, "build", model, "--output_dir", tmp_path / f"e{i}", *map(str, words)], check=True, capture_output=True)
        told = why(tmp_path / f"e{i}", "--tokenizer-dir", model)
        assert told == f"nereid run: the prompt has {n} tokens; this engine {limit} of nereid build)"
