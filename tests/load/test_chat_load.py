# SPDX-License-Identifier: Apache-2.0
"""Thousands of streaming chats at once over a small random model: none is lost, and clients that stop
reading cost the others nothing.

NEREID_CHAT_CLIENTS (2000) says how many, NEREID_CHAT_CPU_MS (1) how much processor time the server may take for
a token, which other work on the machine does not change.
"""
import json
import os
import resource
import subprocess
import sys

import pytest

ROOT = os.path.join(os.path.dirname(__file__), "../..")
sys.path.insert(0, os.path.join(ROOT, "tests/e2e"))
from llm_server import Server  # noqa: E402

CLIENTS = int(os.environ.get("NEREID_CHAT_CLIENTS", 2000))
CPU_MS = float(os.environ.get("NEREID_CHAT_CPU_MS", 1))
DRIVER = os.path.join(ROOT, os.environ.get("NEREID_BUILD", "build"), "tests/load/chat_load")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    if resource.getrlimit(resource.RLIMIT_NOFILE)[1] < 2 * CLIENTS + 500:
        pytest.skip("too few descriptors allowed")
    subprocess.run(["make", "-s", "build/tests/load/chat_load"], cwd=ROOT, check=True)
    model = tmp_path_factory.mktemp("tiny") / "llama"
    subprocess.run([sys.executable, os.path.join(ROOT, "tests/tinymodel/make_model.py"), "--arch", "llama", "--out",
                    model], check=True, stdout=subprocess.DEVNULL)
    s = Server(model, tmp_path_factory.mktemp("cache"))
    try:
        yield s.wait_ready()
    finally:
        status = s.stop()
    assert status == 0, s.log_text()[-4000:]


def chats(server, *args):
    p = subprocess.run([DRIVER, *map(str, args), str(server.http)], capture_output=True, text=True, timeout=280)
    print(p.stdout, p.stderr)
    return p.returncode, json.loads(p.stdout)


def processor_ms(server):
    with open(f"/proc/{server.process.pid}/stat") as f:
        fields = f.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) * 1000 / os.sysconf("SC_CLK_TCK")


@pytest.mark.timeout(300)
def test_every_chat_of_thousands_is_complete(server):
    before = processor_ms(server)
    status, r = chats(server, "--clients", CLIENTS, "--tokens", 64)
    assert status == 0 and r["complete"] == CLIENTS and r["failed"] == 0, r
    assert r["tokens"] == CLIENTS * 64
    per_token = (processor_ms(server) - before) / r["tokens"]
    print(f"{per_token:.3f} ms of processor time a token")
    assert per_token < CPU_MS


@pytest.mark.timeout(300)
def test_clients_that_stop_reading_cost_nobody_else(server):
    n, stalled = max(CLIENTS // 10, 20), max(CLIENTS // 100, 2)
    status, s = chats(server, "--clients", n, "--tokens", 400, "--stall", stalled)
    # Were the others held by those that stall, they would be held for good.
    assert status == 0 and s["complete"] == n - stalled and s["failed"] == 0, s
    status, answer = server.request("/v1/chat/completions", {
        "model": "ensemble", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4})
    assert status == 200, answer
