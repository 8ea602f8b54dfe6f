# SPDX-License-Identifier: Apache-2.0
"""A client that only ends its own sending gets its answers; one that is gone is cancelled at once."""
import json
import socket
import struct
import time

import pytest

from triton_server import Connection, Server, delay, infer_body, wait_until, write_model

SLOW_MS = 1500
CANCELLED = 'nv_inference_request_failure{model="slow",reason="CANCELED",version="1"}'


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    write_model(folder, "echo")
    write_model(folder, "slow", extra=delay(SLOW_MS))
    s = Server(tmp_path_factory.mktemp("log"), folder, "--log-verbose=1")
    try:
        yield s.wait_ready()
    finally:
        assert s.stop() == 0


def request(model, n, version="1.1", path="infer"):
    body = json.dumps(infer_body([n]) if path == "infer" else {"INPUT0": n}).encode()
    return b"POST /v2/models/%s/%s HTTP/%s\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % (
        model.encode(), path.encode(), version.encode(), len(body)) + body


def everything(c):
    data = c.buffer
    while piece := c.sock.recv(1 << 16):
        data += piece
    return data


def final_replies(data):
    """The replies without interim ones."""
    out = []
    while data:
        head, data = data.split(b"\r\n\r\n", 1)
        status = int(head.split()[1])
        if status >= 200:
            n = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            out.append((status, json.loads(data[:n])))
            data = data[n:]
    return out


def test_a_half_closed_client_gets_its_answer(server):
    with server.connect() as c:
        c.send(request("slow", 7))
        c.sock.shutdown(socket.SHUT_WR)
        [(status, answer)] = final_replies(everything(c))
        assert status == 200 and answer["outputs"][0]["data"] == [7]


def test_the_end_may_come_later_than_the_request(server):
    with server.begins("slow"):
        c = server.connect()
        c.send(request("slow", 8))
    c.sock.shutdown(socket.SHUT_WR)
    assert final_replies(everything(c))[0][1]["outputs"][0]["data"] == [8]
    c.close()


def test_several_pipelined_requests_are_all_answered(server):
    with server.connect() as c:
        c.send(request("echo", 1) + request("slow", 2) + request("echo", 3) + b"POST /v2/cut")
        c.sock.shutdown(socket.SHUT_WR)
        found = final_replies(everything(c))
    assert [a["outputs"][0]["data"] for _, a in found] == [[1], [2], [3]]


def test_a_stream_goes_on(server):
    with server.connect() as c:
        c.send(request("slow", 9, path="generate_stream"))
        c.sock.shutdown(socket.SHUT_WR)
        data = everything(c)
    assert b"200 OK" in data and b'data: {"OUTPUT0":9' in data and data.endswith(b"0\r\n\r\n")


def test_a_request_that_is_cut_gets_nothing(server):
    whole = request("echo", 1)
    for n in (1, 20, len(whole) - 1):
        with server.connect() as c:
            c.send(whole[:n])
            c.sock.shutdown(socket.SHUT_WR)
            assert everything(c) == b""


@pytest.mark.parametrize("how", ["close", "reset"])
@pytest.mark.parametrize("path", ["infer", "generate", "generate_stream"])
def test_a_client_that_is_gone_is_cancelled_at_once(server, how, path):
    before = server.call_metrics().get(CANCELLED, 0)
    with server.begins("slow"):
        first = server.connect()
        first.send(request("slow", 1))
        waiting = server.connect()  # its turn comes when the first is done
        waiting.send(request("slow", 2, path=path))
        server.wait_pending("slow", 1)
    if how == "reset":
        waiting.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    at = time.monotonic()
    waiting.close()
    wait_until(lambda: server.call_metrics().get(CANCELLED, 0) == before + 1)
    assert time.monotonic() - at < SLOW_MS / 1000 / 2
    assert first.reply().status == 200
    first.close()


def test_http_1_0_counts_as_gone(server):
    """It knows no interim answer to ask with."""
    with server.connect() as c:
        c.send(request("slow", 5, version="1.0"))
        c.sock.shutdown(socket.SHUT_WR)
        assert everything(c) == b""
