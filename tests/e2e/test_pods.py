# SPDX-License-Identifier: Apache-2.0
"""Pods of Kubernetes' LeaderWorkerSet, played by the variables that its controller gives them: one process a pod. They get the
command line of deploy/kubernetes/hosts.yaml, with ports and a volume of their own."""
import json
import os
import pathlib
import signal
import socket
import subprocess
import urllib.request
import uuid

import pytest
import yaml

from llm_server import BIN, Server
from ports import free_ports
from processes import left
from test_launched import evaluate, log_probs, tokens, wait_until  # noqa: F401

HERE = f"pods-{uuid.uuid4().hex[:8]}"
MANIFEST = pathlib.Path(__file__).resolve().parents[2] / "deploy/kubernetes/hosts.yaml"
LONG = {"text_input": "A", "max_tokens": 80, "top_k": 1, "stream": True}


@pytest.fixture
def pod():
    """What a pod of a set of two has in its environment."""
    (port,) = free_ports(1)

    def environment(i):
        # One machine plays all pods, so each needs a name of its own where ranks of one pod meet.
        return {"LWS_GROUP_SIZE": "2", "LWS_WORKER_INDEX": str(i), "LWS_LEADER_ADDRESS": f"{HERE}-{i}",
                "NEREID_RANKS_ADDRESS": f"127.0.0.1:{port}", "NEREID_RANKS_KEY": "of the secret"}
    environment.port = port
    return environment


def test_pods_of_a_set_share_the_ranks_evenly(tiny_model, own_cache, tokens, tmp_path, pod):  # noqa: F811
    command = evaluate(tiny_model, tokens, tmp_path / "out", "--tp-size", "4")
    pods = [subprocess.Popen(list(map(str, command)), env=dict(os.environ, NEREID_CACHE=str(own_cache), **pod(i)),
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for i in (1, 0)]
    said = [p.communicate(timeout=120)[0] for p in pods]
    assert [p.returncode for p in pods] == [0, 0], said
    assert log_probs(tmp_path / "out")
    assert not left(own_cache)


def command_of_the_manifest(volume):
    group = next(d for d in yaml.safe_load_all(MANIFEST.read_text()) if d["kind"] == "LeaderWorkerSet")
    (container,) = group["spec"]["leaderWorkerTemplate"]["leaderTemplate"]["spec"]["containers"]
    args = [a.replace("/models", str(volume)) for a in container["args"]]
    args[args.index("0.0.0.0")] = "127.0.0.1"
    return args


def status(s, path):
    try:
        return s.request(path, timeout=5)[0]
    except OSError:
        return 0


def listens(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_a_leader_is_ready_when_its_workers_are_and_all_drain_together(tiny_model, own_cache, tmp_path, pod):
    subprocess.run(list(map(str, [BIN / "nereid", "build", tiny_model, "--pp_size", "2", "-o", tmp_path / "engine"])), check=True,
                   capture_output=True)
    (tmp_path / "tokenizer").symlink_to(tiny_model)
    path, *args = command_of_the_manifest(tmp_path)
    leader = Server(path, own_cache, *args, address=None, env=pod(0))
    wait_until(lambda: listens(pod.port))
    assert status(leader, "/v2/health/ready") != 200
    worker = subprocess.Popen([str(BIN / "nereid"), "serve", path, *args], env=dict(os.environ, NEREID_CACHE=str(own_cache), **pod(1)))
    leader.wait_ready()

    request = urllib.request.Request(leader.url("/v2/models/ensemble/generate_stream"), data=json.dumps(LONG).encode())
    with urllib.request.urlopen(request, timeout=60) as answer:
        lines = [answer.readline()]
        for process in (worker, leader.process):  # as the end of a set's group does
            process.send_signal(signal.SIGTERM)
        lines += answer.readlines()
    assert sum(line.startswith(b"data: ") for line in lines) == LONG["max_tokens"], lines[-3:]
    assert leader.process.wait(60) == 0, leader.log_text()[-3000:]
    assert worker.wait(10) == 0
    wait_until(lambda: not left(own_cache))
