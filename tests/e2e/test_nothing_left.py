# SPDX-License-Identifier: Apache-2.0
"""Clients that leave, are cancelled or refused, adapters and models that come and go: afterwards there are as many descriptors,
threads and blocks in use as before."""
import collections
import json
import os
import socket
import sys

import pytest

from llm_server import ROOT, Server, wait_until

sys.path.insert(0, str(ROOT / "tests/tinymodel"))
import adapter  # noqa: E402

WARM, ROUNDS = 2, 6  # threads that come with the first need of them are there after a round or two; of workers, which come with the load, there is one
CHAT = {"messages": [{"role": "user", "content": "the quick brown fox"}]}
# Path, what makes the request a long stream, and where its answer's length stands
STREAMS = [("/v1/chat/completions", CHAT, "max_tokens"), ("/v1/completions", {"prompt": "the quick"}, "max_tokens"),
           ("/v1/responses", {"input": "the quick"}, "max_output_tokens"), ("/v1/messages", CHAT, "max_tokens"),
           ("/api/chat", CHAT, None), ("/completion", {"prompt": "the quick"}, "n_predict"),
           ("/v2/models/ensemble/generate_stream", {"text_input": "the quick"}, "max_tokens")]
WRONG = [("/v1/chat/completions", {**CHAT, "temperature": "warm"}), ("/v1/completions", {"prompt": "the", "guided_regex": "("}),
         ("/v1/completions", {"prompt": "the " * 3000}), ("/v1/chat/completions", {**CHAT, "model": "nobody"}),
         ("/v1/completions", {"prompt": "the", "guided_json": {"type": "x"}}), ("/v1/responses", {"input": [{"type": "x"}]}),
         ("/v2/models/ensemble/generate", {"text_input": "the"}), ("/v2/models/nobody/generate", {})]


@pytest.fixture(scope="module")
def served(tiny_model, cache, tmp_path_factory):
    folder = adapter.write("llama", tmp_path_factory.mktemp("adapter") / "one", "float16", seed=1)
    s = Server(tiny_model, cache, "--model-control-mode=explicit", "--load-model=*", "--allow-lora-loading=true", "--http-idle-timeout-secs=1",
               "--worker-thread-count=1")
    try:
        yield s.wait_ready(), str(folder)
    finally:
        status = s.stop()
    assert status == 0, f"the server ended with {status}:\n{s.log_text()[-4000:]}"


def send(server, path, body, cut=None):
    """A connection on which the request was sent, or a part of it."""
    data = json.dumps(body).encode()
    c = socket.create_connection(("127.0.0.1", server.http), timeout=60)
    c.sendall(f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data[:cut])
    return c


def long_one(path, body, length, **more):
    body = {**body, "stream": True, **({"options": {"num_predict": 400}} if length is None else {length: 400}), **more}
    return {**body, "options": {**body.get("options", {}), "ignore_eos": True}} if length is None else body


def leave_streams(server, model):
    """Each client goes away when the first piece is there; one before it has sent all, one before it has read any."""
    for path, body, length in STREAMS:
        ask = long_one(path, {"model": model, "ignore_eos": True, **body}, length)
        for read in (True, False):
            with send(server, path, ask) as c:
                if read:
                    assert c.recv(65536).startswith(b"HTTP/1.1 200"), path
        send(server, path, ask, cut=-5).close()


def leave_together(server, model):
    """More than run at once, with several answers each; beams, guides, penalties."""
    more = [{"n": 3}, {"beam_width": 3, "stream": False, "ignore_eos": None}, {"guided_regex": "[a-z ]{300}"}, {"presence_penalty": 1.0, "n": 2},
            {"logprobs": 3}, {"prompt": ["one", "two", "three"]}]
    all_of_them = [send(server, "/v1/completions", long_one(*STREAMS[1], model=model, seed=i, **more[i % len(more)])) for i in range(24)]
    assert all_of_them[0].recv(65536).startswith(b"HTTP/1.1 200")
    for c in all_of_them:
        c.close()


def refused(server, model):
    for path, body in WRONG:
        status, answer = server.request(path, {"model": model, **body})
        assert 400 <= status < 500, (path, status, answer)


def adapters(server, model, folder):
    """One goes while a request runs with it."""
    assert server.request("/v1/load_lora_adapter", {"lora_name": "one", "lora_path": folder})[0] == 200
    with send(server, "/v1/completions", long_one(*STREAMS[1], model="one")) as c:
        assert c.recv(65536).startswith(b"HTTP/1.1 200")
        assert server.request("/v1/unload_lora_adapter", {"lora_name": "one"})[0] == 200


def reload(server, model):
    """With clients whose requests end by it."""
    asked = [send(server, "/v1/completions", long_one(*STREAMS[1], model=model, seed=i)) for i in range(4)]
    for verb in ("unload", "load"):
        for name in ("ensemble", "tensorrt_llm") if verb == "unload" else ("tensorrt_llm", "ensemble"):
            assert server.request(f"/v2/repository/models/{name}/{verb}", {})[0] == 200
    wait_until(lambda: server.request("/v2/health/ready")[0] == 200)
    for c in asked:
        c.close()


def state(server):
    """Threads by name, descriptors by kind, blocks in use."""
    pid = server.process.pid
    threads, files = collections.Counter(), collections.Counter()
    for t in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{t}/comm") as f:
            threads[f.read().strip()] += 1
    for fd in os.listdir(f"/proc/{pid}/fd"):
        files[os.readlink(f"/proc/{pid}/fd/{fd}").split(":")[0]] += 1
    text = server.metrics_text()
    used = [line for line in text.splitlines() if not line.endswith((" 0", " 0.000000")) and (
        line.startswith("nv_inference_pending_request_count") or 'kv_cache_block_type="used"' in line or 'request_type="active"' in line)]
    return threads, files, used


def at_rest(server, before=None):
    """The state once nothing runs and, where there was one before, is as that was; what it is if it does not become so."""
    last = None

    def calm():
        nonlocal last
        try:
            now = state(server)
        except OSError:  # one went while it was looked at
            return False
        done = not now[2] and (now[:2] == before[:2] if before else last is not None and now[:2] == last[:2])
        last = now
        return done
    wait_until(calm, 30)
    return last


def test_nothing_is_left_of_those_who_leave(served):
    server, folder = served
    model = server.request("/v1/models")[1]["data"][0]["id"]
    before = None
    for i in range(WARM + ROUNDS):
        if i == WARM:
            before = at_rest(server)
            assert not before[2], before
        leave_streams(server, model)
        leave_together(server, model)
        refused(server, model)
        adapters(server, model, folder)
        reload(server, model)
        assert server.request("/v1/completions", {"model": model, "prompt": "the", "max_tokens": 2})[0] == 200
    after = at_rest(server, before)
    assert after[0] == before[0], {n: (before[0][n], after[0][n]) for n in before[0] | after[0] if before[0][n] != after[0][n]}
    assert after[1] == before[1], {n: (before[1][n], after[1][n]) for n in before[1] | after[1] if before[1][n] != after[1][n]}
    assert not after[2], after[2]
