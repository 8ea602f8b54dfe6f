# SPDX-License-Identifier: Apache-2.0
"""Memory of requests in flight is accounted: one request may have so much, all together so much."""
import concurrent.futures
import gzip
import json
import pathlib
import select

import pytest

from half_sent import HalfSent
from triton_server import infer_body, wait_until

MB = 1 << 20


def log_of_stopped(server):
    assert server.stop() == 0
    return server.log()


@pytest.fixture
def small(launch, repository):
    """One request may have 2 MB, all together 6 MB."""
    s = launch(repository, "--max-request-memory-mb=2", "--max-inflight-memory-mb=6").wait_ready()
    yield s
    assert s.call("POST", "/v2/models/ident/infer", infer_body([1])).status == 200
    log = log_of_stopped(s)
    assert "were not given back" not in log, log[-2000:]


def binary(n_bytes, chunked=False):
    """A body with one tensor of that many bytes, and its fields."""
    head = json.dumps({"inputs": [{"name": "INPUT0", "datatype": "INT32", "shape": [n_bytes // 4],
                                   "parameters": {"binary_data_size": n_bytes}}],
                       "outputs": [{"name": "OUTPUT0", "parameters": {"binary_data": True}}]}).encode()
    return head + bytes(n_bytes), {"Inference-Header-Content-Length": str(len(head))}


def test_a_body_that_one_request_may_not_have_is_refused_by_the_options_name(small):
    body, fields = binary(4 * MB)
    reply = small.call("POST", "/v2/models/ident/infer", body, fields)
    assert reply.status == 400 and "--max-request-memory-mb" in reply.error() and str(2 * MB) in reply.error()
    body, fields = binary(MB)
    assert small.call("POST", "/v2/models/ident/infer", body, fields).status == 200


def test_a_body_that_is_small_only_while_it_is_compressed_is_refused(small):
    """limits: REQUEST_MEMORY"""
    body, fields = binary(4 * MB)
    reply = small.call("POST", "/v2/models/ident/infer", gzip.compress(body),
                       dict(fields, **{"Content-Encoding": "gzip"}))
    assert reply.status == 400 and "--max-request-memory-mb" in reply.error(), reply.body


@pytest.mark.parametrize("path", ["/v2/models/ident/infer", "/v2/models/ident/generate"])
def test_json_of_many_values_is_refused_before_it_is_read(small, path):
    reply = small.call("POST", path, b'{"parameters": {"x": [' + b"0," * 100_000 + b"0]}}")
    assert reply.status == 400 and "--max-request-memory-mb" in reply.error(), reply.body


def test_an_answer_that_one_request_may_not_have_is_an_error_to_it(small):
    """The body is below the limit, the JSON of its answer is not."""
    body, fields = binary(MB)
    body = body.replace(b'{"binary_data": true}', b'{"binary_data":false}')
    reply = small.call("POST", "/v2/models/ident/infer", body, fields)
    assert reply.status == 400 and "--max-request-memory-mb" in reply.error(), reply.body[:300]


def test_a_body_and_its_answer_are_one_account(small):
    """Each alone is below the limit."""
    body, fields = binary(3 * MB // 2)
    reply = small.call("POST", "/v2/models/ident/infer", body, fields)
    assert reply.status == 400 and "--max-request-memory-mb" in reply.error() and "for its answer, and has" in reply.error()
    assert small.call("POST", "/v2/models/ident/infer", *binary(MB * 3 // 4)).status == 200


def test_bodies_of_many_clients_do_not_take_more_than_all_may_have(small):
    """They are held half sent; whoever comes then is refused, and served when they are gone. limits: INFLIGHT_MEMORY"""
    body, fields = binary(2 * MB - 65536)
    head = "".join(f"{k}: {v}\r\n" for k, v in dict(fields, **{"Content-Length": str(len(body))}).items())
    half = f"POST /v2/models/ident/infer HTTP/1.1\r\nHost: localhost\r\n{head}\r\n".encode() + body[:-1]
    held = [None] * 3

    def is_refused():
        for i, c in enumerate(held):  # one may have been refused beside the request below: it comes again
            if c is None or select.select([c.sock], [], [], 0)[0]:
                if c:
                    c.close()
                held[i] = small.connect()
                held[i].send(half)
        reply = small.call("POST", "/v2/models/ident/infer", *binary(MB))
        if reply.status == 503:
            assert "--max-inflight-memory-mb" in reply.error() and "try again later" in reply.error()
        return reply.status == 503

    wait_until(is_refused)
    assert small.call("POST", "/v2/models/ident/infer", infer_body([1])).status == 200  # small ones go on
    assert small.call("GET", "/v2/health/live").status == 200
    for c in held:
        c.close()
    wait_until(lambda: small.call("POST", "/v2/models/ident/infer", *binary(MB)).status == 200)


def test_what_is_promised_and_not_sent_takes_nothing(small):
    held = [small.connect() for _ in range(20)]
    for c in held:
        c.send(b"POST /v2/models/ident/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2000000\r\n\r\nxx")
    for _ in range(5):
        assert small.call("POST", "/v2/models/ident/infer", *binary(MB // 4)).status == 200
    for c in held:
        c.close()


def test_grpc_messages_count(small):
    grpc = pytest.importorskip("grpc")
    if "without the gRPC library" in small.log():
        pytest.skip("the server was built without gRPC")
    from tritonclient.grpc import service_pb2 as pb
    from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub
    with grpc.insecure_channel(f"127.0.0.1:{small.grpc}") as channel:
        stub = GRPCInferenceServiceStub(channel)

        def ask(n_bytes, typed=False, packed=None):
            r = pb.ModelInferRequest(model_name="ident")
            i = r.inputs.add(name="INPUT0", datatype="INT32", shape=[n_bytes // 4])
            if typed:
                i.contents.int_contents.extend([1 << 30] * (n_bytes // 4))
            else:
                r.raw_input_contents.append(bytes(n_bytes))
            return stub.ModelInfer(r, timeout=60, compression=packed)

        for typed, packed in ((False, None), (True, None), (False, grpc.Compression.Gzip), (True, grpc.Compression.Deflate)):
            with pytest.raises(grpc.RpcError) as e:
                ask(3 * MB, typed, packed)
            assert e.value.code() == grpc.StatusCode.INVALID_ARGUMENT
            assert "--max-request-memory-mb" in e.value.details()
            ask(MB // 4, typed, packed)
        with pytest.raises(grpc.RpcError) as e:
            ask(3 * MB // 2)
        assert "--max-request-memory-mb" in e.value.details() and "for its answer, and has" in e.value.details()


def test_grpc_messages_that_never_end_take_a_limited_memory(launch, repository):
    """One connection begins 96 messages of 8 MB, where 64 MB may be held; meanwhile another client is served. limits: GRPC_RECEIVE_MEMORY"""
    client = pytest.importorskip("tritonclient.grpc")
    np = pytest.importorskip("numpy")
    s = launch(repository, "--max-inflight-memory-mb=64", f"--grpc-max-message-size={8 * MB}").wait_ready()
    if "without the gRPC library" in s.log():
        pytest.skip("the server was built without gRPC")
    with client.InferenceServerClient(f"127.0.0.1:{s.grpc}") as other:

        def echo(n):
            x = client.InferInput("INPUT0", [n], "INT32")
            x.set_data_from_numpy(np.arange(n, dtype=np.int32))
            return other.infer("ident", [x], client_timeout=20).as_numpy("OUTPUT0").tolist() == list(range(n))

        assert echo(1)
        before = rss(s)
        attack = HalfSent(s.grpc, 96, 8 * MB)
        try:
            attack.push(1)
            wait_until(lambda: rss(s) - before < 128 * MB, 20)  # that of streams that were reset goes back a little later
            assert echo(1) and echo(MB // 4)
        finally:
            attack.close()
        assert echo(MB)


def test_limits_are_off_when_the_machine_is_large_enough(launch, repository):
    s = launch(repository).wait_ready()
    assert s.call("POST", "/v2/models/ident/infer", *binary(16 * MB)).status == 200
    assert "not given back" not in log_of_stopped(s)


def rss(server):
    """Bytes of memory that the server's process has now."""
    return int(pathlib.Path(f"/proc/{server.process.pid}/statm").read_text().split()[1]) * 4096


def test_memory_that_large_requests_have_freed_goes_back(launch, repository):
    """The C library would keep most of it in the arenas of the threads that read and answered them."""
    s = launch(repository).wait_ready()
    assert s.call("POST", "/v2/models/ident/infer", infer_body([1])).status == 200
    before = rss(s)
    body = infer_body(list(range(1_000_000)))
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        replies = list(pool.map(lambda _: s.call("POST", "/v2/models/ident/infer", body).status, range(16)))
    assert replies == [200] * 16
    kept = rss(s) - before
    assert kept > 40 << 20  # else there is nothing to give back
    wait_until(lambda: rss(s) - before < kept * 3 // 4, 20)  # some of it stays in use
