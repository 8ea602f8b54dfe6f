# SPDX-License-Identifier: Apache-2.0
"""`nereid ps`: the servers of this user, and none that has ended."""
import json
import os
import signal
import socket
import subprocess
import time

import pytest

from llm_server import BIN, Server


@pytest.fixture(autouse=True)
def run_dir(tmp_path, monkeypatch):
    (tmp_path / "run").mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    return tmp_path / "run/nereid"


def ps(*words):
    r = subprocess.run([BIN / "nereid", "ps", *words], capture_output=True, text=True)
    assert r.returncode == 0
    return r


def running():
    return json.loads(ps("--json").stdout)


def until(condition):
    end = time.monotonic() + 30
    while not (got := condition()):
        assert time.monotonic() < end
        time.sleep(0.02)
    return got


def test_servers_are_told_with_their_models_and_addresses_until_they_end(tiny_model, cache, run_dir):
    assert running() == [] and "no server of this user" in ps().stderr
    s = Server(tiny_model, cache, "--served-model-name=tiny,other")
    try:
        s.wait_ready()
        (e,) = until(running)
        assert e["pid"] == s.process.pid and e["models"] == "tiny,other" and e["grpc"] is None or ":" in e["grpc"]
        assert e["http"] == f"http://127.0.0.1:{s.http}" and e["metrics"].endswith(f":{s.metrics}")
        assert 1e6 < e["memory_bytes"] < 1e11 and e["repositories"][0].startswith(str(cache))
        (heading, line) = ps().stdout.splitlines()
        assert heading.split()[0] == "PID" and str(e["pid"]) in line and "tiny,other" in line and f":{s.http}" in line
        (told,) = run_dir.iterdir()
        assert run_dir.stat().st_mode & 0o777 == 0o700
    finally:
        assert s.stop() == 0
    assert list(run_dir.iterdir()) == [] and running() == []


def test_a_server_that_drains_is_told_as_such_until_it_has_ended(tiny_model, cache, run_dir):
    s = Server(tiny_model, cache)
    with socket.socket() as slow:  # a request whose end has not come yet
        try:
            s.wait_ready()
            assert until(running)[0]["state"] == "serving"
            slow.connect(("127.0.0.1", s.http))
            slow.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n{")
            s.process.send_signal(signal.SIGTERM)
            (e,) = until(lambda: [e for e in running() if e["state"] == "draining"])
            assert e["pid"] == s.process.pid and e["models"] and " draining " in ps().stdout
        finally:
            slow.close()
            assert s.stop() == 0
    assert list(run_dir.iterdir()) == [] and running() == []


def test_of_several_models_those_that_are_not_loaded_stand_in_parentheses(tiny_model, cache):
    s = Server(f"one={tiny_model}", cache, f"two={tiny_model}", "--pin", "two")
    try:
        s.wait_ready()
        (e,) = until(running)
        assert e["models"] == "(one),two"
        since, second = e["started"], time.time() + 1
        until(lambda: time.time() > second)  # a time that is told anew would be another
        assert s.request("/models/load", {"model": "one"})[0] == 200
        until(lambda: running()[0]["models"] == "one,two")
        assert s.request("/models/unload", {"model": "one"})[0] == 200
        until(lambda: running()[0]["models"] == "(one),two")
        assert running()[0]["started"] == since
    finally:
        assert s.stop() == 0
    assert running() == []


def test_prune_keeps_what_a_running_server_uses(tiny_model, tmp_path):
    def goes():
        r = subprocess.run([BIN / "nereid", "prune", "--older-than", "0s", "--dry-run", "--json"], capture_output=True, text=True,
                           env=dict(os.environ, NEREID_CACHE=str(tmp_path / "cache"), HF_HOME=str(tmp_path)))
        return {e["name"].split("/")[0] for e in json.loads(r.stdout)["removed"]}
    (tmp_path / "cache").mkdir()
    s = Server(tiny_model, tmp_path / "cache")
    try:
        s.wait_ready()
        until(running)
        assert goes() == set()
    finally:
        assert s.stop() == 0
    assert goes() == {"engines", "repositories"}


def test_what_a_killed_server_left_is_removed_and_not_told(tiny_model, cache, run_dir):
    s = Server(tiny_model, cache)
    s.wait_ready()
    until(running)
    s.process.send_signal(signal.SIGKILL)
    s.process.wait()
    (left,) = run_dir.iterdir()
    text = left.read_text()
    assert running() == [] and list(run_dir.iterdir()) == []
    (run_dir / f"{os.getpid()}-1.json").write_text(text)  # another process has the number now
    assert running() == []


def test_a_folder_that_others_can_write_is_not_used(run_dir):
    run_dir.mkdir()
    run_dir.chmod(0o777)
    (run_dir / "1-1.json").write_text("{}")
    assert running() == [] and (run_dir / "1-1.json").exists()
