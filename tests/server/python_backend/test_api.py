# SPDX-License-Identifier: Apache-2.0
"""Everything that a model.py can do, as NVIDIA's server does it (compare.py checks that)."""
import os
import re
import threading

import pytest

import python_cases as cases
import pb_lab
from pb_lab import tensor

np = pytest.importorskip("numpy")
pytestmark = pytest.mark.skipif(not (pb_lab.BACKEND / "libtriton_python.so").exists(),
                                reason="the Python backend was not built (no Python.h)")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("python")
    models = folder / "models"
    models.mkdir()
    for name in ("lab", "add_sub", "repeat", "arepeat", "asleep", "ready"):
        pb_lab.add_model(models, name)
    pb_lab.add_model(models, "lab2", "lab")
    pb_lab.add_model(models, "lab_of_two", "lab", instances=2)
    pb_lab.add_model(models, "auto", config=False)
    for dtype in ("BOOL", "UINT8", "INT16", "UINT32", "INT64", "FP16", "FP64", "STRING"):
        pb_lab.add_model(models, "copy_" + dtype, "copy", extra=f"""max_batch_size: 0
input [ {{ name: "IN" data_type: TYPE_{dtype} dims: [ -1 ] }} ]
output [ {{ name: "OUT" data_type: TYPE_{dtype} dims: [ -1 ] }} ]""")
    chain = pb_lab.add_model(models, "chain") / "config.pbtxt"
    chain.write_text(re.sub(r"instance_group.*", "", chain.read_text()))
    with pb_lab.Server(folder, models, "--log-verbose=1") as s:
        yield s.wait_ready()
        children = s.children()
        assert s.stop() == 0, s.log()
        assert all(pb_lab.is_gone(p) for p in children)
    for line in ("lab is finalized", "unloaded 'lab'"):
        assert line in s.log()


def check(case, answer):
    if case.error:
        assert answer.status >= 400, answer.body
        assert re.search(case.error, answer.error(), re.S), answer.error()
    else:
        assert answer.status == 200, answer.body
        if case.want is not None:
            assert answer.output() == [case.want]


@pytest.mark.parametrize("case", cases.LAB, ids=lambda c: c.name.replace(" ", "-"))
def test_a_model_can(server, case):
    fields = dict(case.fields)
    inputs = [tensor("CODE", "BYTES", [1], [case.code])] + fields.pop("inputs", [])
    check(case, server.infer("lab", *inputs, **fields))


@pytest.mark.parametrize("name,code,want", cases.ASYNC_BLS, ids=lambda v: str(v)[:10])
def test_a_coroutine_can_ask_other_models(server, name, code, want):
    answer = server.run(code, model="asleep")
    assert answer.status == 200, answer.body
    if want:
        assert answer.output() == [want]


def test_error_codes_become_statuses(server):
    codes = {"UNKNOWN": 400, "INTERNAL": 500, "NOT_FOUND": 404, "INVALID_ARG": 400,
             "UNAVAILABLE": 503, "UNSUPPORTED": 501, "ALREADY_EXISTS": 400, "CANCELLED": 400}
    for code, status in codes.items():
        text = f"response = pb_utils.InferenceResponse(error=pb_utils.TritonError('e', pb_utils.TritonError.{code}))"
        answer = server.run(text)
        assert (code, answer.status) == (code, status) and answer.error() == "e"


def test_answered_errors_are_successes_and_raised_ones_failures(server):
    def counts():
        s = server.call("GET", "/v2/models/lab/stats").json()["model_stats"][0]
        return s["inference_stats"]["success"]["count"], s["inference_stats"]["fail"]["count"]

    def counted(code):  # statistics follow the answer
        before = counts()
        server.run(code)
        pb_lab.wait_until(lambda: counts() != before)
        return tuple(b - a for a, b in zip(before, counts()))

    assert counted("response = pb_utils.InferenceResponse(error=pb_utils.TritonError('e'))") == (1, 0)
    assert counted("raise ValueError('e')") == (0, 1)


def test_responses_in_full(server):
    t = "t = pb_utils.Tensor('Y', np.arange(12, dtype=np.float32).reshape(3, 4).T[:, 0])\n"
    a = server.run(t + "response = pb_utils.InferenceResponse([t])")
    assert a.json()["outputs"] == [
        {"name": "Y", "datatype": "FP32", "shape": [4], "data": [0.0, 1.0, 2.0, 3.0]}]
    a = server.run("t = pb_utils.Tensor('RESULT', np.array(['ü', b'raw', 5], dtype=object))\n"
                   "response = pb_utils.InferenceResponse([t], parameters={'a': 1, 'b': 'x', 'c': True})")
    assert a.output() == ["ü", "raw", "5"]
    assert a.json()["parameters"] == {"a": 1, "b": "x", "c": True}
    a = server.run("t = pb_utils.Tensor('Y', np.zeros([0], np.float32))\n"
                   "response = pb_utils.InferenceResponse([t])")
    assert a.json()["outputs"][0]["shape"] == [0]


