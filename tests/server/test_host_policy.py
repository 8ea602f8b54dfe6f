# SPDX-License-Identifier: Apache-2.0
"""--host-policy: the threads of an instance run where it says, all others where they did."""
import os
import pathlib

import pytest

from triton_server import infer_body, write_model

MINE = sorted(os.sched_getaffinity(0))


def allowed(server):
    """{name of a thread: the processors that it may use}"""
    found = {}
    for task in pathlib.Path(f"/proc/{server.process.pid}/task").iterdir():
        lines = dict(line.split(":", 1) for line in (task / "status").read_text().splitlines())
        found.setdefault(lines["Name"].strip(), set()).add(lines["Cpus_allowed_list"].strip())
    return found


def group(kind="KIND_CPU", policy=""):
    name = f'host_policy: "{policy}"' if policy else ""
    return f"instance_group [ {{ count: 1 kind: {kind} {name} }} ]"


@pytest.fixture
def models(tmp_path):
    for name, text in (("named", group(policy="mine")), ("usual", group()), ("model", group("KIND_MODEL"))):
        write_model(tmp_path / "models", name)
        config = tmp_path / f"models/{name}/config.pbtxt"
        config.write_text("\n".join(x for x in config.read_text().splitlines() if "instance_group" not in x) + text)
    return tmp_path / "models"


def use(server):
    for name in ("named", "usual", "model"):
        for _ in range(20):
            assert server.call("POST", f"/v2/models/{name}/infer", infer_body([1])).status == 200
    return allowed(server)


@pytest.mark.skipif(len(MINE) < 2, reason="needs two processors")
def test_threads_of_instances_have_their_policy_s_processors(launch, models):
    a, b = str(MINE[0]), str(MINE[-1])
    s = launch(models, f"--host-policy=mine,cpu-cores={b}", f"--host-policy=cpu,cpu-cores={a}-{a}").wait_ready()
    found = use(s)
    assert found["i:named_0_0"] == {b} and found["i:usual_0_0"] == {a}, found
    everywhere = set(found["tritonserver"])
    assert found.get("i:model_0_0", everywhere) == everywhere and a not in everywhere and b not in everywhere
    s = launch(models).wait_ready()
    assert all(v == everywhere for v in use(s).values())


def test_a_node_is_its_processors(launch, models):
    node = pathlib.Path("/sys/devices/system/node/node0/cpulist")
    if not node.exists():
        pytest.fail("this machine says nothing of its NUMA nodes")
    s = launch(models, "--host-policy=mine,numa-node=0").wait_ready()
    assert use(s)["i:named_0_0"]
    assert s.stop() == 0


@pytest.mark.parametrize("value,words", [
    ("numa-node=63", "host policy 'mine': this machine has no processors on NUMA node 63"),
    ("numa-node=x", "host policy 'mine': numa-node must be a number from 0 to 63, got 'x'"),
    ("cpu-cores=a", "host policy 'mine': cpu-cores must be numbers of processors as 0-3 or 0,2, got 'a'"),
    ("cpu-cores=3-1", "got '3-1'"), ("cpu-cores=0-99999", "got '0-99999'"), ("cpu-cores=1-", "got '1-'"),
    ("cpu-cores=1023", "host policy 'mine': this process may use none of its processors"),
])
def test_policies_that_cannot_be_are_errors_of_the_model(launch, models, value, words):
    s = launch(models, f"--host-policy=mine,{value}", "--exit-on-error=false").wait_ready()
    assert words in s.log()
    assert s.call("GET", "/v2/models/named/ready").status != 200
    assert s.call("GET", "/v2/models/usual/ready").status == 200
