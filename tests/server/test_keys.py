# SPDX-License-Identifier: Apache-2.0
"""--api-key: inference and orders want it at every port, health and reading do not."""
import json
import os

import numpy as np
import pytest

from triton_server import Connection, Server, delay, infer_body, wait_until, write_model

grpc = pytest.importorskip("grpc")
client = pytest.importorskip("tritonclient.grpc")
from tritonclient.grpc import service_pb2 as pb  # noqa: E402
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub  # noqa: E402
from tritonclient.utils import InferenceServerException  # noqa: E402

KEY = "secret-key"
BEARER = {"Authorization": f"Bearer {KEY}"}
METADATA = (("authorization", f"Bearer {KEY}"),)
OPEN = ("/v2/health/live", "/v2/health/ready", "/v2", "/v2/models/echo", "/v2/models/echo/ready", "/v2/models/echo/config",
        "/v2/models/echo/stats", "/v2/models/stats", "/ui/stats", "/")
GUARDED = [("POST", "/v2/models/echo/infer"), ("POST", "/v2/models/echo/versions/1/infer"), ("POST", "/v2/models/echo/generate"),
           ("POST", "/v2/models/echo/versions/1/generate"), ("POST", "/v2/models/echo/generate_stream"),
           ("POST", "/v2/models/echo/versions/1/generate_stream"),
           ("POST", "/v2/repository/index"), ("POST", "/v2/repository/models/echo/load"),
           ("POST", "/v2/repository/models/echo/unload"), ("POST", "/v2/repository/r/models/echo/load"),
           ("POST", "/v2/trace/setting"), ("GET", "/v2/trace/setting"), ("POST", "/v2/models/echo/trace/setting"),
           ("POST", "/v2/logging"), ("GET", "/v2/logging")]
GUARDED += [(method, f"/v2/{kind}sharedmemory/{path}") for kind in ("system", "cuda")
            for method, path in (("GET", "status"), ("POST", "unregister"), ("POST", "region/r/register"),
                                 ("POST", "region/r/unregister"), ("GET", "region/r/status"))]
OPEN_CALLS = [("ServerLive", pb.ServerLiveRequest()), ("ServerReady", pb.ServerReadyRequest()),
              ("ModelReady", pb.ModelReadyRequest(name="echo")), ("ServerMetadata", pb.ServerMetadataRequest()),
              ("ModelMetadata", pb.ModelMetadataRequest(name="echo")), ("ModelConfig", pb.ModelConfigRequest(name="echo")),
              ("ModelStatistics", pb.ModelStatisticsRequest(name="echo"))]
GUARDED_CALLS = [("ModelInfer", pb.ModelInferRequest(model_name="echo")), ("RepositoryIndex", pb.RepositoryIndexRequest()),
                 ("RepositoryModelLoad", pb.RepositoryModelLoadRequest(model_name="echo")),
                 ("RepositoryModelUnload", pb.RepositoryModelUnloadRequest(model_name="other")),
                 ("SystemSharedMemoryStatus", pb.SystemSharedMemoryStatusRequest()),
                 ("SystemSharedMemoryRegister", pb.SystemSharedMemoryRegisterRequest(name="r", key="/none", byte_size=4)),
                 ("SystemSharedMemoryUnregister", pb.SystemSharedMemoryUnregisterRequest()),
                 ("CudaSharedMemoryStatus", pb.CudaSharedMemoryStatusRequest()),
                 ("CudaSharedMemoryRegister", pb.CudaSharedMemoryRegisterRequest(name="r")),
                 ("CudaSharedMemoryUnregister", pb.CudaSharedMemoryUnregisterRequest()),
                 ("TraceSetting", pb.TraceSettingRequest()), ("LogSettings", pb.LogSettingsRequest())]
WRONG = [None, "", "Bearer", "Bearer ", "Bearer secret-ke", "Bearer  secret-key", "Bearer secret-kez", "Bearer secret-key2",
         "Basic secret-key", KEY]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    write_model(folder, "echo")
    s = Server(tmp_path_factory.mktemp("log"), folder, "--model-control-mode=explicit", "--load-model=echo",
               f"--api-key={KEY}", "--grpc-address=127.0.0.1")
    try:
        yield s.wait_ready()
    finally:
        assert s.stop() == 0


