# SPDX-License-Identifier: Apache-2.0
"""Models that fail, hang, crash; servers that are killed; nothing is left behind."""
import contextlib
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import threading
import time

import pytest

import pb_lab
from pb_lab import tensor

pytest.importorskip("numpy")
pytestmark = pytest.mark.skipif(not (pb_lab.BACKEND / "libtriton_python.so").exists(),
                                reason="the Python backend was not built (no Python.h)")


@pytest.fixture
def launch(tmp_path):
    servers = []
    models = tmp_path / "models"
    models.mkdir()

    def start(*args, wait=True, **kw):
        s = pb_lab.Server(tmp_path, models, *args, **kw)
        servers.append(s)
        return s.wait_ready() if wait else s
    start.models = models
    yield start
    for s in servers:
        s.stop()


def status(server, model):
    index = server.call("POST", "/v2/repository/index").json()
    return next(m for m in index if m["name"] == model)


@pytest.mark.parametrize("how,text", [
    ("SIGKILL", "signal 9"), ("SIGSEGV", "signal 11"), ("os._exit(4)", "exit status 4")])
def test_a_crash_is_reported_and_the_process_started_again(launch, how, text):
    pb_lab.add_model(launch.models, "lab")
    pb_lab.add_model(launch.models, "add_sub")
    s = launch()
    first = s.run("result = os.getpid()").output()[0]
    crash = how if how.startswith("os.") else f"import signal; os.kill(os.getpid(), signal.{how})"
    a = s.run(crash)
    assert a.status == 500 and a.error() == "Stub process 'lab_0_0' is not healthy."
    assert text in s.log()
    second = s.run("result = os.getpid()").output()[0]
    assert second != first and pb_lab.is_gone(int(first))
    assert not pathlib.Path(f"/proc/{first}").exists()  # no zombie
    assert s.call("GET", "/v2/models/lab/ready").status == 200
    assert s.infer("add_sub", tensor("A", "FP32", [1, 1], [1]),
                   tensor("B", "FP32", [1, 1], [2])).status == 200


def test_an_idle_process_that_dies_is_started_again(launch):
    pb_lab.add_model(launch.models, "lab")
    s = launch()
    (pid,) = s.children()
    os.kill(pid, signal.SIGKILL)
    pb_lab.wait_until(lambda: s.children() not in ([], [pid]))
    pb_lab.wait_until(lambda: s.call("GET", "/v2/models/lab/ready").status == 200)
    assert s.run("result = 5").output() == ["5"]


def test_a_crash_ends_open_streams_with_an_error(launch):
    pb_lab.add_model(launch.models, "repeat")
    s = launch()
    found = []
    t = threading.Thread(
        target=lambda: found.extend(s.stream("repeat", {"N": 1, "HOW": "until"})))
    (pid,) = s.children()
    t.start()
    # until the stream is open; earlier, the execution gets the error
    pb_lab.wait_until(lambda: "repeat has begun" in s.log())
    os.kill(pid, signal.SIGKILL)
    t.join(20)
    assert not t.is_alive()
    assert found[-1] == {"error": "Stub process 'repeat_0_0' is not healthy."}


def test_a_crash_under_load_loses_no_answer(launch):
    pb_lab.add_model(launch.models, "lab", instances=2)
    s = launch()
    stop, answers, bad = threading.Event(), [], []

    def ask():
        while not stop.is_set():
            a = s.run("result = os.getpid()", timeout=30)
            if a.status == 200:
                answers.append(a.output()[0])
            elif "is not healthy" not in a.error():
                bad.append(a.body)
    threads = [threading.Thread(target=ask) for _ in range(4)]
    for t in threads:
        t.start()
    killed = set()

    def kill_one():
        """A killed process is in the list until the server has read its end."""
        for pid in set(s.children()) - killed:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                killed.add(pid)
                return True
        return False
    for _ in range(4):
        n = len(answers)
        pb_lab.wait_until(lambda: len(answers) > n + 5)
        pb_lab.wait_until(kill_one)
    pb_lab.wait_until(lambda: any(int(pid) not in killed for pid in answers[-6:]))
    pb_lab.wait_until(lambda: len(set(answers)) > 2)
    stop.set()
    for t in threads:
        t.join(60)
        assert not t.is_alive()
    assert not bad


def test_a_process_that_stops_is_killed(launch):
    pb_lab.add_model(launch.models, "lab")
    s = launch("--backend-config=python,stub-timeout-seconds=6")
    a = s.run("import signal; os.kill(os.getpid(), signal.SIGSTOP)")
    assert a.status == 500 and "is not healthy" in a.error()
    assert "did not answer for 6 seconds" in s.log()
    assert s.run("result = 1").output() == ["1"]


