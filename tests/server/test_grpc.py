# SPDX-License-Identifier: Apache-2.0
"""The gRPC service, asked by the public client and by bare gRPC calls."""
import concurrent.futures
import json
import mmap
import os
import pathlib
import queue
import threading
import time

import numpy as np
import pytest

from triton_server import Server, delay, wait_until, write_model

grpc = pytest.importorskip("grpc")
client = pytest.importorskip("tritonclient.grpc")
from tritonclient.grpc import service_pb2 as pb  # noqa: E402
from tritonclient.grpc import service_pb2_grpc  # noqa: E402
from tritonclient.utils import InferenceServerException  # noqa: E402

DECOUPLED = "model_transaction_policy { decoupled: true }\n"


def responses(n):
    return DECOUPLED + f'parameters {{ key: "responses" value: {{ string_value: "{n}" }} }}\n'


def make_repository(folder):
    write_model(folder, "ident", count=2)
    for name, dtype in (("text", "TYPE_STRING"), ("bool", "TYPE_BOOL"), ("int8", "TYPE_INT8"),
                        ("int16", "TYPE_INT16"), ("int64", "TYPE_INT64"), ("uint8", "TYPE_UINT8"),
                        ("uint16", "TYPE_UINT16"), ("uint32", "TYPE_UINT32"),
                        ("uint64", "TYPE_UINT64"), ("fp32", "TYPE_FP32"), ("fp64", "TYPE_FP64"),
                        ("half", "TYPE_FP16")):
        write_model(folder, name, dtype)
    write_model(folder, "two", extra='input [ { name: "INPUT1" data_type: TYPE_INT32 dims: [ -1 ] } ]\n'
                'output [ { name: "OUTPUT1" data_type: TYPE_INT32 dims: [ -1 ] } ]\n')
    write_model(folder, "slow", count=4, extra=delay(400))
    write_model(folder, "endless", count=4, extra=delay(60000))
    write_model(folder, "three", extra=responses(3))
    write_model(folder, "none", extra=responses(0))
    write_model(folder, "surplus", extra=responses(3).replace(DECOUPLED, ""))
    return folder


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    return make_repository(tmp_path_factory.mktemp("grpc-repository"))


def start(folder, repository, *args):
    s = Server(folder, repository, "--grpc-address=127.0.0.1", *args).wait_ready()
    if "without the gRPC library" in s.log():
        s.stop()
        pytest.skip("the server was built without gRPC")
    return s


@pytest.fixture(scope="module")
def server(repository, tmp_path_factory):
    s = start(tmp_path_factory.mktemp("grpc-log"), repository)
    try:
        yield s
    finally:
        code = s.stop()
    assert code == 0, s.log()


@pytest.fixture
def c(server):
    with client.InferenceServerClient(f"127.0.0.1:{server.grpc}") as cl:
        yield cl


@pytest.fixture
def stub(server):
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc}") as channel:
        yield service_pb2_grpc.GRPCInferenceServiceStub(channel)


def tensor(values, dtype="INT32", name="INPUT0"):
    array = np.asarray(values)
    t = client.InferInput(name, list(array.shape), dtype)
    t.set_data_from_numpy(array)
    return t


def ints(*values):
    return [tensor(np.array(values, np.int32))]


def request(model, values=(1, 2), **fields):
    r = pb.ModelInferRequest(model_name=model, **fields)
    i = r.inputs.add(name="INPUT0", datatype="INT32", shape=[len(values)])
    i.contents.int_contents.extend(values)
    return r


def contents_request(model, dtype, field, values):
    r = pb.ModelInferRequest(model_name=model)
    i = r.inputs.add(name="INPUT0", datatype=dtype, shape=[len(values)])
    getattr(i.contents, field).extend(values)
    return r


def refused(call, code):
    with pytest.raises(grpc.RpcError) as e:
        call()
    assert e.value.code() == code, e.value
    return e.value.details()


# ---- health, metadata, settings ----


def test_start_line_names_the_address(server):
    assert f"Started GRPCInferenceService at 127.0.0.1:{server.grpc}" in server.log()


def test_health(c):
    assert c.is_server_live() and c.is_server_ready()
    assert c.is_model_ready("ident") and c.is_model_ready("ident", "1")
    assert not c.is_model_ready("nobody")


def test_standard_health_service(server):
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc}") as channel:
        check = channel.unary_unary("/grpc.health.v1.Health/Check")
        assert check(b"") == b"\x08\x01"  # status: SERVING
        name = b"inference.GRPCInferenceService"
        assert check(b"\x0a" + bytes([len(name)]) + name) == b"\x08\x01"
        assert check(b"\x0a\x01x") == b"\x08\x01"  # any service, as in Triton


def test_unknown_method_is_unimplemented(server):
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc}") as channel:
        for _ in range(3):
            refused(lambda: channel.unary_unary("/inference.GRPCInferenceService/Nothing")(b""),
                    grpc.StatusCode.UNIMPLEMENTED)


def test_garbage_is_an_internal_error(server):
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc}") as channel:
        for method in ("ModelInfer", "ModelConfig", "LogSettings"):
            call = channel.unary_unary(f"/inference.GRPCInferenceService/{method}")
            for bad in (b"\x0a\x7fshort", b"\xff" * 40, b"\x0a\xff\xff\xff\xff\x0f"):
                refused(lambda: call(bad), grpc.StatusCode.INTERNAL)


