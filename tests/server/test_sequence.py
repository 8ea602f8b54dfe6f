# SPDX-License-Identifier: Apache-2.0
"""Sequences over HTTP: order, slots, controls, implicit state, ends of every kind. The probe backend
answers with the inputs that it was given."""
import json
import pathlib
import threading
import time

import pytest

from triton_server import BUILD, Server, wait_until

PROBE = BUILD / "tests/backends"
pytestmark = pytest.mark.skipif(not (PROBE / "probe/libtriton_probe.so").exists(),
                                reason="make test-backends builds what this needs")

CONTROLS = """
  control_input [
    { name: "START" control [ { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } ] },
    { name: "END" control [ { kind: CONTROL_SEQUENCE_END fp32_false_true: [ 0, 2.5 ] } ] },
    { name: "READY" control [ { kind: CONTROL_SEQUENCE_READY bool_false_true: [ false, true ] } ] },
    { name: "CORRID" control [ { kind: CONTROL_SEQUENCE_CORRID data_type: %s } ] } ]
"""
STATE = """
  state [ { input_name: "OLD" output_name: "NEW" data_type: TYPE_INT32 dims: [ 1 ] %s } ]
"""


def write_probe(repository, name, sequence="", batch=0, more="", dims="1"):
    folder = pathlib.Path(repository) / name
    (folder / "1").mkdir(parents=True)
    if sequence is not None:
        sequence = "sequence_batching { %s }" % sequence
    (folder / "config.pbtxt").write_text(f"""
name: "{name}"
backend: "probe"
max_batch_size: {batch}
input [ {{ name: "IN" data_type: TYPE_INT32 dims: [ {dims} ] }} ]
output [ {{ name: "SEEN" data_type: TYPE_STRING dims: [ 1 ] }},
         {{ name: "SUM" data_type: TYPE_INT32 dims: [ 1 ] }} ]
instance_group [ {{ count: 1 kind: KIND_CPU }} ]
{sequence or ""}
{more}""")
    return folder


def param(key, value):
    return 'parameters { key: "%s" value: { string_value: "%s" } }' % (key, value)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sequences")
    write_probe(folder, "direct", "direct { }" + CONTROLS % "TYPE_UINT64" + STATE % "", batch=2)
    write_probe(folder, "oldest", "oldest { max_candidate_sequences: 4 }" + CONTROLS % "TYPE_INT32"
                + STATE % "", batch=4)
    write_probe(folder, "text", "direct { }" + CONTROLS % "TYPE_STRING")
    write_probe(folder, "slow", "direct { }" + CONTROLS % "TYPE_UINT64", batch=2, dims="-1",
                more=param("execute_delay_ms", 300))
    write_probe(folder, "slow_oldest", "oldest { max_candidate_sequences: 1 }", batch=4,
                more=param("execute_delay_ms", 300))
    write_probe(folder, "idle", "max_sequence_idle_microseconds: 300000 oldest { "
                "max_candidate_sequences: 1 }" + STATE % "")
    write_probe(folder, "same", "direct { }" + STATE % "use_same_buffer_for_input_output: true "
                "use_growable_memory: true")
    zero = 'initial_state: { data_type: TYPE_INT32 dims: [ 1 ] zero_data: true name: "zero" }'
    file = 'initial_state: { data_type: TYPE_INT32 dims: [ 1 ] data_file: "seven" name: "s" }'
    write_probe(folder, "zero", "direct { }" + STATE % zero)
    seven = write_probe(folder, "seven", "oldest { }" + STATE % file)
    (seven / "initial_state").mkdir()
    (seven / "initial_state/seven").write_bytes((7).to_bytes(4, "little"))
    write_probe(folder, "again", "iterative_sequence: true" + CONTROLS % "TYPE_UINT64"
                + STATE % "", batch=2, more=param("iterations", 5))
    write_probe(folder, "again_oldest", "iterative_sequence: true oldest { "
                "max_candidate_sequences: 2 }" + STATE % "", batch=2, more=param("iterations", 5))
    write_probe(folder, "waits", "max_sequence_idle_microseconds: 60000000 direct { max_queue_delay_microseconds: 800000 "
                "minimum_slot_utilization: 1.0 }" + CONTROLS % "TYPE_UINT64", batch=2)
    return folder


