# SPDX-License-Identifier: Apache-2.0
"""`nereid top`: one view as text, the live one in a terminal of its own."""
import fcntl
import http.server
import json
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import threading
import time

import pytest

from llm_server import BIN, Server

CHAT = {"model": "ensemble", "messages": [{"role": "user", "content": "the quick brown fox"}], "max_tokens": 20,
        "ignore_eos": True}


def top(url, *args, **env):
    return subprocess.run([BIN / "nereid", "top", url, "--interval=0.4", *args], capture_output=True, text=True,
                          timeout=60, env=dict(os.environ, **env))


def test_one_view_is_plain_text(server):
    assert server.request("/v1/chat/completions", CHAT)[0] == 200
    until = time.monotonic() + 10
    while not json.loads(json.dumps(server.request("/ui/stats")[1]))["engines"][0]["generated_tokens"]:
        assert time.monotonic() < until
    r = top(server.url("/"), LC_ALL="C.UTF-8")
    assert r.returncode == 0 and r.stderr == "" and "\x1b" not in r.stdout
    assert "5 of 5 models ready" in r.stdout and "llama  (tensorrt_llm version 1)" in r.stdout
    words = {line.split()[0]: line.split() for line in r.stdout.splitlines() if line.strip()}
    assert words["ensemble"][1:3] == ["1", "READY"]
    assert int(words["tensorrt_llm"][3]) >= 1
    assert int(words["generated"][3]) >= 20
    assert words["first"][-1] == words["tensorrt_llm"][3]
    assert "━" in r.stdout and "━" not in top(server.url("/"), LC_ALL="C").stdout


def test_json_is_what_the_server_tells(server):
    r = top(server.url("/"), "--json")
    told = json.loads(r.stdout)
    assert r.returncode == 0 and r.stderr == "" and set(told) == set(server.request("/ui/stats")[1])
    assert [m["name"] for m in told["models"]] == [m["name"] for m in server.request("/ui/stats")[1]["models"]]
    gone = top("127.0.0.1:1", "--json")
    assert gone.returncode == 1 and not gone.stdout and "127.0.0.1:1" in gone.stderr


def test_a_rate_is_a_difference(server):
    """While requests run, the view tells how many tokens a second."""
    stop = threading.Event()

    def work():
        while not stop.is_set():
            server.request("/v1/chat/completions", dict(CHAT, max_tokens=200))

    thread = threading.Thread(target=work)
    thread.start()
    try:
        time.sleep(0.5)
        r = top(f"127.0.0.1:{server.http}", "--once")
    finally:
        stop.set()
        thread.join()
    line = next(x for x in r.stdout.splitlines() if "generated" in x)
    assert float(line.split()[1]) > 10


def test_what_is_wrong_is_told(server):
    closed = top("http://127.0.0.1:9")
    assert closed.returncode == 1 and "no answer" in closed.stderr
    assert "only http:// and https://" in top("ftp://localhost").stderr
    assert "no URL" in top("http://").stderr
    assert top(server.url("/"), "--interval=0").returncode == 1
    assert "NAME: VALUE" in top(server.url("/"), "--header", "x").stderr
    assert top(server.url("/"), "--header", "x: a\r\nb: c").returncode == 1
    assert "no /ui/stats there" in top(server.url("/elsewhere")).stderr
    assert "--interval" in subprocess.run([BIN / "nereid", "top", "--help"], capture_output=True, text=True).stdout


def test_restricted_statistics_want_their_header(tiny_model, cache):
    s = Server(tiny_model, cache, "--http-restricted-api=statistics:x-who=me", "--api-key=secret")
    try:
        s.wait_ready()
        assert "restricted" in top(s.url("/")).stderr
        assert top(s.url("/"), "--header", "x-who: me").returncode == 0
    finally:
        assert s.stop() == 0


@pytest.fixture
def answer():
    """A server that says what the test wants."""
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Length", str(len(self.server.body)))
            self.end_headers()
            try:
                self.wfile.write(self.server.body)
            except OSError:
                pass  # it was too much

        def log_message(self, *_):
            pass

    s = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=s.serve_forever)
    thread.start()

    def say(body):
        s.body = body if isinstance(body, bytes) else json.dumps(body).encode()
        return top(f"http://127.0.0.1:{s.server_port}", LC_ALL="C.UTF-8")

    yield say
    s.shutdown()
    thread.join()
    s.server_close()


