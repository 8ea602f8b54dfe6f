# SPDX-License-Identifier: Apache-2.0
"""A model over several ranks: the same answers, nothing left behind, and what is heard when a rank is lost."""
import ctypes
import http.client
import json
import os
import signal
import threading
import time

import pytest

from llm_server import Server

PROMPTS = ["A", "Once upon a time", "The quick brown fox jumps over the lazy dog. " * 3]
LONG = {"text_input": "A", "max_tokens": 60, "top_k": 1}


def workers(server):
    """Process ids of the ranks above 0."""
    found = []
    for name in os.listdir("/proc"):
        try:
            with open(f"/proc/{name}/stat", encoding="utf-8") as f:
                fields = f.read().rsplit(")", 1)[1].split()
            with open(f"/proc/{name}/cmdline", encoding="utf-8") as f:
                command = f.read().split("\0")
        except (OSError, IndexError):
            continue
        if int(fields[1]) == server.process.pid and fields[0] != "Z" and command[1:2] == ["worker"]:
            found.append(int(name))
    return sorted(found)


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as f:
            return f.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def wait_until(condition, seconds=20):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


@pytest.fixture
def server(tiny_model, cache):
    s = Server(tiny_model, cache, "--tp-size=2", "--restart-on-failure=false")
    try:
        yield s.wait_ready()
    finally:
        if s.process.poll() is None:
            assert s.stop() == 0, s.log_text()[-4000:]


def answers(s):
    out = []
    for prompt in PROMPTS:
        for more in ({}, {"beam_width": 2}, {"temperature": 0.8, "top_k": 5, "random_seed": 7},
                     {"embedding_bias_words": ["A"], "embedding_bias_weights": [-3.0]}):
            status, answer = s.generate({"text_input": prompt, "max_tokens": 20, "return_log_probs": True, **more})
            assert status == 200, answer
            out.append((answer["text_output"], answer["cum_log_probs"]))
    return out


GUIDE = {"guided_decoding_guide_type": "regex", "guided_decoding_guide": "(ab|ba){2,6}c"}


def in_flight(s):
    """Many different requests at a time, so that every stage has something to do: their texts, in order."""
    texts = [None] * 24

    def ask(i):
        more = GUIDE if i % 4 == 3 else {"repetition_penalty": 1.3} if i % 4 == 2 else {}
        status, answer = s.generate({"text_input": PROMPTS[i % 3] + "x" * i, "max_tokens": 8 + i, "top_k": 1, **more})
        assert status == 200, answer
        texts[i] = answer["text_output"]

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(texts))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return texts


def embeddings(s):
    status, answer = s.request("/v1/embeddings", json.dumps({"model": "ensemble", "input": PROMPTS}).encode())
    assert status == 200, answer
    return [v for item in answer["data"] for v in item["embedding"][:8]]


def test_several_ranks_answer_as_one_and_leave_nothing(tiny_model, cache):
    results = []
    for tp, pp in ((1, 1), (2, 1), (1, 2), (2, 2)):
        s = Server(tiny_model, cache, f"--tp-size={tp}", f"--pp-size={pp}", "--set", "max_beam_width:2", "--build",
                   "--max_beam_width=2").wait_ready()
        ranks = workers(s)
        assert len(ranks) == tp * pp - 1
        results.append((answers(s), in_flight(s), embeddings(s)))
        os.kill(s.process.pid, signal.SIGTERM)
        assert s.process.wait(30) == 0
        assert not [pid for pid in ranks if alive(pid)]
    alone = results[0]
    for several in results[1:]:
        for one, two in zip(alone[0], several[0]):
            assert one[0] == two[0]
            assert two[1] == pytest.approx(one[1], abs=1e-3)
        assert several[1] == alone[1]
        assert several[2] == pytest.approx(alone[2], abs=1e-3)


def test_rank_0_has_the_draft_model(tiny_model, cache):
    """Of a model in four ranks: the same answers as without one, alone and many at a time; its own guesses hold."""
    config = {"method": "draft_model", "model": str(tiny_model), "num_speculative_tokens": 3, "adaptive": False}
    results = []
    for words in ([], ["--tp-size=2", "--pp-size=2", "--speculative-config", json.dumps(config)]):
        s = Server(tiny_model, cache, *words).wait_ready()
        try:
            results.append((in_flight(s), s.generate(LONG)[1]["text_output"]))
            drafted, held = words and (s.metric("nv_llm_draft_tokens", draft_token_type=kind) for kind in ("proposed", "accepted")) or (0, 0)
        finally:
            assert s.stop() == 0, s.log_text()[-4000:]
    assert results[0] == results[1]
    assert held > drafted / 2 > 0