def test_server_metadata(c, server):
    m = c.get_server_metadata()
    http = server.call("GET", "/v2").json()
    assert (m.name, m.version, list(m.extensions)) == (http["name"], http["version"],
                                                       http["extensions"])


def test_model_metadata(c):
    m = c.get_model_metadata("text")
    assert m.name == "text" and list(m.versions) == ["1"]
    assert m.inputs[0].name == "INPUT0" and m.inputs[0].datatype == "BYTES"
    assert list(m.inputs[0].shape) == [-1] and m.outputs[0].name == "OUTPUT0"
    with pytest.raises(InferenceServerException, match="nobody"):
        c.get_model_metadata("nobody")


def test_model_config_is_the_one_that_http_shows(c, server):
    config = c.get_model_config("three", as_json=True)["config"]
    http = server.call("GET", "/v2/models/three/config").json()
    assert config["name"] == "three" and config["backend"] == "identity"
    assert config["model_transaction_policy"] == {"decoupled": True}
    assert config["parameters"] == http["parameters"]
    assert config["input"][0]["data_type"] == http["input"][0]["data_type"]
    assert [g["kind"] for g in config["instance_group"]] == ["KIND_CPU"]


def test_statistics_count_inferences(c):
    def count():
        s = c.get_inference_statistics("int64").model_stats[0]
        return s.inference_count, s.inference_stats.success.count, s.execution_count
    before = count()
    for _ in range(3):
        c.infer("int64", [tensor(np.array([5], np.int64), "INT64")])
    assert [b - a for a, b in zip(before, count())] == [3, 3, 3]
    names = {s.name for s in c.get_inference_statistics().model_stats}
    assert {"ident", "text", "slow"} <= names


def test_repository_index(c):
    models = {m.name: m for m in c.get_model_repository_index().models}
    assert models["ident"].state == "READY" and models["ident"].version == "1"


def test_bad_version_is_refused(stub):
    for version in ("x", "0", "-1", "1.0"):
        details = refused(lambda: stub.ModelReady(pb.ModelReadyRequest(name="ident",
                                                                       version=version)),
                          grpc.StatusCode.INVALID_ARGUMENT)
        assert f"version string '{version}'" in details


def test_log_settings(c, server):
    before = c.get_log_settings(as_json=True)["settings"]
    assert before["log_info"]["bool_param"] is True
    after = c.update_log_settings({"log_verbose_level": 2, "log_format": "ISO8601"}, as_json=True)
    assert after["settings"]["log_verbose_level"]["uint32_param"] == 2
    assert server.call("GET", "/v2/logging").json()["log_format"] == "ISO8601"
    c.update_log_settings({"log_verbose_level": 0, "log_format": "default"})
    with pytest.raises(InferenceServerException, match="log file location"):
        c.update_log_settings({"log_file": "/tmp/x"})
    c.update_log_settings({"log_info": None})  # no value: no change
    c.update_log_settings({"log_color": True})  # nothing by that name: no change
    assert c.get_log_settings(as_json=True)["settings"] == before


def test_log_settings_of_the_wrong_type_are_refused(stub):
    r = pb.LogSettingsRequest()
    r.settings["log_info"].string_param = "yes"
    assert "log_info" in refused(lambda: stub.LogSettings(r), grpc.StatusCode.INVALID_ARGUMENT)


def test_trace_settings(c, server):
    before = c.get_trace_settings(as_json=True)["settings"]
    assert before["trace_level"]["value"] == ["OFF"]
    after = c.update_trace_settings(settings={"trace_rate": "7"}, as_json=True)["settings"]
    assert after["trace_rate"]["value"] == ["7"]
    assert server.call("GET", "/v2/trace/setting").json()["trace_rate"] == "7"
    c.update_trace_settings(settings={"trace_rate": before["trace_rate"]["value"][0]})
    with pytest.raises(InferenceServerException, match="unknown model : nobody"):
        c.get_trace_settings("nobody")


def test_requests_are_traced(launch, repository, tmp_path):
    path = tmp_path / "trace.json"
    s = start(tmp_path, repository, "--trace-config=level=TIMESTAMPS", "--trace-config=rate=1",
              f"--trace-config=triton,file={path}")
    with client.InferenceServerClient(f"127.0.0.1:{s.grpc}") as cl:
        cl.infer("ident", ints(1))
    assert s.stop() == 0
    names = {t["name"] for r in json.loads(path.read_text()) for t in r.get("timestamps", [])}
    assert {"REQUEST_START", "REQUEST_END", "INFER_RESPONSE_COMPLETE"} <= names


# ---- unary inference ----


def test_raw_contents_come_back(c):
    r = c.infer("ident", ints(1, -2, 3), request_id="the id")
    assert r.as_numpy("OUTPUT0").tolist() == [1, -2, 3]
    m = r.get_response()
    assert (m.id, m.model_name, m.model_version) == ("the id", "ident", "1")
    assert m.outputs[0].datatype == "INT32" and list(m.outputs[0].shape) == [3]


@pytest.mark.parametrize("n", [0, 1, 2047, 2049, 100_003, 262_145, 5_000_011])
def test_any_size_comes_back(c, n):
    x = np.arange(n, dtype=np.int32) * 7
    assert np.array_equal(c.infer("ident", [tensor(x)]).as_numpy("OUTPUT0"), x)