@pytest.mark.parametrize("how,text", [
    ("raise", "RuntimeError: cannot find my weights\n\nAt:\n"), ("exit", "SystemExit: 3"),
    ("die", "Stub process 'startup_0_0' is not healthy."),
    ("stop", "Stub process 'startup_0_0' is not healthy.")])
def test_a_model_that_does_not_start_does_not_load(launch, how, text):
    pb_lab.add_model(launch.models, "startup", parameters={"how": how})
    pb_lab.add_model(launch.models, "add_sub")
    s = launch("--exit-on-error=false", "--backend-config=python,stub-timeout-seconds=6")
    m = status(s, "startup")
    assert m["state"] == "UNAVAILABLE" and text in m["reason"]
    assert s.call("GET", "/v2/models/add_sub/ready").status == 200
    assert len(s.children()) == 1


def test_a_failing_finalize_does_not_keep_a_model(launch):
    pb_lab.add_model(launch.models, "startup", parameters={"how": "finalize"})
    s = launch("--model-control-mode=explicit", "--load-model=startup")
    assert s.call("POST", "/v2/repository/models/startup/unload", {}).status == 200
    s.wait_log("successfully unloaded 'startup'")
    assert "did not want to go" in s.log()
    pb_lab.wait_until(lambda: s.children() == [])


def test_a_missing_model_file_is_named(launch):
    folder = pb_lab.add_model(launch.models, "add_sub")
    (folder / "1/model.py").unlink()
    s = launch("--exit-on-error=false")
    assert "Python model file not found in" in status(s, "add_sub")["reason"]


def test_an_import_that_fails_is_shown(launch):
    folder = pb_lab.add_model(launch.models, "add_sub")
    (folder / "1/model.py").write_text("import no_such_module_here\n")
    s = launch("--exit-on-error=false")
    reason = status(s, "add_sub")["reason"]
    assert "ModuleNotFoundError: No module named 'no_such_module_here'" in reason
    assert "model.py(1): <module>" in reason
    assert s.children() == []


def test_models_import_their_neighbours(launch):
    folder = pb_lab.add_model(launch.models, "lab")
    (folder / "1/beside.py").write_text("WORD = 'beside'\n")
    (folder / "1/inner.py").write_text("from .beside import WORD\n")
    s = launch()
    a = s.run("import importlib\nfrom beside import WORD\n"
              "result = [WORD, importlib.import_module('1.inner').WORD]")
    assert a.output() == ["['beside', 'beside']"]


def test_models_are_loaded_and_unloaded_by_models(launch):
    pb_lab.add_model(launch.models, "lab")
    pb_lab.add_model(launch.models, "add_sub")
    s = launch("--model-control-mode=explicit", "--load-model=lab")
    code = """
before = pb_utils.is_model_ready('add_sub')
pb_utils.load_model(model_name='add_sub')
during = pb_utils.is_model_ready('add_sub')
pb_utils.unload_model('add_sub')
import time
for _ in range(500):
    if not pb_utils.is_model_ready('add_sub'): break
    time.sleep(0.01)
result = [before, during, pb_utils.is_model_ready('add_sub')]"""
    assert s.run(code).output() == ["[False, True, False]"]
    code = """
config = json.dumps({"backend": "python", "max_batch_size": 2,
  "input": [{"name": "A", "data_type": "TYPE_FP32", "dims": [1]}],
  "output": [{"name": "SUM", "data_type": "TYPE_FP32", "dims": [1]}]})
text = b'''import triton_python_backend_utils as pb_utils
class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("SUM", r.inputs()[0].as_numpy())]) for r in requests]
'''
pb_utils.load_model('made', config=config, files={'file:1/model.py': text})
r = pb_utils.InferenceRequest(model_name='made', requested_output_names=['SUM'],
    inputs=[pb_utils.Tensor('A', np.array([[5]], np.float32))]).exec()
result = r.output_tensors()[0].as_numpy().tolist()"""
    assert s.run(code).output() == ["[[5.0]]"]
    a = s.run("pb_utils.load_model('nobody')")
    assert a.status == 500 and "Failed to load model: " in a.error()


def test_stopping_the_server_ends_every_process(launch):
    pb_lab.add_model(launch.models, "lab", instances=2)
    s = launch()
    pids = s.children()
    assert len(pids) == 2
    assert s.stop() == 0
    assert all(not pathlib.Path(f"/proc/{p}").exists() for p in pids)
    assert s.log().count("lab is finalized") == 2


