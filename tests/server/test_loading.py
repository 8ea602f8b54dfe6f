# SPDX-License-Identifier: Apache-2.0
"""Loading: at the same time, again after a failure, beside the old version, by other names."""
import base64
import threading
import time

import pytest

from triton_server import wait_until, write_model
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
        write_probe(tmp_path / "r", f"m{i}", None, more=param("init_delay_ms", 1000))
    write_chain(tmp_path / "r", "a_chain", "m2")
    write_chain(tmp_path / "r", "z_chain", "a_chain")
    s, one = start_seconds(launch, tmp_path / "r", 1)
    s.stop()
    s, four = start_seconds(launch, tmp_path / "r", 4)
    assert one > 4 and four < one - 1.5
    for model in ("m0", "m3", "a_chain", "z_chain"):
        assert ask(s, model).status == 200
    assert s.log().count("successfully loaded 'm2'") == 1


def test_other_orders_do_not_wait_for_a_slow_one(tmp_path, launch):
    write_probe(tmp_path / "r", "slow", None, more=param("init_delay_ms", 1500))
    write_probe(tmp_path / "r", "quick", None)
    s = launch(tmp_path / "r", BACKENDS, "--model-control-mode=explicit").wait_ready()
    replies = []
    threads = [threading.Thread(target=lambda: replies.append(load(s, "slow")))
               for _ in range(2)]  # the second waits for the first
    for t in threads:
        t.start()
    s.wait_log("loading: slow:1")
    assert load(s, "quick").status == 200
    index = s.call("POST", "/v2/repository/index", {}).json()
    assert {(m["name"], m.get("state")) for m in index} == {("quick", "READY"),
                                                            ("slow", "LOADING")}
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


def test_after_a_failure_orders_are_refused_as_before(tmp_path, launch):
    """Where models are not ordered (control mode none), what failed at the start is not for clients to bring."""
    write_probe(tmp_path / "r", "m", None, more=param("fail_once", tmp_path / "mark"))
    s = launch(tmp_path / "r", BACKENDS, "--exit-on-error=false", "--strict-readiness=false").wait_ready()
    assert (tmp_path / "mark").exists() and ask(s, "m").status == 404
    for model in ("m", "new"):
        config = '{"backend": "identity", "input": [], "output": []}'
        for body in ({}, {"parameters": {"config": config, "file:1/model.py": base64.b64encode(b"x").decode()}}):
            reply = load(s, model, body)
            assert reply.status == 503 and "not allowed" in reply.error()
    assert not (tmp_path / "r/new").exists() and not (tmp_path / "r/m/1/model.py").exists()
    assert ask(s, "m").status == 404
    (index,) = s.call("POST", "/v2/repository/index", {}).json()
    assert index["name"] == "m" and index["state"] == "UNAVAILABLE"


def test_failed_load_leaves_the_old_version_serving(tmp_path, launch):
    model = write_probe(tmp_path / "r", "m", None)
    s = launch(tmp_path / "r", BACKENDS, "--model-control-mode=explicit",
               "--load-model=m").wait_ready()
    text = (model / "config.pbtxt").read_text()
    (model / "config.pbtxt").write_text(text + param("fail_once", tmp_path / "mark"))
    wrong, right = [], []
    stop = threading.Event()

    def run():
        while not stop.is_set():
            (right if ask(s, "m").status == 200 else wrong).append(time.monotonic())
    t = threading.Thread(target=run)
    t.start()
    assert load(s, "m").status == 400
    assert load(s, "m").status == 200  # the second attempt replaces it
    n = len(right)
    wait_until(lambda: wrong or len(right) > n + 10)
    stop.set()
    t.join()
    assert not wrong


def test_an_ensemble_whose_reload_fails_follows_the_models_that_it_is_made_of(tmp_path, launch):
    write_probe(tmp_path / "r", "m", None)
    write_chain(tmp_path / "r", "chain", "m")
    s = launch(tmp_path / "r", BACKENDS, "--model-control-mode=explicit", "--load-model=chain").wait_ready()
    config = tmp_path / "r/chain/config.pbtxt"
    config.write_text(config.read_text().replace('"m"', '"absent"'))
    assert load(s, "chain").status == 400
    assert s.call("GET", "/v2/models/chain/ready").status == 200
    assert s.call("POST", "/v2/repository/models/m/unload", {}).status == 200
    wait_until(lambda: s.call("GET", "/v2/models/chain/ready").status != 200)


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


def write_typed(repository, name, dtype):
    write_model(repository, name, dtype)


def dtype_of(server, model):
    return server.call("GET", f"/v2/models/{model}").json()["inputs"][0]["datatype"]


def write_pipe(folder, name, step, dtype):
    model = folder / name
    (model / "1").mkdir(parents=True)
    (model / "config.pbtxt").write_text(f"""
platform: "ensemble"
input [ {{ name: "IN" data_type: {dtype} dims: [ -1 ] }} ]
output [ {{ name: "OUT" data_type: {dtype} dims: [ -1 ] }} ]
ensemble_scheduling {{ step [ {{ model_name: "{step}" model_version: -1
  input_map {{ key: "INPUT0" value: "IN" }} output_map {{ key: "OUTPUT0" value: "OUT" }} }} ] }}""")


def pipe_body(dtype):
    return {"inputs": [{"name": "IN", "datatype": dtype, "shape": [2], "data": [1, 2]}]}


def two_repositories(tmp_path):
    for folder, dtype in (("a", "TYPE_INT32"), ("b", "TYPE_FP32")):
        write_typed(tmp_path / folder, "twin", dtype)
        write_typed(tmp_path / folder, f"only_{folder}", dtype)
        write_pipe(tmp_path / folder, f"pipe_{folder}", "twin", dtype)
    return [str(tmp_path / "a"), f"--model-repository={tmp_path / 'b'}"]


