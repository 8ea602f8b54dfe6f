# SPDX-License-Identifier: Apache-2.0
"""Damaged requests against the whole server: every one gets an answer or a closed connection, and the
server goes on. NEREID_FUZZ_SECONDS (5) for each protocol, NEREID_FUZZ_SEED to repeat a run; most useful
with NEREID_BUILD naming a sanitizer build."""
import json
import os
import random
import socket
import time
import zlib

import pytest

from triton_server import Server, infer_body, write_model

SECONDS = float(os.environ.get("NEREID_FUZZ_SECONDS", 5))
SEED = int(os.environ.get("NEREID_FUZZ_SEED", time.time_ns() % 10**6))
EXTREMES = [b"0", b"-1", b"4294967296", b"9223372036854775808", b"18446744073709551616", b"1e999",
            b"\x00", b"\xff\xff\xff\xff", b"[" * 600, b'{"a":' * 600, b"\r\n", b"\n", b" ", b"%00",
            b"Transfer-Encoding: chunked\r\n", b"Content-Length: 7\r\n", b"null", b"\xed\xa0\x80"]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fuzz")
    write_model(folder / "models", "ident", count=2)
    write_model(folder / "models", "text", "TYPE_STRING")
    s = Server(folder, folder / "models", "--grpc-address=127.0.0.1",
               "--http-header-forward-pattern=x-.*", f"--trace-config=triton,file={folder / 't'}")
    yield s.wait_ready()
    assert s.stop() == 0, s.log()[-4000:]


def http_request(method, path, body=b"", fields=()):
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", "Connection: close", *fields]
    if not any(f.startswith("Transfer") for f in fields):
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def http_seeds():
    infer = json.dumps({"id": "x", "parameters": {"priority": 1, "a": "b", "sequence_id": 3},
                        **infer_body([1, -2, 3]),
                        "outputs": [{"name": "OUTPUT0", "parameters": {"classification": 2}}]}).encode()
    head = json.dumps({"inputs": [{"name": "INPUT0", "datatype": "INT32", "shape": [2],
                                   "parameters": {"binary_data_size": 8}}],
                       "outputs": [{"name": "OUTPUT0", "parameters": {"binary_data": True}}]}).encode()
    shm = json.dumps({"key": "/none", "byte_size": 64, "offset": 0}).encode()
    text = json.dumps(infer_body(["é", "\ud83d\ude00", "a\\\"b"], "BYTES")).encode()
    packed = zlib.compressobj(wbits=31)
    gz = packed.compress(infer) + packed.flush()
    p = "/v2/models/ident/infer"
    return [
        http_request("POST", p, infer), http_request("POST", "/v2/models/text/infer", text),
        http_request("POST", p, head + bytes(8), [f"Inference-Header-Content-Length: {len(head)}"]),
        http_request("POST", p, gz, ["Content-Encoding: gzip", "Accept-Encoding: deflate"]),
        http_request("POST", p, b"%x\r\n" % len(infer) + infer + b"\r\n0\r\n\r\n",
                     ["Transfer-Encoding: chunked"]),
        http_request("POST", "/v2/models/text/generate", b'{"INPUT0":"a","parameters":{"b":1}}'),
        http_request("POST", "/v2/models/text/generate_stream", b'{"INPUT0":"a"}'),
        http_request("POST", "/v2/trace/setting", b'{"trace_rate":"3","trace_level":["OFF"]}'),
        http_request("POST", "/v2/logging", b'{"log_verbose_level":0,"log_format":"default"}'),
        http_request("POST", "/v2/systemsharedmemory/region/r/register", shm),
        http_request("POST", "/v2/cudasharedmemory/region/r/register",
                     b'{"raw_handle":{"b64":"AAAA"},"byte_size":4,"device_id":0}'),
        http_request("POST", "/v2/repository/index", b'{"ready":true}'),
        http_request("GET", "/v2/models/ident/versions/1/stats", fields=["x-a: b"]),
    ]