@pytest.fixture(scope="module")
def server(models, tmp_path_factory):
    s = Server(tmp_path_factory.mktemp("log"), models, f"--backend-directory={PROBE}",
               "--log-verbose=1")
    try:
        yield s.wait_ready()
    finally:
        code = s.stop()
    assert code == 0, s.log()


class Answer:
    def __init__(self, reply):
        self.status, self.body = reply.status, reply.json()
        self.error = self.body.get("error")
        out = {o["name"]: o["data"][0] for o in self.body.get("outputs", [])}
        self.seen = json.loads(out["SEEN"]) if "SEEN" in out else None
        self.sum = out.get("SUM")

    def control(self, name):
        return self.seen["inputs"][name]["data"][0]


def ask(server, model, seq=None, start=False, end=False, value=1, n=1, batch=None, timeout=None):
    parameters = {}
    if seq is not None:
        parameters = {"sequence_id": seq, "sequence_start": start, "sequence_end": end}
    if timeout is not None:
        parameters["timeout"] = timeout
    shape = [n] if batch is None else [batch, n]
    body = {"inputs": [{"name": "IN", "datatype": "INT32", "shape": shape,
                        "data": [value] * (n * (batch or 1))}], "parameters": parameters}
    return Answer(server.call("POST", f"/v2/models/{model}/infer", body))


def later(server, *args, **kwargs):
    """A request on a thread of its own: call the result for its answer."""
    box = []
    t = threading.Thread(target=lambda: box.append(ask(server, *args, **kwargs)))
    t.start()

    def result():
        t.join(60)
        return box[0]
    return result


def test_controls_tell_where_a_sequence_stands(server):
    first = ask(server, "direct", 9, start=True, value=4, batch=1)
    assert [first.control(c) for c in ("START", "END", "READY", "CORRID")] == [1, 0, 1, 9]
    assert first.seen["inputs"]["START"] == {"type": "INT32", "shape": [1, 1], "data": [1]}
    assert first.seen["inputs"]["END"]["type"] == "FP32"
    assert first.seen["inputs"]["READY"]["type"] == "BOOL"
    assert first.seen["inputs"]["CORRID"]["type"] == "UINT64"
    middle = ask(server, "direct", 9, value=5, batch=1)
    assert [middle.control(c) for c in ("START", "END", "READY", "CORRID")] == [0, 0, 1, 9]
    last = ask(server, "direct", 9, end=True, value=6, batch=1)
    assert [last.control(c) for c in ("START", "END", "READY", "CORRID")] == [0, 2.5, 1, 9]
    both = ask(server, "direct", 9, start=True, end=True, batch=1)
    assert [both.control(c) for c in ("START", "END")] == [1, 2.5]


@pytest.mark.parametrize("model", ["direct", "oldest"])
def test_state_goes_from_request_to_request(server, model):
    sums = [ask(server, model, 5, start=i == 0, end=i == 3, value=i + 1, batch=1).sum
            for i in range(4)]
    assert sums == [1, 3, 6, 10]
    assert ask(server, model, 5, start=True, end=True, value=2, batch=1).sum == 2


@pytest.mark.parametrize("model,first", [("same", 3), ("zero", 3), ("seven", 10)])
def test_state_starts_as_configured(server, model, first):
    assert ask(server, model, 5, start=True, value=3).sum == first
    assert ask(server, model, 5, value=3).sum == first + 3
    assert ask(server, model, 5, start=True, end=True, value=3).sum == first


def test_text_ids_are_passed_on(server):
    answer = ask(server, "text", "a sequence", start=True, end=True)
    assert answer.seen["inputs"]["CORRID"] == {"type": "BYTES", "shape": [1],
                                               "data": ["a sequence"]}
    assert ask(server, "text", "1", start=True).status == 200
    assert ask(server, "text", 1).status == 400  # a number is another id
    assert ask(server, "text", "1", end=True).status == 200


def test_text_ids_of_a_model_with_numbers_become_numbers_of_their_own(server):
    first = ask(server, "waits", "a sequence", start=True, batch=1)
    other = ask(server, "waits", "another", start=True, batch=1)
    number, second = first.control("CORRID"), other.control("CORRID")
    assert 0 < number < 2**31 and 0 < second < 2**31 and number != second
    assert ask(server, "waits", "a sequence", end=True, batch=1).control("CORRID") == number
    assert ask(server, "waits", "another", end=True, batch=1).control("CORRID") == second


