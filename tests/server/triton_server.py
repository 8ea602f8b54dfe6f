# SPDX-License-Identifier: Apache-2.0
"""A running tritonserver over repositories of the identity backend, and a plain HTTP client."""
import contextlib
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import time

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from ports import free_ports  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("NEREID_BUILD", ROOT / "build"))

IDENTITY = """name: "{name}"
backend: "identity"
max_batch_size: 0
input [ {{ name: "INPUT0" data_type: {dtype} dims: [ -1 ] }} ]
output [ {{ name: "OUTPUT0" data_type: {dtype} dims: [ -1 ] }} ]
instance_group [ {{ count: {count} kind: KIND_CPU }} ]
{extra}"""


def write_model(repository, name, dtype="TYPE_INT32", count=1, extra=""):
    folder = pathlib.Path(repository) / name / "1"
    folder.mkdir(parents=True)
    text = IDENTITY.format(name=name, dtype=dtype, count=count, extra=extra)
    (folder.parent / "config.pbtxt").write_text(text)


def delay(milliseconds):
    return ('parameters { key: "execute_delay_ms" value: { string_value: "%d" } }' % milliseconds)


class Reply:
    def __init__(self, status, fields, body):
        self.status, self.fields, self.body = status, fields, body

    def json(self):
        return json.loads(self.body)

    def error(self):
        return self.json()["error"]


class Connection:
    """HTTP/1.1 by hand, so that tests can also say wrong things."""

    def __init__(self, port, timeout=60, rcvbuf=None):
        self.sock = socket.socket()
        if rcvbuf:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, rcvbuf)
        self.sock.settimeout(timeout)
        self.sock.connect(("127.0.0.1", port))
        self.buffer = b""

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()

    def close(self):
        self.sock.close()

    def send(self, data):
        self.sock.sendall(data if isinstance(data, bytes) else data.encode())

    def request(self, method, path, body=b"", fields=None):
        if not isinstance(body, (bytes, bytearray)):
            body = json.dumps(body).encode()
        lines = [f"{method} {path} HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}"]
        lines += [f"{k}: {v}" for k, v in (fields or {}).items()]
        self.send("\r\n".join(lines).encode() + b"\r\n\r\n" + bytes(body))

    def _more(self):
        data = self.sock.recv(1 << 16)
        self.buffer += data
        return bool(data)

    def _until(self, mark):
        while mark not in self.buffer:
            if not self._more():
                raise ConnectionError(f"closed after {self.buffer!r}")
        head, self.buffer = self.buffer.split(mark, 1)
        return head

    def _exactly(self, n):
        while len(self.buffer) < n:
            if not self._more():
                raise ConnectionError("closed in a body")
        data, self.buffer = self.buffer[:n], self.buffer[n:]
        return data

    def head(self):
        lines = self._until(b"\r\n\r\n").decode().split("\r\n")
        fields = {}
        for line in lines[1:]:
            key, value = line.split(":", 1)
            fields[key.lower()] = value.strip()
        return int(lines[0].split()[1]), fields

    def chunks(self):
        while True:
            n = int(self._until(b"\r\n"), 16)
            data = self._exactly(n)
            assert self._exactly(2) == b"\r\n"
            if n == 0:
                return
            yield data

    def reply(self):
        status, fields = self.head()
        if fields.get("transfer-encoding") == "chunked":
            return Reply(status, fields, b"".join(self.chunks()))
        return Reply(status, fields, self._exactly(int(fields["content-length"])))

    def call(self, method, path, body=b"", fields=None):
        self.request(method, path, body, fields)
        return self.reply()

    def is_closed(self):
        try:
            return not self.buffer and self.sock.recv(1) == b""
        except ConnectionError:
            return True


def wait_until(what, seconds=30):
    """The first true value of what(); fails where none comes in time."""
    until = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.005)
    return found


def environment():
    env = dict(os.environ)
    env.setdefault("TSAN_OPTIONS", f"suppressions={ROOT / 'tests/tsan.supp'}")
    return env


class Server:
    def __init__(self, folder, repository, *args, env=None):
        self.http, self.metrics, self.grpc = free_ports(3)
        self.log_path = pathlib.Path(folder) / f"log-{self.http}"
        with open(self.log_path, "w") as log:
            self.process = subprocess.Popen(
                [BUILD / "bin/tritonserver", f"--model-repository={repository}",
                 "--http-address=127.0.0.1", f"--http-port={self.http}",
                 f"--metrics-port={self.metrics}", f"--grpc-port={self.grpc}", *args],
                stdout=log, stderr=subprocess.STDOUT, env={**environment(), **(env or {})})

    def log(self):
        return self.log_path.read_text(errors="replace")

    def wait_log(self, text, seconds=60):
        until = time.monotonic() + seconds
        while text not in self.log():
            if self.process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"no {text!r} in the log:\n{self.log()}")
            time.sleep(0.01)
        return self

    def wait_ready(self):
        return self.wait_log("Started Metrics Service at ")

    def connect(self, **kwargs):
        return Connection(self.http, **kwargs)

    def call(self, method, path, body=b"", fields=None):
        with self.connect() as c:
            return c.call(method, path, body, fields)

    def call_metrics(self):
        """{sample with its labels: value}"""
        with Connection(self.metrics) as c:
            text = c.call("GET", "/metrics").body.decode()
        return {k: float(v) for k, v in (line.rsplit(" ", 1) for line in text.splitlines()
                                         if line and not line.startswith("#"))}

    def wait_metrics(self, test, seconds=20):
        """The metrics when they pass: a model counts a request after it has answered."""
        until = time.monotonic() + seconds
        while not test(found := self.call_metrics()) and time.monotonic() < until:
            time.sleep(0.01)
        return found

    def wait_pending(self, model, n, seconds=30):
        """Until n requests wait for the model's instances."""
        key = f'nv_inference_pending_request_count{{model="{model}",version="1"}}'
        wait_until(lambda: self.call_metrics().get(key) == n, seconds)

    @contextlib.contextmanager
    def begins(self, model, n=1):
        """Goes on behind the block when the model has begun to run n times more than before it. For
        models with execute_delay_ms; the server needs --log-verbose=1."""
        def begun():
            return len(re.findall(rf"model {model}, instance \S+, executing ", self.log()))
        before = begun()
        yield
        wait_until(lambda: begun() >= before + n)

    def signal(self, number=signal.SIGTERM):
        self.process.send_signal(number)

    def wait(self, seconds=60):
        return self.process.wait(seconds)

    def stop(self):
        if self.process.poll() is None:
            self.signal()
            try:
                self.wait()
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.wait()
                raise
        return self.process.returncode


def infer_body(values, dtype="INT32"):
    return {"inputs": [{"name": "INPUT0", "datatype": dtype, "shape": [len(values)],
                        "data": values}]}


@pytest.fixture
def launch(tmp_path):
    """Starts further servers; all are stopped at the end."""
    servers = []

    def start(repository, *args, **kwargs):
        servers.append(Server(tmp_path, repository, *args, **kwargs))
        return servers[-1]

    yield start
    for s in servers:
        s.stop()
