# SPDX-License-Identifier: Apache-2.0
"""deploy/nginx/nereid.conf: who gets which request, streams as they come, and servers that are lost. With Debian's nginx."""
import http.client
import http.server
import json
import os
import shutil
import signal
import subprocess
import threading
import time

import pytest

from llm_server import ROOT, Server
from ports import free_ports  # llm_server has set its folder

NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
pytestmark = pytest.mark.skipif(not NGINX, reason="no nginx")
CONFIG = ROOT / "deploy/nginx/nereid.conf"


class Upstream(http.server.ThreadingHTTPServer):
    """Stands for a server: says who it is, streams two events and waits in between, or refuses everything."""

    def __init__(self, name):
        super().__init__(("127.0.0.1", 0), Answers)
        self.name, self.refuses, self.is_gone, self.first_was_read = name, False, False, threading.Event()
        self.thread = threading.Thread(target=self.serve_forever)
        self.thread.start()

    def end(self):
        self.is_gone = True
        self.shutdown()
        self.thread.join()
        self.server_close()


class Answers(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def event(self, text):
        data = f"data: {text}\n\n".encode()
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def do_POST(self):
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.server.is_gone:  # a connection that was kept open
            self.close_connection = True
            return
        if self.path.endswith("_stream"):
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.event("one")
            self.server.first_was_read.wait(60)
            self.event("two")
            self.wfile.write(b"0\r\n\r\n")
            return
        body = json.dumps({"server": self.server.name}).encode()
        self.send_response(503 if self.server.refuses else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class Nginx:
    def __init__(self, folder, http_ports, grpc_ports):
        self.http, self.grpc = free_ports(2)
        text = CONFIG.read_text()
        for number in (1, 2):
            text = text.replace(f"10.0.0.{number}:8000", f"127.0.0.1:{http_ports[number - 1]}")
            text = text.replace(f"10.0.0.{number}:8001", f"127.0.0.1:{grpc_ports[number - 1]}")
        text = text.replace("listen 80;", f"listen 127.0.0.1:{self.http};").replace("listen 8001 ", f"listen 127.0.0.1:{self.grpc} ")
        temp = "".join(f"{kind}_temp_path {folder}/{kind};\n" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
        user = "user root;\n" if os.geteuid() == 0 else ""
        (folder / "nginx.conf").write_text(f"{user}daemon off; worker_processes 1; pid {folder}/pid; error_log {folder}/errors;\n"
                                           f"events {{}}\nhttp {{\naccess_log off;\n{temp}{text}}}\n")
        self.log = folder / "errors"
        self.process = subprocess.Popen([NGINX, "-p", folder, "-e", self.log, "-c", folder / "nginx.conf"])
        until = time.monotonic() + 30
        while self.ask("/v2/repository/index", "any")[0] != 403:
            assert self.process.poll() is None and time.monotonic() < until, self.log.read_text()
            time.sleep(0.02)

    def connect(self, path, session, body=b"{}"):
        c = http.client.HTTPConnection("127.0.0.1", self.http, timeout=60)
        c.request("POST", path, body, {"X-Session-Id": session} if session else {})
        return c, c.getresponse()

    def ask(self, path, session, body=b"{}"):
        try:
            c, r = self.connect(path, session, body)
        except OSError:
            return 0, b""
        try:
            return r.status, r.read()
        finally:
            c.close()

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(30) == 0


@pytest.fixture
def two(tmp_path):
    upstreams = [Upstream(0), Upstream(1)]
    nginx = Nginx(tmp_path, [u.server_port for u in upstreams], free_ports(2))
    try:
        yield nginx, upstreams
    finally:
        nginx.end()
        for u in upstreams:
            u.end()


def served(nginx, session):
    status, body = nginx.ask("/v2/models/m/generate", session)
    assert status == 200, body
    return json.loads(body)["server"]


def test_a_session_stays_with_its_server_and_sessions_are_spread(two):
    nginx, _ = two
    first = {f"s{i}": served(nginx, f"s{i}") for i in range(24)}
    assert set(first.values()) == {0, 1}
    assert all(served(nginx, session) == server for session, server in first.items())
    assert len({served(nginx, None) for _ in range(4)}) == 1  # without one: by the client's address


def test_a_stream_comes_as_it_is_made(two):
    nginx, upstreams = two
    c, r = nginx.connect("/v2/models/m/generate_stream", "a")
    assert r.readline() == b"data: one\n"
    for u in upstreams:
        u.first_was_read.set()
    assert r.read() == b"\ndata: two\n\n"
    c.close()


@pytest.mark.parametrize("how", ["refuses", "is gone"])
def test_a_server_that_is_lost_loses_no_request(two, how):
    nginx, upstreams = two
    mine = [s for s in (f"s{i}" for i in range(24)) if served(nginx, s) == 0]
    if how == "refuses":
        upstreams[0].refuses = True
    else:
        upstreams[0].end()
    assert [served(nginx, s) for s in mine] == [1] * len(mine)
    if how == "refuses":
        upstreams[0].refuses = False
        until = time.monotonic() + 60  # it comes back when its time is over
        while served(nginx, mine[0]) != 0:
            assert time.monotonic() < until
            time.sleep(0.1)
    else:
        upstreams[0] = Upstream(0)  # something to end


def test_requests_that_change_a_server_are_refused(two):
    nginx, _ = two
    for path in ("repository/models/m/load", "logging", "trace/setting", "systemsharedmemory/region/r/register"):
        assert nginx.ask(f"/v2/{path}", "a")[0] == 403


def test_nereid_answers_through_it_on_both_protocols(tiny_model, cache, tmp_path):
    import grpc
    s = Server(tiny_model, cache).wait_ready()
    gone = free_ports(2)
    nginx = Nginx(tmp_path, [s.http, gone[0]], [s.grpc, gone[1]])
    try:
        question = {"text_input": "A", "max_tokens": 12, "top_k": 1}
        status, alone = s.generate(question)
        assert status == 200
        for session in "abcd":
            status, body = nginx.ask("/v2/models/ensemble/generate", session, json.dumps(question).encode())
            assert (status, json.loads(body)) == (200, alone)
        with grpc.insecure_channel(f"127.0.0.1:{nginx.grpc}") as channel:
            live = channel.unary_unary("/inference.GRPCInferenceService/ServerLive")
            for session in "abcd":
                assert live(b"", timeout=60, metadata=[("x-session-id", session)]) == b"\x08\x01"
    finally:
        nginx.end()
        assert s.stop() == 0