DATA = {"BOOL": [True, False], "UINT8": [0, 255], "INT16": [-32768, 5], "UINT32": [0, 4294967295],
        "INT64": [-2**63, 2**63 - 1], "FP64": [1.5, -2.25], "STRING": ["", "ü", "long" * 50]}


@pytest.mark.parametrize("dtype", DATA)
def test_every_type_comes_through(server, dtype):
    name = "BYTES" if dtype == "STRING" else dtype
    a = server.infer("copy_" + dtype, tensor("IN", name, [len(DATA[dtype])], DATA[dtype]))
    assert a.status == 200, a.body
    assert a.output("OUT") == DATA[dtype]


def test_large_tensors_come_through(server):
    """Above 16 KB a tensor has a block of its own; outputs are read out of the stub's memory."""
    import http.client
    import json
    for n in (4096, 4097, 1 << 20, 3 << 20):
        data = np.random.default_rng(n).integers(0, 256, n, np.uint8)
        head = json.dumps({"inputs": [{"name": "IN", "datatype": "UINT8", "shape": [n],
                                       "parameters": {"binary_data_size": n}}],
                           "outputs": [{"name": "OUT", "parameters": {"binary_data": True}}]})
        c = http.client.HTTPConnection("127.0.0.1", server.http, timeout=60)
        c.request("POST", "/v2/models/copy_UINT8/infer", head.encode() + data.tobytes(),
                  {"Inference-Header-Content-Length": str(len(head))})
        r = c.getresponse()
        body = r.read()
        c.close()
        assert r.status == 200
        assert body[int(r.headers["Inference-Header-Content-Length"]):] == data.tobytes()


def test_an_array_lives_as_long_as_it_is_used(server):
    keep = """
x = pb_utils.get_input_tensor_by_name(request, 'X').as_numpy()
self.kept.setdefault('arrays', []).append(x[1:])
result = len(self.kept['arrays'])"""
    for i in range(20):
        data = tensor("X", "FP32", [8000], [float(i)] * 8000)
        assert server.infer("lab", tensor("CODE", "BYTES", [1], [keep]), data).status == 200
    a = server.run("result = [float(a.sum()) for a in self.kept.pop('arrays')]")
    assert a.output() == [str([i * 7999.0 for i in range(20)])]


def test_shared_memory_does_not_grow(server):
    code = """
import c_python_backend_utils as c
x = pb_utils.get_input_tensor_by_name(request, 'X')
s = pb_utils.Tensor('s', np.array(['y' * 100000], dtype=object))
result = c._used_memory()"""
    used = [int(server.infer("lab", tensor("CODE", "BYTES", [1], [code]),
                             tensor("X", "FP32", [9000], [0.5] * 9000)).output()[0])
            for _ in range(30)]
    assert max(used[5:]) <= max(used[:5]) + 4096


# ---- decoupled ----

def values(events):
    return [e.get("I", e.get("error")) for e in events]


def test_a_decoupled_model_streams(server):
    assert values(server.stream("repeat", {"N": 3})) == [0, 1, 2]
    assert values(server.stream("repeat", {"N": 3, "HOW": "late"})) == [0, 1, 2]
    assert values(server.stream("repeat", {"N": 0})) == []
    assert values(server.stream("repeat", {"N": 3, "HOW": "error"})) == [0, "one is bad", 2]
    assert values(server.stream("repeat", {"N": 500})) == list(range(500))


