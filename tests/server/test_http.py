# SPDX-License-Identifier: Apache-2.0
"""The HTTP service of a real server: endpoints, errors, limits, connections."""
import concurrent.futures
import gzip
import json
import math
import socket
import struct
import time

import pytest

from triton_server import Connection, infer_body

INFER = "/v2/models/ident/infer"


def metric(server, name, **labels):
    with Connection(server.metrics) as c:
        reply = c.call("GET", "/metrics")
    assert reply.status == 200
    want = ",".join(f'{k}="{v}"' for k, v in sorted(labels.items()))
    for line in reply.body.decode().splitlines():
        if line.startswith(f"{name}{{{want}}} "):
            return int(line.rsplit(" ", 1)[1])
    return None


# ---- health, metadata, control ----

def test_health_and_model_readiness(server):
    for path in ("/v2/health/live", "/v2/health/ready", "/v2/models/ident/ready",
                 "/v2/models/ident/versions/1/ready"):
        reply = server.call("GET", path)
        assert (reply.status, reply.body) == (200, b"")
    assert server.call("GET", "/v2/models/nothing/ready").status in (400, 404)


def test_metadata_names_server_and_model(server):
    meta = server.call("GET", "/v2").json()
    assert meta["name"] == "triton" and "binary_tensor_data" in meta["extensions"]
    model = server.call("GET", "/v2/models/ident").json()
    assert model["name"] == "ident" and model["versions"] == ["1"]
    assert model["inputs"] == [{"name": "INPUT0", "datatype": "INT32", "shape": [-1]}]
    config = server.call("GET", "/v2/models/ident/config").json()
    assert config["name"] == "ident" and config["backend"] == "identity"


def test_statistics_count_requests(server):
    path = "/v2/models/ident/stats"
    before = server.call("GET", path).json()["model_stats"][0]["inference_count"]
    assert server.call("POST", INFER, infer_body([1])).status == 200
    deadline = time.monotonic() + 10
    while server.call("GET", path).json()["model_stats"][0]["inference_count"] != before + 1:
        assert time.monotonic() < deadline
    names = {m["name"] for m in server.call("GET", "/v2/models/stats").json()["model_stats"]}
    assert {"ident", "text", "slow"} <= names


def test_repository_index_lists_models(server):
    index = server.call("POST", "/v2/repository/index").json()
    assert {m["name"]: m.get("state") for m in index}["ident"] == "READY"


def test_load_is_refused_outside_explicit_mode(server):
    reply = server.call("POST", "/v2/repository/models/ident/load")
    assert reply.status in (400, 503) and "model load / unload is not allowed" in reply.error()


def test_explicit_mode_loads_and_unloads(launch, repository):
    s = launch(repository, "--model-control-mode=explicit", "--load-model=ident").wait_ready()
    assert s.call("POST", "/v2/models/text/infer", infer_body(["a"], "BYTES")).status >= 400
    assert s.call("POST", "/v2/repository/models/text/load").status == 200
    assert s.call("POST", "/v2/models/text/infer", infer_body(["a"], "BYTES")).status == 200
    assert s.call("POST", "/v2/repository/models/text/unload").status == 200
    deadline = time.monotonic() + 20
    while s.call("GET", "/v2/models/text/ready").status == 200:
        assert time.monotonic() < deadline
    assert s.call("POST", "/v2/repository/models/nothing/load").status >= 400


def test_log_settings_change_at_run_time(server):
    settings = server.call("POST", "/v2/logging", {"log_verbose_level": 1}).json()
    assert settings["log_verbose_level"] == 1 and settings["log_info"] is True
    assert server.call("POST", "/v2/logging", {"log_verbose_level": 0}).status == 200
    assert server.call("POST", "/v2/logging", {"log_info": "x"}).status == 500


