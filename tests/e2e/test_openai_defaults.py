# SPDX-License-Identifier: Apache-2.0
"""How /v1 samples where a request does not say: as the model's files tell, else general values."""
import json
import shutil
import subprocess

import pytest

from llm_server import ROOT, Server

GENERAL = {"temperature": 0.8, "top_p": 0.95, "min_p": 0.05, "top_k": 40, "repetition_penalty": 1}
BARE = {"temperature": 1, "top_p": 1, "min_p": 0, "top_k": 0, "repetition_penalty": 1}
OWN = {"temperature": 1.3, "top_p": 1, "min_p": 0, "top_k": 7, "repetition_penalty": 1.25}
ASK = {"model": "ensemble", "messages": [{"role": "user", "content": "the quick brown fox"}], "max_tokens": 24, "seed": 9}


@pytest.fixture(scope="module")
def own_model(tiny_model, tmp_path_factory):
    folder = shutil.copytree(tiny_model, tmp_path_factory.mktemp("own") / "own")
    (folder / "generation_config.json").write_text(json.dumps(
        {"temperature": 1.3, "top_k": 7, "repetition_penalty": 1.25, "do_sample": True, "eos_token_id": 2}))
    return folder


def texts(server, **fields):
    chat = server.request("/v1/chat/completions", {**ASK, **fields})[1]["choices"][0]["message"]["content"]
    body = {k: v for k, v in ASK.items() if k != "messages"} | {"prompt": "the quick brown fox"} | fields
    return chat, server.request("/v1/completions", body)[1]["choices"][0]["text"]


@pytest.mark.parametrize("own,word,expected", [(False, "auto", GENERAL), (True, "auto", OWN), (True, "none", BARE)])
def test_fields_left_out_have_the_values_that_the_list_shows(tiny_model, own_model, cache, own, word, expected):
    s = Server(own_model if own else tiny_model, cache, f"--generation-config={word}")
    try:
        s.wait_ready()
        shown = [m["sampling"] for m in s.request("/v1/models")[1]["data"]]
        assert shown and all(x == expected for x in shown)
        assert texts(s) == texts(s, **expected)
        assert texts(s) != texts(s, **(BARE if expected != BARE else GENERAL))
        assert texts(s, temperature=0) == texts(s, **{**expected, "temperature": 0, "seed": 10})
    finally:
        assert s.stop() == 0


def test_v2_stays_greedy_without_a_wish(tiny_model, own_model, cache):
    s = Server(own_model, cache)
    try:
        s.wait_ready()
        body = {"text_input": "the quick brown fox", "max_tokens": 24, "bad_words": "", "stop_words": ""}
        plain, greedy = s.generate(body), s.generate(body | {"top_k": 1})
        assert plain[0] == 200 and plain[1]["text_output"] == greedy[1]["text_output"]
    finally:
        assert s.stop() == 0


def test_another_word_is_refused(tiny_model, cache):
    s = Server(tiny_model, cache, "--generation-config=some")
    assert s.process.wait(60) == 2
    assert '"--generation-config"' in s.log_text() and "expected auto or none" in s.log_text()
    s.stop()


def test_a_real_model_gives_a_good_first_answer(cache):
    fetched = subprocess.run([ROOT / "scripts/fetch_model", "smollm2"], capture_output=True, text=True)
    if fetched.returncode:
        pytest.skip(f"model: {fetched.stderr.strip()}")
    s = Server(fetched.stdout.strip(), cache)
    ask = {"model": "ensemble", "messages": [{"role": "user", "content": "What is the capital of France?"}], "max_tokens": 40}
    try:
        s.wait_ready()
        said = [s.request("/v1/chat/completions", ask | {"seed": seed})[1]["choices"][0]["message"]["content"]
                for seed in range(1, 6)]
        assert sum("Paris" in text for text in said) >= 3, said
    finally:
        assert s.stop() == 0
