# SPDX-License-Identifier: Apache-2.0
"""Requests with large pictures are read beside others: neither text nor a small picture waits for them, and they end as any request does."""
import base64
import json
import re
import socket
import struct
import sys
import threading
import time
import zlib

import pytest

from llm_server import ROOT, Server, wait_until

sys.path.insert(0, str(ROOT / "tests" / "tinymodel"))
import vision  # noqa: E402

SIDE = 8192  # 64 megapixels, all that a picture may have: seconds to decode
READERS = 4  # NRD_LLM_MAX_READERS: so many of an instance are read at a time
QUICK = 5  # texts; of those that waited for the picture at most one came before it


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    tmp = tmp_path_factory.mktemp("wait")
    vision.write_folder(tmp / "llava")
    s = Server(tmp / "llava", tmp, "--build", "--dtype=float32", "--build", "--kv_cache_dtype=float32").wait_ready()
    yield s
    s.stop()


def large(broken=False):
    """A white PNG of 200 kB. Broken: its last rows are missing, which the reader sees at its end."""
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    pack, row = zlib.compressobj(1), b"\0" + b"\xff" * (3 * SIDE)
    rows = b"".join(pack.compress(row) for _ in range(SIDE - 8 * broken)) + pack.flush()
    head = struct.pack(">IIBBBBB", SIDE, SIDE, 8, 2, 0, 0, 0)
    png = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")
    return base64.b64encode(png).decode()


LARGE = large()
SMALL = base64.b64encode(vision.png(vision.pixels(*vision.PICTURES[2]))).decode()


def content(*pictures):
    return [*({"type": "image_url", "image_url": {"url": f"data:image/png;base64,{p}"}} for p in pictures),
            {"type": "text", "text": "the quick fox"}]


def chat_body(*pictures, **more):
    return {"model": "ensemble", "messages": [{"role": "user", "content": content(*pictures)}], "max_tokens": 4, "temperature": 0,
            "ignore_eos": True, **more}


def ollama_body(*pictures):
    return {"model": "ensemble", "stream": False, "options": {"temperature": 0, "num_predict": 4},
            "messages": [{"role": "user", "content": "the quick fox", "images": list(pictures)}]}


def model_body(server, *pictures, **more):
    ids = server.request("/tokenize", {"prompt": "<image>" * len(pictures) + "the quick fox", "add_special_tokens": False})[1]["tokens"]
    return {"input_ids": ids, "input_lengths": [len(ids)], "request_output_len": [4], "exclude_input_in_output": True,
            **({"images": ",".join(pictures)} if pictures else {}), **more}


