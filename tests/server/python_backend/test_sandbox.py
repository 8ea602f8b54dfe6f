# SPDX-License-Identifier: Apache-2.0
"""--backend-config=python,sandbox=true: what a model's process may not ask of the kernel, and what it still may."""
import pathlib
import platform
import subprocess
import tempfile
import uuid

import pytest

import pb_lab

pytest.importorskip("numpy")
pytestmark = pytest.mark.skipif(not (pb_lab.BACKEND / "libtriton_python.so").exists(),
                                reason="the Python backend was not built (no Python.h)")
ON = "--backend-config=python,sandbox=true"
X86 = platform.machine() == "x86_64"
# Number on x86-64 and ARM, arguments that would otherwise not fail with EPERM for a user who may do nothing
CALLS = {"ptrace": (101, 117), "process_vm_readv": (310, 270), "mount": (165, 40), "unshare": (272, 97), "bpf": (321, 280),
         "keyctl": (250, 219), "perf_event_open": (298, 241), "userfaultfd": (323, 282), "io_uring_setup": (425, 425),
         "setns": (308, 268), "init_module": (175, 105), "personality": (135, 92)}

CALL = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *args):
    ctypes.set_errno(0)
    r = libc.syscall(ctypes.c_long(number), *[ctypes.c_long(a) for a in args])
    return r if r >= 0 else -ctypes.get_errno()
"""


@pytest.fixture(scope="module", params=["on", "off"])
def server(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("sandbox")
    (folder / "models").mkdir()
    pb_lab.add_model(folder / "models", "lab")
    pb_lab.add_model(folder / "models", "add_sub")
    s = pb_lab.Server(folder, folder / "models", *([ON] if request.param == "on" else [])).wait_ready()
    s.is_on = request.param == "on"
    yield s
    s.stop()


def run(server, code):
    return server.run(CALL + code).output()[0]


@pytest.mark.parametrize("name", CALLS)
def test_calls(server, name):
    number = CALLS[name][0 if X86 else 1]
    # personality(0xffffffff) only asks: it succeeds where there is no filter
    first = "0xffffffff" if name == "personality" else "-1"
    got = int(run(server, f"result = str(call({number}, {first}, 0, 0, 0, 0))"))
    if server.is_on:
        assert got == -1  # EPERM
    elif name == "personality":
        assert got >= 0


def test_no_new_privileges(server):
    text = run(server, "result = open('/proc/self/status').read()")
    fields = dict(line.split(":\t", 1) for line in text.splitlines() if ":\t" in line)
    assert fields["NoNewPrivs"] == ("1" if server.is_on else "0")
    if server.is_on:
        assert fields["Seccomp"] == "2"


def test_children_are_inside_too(server):
    code = """
import subprocess
result = subprocess.run(["grep", "NoNewPrivs", "/proc/self/status"], capture_output=True, text=True).stdout.split()[1]
"""
    assert run(server, code) == ("1" if server.is_on else "0")


def test_namespaces_cannot_be_made(server):
    number = 56 if X86 else 220
    got = int(run(server, f"r = call({number}, 0x10000000 | 17, 0, 0, 0, 0)\nos._exit(0) if r == 0 else None\nresult = str(r)"))
    if server.is_on:
        assert got == -1


def test_ordinary_work_goes_on(server):
    code = """
import multiprocessing, socket, tempfile, threading
t = threading.Thread(target=lambda: None); t.start(); t.join()
with tempfile.NamedTemporaryFile() as f: f.write(b"x")
socket.socket().close()
p = multiprocessing.get_context("fork").Process(target=lambda: None); p.start(); p.join()
result = str(p.exitcode)
"""
    assert run(server, code) == "0"
    answer = server.infer("add_sub", pb_lab.tensor("A", "FP32", [1, 1], [1]), pb_lab.tensor("B", "FP32", [1, 1], [2]))
    assert answer.status == 200


def may_mount():
    """What own_tmp of sandbox.c needs; a program that lies below /tmp has to see it."""
    if "/tmp" in map(str, pathlib.Path(__file__).resolve().parents):
        return False
    return subprocess.run(["unshare", "-m", "mount", "-t", "tmpfs", "none", "/tmp"], capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize("on", [True, False])
def test_tmp_is_its_own_where_the_server_may_mount(on):
    """Empty, and what the model writes there is not seen outside; the model itself lies elsewhere."""
    name = f"nereid-test-{uuid.uuid4().hex}"
    outside = pathlib.Path("/tmp") / f"{name}-outside"
    outside.write_text("x")
    inside = pathlib.Path("/tmp") / name
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        folder = pathlib.Path(folder)
        (folder / "models").mkdir()
        pb_lab.add_model(folder / "models", "lab")
        s = pb_lab.Server(folder, folder / "models", *([ON] if on else [])).wait_ready()
        try:
            code = f"""
import os
open({str(inside)!r}, "w").write("y")
result = str(os.path.exists({str(outside)!r})) + str(os.path.exists({str(inside)!r}))
"""
            seen = run(s, code)
            own = on and may_mount()
            assert seen == ("FalseTrue" if own else "TrueTrue")
            assert inside.exists() == (not own)
        finally:
            s.stop()
            outside.unlink()
            inside.unlink(missing_ok=True)


def test_a_word_that_is_none_ends_the_start(tmp_path):
    (tmp_path / "models").mkdir()
    pb_lab.add_model(tmp_path / "models", "lab")
    s = pb_lab.Server(tmp_path, tmp_path / "models", "--backend-config=python,sandbox=yes", "--exit-on-error=true")
    pb_lab.wait_until(lambda: s.process.poll() is not None)
    assert "true or false, not 'yes'" in s.log()
