# SPDX-License-Identifier: Apache-2.0
"""Batching: custom strategies, tensors about batches, limits of queues, remote repositories."""
import threading
import time

import pytest

from triton_server import BUILD, delay, wait_until, write_model

VOLUME = BUILD / "tests/batching/volume/batchstrategy.so"
GATE = BUILD / "tests/batching/gate/batchstrategy.so"
BATCHING = "dynamic_batching { max_queue_delay_microseconds: 1000000 }"


def set_batch(folder, name, size):
    path = folder / name / "config.pbtxt"
    path.write_text(path.read_text().replace("max_batch_size: 0", f"max_batch_size: {size}"))


def ask(server, model, values):
    return server.call("POST", f"/v2/models/{model}/infer", {
        "inputs": [{"name": "INPUT0", "datatype": "INT32", "shape": [1, len(values)],
                    "data": values}]})


def ask_together(server, model, n, size):
    replies = []
    threads = [threading.Thread(target=lambda: replies.append(ask(server, model, [1] * size)))
               for _ in range(n)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return replies


def executions(server, model, n):
    """How often the model ran for n requests, which are counted just after their answers."""
    def stats():
        found = server.call("GET", f"/v2/models/{model}/stats").json()["model_stats"][0]
        return found if found["inference_stats"]["success"]["count"] >= n else None
    return wait_until(stats)["execution_count"]


@pytest.mark.parametrize("where", ["parameter", "version", "model"])
def test_custom_strategy_bounds_batches(tmp_path, launch, where):
    more = BATCHING + 'parameters { key: "MAX_VOLUME" value: { string_value: "20" } }'
    if where == "parameter":
        more += ('parameters { key: "TRITON_BATCH_STRATEGY_PATH" value: { string_value: "%s" } }'
                 % VOLUME)
    write_model(tmp_path / "r", "m", extra=more)
    write_model(tmp_path / "r", "plain", extra=BATCHING)
    if where != "parameter":
        target = tmp_path / "r/m" / ("1" if where == "version" else ".") / "batchstrategy.so"
        target.write_bytes(VOLUME.read_bytes())
    set_batch(tmp_path / "r", "m", 16)
    set_batch(tmp_path / "r", "plain", 16)
    s = launch(tmp_path / "r").wait_ready()
    assert "Loading custom batching strategy library" in s.log()
    assert all(r.status == 200 for r in ask_together(s, "m", 8, 10))
    assert executions(s, "m", 8) == 4  # two requests of ten elements fit
    ask_together(s, "plain", 8, 10)
    assert executions(s, "plain", 8) == 1
    assert ask(s, "m", [1] * 50).status == 200  # larger than any batch may be: alone


def test_requests_arrive_while_a_strategy_decides(tmp_path, launch, monkeypatch):
    gate = tmp_path / "gate"
    monkeypatch.setenv("NRD_TEST_GATE", str(gate))
    write_model(tmp_path / "r", "m", extra=BATCHING + (
        'parameters { key: "TRITON_BATCH_STRATEGY_PATH" value: { string_value: "%s" } }' % GATE))
    set_batch(tmp_path / "r", "m", 16)
    s = launch(tmp_path / "r").wait_ready()
    replies = []
    threads = [threading.Thread(target=lambda: replies.append(ask(s, "m", [1]))) for _ in range(3)]
    try:
        threads[0].start()
        s.wait_log("gate: asked")
        for t in threads[1:]:
            t.start()
        s.wait_pending("m", 3)
        assert s.call("GET", "/v2/health/live").status == 200
    finally:
        gate.touch()
    for t in threads:
        t.join()
    assert [r.status for r in replies] == [200] * 3
    assert executions(s, "m", 3) == 1


@pytest.mark.parametrize("more,words", [
    ('parameters { key: "TRITON_BATCH_STRATEGY_PATH" value: { string_value: "/none.so" } }',
     "Batching library path not found: /none.so"),
    ('parameters { key: "TRITON_BATCH_STRATEGY_PATH" value: { string_value: "%s" } }' % VOLUME,
     "volume: no MAX_VOLUME"),
    ('batch_input [ { kind: BATCH_ELEMENT_COUNT target_name: "N" data_type: TYPE_INT32 '
     'source_input: "no" } ]', "unknown source input name 'no'"),
    ('batch_input [ { kind: BATCH_ELEMENT_COUNT target_name: "N" data_type: TYPE_INT64 '
     'source_input: "INPUT0" } ]', "batch input data type must be TYPE_INT32 or TYPE_FP32"),
    ('batch_input [ { kind: BATCH_ITEM_SHAPE target_name: "N" data_type: TYPE_INT32 } ]',
     "batch input kind 'BATCH_ITEM_SHAPE' expects 1 source input, got 0"),
    ('batch_output [ { target_name: "no" kind: BATCH_SCATTER_WITH_INPUT_SHAPE '
     'source_input: "INPUT0" } ]', "unknown target output name 'no'"),
])
def test_wrong_settings_are_named(tmp_path, launch, more, words):
    write_model(tmp_path / "r", "m", extra=more)
    s = launch(tmp_path / "r", "--model-control-mode=explicit").wait_ready()
    reply = s.call("POST", "/v2/repository/models/m/load", {})
    assert reply.status >= 400 and words in reply.error()


def test_tensors_about_batches_are_for_the_backend(tmp_path, launch):
    write_model(tmp_path / "r", "m", extra=(
        'batch_input [ { kind: BATCH_ACCUMULATED_ELEMENT_COUNT target_name: "N" '
        'data_type: TYPE_FP32 source_input: "INPUT0" } ] batch_output [ { target_name: "OUTPUT0" '
        'kind: BATCH_SCATTER_WITH_INPUT_SHAPE source_input: "INPUT0" } ]'))
    s = launch(tmp_path / "r").wait_ready()
    config = s.call("GET", "/v2/models/m/config").json()
    assert config["batch_input"][0]["kind"] == "BATCH_ACCUMULATED_ELEMENT_COUNT"
    assert config["batch_output"][0]["target_name"] == ["OUTPUT0"]


def test_full_queue_answers_at_once(tmp_path, launch):
    write_model(tmp_path / "r", "m", extra=delay(1500) + "dynamic_batching { "
                "default_queue_policy { max_queue_size: 2 } }")
    s = launch(tmp_path / "r", "--log-verbose=1").wait_ready()
    times = []

    def run():
        began = time.monotonic()
        r = s.call("POST", "/v2/models/m/infer", {"inputs": [
            {"name": "INPUT0", "datatype": "INT32", "shape": [1], "data": [1]}]})
        times.append((r.status, time.monotonic() - began))
    threads = [threading.Thread(target=run) for _ in range(10)]
    with s.begins("m"):
        threads[0].start()
    for t in threads[1:]:
        t.start()
    for t in threads:
        t.join()
    refused = [t for status, t in times if status == 503]
    answered = [t for status, t in times if status == 200]
    assert len(refused) == 7 and len(answered) == 3
    assert max(refused) < min(answered)