class Sent:
    """A request on its way: its whole body is sent when the constructor returns."""

    def __init__(self, server, path, body, order=None, name=None, head=""):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.socket = socket.create_connection(("127.0.0.1", server.http))
        self.socket.sendall(f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
        self.thread = threading.Thread(target=self.read, args=(order, name))
        self.thread.start()

    def read(self, order, name):
        data = b""
        try:
            while piece := self.socket.recv(1 << 16):
                data += piece
        except OSError:
            pass  # it was closed here
        if order is not None:
            order.append(name)
        self.data = data

    def is_open(self):
        return self.thread.is_alive()

    def answer(self):
        self.thread.join(120)
        status = int(re.match(rb"HTTP/1.1 (\d+)", self.data).group(1))
        return status, self.data.split(b"\r\n\r\n", 1)[1].decode()

    def close(self):
        self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()
        self.thread.join(20)


WAYS = [("/v1/chat/completions", lambda s, *p: chat_body(*p)), ("/api/chat", lambda s, *p: ollama_body(*p)),
        ("/v2/models/tensorrt_llm/generate", model_body)]


@pytest.mark.parametrize("path, body", WAYS, ids=[p for p, _ in WAYS])
def test_text_is_answered_while_a_picture_is_read(server, path, body):
    order, text, status = [], body(server), []
    picture = Sent(server, path, body(server, LARGE), order, "picture")
    while picture.is_open() and len(status) < QUICK:
        status.append(server.request(path, text)[0])
        order.append("text")
    assert picture.answer()[0] == 200 and set(status) == {200}
    assert order == ["text"] * QUICK + ["picture"]


def test_text_is_answered_while_a_file_is_read(tmp_path):
    """The input image_files of tensorrt_llm, which takes a picture's bytes."""
    vision.write_folder(tmp_path / "llava")
    s = Server(tmp_path / "llava", tmp_path, "--build", "--dtype=float32", "--set", "decoupled_mode:False").wait_ready()
    try:
        path, ids = "/v2/models/tensorrt_llm/infer", model_body(s, LARGE)["input_ids"]
        png = base64.b64decode(LARGE)
        inputs = [{"name": n, "datatype": "INT32", "shape": [1, len(v)], "data": v}
                  for n, v in [("input_ids", ids), ("input_lengths", [len(ids)]), ("request_output_len", [4])]]
        file = {"name": "image_files", "datatype": "BYTES", "shape": [1, 1], "parameters": {"binary_data_size": len(png) + 4}}
        head = json.dumps({"inputs": [*inputs, file]}).encode()
        order = []
        picture = Sent(s, path, head + struct.pack("<I", len(png)) + png, order, "picture", f"Inference-Header-Content-Length: {len(head)}\r\n")
        text = model_body(s)
        while picture.is_open() and len(order) < QUICK:
            assert s.generate(text, "tensorrt_llm")[0] == 200
            order.append("text")
        status, answer = picture.answer()
        assert status == 200, answer
        assert order == ["text"] * QUICK + ["picture"]
    finally:
        s.stop()


@pytest.mark.parametrize("path, body", WAYS, ids=[p for p, _ in WAYS])
def test_a_small_picture_does_not_wait_for_a_large_one(server, path, body):
    order, small, status = [], body(server, SMALL), []
    picture = Sent(server, path, body(server, LARGE), order, "large")
    while picture.is_open() and len(status) < QUICK:
        status.append(server.request(path, small)[0])
        order.append("small")
    assert picture.answer()[0] == 200 and set(status) == {200}
    assert order == ["small"] * QUICK + ["large"]


def test_a_large_picture_that_is_broken_is_named(server):
    sent = [Sent(server, path, body(server, large(broken=True))) for path, body in WAYS]
    for s in sent:
        status, text = s.answer()
        assert status == 400 and "picture 0" in text, text
    assert server.request("/v1/chat/completions", chat_body(SMALL))[0] == 200


def test_a_request_is_stopped_while_its_picture_is_read(server):
    """It ends with no token, as one that is stopped before its first step."""
    path = "/v2/models/tensorrt_llm/generate"
    picture = Sent(server, path, model_body(server, LARGE, id="7"))
    stops = 0
    while picture.is_open():
        status, answer = server.generate(model_body(server, id="7", stop=True), "tensorrt_llm")
        assert status == 200, answer
        stops += picture.is_open()
    status, text = picture.answer()
    assert stops > 0 and status == 200 and json.loads(text)["sequence_length"] == 0, text


def test_a_client_that_goes_is_forgotten(server):
    pictures = [Sent(server, "/v1/chat/completions", chat_body(LARGE)) for _ in range(3)]
    for p in pictures:
        p.close()
    assert server.request("/v1/chat/completions", chat_body(SMALL))[0] == 200
    assert wait_until(lambda: server.metric("nv_trt_llm_request_metrics", request_type="active") == 0)


def test_more_pictures_than_may_wait_are_refused(tmp_path):
    """limits: PICTURES_WAITING; max_queue_size, where it is less"""
    vision.write_folder(tmp_path / "llava")
    s = Server(tmp_path / "llava", tmp_path, "--build", "--dtype=float32", "--set", "max_queue_size:1").wait_ready()
    try:
        answers = [x.answer() for x in [Sent(s, "/v1/chat/completions", chat_body(LARGE)) for _ in range(READERS + 3)]]
        refused = [text for status, text in answers if status == 503]
        assert refused and sum(status == 200 for status, _ in answers) + len(refused) == READERS + 3, answers
        assert all("aximum queue size" in text for text in refused), refused  # the reader's, or where Execute is busy the server's
        assert s.request("/v1/chat/completions", chat_body(SMALL))[0] == 200
    finally:
        s.stop()


@pytest.mark.parametrize("how", ["unload", "end"])
def test_pictures_that_wait_are_answered_before_the_model_goes(tmp_path, how):
    vision.write_folder(tmp_path / "llava")
    s = Server(tmp_path / "llava", tmp_path, "--build", "--dtype=float32", "--model-control-mode=explicit",
               "--load-model=ensemble").wait_ready()
    try:
        sent = [Sent(s, "/v1/chat/completions", chat_body(p)) for p in [*[LARGE] * READERS, SMALL]]
        until = time.monotonic() + 0.4
        while time.monotonic() < until:  # they come to tensorrt_llm: of a model that is gone before that they would be told
            assert s.request("/v1/chat/completions", chat_body())[0] == 200
        assert any(x.is_open() for x in sent)
        if how == "unload":
            assert s.request("/v2/repository/models/ensemble/unload", {"parameters": {"unload_dependents": True}})[0] == 200
        else:
            assert s.stop() == 0
        answers = [x.answer() for x in sent]
        assert [status for status, _ in answers] == [200] * (READERS + 1), answers
    finally:
        assert s.stop() == 0