@pytest.mark.parametrize("packed", [None, "gzip", "deflate"])
def test_two_large_inputs_come_back(c, packed):
    x = [np.arange(n, dtype=np.int32) * k for n, k in ((1_000_003, 3), (700_001, -5))]
    r = c.infer("two", [tensor(v, name=f"INPUT{k}") for k, v in enumerate(x)],
                compression_algorithm=packed)
    assert all(np.array_equal(r.as_numpy(f"OUTPUT{k}"), v) for k, v in enumerate(x))


def test_large_strings_come_back(c):
    """So many that their lengths, too, lie across what gRPC receives at a time."""
    x = np.array([bytes([k % 251]) * (k % 4) for k in range(500_000)], np.object_)
    assert c.infer("text", [tensor(x, "BYTES")]).as_numpy("OUTPUT0").tolist() == x.tolist()


def test_a_large_tensor_of_the_wrong_size_is_refused(stub):
    r = pb.ModelInferRequest(model_name="ident", raw_input_contents=[bytes(4_000_001)])
    r.inputs.add(name="INPUT0", datatype="INT32", shape=[1_000_000])
    assert "4000001" in refused(lambda: stub.ModelInfer(r), grpc.StatusCode.INVALID_ARGUMENT)


def test_strings_come_back(c):
    x = np.array([b"", b"abc", "\u00e9\u4e2d".encode(), b"\x00\xff"], np.object_)
    r = c.infer("text", [tensor(x, "BYTES")])
    assert r.as_numpy("OUTPUT0").tolist() == x.tolist()


@pytest.mark.parametrize("model,dtype,field,values", [
    ("bool", "BOOL", "bool_contents", [True, False, True]),
    ("int8", "INT8", "int_contents", [-128, 0, 127]),
    ("int16", "INT16", "int_contents", [-32768, 5, 32767]),
    ("ident", "INT32", "int_contents", [-2**31, 2**31 - 1]),
    ("int64", "INT64", "int64_contents", [-2**63, 2**63 - 1]),
    ("uint8", "UINT8", "uint_contents", [0, 255]),
    ("uint16", "UINT16", "uint_contents", [0, 65535]),
    ("uint32", "UINT32", "uint_contents", [0, 2**32 - 1]),
    ("uint64", "UINT64", "uint64_contents", [0, 2**64 - 1]),
    ("fp32", "FP32", "fp32_contents", [0.5, -1.25]),
    ("fp64", "FP64", "fp64_contents", [0.1, 1e300]),
    ("text", "BYTES", "bytes_contents", [b"", b"one", b"two\x00"]),
])
def test_typed_contents_become_tensors(stub, model, dtype, field, values):
    m = stub.ModelInfer(contents_request(model, dtype, field, values))
    assert client.InferResult(m).as_numpy("OUTPUT0").tolist() == values


@pytest.mark.parametrize("model,dtype,field,values", [
    ("int8", "INT8", "int_contents", [128]), ("int16", "INT16", "int_contents", [-32769]),
    ("uint8", "UINT8", "uint_contents", [256]), ("uint16", "UINT16", "uint_contents", [65536]),
])
def test_a_number_that_does_not_fit_is_refused(stub, model, dtype, field, values):
    details = refused(lambda: stub.ModelInfer(contents_request(model, dtype, field, values)),
                      grpc.StatusCode.INVALID_ARGUMENT)
    assert "does not fit" in details


def test_contents_of_another_type_are_refused(stub):
    details = refused(lambda: stub.ModelInfer(contents_request("ident", "INT32", "fp32_contents",
                                                               [1.0])),
                      grpc.StatusCode.INVALID_ARGUMENT)
    assert "unexpected explicit tensor data for input tensor 'INPUT0' for model 'ident'" in details
    assert "of type 'FP32', expected datatype 'INT32'" in details
    r = contents_request("ident", "INT32", "int_contents", [1])
    r.inputs[0].contents.int64_contents.append(1)
    assert "already supplied" in refused(lambda: stub.ModelInfer(r),
                                         grpc.StatusCode.INVALID_ARGUMENT)


def test_raw_and_typed_contents_exclude_each_other(stub):
    r = request("ident")
    r.raw_input_contents.append(b"1234")
    assert "contents field must not be specified" in refused(lambda: stub.ModelInfer(r),
                                                             grpc.StatusCode.INVALID_ARGUMENT)


def test_input_without_data_is_refused(stub):
    r = request("ident")
    r.inputs[0].ClearField("contents")
    assert "unable to find data for input tensor 'INPUT0' for model 'ident'" in refused(
        lambda: stub.ModelInfer(r), grpc.StatusCode.INVALID_ARGUMENT)


def test_wrong_input_name_and_unknown_model(stub):
    r = request("ident")
    r.inputs[0].name = "OTHER"
    assert "OTHER" in refused(lambda: stub.ModelInfer(r), grpc.StatusCode.INVALID_ARGUMENT)
    assert "'nobody' is not found" in refused(lambda: stub.ModelInfer(request("nobody")),
                                              grpc.StatusCode.NOT_FOUND)


