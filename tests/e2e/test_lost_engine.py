# SPDX-License-Identifier: Apache-2.0
"""A device that fails in a step: what clients and operators see, and the way back without a restart."""
import http.client
import json
import os
import pathlib
import socket
import subprocess
import threading
import time

import pytest

from llm_server import ROOT, Server
from passing import start_with  # llm_server has set its folder

DEVICES = pathlib.Path(os.environ.get("NEREID_TEST_DEVICES", ROOT / "build/tests/devices"))
REASON = "the engine was lost: faulty: the device fell off the bus"
LONG = {"text_input": "A", "max_tokens": 100, "top_k": 1}


@pytest.fixture
def fault(tmp_path, monkeypatch):
    assert (DEVICES / "nereid_faulty.so").exists(), "make test-backends"
    monkeypatch.setenv("NEREID_DEVICE_DIR", str(DEVICES))
    monkeypatch.setenv("NEREID_TEST_FAULT", str(tmp_path / "fault"))
    return tmp_path / "fault"


@pytest.fixture(params=["none", "explicit"])
def server(request, fault, tiny_model, cache):
    control = ["--model-control-mode=explicit", "--load-model=*"] if request.param == "explicit" else []
    s = Server(tiny_model, cache, "--set", "device:faulty", "--restart-on-failure=false", *control)
    try:
        yield s.wait_ready()
    finally:
        status = s.stop()
    assert status == 0, f"the server ended with {status}:\n{s.log_text()[-4000:]}"


def test_no_memory_for_one_request_is_its_own_trouble(fault, tiny_model, cache, tmp_path, monkeypatch):
    full = tmp_path / "full"
    monkeypatch.setenv("NEREID_TEST_NO_MEMORY", str(full))
    s = Server(tiny_model, cache, "--set", "device:faulty").wait_ready()
    try:
        biased = dict(LONG, embedding_bias_words=["A"], embedding_bias_weights=[1.0])
        assert s.generate(biased)[0] == 200
        full.touch()
        status, answer = s.generate(biased)
        assert status == 503 and "out of memory" in answer["error"], answer
        full.unlink()
        assert s.generate(biased)[0] == 200
        assert s.generate(LONG)[0] == 200
    finally:
        assert s.stop() == 0


def index(s):
    return {m["name"]: (m["state"], m.get("reason")) for m in s.request("/v2/repository/index", b"")[1]}


def ready(s, model):
    return s.request(f"/v2/models/{model}/ready")[0] == 200


def wait_until(condition, seconds=20):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


def lose(s, fault):
    """Streams run while the device fails: each hears it."""
    answers = []
    n_first = threading.Semaphore(0)

    def ask():
        c = http.client.HTTPConnection("127.0.0.1", s.http, timeout=60)
        c.request("POST", "/v2/models/tensorrt_llm/generate_stream", json.dumps(
            {"input_ids": [5, 6, 7], "input_lengths": 3, "request_output_len": 120, "streaming": True,
             "end_id": -1}))
        r = c.getresponse()
        text = r.readline()
        n_first.release()
        answers.append((text + r.read()).decode())
        c.close()

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for t in threads:
        t.start()
    for _ in threads:
        assert n_first.acquire(timeout=30)
    fault.write_text("")
    for t in threads:
        t.join(60)
    return answers


def test_requests_hear_it_and_the_model_is_not_ready_until_it_is_loaded_again(
        request, server, fault):
    status, before = server.generate(LONG)
    assert status == 200
    answers = lose(server, fault)
    assert len(answers) == 4
    lost = [a for a in answers if REASON in a]
    status, answer = server.generate(LONG, "tensorrt_llm_bls")  # if all streams ended in time, this fails
    assert lost or REASON in str(answer)

    assert not ready(server, "tensorrt_llm")
    assert index(server)["tensorrt_llm"] == ("UNAVAILABLE", REASON)
    wait_until(lambda: index(server)["ensemble"][0] == "UNAVAILABLE")
    assert REASON in index(server)["ensemble"][1]
    assert not ready(server, "ensemble")
    assert server.request("/v2/health/ready")[0] != 200
    assert server.request("/v2/health/live")[0] == 200
    for model in ("tensorrt_llm", "ensemble"):
        status, answer = server.generate(LONG, model)
        assert status == 503 and REASON in answer["error"], (status, answer)

    # While the device cannot be opened the load says why, and so does the index.
    status, answer = server.request("/v2/repository/models/tensorrt_llm/load", b"")
    assert status == 400 and "fell off the bus" in answer["error"], (status, answer)
    assert "fell off the bus" in index(server)["tensorrt_llm"][1]
    status, answer = server.generate(LONG)
    assert status == 503 and "fell off the bus" in answer["error"], (status, answer)

    fault.unlink()
    if request.node.callspec.params["server"] == "none":  # back as it was, with nothing of the client's
        other = {"parameters": {"config": '{"backend": "python"}', "file:1/model.py": "cHJpbnQoMSk="}}
        status, answer = server.request("/v2/repository/models/tensorrt_llm/load", json.dumps(other).encode())
        assert status == 503 and "not allowed" in answer["error"], (status, answer)
    status, answer = server.request("/v2/repository/models/tensorrt_llm/load", b"")
    assert status == 200, answer
    wait_until(lambda: ready(server, "ensemble"))
    assert server.request("/v2/health/ready")[0] == 200
    assert index(server)["tensorrt_llm"][0] == "READY"
    assert server.generate(LONG) == (status, before)


