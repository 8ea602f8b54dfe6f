# SPDX-License-Identifier: Apache-2.0
"""Thousands of connections, models that come and go meanwhile, clients that vanish.

NEREID_LOAD_SECONDS (20) is how long the mix runs, NEREID_LOAD_IDLE (10000) and NEREID_LOAD_BUSY (1000)
how many connections; NEREID_BUILD chooses the build, so that the same runs under sanitizers.
"""
import asyncio
import collections
import json
import os
import random
import resource
import socket
import struct
import time

import pytest

from triton_server import IDENTITY, Connection, delay, write_model

SECONDS = float(os.environ.get("NEREID_LOAD_SECONDS", 20))
IDLE = int(os.environ.get("NEREID_LOAD_IDLE", 10000))
BUSY = int(os.environ.get("NEREID_LOAD_BUSY", 1000))
MAX_RSS_GROWTH = 2.0  # of the mix's second half over its first; leaks are for the sanitizer


@pytest.fixture(scope="module", autouse=True)
def descriptors():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    want = IDLE + BUSY + 500
    if hard < want:
        pytest.skip(f"only {hard} descriptors allowed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, want), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def rss_mb(server):
    with open(f"/proc/{server.process.pid}/status") as f:
        return next(int(line.split()[1]) for line in f if line.startswith("VmRSS")) / 1024


def metric(server, name, model):
    with Connection(server.metrics) as c:
        text = c.call("GET", "/metrics").body.decode()
    return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines()
               if line.startswith(name + "{") and f'model="{model}"' in line)


class Client:
    """HTTP over one connection that is kept."""

    def __init__(self, port):
        self.port = port
        self.reader = self.writer = None

    async def open(self):
        for attempt in range(5):  # a burst may overflow the listen queue
            try:
                self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)
                return self
            except OSError:
                if attempt == 4:
                    raise
                await asyncio.sleep(0.2)

    def send(self, method, path, body=b""):
        self.writer.write((f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n"
                           f"Content-Length: {len(body)}\r\n\r\n").encode() + body)

    async def head(self):
        text = (await self.reader.readuntil(b"\r\n\r\n")).decode().lower()
        return int(text[9:12]), text

    async def call(self, method, path, body=b""):
        self.send(method, path, body)
        status, text = await self.head()
        n = int(text.split("content-length: ", 1)[1].split("\r\n", 1)[0])
        return status, await self.reader.readexactly(n)

    def ended(self):
        """The server has closed it."""
        return self.reader.at_eof() or self.writer.is_closing()

    def vanish(self):
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    def close(self):
        self.writer.close()


