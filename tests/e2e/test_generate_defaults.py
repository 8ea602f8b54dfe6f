# SPDX-License-Identifier: Apache-2.0
"""Encoder-decoder models answer as generate() of transformers does with their generation_config.json: beams, lengths, what is not
repeated (tests/model/make_generate_goldens.py); over that as the request says."""
import json
import subprocess
import sys
import urllib.request

import pytest

from llm_server import BIN, ROOT, Server

sys.path.insert(0, str(ROOT / "tests" / "tinymodel"))
import encdec  # noqa: E402

GOLDEN = json.loads((ROOT / "tests/model/generate_texts.json").read_text())["models"]
BUILD = ["--build", "--dtype=float32", "--build", "--kv_cache_dtype=float32", "--build", "--max_beam_width=4"]


def serve(folder, *more):
    return Server(folder / "model", folder, *BUILD, *more)


def ask(server, prompt, **fields):
    return server.request("/v1/completions", {"model": "ensemble", "prompt": prompt, **fields})


def text(server, prompt, **fields):
    status, answer = ask(server, prompt, **fields)
    assert status == 200, answer
    return answer["choices"][0]["text"]


def stream(server, prompt, **fields):
    body = json.dumps({"model": "ensemble", "prompt": prompt, "stream": True, **fields}).encode()
    with urllib.request.urlopen(server.url("/v1/completions"), data=body, timeout=60) as r:
        events = [json.loads(line[6:]) for line in r if line.startswith(b"data: {")]
    return "".join(c["text"] for e in events for c in e["choices"])


def run(model, *words):
    done = subprocess.run([BIN / "nereid", "run", model, "-q", *words], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout[:-1]


@pytest.mark.parametrize("name, kind", [(name, kind) for name in GOLDEN for kind in GOLDEN[name]])
def test_answers_are_those_of_generate(name, kind, tmp_path):
    encdec.write_folder(name, tmp_path / "model", encdec.GENERATION[name][kind])
    server = serve(tmp_path)
    try:
        server.wait_ready()
        for prompt, want in GOLDEN[name][kind].items():
            assert text(server, encdec.PROMPTS[prompt]) == want["text"], prompt
    finally:
        server.stop()


@pytest.fixture(scope="module")
def old(tmp_path_factory):
    """BART without generation_config.json: its config.json says the same."""
    folder = tmp_path_factory.mktemp("old")
    values = encdec.GENERATION["bart"]["never"]
    encdec.write_folder("bart", folder / "model", values)
    (folder / "model/generation_config.json").unlink()
    config = json.loads((folder / "model/config.json").read_text())
    (folder / "model/config.json").write_text(json.dumps({**config, **values}))
    server = serve(folder)
    try:
        yield server.wait_ready(), folder / "model"
    finally:
        server.stop()


def test_config_json_says_it_too(old):
    for prompt, want in GOLDEN["bart"]["never"].items():
        assert text(old[0], encdec.PROMPTS[prompt]) == want["text"], prompt


def test_a_request_has_the_last_word(old):
    server, ids = old[0], encdec.PROMPTS["one"]
    own = text(server, ids)
    one = text(server, ids, beam_width=1)
    assert one != own
    assert text(server, ids, beam_width=3) == own
    assert text(server, ids, no_repeat_ngram_size=0) not in (own, one)
    assert len(text(server, ids, max_tokens=3)) < len(own)
    middle = encdec.PROMPTS["middle"]
    assert len(text(server, middle, min_tokens=0, length_penalty=-2)) < len(text(server, middle))
    assert stream(server, ids) == one
    assert text(server, ids, logprobs=1) == one


@pytest.mark.parametrize("fields, part", [
    ({"beam_width": 5}, "beam_width: must be a whole number from 1 to 3"),
    ({"beam_width": 2, "logprobs": 1}, "beam_width: must be 1 beside logprobs"),
    ({"beam_width": 2, "n": 2}, "beam_width: must be 1 beside n or best_of above 1"),
    ({"beam_width": 2, "stream": True}, "beam_width: must be 1 beside stream"),
    ({"beam_width": 2, "temperature": 0.5}, "beam_width: must be 1 beside a temperature above 0"),
    ({"early_stopping": 1}, "early_stopping: must be true, false or"),
    ({"length_penalty": 1e9}, "length_penalty: must be a number from -100 to 100"),
    ({"no_repeat_ngram_size": -1}, "no_repeat_ngram_size: must be a whole number from 0"),
])
def test_what_cannot_be_is_refused(old, fields, part):
    status, answer = ask(old[0], [5, 6], **fields)
    assert status == 400 and part in answer["error"]["message"], answer


def test_run_answers_as_the_server_does(old):
    server, model = old
    assert run(model, "-p", "fox") == text(server, "fox")
    assert run(model, "-p", "fox", "--beam-width", "1") == text(server, "fox", beam_width=1)
    assert run(model, "-p", "fox", "-n", "4") == text(server, "fox", max_tokens=4)
    assert run(model, "-p", "fox", "-n", "16", "--generation-config", "none") not in (
        text(server, "fox"), text(server, "fox", beam_width=1))