def test_nereid_serve_starts_again_in_the_same_process(fault, tiny_model, cache):
    s = Server(tiny_model, cache, "--set", "device:faulty").wait_ready()
    status, before = s.generate(LONG)
    assert status == 200
    fault.write_text("")
    assert s.generate(LONG)[0] == 503
    fault.unlink()
    wait_until(lambda: "Starting again" in s.log_text())
    s.wait_ready()
    assert s.process.poll() is None
    assert s.generate(LONG) == (status, before)
    assert s.stop() == 0


@pytest.mark.parametrize(("tp", "comes_back"), [(1, True), (2, False)])
def test_a_device_that_does_not_come_back_is_heard_within_the_limit(fault, tiny_model, cache, tmp_path, monkeypatch, tp, comes_back):
    """In rank 0 itself, where nobody but the engine's loop could tell the requests."""
    hang = tmp_path / "hang"
    monkeypatch.setenv("NEREID_TEST_HANG", str(hang))
    s = Server(tiny_model, cache, "--set", "device:faulty", f"--tp-size={tp}", "--restart-on-failure=false",
               env={"NEREID_RANK_STALL_SECS": "4"}).wait_ready()
    status, before = s.generate(LONG)
    assert status == 200
    hang.touch()
    told = []
    threads = [threading.Thread(target=lambda: told.append(s.generate(LONG))) for _ in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    assert len(told) == len(threads)
    for status, answer in told:
        assert status == 503 and "has not ended for" in answer["error"] and "(NEREID_RANK_STALL_SECS)" in answer["error"], told
    assert not ready(s, "tensorrt_llm")
    assert "has not ended for" in index(s)["tensorrt_llm"][1]
    assert s.generate(LONG)[0] == 503
    assert s.request("/v2/health/live")[0] == 200
    if comes_back:
        hang.unlink()
    # A model that is loaded again does not wait for the one that hangs.
    wait_until(lambda: s.request("/v2/repository/models/tensorrt_llm/load", b"")[0] == 200)
    wait_until(lambda: ready(s, "ensemble"))
    if not comes_back:
        wait_until(lambda: "keeps its memory until this process ends" in s.log_text())
        hang.unlink()  # the thread of the first engine goes on, which nobody waits for any more
    assert s.generate(LONG) == (200, before)
    assert s.stop() == 0


@pytest.mark.parametrize("tp", [1, 2])
def test_a_device_that_waits_for_what_does_not_come_is_heard_whatever_a_step_may_take(fault, tiny_model, cache, tmp_path, monkeypatch, tp):
    """Its thread does not run and would not, so this is no slow step."""
    hang = tmp_path / "hang"
    monkeypatch.setenv("NEREID_TEST_HANG", str(hang))
    s = Server(tiny_model, cache, "--set", "device:faulty", f"--tp-size={tp}", "--restart-on-failure=false").wait_ready()
    status, before = s.generate(LONG)
    assert status == 200
    os.mkfifo(hang)
    told = []
    threads = [threading.Thread(target=lambda: told.append(s.generate(LONG))) for _ in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    assert len(told) == len(threads)
    for status, answer in told:
        words = f"{'rank 0 of 2 was lost: it' if tp == 2 else 'the device'} hangs: no thread of it has run for"
        assert status == 503 and words in answer["error"], told
    assert not ready(s, "tensorrt_llm")
    with open(hang, "wb"):  # it goes on, and finds that it was given up
        hang.unlink()
    wait_until(lambda: s.request("/v2/repository/models/tensorrt_llm/load", b"")[0] == 200)
    wait_until(lambda: ready(s, "ensemble"))
    assert s.generate(LONG) == (200, before)
    assert s.stop() == 0


def test_the_limit_of_a_step_is_learned_where_threads_say_nothing(fault, tiny_model, cache, tmp_path, monkeypatch):
    """As on a GPU: a step that takes long is waited for, one that does not end is heard, though nobody set a limit."""
    hang = tmp_path / "hang"
    monkeypatch.setenv("NEREID_TEST_HANG", str(hang))
    monkeypatch.setenv("NEREID_TEST_APART", "1")
    s = Server(tiny_model, cache, "--set", "device:faulty", "--restart-on-failure=false").wait_ready()
    try:
        status, before = s.generate(LONG)
        assert status == 200
        hang.touch()
        told = []
        threads = [threading.Thread(target=lambda: told.append(s.generate(LONG)))]
        threads[0].start()
        time.sleep(6)
        hang.unlink()
        threads[0].join(60)
        assert told == [(200, before)]
        told.clear()
        hang.touch()
        start = time.monotonic()
        threads = [threading.Thread(target=lambda: told.append(s.generate(LONG))) for _ in range(3)]
        for t in threads:
            t.start()
        for t in threads:
            t.join(60)
        assert len(told) == len(threads) and 10 < time.monotonic() - start < 10 + 5
        for status, answer in told:
            assert status == 503 and "the limit is 10.0 s by the steps before (NEREID_RANK_STALL_SECS)" in answer["error"], told
        assert not ready(s, "tensorrt_llm")
    finally:
        hang.unlink(missing_ok=True)
    wait_until(lambda: s.request("/v2/repository/models/tensorrt_llm/load", b"")[0] == 200)
    wait_until(lambda: ready(s, "ensemble"))
    assert s.generate(LONG) == (200, before)
    assert s.stop() == 0


def test_a_server_with_a_lost_engine_ends_as_always(server, fault):
    fault.write_text("")
    status, answer = server.generate(LONG)
    assert status == 503 and REASON in answer["error"], (status, answer)
    start = time.monotonic()
    assert server.stop() == 0
    assert time.monotonic() - start < 10


def memory(server):
    return int(pathlib.Path(f"/proc/{server.process.pid}/statm").read_text().split()[1]) * 4096


def test_what_loads_needed_for_a_moment_comes_back(tiny_model, cache):
    """The C library keeps what a thread has freed in that thread's arena; each load has threads of its own."""
    s = Server(tiny_model, cache, "--model-control-mode=explicit", "--load-model=*").wait_ready()
    try:
        for i in range(24):
            assert s.request("/v2/repository/models/tensorrt_llm/load", b"")[0] == 200
            if i == 3:
                before = memory(s)
        deadline = time.monotonic() + 10  # the last model goes after the answer to the load
        while memory(s) >= before + (12 << 20) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert memory(s) < before + (12 << 20)
    finally:
        assert s.stop() == 0


def test_sockets_that_were_passed_outlive_the_server_that_starts_again(fault, tiny_model, cache, tmp_path):
    port = socket.create_server(("127.0.0.1", 0))
    log = tmp_path / "log"

    def connect():
        return http.client.HTTPConnection("127.0.0.1", port.getsockname()[1], timeout=60)

    def ask(c, model="ensemble"):
        c.request("POST", f"/v2/models/{model}/generate", json.dumps(LONG))
        r = c.getresponse()
        return r.status, r.read().decode()

    with open(log, "w") as f:
        p = start_with([port], "http", ROOT / "build/bin/nereid", "serve", tiny_model, "--set", "device:faulty", "--grpc-port=0",
                       "--metrics-port=0", env=dict(os.environ, NEREID_CACHE=str(cache)), stdout=f, stderr=subprocess.STDOUT)
    try:
        status, before = ask(connect())
        assert status == 200
        fault.touch()
        status, answer = ask(connect())
        assert status == 503 and REASON in answer
        fault.unlink()
        wait_until(lambda: "Starting again" in log.read_text(), 60)
        assert ask(connect()) == (200, before)
        assert p.poll() is None
    finally:
        p.terminate()
        assert p.wait(60) == 0
