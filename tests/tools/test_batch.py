# SPDX-License-Identifier: Apache-2.0
"""nereid batch: a file of requests without a server."""
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
NEREID = os.environ.get("NEREID", str(ROOT / "build" / "bin" / "nereid"))
sys.path.insert(0, str(ROOT / "tests/tinymodel"))
sys.path.insert(0, str(ROOT / "tests/tools"))
import adapter  # noqa: E402

TEXT = "/v1/completions"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("batch") / "llama"
    subprocess.run([sys.executable, ROOT / "tests/tinymodel/make_model.py", "--arch", "llama", "--out", folder], check=True,
                   stdout=subprocess.DEVNULL)
    return folder


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    os.environ["NEREID_CACHE"] = str(tmp_path_factory.mktemp("cache"))
    yield
    del os.environ["NEREID_CACHE"]


def line(i, url=TEXT, **body):
    base = {"model": "gpt-4o-mini", "prompt": f"number {i}", "max_tokens": 8, "temperature": 0} if url == TEXT else {}
    return {"custom_id": f"id-{i}", "method": "POST", "url": url, "body": {**base, **body}}


def write(path, lines):
    path.write_text("".join((x if isinstance(x, str) else json.dumps(x)) + "\n" for x in lines))
    return path


def batch(model, requests, out, *words):
    return subprocess.run([NEREID, "batch", requests, "-o", out, "--model", model, *map(str, words)], capture_output=True, text=True,
                          timeout=100, check=False)


def answers(out):
    lines = [json.loads(x) for x in out.read_text().split("\n") if x]  # splitlines knows further ends of lines
    assert len({x["custom_id"] for x in lines}) == len(lines)
    return {x["custom_id"]: x for x in lines}


def test_all_endpoints_in_one_file(model, tmp_path):
    chat = [{"role": "user", "content": "hello"}]
    out = tmp_path / "out.jsonl"
    done = batch(model, write(tmp_path / "in.jsonl", [
        line(1), line(2, "/v1/chat/completions", messages=chat, max_tokens=6, temperature=0, model="any"),
        line(3, "/v1/embeddings", input="hello"), line(4, "/v1/responses", input="hello", max_output_tokens=6),
        line(5, "/v1/chat/completions", messages=chat, max_tokens=40, response_format={
            "type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": ["a", "b"]}}})]), out, "--set", "embedding_pooling:mean")
    assert done.returncode == 0, done.stderr
    assert "5 of 5 lines, 0 failed" in done.stderr and "tokens/s" in done.stderr and done.stdout == ""
    body = {k: v["response"]["body"] for k, v in answers(out).items()}
    assert body["id-1"]["model"] == body["id-2"]["model"] == "llama"
    assert body["id-1"]["usage"]["completion_tokens"] == 8 and body["id-2"]["choices"][0]["message"]["content"]
    assert len(body["id-3"]["data"][0]["embedding"]) > 10 and body["id-4"]["object"] == "response"
    assert json.loads(body["id-5"]["choices"][0]["message"]["content"]) in ("a", "b")
    run = subprocess.run([NEREID, "run", model, "-p", "number 1", "-n", "8", "--temperature", "0", "-q"], capture_output=True, check=True)
    assert body["id-1"]["choices"][0]["text"].encode()[:4] in run.stdout


def test_lines_that_have_an_answer_are_left_out(model, tmp_path):
    out, requests = tmp_path / "out.jsonl", write(tmp_path / "in.jsonl", [line(i) for i in range(40)])
    assert batch(model, requests, out).returncode == 0
    whole = answers(out)
    kept = [x + "\n" for x in out.read_text().split("\n")[:25]]
    out.write_text("".join(kept) + '{"custom_id": "id-3", "resp')  # the last line was cut off
    again = batch(model, requests, out)
    assert again.returncode == 0 and "25 of 40 lines have an answer" in again.stderr, again.stderr
    assert out.read_text().startswith("".join(kept))
    for k, x in answers(out).items():
        assert x["response"]["body"]["choices"] == whole[k]["response"]["body"]["choices"]
    assert len(answers(out)) == 40


@pytest.mark.parametrize("change, why", [
    (lambda lines: [*lines[:2], line(2, prompt="another")], "the answer to another request with the custom_id 'id-2'"),
    (lambda lines: lines[:2], "an answer to 'id-2', which is not in"), (lambda lines: [], "an answer to 'id-"),
])
def test_answers_to_other_requests_are_not_taken_for_these(model, tmp_path, change, why):
    out, lines = tmp_path / "out.jsonl", [line(i) for i in range(3)]
    assert batch(model, write(tmp_path / "in.jsonl", lines), out).returncode == 0
    kept = out.read_text()
    done = batch(model, write(tmp_path / "other.jsonl", change(lines)), out)
    assert done.returncode == 1 and why in done.stderr and out.read_text() == kept, done.stderr
    assert batch(model, write(tmp_path / "longer.jsonl", [line(9), *lines]), out).returncode == 0 and len(answers(out)) == 4


