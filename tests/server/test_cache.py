# SPDX-License-Identifier: Apache-2.0
"""The response cache: hits, misses, what makes a key, eviction, order, figures."""
import contextlib
import mmap
import os
import pathlib
import struct
import threading
import time

import pytest

from triton_server import BUILD, delay, wait_until, write_model

CACHE = "response_cache { enable: true }"


def ask(server, model, values, outputs=None, shape=None, fields=None):
    body = {"inputs": [{"name": "INPUT0", "datatype": "INT32", "shape": shape or [len(values)],
                        "data": values}]}
    if outputs:
        body["outputs"] = [{"name": n} for n in outputs]
    return server.call("POST", f"/v2/models/{model}/infer", body)


def stats(server, model):
    s = server.call("GET", f"/v2/models/{model}/stats").json()["model_stats"][0]
    return {k: s["inference_stats"][k]["count"]
            for k in ("success", "fail", "queue", "cache_hit", "cache_miss")} | {
                "inferences": s["inference_count"], "executions": s["execution_count"]}


@pytest.fixture
def caching(tmp_path, launch):
    folder = tmp_path / "models"
    write_model(folder, "kept", extra=CACHE)
    write_model(folder, "plain")
    write_model(folder, "slow", extra=CACHE + delay(300))
    write_model(folder, "ordered", count=4, extra=CACHE + delay(300)
                + "dynamic_batching { preserve_ordering: true }")

    def start(size=1 << 20, *args):
        return launch(folder, f"--cache-config=local,size={size}", "--log-verbose=1", *args).wait_ready()
    return start


def test_second_request_is_answered_from_the_cache(caching):
    s = caching()
    first, second = ask(s, "kept", [1, 2, 3]), ask(s, "kept", [1, 2, 3])
    assert first.status == second.status == 200 and first.body == second.body
    counted = {"success": 2, "fail": 0, "queue": 2, "cache_hit": 1, "cache_miss": 1, "inferences": 1, "executions": 1}
    wait_until(lambda: stats(s, "kept") == counted)  # a model counts a request after it has answered
    began = time.monotonic()
    ask(s, "slow", [1])
    assert time.monotonic() - began >= 0.3
    assert ask(s, "slow", [1]).json()["outputs"][0]["data"] == [1]
    assert stats(s, "slow")["executions"] == 1


def test_other_content_shape_or_model_is_another_key(caching):
    s = caching()
    ask(s, "kept", [1, 2, 3, 4])
    ask(s, "kept", [1, 2, 3, 5])
    ask(s, "kept", [1, 2, 3])
    ask(s, "slow", [1, 2, 3, 4])
    wait_until(lambda: stats(s, "kept")["inferences"] == 3 and stats(s, "slow")["inferences"] == 1)  # counted behind the answer
    assert stats(s, "kept")["cache_hit"] == 0 and stats(s, "kept")["cache_miss"] == 3
    assert stats(s, "slow")["cache_hit"] == 0
    assert ask(s, "plain", [1]).status == ask(s, "plain", [1]).status == 200
    wait_until(lambda: stats(s, "plain")["inferences"] == 2)
    assert stats(s, "plain")["cache_miss"] == 0


PARAMETERS = [None, {"images": "AAAA"}, {"images": "AAAB"}, {"images": "AAA"}, {"n": 1}, {"n": 2}, {"n": True}, {"n": "1"},
              {"n": 1.5}, {"n": 2.5}, {"m": 1}, {"n": 1, "images": "AAAA"}, {"n": "", "m": ""}, {"n": "m"}]


def test_other_parameters_are_another_key(caching):
    """Models read parameters as they read inputs: pictures of a prompt come in one."""
    s = caching()

    def send(parameters):
        body = {"inputs": [{"name": "INPUT0", "datatype": "INT32", "shape": [1], "data": [1]}]}
        if parameters is not None:
            body["parameters"] = parameters
        answer = s.call("POST", "/v2/models/kept/infer", body)
        assert answer.status == 200, answer.body

    for parameters in PARAMETERS:
        send(parameters)
    assert stats(s, "kept")["cache_hit"] == 0 and stats(s, "kept")["cache_miss"] == len(PARAMETERS)
    for parameters in PARAMETERS:
        send(dict(reversed(parameters.items())) if parameters else parameters)
    assert stats(s, "kept")["cache_hit"] == stats(s, "kept")["cache_miss"] == len(PARAMETERS)