def test_a_name_in_two_repositories_is_not_served(tmp_path, launch):
    args = two_repositories(tmp_path)
    s = launch(*args, "--exit-on-error=false").wait_ready()
    assert "failed to poll model 'twin': not unique across all model repositories" in s.log()
    assert s.call("GET", "/v2/models/twin/ready").status == 400
    assert dtype_of(s, "only_a") == "INT32" and dtype_of(s, "only_b") == "FP32"
    assert launch(*args).wait() == 1


def test_namespaces_keep_models_of_one_name_apart(tmp_path, launch):
    args = two_repositories(tmp_path)
    s = launch(*args, "--model-namespacing=true").wait_ready()
    reply = s.call("POST", "/v2/models/twin/infer", {"inputs": []})
    assert reply.status == 400 and reply.error() == (
        "There are 2 identifiers of model 'twin' in global map, model namespace must be provided "
        "to resolve ambiguity.")
    for pipe, dtype in (("pipe_a", "INT32"), ("pipe_b", "FP32")):
        assert s.call("POST", f"/v2/models/{pipe}/infer", pipe_body(dtype)).status == 200
    step = s.call("GET", "/v2/models/pipe_b/config").json()["ensemble_scheduling"]["step"][0]
    assert step["model_namespace"] == str(tmp_path / "b")
    for folder in "ab":
        label = f'nv_inference_count{{model="twin",namespace="{tmp_path / folder}",version="1"}}'
        assert s.wait_metrics(lambda m: m[label] == 1)[label] == 1
    index = s.call("POST", "/v2/repository/index").json()
    assert [m["name"] for m in index] == ["only_a", "only_b", "pipe_a", "pipe_b", "twin", "twin"]
    for folder in "ab":  # logs and tables tell the two apart
        assert f"] successfully loaded '{tmp_path / folder}::twin'" in s.log()
        assert f"| {tmp_path / folder}::twin " in s.log()


def test_steps_follow_when_their_namesake_comes_and_goes(tmp_path, launch):
    args = two_repositories(tmp_path)
    for folder in "ab":
        (tmp_path / folder / f"pipe_{folder}/config.pbtxt").unlink()
    write_pipe(tmp_path / "a", "pipe", "twin", "TYPE_INT32")
    (tmp_path / "b/twin/config.pbtxt").write_text(
        (tmp_path / "a/twin/config.pbtxt").read_text() + 'metric_tags { key: "at" value: "b" }')
    for folder in "ab":
        (tmp_path / folder / f"pipe_{folder}/1").rmdir()
        (tmp_path / folder / f"pipe_{folder}").rmdir()
    s = launch(*args, "--model-namespacing=true", "--model-control-mode=poll",
               "--repository-poll-secs=1").wait_ready()

    def served_by():
        before = s.call_metrics()
        assert s.call("POST", "/v2/models/pipe/infer", pipe_body("INT32")).status == 200

        def counted(after):
            return {"b" if '_at="b"' in k else "a" for k in after if "twin" in k
                    and k.startswith("nv_inference_count") and after[k] > before.get(k, 0)}
        return "".join(sorted(counted(s.wait_metrics(counted))))

    assert served_by() == "a"
    (tmp_path / "a/twin").rename(tmp_path / "aside")
    s.wait_log(f"successfully unloaded '{tmp_path / 'a'}::pipe'")
    assert served_by() == "b"
    assert s.call("GET", "/v2/models/twin").status == 200  # the only one left
    (tmp_path / "aside").rename(tmp_path / "a/twin")
    until = time.monotonic() + 20
    while served_by() != "a" and time.monotonic() < until:
        time.sleep(0.1)
    assert served_by() == "a"


def test_load_orders_mean_every_namespace(tmp_path, launch):
    args = two_repositories(tmp_path)
    s = launch(*args, "--model-namespacing=true", "--model-control-mode=explicit").wait_ready()
    assert load(s, "twin").status == 200
    assert "2 identifiers" in s.call("GET", "/v2/models/twin").error()
    assert s.call("POST", "/v2/repository/models/twin/unload", {}).status == 200
    assert s.call("GET", "/v2/models/twin/ready").status == 400
    assert load(s, "pipe_b").status == 200  # brings the one beside it
    assert dtype_of(s, "twin") == "FP32"
    assert s.call("POST", "/v2/repository/models/twin/unload", {}).status == 200
    s.wait_log(f"successfully unloaded '{tmp_path / 'b'}::pipe_b'")


@pytest.mark.parametrize("config", [
    '{ backend: "identity", "max_batch_size": 4 , input: [ %s ], output: [ %s ] }',
    "{ 'backend' : 'identity', 'input': [ %s ], 'output': [ %s ], parameters : "
    "{ 'it\\'s' : { string_value : 'a \"b\" c' } } }"])
def test_configurations_of_load_orders_may_lack_quotation_marks(tmp_path, launch, config):
    write_model(tmp_path, "m")
    s = launch(tmp_path, "--model-control-mode=explicit").wait_ready()
    tensor = '{ name : "%s", data_type: TYPE_FP32, dims: [ 1 ] }'.replace("TYPE_FP32", '"TYPE_FP32"')
    body = {"parameters": {"config": config % (tensor % "INPUT0", tensor % "OUTPUT0")}}
    assert load(s, "m", body).status == 200
    got = s.call("GET", "/v2/models/m/config").json()
    assert got["input"][0]["data_type"] == "TYPE_FP32"
    if "parameters" in config:
        assert got["parameters"] == {"it's": {"string_value": 'a "b" c'}}
    body["parameters"]["config"] = config[:-3]
    assert load(s, "m", body).status == 400
