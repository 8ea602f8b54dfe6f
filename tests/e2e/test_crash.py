# SPDX-License-Identifier: Apache-2.0
"""A server that dies of a fault leaves a report, and `nereid repro` does again what its scheduler did."""
import collections
import os
import pathlib
import random
import re
import signal
import subprocess
import threading
import time

import pytest

from llm_server import BIN, Server

SECRET = "marmalade-and-seven-ducks"


def repro(*args):
    r = subprocess.run([BIN / "nereid", "repro", *map(str, args)], capture_output=True, check=False, timeout=120)
    return r.returncode, r.stdout.decode(errors="replace") + r.stderr.decode(errors="replace")


def load(s, n=12):
    """Requests of many kinds at once, some of which are left or share a prompt."""
    bodies = [{"text_input": f"the quick brown fox {i % 4} " * (1 + i % 3) + SECRET, "max_tokens": 8 + 9 * i, "top_k": 1} for i in range(n)]
    bodies.append({"text_input": "A", "max_tokens": 20, "temperature": 0.7, "top_k": 5, "random_seed": 3})
    threads = [threading.Thread(target=s.generate, args=(b,)) for b in bodies]
    threads.append(threading.Thread(target=s.request, args=("/v1/completions", {
        "model": "tiny", "prompt": "A", "max_tokens": 30, "n": 3, "guided_regex": "[0-9]{12}(ab|cd)"})))
    for t in threads:
        t.start()
    for t in threads:
        t.join()


def crash(s, signum):
    os.kill(s.process.pid, signum)
    return s.process.wait(60)


def reports(cache):
    return sorted(pathlib.Path(cache, "crashes").glob("crash-*"))


@pytest.fixture
def started(tiny_model, tmp_path):
    servers = []

    def start(*args):
        s = Server(tiny_model, tmp_path, "--served-model-name=tiny", *args)
        servers.append(s)
        return s.wait_ready()
    yield start
    for s in servers:
        s.process.kill()
        s.process.wait()


@pytest.mark.parametrize("signum", [signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGILL])
def test_a_fault_leaves_a_report_that_is_replayed(started, tmp_path, signum):
    s = started("--exit-timeout-secs=7")
    load(s)
    # A sanitizer has handlers of its own, which end the process in their way once ours has written.
    assert crash(s, signum) != 0
    (path,) = reports(tmp_path)
    text = path.read_bytes()
    assert oct(path.stat().st_mode & 0o777) == "0o600"
    assert f"{signum.name}: crash report in {path}" in s.log_text()
    head = text.split(b"What follows is not text")[0].decode()
    assert re.search(r"^version \d", head, re.M) and re.search(r"^build-id .*tritonserver|^build-id program=", head, re.M)
    assert f"signal {signum.name}" in head and "--exit-timeout-secs=7" in head
    assert "nrd-engine" in head
    assert re.search(r"^  \S+: request \d+ sequence \d+: prompt \d+, at most \d+ new", head, re.M)
    assert re.search(r"^  [\w.+-]+\+0x[0-9a-f]+$", head.split("backtrace")[1], re.M)
    assert SECRET.encode() not in text
    status, out = repro(path)
    assert status == 0, out
    assert "the same decisions to the end: it stood at step" in out
    status, out = repro(path, "--trace", "--from-step=3")
    assert status == 0 and "step 3:" in out and "step 1:" not in out
    status, out = repro(path, "--report")
    assert "Nereid crash report" in out


def test_keys_are_not_in_the_report(started, tmp_path):
    s = started("--http-restricted-api=statistics:sesame=open-it")
    crash(s, signal.SIGSEGV)
    text = reports(tmp_path)[0].read_bytes()
    assert b"open-it" not in text and b"--http-restricted-api=(left out)" in text


