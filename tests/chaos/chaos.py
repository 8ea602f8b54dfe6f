#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Mixed load while things go wrong: every answer is checked, and afterwards everything is free.

usage: chaos.py SECONDS [SEED]      (make chaos SECONDS=3600)

Load: /v1 and /v2 by HTTP and gRPC, whole and as streams, with guides, a Python model, small tensors. Faults: clients that
leave after a random number of bytes, stub processes killed, models loaded again, descriptors and file sizes limited for
a while. An answer is right, or it is an error that the fault of that moment explains; then the same question is right
again. Prints what was asked; ends with 1 when something was wrong.
"""
import collections
import http.client
import json
import os
import pathlib
import random
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

TESTS = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS / "e2e"), str(TESTS)]
from llm_server import Server  # noqa: E402

ECHO = """name: "echo"
backend: "identity"
input [ { name: "INPUT0" data_type: TYPE_INT32 dims: [ -1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ -1 ] } ]
instance_group [ { count: 2 kind: KIND_CPU } ]
"""
EXPLAINED = {"echo": (404, 400, 503), "python": (500, 503), "llm": (503,)}  # while it is loaded again, dead, full


class Chaos:
    def __init__(self, folder, seed):
        self.folder, self.seed = pathlib.Path(folder), seed
        self.done, self.wrong, self.lock = collections.Counter(), [], threading.Lock()
        self.stop = threading.Event()
        self.squeezed = threading.Event()  # connections may fail now
        self.has_python = (TESTS.parent / "build/backends/python/libtriton_python.so").exists()

    # ---- the server ----

    def start(self):
        models, tiny = self.folder / "models", self.folder / "tiny"
        (models / "echo/1").mkdir(parents=True)
        (models / "echo/config.pbtxt").write_text(ECHO)
        if self.has_python:
            shutil.copytree(TESTS / "server/python_backend/models/add_sub", models / "add_sub",
                            ignore=shutil.ignore_patterns("__pycache__"))
        subprocess.run([sys.executable, TESTS / "tinymodel/make_model.py", "--arch", "llama", "--out", tiny], check=True,
                       stdout=subprocess.DEVNULL)
        (self.folder / "cache").mkdir()
        self.server = Server(tiny, self.folder / "cache", f"--model-repository={models}", "--model-control-mode=explicit",
                             "--load-model=*", "--served-model-name=tiny",
                             f"--backend-config=python,python-interpreter={sys.executable}", "--http-idle-timeout-secs=20").wait_ready()
        self.pid = self.server.process.pid
        self.prompts = [f"the quick brown fox number {i} jumps over" for i in range(12)]
        self.expected = {p: self.complete(p)[1] for p in self.prompts}

    def call(self, path, body, timeout=60):
        """(status, JSON); raises OSError where the connection failed."""
        c = http.client.HTTPConnection("127.0.0.1", self.server.http, timeout=timeout)
        try:
            c.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
            r = c.getresponse()
            return r.status, json.loads(r.read())
        finally:
            c.close()

    def complete(self, prompt, **fields):
        body = {"model": "tiny", "prompt": prompt, "max_tokens": 12, "temperature": 0, **fields}
        status, answer = self.call("/v1/completions", body)
        return status, answer["choices"][0]["text"] if status == 200 else answer

    # ---- load: each returns what is wrong, or None ----

    def ask_echo(self, rng):
        data = [rng.randrange(-2**31, 2**31) for _ in range(rng.choice([1, 3, 1000]))]
        status, answer = self.call("/v2/models/echo/infer", {"inputs": [
            {"name": "INPUT0", "datatype": "INT32", "shape": [len(data)], "data": data}]})
        if status == 200:
            return None if answer["outputs"][0]["data"] == data else "another's data"
        return None if status in EXPLAINED["echo"] else answer

    @staticmethod
    def sum_of(a, b):
        return {"inputs": [{"name": n, "datatype": "FP32", "shape": [1, 1], "data": [v]} for n, v in (("A", a), ("B", b))]}

    def ask_python(self, rng):
        a, b = rng.randrange(1000), rng.randrange(1000)
        status, answer = self.call("/v2/models/add_sub/infer", self.sum_of(a, b))
        if status == 200:
            values = sorted(o["data"][0] for o in answer["outputs"])
            return None if values == sorted([a + b, a - b]) else values
        return None if status in EXPLAINED["python"] else answer

    def ask_text(self, rng):
        prompt = rng.choice(self.prompts)
        status, text = self.complete(prompt)
        if status == 200:
            return None if text == self.expected[prompt] else f"{text!r} instead of {self.expected[prompt]!r}"
        return None if status in EXPLAINED["llm"] else text

    def ask_guided(self, rng):
        digits = rng.randrange(1, 5)
        status, text = self.complete(rng.choice(self.prompts), guided_regex=f"[0-9]{{{digits}}}", temperature=1)
        if status == 200:
            return None if re.fullmatch(f"[0-9]{{{digits}}}", text) else text
        return None if status in EXPLAINED["llm"] else text

    def ask_stream(self, rng):
        prompt, text, ended = rng.choice(self.prompts), "", False
        c = http.client.HTTPConnection("127.0.0.1", self.server.http, timeout=60)
        try:
            c.request("POST", "/v1/completions", json.dumps({"model": "tiny", "prompt": prompt, "max_tokens": 12,
                                                             "temperature": 0, "stream": True}))
            r = c.getresponse()
            if r.status != 200:
                return None if r.status in EXPLAINED["llm"] else r.read()
            for line in r:
                if line.strip() == b"data: [DONE]":
                    ended = True
                elif line.startswith(b"data: "):
                    text += "".join(ch["text"] for ch in json.loads(line[6:])["choices"])
        finally:
            c.close()
        return None if ended and text == self.expected[prompt] else f"{text!r}, ended {ended}"

    def ask_grpc(self, rng):
        import numpy as np
        import tritonclient.grpc as client
        from tritonclient.utils import InferenceServerException
        data = np.array([rng.randrange(2**31) for _ in range(5)], np.int32)
        x = client.InferInput("INPUT0", [5], "INT32")
        x.set_data_from_numpy(data)
        try:
            with client.InferenceServerClient(f"127.0.0.1:{self.server.grpc}") as c:
                got = c.infer("echo", [x], client_timeout=60).as_numpy("OUTPUT0")
        except InferenceServerException as e:
            found = [w for w in ("UNAVAILABLE", "INVALID_ARGUMENT", "NOT_FOUND") if w in str(e.status())]
            return None if found or self.squeezed.is_set() else str(e)
        return None if got.tolist() == data.tolist() else "another's data"

    def leave(self, rng):
        """A client that goes away after a number of bytes sent or read."""
        body = json.dumps({"model": "tiny", "prompt": rng.choice(self.prompts), "max_tokens": 200, "ignore_eos": True,
                           "stream": rng.random() < 0.7}).encode()
        data = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body
        with socket.create_connection(("127.0.0.1", self.server.http), timeout=60) as s:
            if rng.random() < 0.3:
                s.sendall(data[:rng.randrange(len(data))])
                return None
            s.sendall(data)
            left = rng.randrange(3000)
            while left > 0 and (got := s.recv(min(left, 512))):
                left -= len(got)
        return None

    def work(self, number):
        rng = random.Random(f"{self.seed}-{number}")
        kinds = [self.ask_echo, self.ask_text, self.ask_guided, self.ask_stream, self.ask_grpc, self.leave]
        kinds += [self.ask_python] if self.has_python else []
        while not self.stop.is_set():
            ask = rng.choice(kinds)
            try:
                wrong = ask(rng)
            except (OSError, http.client.HTTPException) as e:
                wrong = None if self.squeezed.is_set() or ask == self.leave else repr(e)
            with self.lock:
                self.done[ask.__name__] += 1
                if wrong is not None:
                    self.wrong.append((ask.__name__, wrong))

    # ---- faults ----

    def kill_stub(self, rng):
        children = pathlib.Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        children += [c for t in pathlib.Path(f"/proc/{self.pid}/task").iterdir() for c in (t / "children").read_text().split()]
        if children:
            os.kill(int(rng.choice(children)), signal.SIGKILL)

    def load_again(self, rng):
        self.call(f"/v2/repository/models/{rng.choice(['echo', 'echo', 'add_sub'] if self.has_python else ['echo'])}/load", {})

    def squeeze(self, what, limit):
        before = resource.prlimit(self.pid, what)
        self.squeezed.set()
        resource.prlimit(self.pid, what, (min(limit, before[1]), before[1]))
        self.stop.wait(1)
        resource.prlimit(self.pid, what, before)
        self.stop.wait(0.5)
        self.squeezed.clear()

    def few_descriptors(self, rng):
        self.squeeze(resource.RLIMIT_NOFILE, self.descriptors() + rng.randrange(4))

    def full_disk(self, rng):
        self.squeeze(resource.RLIMIT_FSIZE, 1)

    def break_things(self):
        rng = random.Random(f"{self.seed}-faults")
        while not self.stop.wait(rng.uniform(0.3, 1.5)):
            fault = rng.choice([self.kill_stub, self.load_again, self.few_descriptors, self.full_disk])
            try:
                fault(rng)
            except (OSError, http.client.HTTPException, ValueError):
                pass
            with self.lock:
                self.done[fault.__name__] += 1

    # ---- what must be as before ----

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def memory(self):
        return int(pathlib.Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * 4096

    def rest(self, seconds=30):
        """Until nothing runs: no request in flight, no block in use. What is still there otherwise."""
        until, left = time.monotonic() + seconds, None
        while time.monotonic() < until:
            text = self.server.metrics_text()
            left = [line for line in text.splitlines() if not line.endswith((" 0", " 0.000000")) and (
                line.startswith("nv_inference_pending_request_count") or 'kv_cache_block_type="used"' in line or
                'request_type="active"' in line)]
            if not left:
                return None
            time.sleep(0.1)
        return left

    def run(self, seconds, workers=6):
        self.start()
        self.rest()
        time.sleep(21)  # the connections of the start are closed
        before = self.descriptors()
        threads = [threading.Thread(target=self.work, args=(i,)) for i in range(workers)]
        threads.append(threading.Thread(target=self.break_things))
        for t in threads:
            t.start()
        time.sleep(seconds / 2)
        plateau = self.memory()
        time.sleep(seconds / 2)
        self.stop.set()
        for t in threads:
            t.join()
        problems = [f"{name}: {what}" for name, what in self.wrong]
        if self.server.process.poll() is not None:
            problems.append(f"the server ended with {self.server.process.returncode}")
        else:
            problems += self.look(plateau, before)
        print(" ".join(f"{k}={v}" for k, v in sorted(self.done.items())), f"seed={self.seed}", flush=True)
        status = self.server.stop()
        return problems + ([f"the server ended with {status}"] if status else [])

    def look(self, plateau, before):
        problems = []
        if left := self.rest():
            problems.append(f"still in use: {left}")
        until = time.monotonic() + 40
        while self.has_python and self.call("/v2/models/add_sub/infer", self.sum_of(1, 2))[0] != 200:
            # a stub that was killed while it started is started again by the next request
            if time.monotonic() > until:
                problems.append("the Python model does not come back")
                break
            time.sleep(0.1)
        until = time.monotonic() + 40
        while self.descriptors() != before and time.monotonic() < until:  # idle connections are closed after 20 s
            time.sleep(0.5)
        after = self.descriptors()
        if after != before:
            problems.append(f"{after} descriptors, before {before}")
        rng = random.Random(1)
        for ask in (self.ask_echo, self.ask_text, self.ask_guided, self.ask_stream):
            if (wrong := ask(rng)) is not None:
                problems.append(f"afterwards {ask.__name__}: {wrong}")
        now = self.memory()
        print(f"descriptors {before} -> {after}, memory {plateau >> 20} MB at half time, {now >> 20} MB at the end")
        if now > plateau * 1.05 + (8 << 20):
            problems.append(f"memory grew from {plateau} to {now}")
        return problems


def main():
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 60
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else time.time_ns() % 10**6
    with tempfile.TemporaryDirectory() as folder:
        chaos = Chaos(folder, seed)
        try:
            problems = chaos.run(seconds)
        finally:
            if getattr(chaos, "server", None):
                log = chaos.server.log_text()
                chaos.server.stop()
        for p in problems[:20]:
            print("WRONG", p)
        if problems:
            print(log[-3000:])
    print("chaos:", "clean" if not problems else f"{len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
