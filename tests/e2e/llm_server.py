# SPDX-License-Identifier: Apache-2.0
"""`nereid serve` as a process, on free ports."""
import json
import os
import pathlib
import shlex
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from ports import free_ports  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("NEREID_BIN", ROOT / "build/bin"))
MORE = shlex.split(os.environ.get("NEREID_SERVE_OPTIONS", ""))  # for instance how much of a GPU a server may take


def wait_until(condition, seconds=20):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if condition():
            return True
        time.sleep(0.05)
    return False


class Server:
    """One running server; requests as a client makes them."""

    def __init__(self, path, cache, *args, address="127.0.0.1", env=None, launch=lambda command, env: command):
        """`launch` gives what is started, a launcher's line for instance, and may change the environment."""
        self.http, self.metrics, self.grpc = free_ports(3)
        self.log_path = pathlib.Path(cache) / f"server-{self.http}.log"
        self.env = dict(os.environ, NEREID_CACHE=str(cache), **(env or {}))
        self.command = launch([BIN / "nereid", "serve", path, f"--http-port={self.http}",
                               f"--metrics-port={self.metrics}", f"--grpc-port={self.grpc}",
                               *([f"--host={address}"] if address else []), *MORE, *args], self.env)
        self.start()

    def start(self):
        """Also again, when it has ended: at the same ports."""
        self.log = open(self.log_path, "a")
        self.log_from = len(self.log_text())
        self.process = subprocess.Popen(self.command, stdout=self.log, stderr=subprocess.STDOUT, env=self.env)

    def wait_ready(self, seconds=120):
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if self.process.poll() is not None:
                raise RuntimeError(f"server ended with {self.process.returncode}:\n{self.log_text()}")
            try:
                with urllib.request.urlopen(self.url("/v2/health/ready"), timeout=5) as r:
                    if r.status == 200:
                        break
            except (urllib.error.URLError, ConnectionError, OSError):
                pass
            time.sleep(0.02)
        else:
            raise RuntimeError(f"server not ready after {seconds} s:\n{self.log_text()}")
        if not any("allow-metrics" in str(a) for a in self.process.args):
            self.wait_log("Started Metrics Service")  # the last to start
        return self

    def wait_log(self, text, seconds=20):
        until = time.monotonic() + seconds
        while text not in self.log_text()[self.log_from:]:
            assert time.monotonic() < until, f"no '{text}' in the log:\n{self.log_text()}"
            time.sleep(0.02)

    def url(self, path):
        return f"http://127.0.0.1:{self.http}{path}"

    def log_text(self):
        return self.log_path.read_text(errors="replace")

    def request(self, path, body=None, method=None, timeout=60):
        """(status, parsed JSON or text)"""
        data = body if isinstance(body, (bytes, type(None))) else json.dumps(body).encode()
        req = urllib.request.Request(self.url(path), data=data, method=method)
        try:
            with urllib.request.urlopen(req, timeout=timeout) as r:
                status, text = r.status, r.read()
        except urllib.error.HTTPError as e:
            status, text = e.code, e.read()
        try:
            return status, json.loads(text)
        except ValueError:
            return status, text.decode(errors="replace")

    def generate(self, body, model="ensemble"):
        return self.request(f"/v2/models/{model}/generate", body)

    def stream(self, body, model="ensemble", timeout=60):
        """The answers of generate_stream, parsed."""
        req = urllib.request.Request(self.url(f"/v2/models/{model}/generate_stream"),
                                     data=json.dumps(body).encode())
        out = []
        with urllib.request.urlopen(req, timeout=timeout) as r:
            assert r.headers["Content-Type"] == "text/event-stream; charset=utf-8"
            for line in r:
                if line.startswith(b"data: "):
                    out.append(json.loads(line[6:]))
        return out

    def metrics_text(self):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics}/metrics", timeout=10) as r:
            return r.read().decode()

    def metric(self, name, **labels):
        for line in self.metrics_text().splitlines():
            if line.startswith(name + "{") and all(f'{k}="{v}"' in line for k, v in labels.items()):
                return float(line.rsplit(" ", 1)[1])
        raise KeyError((name, labels))

    def stop(self, seconds=120):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(seconds)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.log.close()
        return self.process.returncode