def test_metrics_count_inferences(server):
    name = "nv_inference_request_success"
    before = metric(server, name, model="ident", version="1")
    assert server.call("POST", INFER, infer_body([1])).status == 200
    deadline = time.monotonic() + 10
    while metric(server, name, model="ident", version="1") != before + 1:
        assert time.monotonic() < deadline
    with Connection(server.metrics) as c:
        assert c.call("GET", "/metrics").fields["content-type"] == "text/plain; charset=utf-8"
        assert b"# HELP nv_inference_count" in c.call("GET", "/metrics/").body
        assert c.call("POST", "/metrics").status == 405
        other = c.call("GET", "/other")  # Triton has an empty answer for every other path
        assert (other.status, other.body) == (200, b"")


# ---- infer ----

def test_json_tensors_return(server):
    reply = server.call("POST", INFER, dict(infer_body([1, -2, 3]), id="my-id"))
    assert reply.status == 200, reply.body
    answer = reply.json()
    assert answer["id"] == "my-id" and answer["model_version"] == "1"
    assert answer["outputs"] == [{"name": "OUTPUT0", "datatype": "INT32", "shape": [3],
                                  "data": [1, -2, 3]}]


def test_text_tensors_return(server):
    values = ["", "héllo \"w\"\n", "日本", "x" * 5000]
    reply = server.call("POST", "/v2/models/text/infer", infer_body(values, "BYTES"))
    assert reply.json()["outputs"][0]["data"] == values


def test_long_json_tensors_return_and_take_little_memory(server):
    values = [i * 37 % 100_003 - 50_000 for i in range(300_000)]
    reply = server.call("POST", INFER, infer_body(values))
    assert reply.json()["outputs"][0]["data"] == values
    body = json.dumps(infer_body([1] * 9_000_000), separators=(",", ":")).encode()
    reply = server.call("POST", INFER, body)
    assert reply.status == 200
    peak = [line for line in open(f"/proc/{server.process.pid}/status") if "VmHWM" in line][0]
    assert int(peak.split()[1]) < 700_000, peak  # kB; a tree of the numbers alone takes 360 MB more
    reply = server.call("POST", INFER, body[:-10])
    assert reply.status == 500
    reply = server.call("POST", "/v2/models/text/generate", b'{"x":[' + b"1," * 5_000_000 + b"1]}")
    assert reply.status == 500 and "values" in reply.error()


def binary_infer(connection, model, dtype, shape, raw, binary_out=True):
    head = json.dumps({"parameters": {"binary_data_output": binary_out},
                       "inputs": [{"name": "INPUT0", "datatype": dtype, "shape": shape,
                                   "parameters": {"binary_data_size": len(raw)}}]}).encode()
    reply = connection.call("POST", f"/v2/models/{model}/infer", head + raw,
                            {"Inference-Header-Content-Length": len(head)})
    if reply.status != 200 or not binary_out:
        return reply, None
    n = int(reply.fields["inference-header-content-length"])
    return json.loads(reply.body[:n]), reply.body[n:]