class Mix:
    def __init__(self, server, models):
        self.server, self.models = server, models
        self.until = time.monotonic() + SECONDS
        self.count = collections.Counter()
        self.next_id = 0
        self.wrong = []

    def running(self):
        return time.monotonic() < self.until

    async def infer(self, c, model, allowed=(200,)):
        self.next_id += 1
        name, value = f"r{self.next_id}", self.next_id
        body = json.dumps({"id": name, "inputs": [{"name": "INPUT0", "datatype": "INT32",
                                                   "shape": [2], "data": [value, -value]}]})
        status, reply = await c.call("POST", f"/v2/models/{model}/infer", body.encode())
        self.count[model, status] += 1
        if status == 200:
            got = json.loads(reply)
            if got["id"] != name or got["outputs"][0]["data"] != [value, -value]:
                self.wrong.append((model, name, reply))
        elif status not in allowed:
            self.wrong.append((model, status, reply))

    async def stream(self, c, leave_after):
        self.next_id += 1
        value = self.next_id
        body = json.dumps({"id": f"r{value}", "INPUT0": value}).encode()
        c.send("POST", "/v2/models/stream/generate_stream", body)
        status, _ = await c.head()
        pieces = 0
        while status == 200:
            line = await c.reader.readline()
            if line == b"0\r\n":
                await c.reader.readline()
                break
            if line.startswith(b"data: "):
                answer = json.loads(line[6:])
                if (answer["id"], answer["OUTPUT0"]) != (f"r{value}", value):
                    self.wrong.append(("stream", value, line))
                pieces += 1
                if pieces == leave_after:
                    c.vanish()
                    self.count["stream", "left"] += 1
                    return False
        self.count["stream", status] += 1
        if status != 200 or pieces != 10:
            self.wrong.append(("stream", status, pieces))
        return True

    async def busy(self, seed):
        rng = random.Random(seed)
        c = await Client(self.server.http).open()
        while self.running():
            dice = rng.random()
            if dice < 0.80:
                await self.infer(c, "ident")
            elif dice < 0.95:
                # Unloaded at this moment: 400 or 404; being unloaded: 503.
                await self.infer(c, "churn", (400, 404, 503))
            else:
                leave = rng.choice([None, 1, 3])
                if not await self.stream(c, leave):
                    c = await Client(self.server.http).open()
        c.close()

    async def churn(self):
        """Loads, updates and unloads, one after the other."""
        c = await Client(self.server.http).open()
        n = 0
        while self.running():
            n += 1
            text = IDENTITY.format(name="churn", dtype="TYPE_INT32", count=1 + n % 3, extra="")
            (self.models / "churn/config.pbtxt").write_text(text)
            for verb in ("load", "load", "unload") if n % 2 else ("load", "unload"):
                status, reply = await c.call("POST", f"/v2/repository/models/churn/{verb}", b"{}")
                self.count["control", status] += 1
                if status != 200:
                    self.wrong.append((verb, status, reply))
        await c.call("POST", "/v2/repository/models/churn/load", b"{}")
        c.close()

    async def crawl(self):
        """Half-open: a head that never ends, until the server has had enough (after two minutes)."""
        while self.running():
            c = await Client(self.server.http).open()
            c.writer.write(b"POST /v2/models/ident/infer HTTP/1.1\r\nHost: localhost\r\n")
            while self.running() and not c.ended():
                c.writer.write(b"X")
                await asyncio.sleep(0.5)
            if c.ended():
                self.count["crawler", "cut"] += 1
                c.close()
            else:
                c.vanish()

    async def run(self):
        idle = []
        for i in range(0, IDLE, 200):
            idle += await asyncio.gather(*(Client(self.server.http).open()
                                           for _ in range(min(200, IDLE - i))))
        self.count["idle"] = len(idle)
        self.until = time.monotonic() + SECONDS
        memory = []

        async def watch():
            while self.running():
                memory.append(rss_mb(self.server))
                await asyncio.sleep(0.5)

        await asyncio.gather(self.churn(), watch(), *(self.crawl() for _ in range(20)),
                             *(self.busy(i) for i in range(BUSY)))
        for c in idle[::max(1, len(idle) // 100)]:  # they are as good as new
            status, _ = await c.call("GET", "/v2/health/live")
            self.count["woken", status] += 1
        for c in idle:
            c.close()
        return memory


def test_busy_and_idle_connections_while_models_come_and_go(launch, tmp_path):
    models = tmp_path / "models"
    write_model(models, "ident", count=2)
    write_model(models, "churn")
    write_model(models, "stream", count=4,
                extra="model_transaction_policy { decoupled: true }\n"
                      'parameters { key: "responses" value: { string_value: "10" } }\n')
    s = launch(models, "--model-control-mode=explicit", "--load-model=ident", "--load-model=stream",
               "--load-model=churn", f"--http-idle-timeout-secs={int(SECONDS) + 300}").wait_ready()
    mix = Mix(s, models)
    memory = asyncio.run(mix.run())
    print(dict(mix.count), f"memory {memory[0]:.0f} to {max(memory):.0f} MB")
    assert not mix.wrong, mix.wrong[:5]
    assert mix.count["idle"] == IDLE
    assert mix.count["woken", 200] >= min(IDLE, 100)
    assert mix.count["ident", 200] > BUSY and mix.count["churn", 200] > 0
    assert mix.count["stream", "left"] > 0 and mix.count["control", 200] >= 3
    assert mix.count["crawler", "cut"] >= 20 * int(SECONDS // 300)
    print(dict(mix.count))
    # What clients received is what the server counted: nothing lost, nothing twice.
    until = time.monotonic() + 60  # a model counts a request after it has answered
    while time.monotonic() < until and (metric(s, "nv_inference_pending_request_count", "stream") or
                                        metric(s, "nv_inference_request_success", "ident") < mix.count["ident", 200]):
        time.sleep(0.1)
    assert metric(s, "nv_inference_request_success", "ident") == mix.count["ident", 200]
    assert metric(s, "nv_inference_pending_request_count", "ident") == 0
    assert metric(s, "nv_inference_pending_request_count", "stream") == 0
    half = len(memory) // 2
    if half:
        assert max(memory[half:]) < MAX_RSS_GROWTH * max(memory[:half]) + 20
    assert s.stop() == 0, s.log()[-4000:]


def test_shutdown_under_load_loses_nothing_that_was_accepted(launch, tmp_path):
    models = tmp_path / "models"
    write_model(models, "slow", count=8, extra=delay(300))
    s = launch(models).wait_ready()
    body = b'{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[1],"data":[1]}]}'

    sent = []

    async def one(i):
        c = await Client(s.http).open()
        c.send("POST", "/v2/models/slow/infer", body)
        sent.append(i)
        status, _ = await c.head()
        return status

    async def run():
        calls = [asyncio.create_task(one(i)) for i in range(64)]
        until = time.monotonic() + 30
        while len(sent) < 64 or metric(s, "nv_inference_pending_request_count", "slow") + metric(
                s, "nv_inference_request_success", "slow") < 64 - 8:  # what else there is, runs
            assert time.monotonic() < until
            await asyncio.sleep(0.01)
        s.signal()
        return await asyncio.gather(*calls)

    assert asyncio.run(run()) == [200] * 64
    assert s.wait() == 0
    log = s.log()
    assert "Timeout 30: Found" in log and "HTTP service connections" in log