def test_decoupled_model_is_unimplemented_in_unary(stub):
    details = refused(lambda: stub.ModelInfer(request("three")), grpc.StatusCode.UNIMPLEMENTED)
    assert details == ("ModelInfer RPC doesn't support models with decoupled transaction policy")


@pytest.mark.parametrize("name,kind,want", [
    ("sequence_start", "int64_param", "expected bool_param."),
    ("sequence_id", "bool_param", "expected int64_param or string_param."),
    ("priority", "string_param", "expected int64_param or uint64_param."),
    ("timeout", "bool_param", "expected int64_param."),
    ("triton_enable_empty_final_response", "int64_param", "expected bool_param."),
])
def test_parameters_of_the_wrong_type_are_refused(stub, name, kind, want):
    r = request("ident")
    value = {"int64_param": 1, "bool_param": True, "string_param": "x"}[kind]
    setattr(r.parameters[name], kind, value)
    details = refused(lambda: stub.ModelInfer(r), grpc.StatusCode.INVALID_ARGUMENT)
    assert details == f"invalid value type for '{name}' parameter, {want}"


def test_reserved_parameter_names_are_refused(stub):
    r = request("ident")
    r.parameters["triton_what"].bool_param = True
    assert "reserved for Triton" in refused(lambda: stub.ModelInfer(r),
                                            grpc.StatusCode.INVALID_ARGUMENT)


def test_many_clients_at_once_get_their_own_answers(server):
    def work(k):
        with client.InferenceServerClient(f"127.0.0.1:{server.grpc}") as cl:
            for i in range(50):
                r = cl.infer("ident", ints(k, i), request_id=f"{k}.{i}")
                assert r.get_response().id == f"{k}.{i}"
                assert r.as_numpy("OUTPUT0").tolist() == [k, i]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))


@pytest.fixture
def verbose(c):
    """The log tells when models begin to run."""
    c.update_log_settings({"log_verbose_level": 1})
    yield
    c.update_log_settings({"log_verbose_level": 0})


def test_a_lost_unary_call_is_cancelled(c, stub, server, verbose):
    with server.begins("endless"):
        call = stub.ModelInfer.future(request("endless"))
    call.cancel()
    wait_failed(c, "endless", 1)


def wait_failed(c, model, n):
    """Until n requests of the model have ended without success."""
    until = time.monotonic() + 20
    while time.monotonic() < until:
        s = c.get_inference_statistics(model).model_stats[0].inference_stats
        if s.fail.count + s.success.count >= n:
            return
        time.sleep(0.05)
    raise AssertionError("the request was not cancelled")


# ---- streams ----


class Stream:
    """A stream of the public client; get() gives (result, error)."""

    def __init__(self, c, **kwargs):
        self.c, self.answers = c, queue.Queue()
        c.start_stream(callback=lambda result, error: self.answers.put((result, error)), **kwargs)

    def send(self, model, *values, **kwargs):
        self.c.async_stream_infer(model, ints(*values), **kwargs)

    def get(self, timeout=20):
        return self.answers.get(timeout=timeout)

    def ok(self):
        result, error = self.get()
        assert error is None, error
        return result


@pytest.fixture
def stream(c):
    s = Stream(c)
    yield s
    c.stop_stream()


def final(result):
    return result.get_response().parameters["triton_final_response"].bool_param


def test_stream_of_a_plain_model(stream):
    for i in range(20):
        stream.send("ident", i, request_id=str(i))
    for i in range(20):
        r = stream.ok()
        assert r.get_response().id == str(i) and r.as_numpy("OUTPUT0").tolist() == [i]
        assert final(r)


def test_plain_answers_keep_the_order_of_requests(stream):
    stream.send("slow", 1, request_id="slow")
    stream.send("ident", 2, request_id="fast")
    assert [stream.ok().get_response().id for _ in range(2)] == ["slow", "fast"]


def test_of_a_plain_model_the_first_answer_counts(stream):
    stream.send("surplus", 1, request_id="s")
    stream.send("ident", 2, request_id="i")
    assert [stream.ok().get_response().id for _ in range(2)] == ["s", "i"]


def test_decoupled_answers_overtake(stream):
    stream.send("slow", 1, request_id="slow")
    stream.send("three", 2, request_id="three")
    assert [stream.ok().get_response().id for _ in range(4)] == ["three"] * 3 + ["slow"]


def test_decoupled_model_streams_all_its_answers(stream):
    stream.send("three", 7, 8, request_id="d")
    got = [stream.ok() for _ in range(3)]
    assert [r.as_numpy("OUTPUT0").tolist() for r in got] == [[7, 8]] * 3
    assert {r.get_response().id for r in got} == {"d"}
    assert not final(got[0]) and not final(got[1])


def test_empty_final_response_comes_only_when_asked_for(stream):
    stream.send("none", 1, request_id="silent")
    stream.send("none", 1, request_id="told", enable_empty_final_response=True)
    r = stream.ok()
    assert r.get_response().id == "told" and final(r) and not r.get_response().outputs
    assert r.get_response().model_name == "none"
    assert stream.answers.empty()


