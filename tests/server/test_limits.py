# SPDX-License-Identifier: Apache-2.0
"""What one request or load order names is refused before memory is taken, and the server lives."""
import gzip
import json
import pathlib
import random
import resource
import struct
import time

import pytest

from triton_server import Connection, infer_body, wait_until, write_model


def rss(server):
    """Bytes of memory that the server's process has now."""
    pages = pathlib.Path(f"/proc/{server.process.pid}/statm").read_text().split()[1]
    return int(pages) * 4096


def peak(server):
    """Most bytes of memory that the process had."""
    for line in pathlib.Path(f"/proc/{server.process.pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise KeyError("VmHWM")


@pytest.fixture
def explicit(tmp_path, launch):
    folder = tmp_path / "models"
    write_model(folder, "echo")
    return launch(folder, "--model-control-mode=explicit").wait_ready()


@pytest.mark.parametrize("count", [1025, 2**31 - 1])
def test_more_instances_than_a_model_may_have_refuse_the_load(explicit, count):
    """limits: INSTANCES"""
    config = {"backend": "identity",
              "input": [{"name": "INPUT0", "data_type": "TYPE_INT32", "dims": [-1]}],
              "output": [{"name": "OUTPUT0", "data_type": "TYPE_INT32", "dims": [-1]}],
              "instance_group": [{"kind": "KIND_CPU", "count": count}]}
    before = rss(explicit)
    reply = explicit.call("POST", "/v2/repository/models/echo/load",
                          {"parameters": {"config": json.dumps(config)}})
    assert reply.status == 400 and "1024" in reply.error(), reply.body
    assert rss(explicit) < before + (64 << 20)
    assert explicit.call("POST", "/v2/repository/models/echo/load", {}).status == 200


def test_more_inputs_than_a_request_may_have_are_refused_at_once(server):
    """limits: INPUTS, OUTPUTS, PARAMETERS"""
    one = infer_body([1])["inputs"][0]
    inputs = [dict(one, name=f"i{i}") for i in range(100_000)]
    for body in ({"inputs": inputs}, {"inputs": [one], "outputs": [{"name": f"o{i}"} for i in range(100_000)]},
                 {"inputs": [one], "parameters": {f"p{i}": 1 for i in range(100_000)}}):
        began = time.monotonic()
        reply = server.call("POST", "/v2/models/ident/infer", body)
        assert reply.status == 400 and "more than " in reply.error(), reply.body
        assert time.monotonic() - began < 10
    reply = server.call("POST", "/v2/models/ident/generate", {f"p{i}": 1 for i in range(100_000)})
    assert reply.status == 400 and "more than " in reply.error(), reply.body


def test_a_configuration_with_more_tensors_than_a_request_may_have_is_refused(explicit):
    """limits: INPUTS"""
    config = {"backend": "identity", "input": [{"name": f"i{i}", "data_type": "TYPE_INT32", "dims": [-1]}
                                               for i in range(100_000)]}
    reply = explicit.call("POST", "/v2/repository/models/echo/load",
                          {"parameters": {"config": json.dumps(config)}})
    assert reply.status == 400 and "2048" in reply.error(), reply.body[:300]


def test_more_outputs_than_a_request_may_ask_for_are_refused(server):
    """limits: OUTPUTS"""
    body = infer_body([1])
    body["outputs"] = [{"name": f"o{i}"} for i in range(2049)]
    reply = server.call("POST", "/v2/models/ident/infer", body)
    assert reply.status == 400 and "more than 2048 requested outputs" in reply.error(), reply.body
    assert server.call("POST", "/v2/models/ident/infer", infer_body([1])).status == 200


def test_many_outputs_come_whole(launch, tmp_path):
    """More than a reply is sent in pieces of: as JSON, as binary tensors, compressed."""
    n = 200
    tensors = {kind: "".join(f'{kind} [ {{ name: "{kind.upper()}{i}" data_type: TYPE_INT32 dims: [ -1 ] }} ]\n' for i in range(n))
               for kind in ("input", "output")}
    (tmp_path / "models/many/1").mkdir(parents=True)
    (tmp_path / "models/many/config.pbtxt").write_text('backend: "identity"\n' + "".join(tensors.values()))
    s = launch(tmp_path / "models").wait_ready()
    body = {"inputs": [{"name": f"INPUT{i}", "datatype": "INT32", "shape": [i + 1], "data": [i] * (i + 1)} for i in range(n)],
            "outputs": [{"name": f"OUTPUT{i}", "parameters": {"binary_data": i % 3 != 1}} for i in range(n)]}
    for fields in ({}, {"Accept-Encoding": "gzip"}):
        reply = s.call("POST", "/v2/models/many/infer", body, fields)
        assert reply.status == 200, reply.body[:300]
        raw = gzip.decompress(reply.body) if fields else reply.body
        size = json.JSONDecoder().raw_decode(raw.decode("latin-1"))[1]
        for o in json.loads(raw[:size])["outputs"]:
            i = int(o["name"].removeprefix("OUTPUT"))
            if i % 3 == 1:
                assert o["data"] == [i] * (i + 1)
            else:
                length = o["parameters"]["binary_data_size"]
                assert raw[size:size + length] == struct.pack("<i", i) * (i + 1), i
                size += length
        assert size == len(raw)


def test_more_parameters_than_a_request_may_have_are_refused(server):
    """limits: PARAMETERS"""
    reply = server.call("POST", "/v2/models/ident/infer", {**infer_body([1]), "parameters": {f"p{i}": i for i in range(2049)}})
    assert reply.status == 400 and "more than 2048 parameters" in reply.error(), reply.body


@pytest.mark.parametrize("path", ["/v2/logging", "/v2/trace/setting", "/v2/repository/index",
                                  "/v2/systemsharedmemory/region/r/register"])
def test_an_order_that_is_too_long_is_refused_before_it_is_read(server, path):
    """limits: ORDER_TEXT"""
    reply = server.call("POST", path, {"x": "y" * 65536})
    assert reply.status == 400 and "an order may have 65536" in reply.error(), reply.body[:300]


def test_a_body_of_too_many_values_is_refused(server):
    """limits: JSON_VALUES"""
    body = b'{"x":[' + b"0," * (4 << 20) + b'0],"inputs":[]}'
    reply = server.call("POST", "/v2/models/ident/infer", body)
    assert reply.status == 500 and "failed to parse the request JSON buffer: " in reply.error() and "4194304" in reply.error(), reply.body


def test_a_tensor_of_too_many_dimensions_is_refused(server):
    """limits: TENSOR_RANK"""
    body = infer_body([1])
    body["inputs"][0]["shape"] = [1] * 33
    reply = server.call("POST", "/v2/models/ident/infer", body)
    assert reply.status == 400 and "32" in reply.error(), reply.body


def test_classification_of_all_of_many_values_is_sorted(server):
    """k is the client's: the time must not grow with its square."""
    values = random.Random(3).sample(range(10**6), 60_000)
    body = infer_body(values)
    body["outputs"] = [{"name": "OUTPUT0", "parameters": {"classification": len(values)}}]
    began = time.monotonic()
    reply = server.call("POST", "/v2/models/ident/infer", body)
    took = time.monotonic() - began
    assert reply.status == 200, reply.body[:300]
    want = sorted(range(len(values)), key=lambda i: -values[i])
    assert reply.json()["outputs"][0]["data"] == [f"{values[i]}:{i}" for i in want]
    assert took < 3


def test_equal_values_of_a_classification_come_by_their_index(server):
    values = [3, 1, 3, 2, 3, 1, 2]
    for k in range(1, 8):
        body = infer_body(values)
        body["outputs"] = [{"name": "OUTPUT0", "parameters": {"classification": k}}]
        data = server.call("POST", "/v2/models/ident/infer", body).json()["outputs"][0]["data"]
        assert data == ["3:0", "3:2", "3:4", "2:3", "2:6", "1:1", "1:5"][:k]


# ---- gRPC messages ----


def grpc_infer(server, message, **options):
    """A call with these bytes as its message."""
    grpc = pytest.importorskip("grpc")
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc}",
                               options=[("grpc.max_send_message_length", -1)]) as channel:
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        try:
            call(message, timeout=60, **options)
        except grpc.RpcError as e:
            return e.code(), e.details()
    return grpc.StatusCode.OK, ""


