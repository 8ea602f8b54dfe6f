# SPDX-License-Identifier: Apache-2.0
"""Starts a server over Python models: ours, NVIDIA's, or one with the other's backend.

The models under models/ run unchanged in both. The most general is `lab`: its input is Python code,
which runs inside execute() and gives a text.
"""
import http.client
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from ports import free_ports  # noqa: E402
from their_triton import find_theirs  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]
BUILD = pathlib.Path(os.environ.get("NEREID_BUILD", ROOT / "build"))
OURS = BUILD / "bin/tritonserver"
BACKEND = BUILD / "backends/python"


def add_model(repository, name, source=None, extra="", parameters=None, instances=1, config=True):
    """Copies models/<source> as <name>; `extra` is added to its config.pbtxt."""
    source = HERE / "models" / (source or name)
    target = pathlib.Path(repository) / name
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    path = target / "config.pbtxt"
    if not config:
        path.unlink(missing_ok=True)
        return target
    text = (path.read_text() if path.exists() else 'backend: "python"\n') + "\n" + extra
    text += f"\ninstance_group [ {{ count: {instances} kind: KIND_CPU }} ]\n"
    for key, value in (parameters or {}).items():
        text += (f'parameters {{ key: "{key}" value: {{ string_value: "{value}" }} }}\n')
    path.write_text(f'name: "{name}"\n{text}')
    return target


def tensor(name, dtype, shape, data):
    return {"name": name, "datatype": dtype, "shape": list(shape), "data": list(data)}


class Answer:
    def __init__(self, status, body):
        self.status, self.body = status, body

    def json(self):
        return json.loads(self.body)

    def error(self):
        return self.json()["error"]

    def output(self, name="RESULT"):
        for o in self.json()["outputs"]:
            if o["name"] == name:
                return o["data"]
        raise KeyError(f"{name} is not in {self.body[:500]!r}")


class Server:
    """kind: "ours" or "theirs"; backends: folder with python/ in it, for exchanges."""

    def __init__(self, folder, repository, *args, kind="ours", backends=None, python=sys.executable):
        self.http, self.grpc, self.metrics_port = free_ports(3)
        self.log_path = pathlib.Path(folder) / f"log-{kind}-{self.http}"
        env = dict(os.environ)
        if kind == "ours":
            program, backends = OURS, backends or BUILD / "backends"
        else:
            theirs = find_theirs()
            program = theirs / "pytriton/tritonserver/bin/tritonserver"
            backends = backends or theirs_backends(folder)
            env["LD_LIBRARY_PATH"] = str(theirs / "nvidia_pytriton.libs")
            if "NEREID_TRITON_NUMPY" in env:  # site-packages with numpy < 2 for their stub
                env["PYTHONPATH"] = env["NEREID_TRITON_NUMPY"]
        if python:
            args = (f"--backend-config=python,python-interpreter={python}",) + args
        with open(self.log_path, "w") as log:
            self.process = subprocess.Popen(
                [program, f"--model-repository={repository}", f"--backend-directory={backends}",
                 "--http-address=127.0.0.1", f"--http-port={self.http}",
                 "--grpc-address=127.0.0.1", f"--grpc-port={self.grpc}",
                 "--metrics-address=127.0.0.1", f"--metrics-port={self.metrics_port}", *args],
                stdout=log, stderr=subprocess.STDOUT, env=env)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.stop()

    def log(self):
        return self.log_path.read_text(errors="replace")

    def wait_log(self, text, seconds=120):
        until = time.monotonic() + seconds
        while text not in self.log():
            if self.process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"no {text!r} in the log:\n{self.log()}")
            time.sleep(0.01)
        return self

    def wait_ready(self):
        return self.wait_log("Started Metrics Service at ")

    def call(self, method, path, body=None, port=None, timeout=60):
        c = http.client.HTTPConnection("127.0.0.1", port or self.http, timeout=timeout)
        try:
            if body is not None and not isinstance(body, (bytes, str)):
                body = json.dumps(body)
            c.request(method, path, body)
            r = c.getresponse()
            return Answer(r.status, r.read())
        finally:
            c.close()

    def infer(self, model, *tensors, timeout=60, **fields):
        return self.call("POST", f"/v2/models/{model}/infer", {"inputs": list(tensors), **fields},
                         timeout=timeout)

    def run(self, code, model="lab", **fields):
        """Runs code inside a model; the answer's RESULT is what it left in `result`."""
        return self.infer(model, tensor("CODE", "BYTES", [1], [code]), **fields)

    def stream(self, model, body, timeout=60):
        """Events of generate_stream, each as JSON."""
        a = self.call("POST", f"/v2/models/{model}/generate_stream", body, timeout=timeout)
        return [json.loads(e[6:]) for e in a.body.decode().split("\n\n") if e.startswith("data: ")]

    def metrics(self):
        return self.call("GET", "/metrics", port=self.metrics_port).body.decode()

    def children(self):
        """Process ids of stub processes."""
        path = pathlib.Path(f"/proc/{self.process.pid}/task")
        pids = []
        for task in path.iterdir():
            try:
                pids += [int(p) for p in (task / "children").read_text().split()]
            except OSError:
                pass  # the thread is gone
        return sorted(pids)

    def stop(self, number=signal.SIGTERM, seconds=60):
        if self.process.poll() is None:
            self.process.send_signal(number)
            try:
                self.process.wait(seconds)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
                raise
        return self.process.returncode


def theirs_backends(folder):
    """NVIDIA's Python backend with the stub of this interpreter's version."""
    theirs = find_theirs() / "pytriton/tritonserver"
    target = pathlib.Path(folder) / "theirs/python"
    if not target.exists():
        target.mkdir(parents=True)
        for file in (theirs / "backends/python").iterdir():
            shutil.copy2(file, target)
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        stub = theirs / "python_backend_stubs" / version / "triton_python_backend_stub"
        shutil.copy2(stub, target)
        (target / stub.name).chmod(0o755)
    return target.parent


def is_gone(pid):
    """No such process, or one that only waits for its parent to ask for its exit status."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True


def wait_until(what, seconds=20):
    until = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.01)
