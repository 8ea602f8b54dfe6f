# SPDX-License-Identifier: Apache-2.0
"""The ports of SageMaker and Vertex AI."""
import json
import struct

import pytest

from ports import free_ports
from triton_server import Connection, infer_body, wait_until, write_model

SAGEMAKER = "application/vnd.sagemaker-triton.binary+json;json-header-size="
VERTEX = "application/vnd.vertex-ai-triton.binary+json;json-header-size="
VARIABLES = ("SAGEMAKER_TRITON_DEFAULT_MODEL_NAME", "SAGEMAKER_TRITON_PING_MODE", "SAGEMAKER_TRITON_INFERENCE_TYPE",
             "AIP_MODE", "AIP_HTTP_PORT", "AIP_PREDICT_ROUTE", "AIP_HEALTH_ROUTE")


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    for v in VARIABLES:
        monkeypatch.delenv(v, raising=False)


@pytest.fixture
def models(tmp_path):
    write_model(tmp_path / "models", "one")
    write_model(tmp_path / "models", "two")
    return tmp_path / "models"


class Port:
    def __init__(self, server, port):
        self.server, self.port = server, port

    def call(self, *args, **kwargs):
        with Connection(self.port) as c:
            return c.call(*args, **kwargs)


@pytest.fixture
def sagemaker(launch, models, monkeypatch):
    def start(*args, repository=models, **variables):
        for k, v in variables.items():
            monkeypatch.setenv(f"SAGEMAKER_TRITON_{k}", v)
        (port,) = free_ports(1)
        return Port(launch(repository, "--allow-sagemaker=true", f"--sagemaker-port={port}", *args).wait_ready(), port)
    return start


@pytest.fixture
def vertex(launch, models, monkeypatch):
    def start(*args):
        monkeypatch.setenv("AIP_PREDICT_ROUTE", "/some/predict")
        monkeypatch.setenv("AIP_HEALTH_ROUTE", "/some/health")
        (port,) = free_ports(1)
        return Port(launch(models, "--allow-vertex-ai=true", f"--vertex-ai-port={port}", *args).wait_ready(), port)
    return start


def binary_body(values):
    head = json.dumps({"inputs": [{"name": "INPUT0", "datatype": "INT32", "shape": [len(values)],
                                   "parameters": {"binary_data_size": 4 * len(values)}}],
                       "parameters": {"binary_data_output": True}}).encode()
    return head + struct.pack(f"<{len(values)}i", *values), len(head)


def check_binary(port, path, kind, fields=None):
    body, n = binary_body([7, 8])
    reply = port.call("POST", path, body, {"Content-Type": f"{kind}{n}", "Accept-Encoding": "gzip", **(fields or {})})
    assert reply.status == 200, reply.body
    assert reply.fields["content-type"].startswith(kind) and "inference-header-content-length" not in reply.fields
    at = int(reply.fields["content-type"][len(kind):])
    assert json.loads(reply.body[:at])["outputs"][0]["name"] == "OUTPUT0"
    assert struct.unpack("<2i", reply.body[at:]) == (7, 8)
    for wrong in (f"{kind}{len(body) + 1}", f"{kind}-1", f"{kind}x", f"{kind}", f"text/plain; {kind}{n}"):
        reply = port.call("POST", path, body, {"Content-Type": wrong, **(fields or {})})
        assert reply.status == 400 and ("header size" in reply.error() or "Unable to parse" in reply.error()
                                        or "expect MIME type" in reply.error())


def test_one_model_behind_sagemaker(sagemaker):
    p = sagemaker(DEFAULT_MODEL_NAME="one")
    assert p.call("GET", "/ping").status == 200 and p.call("POST", "/ping").status == 405
    assert p.call("POST", "/invocations", infer_body([3])).json()["outputs"][0]["data"] == [3]
    check_binary(p, "/invocations", SAGEMAKER)
    assert p.call("GET", "/invocations").status == 405
    assert p.call("GET", "/v2").status == 404  # other paths belong to the HTTP port
    assert p.server.call("GET", "/invocations").status == 404  # and these to this one
    assert "Started Sagemaker HTTPService at 127.0.0.1:" in p.server.log()
    assert p.server.stop() == 0


def test_pings_say_ready_or_live(sagemaker, models):
    (models / "bad").mkdir()
    (models / "bad/1").mkdir()
    (models / "bad/config.pbtxt").write_text('name: "bad" backend: "nothing"')
    assert sagemaker("--exit-on-error=false").call("GET", "/ping").status == 400
    assert sagemaker("--exit-on-error=false", PING_MODE="live").call("GET", "/ping").status == 200


def test_without_a_default_model_invocations_say_so(sagemaker):
    reply = sagemaker().call("POST", "/invocations", infer_body([3]))
    assert reply.status == 404 and "unspecified_SAGEMAKER_TRITON_DEFAULT_MODEL_NAME" in reply.error()