def test_grpc_messages_have_a_limit_before_and_after_decompression(server):
    grpc = pytest.importorskip("grpc")
    before = rss(server)
    pathlib.Path(f"/proc/{server.process.pid}/clear_refs").write_text("5")  # the peak counts from here
    code, text = grpc_infer(server, bytes(65 << 20))
    assert code == grpc.StatusCode.RESOURCE_EXHAUSTED and "67108864" in text, (code, text)
    for compression in (grpc.Compression.Gzip, grpc.Compression.Deflate):  # 65 and 500 kB
        for n_bytes in (65 << 20, 500 << 20):
            code, text = grpc_infer(server, bytes(n_bytes), compression=compression)
            assert code == grpc.StatusCode.INVALID_ARGUMENT and "--grpc-max-message-size" in text, (code, text)
    assert peak(server) < before + (128 << 20)  # one message of 64 MB, what came of it, and a little


def test_the_fields_of_a_grpc_message_take_a_limited_memory(server):
    grpc = pytest.importorskip("grpc")
    before = rss(server)
    code, text = grpc_infer(server, b"\x2a\x00" * (30 << 20))  # as many empty inputs
    assert code == grpc.StatusCode.INVALID_ARGUMENT and "536870912" in text, (code, text)
    assert peak(server) < before + (1100 << 20)