def test_every_decoupled_request_ends_with_one_final_answer(stream):
    for i in range(10):
        stream.send("three", i, request_id=str(i), enable_empty_final_response=True)
    finals, contents = [], []
    while len(finals) < 10:
        r = stream.ok()
        if final(r):
            finals.append(r.get_response().id)
        if r.get_response().outputs:
            contents.append(r.get_response().id)
    assert sorted(finals, key=int) == [str(i) for i in range(10)]
    assert sorted(contents, key=int) == sorted([str(i) for i in range(10)] * 3, key=int)


def test_errors_are_messages_and_the_stream_goes_on(server):
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc}") as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        bad_input = request("ident", id="b")
        bad_input.inputs[0].name = "OTHER"
        answers = list(stub.ModelStreamInfer(iter([request("nobody", id="a"), bad_input,
                                                   request("ident", (5,), id="c")])))
    assert [a.infer_response.id for a in answers] == ["a", "b", "c"]
    assert "'nobody' is not found" in answers[0].error_message
    assert "OTHER" in answers[1].error_message
    assert answers[2].error_message == "" and len(answers[2].infer_response.outputs) == 1


def test_an_error_ends_the_stream_when_the_client_wants_that(server):
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc}") as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        answers = stub.ModelStreamInfer(iter([request("nobody"), request("ident")]),
                                        metadata=(("triton_grpc_error", "true"),))
        assert "nobody" in refused(lambda: list(answers), grpc.StatusCode.NOT_FOUND)


def test_closing_the_sending_side_still_brings_all_answers(server):
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc}") as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        answers = list(stub.ModelStreamInfer(iter([request("slow", id="1"),
                                                   request("three", id="2")])))
        assert sorted(a.infer_response.id for a in answers) == ["1", "2", "2", "2"]
        assert list(stub.ModelStreamInfer(iter([]))) == []


def test_big_answers_in_a_stream(stream):
    x = np.arange(1_000_003, dtype=np.int32)
    for _ in range(3):
        stream.c.async_stream_infer("ident", [tensor(x)])
    for _ in range(3):
        assert np.array_equal(stream.ok().as_numpy("OUTPUT0"), x)


def test_a_lost_stream_cancels_its_requests(c, server, verbose):
    before = c.get_inference_statistics("endless").model_stats[0].inference_stats
    n = before.fail.count + before.success.count
    with client.InferenceServerClient(f"127.0.0.1:{server.grpc}") as other:
        s = Stream(other)
        with server.begins("endless", 2):
            s.send("endless", 1)
            s.send("endless", 2)
        other.stop_stream(cancel_requests=True)
    wait_failed(c, "endless", n + 2)


# ---- shared memory ----


@pytest.fixture
def region():
    name = f"/nereid-grpc-test-{os.getpid()}"
    path = pathlib.Path("/dev/shm") / name[1:]
    path.write_bytes(bytes(4096))
    with open(path, "r+b") as f, mmap.mmap(f.fileno(), 4096) as m:
        yield name, m
    path.unlink()


def test_a_region_that_is_cut_short_is_its_users_trouble(c, server, region):
    key, _ = region
    c.register_system_shared_memory("cut", key, 4096)
    try:
        i = client.InferInput("INPUT0", [3], "INT32")
        i.set_shared_memory("cut", 12, offset=16)
        o = client.InferRequestedOutput("OUTPUT0")
        o.set_shared_memory("cut", 12, offset=1024)
        os.truncate(pathlib.Path("/dev/shm") / key[1:], 0)
        for inputs, outputs in (([i], None), (ints(1, 2, 3), [o]), ([i], [o])):
            with pytest.raises(InferenceServerException, match="'cut' became shorter than the 4096 bytes"):
                c.infer("ident", inputs, outputs=outputs)
            assert c.infer("ident", ints(1)).as_numpy("OUTPUT0").tolist() == [1]
    finally:
        c.unregister_system_shared_memory("cut")


def test_tensors_in_shared_memory(c, server, region):
    key, memory = region
    memory[16:28] = np.array([4, 5, 6], np.int32).tobytes()
    c.register_system_shared_memory("r", key, 4096)
    try:
        status = c.get_system_shared_memory_status(as_json=True)["regions"]
        assert status["r"]["key"] == key and int(status["r"]["byte_size"]) == 4096
        assert server.call("GET", "/v2/systemsharedmemory/status").json()[0]["name"] == "r"
        i = client.InferInput("INPUT0", [3], "INT32")
        i.set_shared_memory("r", 12, offset=16)
        o = client.InferRequestedOutput("OUTPUT0")
        o.set_shared_memory("r", 12, offset=1024)
        m = c.infer("ident", [i], outputs=[o]).get_response()
        assert list(m.raw_output_contents) == [b""] and list(m.outputs[0].shape) == [3]
        assert np.frombuffer(memory[1024:1036], np.int32).tolist() == [4, 5, 6]
        o.set_shared_memory("r", 4, offset=1024)
        with pytest.raises(InferenceServerException, match="should be at least 12 bytes"):
            c.infer("ident", [i], outputs=[o])
        i.set_shared_memory("r", 12, offset=4090)
        with pytest.raises(InferenceServerException, match="Invalid offset"):
            c.infer("ident", [i])
        with pytest.raises(InferenceServerException, match="already in manager"):
            c.register_system_shared_memory("r", key, 4096)
    finally:
        c.unregister_system_shared_memory("r")
    assert c.get_system_shared_memory_status(as_json=True).get("regions", {}) == {}