def test_killing_the_server_ends_every_process(launch):
    before = set(os.listdir("/dev/shm"))
    pb_lab.add_model(launch.models, "lab", instances=2)
    s = launch()
    pids = s.children()
    s.run("import threading, time\n"
          "threading.Thread(target=time.sleep, args=(60,), daemon=True).start(); result = 1")
    s.process.kill()
    s.process.wait()
    pb_lab.wait_until(lambda: all(pb_lab.is_gone(p) for p in pids))
    assert set(os.listdir("/dev/shm")) <= before


def test_a_terminal_s_interrupt_lets_models_finish(launch):
    pb_lab.add_model(launch.models, "lab")
    s = launch()
    (pid,) = s.children()
    os.kill(pid, signal.SIGINT)  # reaches the whole group on a terminal
    os.kill(pid, signal.SIGTERM)
    assert s.run("result = os.getpid()").output() == [str(pid)]
    assert s.stop(signal.SIGINT) == 0
    assert "lab is finalized" in s.log()


def test_execution_environments(launch, tmp_path):
    """A folder and an archive with bin/activate; the archive is unpacked once and removed."""
    env = tmp_path / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", "--system-site-packages", env],
                   check=True)
    import numpy
    site = next(env.glob("lib/python*/site-packages"))
    (site / "outer.pth").write_text(str(pathlib.Path(numpy.__file__).parents[1]))
    (site / "only_here.py").write_text("WORD = 'from the environment'\n")
    archive = tmp_path / "env.tar.gz"
    subprocess.run(["tar", "-C", env, "-czf", archive, "."], check=True)
    pb_lab.add_model(launch.models, "lab", parameters={"EXECUTION_ENV_PATH": env})
    pb_lab.add_model(launch.models, "lab2", "lab", parameters={"EXECUTION_ENV_PATH": archive})
    inside = pb_lab.add_model(launch.models, "lab3", "lab", parameters={
        "EXECUTION_ENV_PATH": "$$TRITON_MODEL_DIRECTORY/env.tar.gz"})
    (inside / "env.tar.gz").write_bytes(archive.read_bytes())
    s = launch()
    code = "import only_here, sys\nresult = [only_here.WORD, sys.prefix, os.environ['VIRTUAL_ENV'] != '']"
    folders = []
    for model in ("lab", "lab2", "lab3"):
        word, prefix, active = eval(s.run(code, model=model).output()[0])
        assert word == "from the environment" and active
        folders.append(prefix)
    assert folders[0] == str(env) and len(set(folders)) == 3
    assert s.stop() == 0
    assert env.exists() and not any(pathlib.Path(f).exists() for f in folders[1:])


def test_an_environment_that_is_not_there_is_named(launch):
    pb_lab.add_model(launch.models, "lab", parameters={"EXECUTION_ENV_PATH": "/no/such/env.tar.gz"})
    s = launch("--exit-on-error=false")
    assert "/no/such/env.tar.gz" in status(s, "lab")["reason"]


@pytest.mark.parametrize("option,text", [
    ("stub-timeout-seconds=0", "stub-timeout-seconds can't be smaller than or equal to zero."),
    ("stub-timeout-seconds=x", "stub-timeout-seconds must be a whole number"),
    ("shm-growth-byte-size=0", "shm-growth-byte-size can't be smaller than or equal to zero."),
    ("shm-default-byte-size=4096", "shm-default-byte-size can't be smaller than 4 MiBs"),
    ("thread-pool-size=0", "thread-pool-size can't be less than 1."),
    ("python-interpreter=/no/such/python", "/no/such/python")])
def test_options_are_checked(launch, option, text):
    pb_lab.add_model(launch.models, "lab")
    s = launch("--exit-on-error=false", f"--backend-config=python,{option}", python=None)
    assert text in status(s, "lab")["reason"]


def test_every_option_is_known(launch):
    pb_lab.add_model(launch.models, "lab")
    s = launch("--backend-config=python,shm-default-byte-size=4194304",
               "--backend-config=python,shm-growth-byte-size=1048576",
               "--backend-config=python,stub-timeout-seconds=60",
               "--backend-config=python,thread-pool-size=8",
               "--backend-config=python,shm-region-prefix-name=mine_")
    (pid,) = s.children()
    assert "/memfd:mine_" in pathlib.Path(f"/proc/{pid}/maps").read_text()
    assert s.run("result = 1").output() == ["1"]