def test_so_many_reports_are_kept_in_the_folder_that_was_named(started, tmp_path):
    folder = tmp_path / "here"
    for i in range(4):
        crash(started(f"--crash-report-dir={folder}", "--crash-report-count=2"), signal.SIGSEGV)
        assert len(list(folder.iterdir())) == min(i + 1, 2)
        time.sleep(1)
    assert not reports(tmp_path)
    crash(started("--crash-report-count=0"), signal.SIGSEGV)
    assert not reports(tmp_path)


def test_a_rank_reports_into_the_folder_of_its_server(started, tmp_path):
    s = started("--tp-size=2", "--restart-on-failure=false")
    pids = [int(p) for t in pathlib.Path(f"/proc/{s.process.pid}/task").iterdir() for p in (t / "children").read_text().split()]
    (rank,) = [p for p in pids if pathlib.Path(f"/proc/{p}/cmdline").read_bytes().split(b"\0")[1:2] == [b"worker"]]
    os.kill(rank, signal.SIGSEGV)
    until = time.monotonic() + 20
    while not reports(tmp_path):
        assert time.monotonic() < until
        time.sleep(0.01)
    assert s.request("/v2/health/live")[0] == 200


def test_a_record_in_a_file_is_there_while_the_server_runs_and_when_it_is_killed(started, tmp_path, tiny_model):
    path = tmp_path / "record"
    s = started("--scheduler-record", path, "--set", "scheduler_record_bytes:1048576")
    load(s)
    status, out = repro(path)
    assert status == 0, out
    assert "1 sequences" not in out
    s.process.kill()
    s.process.wait()
    assert repro(path)[0] == 0
    status, out = repro(path, "--model", tiny_model)
    assert status == 0 and re.search(r"model \w+: \d+ sequences sent, 0 left out, which do not fit it, \d+ tokens, 0 failed", out), out


def test_what_is_no_record_is_refused(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(b"nothing of the kind")
    status, out = repro(path)
    assert status == 1 and "holds no record of a scheduler" in out
    path.write_bytes(b"NRD1" + bytes(400))
    status, out = repro(path)
    assert status == 1 and "another version" in out
    assert repro()[0] == 2


def test_damaged_records_end_with_an_answer(started, tmp_path):
    """Cut off, words of the head or of the events replaced: a result or an error, no fault and no endless run."""
    path, damaged, rng = tmp_path / "record", tmp_path / "damaged", random.Random(3)
    s = started("--scheduler-record", path, "--set", "scheduler_record_bytes:65536")
    load(s, 4)
    s.process.kill()
    s.process.wait()
    data = path.read_bytes()
    used, head = len(data.rstrip(b"\0")) // 4, 75
    statuses = collections.Counter()
    for i in range(80):
        d = bytearray(data)
        if i % 4 == 0:
            d = d[:rng.randrange(len(d))]
        for _ in range(0 if i % 4 == 0 else rng.choice([1, 4, 30])):
            at = 4 * (rng.randrange(head) if i % 4 == 1 else rng.randrange(head, max(used, head + 1)))
            d[at:at + 4] = rng.choice([0, 1, 255, 1 << 20, 2**31 - 1, 2**31, 2**32 - 1, rng.randrange(2**32)]).to_bytes(4, "little")
        damaged.write_bytes(d)
        status, out = repro(damaged)
        assert status in (0, 1), (i, status, out[-2000:])
        statuses[status] += 1
    assert statuses[1] > 20


def test_a_record_of_other_decisions_differs(started, tmp_path):
    path = tmp_path / "record"
    s = started("--set", f"scheduler_record:{path}", "--set", "scheduler_record_bytes:1048576")
    load(s, 4)
    s.process.kill()
    s.process.wait()
    data = bytearray(path.read_bytes())
    assert repro(path)[0] == 0
    # limits.max_num_tokens of the head: the fifth word, behind magic, version and two sizes, is max_batch_size
    data[16 + 8:16 + 12] = (300).to_bytes(4, "little")
    data[16:20] = (1).to_bytes(4, "little")
    path.write_bytes(data)
    status, out = repro(path)
    assert status == 1 and re.search(r"differs at step \d+", out), out
