# SPDX-License-Identifier: Apache-2.0
"""Ranks that a launcher started: the same program in every rank, of which rank 0 serves or prints. The launcher is
played by the environment that Open MPI makes; where mpirun is, by itself."""
import json
import os
import shutil
import signal
import socket
import subprocess
import time
import uuid

import pytest

from llm_server import BIN, Server
from ports import free_ports
from processes import left

LONG = {"text_input": "A", "max_tokens": 60, "top_k": 1}
HERE = f"launched-{uuid.uuid4().hex[:8]}"


def environment(rank, size, job):
    return {"OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_SIZE": str(size),
            "OMPI_COMM_WORLD_LOCAL_SIZE": str(size), "PMIX_NAMESPACE": f"{HERE}-{job}"}


def start(command, rank, size, job, cache, **more):
    env = dict(os.environ, NEREID_CACHE=str(cache), **dict(environment(rank, size, job), **more))
    return subprocess.Popen(list(map(str, command)), env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def wait_until(condition, seconds=30):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.05)


def answers(s):
    try:
        return s.generate(LONG)[0] == 200
    except OSError:
        return False


@pytest.fixture
def tokens(tmp_path):
    path = tmp_path / "tokens.jsonl"
    path.write_text(json.dumps({"tokens": list(range(3, 40))}) + "\n")
    return path


def log_probs(path):
    return [p for line in path.read_text().splitlines() for p in json.loads(line)["logprobs"] if p is not None]


def evaluate(model, tokens, out, *more):
    return [BIN / "nereid", "eval", model, "--tokens", tokens, "--out", out, "--compute-dtype", "float32", "--threads", "1",
            *more]