def test_requests_wait_for_a_batch(launch):
    """Several requests in one execution, each with its own answer."""
    pb_lab.add_model(launch.models, "add_sub", extra="dynamic_batching { max_queue_delay_microseconds: 200000 }")
    s = launch()
    found = {}

    def ask(i):
        a = s.infer("add_sub", tensor("A", "FP32", [1, 1], [i]), tensor("B", "FP32", [1, 1], [100]))
        found[i] = a.output("SUM")
    threads = [threading.Thread(target=ask, args=(i,)) for i in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert found == {i: [100.0 + i] for i in range(8)}
    until = time.monotonic() + 10
    stats = {"inference_count": 0}
    while stats["inference_count"] < 8 and time.monotonic() < until:  # an execution is counted when all its answers are out
        stats = s.call("GET", "/v2/models/add_sub/stats").json()["model_stats"][0]
    assert stats["inference_count"] == 8 and stats["execution_count"] < 8


def test_a_backend_may_be_a_model_file(launch, tmp_path):
    """backends/<name>/model.py serves every model of that backend."""
    backends = tmp_path / "backends"
    (backends / "mine").mkdir(parents=True)
    (backends / "python").symlink_to(pb_lab.BACKEND)
    (backends / "mine/model.py").write_text("""
import json
import numpy as np
import triton_python_backend_utils as pb_utils
class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.add_output({"name": "NAME", "data_type": "TYPE_STRING", "dims": [1]})
        config.add_input({"name": "X", "data_type": "TYPE_FP32", "dims": [1]})
        config.set_max_batch_size(0)
        return config
    def initialize(self, args):
        self.name = args["model_name"]
    def execute(self, requests):
        text = np.array([self.name], dtype=object)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("NAME", text)]) for _ in requests]
""")
    for name in ("one", "two"):
        (launch.models / name / "1").mkdir(parents=True)
        (launch.models / name / "config.pbtxt").write_text('backend: "mine"\n')
    pb_lab.add_model(launch.models, "lab")
    s = launch(f"--backend-config=mine,python-interpreter={sys.executable}", backends=backends)
    for name in ("one", "two"):
        assert s.infer(name, tensor("X", "FP32", [1], [1])).output("NAME") == [name]
    assert s.run("result = 'both'").output() == ["both"]


def test_a_model_py_needs_no_backend_in_its_configuration(launch, tmp_path):
    """Also where the Python backend was built elsewhere and brings no backend.json."""
    theirs = tmp_path / "backends"
    shutil.copytree(pb_lab.BACKEND, theirs / "python", ignore=shutil.ignore_patterns("backend.json"))
    pb_lab.add_model(launch.models, "lab")
    config = launch.models / "lab/config.pbtxt"
    text = config.read_text()
    config.write_text(text.replace('backend: "python"', ""))
    assert config.read_text() != text
    for backends in (None, theirs):
        s = launch(backends=backends)
        config = s.call("GET", "/v2/models/lab/config").json()
        assert (config["backend"], config["default_model_filename"]) == ("python", "model.py")
        assert s.run("result = 'here'").output() == ["here"]
        s.stop()


def test_any_backend_may_say_which_file_it_runs(launch, tmp_path):
    identity = tmp_path / "backends/identity"
    shutil.copytree(pb_lab.BUILD / "backends/identity", identity)
    (identity / "backend.json").write_text('{"default_model_filename": "model.echo"}')
    (launch.models / "echo/1").mkdir(parents=True)
    (launch.models / "echo/1/model.echo").write_text("")
    (launch.models / "echo/config.pbtxt").write_text('''
input { name: "INPUT0" data_type: TYPE_FP32 dims: 1 }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: 1 }
''')
    s = launch(backends=tmp_path / "backends")
    config = s.call("GET", "/v2/models/echo/config").json()
    assert (config["backend"], config["default_model_filename"]) == ("identity", "model.echo")
    assert s.infer("echo", tensor("INPUT0", "FP32", [1], [2])).output("OUTPUT0") == [2.0]


THEIRS = pb_lab.find_theirs()


@pytest.mark.skipif(THEIRS is None, reason="NVIDIA's server is not here (scripts/fetch_triton)")
def test_the_backend_runs_in_nvidia_s_server(launch):
    for name in ("lab", "add_sub", "repeat"):
        pb_lab.add_model(launch.models, name)
    s = launch(kind="theirs", backends=pb_lab.BUILD / "backends")
    assert "build" in s.log() or str(pb_lab.BUILD) in s.log()
    a = s.infer("add_sub", tensor("A", "FP32", [1, 1], [1]), tensor("B", "FP32", [1, 1], [2]))
    assert a.output("SUM") == [3.0]
    assert [e["I"] for e in s.stream("repeat", {"N": 3})] == [0, 1, 2]
    a = s.run("import signal; os.kill(os.getpid(), signal.SIGKILL)")
    assert a.status == 500 and "is not healthy" in a.error()
    assert s.run("result = 'again'").output() == ["again"]