def test_compressed_grpc_messages_are_understood(server):
    """limits: GRPC_MESSAGE_MEMORY"""
    grpc = pytest.importorskip("grpc")
    pb = pytest.importorskip("tritonclient.grpc.service_pb2")
    for values in ([1, 2, 3], list(range(100_000))):
        r = pb.ModelInferRequest(model_name="ident")
        i = r.inputs.add(name="INPUT0", datatype="INT32", shape=[len(values)])
        i.contents.int_contents.extend(values)
        for compression in (grpc.Compression.Gzip, grpc.Compression.Deflate):
            assert grpc_infer(server, r.SerializeToString(), compression=compression)[0] == grpc.StatusCode.OK


def test_idle_connections_give_way_when_descriptors_run_out(launch, repository):
    s = launch(repository, "--http-thread-count=2").wait_ready()
    open_now = len(list(pathlib.Path(f"/proc/{s.process.pid}/fd").iterdir()))
    limit = open_now + 20
    resource.prlimit(s.process.pid, resource.RLIMIT_NOFILE, (limit, limit))
    busy = s.connect()
    busy.request("POST", "/v2/models/slow/infer", infer_body([7]))
    idle = [s.connect(timeout=20) for _ in range(100)]
    with s.connect(timeout=20) as c:
        assert c.call("GET", "/v2/health/live").status == 200
    assert busy.reply().json()["outputs"][0]["data"] == [7]
    assert idle[0].is_closed() and idle[1].is_closed()
    for c in [busy, *idle]:
        c.close()
    wait_until(lambda: len(list(pathlib.Path(f"/proc/{s.process.pid}/fd").iterdir())) <= open_now + 2)
    assert s.call("GET", "/v2/health/live").status == 200


def descriptors(server):
    return len(list(pathlib.Path(f"/proc/{server.process.pid}/fd").iterdir()))