def test_a_tool_runs_on_all_ranks_and_rank_0_prints(tiny_model, own_cache, tokens, tmp_path):
    done = subprocess.run(list(map(str, evaluate(tiny_model, tokens, tmp_path / "alone"))), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    command = evaluate(tiny_model, tokens, tmp_path / "four", "--tp-size", "2", "--pp-size", "2")
    ranks = [start(command, i, 4, "tool", own_cache) for i in (3, 1, 0, 2)]
    said = [r.communicate(timeout=120)[0] for r in ranks]
    assert [r.returncode for r in ranks] == [0] * 4, said
    assert [bool(text) for text in said] == [False, False, bool(done.stdout + done.stderr), False], said
    assert log_probs(tmp_path / "four") == pytest.approx(log_probs(tmp_path / "alone"), abs=1e-3)
    assert not left(own_cache)


def test_a_server_leads_and_the_others_open_no_port(tiny_model, own_cache):
    ports = free_ports(3)
    above_0 = [BIN / "tritonserver", "--model-repository=/nowhere", f"--grpc-port={ports[0]}", f"--http-port={ports[1]}",
               f"--metrics-port={ports[2]}", "--model-control-mode=explicit", "--load-model=tensorrt_llm"]
    rank_1 = start(above_0, 1, 2, "server", own_cache)
    s = Server(tiny_model, own_cache, "--pp-size=2", env=environment(0, 2, "server")).wait_ready()
    status, before = s.generate(LONG)
    assert status == 200
    for port in ports:
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", port)) != 0
    (worker,) = [pid for pid in left(own_cache) if pid not in (s.process.pid, rank_1.pid)]

    os.kill(worker, signal.SIGKILL)  # the server starts again as the same process, and the rank goes on
    wait_until(lambda: not answers(s))
    wait_until(lambda: answers(s), 60)
    assert s.generate(LONG) == (200, before)
    assert rank_1.poll() is None

    for pid in (rank_1.pid, s.process.pid):  # as a launcher does
        os.kill(pid, signal.SIGTERM)
    assert s.process.wait(60) == 0, s.log_text()[-3000:]
    assert rank_1.wait(30) == 0
    wait_until(lambda: not left(own_cache))


def test_a_rank_that_is_killed_is_heard(tiny_model, own_cache):
    rank_1 = start([BIN / "nereid", "serve", tiny_model], 1, 2, "killed", own_cache)
    s = Server(tiny_model, own_cache, "--tp-size=2", "--restart-on-failure=false", env=environment(0, 2, "killed")).wait_ready()
    rank_1.kill()
    rank_1.wait(10)
    wait_until(lambda: s.request("/v2/models/tensorrt_llm/ready")[0] != 200, 10)
    status, answer = s.generate(LONG)
    assert status == 503 and "rank 1 of 2 was lost" in answer["error"]
    status, answer = s.request("/v2/repository/models/tensorrt_llm/load", b"")
    assert status != 200 and "the process of rank 1 of 2 has ended; start all ranks again" in answer["error"]
    s.process.send_signal(signal.SIGTERM)
    s.process.wait(60)
    wait_until(lambda: not left(own_cache))


def test_what_does_not_fit_is_said_with_what_to_do(tiny_model, own_cache, tokens, tmp_path):
    command = evaluate(tiny_model, tokens, tmp_path / "out", "--tp-size", "2")
    above_0 = start(command, 1, 3, "three", own_cache)
    rank_0 = start(command, 0, 3, "three", own_cache)
    said = rank_0.communicate(timeout=60)[0]
    assert rank_0.returncode != 0
    assert above_0.wait(30) == 0
    assert "the engine has 2 ranks (tp_size x pp_size), but 3 were started: start 2 (mpirun -n 2, --world_size 2), or one" in said
    assert not left(own_cache)


def on_hosts(rank, size, n_here, key="secret"):
    """What a rank is told where n_here of them are on each host; `job` is another on each."""
    return dict(environment(rank, size, f"host-{rank // n_here}"), OMPI_COMM_WORLD_LOCAL_SIZE=str(n_here),
                OMPI_COMM_WORLD_LOCAL_RANK=str(rank % n_here), NEREID_RANKS_KEY=key)


@pytest.fixture
def meeting():
    (port,) = free_ports(1)
    return {"NEREID_RANKS_ADDRESS": f"127.0.0.1:{port}"}


@pytest.mark.parametrize("n_here", [1, 2])
def test_ranks_of_several_hosts_meet_at_an_address(tiny_model, own_cache, tokens, tmp_path, meeting, n_here):
    done = subprocess.run(list(map(str, evaluate(tiny_model, tokens, tmp_path / "alone"))), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    command = evaluate(tiny_model, tokens, tmp_path / "four", "--tp-size", "2", "--pp-size", "2")
    ranks = [start(command, i, 4, "", own_cache, **on_hosts(i, 4, n_here), **meeting) for i in (3, 1, 0, 2)]
    said = [r.communicate(timeout=120)[0] for r in ranks]
    assert [r.returncode for r in ranks] == [0] * 4, said
    assert log_probs(tmp_path / "four") == pytest.approx(log_probs(tmp_path / "alone"), abs=1e-3)
    assert not left(own_cache)


def test_a_host_with_another_key_is_not_let_in(tiny_model, own_cache, tokens, tmp_path, meeting):
    command = evaluate(tiny_model, tokens, tmp_path / "out", "--tp-size", "2")
    rank_0 = start(command, 0, 2, "", own_cache, **on_hosts(0, 2, 1), **meeting)
    stranger = start(command, 1, 2, "", own_cache, **on_hosts(1, 2, 1, "other"), **meeting)
    said = stranger.communicate(timeout=60)[0]
    assert stranger.returncode == 1 and "it is of another job, or NEREID_RANKS_KEY differs" in said, said
    friend = start(command, 1, 2, "", own_cache, **on_hosts(1, 2, 1), **meeting)
    assert rank_0.communicate(timeout=60)[0] is not None and rank_0.returncode == 0
    assert friend.wait(30) == 0
    assert not left(own_cache)


def test_a_stranger_of_another_build_does_not_fail_a_load(tiny_model, own_cache, tokens, tmp_path, meeting):
    command = evaluate(tiny_model, tokens, tmp_path / "out", "--tp-size", "2")
    rank_0 = start(command, 0, 2, "", own_cache, **on_hosts(0, 2, 1), **meeting)
    port = int(meeting["NEREID_RANKS_ADDRESS"].rsplit(":")[1])
    stranger = socket.socket()
    wait_until(lambda: stranger.connect_ex(("127.0.0.1", port)) == 0)
    with stranger:
        stranger.sendall(b"another build".ljust(400, b"\0"))
        stranger.settimeout(60)
        assert b"NEREID_RANKS_KEY differs" in stranger.recv(256)
    friend = start(command, 1, 2, "", own_cache, **on_hosts(1, 2, 1), **meeting)
    assert rank_0.communicate(timeout=60)[0] is not None and rank_0.returncode == 0
    assert friend.wait(30) == 0
    assert not left(own_cache)


def test_a_host_whose_engine_is_another_is_refused(tiny_model, own_cache, tokens, tmp_path, meeting):
    """The same name on both hosts, which are two folders here."""
    for host, more in (("one", []), ("two", ["--quantize", "q8_0"])):
        (tmp_path / host).mkdir()
        build = [BIN / "nereid", "build", tiny_model, "--tp_size", "2", "-o", tmp_path / host / "engine", *more]
        subprocess.run(list(map(str, build)), check=True, capture_output=True)
    command = evaluate("engine", tokens, tmp_path / "out")
    ranks = []
    for i, host in enumerate(("one", "two")):
        env = dict(os.environ, NEREID_CACHE=str(own_cache), **on_hosts(i, 2, 1), **meeting)
        ranks.append(subprocess.Popen(list(map(str, command)), env=env, cwd=tmp_path / host, stdout=subprocess.PIPE,
                                      stderr=subprocess.STDOUT, text=True))
    said = ranks[0].communicate(timeout=60)[0]
    assert ranks[0].returncode != 0
    assert "rank 1 of 2" in said and "is another engine here than on rank 0's host; copy all files of one build to every host" in said
    assert ranks[1].wait(30) == 0
    assert not left(own_cache)


def test_a_launcher_that_does_not_say_where_rank_0_is_is_told_what_to_set(tiny_model, own_cache, tokens, tmp_path):
    env = dict(os.environ, NEREID_CACHE=str(own_cache), PMI_RANK="0", PMI_SIZE="2", MPI_LOCALNRANKS="1", MPI_LOCALRANKID="0")
    done = subprocess.run(list(map(str, evaluate(tiny_model, tokens, tmp_path / "out"))), env=env, capture_output=True, text=True,
                          timeout=60)
    assert done.returncode == 1
    assert "set NEREID_RANKS_ADDRESS=HOST:PORT of rank 0 in the environment of all" in done.stderr
    assert not left(own_cache)


def test_a_rank_that_comes_behind_the_end_of_rank_0_ends_with_it(own_cache, tokens, tmp_path):
    command = evaluate(tmp_path / "nowhere", tokens, tmp_path / "out")
    rank_0 = start(command, 0, 2, "late", own_cache)
    time.sleep(0.5)  # rank 0 has no model, and nothing to do any more
    above_0 = start(command, 1, 2, "late", own_cache)
    assert "nowhere" in rank_0.communicate(timeout=30)[0] and rank_0.returncode != 0
    assert above_0.wait(10) == 0
    assert not left(own_cache)


def test_a_signal_before_rank_0_is_ready_ends_it_in_order(tiny_model, own_cache):
    rank_1 = start([BIN / "nereid", "serve", tiny_model], 1, 2, "early", own_cache)
    s = Server(tiny_model, own_cache, "--tp-size=2", env=environment(0, 2, "early"))
    s.wait_log("with the interfaces of Triton")  # signals are blocked, and nobody waits for them yet
    assert s.stop() == 0, s.log_text()[-3000:]
    assert rank_1.wait(10) == 0
    wait_until(lambda: not left(own_cache))


def test_programs_of_a_launcher_may_be_apart(tiny_model, own_cache, tokens, tmp_path):
    env = dict(os.environ, NEREID_CACHE=str(own_cache), NEREID_LAUNCHED="0", **environment(1, 2, "apart"))
    done = subprocess.run(list(map(str, evaluate(tiny_model, tokens, tmp_path / "out"))), env=env, timeout=60)
    assert done.returncode == 0 and log_probs(tmp_path / "out")


@pytest.fixture
def mpirun():
    if not shutil.which("mpirun"):
        pytest.skip("no mpirun")
    root = ["--allow-run-as-root"] if os.getuid() == 0 else []
    return ["mpirun", *root, "--oversubscribe", "--bind-to", "none"]


def test_mpirun_starts_the_ranks_of_a_tool(mpirun, tiny_model, own_cache, tokens, tmp_path):
    command = [*mpirun, "-n", "2", *map(str, evaluate(tiny_model, tokens, tmp_path / "out", "--pp-size", "2"))]
    done = subprocess.run(command, env=dict(os.environ, NEREID_CACHE=str(own_cache)), capture_output=True, text=True,
                          timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert log_probs(tmp_path / "out")
    wait_until(lambda: not left(own_cache))


def test_nothing_is_left_when_mpirun_is_killed(mpirun, tiny_model, own_cache):
    http, grpc, metrics = free_ports(3)
    serve = [str(BIN / "nereid"), "serve", str(tiny_model), "--tp-size=2", f"--http-port={http}", f"--grpc-port={grpc}",
             f"--metrics-port={metrics}"]
    env = dict(os.environ, NEREID_CACHE=str(own_cache))
    with open(own_cache / "log", "w", encoding="utf-8") as log:
        launcher = subprocess.Popen([*mpirun, "-n", "1", *serve, ":", "-n", "1", *serve], env=env, stdout=log,
                                    stderr=subprocess.STDOUT)
    def ready():
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", http)) == 0
    wait_until(ready, 60)
    assert len(left(own_cache)) >= 4  # the launcher, two ranks, the second one's worker
    launcher.kill()
    launcher.wait()
    wait_until(lambda: not left(own_cache), 60)