def colliding_pair(model):
    """Two contents of INPUT0 (INT32 [16]) with one key where keys are two 64-bit lanes of splitmix64 with
    fixed seeds: the mixer can be run backwards, so two words that swap the lanes are computed at once."""
    mask, c, k = (1 << 64) - 1, 0x9e3779b97f4a7c15, 0x2545f4914f6cdd1d
    p, q = 0xbf58476d1ce4e5b9, 0x94d049bb133111eb

    def mix(x):
        x = (x ^ x >> 30) * p & mask
        x = (x ^ x >> 27) * q & mask
        return x ^ x >> 31

    def unshift(y, s):
        x = y
        for _ in range(64 // s + 1):
            x = y ^ x >> s
        return x

    def unmix(y):
        y = unshift(y, 31) * pow(q, -1, 1 << 64) & mask
        return unshift(unshift(y, 27) * pow(p, -1, 1 << 64) & mask, 30)

    a, b = 1, 2
    data = struct.pack("<16i", *range(16))
    head = model.encode() + b"\0" + struct.pack("<qI", 1, 0) + b"INPUT0\0INT32\0" + struct.pack("<Iq", 1, 16)
    head += struct.pack("<Q", len(data))
    skip = -len(head) % 8
    for (word,) in struct.iter_unpack("<Q", head + data[:skip]):
        m = mix(word + c & mask)
        a, b = mix(a ^ m), mix(b ^ k ^ m)
    b ^= k
    m1, m2 = (mix(w + c & mask) for w in struct.unpack_from("<QQ", data, skip))
    n1, n2 = m1 ^ a ^ b, m2 ^ mix(a ^ m1) ^ mix(b ^ m1)
    other = data[:skip] + struct.pack("<QQ", unmix(n1) - c & mask, unmix(n2) - c & mask) + data[skip + 16:]
    assert data != other
    return [list(struct.unpack("<16i", d)) for d in (data, other)]


def test_a_key_cannot_be_computed_by_a_client(caching):
    s = caching()
    for values in colliding_pair("kept"):
        assert ask(s, "kept", values).json()["outputs"][0]["data"] == values
    assert stats(s, "kept")["cache_hit"] == 0 and stats(s, "kept")["cache_miss"] == 2


@contextlib.contextmanager
def region(server, name, n):
    """A registered region of shared memory of n numbers; gives its numbers, writable."""
    path = pathlib.Path(f"/dev/shm/{name}-{os.getpid()}")
    with open(path, "w+b") as f:
        f.truncate(4 * n)
        memory = mmap.mmap(f.fileno(), 4 * n)
    try:
        r = server.call("POST", f"/v2/systemsharedmemory/region/{name}/register", {"key": path.name, "byte_size": 4 * n})
        assert r.status == 200, r.body
        yield memoryview(memory).cast("i")
        server.call("POST", f"/v2/systemsharedmemory/region/{name}/unregister")
    finally:
        path.unlink()


def in_region(name, n):
    return {"shared_memory_region": name, "shared_memory_byte_size": 4 * n}


def test_inputs_in_shared_memory_that_change_do_not_poison_the_cache(caching):
    """A client asks with one content and writes another while the model waits to read it."""
    s = caching()
    with region(s, "in", 1) as numbers:
        numbers[0] = 1
        body = {"inputs": [{"name": "INPUT0", "datatype": "INT32", "shape": [1], "parameters": in_region("in", 1)}]}
        got = []
        t = threading.Thread(target=lambda: got.append(s.call("POST", "/v2/models/slow/infer", body)))
        with s.begins("slow"):
            t.start()
        numbers[0] = 2
        t.join()
        assert got[0].json()["outputs"][0]["data"] == [1]
    for value in (1, 2):
        assert ask(s, "slow", [value]).json()["outputs"][0]["data"] == [value]
    assert stats(s, "slow")["cache_hit"] == 1  # a request with shared memory is kept as every other


def test_outputs_in_shared_memory_that_change_do_not_poison_the_cache(caching):
    """A client writes into the memory that its answers come to as fast as it can."""
    n, s = 1000, caching()
    with region(s, "out", n) as numbers:
        end = threading.Event()

        def write():
            while not end.is_set():
                numbers[0] = numbers[n - 1] = 99
        t = threading.Thread(target=write)
        t.start()
        try:
            for value in range(20):
                body = {"inputs": [{"name": "INPUT0", "datatype": "INT32", "shape": [n], "data": [value] * n}],
                        "outputs": [{"name": "OUTPUT0", "parameters": in_region("out", n)}]}
                assert s.call("POST", "/v2/models/kept/infer", body).status == 200
        finally:
            end.set()
            t.join()
        assert numbers[1:n - 1].tolist() == [19] * (n - 2)
        for value in range(20):
            assert ask(s, "kept", [value] * n).json()["outputs"][0]["data"] == [value] * n
        assert stats(s, "kept")["cache_hit"] == 20
        numbers[n // 2] = 0  # from the cache into shared memory
        body["outputs"][0]["parameters"] = in_region("out", n)
        assert s.call("POST", "/v2/models/kept/infer", body).status == 200 and numbers[n // 2] == 19


def test_oldest_entries_go_when_the_cache_is_full(caching):
    s = caching(40000)
    data = [[i] * 1000 for i in range(20)]
    for d in data:
        assert ask(s, "kept", d).json()["outputs"][0]["data"] == d
    for d in (data[19], data[18], data[0]):
        assert ask(s, "kept", d).json()["outputs"][0]["data"] == d
    got = stats(s, "kept")
    assert got["cache_hit"] == 2 and got["cache_miss"] == 21
    assert ask(s, "kept", [7] * 20000).status == 200  # larger than the cache: not kept
    assert "is greater than total cache size: 40000" in s.log()
    text = s.call_metrics()
    assert 0 < text["nv_cache_util"] <= 1 and text["nv_cache_num_evictions"] > 10
    assert text["nv_cache_num_entries"] == 4  # a response and its request are 8 kB


def test_figures_are_shown(caching):
    s = caching()
    for _ in range(3):
        ask(s, "kept", [5])
    text = s.call_metrics()
    assert text['nv_cache_num_hits_per_model{model="kept",version="1"}'] == 2
    assert text['nv_cache_num_misses_per_model{model="kept",version="1"}'] == 1
    assert text["nv_cache_num_lookups"] == 3 and text["nv_cache_num_hits"] == 2
    assert not any("per_model" in k and "plain" in k for k in text)


def test_hits_keep_the_order_of_responses(caching):
    s = caching()
    ask(s, "ordered", [1])
    sent, answered = {}, {}

    def run(value):
        sent[value] = time.monotonic()
        ask(s, "ordered", [value])
        answered[value] = time.monotonic()
    threads = [threading.Thread(target=run, args=(value,)) for value in (2, 1)]
    with s.begins("ordered"):
        threads[0].start()
    threads[1].start()  # 1 is kept, but 2 was sent before: its answer waits
    for t in threads:
        t.join()
    assert answered[2] - sent[2] >= 0.3 and answered[1] - sent[2] >= 0.3
    assert stats(s, "ordered")["cache_hit"] == 1
    began = time.monotonic()
    threads = [threading.Thread(target=run, args=(10 + i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert time.monotonic() - began < 4 * 0.3  # four instances run at once all the same


def test_many_clients_share_the_cache(caching):
    s = caching(20000)
    wrong = []

    def run(seed):
        with s.connect() as c:
            for i in range(100):
                values = [(i * seed) % 7] * 300
                body = {"inputs": [{"name": "INPUT0", "datatype": "INT32", "shape": [300],
                                    "data": values}]}
                if c.call("POST", "/v2/models/kept/infer", body).json()["outputs"][0]["data"] \
                        != values:
                    wrong.append((seed, i))
    threads = [threading.Thread(target=run, args=(i,)) for i in range(1, 7)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    got = stats(s, "kept")
    assert not wrong and got["success"] == 600
    assert got["cache_hit"] + got["inferences"] == 600


@pytest.mark.parametrize("args,words", [
    (["--cache-config=nothing,size=1"], "unable to find 'libtritoncache_nothing.so' for cache"),
    (["--cache-config=local,other=1"], "config didn't contain a valid 'size' field"),
    (["--cache-config=local,size=big"], "'size' config must be a string or uint type"),
    (["--cache-config=local,size=1", "--cache-config=other,size=1"],
     "found multiple cache configurations"),
])
def test_bad_caches_stop_the_start(caching, tmp_path, launch, args, words):
    s = launch(tmp_path / "models", *args)
    assert s.wait(60) == 1
    assert words in s.log()


def test_old_option_sets_the_size(caching, tmp_path, launch):
    s = launch(tmp_path / "models", "--response-cache-byte-size=100000").wait_ready()
    ask(s, "kept", [1])
    ask(s, "kept", [1])
    assert stats(s, "kept")["cache_hit"] == 1
    assert (BUILD / "caches/local/libtritoncache_local.so").exists()