def test_grpc_connections_do_not_take_every_descriptor(launch, repository):
    """Connections to the gRPC port that never speak HTTP/2 are closed; health is answered meanwhile."""
    pytest.importorskip("grpc")
    s = launch(repository, "--http-thread-count=2").wait_ready()
    if "without the gRPC library" in s.log():
        pytest.skip("the server was built without gRPC")
    assert s.call("GET", "/v2/health/live").status == 200
    limit = descriptors(s) + 20
    resource.prlimit(s.process.pid, resource.RLIMIT_NOFILE, (limit, limit))
    silent = [Connection(s.grpc, timeout=60) for _ in range(60)]
    wait_until(lambda: descriptors(s) >= limit - 2)
    for _ in range(20):
        assert s.call("GET", "/v2/health/live").status == 200
        assert s.call("GET", "/v2/models/ident").status in (200, 503)
    held = [s.connect() for _ in range(20)]  # nor do HTTP ones that say nothing
    assert s.call("GET", "/v2/health/ready").status == 200
    for c in [*silent, *held]:
        c.close()
    wait_until(lambda: descriptors(s) < limit - 10)
    assert s.call("POST", "/v2/models/ident/infer", infer_body([1])).status == 200


def test_the_grpc_port_goes_on_listening_after_descriptors_ran_out(launch, repository):
    """gRPC's library gives a port up for ever when accept4 fails: clients would wait in its queue."""
    grpc = pytest.importorskip("grpc")
    from tritonclient.grpc import service_pb2 as pb
    from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub
    s = launch(repository).wait_ready()
    if "without the gRPC library" in s.log():
        pytest.skip("the server was built without gRPC")
    soft, hard = resource.prlimit(s.process.pid, resource.RLIMIT_NOFILE)
    for _ in range(3):
        resource.prlimit(s.process.pid, resource.RLIMIT_NOFILE, (descriptors(s), hard))
        # Those of the round before may be closing while descriptors are counted; each gives one a place.
        refused = [Connection(s.grpc, timeout=60) for _ in range(50)]
        wait_until(lambda: refused[-1].is_closed())  # and is told so
        resource.prlimit(s.process.pid, resource.RLIMIT_NOFILE, (soft, hard))
        with grpc.insecure_channel(f"127.0.0.1:{s.grpc}", options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
            assert GRPCInferenceServiceStub(channel).ServerLive(pb.ServerLiveRequest(), timeout=60).live
        for c in refused:
            c.close()
    assert "gRPC service cannot accept a connection: Too many open files" in s.log()


def test_idle_grpc_connections_are_closed(launch, repository):
    grpc = pytest.importorskip("grpc")
    from tritonclient.grpc import service_pb2 as pb
    from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub
    s = launch(repository, "--grpc-idle-timeout-secs=3").wait_ready()
    if "without the gRPC library" in s.log():
        pytest.skip("the server was built without gRPC")
    before = descriptors(s)
    channels = [grpc.insecure_channel(f"127.0.0.1:{s.grpc}", options=[("grpc.use_local_subchannel_pool", 1)])
                for _ in range(10)]
    for channel in channels:
        assert GRPCInferenceServiceStub(channel).ServerLive(pb.ServerLiveRequest(), timeout=20).live
    assert descriptors(s) >= before + 8  # connections that had just closed may have been counted before
    wait_until(lambda: descriptors(s) <= before + 1)
    for channel in channels:  # the client connects again by itself
        assert GRPCInferenceServiceStub(channel).ServerLive(pb.ServerLiveRequest(), timeout=20).live
        channel.close()


def test_silent_grpc_connections_are_closed(launch, repository):
    """limits: GRPC_HANDSHAKE_SECS"""
    s = launch(repository).wait_ready()
    if "without the gRPC library" in s.log():
        pytest.skip("the server was built without gRPC")
    begin = time.monotonic()
    silent = [Connection(s.grpc, timeout=60) for _ in range(5)]
    silent[0].send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")  # without settings
    for c in silent:
        while c.sock.recv(4096):
            pass
        c.close()
    assert time.monotonic() - begin < 25


def test_a_log_that_may_not_grow_does_not_end_the_server(launch, repository):
    s = launch(repository, "--log-verbose=1").wait_ready()
    resource.prlimit(s.process.pid, resource.RLIMIT_FSIZE, (1, resource.RLIM_INFINITY))
    for _ in range(3):
        assert s.call("POST", "/v2/models/ident/infer", infer_body([1])).status == 200
    assert s.process.poll() is None