@pytest.mark.parametrize("variables,words", [
    ({"PING_MODE": "other"}, "SAGEMAKER_TRITON_PING_MODE must be ready or live, got 'other'"),
    ({"INFERENCE_TYPE": "other"}, "Server has invalid inference type 'other'. Must be one of: infer, generate"),
])
def test_wrong_variables_stop_the_start(launch, models, monkeypatch, variables, words):
    for k, v in variables.items():
        monkeypatch.setenv(f"SAGEMAKER_TRITON_{k}", v)
    s = launch(models, "--allow-sagemaker=true", "--sagemaker-port=0")
    assert s.wait(60) == 1 and words in s.log()


def load(port, name, url, target=None):
    fields = {"Content-Type": "application/json"}
    if target:
        fields["X-Amzn-SageMaker-Target-Model"] = target
    return port.call("POST", "/models", {"model_name": name, "url": str(url)}, fields)


@pytest.fixture
def many(sagemaker, tmp_path):
    (tmp_path / "empty").mkdir()
    return sagemaker("--model-control-mode=explicit", repository=tmp_path / "empty")


def test_many_models_behind_sagemaker(many, tmp_path):
    for n in ("a", "b"):
        write_model(tmp_path / f"opt/{n}/model", "inner")
    write_model(tmp_path / "opt/c", "model")  # the configuration lies in the folder itself
    config = tmp_path / "opt/c/model/config.pbtxt"
    config.write_text(config.read_text().replace('name: "model"', ""))
    for n in ("a", "b"):
        config = tmp_path / f"opt/{n}/model/inner/config.pbtxt"
        config.write_text(config.read_text().replace('name: "inner"', ""))
    assert many.call("GET", "/models").json() == {"models": []}
    assert many.call("GET", "/models/hash-a").status == 404
    assert many.call("POST", "/models/hash-a/invoke", infer_body([1])).status == 404
    url = {n: tmp_path / f"opt/{n}/model" for n in "abc"}
    for n in "abc":
        assert load(many, f"hash-{n}", url[n], target=f"{n}.tar.gz").status == 200, many.server.log()
        assert load(many, f"hash-{n}", url[n]).status == 409
        assert many.call("POST", f"/models/hash-{n}/invoke", infer_body([ord(n)])).json()["model_name"] == f"{n}.tar.gz"
    check_binary(many, "/models/hash-b/invoke", SAGEMAKER)
    assert many.call("GET", "/models/hash-a").json() == {"modelName": "hash-a", "modelUrl": str(url["a"])}
    listed = {m["modelName"]: m["modelUrl"] for m in many.call("GET", "/models").json()["models"]}
    assert listed == {"hash-a": str(url["a"]), "hash-b": str(url["b"]), "hash-c": str(tmp_path / "opt/c")}
    assert many.call("DELETE", "/models/hash-a").status == 200
    assert many.call("DELETE", "/models/hash-a").status == 404
    assert many.call("POST", "/models/hash-a/invoke", infer_body([1])).status == 404
    assert load(many, "hash-a", url["a"]).status == 200  # again, without a target's name
    assert many.call("POST", "/models/hash-a/invoke", infer_body([1])).json()["model_name"] == "hash-a"
    assert many.server.stop() == 0


@pytest.mark.parametrize("body,words", [
    ({"url": "/tmp"}, '"model_name" is missing'), ({"model_name": "x"}, '"url" must be the path of a folder'),
    ({"model_name": "x", "url": "/nowhere"}, '"url" must be the path of a folder'),
    ({"model_name": "x", "url": "tmp"}, '"url" must be the path of a folder'),
    ({"model_name": "x", "url": "/proc/self"}, "cannot be below /dev, /proc or /sys"),
    ({"model_name": "x", "url": "/tmp/../sys/kernel"}, "cannot be below /dev, /proc or /sys"),
    ({"model_name": "x", "url": "EMPTY"}, "has no folder of a model"),
    ({"model_name": "../x", "url": "MODELS"}, "invalid mapping of folder"),
    (b"{", "failed to parse"),
])
def test_loads_that_are_wrong(many, models, tmp_path, body, words):
    if isinstance(body, dict) and body.get("url") in ("EMPTY", "MODELS"):
        body = body | {"url": str(tmp_path / "empty" if body["url"] == "EMPTY" else models)}
    reply = many.call("POST", "/models", body, {"Content-Type": "application/json"})
    assert reply.status == 400 and words in reply.error(), reply.body
    assert many.call("GET", "/models").json() == {"models": []}


def test_no_memory_for_a_model_is_507(many, tmp_path):
    write_model(tmp_path / "opt/model", "x", extra='parameters { key: "fail" value: { string_value: "" } }')
    config = tmp_path / "opt/model/x/config.pbtxt"
    config.write_text(config.read_text().replace('backend: "identity"', 'backend: "CUDA out of memory"'))
    reply = load(many, "x", tmp_path / "opt/model")
    assert reply.status == 507 and "CUDA out of memory" in reply.error()