def test_bad_requests_are_refused_in_known_words(server):
    a = ask(server, "direct", 77, batch=1)
    assert a.status == 400 and a.error == (
        "inference request for sequence 77 to model 'direct' must specify the START flag on the "
        "first request of the sequence")
    a = ask(server, "text", "x")
    assert a.error == ("inference request for sequence x to model 'text' must specify the START "
                       "flag on the first request of the sequence")
    a = ask(server, "direct", batch=1)
    assert a.error == ("inference request to model 'direct' must specify a non-zero or non-empty "
                       "correlation ID")
    a = ask(server, "direct", 4, start=True, batch=2)
    assert a.error == ("inference request to model 'direct' must specify batch-size 1 due to "
                       "requirements of sequence batcher")


def test_direct_batches_keep_sequences_in_their_slots(server):
    with server.begins("slow"):
        first = later(server, "slow", 1, start=True, batch=1)
    second = later(server, "slow", 2, start=True, batch=1)
    assert first().seen["place"] == 0
    second = second().seen
    # slot 0 had nothing: a request that is not ready stands in for it
    assert (second["place"], second["batch"]) == (1, 2)
    assert ask(server, "slow", 1, end=True, batch=1).seen["batch"] == 1
    assert ask(server, "slow", 2, end=True, batch=1).seen["place"] == 1


def test_different_shapes_do_not_share_a_batch(server):
    with server.begins("slow"):
        hold = later(server, "slow", 11, start=True, batch=1)
    second = later(server, "slow", 12, start=True, batch=1, n=3)
    server.wait_pending("slow", 1)
    first = later(server, "slow", 11, end=True, batch=1, n=2)
    assert hold().status == 200
    a, b = first().seen, second().seen
    assert a["inputs"]["IN"]["shape"] == [1, 2] and b["inputs"]["IN"]["shape"] == [1, 3]
    assert ask(server, "slow", 12, end=True, batch=1).status == 200


def test_sequences_wait_for_a_slot(server):
    order = []
    assert ask(server, "slow_oldest", 1, start=True, batch=1).status == 200
    waiting = later(server, "slow_oldest", 2, start=True, end=True, batch=1)
    server.wait_pending("slow_oldest", 1)
    order.append(ask(server, "slow_oldest", 1, batch=1).status)
    order.append(ask(server, "slow_oldest", 1, end=True, batch=1).status)
    assert order == [200, 200] and waiting().status == 200


def test_time_in_the_backlog_is_limited(server):
    assert ask(server, "slow_oldest", 1, start=True, batch=1).status == 200
    late = ask(server, "slow_oldest", 2, start=True, batch=1, timeout=100000)
    assert late.status == 503 or late.status == 400
    assert late.error == "timeout of the corresponding sequence has been expired"
    assert ask(server, "slow_oldest", 2, end=True, batch=1).status == 400
    assert ask(server, "slow_oldest", 1, end=True, batch=1).status == 200


def test_idle_sequences_end(server):
    assert ask(server, "idle", 1, start=True).status == 200
    waiting = later(server, "idle", 2, start=True, value=4)
    assert waiting().sum == 4  # got the slot when 1 was given up
    lost = ask(server, "idle", 1)
    assert lost.status == 400 and "must specify the START flag" in lost.error
    assert ask(server, "idle", 2, end=True, value=5).sum == 9


def test_new_start_ends_the_old_sequence(server):
    assert ask(server, "zero", 3, start=True, value=5).sum == 5
    assert ask(server, "zero", 3, start=True, value=1).sum == 1
    assert ask(server, "zero", 3, end=True, value=1).sum == 2
    assert "sequence 3 for model 'zero' has a conflict" in server.log()


@pytest.mark.parametrize("model", ["again", "again_oldest"])
def test_iterative_requests_run_until_they_are_done(server, model):
    answers = [later(server, model, batch=1) for _ in range(6)]
    for a in answers:
        a = a()
        assert a.status == 200 and a.sum == 5
        assert a.seen["flags"] == 0

    def count():
        stats = server.call("GET", f"/v2/models/{model}/stats").json()["model_stats"][0]
        return stats["inference_stats"]["success"]["count"]
    wait_until(lambda: count() >= 6)  # statistics come just after the answers
    assert count() == 6


def test_full_slots_do_not_wait_for_the_delay(server):
    began = time.monotonic()
    alone = ask(server, "waits", 1, start=True, batch=1)
    waited = time.monotonic() - began
    assert waited > 0.75 and alone.seen["batch"] == 1
    began = time.monotonic()
    one = later(server, "waits", 1, end=True, batch=1)
    two = later(server, "waits", 2, start=True, end=True, batch=1)
    assert one().seen["batch"] == 2 and two().seen["batch"] == 2
    assert time.monotonic() - began < waited


