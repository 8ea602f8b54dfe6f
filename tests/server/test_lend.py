# SPDX-License-Identifier: Apache-2.0
"""Models that never block are run by the HTTP loops themselves, and hold nobody up."""
import pathlib
import re
import threading
import time

import pytest

from triton_server import BUILD, infer_body, wait_until, write_model

FICKLE = BUILD / "tests/backends/fickle/libtriton_fickle.so"
PATH = "/v2/models/{}/infer"


def write_fickle(repository, name):
    """The model's own folder has its backend."""
    write_model(repository, name)
    folder = pathlib.Path(repository) / name
    text = (folder / "config.pbtxt").read_text().replace('"identity"', '"fickle"')
    (folder / "config.pbtxt").write_text(text.replace("INPUT0", "IN").replace("OUTPUT0", "OUT"))
    (folder / "libtriton_fickle.so").symlink_to(FICKLE)


def fickle_body(**parameters):
    return {"parameters": parameters,
            "inputs": [{"name": "IN", "datatype": "INT32", "shape": [2], "data": [3, 4]}]}


def sleeps_of_workers(server):
    """How often each thread of a model went to sleep."""
    found = {}
    for task in pathlib.Path(f"/proc/{server.process.pid}/task").iterdir():
        try:
            text = (task / "status").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has just ended, as those of a model that was unloaded
        if re.match(r"Name:\s+i(:|nstances)", text):
            found[task.name] = int(re.search(r"\nvoluntary_ctxt_switches:\s+(\d+)", text).group(1))
    return found


def wakes_nobody(server, connection, path, body, data, n=100):
    """Whether n requests wake fewer than n / 2 threads of models; a busy machine may take a while."""
    before = sleeps_of_workers(server)
    for _ in range(n):
        reply = connection.call("POST", path, body)
        assert reply.status == 200 and reply.json()["outputs"][0]["data"] == data, reply.body
    after = sleeps_of_workers(server)
    return sum(count - before.get(task, 0) for task, count in after.items()) < n // 2


def test_the_loop_runs_quick_models_itself(tmp_path, launch):
    write_model(tmp_path / "r", "quick")
    write_model(tmp_path / "r", "stays", extra="dynamic_batching { preserve_ordering: true }")
    s = launch(tmp_path / "r").wait_ready()
    with s.connect() as c:
        wait_until(lambda: wakes_nobody(s, c, PATH.format("quick"), infer_body([1, 2]), [1, 2]), 60)
        assert not wakes_nobody(s, c, PATH.format("stays"), infer_body([1, 2]), [1, 2])


@pytest.mark.skipif(not FICKLE.exists(), reason="make test-backends builds what this needs")
def test_a_slow_model_holds_the_loop_up_once(tmp_path, launch):
    write_fickle(tmp_path / "r", "f")
    s = launch(tmp_path / "r", "--http-thread-count=1").wait_ready()
    with s.connect() as c, s.connect() as slow:
        wait_until(lambda: wakes_nobody(s, c, PATH.format("f"), fickle_body(), [3, 4]), 60)
        # it says that it never blocks, so the first slow request may be run by the loop
        assert slow.call("POST", PATH.format("f"), fickle_body(sleep_us=300000)).status == 200
        for _ in range(3):
            slow.request("POST", PATH.format("f"), fickle_body(sleep_us=300000))
            began = time.monotonic()
            while time.monotonic() - began < 0.05:  # the slow one has come and runs
                assert c.call("GET", "/v2/health/live").status == 200
            assert time.monotonic() - began < 0.25
            assert slow.reply().status == 200


@pytest.mark.skipif(not FICKLE.exists(), reason="make test-backends builds what this needs")
def test_unloading_waits_for_the_loop(tmp_path, launch):
    write_fickle(tmp_path / "r", "f")
    s = launch(tmp_path / "r", "--http-thread-count=2", "--model-control-mode=explicit",
               "--load-model=f").wait_ready()
    for _ in range(3):
        with s.connect() as c:
            wait_until(lambda: wakes_nobody(s, c, PATH.format("f"), fickle_body(), [3, 4]), 60)
            replies = []
            c.request("POST", PATH.format("f"), fickle_body(sleep_us=300000))
            t = threading.Thread(target=lambda: replies.append(
                s.call("POST", "/v2/repository/models/f/unload")))
            t.start()
            assert c.reply().json()["outputs"][0]["data"] == [3, 4]
            t.join()
            assert replies[0].status == 200
        wait_until(lambda: s.call("POST", PATH.format("f"), fickle_body()).status != 200)
        assert s.call("POST", "/v2/repository/models/f/load").status == 200
    assert s.stop() == 0
