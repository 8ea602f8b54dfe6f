# SPDX-License-Identifier: Apache-2.0
"""How `nereid run` and `nereid chat` draw tokens: the model's own values, general ones, or what the user says."""
import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
NEREID = os.environ.get("NEREID", str(ROOT / "build" / "bin" / "nereid"))
PROMPT = ["-p", "the quick brown fox", "-n", "24"]
GENERAL = ["--temperature", 0.8, "--top_k", 40, "--top_p", 0.95, "--min_p", 0.05]


def make(out, *more):
    subprocess.run([sys.executable, ROOT / "tests/tinymodel/make_model.py", "--arch", "llama", "--out", out, *more],
                   check=True, stdout=subprocess.DEVNULL)
    return out


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make(tmp_path_factory.mktemp("sampling") / "llama")


@pytest.fixture(scope="module")
def real():
    r = subprocess.run([ROOT / "scripts/fetch_model", "smollm2"], capture_output=True, text=True)
    if r.returncode:
        pytest.skip(f"model: {r.stderr.strip()}")
    return r.stdout.strip()


def nereid(*words, text=""):
    return subprocess.run([NEREID, *map(str, words)], capture_output=True, input=text, text=True)


def text_of(model, *words):
    r = nereid("run", model, *PROMPT, *words)
    assert r.returncode == 0, r.stderr
    return r.stdout


def seed_of(r):
    return int(re.search(r"seed (\d+)", r.stderr)[1])


def set_generation(model, **values):
    (model / "generation_config.json").write_text(json.dumps(values))
    return model


def test_temperature_1_samples_and_0_is_greedy(model):
    def draws(t):
        return {text_of(model, "--temperature", t, "--seed", seed) for seed in (1, 2, 3)}
    assert len(draws(1)) == 3 and len(draws(0)) == 1


def test_without_a_wish_the_general_values_are_in_force(model):
    assert text_of(model, "--seed", 5) == text_of(model, *GENERAL, "--seed", 5)
    assert text_of(model, "--seed", 5, "--generation-config", "none") == \
        text_of(model, "--temperature", 1, "--top_k", 0, "--top_p", 1, "--min_p", 0, "--seed", 5)
    assert text_of(model, "--seed", 5) != text_of(model, "--seed", 5, "--generation-config", "none")


def test_the_models_own_values_are_in_force(tmp_path):
    model = make(tmp_path / "m")
    set_generation(model, temperature=1.4, top_k=7, repetition_penalty=1.2, eos_token_id=2)
    said = ["--temperature", 1.4, "--top_k", 7, "--top_p", 1, "--min_p", 0, "--repetition_penalty", 1.2]
    assert text_of(model, "--seed", 3) == text_of(model, *said, "--seed", 3)
    assert text_of(model, "--seed", 3, "--temperature", 0) == text_of(model, *said[2:], "--seed", 3, "--temperature", 0)
    set_generation(model, repetition_penalty=1.2)
    assert text_of(model, "--seed", 3) == text_of(model, *GENERAL, "--repetition_penalty", 1.2, "--seed", 3)
    set_generation(model, temperature=-1, top_p="much", top_k=None)
    assert text_of(model, "--seed", 3) == text_of(model, *GENERAL, "--seed", 3)


def test_a_gguf_files_own_values_are_in_force(tmp_path):
    plain = make(tmp_path / "plain.gguf", "--format", "gguf")
    file = make(tmp_path / "own.gguf", "--format", "gguf", "--sampling", "temp=1.3,top_k=9,penalty_repeat=1.1")
    said = ["--temperature", 1.3, "--top_k", 9, "--top_p", 1, "--min_p", 0, "--repetition_penalty", 1.1]
    assert text_of(file, "--seed", 4) == text_of(plain, *said, "--seed", 4)


def test_the_seed_is_random_and_told(model):
    a, b = nereid("run", model, *PROMPT), nereid("run", model, *PROMPT)
    assert seed_of(a) != seed_of(b) and a.stdout != b.stdout
    assert text_of(model, "--seed", seed_of(a)) == a.stdout
    assert "seed" not in nereid("run", model, *PROMPT, "-q").stderr
    assert "seed" not in nereid("run", model, *PROMPT, "--temperature", 0).stderr


def test_beams_are_not_drawn(model):
    assert text_of(model, "--beam_width", 2) == text_of(model, "--beam_width", 2)


@pytest.mark.parametrize("verb", ["run", "chat"])
def test_help_tells_what_is_in_force(verb):
    text = nereid(verb, "--help").stdout
    for value in ("0.8", "40", "0.95", "0.05", "generation_config.json", "random"):
        assert value in text, value


def test_bad_words_are_refused(model):
    r = nereid("run", model, "-p", "x", "--generation-config", "some")
    assert r.returncode == 2 and "auto or none" in r.stderr


def test_a_real_model_gives_a_good_first_answer(real):
    """Drawn, so not every seed finds it: some six of ten, by which rounding ever; greedy, this model never does."""
    ask = "What is the capital of France?"
    run = [nereid("run", real, "--chat", "-p", ask, "-n", 40, "--seed", seed).stdout for seed in range(1, 17)]
    assert sum("Paris" in text for text in run) >= 5, run
    assert nereid("chat", real, "-n", 40, "--seed", 1, "-q", text=ask + "\n").stdout == run[0]