def test_keys_guard_these_ports_too(sagemaker, monkeypatch):
    p = sagemaker("--api-key=secret", DEFAULT_MODEL_NAME="one")
    assert p.call("GET", "/ping").status == 200
    assert p.call("POST", "/invocations", infer_body([3])).status == 401
    assert p.call("POST", "/invocations", infer_body([3]), {"Authorization": "Bearer secret"}).status == 200
    assert p.call("GET", "/models").status == 401


def test_vertex_ai_predicts_with_the_default_model(vertex):
    p = vertex("--vertex-ai-default-model=two")
    assert p.call("GET", "/some/health").status == 200
    assert p.call("POST", "/some/predict", infer_body([3])).json()["model_name"] == "two"
    check_binary(p, "/some/predict", VERTEX)
    assert p.call("GET", "/some/predict").status == 405 and p.call("GET", "/other").status == 404
    assert p.server.stop() == 0


def test_vertex_ai_redirects(vertex):
    p = vertex("--vertex-ai-default-model=two", "--http-restricted-api=statistics:x-who=me")

    def ask(to, body=b"", **fields):
        return p.call("POST", "/some/predict", body, {"X-Vertex-Ai-Triton-Redirect": to, **fields})
    assert ask("v2/models/one/infer", infer_body([3])).json()["model_name"] == "one"
    assert ask("v2/models/one/versions/1/infer", infer_body([3])).status == 200
    assert ask("v2").json()["name"] == "triton" and ask("v2/health/ready").status == 200
    assert ask("v2/models/one").json()["name"] == "one" and ask("v2/models/one/config").json()["backend"] == "identity"
    assert "nv_inference_request_success" in ask("metrics").body.decode()
    assert ask("v2/repository/index").status == 200 and ask("v2/models/one/ready").status == 200
    assert ask("v2/systemsharedmemory/status").json() == []
    assert ask("v2/models/one/stats").status == 403
    assert ask("v2/models/one/stats", **{"x-who": "me"}).json()["model_stats"]
    assert ask("v2/other").status == 404 and ask("").status == 404
    check_binary(p, "/some/predict", VERTEX, {"X-Vertex-Ai-Triton-Redirect": "v2/models/one/infer"})


def test_vertex_ai_needs_its_routes_and_one_model(launch, models, monkeypatch):
    def refused(*args):
        s = launch(models, "--allow-vertex-ai=true", "--vertex-ai-port=0", *args)
        assert s.wait(60) == 1
        return s.log()
    assert "API_PREDICT_ROUTE is not defined for Vertex AI endpoint" in refused()
    monkeypatch.setenv("AIP_PREDICT_ROUTE", "/predict")
    assert "AIP_HEALTH_ROUTE is not defined for Vertex AI endpoint" in refused()
    monkeypatch.setenv("AIP_HEALTH_ROUTE", "health")
    assert "AIP_HEALTH_ROUTE must be a path that begins with '/', got 'health'" in refused()
    monkeypatch.setenv("AIP_HEALTH_ROUTE", "/health")
    assert "Expect the model repository contains only a single model" in refused()
    assert "Expect the default model 'three' is loaded" in refused("--vertex-ai-default-model=three")


def test_the_environment_of_vertex_ai_turns_it_on(launch, models, monkeypatch):
    (port,) = free_ports(1)
    for k, v in (("MODE", "PREDICTION"), ("HTTP_PORT", str(port)), ("PREDICT_ROUTE", "/p"), ("HEALTH_ROUTE", "/h")):
        monkeypatch.setenv(f"AIP_{k}", v)
    s = launch(models, "--vertex-ai-default-model=one").wait_ready()
    assert Port(s, port).call("GET", "/h").status == 200
    assert "Started HTTPService" not in s.log() and "Started GRPCInferenceService" not in s.log()
    assert s.stop() == 0


def test_ports_outside_the_safe_range_are_refused(launch, models):
    s = launch(models, "--allow-sagemaker=true", "--sagemaker-port=0", "--sagemaker-safe-port-range=1-2")
    assert s.wait(60) == 1 and "allowed port range is [1, 2]" in s.log()
    s = launch(models, "--sagemaker-safe-port-range=1024-65535").wait_ready()
    assert s.stop() == 0
    for value in ("5", "9-1", "-", "a-b", "1-70000"):
        s = launch(models, f"--sagemaker-safe-port-range={value}")
        assert s.wait(60) == 1 and "sagemaker-safe-port-range" in s.log()


def test_the_port_drains(sagemaker):
    p = sagemaker(DEFAULT_MODEL_NAME="one")
    with Connection(p.port) as c:
        assert c.call("GET", "/ping").status == 200
        p.server.signal()
        wait_until(c.is_closed)
    assert p.server.wait() == 0