def test_an_async_decoupled_model_streams(server):
    assert values(server.stream("arepeat", {"N": 3})) == [0, 1, 2]
    found = []

    def one(n):
        found.append(values(server.stream("arepeat", {"N": n})))
    threads = [threading.Thread(target=one, args=(n,)) for n in range(1, 9)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert sorted(found, key=len) == [list(range(n)) for n in range(1, 9)]


def test_a_decoupled_model_that_breaks_the_rules_gets_an_error(server):
    assert "ValueError: no luck" in values(server.stream("repeat", {"N": 1, "HOW": "raise"}))[0]
    # Both end the request, where Triton leaves its client waiting.
    assert values(server.stream("repeat", {"N": 2, "HOW": "drop"})) == [0, 1]
    assert "without sending" in values(server.stream("repeat", {"N": 0, "HOW": "drop"}))[0]
    assert "returned no response" in values(server.stream("repeat", {"N": 1, "HOW": "none"}))[0]
    assert "is negative" in values(server.stream("arepeat", {"N": -1}))[0]
    assert values(server.stream("repeat", {"N": 1})) == [0]


def test_a_model_sees_that_its_request_is_cancelled(server):
    import socket
    import json
    body = json.dumps({"N": 1, "HOW": "until"}).encode()
    with socket.create_connection(("127.0.0.1", server.http)) as s:
        s.sendall(b"POST /v2/models/repeat/generate_stream HTTP/1.1\r\nHost: localhost\r\n"
                  b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        s.settimeout(20)
        data = b""
        while b'"I":0' not in data:
            data += s.recv(65536)
    server.wait_log("repeat saw the cancellation", 20)


def test_a_request_that_nobody_answers_gets_an_error(server):
    a = server.run("answer = None")
    assert a.status == 500 and "returned no response" in a.error()
    a = server.run("s = request.get_response_sender(); answer = None")
    assert a.status == 500 and "without sending" in a.error()


def test_an_inner_request_can_be_cancelled(server):
    code = cases.BLS + """
it = number(1, how='until').exec(decoupled=True)
first = next(it)
it.cancel()
result = [show(first)] + [show(r) for r in it]"""
    (text,) = server.run(code).output()
    assert text == "[{'I': [0]}, 'error __ErrorCode.CANCELLED stopped']"


# ---- log, metrics, readiness ----

def test_log_lines_carry_the_model_s_place(server):
    server.run("pb_utils.Logger.log_info('hello from line one')\nresult = 1")
    server.run("\npb_utils.Logger.log_error('trouble')\nresult = 1")
    server.run("pb_utils.Logger.log('with a level', pb_utils.Logger.WARNING); result = 1")
    server.run("pb_utils.Logger.log_verbose('small talk'); result = 1")
    server.wait_log("small talk")
    for level, place, text in (("I", "code:1", "hello from line one"), ("E", "code:2", "trouble"),
                               ("W", "code:1", "with a level"), ("[IV]", "code:1", "small talk")):
        assert re.search(rf"^{level}.* {place}\] .*{text}", server.log(), re.M), server.log()


def test_custom_metrics_are_reported(server):
    server.run("""
f = pb_utils.MetricFamily('mine_total', 'what I count', pb_utils.MetricFamily.COUNTER)
self.kept['m'] = (f, f.Metric(labels={'who': 'me'})); self.kept['m'][1].increment(3); result = 1""")
    text = server.metrics()
    assert "# HELP mine_total what I count" in text and 'mine_total{who="me"} 3' in text
    server.run("self.kept.pop('m'); result = 1")
    pb_lab.wait_until(lambda: "mine_total" not in server.metrics())


def test_is_ready_is_asked_beside_execute(server):
    def ready():
        return server.call("GET", "/v2/models/ready/ready").status == 200

    def say(x):
        return server.infer("ready", tensor("X", "FP32", [1], [x]))
    assert ready()
    say(-1)
    assert not ready()
    say(-2)
    assert not ready()
    say(1)
    assert ready()
    busy = threading.Thread(target=say, args=(7,))
    busy.start()
    assert ready()
    busy.join()


def test_two_instances_are_two_processes(server):
    pids = set()
    threads = [threading.Thread(target=lambda: pids.add(server.run(
        "import time; time.sleep(0.05); result = os.getpid()", model="lab_of_two").output()[0]))
        for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(pids) == 2


def test_auto_complete_fills_the_configuration(server):
    config = server.call("GET", "/v2/models/auto/config").json()
    assert config["max_batch_size"] == 4 and "dynamic_batching" in config
    assert [i["name"] for i in config["input"]] == ["X", "Z"] and config["input"][1]["optional"]
    a = server.infer("auto", tensor("X", "FP32", [1, 4], [1, 2, 3, 4]))
    assert a.output("Y") == [2.0, 4.0, 6.0, 8.0]


def test_ensembles_run_python_models(server):
    a = server.infer("chain", tensor("A", "FP32", [1, 2], [1, 2]), tensor("B", "FP32", [1, 2], [10, 20]))
    assert a.output("OUT") == [2.0, 4.0]


def test_forked_children_ask_other_models_through_their_parent(server):
    code = cases.BLS + """
pid = os.fork()
if pid == 0:
    try:
        pb_utils.Logger.log_info('from a child')
        ok = show(ask().exec()) == {'SUM': [[11.0, 22.0]]}
        ok = ok and [show(r) for r in number(2).exec(decoupled=True)] == [{'I': [0]}, {'I': [1]}, {}]
        ok = ok and show(ask('nobody').exec()).startswith('error')
        pb_utils.is_model_ready('add_sub')
    except pb_utils.TritonModelException:
        os._exit(7 if ok else 8)
    os._exit(0)
result = os.WEXITSTATUS(os.waitpid(pid, 0)[1])"""
    assert server.run(code).output() == ["7"]
    assert "from a child" in server.log()
    assert server.run("result = 'still here'").output() == ["still here"]


def test_a_pool_of_processes_asks_other_models(server):
    code = cases.BLS + """
import multiprocessing
def work(i):
    return show(ask(a=(i, i)).exec())['SUM'][0][0]
self.kept['work'] = work
import __main__
__main__.work = work
work.__module__ = '__main__'; work.__qualname__ = 'work'
with multiprocessing.get_context('fork').Pool(3) as pool:
    result = pool.map(work, range(6))"""
    assert server.run(code).output() == ["[10.0, 11.0, 12.0, 13.0, 14.0, 15.0]"]


def test_nothing_is_in_dev_shm(server):
    assert not [n for n in os.listdir("/dev/shm") if n.startswith("triton_python")
                and str(server.process.pid) in n]
