# SPDX-License-Identifier: Apache-2.0
"""nereid client: what it asks a small model's server, and what it prints."""
import json
import os
import pathlib
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = ROOT / os.environ.get("NEREID_BUILD", "build")
NEREID = os.environ.get("NEREID", str(BUILD / "bin" / "nereid"))


def client(*words, stdin="", status=0):
    done = subprocess.run([NEREID, "client", *map(str, words)], input=stdin, capture_output=True, text=True, timeout=60)
    assert done.returncode == status, (done.stdout, done.stderr)
    return done.stdout if status == 0 else done.stderr


def asked(server, path, body):
    status, answer = server.request(path, body)
    assert status == 200
    return answer


def test_an_answer_is_that_of_the_server(server):
    url = f"http://127.0.0.1:{server.http}"
    want = asked(server, "/v2/models/ensemble/generate", {"text_input": "Once upon a", "max_tokens": 9, "bad_words": "",
                                                          "stop_words": "", "exclude_input_in_output": True})
    assert client("generate", url, "-p", "Once upon a", "--max_tokens", 9, "--no_stream") == want["text_output"] + "\n"
    for words in ([], ["--no_stream"]):
        messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]
        want = asked(server, "/v1/chat/completions", {"model": "ensemble", "messages": messages, "max_tokens": 9,
                                                      "temperature": 0})
        got = client("chat", url, "-p", "hi", "--system", "be brief", "--max_tokens", 9, "--sampling", '"temperature": 0',
                     *words)
        assert got == want["choices"][0]["message"]["content"] + "\n"


def test_many_answers_come_in_the_order_of_their_prompts(server):
    url = f"127.0.0.1:{server.http}"
    prompts = [f"number {i}" for i in range(20)]
    got = client("completions", url, "-c", 8, "--json", "--max_tokens", 5, "--sampling", '"temperature": 0',
                 stdin="\n".join(prompts))
    for prompt, line in zip(prompts, got.splitlines(), strict=True):
        want = asked(server, "/v1/completions", {"model": "ensemble", "prompt": prompt, "max_tokens": 5, "temperature": 0})
        assert json.loads(line)["text"] == want["choices"][0]["text"]


def test_infer_shows_the_answer_as_it_is(server, tmp_path):
    body = tmp_path / "body.json"
    body.write_text(json.dumps({"inputs": [{"name": "TOKENS_BATCH", "datatype": "INT32", "shape": [1, 1, 3],
                                            "data": [5, 6, 7]},
                                           {"name": "SEQUENCE_LENGTH", "datatype": "INT32", "shape": [1, 1], "data": [3]}]}))
    got = json.loads(client("infer", f"127.0.0.1:{server.http}", "--model", "postprocessing", "--body", body))
    assert got["model_name"] == "postprocessing" and got["outputs"][0]["name"] == "OUTPUT"


def test_an_error_is_told(server):
    url = f"127.0.0.1:{server.http}"
    assert "status 4" in client("chat", url, "-p", "x", "--model", "nobody", status=1)
    done = subprocess.run([NEREID, "client", "chat", url, "--json", "--model", "nobody"], input="a\nb\n",
                          capture_output=True, text=True)
    assert done.returncode == 1 and [list(json.loads(x)) for x in done.stdout.splitlines()] == [["error"]] * 2
    assert "prompt 1: 127.0.0.1:1: Connection refused" in client("chat", "127.0.0.1:1", "-p", "x", status=1)
    alone = subprocess.run([NEREID, "client", "chat", "127.0.0.1:1", "-p", "x"], capture_output=True, text=True)
    assert alone.returncode == 1 and alone.stdout == ""


@pytest.mark.parametrize("words, part, status", [
    ([], "is needed", 2),
    (["soap", "-p", "x"], "expected generate", 1),
    (["infer", "-p", "x"], "--body", 1),
    (["generate", "-p", "x", "--system", "y"], "--system", 1),
    (["chat", "--header", "x"], "NAME: VALUE", 2),
    (["chat"], "no prompt", 1),
])
def test_what_cannot_be_is_refused(words, part, status):
    assert part in client(*words, status=status)
