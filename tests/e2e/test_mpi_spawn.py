# SPDX-License-Identifier: Apache-2.0
"""Models whose ranks MPI_Comm_spawn starts (NEREID_SPAWN=mpi), each a world of its own: what ends one of them leaves the others
alone, and with the server all of them end."""
import os
import pathlib
import shutil
import signal
import subprocess

import pytest

from llm_server import BIN, Server
from test_launched import left, wait_until
from test_orchestrator import ORCHESTRATOR, ask, engine, order, parent, ready, repository  # noqa: F401

SPAWN = dict(ORCHESTRATOR, NEREID_SPAWN="mpi")

pytestmark = pytest.mark.skipif(not shutil.which("mpirun"), reason="no mpirun")


def command(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")[:-1]
    except OSError:
        return []


def running(cache, word):
    return {pid for pid in left(cache) if word in command(pid)}


def test_each_model_is_a_world_of_its_own(repository, own_cache):
    s = Server(repository(), own_cache, "--model-control-mode=explicit", "--load-model=a", "--restart-on-failure=false",
               env=SPAWN).wait_ready()
    (of_a,), (world_of_a,) = running(own_cache, "mpi-worker"), running(own_cache, "mpi-world")
    assert parent(world_of_a) == s.process.pid
    assert "orted" in command(parent(of_a))[0] or "prted" in command(parent(of_a))[0]
    status, before = ask(s, "a")
    assert status == 200
    assert order(s, "b", "load")[0] == 200
    assert ask(s, "b") == (200, before)
    (world_of_b,) = running(own_cache, "mpi-world") - {world_of_a}

    os.kill(of_a, signal.SIGKILL)
    wait_until(lambda: not ready(s, "a"))
    status, error = ask(s, "a")
    assert status == 503 and "rank 1 of 2 was lost" in error, error
    assert ask(s, "b") == (200, before)
    wait_until(lambda: order(s, "a", "load")[0] == 200)
    assert ask(s, "a") == (200, before)

    os.kill(world_of_b, signal.SIGKILL)  # Open MPI's daemon ends what it had started
    wait_until(lambda: not ready(s, "b"))
    assert ask(s, "a") == (200, before)

    assert order(s, "b", "unload")[0] == order(s, "a", "unload")[0] == 200
    wait_until(lambda: left(own_cache) == [s.process.pid])
    assert s.stop() == 0
    assert not left(own_cache)


def test_nothing_is_left_of_a_server_that_is_killed(repository, own_cache):
    s = Server(repository(), own_cache, "--model-control-mode=explicit", "--load-model=a", "--load-model=b",
               "--restart-on-failure=false", env=SPAWN).wait_ready()
    assert len(running(own_cache, "mpi-worker")) == 2
    s.process.kill()
    s.process.wait(30)
    wait_until(lambda: not left(own_cache))


def test_a_program_of_mpirun_spawns_ranks(engine, own_cache):
    root = ["--allow-run-as-root"] if os.getuid() == 0 else []
    done = subprocess.run(["mpirun", *root, "-n", "1", BIN / "nereid", "bench", "latency", engine, "--threads", "1", "--input_len", "8",
                           "--output_len", "4", "--num-requests", "2"], capture_output=True, text=True, timeout=120,
                          env=dict(os.environ, NEREID_CACHE=str(own_cache), NEREID_SPAWN="mpi"))
    assert done.returncode == 0 and "output throughput" in done.stdout, done.stdout + done.stderr
    wait_until(lambda: not left(own_cache))
