# SPDX-License-Identifier: Apache-2.0
"""What backends see and may do: forwarded headers, figures reported late, log levels, priorities of
any size, tags of metrics. The probe backend answers with what it was given."""
import threading
import time

import pytest

from test_sequence import PROBE, Answer, ask, param, write_probe
from triton_server import wait_until

pytestmark = pytest.mark.skipif(not (PROBE / "probe/libtriton_probe.so").exists(),
                                reason="make test-backends builds what this needs")
BACKENDS = f"--backend-directory={PROBE}"
BODY = {"inputs": [{"name": "IN", "datatype": "INT32", "shape": [1], "data": [1]}]}
HEADERS = {"X-One": "1 ", "x-two": 'a "b" \\', "y-three": "3"}


@pytest.mark.parametrize("pattern,names", [
    ("x-.*", {"X-One", "x-two"}),
    ("X-ONE", {"X-One"}),
    ("(?-i)x-", {"x-two"}),
    ("^(?:x-one|y-[a-z]+)$", {"X-One", "y-three"}),
    ("nothing", set()),
])
def test_pattern_picks_headers(tmp_path, launch, pattern, names):
    write_probe(tmp_path, "m", None)
    s = launch(tmp_path, BACKENDS, f"--http-header-forward-pattern={pattern}").wait_ready()
    reply = Answer(s.call("POST", "/v2/models/m/infer", BODY, HEADERS))
    assert reply.status == 200
    assert {k: v for k, v in reply.seen.items() if k in HEADERS} == {k: HEADERS[k] for k in names}


@pytest.mark.parametrize("option", ["http", "grpc"])
def test_a_wrong_pattern_is_refused(tmp_path, launch, option):
    write_probe(tmp_path, "m", None)
    s = launch(tmp_path, BACKENDS, f"--{option}-header-forward-pattern=(x")
    assert s.wait() != 0
    assert f"--{option}-header-forward-pattern '(x': " in s.log()