def classify(stub, model, values, count, kind="int64_param", **more):
    request = pb.ModelInferRequest(model_name=model)
    tensor = request.inputs.add(name="INPUT0", datatype="FP32", shape=values.shape)
    assert tensor.name
    request.raw_input_contents.append(values.astype(np.float32).tobytes())
    output = request.outputs.add(name="OUTPUT0")
    setattr(output.parameters["classification"], kind, count)
    for name, value in more.items():
        output.parameters[name].string_param = value
    return stub.ModelInfer(request)


def test_an_output_is_asked_for_once(stub):
    request = pb.ModelInferRequest(model_name="ident")
    request.inputs.add(name="INPUT0", datatype="INT32", shape=[1])
    request.raw_input_contents.append(bytes(4))
    request.outputs.extend([pb.ModelInferRequest.InferRequestedOutputTensor(name="OUTPUT0")] * 2)
    with pytest.raises(grpc.RpcError, match="output 'OUTPUT0' already exists in request"):
        stub.ModelInfer(request)


def test_classification_gives_the_best_with_their_places(stub):
    """limits: CLASSES"""
    values = np.array([0.5, 3.0, -1.0, 2.0])
    r = classify(stub, "fp32", values, 2)
    assert (r.outputs[0].datatype, list(r.outputs[0].shape)) == ("BYTES", [2])
    got = client.InferResult(r).as_numpy("OUTPUT0")
    assert list(got) == [b"3.000000:1", b"2.000000:3"]
    r = classify(stub, "fp32", values, 9)
    assert list(r.outputs[0].shape) == [4]
    for kind, count, more, text in (("int64_param", 0, {}, "expected >= 0"),
                                    ("string_param", "2", {}, "expected int64_param"),
                                    ("int64_param", 2, {"shared_memory_region": "r"},
                                     "can't set both")):
        with pytest.raises(grpc.RpcError) as e:
            classify(stub, "fp32", values, count, kind, **more)
        assert e.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert text in e.value.details()
    values = np.zeros(1_000_001, np.float32)
    values[7] = 1
    assert list(client.InferResult(classify(stub, "fp32", values[1:], 1)).as_numpy("OUTPUT0")) == [b"1.000000:6"]
    with pytest.raises(grpc.RpcError, match="classification output tensor too large"):
        classify(stub, "fp32", values, 1)


def watch(server, service=""):
    """A call of grpc.health.v1 Watch; the answers are plain bytes: a tag and the state."""
    channel = grpc.insecure_channel(f"127.0.0.1:{server.grpc}")
    call = channel.unary_stream("/grpc.health.v1.Health/Watch")
    name = service.encode()
    return channel, call(b"\x0a" + bytes([len(name)]) + name if name else b"", timeout=30)


def test_health_watch_tells_changes(repository, tmp_path):
    s = start(tmp_path, repository, "--model-control-mode=explicit", "--strict-readiness=true",
              "--load-model=slow", "--load-model=ident", "--log-verbose=1")
    try:
        channel, states = watch(s)
        unknown_channel, unknown = watch(s, "no.such.Service")
        assert next(states) == b"\x08\x01"
        assert next(unknown) == b"\x08\x03"
        with client.InferenceServerClient(f"127.0.0.1:{s.grpc}") as c:
            x = client.InferInput("INPUT0", [1], "INT32")
            x.set_data_from_numpy(np.array([1], np.int32))
            with concurrent.futures.ThreadPoolExecutor(1) as pool:
                with s.begins("slow"):
                    waiting = pool.submit(c.infer, "slow", [x])
                s.signal()
                assert next(states) == b"\x08\x02"
                assert waiting.result().as_numpy("OUTPUT0")[0] == 1
        assert s.wait() == 0
        with pytest.raises(grpc.RpcError):
            next(states)
        channel.close()
        unknown_channel.close()
    finally:
        s.stop()


def test_watchers_come_and_go(server):
    for _ in range(20):
        channel, states = watch(server)
        assert next(states) == b"\x08\x01"
        states.cancel()
        channel.close()