@pytest.fixture(scope="module")
def stub(guarded):
    if "without the gRPC library" in guarded.log():
        pytest.skip("the server was built without gRPC")
    with grpc.insecure_channel(f"127.0.0.1:{guarded.grpc}") as channel:
        yield GRPCInferenceServiceStub(channel)


@pytest.mark.parametrize("path", OPEN)
def test_reading_is_open(guarded, path):
    assert guarded.call("GET", path).status == 200


def test_metrics_are_open(guarded):
    assert any(name.startswith("nv_") for name in guarded.call_metrics())


@pytest.mark.parametrize("method, path", GUARDED)
def test_v2_wants_the_key(guarded, method, path):
    body = {} if method == "POST" else b""
    for value in WRONG:
        fields = {} if value is None else {"Authorization": value}
        reply = guarded.call(method, path, body, fields)
        assert reply.status == 401 and reply.error() == "Incorrect API key provided, or none.", (value, reply.body)
        assert reply.fields["www-authenticate"] == "Bearer"
    assert guarded.call("GET", "/v2/models/echo/ready").status == 200  # no order was carried out


def test_with_the_key_v2_answers(guarded):
    reply = guarded.call("POST", "/v2/models/echo/infer", infer_body([3, 4]), BEARER)
    assert reply.status == 200 and reply.json()["outputs"][0]["data"] == [3, 4]
    for verb in ("unload", "load"):
        assert guarded.call("POST", f"/v2/repository/models/echo/{verb}", {}, BEARER).status == 200
    assert guarded.call("GET", "/v2/systemsharedmemory/status", b"", BEARER).status == 200
    assert guarded.call("POST", "/v2/logging", {"log_verbose_level": 0}, {"authorization": f"bearer {KEY}"}).status == 200


@pytest.mark.parametrize("name, request_", OPEN_CALLS)
def test_reading_by_grpc_is_open(stub, name, request_):
    getattr(stub, name)(request_, timeout=20)


@pytest.mark.parametrize("name, request_", GUARDED_CALLS)
def test_grpc_wants_the_key(stub, name, request_):
    for value in WRONG:
        with pytest.raises(grpc.RpcError) as e:
            getattr(stub, name)(request_, timeout=20, metadata=() if value is None else (("authorization", value),))
        assert e.value.code() == grpc.StatusCode.UNAUTHENTICATED, value
        assert e.value.details() == "Incorrect API key provided, or none."
    assert stub.ModelReady(pb.ModelReadyRequest(name="echo"), timeout=20).ready


def test_a_grpc_stream_wants_the_key(stub):
    request = pb.ModelInferRequest(model_name="echo", inputs=[pb.ModelInferRequest.InferInputTensor(
        name="INPUT0", datatype="INT32", shape=[1])], raw_input_contents=[np.array([7], np.int32).tobytes()])
    with pytest.raises(grpc.RpcError) as e:
        next(stub.ModelStreamInfer(iter([request]), timeout=20))
    assert e.value.code() == grpc.StatusCode.UNAUTHENTICATED
    answer = next(stub.ModelStreamInfer(iter([request]), timeout=20, metadata=METADATA))
    assert answer.infer_response.raw_output_contents == [np.array([7], np.int32).tobytes()]


def test_with_the_key_the_grpc_client_answers(guarded, stub):
    headers = {"authorization": f"Bearer {KEY}"}
    x = client.InferInput("INPUT0", [2], "INT32")
    x.set_data_from_numpy(np.array([5, 6], np.int32))
    with client.InferenceServerClient(f"127.0.0.1:{guarded.grpc}") as c:
        assert c.infer("echo", [x], headers=headers).as_numpy("OUTPUT0").tolist() == [5, 6]
        c.load_model("echo", headers=headers)
        with pytest.raises(InferenceServerException, match="API key"):
            c.load_model("echo")