def test_wrong_lines_have_errors_and_a_status_of_their_own(model, tmp_path):
    out = tmp_path / "out.jsonl"
    requests = write(tmp_path / "in.jsonl", [line(1), line(2, temperature=9), line(3, "/v1/none"), line(4, stream=True), "", "broken",
                                             line(5)])
    for _ in range(2):  # the second time there is nothing left to do
        done = batch(model, requests, out)
        assert done.returncode == 3, done.stderr
        assert "6 of 6 lines, 4 failed" in done.stderr
        found = answers(out)
        assert sorted(map(str, found)) == ["None", "id-1", "id-2", "id-3", "id-4", "id-5"]
        assert found["id-2"]["response"]["status_code"] == 400
        assert found["id-2"]["response"]["body"]["error"]["param"] == "temperature"
        assert found["id-3"]["error"]["code"] == "invalid_url" and found["id-4"]["error"]["code"] == "invalid_body"
        assert found[None]["error"]["code"] == "invalid_json_line"


def test_it_goes_on_after_ctrl_c(model, tmp_path):
    out, requests = tmp_path / "out.jsonl", write(tmp_path / "in.jsonl", [line(i, max_tokens=60, ignore_eos=True) for i in range(2000)])
    p = subprocess.Popen([NEREID, "batch", requests, "-o", out, "-m", model, "--parallel", "2"], stderr=subprocess.PIPE, text=True)
    until = time.monotonic() + 60
    while not out.exists() or out.read_bytes().count(b"\n") < 5:
        assert time.monotonic() < until and p.poll() is None
        time.sleep(0.01)
    p.send_signal(signal.SIGINT)
    said = p.communicate(timeout=60)[1]
    assert p.returncode == 1, said
    n = len(answers(out))
    assert 5 <= n < 2000 and f"{n} of 2000 lines, 0 failed" in said
    again = batch(model, requests, out)
    assert again.returncode == 0 and f"{n} of 2000 lines have an answer" in again.stderr, again.stderr
    assert len(answers(out)) == 2000


def test_an_adapter_is_named_by_lines(model, tmp_path):
    folder = adapter.write("llama", tmp_path / "adapter", "float16", seed="x")
    out = tmp_path / "out.jsonl"
    done = batch(model, write(tmp_path / "in.jsonl", [line(1, model="mine"), line(2, model="other")]), out, f"--lora=mine={folder}")
    assert done.returncode == 0, done.stderr
    found = answers(out)
    assert found["id-1"]["response"]["body"]["model"] == "mine" and found["id-2"]["response"]["body"]["model"] == "llama"


@pytest.mark.parametrize("words, status, why", [
    (["IN", "-o", "OUT"], 2, "--model PATH is missing"), (["IN", "--model", "MODEL"], 2, "-o OUT.jsonl is missing"),
    (["-o", "OUT", "--model", "MODEL"], 2, "FILE.jsonl is missing"), (["IN", "-o", "OUT", "--model", "MODEL", "--parallel", "0"], 2, "parallel"),
    (["nowhere", "-o", "OUT", "--model", "MODEL"], 1, "'nowhere' does not exist"),
    (["IN", "-o", "IN", "--model", "MODEL"], 1, "cannot take the answers too"),
    (["IN", "-o", "/nowhere/out", "--model", "MODEL"], 1, "cannot open '/nowhere/out'"),
    (["IN", "-o", "/dev/null", "--model", "MODEL"], 1, "is not a file"),
    (["TWICE", "-o", "OUT", "--model", "MODEL"], 1, "2 ('id-1')"),
    (["IN", "-o", "OUT", "--model", "/nowhere/model"], 1, "nowhere"),
])
def test_what_is_wrong_is_said(model, tmp_path, words, status, why):
    there = {"IN": write(tmp_path / "in.jsonl", [line(1)]), "OUT": tmp_path / "out.jsonl", "MODEL": model,
             "TWICE": write(tmp_path / "twice.jsonl", [line(1), line(1)])}
    done = subprocess.run([NEREID, "batch", *(str(there.get(w, w)) for w in words)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == status and why in done.stderr, (done.returncode, done.stderr)
    assert there["IN"].read_text().count("\n") == 1


def test_two_at_once_do_not_write_one_file(model, tmp_path):
    out, requests = tmp_path / "out.jsonl", write(tmp_path / "in.jsonl", [line(i, max_tokens=100, ignore_eos=True) for i in range(1000)])
    p = subprocess.Popen([NEREID, "batch", requests, "-o", out, "-m", model], stderr=subprocess.DEVNULL)
    until = time.monotonic() + 60
    while not out.exists() or out.stat().st_size == 0:
        assert time.monotonic() < until and p.poll() is None
        time.sleep(0.01)
    second = batch(model, requests, out)
    assert second.returncode == 1 and "being written by another program" in second.stderr
    p.send_signal(signal.SIGTERM)
    assert p.wait(60) == 1


def test_help_tells_the_statuses():
    done = subprocess.run([NEREID, "batch", "--help"], capture_output=True, text=True, check=True)
    assert "Exit status" in done.stdout and "--parallel" in done.stdout