def test_streams_that_are_left_do_not_stop_the_ranks(server):
    def leave():
        c = http.client.HTTPConnection("127.0.0.1", server.http, timeout=60)
        c.request("POST", "/v2/models/ensemble/generate_stream", json.dumps(dict(LONG, max_tokens=100)))
        c.getresponse().readline()
        c.close()

    threads = [threading.Thread(target=leave) for _ in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert server.generate(LONG)[0] == 200
    assert len(workers(server)) == 1


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("busy", [True, False])
def test_a_lost_rank_is_heard_soon_and_a_load_brings_it_back(server, how, busy):
    status, before = server.generate(LONG)
    assert status == 200
    (rank,) = workers(server)
    heard = []

    def ask():
        while not heard:
            status, answer = server.generate(LONG)
            if status != 200:
                heard.append((status, answer))

    threads = [threading.Thread(target=ask) for _ in range(3 if busy else 0)]
    for t in threads:
        t.start()
    os.kill(rank, how)
    start = time.monotonic()
    wait_until(lambda: server.request("/v2/models/tensorrt_llm/ready")[0] != 200)
    assert time.monotonic() - start < 8
    if not busy:
        heard.append(server.generate(LONG))
    for t in threads:
        t.join(30)
    assert heard[0][0] == 503 and "rank 1 of 2 was lost" in heard[0][1]["error"], heard
    assert server.request("/v2/health/live")[0] == 200

    status, answer = server.request("/v2/repository/models/tensorrt_llm/load", b"")
    assert status == 200, answer
    wait_until(lambda: server.request("/v2/models/ensemble/ready")[0] == 200)
    assert server.generate(LONG) == (200, before)
    assert not alive(rank)


def hang(pid, hangs):
    """Stops the thread of a rank that computes, until it is killed; all others of the process go on."""
    seize, interrupt, any_child = 0x4206, 0x4207, 0x40000000
    ptrace = ctypes.CDLL(None, use_errno=True).ptrace
    ptrace.argtypes = [ctypes.c_long, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
    ptrace.restype = ctypes.c_long
    assert ptrace(seize, pid, None, None) == 0 and ptrace(interrupt, pid, None, None) == 0
    os.waitpid(pid, any_child)
    hangs.set()
    os.waitpid(pid, any_child)  # its parent hears of its end after this


def test_a_rank_that_lives_but_does_not_get_on_is_heard_whatever_a_step_may_take(tiny_model, cache):
    s = Server(tiny_model, cache, "--tp-size=2", "--restart-on-failure=false").wait_ready()
    status, before = s.generate(LONG)
    assert status == 200
    (rank,) = workers(s)
    hangs, told = threading.Event(), []
    tracer = threading.Thread(target=hang, args=(rank, hangs))
    tracer.start()
    assert hangs.wait(30)
    threads = [threading.Thread(target=lambda: told.append(s.generate(LONG))) for _ in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    assert len(told) == len(threads)
    for status, answer in told:
        assert status == 503 and "rank 1 of 2 was lost" in answer["error"], told
        assert "hangs: none of its threads that compute has run for" in answer["error"]
    assert s.request("/v2/models/tensorrt_llm/ready")[0] != 200
    wait_until(lambda: s.request("/v2/repository/models/tensorrt_llm/load", b"")[0] == 200)
    wait_until(lambda: s.request("/v2/models/ensemble/ready")[0] == 200)
    assert s.generate(LONG) == (200, before)
    tracer.join(30)
    assert not tracer.is_alive() and not alive(rank)
    assert s.stop() == 0


def test_a_limit_of_a_step_that_is_no_number_is_refused(tiny_model, cache):
    s = Server(tiny_model, cache, "--tp-size=2", env={"NEREID_RANK_STALL_SECS": "soon"})
    assert s.process.wait(60) != 0
    assert "NEREID_RANK_STALL_SECS must be between 1 and" in s.log_text()


def shared_memory():
    return set(os.listdir("/dev/shm"))


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize(("tp", "pp"), [(2, 1), (1, 2), (2, 2)])
def test_each_rank_may_be_lost_under_load(tiny_model, cache, tp, pp, how):
    """All requests under way are told within 8 s, and a load brings everything back."""
    memory = shared_memory()
    s = Server(tiny_model, cache, f"--tp-size={tp}", f"--pp-size={pp}", "--restart-on-failure=false").wait_ready()
    status, before = s.generate(LONG)
    assert status == 200
    for which in range(tp * pp - 1):
        ranks = workers(s)
        told = []

        def ask():
            while True:
                status, answer = s.generate(LONG)
                if status != 200:
                    told.append((time.monotonic(), status, answer))
                    return

        threads = [threading.Thread(target=ask) for _ in range(6)]
        for t in threads:
            t.start()
        lost = time.monotonic()
        os.kill(ranks[which], how)
        for t in threads:
            t.join(30)
        assert len(told) == len(threads)
        assert max(at for at, _, _ in told) - lost < 8
        for _, status, answer in told:
            assert status == 503 and f"of {tp * pp} was lost" in answer["error"], told
        wait_until(lambda: not [pid for pid in ranks if alive(pid)])
        wait_until(lambda: s.request("/v2/repository/models/tensorrt_llm/load", b"")[0] == 200)
        wait_until(lambda: s.request("/v2/models/ensemble/ready")[0] == 200)
        assert s.generate(LONG) == (200, before)
    assert s.stop() == 0
    assert shared_memory() <= memory


def test_no_rank_outlives_a_server_that_is_killed(server):
    ranks = workers(server)
    assert ranks
    os.kill(server.process.pid, signal.SIGKILL)
    server.process.wait(30)
    wait_until(lambda: not [pid for pid in ranks if alive(pid)], seconds=5)