def test_many_sequences_keep_their_order(server):
    def run(seq, wrong):
        for model in ("direct", "oldest"):
            total = 0
            for i in range(20):
                total += i
                a = ask(server, model, seq, start=i == 0, end=i == 19, value=i, batch=1)
                if a.status != 200 or a.sum != total or a.control("CORRID") != seq:
                    wrong.append((model, seq, i, a.body))
    wrong = []
    threads = [threading.Thread(target=run, args=(100 + i, wrong)) for i in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong, wrong[:3]


def test_clients_that_leave_free_their_slot(server):
    with server.begins("slow_oldest"):
        held = later(server, "slow_oldest", 1, start=True, batch=1)
    c = server.connect()  # in the backlog, then gone
    body = {"inputs": [{"name": "IN", "datatype": "INT32", "shape": [1, 1], "data": [1]}],
            "parameters": {"sequence_id": 2, "sequence_start": True}}
    c.request("POST", "/v2/models/slow_oldest/infer", body)
    server.wait_pending("slow_oldest", 1)
    c.close()
    assert held().status == 200
    assert ask(server, "slow_oldest", 1, end=True, batch=1).status == 200
    assert ask(server, "slow_oldest", 3, start=True, end=True, batch=1).status == 200


def test_unloading_ends_live_sequences(models, launch):
    s = launch(models, f"--backend-directory={PROBE}", "--model-control-mode=explicit",
               "--load-model=direct").wait_ready()
    assert ask(s, "direct", 1, start=True, batch=1).status == 200
    assert s.call("POST", "/v2/repository/models/direct/unload", {}).status == 200
    assert ask(s, "direct", 1, batch=1).status in (400, 404, 503)
    assert s.call("POST", "/v2/repository/models/direct/load", {}).status == 200
    lost = ask(s, "direct", 1, batch=1)
    assert lost.status == 400 and "must specify the START flag" in lost.error


def test_stopping_waits_for_live_sequences(models, launch):
    s = launch(models, f"--backend-directory={PROBE}").wait_ready()
    assert ask(s, "seven", 1, start=True).sum == 8
    with s.connect() as c:
        c.call("GET", "/v2/health/live")
        s.signal()
        s.wait_log("Model 'seven' (version 1) has 1 in-flight inferences")
    assert s.wait(20) == 0  # the idle time-out ends it


STRANGE = [
    ('control_input [ { name: "" } ]', "sequence batching control tensor must have a name"),
    ('control_input [ { name: "A" control [ { kind: CONTROL_SEQUENCE_START } ] } ]',
     "sequence batching must specify either 'int32_false_true', 'fp32_false_true' or "
     "'bool_false_true' for CONTROL_SEQUENCE_START"),
    ('control_input [ { name: "A" control [ { kind: CONTROL_SEQUENCE_START '
     'int32_false_true: [ 1 ] } ] } ]', "must have exactly 2 entries"),
    ('control_input [ { name: "A" control [ { kind: CONTROL_SEQUENCE_CORRID '
     'data_type: TYPE_FP32 } ] } ]', "unexpected data type for control CONTROL_SEQUENCE_CORRID"),
    ('direct { minimum_slot_utilization: 1.5 }', "minimum slot utilization must be in range"),
    ('oldest { preferred_batch_size: [ 9 ] }', "preferred batch size must be <= max batch size"),
    ('direct { }' + STATE % 'initial_state: { data_type: TYPE_FP32 dims: [ 1 ] zero_data: true '
     'name: "x" }', "does not match the state data type"),
    ('direct { }' + STATE % 'initial_state: { data_type: TYPE_INT32 dims: [ 1 ] '
     'data_file: "none" name: "x" }', "initial_state/none"),
]


@pytest.mark.parametrize("text,words", STRANGE)
def test_strange_configurations_are_refused(tmp_path, launch, text, words):
    write_probe(tmp_path / "r", "odd", text)
    s = launch(tmp_path / "r", f"--backend-directory={PROBE}", "--model-control-mode=explicit")
    s.wait_ready()
    reply = s.call("POST", "/v2/repository/models/odd/load", {})
    assert reply.status == 400 and words in reply.error()