def test_a_restricted_header_is_wanted_besides_the_key(launch, tmp_path):
    write_model(tmp_path / "models", "echo")
    s = launch(tmp_path / "models", "--api-key=a", "--http-restricted-api=inference:x-who=me").wait_ready()
    for fields, status in (({}, 403), ({"Authorization": "Bearer a"}, 403), ({"x-who": "me"}, 401),
                           ({"x-who": "mE", "Authorization": "Bearer a"}, 403),
                           ({"x-who": "me", "Authorization": "Bearer a"}, 200)):
        assert s.call("POST", "/v2/models/echo/infer", infer_body([1]), fields).status == status, fields


def test_each_key_has_its_requests_over_all_protocols(launch, tmp_path):
    write_model(tmp_path / "models", "echo")
    s = launch(tmp_path / "models", "--api-key=a", "--api-key=b", "--key-rate-limit=3", "--grpc-address=127.0.0.1").wait_ready()
    url = "/v2/models/echo/infer"

    def ask(key):
        return s.call("POST", url, infer_body([1]), {"x-api-key": key})

    with grpc.insecure_channel(f"127.0.0.1:{s.grpc}") as channel:
        stub = GRPCInferenceServiceStub(channel)
        request = pb.ModelInferRequest(model_name="echo", inputs=[pb.ModelInferRequest.InferInputTensor(
            name="INPUT0", datatype="INT32", shape=[1])], raw_input_contents=[np.array([7], np.int32).tobytes()])
        of = {k: (("authorization", f"Bearer {k}"),) for k in "ab"}
        assert ask("a").status == 200
        stub.ModelInfer(request, timeout=20, metadata=of["a"])
        assert next(stub.ModelStreamInfer(iter([request]), timeout=20, metadata=of["a"])).error_message == ""
        with pytest.raises(grpc.RpcError) as e:
            stub.ModelInfer(request, timeout=20, metadata=of["a"])
        assert e.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED and "requests for this key" in e.value.details()
        after = dict(e.value.trailing_metadata())
        assert 1 <= int(after["retry-after"]) <= 21 and int(after["grpc-retry-pushback-ms"]) == 1000 * int(after["retry-after"])
        answer = next(stub.ModelStreamInfer(iter([request]), timeout=20, metadata=of["a"]))
        assert "requests for this key" in answer.error_message
        for path in (url, "/v2/models/echo/generate", "/v2/models/echo/generate_stream"):
            reply = s.call("POST", path, infer_body([1]), {"x-api-key": "a"})
            assert reply.status == 429 and "Too many requests for this key." in reply.error(), path
            assert 1 <= int(reply.fields["retry-after"]) <= 21
        assert ask("b").status == 200  # another key has its own
        assert s.call("GET", "/v2/models/echo/ready").status == 200
        assert ask("c").status == 401


def test_each_key_has_its_requests_at_once_over_all_protocols(launch, tmp_path):
    write_model(tmp_path / "models", "echo")
    write_model(tmp_path / "models", "slow", extra=delay(60000))  # or until its client is gone
    s = launch(tmp_path / "models", "--api-key=a", "--api-key=b", "--key-max-concurrent=1", "--grpc-address=127.0.0.1").wait_ready()

    def ask(key):
        return s.call("POST", "/v2/models/echo/infer", infer_body([1]), {"x-api-key": key})

    def holds():
        return ask("a").status == 429

    with Connection(s.http) as c:
        body = json.dumps(infer_body([1]))
        c.send(f"POST /v2/models/slow/infer HTTP/1.1\r\nHost: localhost\r\nx-api-key: a\r\nContent-Length: {len(body)}\r\n\r\n{body}")
        wait_until(holds)
        reply = ask("a")
        assert "at once" in reply.error() and reply.fields["retry-after"] == "1"
        assert ask("b").status == 200
        with grpc.insecure_channel(f"127.0.0.1:{s.grpc}") as channel, pytest.raises(grpc.RpcError) as e:
            GRPCInferenceServiceStub(channel).ModelInfer(pb.ModelInferRequest(model_name="echo"), timeout=20,
                                                         metadata=(("authorization", "Bearer a"),))
        assert e.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED and "at once" in e.value.details()
    wait_until(lambda: not holds())  # a client that goes gives its place back


