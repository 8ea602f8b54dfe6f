# SPDX-License-Identifier: Apache-2.0
"""Requests of other programs to a server of a small model, as they are sent, and what is read of the answers."""
import contextlib
import json
import pathlib
import subprocess
import sys
import urllib.error
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))
from llm_server import ROOT, Server  # noqa: E402


@contextlib.contextmanager
def server_of(folder, prepare, *args):
    """(path, body, headers) -> (status, content type, text). `prepare` changes the model's folder before it is served."""
    subprocess.run([sys.executable, ROOT / "tests/tinymodel/make_model.py", "--arch", "llama", "--out", folder / "tiny"],
                   check=True, stdout=subprocess.DEVNULL)
    prepare(folder / "tiny")
    s = Server(folder / "tiny", folder, "--served-model-name", "tiny", *args)

    def request(path, body=None, headers={}):
        r = urllib.request.Request(s.url(path), data=None if body is None else json.dumps(body).encode(),
                                   headers={"Content-Type": "application/json", **headers})
        try:
            with urllib.request.urlopen(r, timeout=60) as answer:
                return answer.status, answer.headers["Content-Type"], answer.read().decode()
        except urllib.error.HTTPError as e:
            return e.code, e.headers["Content-Type"], e.read().decode()

    try:
        s.wait_ready()
        yield request
    finally:
        assert s.stop() == 0, s.log_text()[-4000:]


def whole(answer):
    status, kind, text = answer
    assert status == 200 and "application/json" in kind, answer
    return json.loads(text)


def events(answer):
    """The data of a stream of events, without OpenAI's [DONE]."""
    status, kind, text = answer
    assert status == 200 and "text/event-stream" in kind, answer
    data = [line[len("data: "):] for line in text.splitlines() if line.startswith("data: ")]
    return [json.loads(d) for d in data if d != "[DONE]"]


def lines(answer):
    status, kind, text = answer
    assert status == 200 and "application/x-ndjson" in kind, answer
    return [json.loads(line) for line in text.splitlines()]
