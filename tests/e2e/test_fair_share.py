# SPDX-License-Identifier: Apache-2.0
"""Keys share the engine: who sends many requests keeps nobody else waiting behind all of them."""
import threading
import time
import urllib.request

import httpx
import pytest

from llm_server import Server

MANY = 40


@pytest.fixture(scope="module")
def server(tiny_model, cache):
    s = Server(tiny_model, cache, "--api-key=a", "--api-key=b", "--build", "--max_batch_size=1")
    try:
        yield s.wait_ready()
    finally:
        assert s.stop() == 0, s.log_text()[-4000:]


def ask(server, key, path, body):
    r = httpx.post(server.url(path), json=body, headers={"Authorization": f"Bearer {key}"}, timeout=120)
    assert r.status_code == 200, r.text


def complete(server, key):
    ask(server, key, "/v1/completions", {"model": "ensemble", "prompt": "the quick brown fox", "max_tokens": 100, "ignore_eos": True})


def generate(server, key):
    ask(server, key, "/v2/models/ensemble/generate", {"text_input": "the quick brown fox", "max_tokens": 100})


def n_waiting(server):
    with urllib.request.urlopen(f"http://127.0.0.1:{server.metrics}/metrics", timeout=30) as r:
        text = r.read().decode()
    values = {line.split("request_type=")[1].split('"')[1]: float(line.split()[-1])
              for line in text.splitlines() if line.startswith("nv_trt_llm_request_metrics{")}
    return values["waiting"]


@pytest.mark.parametrize("last", [complete, generate])
def test_one_request_of_another_key_does_not_wait_for_all(server, last):
    ended, lock = [], threading.Lock()

    def run(call, key):
        call(server, key)
        with lock:
            ended.append(key)

    threads = [threading.Thread(target=run, args=(complete, "a")) for _ in range(MANY)]
    for t in threads:
        t.start()
    until = time.monotonic() + 120
    while n_waiting(server) < MANY // 2:
        with lock:
            assert len(ended) < MANY // 2 and time.monotonic() < until, "they do not wait for one another"
    threads.append(threading.Thread(target=run, args=(last, "b")))
    threads[-1].start()
    for t in threads:
        t.join()
    assert len(ended) == MANY + 1 and ended.index("b") < MANY - 4, ended