def fields(data):
    """[(number, value)] of a message whose fields are varints, strings and messages."""
    out, i = [], 0

    def varint():
        nonlocal i
        v = shift = 0
        while True:
            b = data[i]
            i += 1
            v |= (b & 127) << shift
            shift += 7
            if not b & 128:
                return v
    while i < len(data):
        key = varint()
        n = varint()
        if key & 7 == 2:
            out.append((key >> 3, data[i:i + n]))
            i += n
        else:
            out.append((key >> 3, n))
    return out


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
def test_reflection_names_services_and_gives_their_descriptors(server, version):
    descriptor_pb2 = pytest.importorskip("google.protobuf.descriptor_pb2")

    def text(number, value):
        return bytes([number << 3 | 2, len(value)]) + value.encode()

    questions = [text(7, "*"), text(4, "inference.GRPCInferenceService"), text(3, "health.proto"),
                 text(4, "inference.ModelInferRequest.InferInputTensor"), text(4, "no.Such"),
                 text(3, "none.proto"), text(5, ""), b"", b"\xff\xff"]
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc}") as channel:
        call = channel.stream_stream(
            f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo")
        answers = [dict(fields(a)) for a in call(iter(questions), timeout=20)]
    assert len(answers) == len(questions)
    assert [a[2] for a in answers] == questions
    services = {dict(fields(s))[1] for _, s in fields(answers[0][6])}
    assert services == {b"inference.GRPCInferenceService", b"grpc.health.v1.Health"}
    files = [descriptor_pb2.FileDescriptorProto.FromString(fields(a[4])[0][1])
             for a in answers[1:4]]
    assert [f.name for f in files] == ["grpc_service.proto", "health.proto", "grpc_service.proto"]
    assert "ModelStreamInfer" in [m.name for m in files[0].service[0].method]
    assert [dict(fields(a[7]))[1] for a in answers[4:]] == [5, 5, 5, 3, 3]


def test_client_that_does_not_read_its_stream_is_cut_off(tmp_path):
    write_model(tmp_path / "r", "flood", "TYPE_FP32", extra=responses(60))
    s = start(tmp_path, tmp_path / "r")
    try:
        channel = grpc.insecure_channel(f"127.0.0.1:{s.grpc}",
                                        options=[("grpc.max_receive_message_length", -1)])
        request = pb.ModelInferRequest(model_name="flood")
        request.inputs.add(name="INPUT0", datatype="FP32", shape=[500_000])
        request.raw_input_contents.append(bytes(2_000_000))
        call = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelStreamInfer(iter([request]))
        s.wait_log("does not read its stream")  # 120 MB are not kept for it
        with pytest.raises(grpc.RpcError) as e:
            list(call)
        assert e.value.code() in (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.CANCELLED)
        channel.close()
    finally:
        s.stop()


def test_response_pool_holds_the_model_up_instead(tmp_path):
    write_model(tmp_path / "r", "flood", "TYPE_FP32", extra=responses(60))
    s = start(tmp_path, tmp_path / "r", "--grpc-max-response-pool-size=2")
    try:
        channel = grpc.insecure_channel(f"127.0.0.1:{s.grpc}",
                                        options=[("grpc.max_receive_message_length", -1)])
        request = pb.ModelInferRequest(model_name="flood")
        request.inputs.add(name="INPUT0", datatype="FP32", shape=[500_000])
        request.raw_input_contents.append(bytes(2_000_000))
        call = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelStreamInfer(iter([request]))
        time.sleep(1)  # not a state: the time in which a server without the limit would give up
        answers = [a for a in call if a.infer_response.raw_output_contents]
        assert len(answers) == 60 and all(not a.error_message for a in answers)
        assert "does not read" not in s.log()
        channel.close()
    finally:
        s.stop()


def test_requests_over_the_limit_are_refused_at_once(repository, tmp_path):
    s = start(tmp_path, repository, "--max-inflight-requests=2", "--http-max-connections=4")
    try:
        together = threading.Barrier(6)

        def once(barrier):
            with client.InferenceServerClient(f"127.0.0.1:{s.grpc}") as one:
                x = client.InferInput("INPUT0", [1], "INT32")
                x.set_data_from_numpy(np.array([1], np.int32))
                one.is_server_live()
                if barrier:
                    barrier.wait()
                try:
                    one.infer("slow", [x])
                    return "ok"
                except InferenceServerException as e:
                    return e.status()
        with concurrent.futures.ThreadPoolExecutor(6) as pool:
            got = sorted(pool.map(once, [together] * 6))
        assert got.count("ok") == 2 and got.count("StatusCode.UNAVAILABLE") == 4
        # A request counts until its model has let go of it, which is after the answer.
        wait_until(lambda: once(None) == "ok")
        body = {"inputs": [{"name": "INPUT0", "datatype": "INT32", "shape": [1], "data": [1]}]}

        def four():
            with concurrent.futures.ThreadPoolExecutor(4) as pool:
                got = sorted(r.status for r in pool.map(
                    lambda _: s.call("POST", "/v2/models/slow/infer", body), range(4)))
            assert got.count(200) <= 2
            return got == [200, 200, 503, 503]
        wait_until(four)
    finally:
        s.stop()


def test_client_shared_memory_can_be_switched_off(repository, tmp_path):
    s = start(tmp_path, repository, "--allow-client-shm=false")
    try:
        with client.InferenceServerClient(f"127.0.0.1:{s.grpc}") as one:
            for call in (lambda: one.register_system_shared_memory("a", "/a", 8),
                         lambda: one.register_cuda_shared_memory("a", b"", 0, 8),
                         one.unregister_system_shared_memory):
                with pytest.raises(InferenceServerException, match="allow-client-shm"):
                    call()
        r = s.call("POST", "/v2/systemsharedmemory/region/a/register", {"key": "a", "byte_size": 8})
        assert "--allow-client-shm=true" in r.error()
    finally:
        s.stop()


def test_cuda_shared_memory_is_refused_by_name(c):
    assert c.get_cuda_shared_memory_status(as_json=True).get("regions", {}) == {}
    with pytest.raises(InferenceServerException, match="CUDA shared memory region: 'g'"):
        c.register_cuda_shared_memory("g", b"aGFuZGxl", 0, 16)
    c.unregister_cuda_shared_memory()


# ---- options and life of the server ----


def test_models_are_loaded_and_unloaded(repository, tmp_path):
    s = start(tmp_path, repository, "--model-control-mode=explicit")
    try:
        with client.InferenceServerClient(f"127.0.0.1:{s.grpc}") as cl:
            assert not cl.is_model_ready("ident")
            cl.load_model("ident")
            assert cl.infer("ident", ints(3)).as_numpy("OUTPUT0").tolist() == [3]
            config = ('{"backend": "identity", "max_batch_size": 0,'
                      '"input": [{"name": "X", "data_type": "TYPE_INT32", "dims": [-1]}],'
                      '"output": [{"name": "Y", "data_type": "TYPE_INT32", "dims": [-1]}]}')
            cl.load_model("ident", config=config)
            assert cl.get_model_metadata("ident").inputs[0].name == "X"
            cl.unload_model("ident")
            until = time.monotonic() + 10
            while cl.is_model_ready("ident"):
                assert time.monotonic() < until
                time.sleep(0.01)
            with pytest.raises(InferenceServerException):
                cl.load_model("nobody")
    finally:
        assert s.stop() == 0


@pytest.mark.parametrize("name", ["m" * 100_000, "\u00e9" * 50_000])
def test_a_long_error_text_is_cut_and_keeps_its_code(c, name):
    with pytest.raises(InferenceServerException) as e:
        c.get_model_metadata(name)
    assert e.value.status() == "StatusCode.NOT_FOUND", e.value
    assert e.value.message().endswith(" ...") and name[:100] in e.value.message()


def test_restricted_protocols_want_their_header(repository, tmp_path):
    s = start(tmp_path, repository, "--grpc-restricted-protocol=inference,logging:key=secret")
    try:
        with client.InferenceServerClient(f"127.0.0.1:{s.grpc}") as cl:
            assert cl.is_server_live()
            with pytest.raises(InferenceServerException, match="triton-grpc-protocol-key"):
                cl.infer("ident", ints(1))
            with pytest.raises(InferenceServerException, match="restricted"):
                cl.get_log_settings()
            headers = {"triton-grpc-protocol-key": "secret"}
            assert cl.infer("ident", ints(1), headers=headers).as_numpy("OUTPUT0").tolist() == [1]
            st = Stream(cl)
            result, error = st.get()
            assert result is None and "restricted" in str(error)
            cl.stop_stream()
    finally:
        assert s.stop() == 0


def test_options_of_the_group_are_taken(repository, tmp_path):
    s = start(tmp_path, repository, "--grpc-infer-response-compression-level=high",
              "--grpc-infer-thread-count=1", "--grpc-infer-allocation-pool-size=16",
              "--grpc-keepalive-time=10000",
              "--grpc-keepalive-timeout=5000", "--grpc-keepalive-permit-without-calls=true",
              "--grpc-http2-max-pings-without-data=0", "--grpc-http2-max-ping-strikes=0",
              "--grpc-http2-min-recv-ping-interval-without-data=1000",
              "--grpc-max-connection-age=600000", "--grpc-max-connection-age-grace=1000",
              "--reuse-grpc-port=true", "--grpc-header-forward-pattern=x-.*")
    try:
        with client.InferenceServerClient(f"127.0.0.1:{s.grpc}") as cl:
            x = np.zeros(100_000, np.int32)
            r = cl.infer("ident", [tensor(x)], headers={"x-one": "1"}, compression_algorithm="gzip")
            assert np.array_equal(r.as_numpy("OUTPUT0"), x)
    finally:
        assert s.stop() == 0


def test_metadata_with_the_name_of_a_parameter_is_not_forwarded(repository, tmp_path):
    s = start(tmp_path, repository, "--grpc-header-forward-pattern=.*")
    try:
        with client.InferenceServerClient(f"127.0.0.1:{s.grpc}") as cl:
            x = np.zeros(4, np.int32)
            for name in ("priority", "timeout", "sequence_id", "triton_flow"):
                with pytest.raises(InferenceServerException, match=f"Header '{name}' is reserved for Triton usage"):
                    cl.infer("ident", [tensor(x)], headers={name: "1"})
            assert np.array_equal(cl.infer("ident", [tensor(x)], headers={"x-one": "1"}).as_numpy("OUTPUT0"), x)
    finally:
        assert s.stop() == 0


def test_a_port_that_is_taken_ends_the_start(server, repository, launch):
    s = launch(repository, "--grpc-address=127.0.0.1", f"--grpc-port={server.grpc}")
    assert s.wait() == 1
    assert "failed to start GRPC service" in s.log() and "already in use" in s.log()


def test_requests_in_flight_are_answered_when_the_server_stops(repository, tmp_path):
    s = start(tmp_path, repository, "--log-verbose=1")
    with client.InferenceServerClient(f"127.0.0.1:{s.grpc}") as cl:
        idle = Stream(client.InferenceServerClient(f"127.0.0.1:{s.grpc}"))
        idle.send("ident", 1)
        idle.ok()
        got = queue.Queue()
        with s.begins("slow"):
            cl.async_infer("slow", ints(9), callback=lambda result, error: got.put((result, error)))
        begin = time.monotonic()
        assert s.stop() == 0, s.log()
        assert time.monotonic() - begin < 10
        result, error = got.get(timeout=10)
        assert error is None and result.as_numpy("OUTPUT0").tolist() == [9]


def test_no_grpc_when_switched_off(repository, launch):
    s = launch(repository, "--allow-grpc=false").wait_ready()
    assert "GRPCInferenceService" not in s.log()