def test_figures_may_be_reported_after_the_release(tmp_path, launch):
    write_probe(tmp_path, "m", None, batch=4, more=param("late_report", "1") +
                "dynamic_batching { max_queue_delay_microseconds: 1000 }")
    s = launch(tmp_path, BACKENDS).wait_ready()
    threads = [threading.Thread(target=lambda: [ask(s, "m", batch=1) for _ in range(50)])
               for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    counted = lambda: s.call("GET", "/v2/models/m/stats").json()["model_stats"][0]  # noqa: E731
    wait_until(lambda: counted()["inference_count"] >= 200)  # the last figures may come behind their answers
    stats = counted()
    assert stats["inference_count"] == stats["inference_stats"]["success"]["count"] == 200


def test_a_backend_may_have_an_input_ignored(tmp_path, launch):
    write_probe(tmp_path, "m", None, more=param("ignored_input", "EXTRA"))
    write_probe(tmp_path, "plain", None)
    s = launch(tmp_path, BACKENDS).wait_ready()

    def with_extra(model, datatype):
        extra = {"name": "EXTRA", "datatype": datatype, "shape": [1],
                 "data": [True if datatype == "BOOL" else 1]}
        return s.call("POST", f"/v2/models/{model}/infer", {"inputs": BODY["inputs"] + [extra]})

    assert with_extra("m", "BOOL").status == 200
    for model, datatype in ("m", "INT32"), ("plain", "BOOL"):
        reply = with_extra(model, datatype)
        assert reply.status == 400 and "EXTRA" in reply.error()


def test_messages_of_backends_obey_the_log_settings(tmp_path, launch):
    write_probe(tmp_path, "m", None, more=param("log_inputs", "1"))
    s = launch(tmp_path, BACKENDS).wait_ready()
    assert ask(s, "m").status == 200
    assert s.log().count('"batch":1') == 1
    assert s.call("POST", "/v2/logging", {"log_info": False}).status == 200
    assert ask(s, "m").status == 200
    assert s.log().count('"batch":1') == 1


def test_there_may_be_any_number_of_priorities(tmp_path, launch):
    last = (1 << 64) - 1
    write_probe(tmp_path, "m", None, batch=1, more=param("execute_delay_ms", "30") + f"""
dynamic_batching {{ priority_levels: {last} default_priority_level: {last}
  priority_queue_policy {{ key: {last - 1} value: {{ max_queue_size: 1 }} }} }}""")
    s = launch(tmp_path, BACKENDS).wait_ready()
    done, lock = [], threading.Lock()

    def send(priority):
        body = {**BODY, "parameters": {"priority": priority}}
        body["inputs"] = [{**BODY["inputs"][0], "shape": [1, 1]}]
        status = s.call("POST", "/v2/models/m/infer", body).status
        with lock:
            done.append((priority, status))

    first = threading.Thread(target=send, args=(1,))
    first.start()
    numbers = list(range(300, 0, -3))  # more than are kept when they are empty
    threads = [threading.Thread(target=send, args=(p,)) for p in numbers]
    for t in threads:
        t.start()
    for t in [first, *threads]:
        t.join()
    assert sorted(done) == sorted([(1, 200)] + [(p, 200) for p in numbers])
    late = [p for p, _ in done[len(done) // 2:]]
    assert sum(late) > sum(p for p, _ in done) / 2  # small numbers came first


def test_a_delayed_request_makes_room_when_its_time_is_over(tmp_path, launch):
    write_probe(tmp_path, "m", None, batch=32, more="""dynamic_batching {
  preferred_batch_size: [ 4 ] max_queue_delay_microseconds: 5000000
  default_queue_policy { timeout_action: DELAY default_timeout_microseconds: 1500000 } }""")
    s = launch(tmp_path, BACKENDS).wait_ready()
    seconds = {}

    def send(key, batch):
        began = time.monotonic()
        assert ask(s, "m", batch=batch).status == 200
        seconds[key] = time.monotonic() - began

    threads = []
    for key, batch in (("one", 1), ("two", 2), ("three", 2)):  # all within the time-out of one
        threads.append(threading.Thread(target=send, args=(key, batch)))
        threads[-1].start()
        s.wait_pending("m", len(threads))
    for t in threads:
        t.join()
    assert seconds["one"] > 4 and seconds["two"] < 4 and seconds["three"] < 4


def test_a_batch_that_is_about_to_run_does_not_fill_the_queue(tmp_path, launch):
    write_probe(tmp_path, "m", None, batch=4, more=param("execute_delay_ms", "200") + """
dynamic_batching { max_queue_delay_microseconds: 3000000
                   default_queue_policy { max_queue_size: 4 } }""")
    s = launch(tmp_path, BACKENDS).wait_ready()
    body = {"inputs": [{**BODY["inputs"][0], "shape": [1, 1]}]}
    connections = [s.connect() for _ in range(8)]
    for i, c in enumerate(connections):
        c.request("POST", "/v2/models/m/infer", body)
        if i == 0:
            time.sleep(0.3)  # its instance waits for more now
    assert [c.reply().status for c in connections] == [200] * 8
    for c in connections:
        c.close()


def test_metric_tags_are_labels_with_a_mark(tmp_path, launch):
    write_probe(tmp_path, "m", None, more='metric_tags { key: "team" value: "a" }')
    s = launch(tmp_path, BACKENDS).wait_ready()
    assert 'nv_inference_count{_team="a",model="m",version="1"}' in s.call_metrics()


def test_summaries_take_their_quantiles_from_the_options(tmp_path, launch):
    write_probe(tmp_path, "m", None)
    write_probe(tmp_path, "kept", None, more="response_cache { enable: true }")
    s = launch(tmp_path, BACKENDS, "--metrics-config", "summary_latencies=true", "--metrics-config",
               "summary_quantiles=0.1:0.0.1,0.75:0.01", "--metrics-config",
               "counter_latencies=false").wait_ready()
    found = s.call_metrics()
    for quantile in ("0.1", "0.75"):
        label = f'model="m",version="1",quantile="{quantile}"'
        assert f"nv_inference_request_summary_us{{{label}}}" in found
    assert 'nv_cache_hit_summary_per_model_count{model="kept",version="1"}' in found
    assert 'nv_inference_request_summary_us_count{model="kept",version="1"}' not in found
    assert not any(k.startswith("nv_inference_request_duration_us") for k in found)


def test_figures_of_responses(tmp_path, launch):
    write_probe(tmp_path, "m", None, more=param("response_figures", "1"))
    s = launch(tmp_path, BACKENDS).wait_ready()
    for _ in range(3):
        assert ask(s, "m").status == 200
    def counts():
        stats = s.call("GET", "/v2/models/m/stats").json()["model_stats"][0]["response_stats"]
        return [{k: v["count"] for k, v in stats.get(i, {}).items()} for i in ("0", "1")]

    for _ in range(100):  # the backend reports when the answer is on its way already
        if counts()[1].get("empty_response") == 3:
            break
        time.sleep(0.02)
    assert counts() == [{"compute_infer": 3, "compute_output": 3, "success": 3, "fail": 0,
                         "empty_response": 0, "cancel": 0},
                        {"compute_infer": 3, "compute_output": 0, "success": 0, "fail": 0,
                         "empty_response": 3, "cancel": 0}]