def damage(rng, data):
    data = bytearray(data)
    for _ in range(rng.choice([1, 1, 1, 2, 4])):
        at = rng.randrange(len(data) + 1)
        end = min(len(data), at + rng.choice([1, 1, 4, 30]))
        kind = rng.randrange(6)
        if kind == 0 and at < len(data):
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del data[at:end]
        elif kind == 2:
            data[at:at] = data[at:end] * rng.choice([1, 2, 50])
        elif kind == 3:
            data[at:at] = rng.choice(EXTREMES)
        elif kind == 4:
            data[at:end] = rng.choice(EXTREMES)
        else:
            del data[at:]
        if not data:
            break
    return bytes(data)


def test_damaged_http(server):
    rng = random.Random(SEED)
    seeds, until, n = http_seeds(), time.monotonic() + SECONDS, 0
    while time.monotonic() < until:
        data = damage(rng, rng.choice(seeds))
        n += 1
        with socket.create_connection(("127.0.0.1", server.http), timeout=20) as s:
            try:
                s.sendall(data)
                s.shutdown(socket.SHUT_WR)
                answer = b""
                while piece := s.recv(65536):
                    answer += piece
            except (ConnectionResetError, BrokenPipeError):
                continue
        assert not answer or answer.startswith(b"HTTP/1.1 "), (SEED, n, data, answer[:200])
        assert server.process.poll() is None, (SEED, n, data)
    assert n > 20
    assert server.call("POST", "/v2/models/ident/infer", infer_body([1])).status == 200


def test_damaged_grpc(server):
    grpc = pytest.importorskip("grpc")
    pb = pytest.importorskip("tritonclient.grpc").service_pb2
    rng = random.Random(SEED)
    m = pb.ModelInferRequest(model_name="ident", id="x")
    m.inputs.add(name="INPUT0", datatype="INT32", shape=[2])
    m.raw_input_contents.append(bytes(8))
    m.parameters["a"].string_param = "b"
    typed = pb.ModelInferRequest(model_name="text")
    t = typed.inputs.add(name="INPUT0", datatype="BYTES", shape=[1])
    t.contents.bytes_contents.append(b"hello")
    trace = pb.TraceSettingRequest()
    trace.settings["trace_rate"].value.append("3")
    load = pb.RepositoryModelLoadRequest(model_name="ident")
    load.parameters["config"].string_param = "{}"
    seeds = [("ModelInfer", m), ("ModelInfer", typed), ("TraceSetting", trace),
             ("RepositoryModelLoad", load),
             ("SystemSharedMemoryRegister", pb.SystemSharedMemoryRegisterRequest(
                 name="r", key="/none", byte_size=8)),
             ("CudaSharedMemoryRegister", pb.CudaSharedMemoryRegisterRequest(
                 name="r", raw_handle=bytes(64), byte_size=8)),
             ("ModelStatistics", pb.ModelStatisticsRequest(name="ident"))]
    seeds = [(name, x.SerializeToString()) for name, x in seeds]
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc}") as channel:
        until, n = time.monotonic() + SECONDS, 0
        while time.monotonic() < until:
            name, data = rng.choice(seeds)
            data = damage(rng, data)
            n += 1
            try:
                channel.unary_unary(f"/inference.GRPCInferenceService/{name}")(data, timeout=20)
            except grpc.RpcError as e:
                assert e.code() not in (grpc.StatusCode.DEADLINE_EXCEEDED,), (SEED, n, name, data)
                assert "ocket closed" not in (e.details() or ""), (SEED, n, name, data)
            if n % 20 == 0:  # the same bytes in a stream
                try:
                    list(channel.stream_stream(
                        "/inference.GRPCInferenceService/ModelStreamInfer")(iter([data]),
                                                                            timeout=20))
                except grpc.RpcError as e:
                    assert "ocket closed" not in (e.details() or ""), (SEED, n, name, data)
            assert server.process.poll() is None, (SEED, n, name, data)
        assert n > 20
        assert channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")(
            m.SerializeToString(), timeout=20)