def test_a_key_of_the_file_can_have_limits_of_its_own(launch, tmp_path):
    write_model(tmp_path / "models", "echo")
    keys = tmp_path / "keys"
    keys.write_text("few rate-limit=1\nall\nmany\trate_limit=0 max-concurrent=5  \n")
    s = launch(tmp_path / "models", f"--api-key-file={keys}", "--key-rate-limit=2").wait_ready()

    def three(key):
        return [s.call("POST", "/v2/models/echo/infer", infer_body([1]), {"x-api-key": key}).status for _ in range(3)]

    assert three("few") == [200, 429, 429] and three("all") == [200, 200, 429] and three("many") == [200, 200, 200]
    keys.write_text("few rate-limit=0\nall\nmany rate-limit=1\n")
    wait_until(lambda: three("few") == [200, 200, 200])
    assert three("many") == [200, 429, 429]


@pytest.mark.parametrize("words", ["rate-limit", "rate-limit=", "rate-limit=-1", "rate-limit=2147483648", "rate-limit=1x", "x=1", "b",
                                   "max-concurrent=1 token-limit=" + "9" * 100])
def test_words_behind_a_key_that_are_no_limits_are_refused(launch, tmp_path, words):
    write_model(tmp_path / "models", "echo")
    (tmp_path / "keys").write_text(f"# remark\n\nSECRET {words}\n")
    s = launch(tmp_path / "models", f"--api-key-file={tmp_path / 'keys'}")
    assert s.wait() == 1
    assert "line 3: behind the key, expected rate-limit=N, token-limit=N or max-concurrent=N" in s.log() and "SECRET" not in s.log()


def test_without_keys_all_requests_share_the_limit(launch, tmp_path):
    write_model(tmp_path / "models", "echo")
    s = launch(tmp_path / "models", "--openai-rate-limit=2").wait_ready()  # the older name
    assert [s.call("POST", "/v2/models/echo/infer", infer_body([1])).status for _ in range(3)] == [200, 200, 429]


def test_a_file_of_keys_is_read_again_when_it_changes(launch, tmp_path):
    """Without a start in between; what is no file of keys leaves those that hold."""
    write_model(tmp_path / "models", "echo")
    keys = tmp_path / "keys"
    keys.write_text("one\ntwo\n")
    s = launch(tmp_path / "models", f"--api-key-file={keys}", "--api-key=fixed").wait_ready()

    def status(key):
        return s.call("POST", "/v2/models/echo/infer", infer_body([1]), {"Authorization": f"Bearer {key}"}).status

    def replace(text):
        (tmp_path / "new").write_text(text)
        os.replace(tmp_path / "new", keys)

    replace("two\nthree\n")
    wait_until(lambda: status("three") == 200)
    assert [status(k) for k in ("one", "two", "fixed", "four")] == [401, 200, 200, 401]
    assert "2 keys, 1 of them new, 1 of earlier ones do not hold any more" in s.log()
    replace("# none\n")
    wait_until(lambda: status("three") == 200 and "holds no key" in s.log())
    keys.unlink()
    assert [status(k) for k in ("two", "three", "one")] == [200, 200, 401]
    keys.write_text("one\n")
    wait_until(lambda: status("one") == 200)
    assert [status(k) for k in ("two", "fixed")] == [401, 200]


def test_keys_of_a_file_count_without_v1(launch, tmp_path):
    write_model(tmp_path / "models", "echo")
    keys = tmp_path / "keys"
    keys.write_text("# for tests\none\ntwo\r\n")
    s = launch(tmp_path / "models", f"--api-key-file={keys}", "--allow-openai=false").wait_ready()
    for key, status in (("one", 200), ("two", 200), ("# for tests", 401), ("three", 401)):
        reply = s.call("POST", "/v2/models/echo/infer", infer_body([1]), {"Authorization": f"Bearer {key}"})
        assert reply.status == status, key