@pytest.mark.parametrize("n", [1, 5000, 100_000, 20_000_000])
def test_binary_tensors_return_unharmed(server, n):
    raw = bytes(i * 31 % 251 for i in range(251)) * (n // 251 + 1)
    raw = raw[:n]
    with server.connect() as c:
        head, out = binary_infer(c, "bytes", "UINT8", [n], raw)
        assert head["outputs"][0]["parameters"]["binary_data_size"] == n
        assert out == raw


def test_long_bodies_one_after_the_other_on_one_connection(server):
    """Each fills the connection's buffer and is longer than what is read at a time (1 MB): the rest is told again."""
    raw = bytes(1 << 20)
    with server.connect(timeout=30) as c:
        for _ in range(60):
            head, out = binary_infer(c, "bytes", "UINT8", [len(raw)], raw)
            assert len(out) == len(raw)


@pytest.mark.parametrize("count", [1, 3000])  # long arrays are read another way
def test_json_numbers_may_be_nan_and_infinite(server, count):
    data = ",".join(["NaN,Infinity,-Infinity,Inf,-Inf,1.5"] * count)
    body = (f'{{"inputs":[{{"name":"INPUT0","datatype":"FP32","shape":[{6 * count}],"data":[{data}]}}]}}')
    reply = server.call("POST", "/v2/models/floats/infer", body.encode())
    assert reply.status == 200, reply.body
    got = reply.json()["outputs"][0]["data"][-6:]
    assert math.isnan(got[0]) and got[1:] == [math.inf, -math.inf, math.inf, -math.inf, 1.5]
    for wrong in ("nan", "Nan", "+Infinity", "- Inf", "Infinit"):
        body = body.replace("1.5", wrong, 1) if "1.5" in body else body
        reply = server.call("POST", "/v2/models/floats/infer", body.encode())
        assert reply.status == 500 and "failed to parse the request JSON buffer" in reply.error()
        body = body.replace(wrong, "1.5", 1)
    reply = server.call("POST", INFER, body.replace("FP32", "INT32").encode())
    assert reply.status >= 400


def test_codings_are_named_in_any_case(server):
    body = gzip.compress(json.dumps(infer_body([7])).encode())
    reply = server.call("POST", INFER, body, {"Content-Encoding": "GZIP", "Accept-Encoding": "GZip"})
    assert reply.status == 200 and reply.fields["content-encoding"] == "gzip"
    assert json.loads(gzip.decompress(reply.body))["outputs"][0]["data"] == [7]


def test_single_answers_have_a_length_and_streams_have_chunks(server):
    with server.connect() as c:
        c.request("POST", "/v2/models/ident/generate", {"INPUT0": [1]})
        status, fields = c.head()
        assert status == 200 and "content-length" in fields and "transfer-encoding" not in fields
    with server.connect() as c:
        c.request("POST", "/v2/models/ident/generate_stream", {"INPUT0": [1]})
        status, fields = c.head()
        assert status == 200 and fields["transfer-encoding"] == "chunked"


def test_shared_memory_key_must_be_a_text(server):
    for key in (5, None, ["a"]):
        reply = server.call("POST", "/v2/systemsharedmemory/region/r/register",
                            {"key": key, "byte_size": 4})
        assert reply.status == 500
        assert reply.error() == "attempt to access JSON non-string as string"


def test_half_floats_need_binary(server):
    reply = server.call("POST", "/v2/models/half/infer", infer_body([1.0], "FP16"))
    assert reply.status == 400 and "receiving FP16 data via JSON is not supported" in reply.error()
    with server.connect() as c:
        assert binary_infer(c, "half", "FP16", [1], b"\0\x3c")[1] == b"\0\x3c"
        reply, _ = binary_infer(c, "half", "FP16", [1], b"\0\x3c", binary_out=False)
        assert reply.status == 400 and "sending FP16 data via JSON" in reply.error()


def test_official_client_agrees(server):
    httpclient = pytest.importorskip("tritonclient.http")
    numpy = pytest.importorskip("numpy")
    client = httpclient.InferenceServerClient(f"127.0.0.1:{server.http}")
    assert client.is_server_live() and client.is_server_ready() and client.is_model_ready("ident")
    values = numpy.arange(100, dtype=numpy.int32)
    for binary in (True, False):
        for packing in (None, "gzip", "deflate"):
            tensor = httpclient.InferInput("INPUT0", values.shape, "INT32")
            tensor.set_data_from_numpy(values, binary_data=binary)
            wanted = httpclient.InferRequestedOutput("OUTPUT0", binary_data=binary)
            result = client.infer("ident", [tensor], outputs=[wanted], request_id="7",
                                  request_compression_algorithm=packing,
                                  response_compression_algorithm=packing)
            assert (result.as_numpy("OUTPUT0") == values).all()
    words = numpy.array([b"a", "\u00e9".encode(), b""], dtype=object)
    tensor = httpclient.InferInput("INPUT0", words.shape, "BYTES")
    tensor.set_data_from_numpy(words)
    assert list(client.infer("text", [tensor]).as_numpy("OUTPUT0")) == list(words)
    client.close()


@pytest.mark.parametrize("body, status, text", [
    (b"{", 500, "failed to parse the request JSON buffer: "),
    (b"{}", 500, "Unable to parse 'inputs'"),
    (b"[]", 500, "Unable to parse 'inputs'"),
    (b"{\"inputs\":[{}]}", 400, "no field is set"),
    (json.dumps(infer_body([1], "INT64")).encode(), 400, "INPUT0"),
    (json.dumps(infer_body(["a"], "BYTES")).encode(), 400, "INPUT0"),
    (json.dumps(infer_body([1.5])).encode(), 500, "Unable to parse 'data'"),
    (b"{\"inputs\":[]}", 400, "ident"),
    (json.dumps({**infer_body([1]), "outputs": [{"name": "OUTPUT0"}] * 2}).encode(), 400, "output 'OUTPUT0' already exists in request"),
    (json.dumps({"inputs": [{**infer_body([1])["inputs"][0], "shape": [2 ** 62, 4]}]}).encode(), 400,
     "causes total element count to exceed maximum size of 9223372036854775807"),
    (b"\xff\xfe", 500, "failed to parse the request JSON buffer: "),
    (b"[" * 100_000, 500, "failed to parse the request JSON buffer: "),
])
def test_bad_infer_requests_are_explained(server, body, status, text):
    """limits: JSON_DEPTH"""
    reply = server.call("POST", INFER, body)
    assert (reply.status, text in reply.error()) == (status, True), reply.body
    assert server.call("GET", "/v2/health/live").status == 200


def test_wrong_input_name_and_unknown_model(server):
    body = infer_body([1])
    body["inputs"][0]["name"] = "other"
    reply = server.call("POST", INFER, body)
    assert reply.status == 400 and "other" in reply.error()
    reply = server.call("POST", "/v2/models/nothing/infer", infer_body([1]))
    assert reply.status == 404 and "Request for unknown model: 'nothing' is not found" in reply.error()
    reply = server.call("POST", "/v2/models/ident/versions/9/infer", infer_body([1]))
    assert reply.status in (400, 404)


def test_unknown_paths_and_methods(server):
    assert server.call("GET", "/v3").status == 404
    assert server.call("GET", INFER).status == 405
    assert server.call("DELETE", "/v2/models/ident").status == 405


def test_generate_works_on_any_model(server):
    reply = server.call("POST", "/v2/models/text/generate", {"INPUT0": ["a", "b"], "x": 1})
    assert reply.status == 200, reply.body
    assert reply.json()["OUTPUT0"] == ["a", "b"]
    assert list(reply.json()) == sorted(reply.json())
    with server.connect() as c:
        c.request("POST", "/v2/models/text/generate_stream", {"INPUT0": "a"})
        reply = c.reply()
    assert reply.fields["content-type"] == "text/event-stream; charset=utf-8"
    assert reply.body.startswith(b"data: {") and reply.body.endswith(b"}\n\n")
    assert json.loads(reply.body[6:])["OUTPUT0"] == "a"


# ---- limits and wrong HTTP ----

def test_body_of_100_mb_is_refused_without_losing_the_answer(server):
    reply = server.call("POST", INFER, b"x" * 100_000_000)
    assert reply.status == 400 and "--http-max-input-size" in reply.error()


def test_input_limit_can_be_changed(launch, repository):
    s = launch(repository, "--http-max-input-size=1000").wait_ready()
    assert s.call("POST", INFER, b" " * 1001).status == 400
    reply = s.call("POST", INFER, b" " * 1000)
    assert "--http-max-input-size" not in reply.error()


@pytest.mark.parametrize("head, status", [
    ("POST /v2/models/ident/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n"
     "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /v2 HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
    ("POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n", 400),
    ("POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n", 400),
    ("POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999999999999\r\n\r\n", 400),
    ("POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1 1\r\n\r\n", 400),
    ("POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip\r\n\r\n", 501),
    ("POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
    ("GET / HTTP/1.1\r\n\r\n", 400),
    ("GET / HTTP/9.9\r\nHost: localhost\r\n\r\n", 505),
    ("nonsense\r\n\r\n", 400),
    ("GET / HTTP/1.1\nHost: localhost\n\n", 400),
    ("GET / HTTP/1.1\r\nHost: localhost\r\nHost: i\r\n\r\n", 400),
    ("GET / HTTP/1.1\r\nHost : h\r\n\r\n", 400),
    ("GET / HTTP/1.1\r\nHost: localhost\r\nx: a\r\n b\r\n\r\n", 400),
    ("GET / HTTP/1.1\r\nHost: localhost\n\r\n", 400),
    ("GET / HTTP/1.1\r\nHost: localhost\r\n" + "x: " + "y" * 70_000 + "\r\n\r\n", 431),
    ("GET / HTTP/1.1\r\nHost: localhost\r\n" + "x: y\r\n" * 200 + "\r\n", 431),
])
def test_malformed_http_gets_one_answer_and_the_connection_ends(server, head, status):
    """limits: HTTP_HEAD, HTTP_HEADERS"""
    with server.connect() as c:
        c.send(head)
        reply = c.reply()
        assert reply.status == status and "error" in reply.json()
        assert reply.fields["connection"] == "close"
        c.sock.shutdown(socket.SHUT_WR)
        assert c.is_closed()


def test_chunked_request_bodies(server):
    body = json.dumps(infer_body([4, 5])).encode()
    with server.connect() as c:
        c.send(f"POST {INFER} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
        for i in range(0, len(body), 7):
            piece = body[i:i + 7]
            c.send(b"%x\r\n%s\r\n" % (len(piece), piece))
        c.send(b"0\r\n\r\n")
        assert c.reply().json()["outputs"][0]["data"] == [4, 5]
        assert c.call("GET", "/v2/health/live").status == 200


# ---- connections ----

def test_connection_is_kept_and_pipelining_keeps_order(server):
    with server.connect() as c:
        for i in range(100):
            assert c.call("POST", INFER, infer_body([i])).json()["outputs"][0]["data"] == [i]
        for i in range(200):
            c.request("POST", INFER, infer_body([i]))
        for i in range(200):
            assert c.reply().json()["outputs"][0]["data"] == [i]


def test_many_concurrent_clients(server):
    def client(k):
        with server.connect() as c:
            for i in range(25):
                data = c.call("POST", INFER, infer_body([k, i])).json()["outputs"][0]["data"]
                assert data == [k, i]
        return k

    with concurrent.futures.ThreadPoolExecutor(32) as pool:
        assert sorted(pool.map(client, range(64))) == list(range(64))


def test_five_hundred_idle_connections_do_no_harm(server):
    idle = [server.connect() for _ in range(500)]
    assert server.call("POST", INFER, infer_body([1])).status == 200
    for c in idle:
        c.close()


def test_disconnect_leaves_the_server_working(server):
    for _ in range(20):
        c = server.connect()
        c.request("POST", "/v2/models/slow/infer", infer_body([1]))
        c.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        c.close()
    assert server.call("POST", "/v2/models/slow/infer", infer_body([2])).status == 200


def test_slow_reader_does_not_hold_up_others(server):
    raw = b"z" * 20_000_000
    with server.connect(rcvbuf=4096) as slow:
        head = json.dumps({"parameters": {"binary_data_output": True},
                           "inputs": [{"name": "INPUT0", "datatype": "UINT8", "shape": [len(raw)],
                                       "parameters": {"binary_data_size": len(raw)}}]}).encode()
        slow.request("POST", "/v2/models/bytes/infer", head + raw,
                     {"Inference-Header-Content-Length": len(head)})
        slow.sock.recv(100)
        for _ in range(50):
            start = time.monotonic()
            assert server.call("POST", INFER, infer_body([1])).status == 200
            assert time.monotonic() - start < 5


def test_slow_requests_run_side_by_side(server):
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        start = time.monotonic()
        calls = [pool.submit(server.call, "POST", "/v2/models/slow/infer", infer_body([i]))
                 for i in range(4)]
        assert all(c.result().status == 200 for c in calls)
        assert 0.25 < time.monotonic() - start < 1.0


# ---- trace ----

def test_trace_settings_and_file(launch, tmp_path, repository):
    path = tmp_path / "trace.json"
    s = launch(repository, f"--trace-config=triton,file={path}", "--trace-config=rate=1").wait_ready()
    settings = s.call("GET", "/v2/trace/setting").json()
    assert settings == {"trace_level": ["OFF"], "trace_rate": "1", "trace_count": "-1",
                        "log_frequency": "0", "trace_file": str(path), "trace_mode": "triton"}
    reply = s.call("POST", "/v2/models/ident/trace/setting", {"trace_level": ["TIMESTAMPS"],
                                                               "trace_count": "2"})
    assert reply.json()["trace_level"] == ["TIMESTAMPS"] and reply.json()["trace_count"] == "2"
    assert s.call("GET", "/v2/trace/setting").json()["trace_level"] == ["OFF"]
    for i in range(5):
        s.call("POST", INFER, dict(infer_body([i]), id=f"r{i}"))
    s.call("POST", "/v2/models/text/infer", infer_body(["x"], "BYTES"))
    assert s.call("GET", "/v2/models/ident/trace/setting").json()["trace_count"] == "0"
    reply = s.call("POST", "/v2/models/ident/trace/setting", {"trace_level": None})
    assert reply.json()["trace_level"] == ["OFF"]
    assert s.stop() == 0
    entries = json.loads(path.read_text())
    # A trace is written when its model is done with it, which may be after the next request's.
    heads = sorted((e for e in entries if "model_name" in e), key=lambda e: e["request_id"])
    assert [h["request_id"] for h in heads] == ["r0", "r1"]
    assert {h["model_name"] for h in heads} == {"ident"}
    stamps = {e["timestamps"][0]["name"]: e["timestamps"][0]["ns"] for e in entries
              if "timestamps" in e and e["id"] == heads[0]["id"]}
    # A backend reports the end of its computation after it has sent the answer.
    order = ["HTTP_RECV_START", "HTTP_RECV_END", "REQUEST_START", "QUEUE_START", "COMPUTE_START",
             "INFER_RESPONSE_COMPLETE", "HTTP_SEND_START", "HTTP_SEND_END"]
    assert set(order + ["COMPUTE_END", "REQUEST_END"]) <= set(stamps)
    assert [stamps[n] for n in order] == sorted(stamps[n] for n in order)


@pytest.mark.parametrize("body, status, text", [
    ({"trace_level": ["TIMESTAMPS"]}, 400, "trace file name is not given"),
    ({"trace_level": ["OFF", "TENSORS"]}, 400, "Expect only one trace level 'OFF' is specified"),
    ({"trace_rate": "x"}, 400, "Unable to parse 'trace_rate', got: x"),
    ({"trace_rate": "0"}, 400, "out of range"),
    ({"trace_count": "-2"}, 400, "Unable to parse 'trace_count'"),
    ({"trace_file": "x"}, 501, "trace file location can not be updated through network protocol"),
])
def test_wrong_trace_settings_change_nothing(server, body, status, text):
    before = server.call("GET", "/v2/trace/setting").json()
    reply = server.call("POST", "/v2/trace/setting", body)
    assert (reply.status, text in reply.error()) == (status, True), reply.body
    assert server.call("GET", "/v2/trace/setting").json() == before
    assert server.call("GET", "/v2/models/nothing/trace/setting").status == 400
