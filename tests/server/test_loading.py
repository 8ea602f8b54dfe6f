"""Loading: at the same time, again after a failure, beside the old version, by other names."""
import base64
import threading
import time

import pytest

from conftest import write_model
from test_sequence import PROBE, ask, param, write_probe

pytestmark = pytest.mark.skipif(not (PROBE / "probe/libtriton_probe.so").exists(),
                                reason="make test-backends builds what this needs")
BACKENDS = f"--backend-directory={PROBE}"


def load(server, model, body=None):
    return server.call("POST", f"/v2/repository/models/{model}/load", body or {})


def write_chain(folder, name, step, tensor="SEEN"):
    model = folder / name
    (model / "1").mkdir(parents=True)
    (model / "config.pbtxt").write_text(f"""
platform: "ensemble"
input [ {{ name: "IN" data_type: TYPE_INT32 dims: [ 1 ] }} ]
output [ {{ name: "SEEN" data_type: TYPE_STRING dims: [ 1 ] }} ]
ensemble_scheduling {{ step [ {{ model_name: "{step}" model_version: -1
  input_map {{ key: "IN" value: "IN" }} output_map {{ key: "{tensor}" value: "SEEN" }} }} ] }}""")


def start_seconds(launch, folder, threads):
    began = time.monotonic()
    s = launch(folder, BACKENDS, f"--model-load-thread-count={threads}").wait_ready()
    return s, time.monotonic() - began


def test_models_load_at_the_same_time(tmp_path, launch):
    for i in range(4):
        write_probe(tmp_path / "r", f"m{i}", None, more=param("init_delay_ms", 500))
    write_chain(tmp_path / "r", "a_chain", "m2")
    write_chain(tmp_path / "r", "z_chain", "a_chain")
    s, one = start_seconds(launch, tmp_path / "r", 1)
    s.stop()
    s, four = start_seconds(launch, tmp_path / "r", 4)
    assert one > 2 and four < one - 1
    for model in ("m0", "m3", "a_chain", "z_chain"):
        assert ask(s, model).status == 200
    assert s.log().count("successfully loaded 'm2'") == 1


def test_other_orders_do_not_wait_for_a_slow_one(tmp_path, launch):
    write_probe(tmp_path / "r", "slow", None, more=param("init_delay_ms", 1500))
    write_probe(tmp_path / "r", "quick", None)
    s = launch(tmp_path / "r", BACKENDS, "--model-control-mode=explicit").wait_ready()
    began = time.monotonic()
    replies = []
    threads = [threading.Thread(target=lambda: replies.append(load(s, "slow")))
               for _ in range(2)]  # the second waits for the first
    for t in threads:
        t.start()
    time.sleep(0.2)
    assert load(s, "quick").status == 200
    index = s.call("POST", "/v2/repository/index", {}).json()
    assert {(m["name"], m.get("state")) for m in index} == {("quick", "READY"),
                                                            ("slow", "LOADING")}
    assert time.monotonic() - began < 1.2
    for t in threads:
        t.join()
    assert [r.status for r in replies] == [200, 200]
    assert s.stop() == 0


def test_stopping_waits_for_a_load(tmp_path, launch):
    write_probe(tmp_path / "r", "slow", None, more=param("init_delay_ms", 1000))
    s = launch(tmp_path / "r", BACKENDS, "--model-control-mode=explicit").wait_ready()
    t = threading.Thread(target=lambda: load(s, "slow"))
    t.start()
    s.wait_log("loading: slow:1")
    assert s.stop() == 0
    t.join()


def test_circles_of_ensembles_are_found(tmp_path, launch):
    write_chain(tmp_path / "r", "a", "b")
    write_chain(tmp_path / "r", "b", "c")
    write_chain(tmp_path / "r", "c", "a")
    write_probe(tmp_path / "r", "good", None)
    s = launch(tmp_path / "r", BACKENDS, "--exit-on-error=false", "--model-load-thread-count=4")
    s.wait_ready()
    assert "circular dependency between ensembles" in s.log()
    assert ask(s, "good").status == 200
    assert all(s.call("GET", f"/v2/models/{m}/ready").status != 200 for m in "abc")


@pytest.mark.parametrize("retries,status", [(0, 400), (1, 200)])
def test_loading_is_tried_again(tmp_path, launch, retries, status):
    write_probe(tmp_path / "r", "m", None, more=param("fail_once", tmp_path / "mark"))
    s = launch(tmp_path / "r", BACKENDS, "--model-control-mode=explicit",
               f"--model-load-retry-count={retries}").wait_ready()
    reply = load(s, "m")
    assert reply.status == status
    assert status == 200 or "probe: not this time" in reply.error()


def test_failed_load_leaves_the_old_version_serving(tmp_path, launch):
    model = write_probe(tmp_path / "r", "m", None)
    s = launch(tmp_path / "r", BACKENDS, "--model-control-mode=explicit",
               "--load-model=m").wait_ready()
    text = (model / "config.pbtxt").read_text()
    (model / "config.pbtxt").write_text(text + param("fail_once", tmp_path / "mark"))
    wrong = []
    stop = threading.Event()

    def run():
        while not stop.is_set():
            if ask(s, "m").status != 200:
                wrong.append(time.monotonic())
    t = threading.Thread(target=run)
    t.start()
    assert load(s, "m").status == 400
    assert load(s, "m").status == 200  # the second attempt replaces it
    time.sleep(0.1)
    stop.set()
    t.join()
    assert not wrong


def test_files_can_come_with_the_order(tmp_path, launch):
    write_model(tmp_path / "r", "m")
    s = launch(tmp_path / "r", "--model-control-mode=explicit").wait_ready()
    config = ('{"backend": "identity", "input": [{"name": "I", "data_type": "TYPE_INT32", '
              '"dims": [2]}], "output": [{"name": "O", "data_type": "TYPE_INT32", "dims": [2], '
              '"label_filename": "names"}]}')
    files = {"config": config,
             "file:names": base64.b64encode(b"zero\none\n").decode(),
             "file:5/data": base64.b64encode(b"x").decode()}
    assert load(s, "m", {"parameters": files}).status == 200
    assert s.call("GET", "/v2/models/m").json()["versions"] == ["5"]
    reply = s.call("POST", "/v2/models/m/infer", {
        "inputs": [{"name": "I", "datatype": "INT32", "shape": [2], "data": [1, 9]}],
        "outputs": [{"name": "O", "parameters": {"classification": 1}}]})
    assert reply.json()["outputs"][0]["data"] == ["9:1:one"]
    bad = load(s, "m", {"parameters": {"config": config, "file:../x": "eA=="}})
    assert bad.status == 400 and "must stay within model directory" in bad.error()


def test_configurations_have_names(tmp_path, launch):
    write_model(tmp_path / "r", "m")
    (tmp_path / "r/m/configs").mkdir()
    text = (tmp_path / "r/m/config.pbtxt").read_text()
    (tmp_path / "r/m/configs/other.pbtxt").write_text(text + "metric_tags { key: 'a' value: 'b' }")
    s = launch(tmp_path / "r", "--model-config-name=other").wait_ready()
    assert s.call("GET", "/v2/models/m/config").json()["metric_tags"] == {"a": "b"}
