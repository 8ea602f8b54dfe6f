# SPDX-License-Identifier: Apache-2.0
"""Streams of a decoupled model; what happens when the client leaves."""
import json
import socket
import struct
import time

import pytest

from triton_server import Connection, Server, delay, write_model

DECOUPLED = """model_transaction_policy { decoupled: true }
parameters { key: "responses" value: { string_value: "%d" } }
"""


@pytest.fixture(scope="module")
def streams(tmp_path_factory):
    folder = tmp_path_factory.mktemp("streams")
    write_model(folder, "one", "TYPE_STRING", extra=DECOUPLED % 1)
    write_model(folder, "five", "TYPE_STRING", extra=DECOUPLED % 5)
    write_model(folder, "many", "TYPE_STRING", extra=DECOUPLED % 100_000)
    write_model(folder, "late", "TYPE_STRING", count=2, extra=delay(20_000))
    s = Server(tmp_path_factory.mktemp("log"), folder, "--log-verbose=1")
    try:
        yield s.wait_ready()
    finally:
        code = s.stop()
    assert code == 0, s.log()


def test_every_answer_is_one_event(streams):
    with streams.connect() as c:
        c.request("POST", "/v2/models/five/generate_stream", {"INPUT0": "é", "id": "x"})
        status, fields = c.head()
        events = b"".join(c.chunks()).decode().split("\n\n")
        assert status == 200 and fields["content-type"] == "text/event-stream; charset=utf-8"
        assert events.pop() == "" and len(events) == 5
        for event in events:
            answer = json.loads(event.removeprefix("data: "))
            assert list(answer) == sorted(answer)
            assert (answer["OUTPUT0"], answer["id"], answer["model_version"]) == ("é", "x", "1")
        assert c.call("GET", "/v2/health/live").status == 200  # the connection goes on


def test_generate_takes_exactly_one_answer(streams):
    reply = streams.call("POST", "/v2/models/one/generate", {"INPUT0": "a"})
    assert reply.json()["OUTPUT0"] == "a"
    reply = streams.call("POST", "/v2/models/five/generate", {"INPUT0": "a"})
    assert "generate expects model to produce exactly 1 response" in reply.error()


def test_infer_refuses_decoupled_models(streams):
    body = {"inputs": [{"name": "INPUT0", "datatype": "BYTES", "shape": [1], "data": ["a"]}]}
    reply = streams.call("POST", "/v2/models/five/infer", body)
    assert reply.status == 501
    assert "HTTP end point doesn't support models with decoupled transaction policy" == reply.error()


def test_long_stream_arrives_whole(streams):
    with streams.connect(timeout=120) as c:
        c.request("POST", "/v2/models/many/generate_stream", {"INPUT0": "a"})
        assert c.head()[0] == 200
        assert sum(chunk.count(b"data: ") for chunk in c.chunks()) == 100_000


def test_stream_that_nobody_reads_is_cut_and_others_go_on(streams):
    c = streams.connect(rcvbuf=4096)
    c.request("POST", "/v2/models/many/generate_stream", {"INPUT0": "x" * 1000})
    streams.wait_log("a client does not read its stream")
    assert streams.call("POST", "/v2/models/one/generate", {"INPUT0": "a"}).status == 200
    c.close()


def failures(server, model, reason):
    with Connection(server.metrics) as c:
        text = c.call("GET", "/metrics").body.decode()
    want = f'nv_inference_request_failure{{model="{model}",reason="{reason}",version="1"}} '
    return [int(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(want)][0]


@pytest.mark.parametrize("call", ["infer", "generate", "generate_stream"])
def test_disconnect_cancels_the_request(streams, call):
    body = {"INPUT0": "a"} if call != "infer" else {
        "inputs": [{"name": "INPUT0", "datatype": "BYTES", "shape": [1], "data": ["a"]}]}
    before = failures(streams, "late", "CANCELED")
    c = streams.connect()
    with streams.begins("late"):
        c.request("POST", f"/v2/models/late/{call}", body)
    c.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    c.close()
    deadline = time.monotonic() + 10  # the model itself would take twice as long
    while failures(streams, "late", "CANCELED") != before + 1:
        assert time.monotonic() < deadline
        time.sleep(0.02)