def test_a_server_cannot_command_the_terminal(answer):
    evil = "a\x1b]0;title\x07b\u009b31mc\nd"
    r = answer({"version": evil, "models": [{"name": evil, "version": evil, "state": evil, "reason": evil}],
                "engines": [{"model": evil, "version": evil, "ranks": [{"rank": 0, "host": evil}]}], "metrics": True})
    assert r.returncode == 0 and not set("\x1b\x07\u009b") & set(r.stdout)
    assert "a?]0;title?b?31mc?d" in r.stdout


@pytest.mark.parametrize("body", [
    b"", b"{", b"[]", b"{}", b"null", b"\xff\xfe", b"[" * 10000, b" " * (9 << 20),
    b'{"models":' + b"[" * 63 + b"]" * 63 + b"}"])
def test_a_strange_answer_is_an_error_or_an_empty_view(answer, body):
    r = answer(body)
    assert r.returncode in (0, 1) and (r.returncode == 0) == body.startswith(b'{"models":[')
    assert r.returncode == 0 or r.stderr.startswith("nereid top: ")


@pytest.mark.parametrize("body", [
    {"models": 3, "engines": {"a": 1}, "gpus": "x", "cpu": [], "metrics": True},
    {"models": [None, 3, {}], "engines": [None, {"ranks": [None, 4, {"rank": "x", "host": 5}]}, {"ranks": 3}, {"steps": {"ms": [1e308, -5, None, "x"], "idle_ms": [-1e308]}}],
     "gpus": [{"load": 1e308}, 4], "cpu": {"load": -1e308, "memory_used_bytes": 1e308}, "metrics": 1},
    {"models": [], "metrics": True, "time_ms": 1e308, "engines": [
        {"model": "m" * 5000, "last_step_ms": -1e308, "requests": {"active": 1e308},
         "steps": {"ms": [1] * 1000, "idle_ms": [], "prompt_tokens": [1e308] * 1000, "generated_tokens": [-1e308]}}]}])
def test_odd_numbers_are_drawn(answer, body):
    r = answer(body)
    assert r.returncode == 0, r.stderr
    assert all(len(line) <= 100 for line in r.stdout.splitlines())


class Terminal:
    """The program on a pseudo terminal."""

    def __init__(self, url, rows, columns):
        pid, self.fd = pty.fork()
        if pid == 0:
            os.environ.update(TERM="xterm", LC_ALL="C.UTF-8")
            os.execv(BIN / "nereid", ["nereid", "top", url, "--interval", "0.2"])
        self.pid, self.text = pid, ""
        self.resize(rows, columns)

    def resize(self, rows, columns):
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def read(self, seconds):
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if select.select([self.fd], [], [], left)[0]:
                try:
                    piece = os.read(self.fd, 65536)
                except OSError:
                    return
                if not piece:
                    return
                self.text += piece.decode(errors="replace")

    def picture(self):
        """The lines of the last whole picture, without colors."""
        import re
        last = self.text.split("\x1b[H")[-2]
        return [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line) for line in last.split("\r\n")]

    def ended(self):
        self.read(3)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def test_in_a_terminal(server):
    t = Terminal(server.url("/"), 40, 120)
    t.read(1.5)
    assert t.text.startswith("\x1b[?1049h")
    wide = t.picture()
    assert wide[0].startswith("Nereid ") and any("tensorrt_llm version 1" in x for x in wide)
    assert len(wide) <= 40 and "q quits" in wide[-1]
    t.resize(12, 50)
    t.read(1)
    small = t.picture()
    assert len(small) == 12 and max(len(x) for x in small) <= 50
    t.resize(50, 140)
    t.read(1)
    assert len(t.picture()) > 20
    os.write(t.fd, b"xq")
    assert t.ended() == 0
    assert t.text.rstrip().endswith("\x1b[?25h\x1b[?1049l")


def test_a_signal_leaves_the_terminal_as_it_was(server):
    t = Terminal(server.url("/"), 30, 100)
    t.read(0.6)
    os.kill(t.pid, signal.SIGTERM)
    assert t.ended() == 0 and "\x1b[?1049l" in t.text


def test_a_server_that_comes_back(tiny_model, cache):
    s = Server(tiny_model, cache)
    s.wait_ready()
    t = Terminal(s.url("/"), 40, 100)
    t.read(1)
    s.stop()
    t.read(1)
    assert "no answer" in t.picture()[-1]
    os.write(t.fd, b"q")
    assert t.ended() == 0
