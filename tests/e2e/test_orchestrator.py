# SPDX-License-Identifier: Apache-2.0
"""Several models in one server, each with its own ranks (TRTLLM_ORCHESTRATOR, --multi-model): a rank that is killed
fails its model only, models come and go, and nothing is left at the end. Ranks that were started beforehand go to the
models that name them (participant_ids)."""
import concurrent.futures
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest

from llm_server import BIN, ROOT, Server
from ports import free_ports
from test_launched import environment, left, start, wait_until
from test_ranks import alive, workers

ORCHESTRATOR = {"TRTLLM_ORCHESTRATOR": "1"}
PREPARED = dict(ORCHESTRATOR, TRTLLM_ORCHESTRATOR_SPAWN_PROCESSES="0")


@pytest.fixture(scope="module")
def engine(tiny_model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("orchestrator")
    subprocess.run([BIN / "nereid", "build", tiny_model, "--output_dir", folder / "engine", "--tp_size", "2"], check=True,
                   capture_output=True)
    return folder / "engine"


@pytest.fixture
def repository(tiny_model, engine, tmp_path):
    """Makes one with the models a and b, whose parameters are given."""
    def make(**parameters):
        subprocess.run([BIN / "nereid", "repo", "--engine_dir", engine, "--tokenizer_dir", tiny_model, "--output_dir",
                        tmp_path / "whole", "--set", "decoupled_mode:False"], check=True, capture_output=True)
        for name in ("a", "b"):
            shutil.copytree(tmp_path / "whole" / "tensorrt_llm", tmp_path / "repo" / name)
            config = tmp_path / "repo" / name / "config.pbtxt"
            text = re.sub(r'^name: "tensorrt_llm"', f'name: "{name}"', config.read_text(), flags=re.M)
            for key, value in parameters.get(name, {}).items():
                text += f'\nparameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n'
            config.write_text(text)
        return tmp_path / "repo"
    return make


def ask(s, model, n=24):
    """(status, the tokens or the error)"""
    body = {"inputs": [{"name": name, "shape": [1, len(value)], "datatype": "INT32", "data": value}
                       for name, value in (("input_ids", [5, 17, 33, 60]), ("input_lengths", [4]), ("request_output_len", [n]))]}
    status, answer = s.request(f"/v2/models/{model}/infer", body)
    if status != 200:
        return status, answer["error"]
    return status, next(o["data"] for o in answer["outputs"] if o["name"] == "output_ids")


def ready(s, model):
    return s.request(f"/v2/models/{model}/ready")[0] == 200


def order(s, model, what):
    return s.request(f"/v2/repository/models/{model}/{what}", b"")


def test_a_killed_rank_fails_its_model_only_and_models_come_and_go(repository, own_cache):
    s = Server(repository(), own_cache, "--model-control-mode=explicit", "--load-model=a", "--restart-on-failure=false",
               env=ORCHESTRATOR).wait_ready()
    (of_a,) = workers(s)
    status, before = ask(s, "a")
    assert status == 200
    assert order(s, "b", "load")[0] == 200
    (of_b,) = set(workers(s)) - {of_a}
    assert ask(s, "b") == (200, before)

    os.kill(of_a, signal.SIGKILL)
    begin = time.monotonic()
    while ready(s, "a"):
        assert ask(s, "b") == (200, before)
    assert time.monotonic() - begin < 8
    status, error = ask(s, "a")
    assert status == 503 and "rank 1 of 2 was lost" in error, error
    assert ready(s, "b") and alive(of_b)
    wait_until(lambda: order(s, "a", "load")[0] == 200)
    assert ask(s, "a") == ask(s, "b") == (200, before)

    assert order(s, "b", "unload")[0] == 200
    wait_until(lambda: not alive(of_b))
    assert not ready(s, "b") and ask(s, "a") == (200, before)
    assert s.stop() == 0
    assert not left(own_cache)


def ticks(pid):
    """Processor time that a process has used."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return int(fields[11]) + int(fields[12])


def set_instances(repo, count):
    config = repo / "a" / "config.pbtxt"
    text, n = re.subn(r"count: *1\b", f"count: {count}", config.read_text())
    assert n == 1, text
    config.write_text(text)


@pytest.mark.parametrize("gpus", ["0,1;2,3", "0,1"])
def test_instances_of_a_model_have_ranks_of_their_own_and_share_its_queue(repository, own_cache, gpus):
    """A list for each instance, or one for all. (Ranks on processors take the lists and have no use for them.)"""
    repo = repository(a={"gpu_device_ids": gpus})
    set_instances(repo, 2)
    s = Server(repo, own_cache, "--model-control-mode=explicit", "--load-model=a", "--restart-on-failure=false").wait_ready()
    ranks = workers(s)
    assert len(ranks) == 2
    status, want = ask(s, "a", 100)
    assert status == 200
    before = [ticks(p) for p in ranks]

    def all_have_worked():
        """Which rank takes a request is a matter of their pace; none is left out for ever."""
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            for answer in pool.map(lambda _: ask(s, "a", 100), range(64)):
                assert answer == (200, want)
        return all(ticks(p) > b for p, b in zip(ranks, before, strict=True))

    wait_until(all_have_worked)
    os.kill(ranks[0], signal.SIGKILL)
    wait_until(lambda: not ready(s, "a"))
    wait_until(lambda: order(s, "a", "load")[0] == 200)
    assert ask(s, "a", 100) == (200, want)
    assert len(workers(s)) == 2
    assert s.stop() == 0
    assert not left(own_cache)


def test_an_instance_without_a_list_of_gpus_is_refused(repository, own_cache):
    repo = repository(a={"gpu_device_ids": "0,1;2,3"})
    set_instances(repo, 3)
    s = Server(repo, own_cache, "--model-control-mode=explicit", "--load-model=b", "--restart-on-failure=false").wait_ready()
    status, answer = order(s, "a", "load")
    assert status == 400 and "gpu_device_ids '0,1;2,3' has 2 lists, but instance number 2 needs one" in answer["error"], answer
    assert ask(s, "b")[0] == 200
    assert s.stop() == 0


def test_the_launch_script_starts_several_models(repository, own_cache):
    http, grpc, metrics = free_ports(3)
    env = dict(os.environ, NEREID_CACHE=str(own_cache))
    subprocess.run([sys.executable, ROOT / "scripts/launch_triton_server.py", f"--model_repo={repository()}", "--multi-model",
                    f"--http_port={http}", f"--grpc_port={grpc}", f"--metrics_port={metrics}", "--force", "--no-mpi",
                    f"--tritonserver={BIN / 'tritonserver'}"], env=env, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                   timeout=60)
    s = Server.__new__(Server)
    s.http = http

    def answers(model):
        try:
            return ask(s, model)
        except OSError:
            return None, None

    wait_until(lambda: answers("a")[0] == answers("b")[0] == 200)
    processes = left(own_cache)
    assert len(processes) == 3  # the server and a rank for each model
    (server,) = [p for p in processes if pathlib.Path(f"/proc/{p}/comm").read_text().strip() == "tritonserver"]
    os.kill(server, signal.SIGTERM)
    wait_until(lambda: not left(own_cache))


def parent(pid):
    return int(pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


def prepared(repo, cache, job):
    """A server and four ranks that were started with it."""
    above = [start([BIN / "tritonserver", f"--model-repository={repo}"], i, 5, job, cache) for i in range(1, 5)]
    return above, Server(repo, cache, "--model-control-mode=explicit", "--load-model=a", "--load-model=b",
                         "--restart-on-failure=false", "--exit-on-error=false",
                         env=dict(PREPARED, **environment(0, 5, job)))


def test_models_take_the_ranks_that_they_name(repository, own_cache):
    above, s = prepared(repository(a={"participant_ids": "1,2"}, b={"participant_ids": "3,4"}), own_cache, "named")
    s.wait_ready()
    assert ask(s, "a")[0] == ask(s, "b")[0] == 200
    started = [p for p in left(own_cache) if p not in [s.process.pid, *[r.pid for r in above]]]
    assert sorted(parent(p) for p in started) == sorted([above[1].pid, above[3].pid])
    assert "participant_ids '1,2' has no effect" not in s.log_text()
    assert s.stop() == 0
    wait_until(lambda: not left(own_cache))


@pytest.mark.parametrize(("ids", "words"), [
    ("1", "participant_ids has 1 ranks, but the engine has 2"),
    ("1,7", "participant_ids: rank 7 is none of the 5 that were started (0 to 4)"),
    ("2,2", "participant_ids: rank 2 comes twice"),
    ("1,0", "participant_ids: rank 0 is the server's own"),
])
def test_ranks_that_do_not_fit_are_named(repository, own_cache, ids, words):
    above, s = prepared(repository(a={"participant_ids": ids}, b={"participant_ids": "3,4"}), own_cache, f"wrong{hash(ids)}")
    s.wait_log(words, 60)
    s.wait_log("Started Metrics Service", 60)
    assert ready(s, "b")
    assert not ready(s, "a")
    assert s.stop() == 0
    wait_until(lambda: not left(own_cache))
