# SPDX-License-Identifier: Apache-2.0
"""What `make install` puts into a folder serves a model from wherever that folder is moved to."""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time
import urllib.request

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))
from ports import free_ports  # noqa: E402


VERSION = re.search(r"^NRD_VERSION := (\S+)", (ROOT / "Makefile").read_text(), re.M)[1]
ABI = VERSION.rpartition(".")[0]


def make(*args, check=True):
    return subprocess.run(["make", "--no-print-directory", "WERROR=1", *args], cwd=ROOT, check=check,
                          text=True, capture_output=True)


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    stage = tmp_path_factory.mktemp("stage")
    make("install", f"DESTDIR={stage}", "PREFIX=/usr/lib/nereid")
    moved = stage / "somewhere/else"
    moved.parent.mkdir()
    shutil.move(stage / "usr/lib/nereid", moved)
    return moved


def test_a_model_is_served_from_there(installed, tmp_path):
    model = tmp_path / "tiny"
    subprocess.run([sys.executable, ROOT / "tests/tinymodel/make_model.py", "--arch", "llama", "--out",
                    model], check=True, stdout=subprocess.DEVNULL)
    http, metrics, grpc = free_ports(3)
    log = tmp_path / "log"
    with open(log, "w") as out:
        server = subprocess.Popen(
            [installed / "bin/nereid", "serve", model, "--http-address=127.0.0.1",
             f"--http-port={http}", f"--metrics-port={metrics}", f"--grpc-port={grpc}"], cwd=tmp_path,
            stdout=out, stderr=subprocess.STDOUT, env={**os.environ, "NEREID_CACHE": str(tmp_path)})
    try:
        until = time.monotonic() + 60
        while True:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{http}/v2/health/ready") as r:
                    if r.status == 200:
                        break
            except OSError:
                pass
            assert server.poll() is None and time.monotonic() < until, log.read_text()
            time.sleep(0.02)
        maps = pathlib.Path(f"/proc/{server.pid}/maps").read_text()
        assert str(installed) in maps and str(ROOT / "build/lib") not in maps
        body = json.dumps({"text_input": "hello", "max_tokens": 4}).encode()
        with urllib.request.urlopen(f"http://127.0.0.1:{http}/v2/models/ensemble/generate",
                                    data=body) as r:
            assert "text_output" in json.loads(r.read())
    finally:
        server.terminate()
        assert server.wait(60) == 0


def test_the_programs_of_the_guides_work_from_there(installed, tmp_path):
    share = installed / "share/nereid"
    model = tmp_path / "tiny"
    subprocess.run([sys.executable, ROOT / "tests/tinymodel/make_model.py", "--arch", "gpt2", "--out", model], check=True,
                   stdout=subprocess.DEVNULL)
    maps = subprocess.run([sys.executable, "-c", f"import sys; sys.path.insert(0, '{share}/scripts'); import nereid_programs; "
                           "print(nereid_programs.find('tritonserver'))"], check=True, text=True, capture_output=True)
    assert maps.stdout.strip() == str(installed / "bin/tritonserver")
    for folder in ("gpt", "models/core/gpt"):
        subprocess.run([sys.executable, share / "tensorrt_llm/examples" / folder / "convert_checkpoint.py", "--model_dir", model,
                        "--output_dir", tmp_path / "c"], check=True, stdout=subprocess.DEVNULL)
    subprocess.run([installed / "bin/trtllm-build", "--checkpoint_dir", tmp_path / "c", "--output_dir", tmp_path / "e"],
                   check=True, stdout=subprocess.DEVNULL)
    assert (tmp_path / "e/rank0.engine").exists()


def test_a_program_is_built_with_the_installed_headers_and_library(installed, tmp_path):
    (tmp_path / "p.c").write_text("#include <nereid/executor.h>\n#include <stdio.h>\n"
                                  "int main(void) { puts(nrd_version()); return 0; }\n")
    env = {**os.environ, "PKG_CONFIG_PATH": str(installed / "lib/pkgconfig")}
    flags = subprocess.run(["pkg-config", "--cflags", "--libs", "nereid"], env=env, check=True,
                           text=True, capture_output=True).stdout.split()
    subprocess.run(["cc", tmp_path / "p.c", "-o", tmp_path / "p", *flags], check=True)
    needed = subprocess.check_output(["readelf", "-d", tmp_path / "p"], text=True)
    assert f"libnereid.so.{ABI}" in needed  # the version that it was built with, not any
    env["LD_LIBRARY_PATH"] = str(installed / "lib")
    said = subprocess.check_output([tmp_path / "p"], env=env, text=True)
    assert said == subprocess.check_output([installed / "bin/nereid", "--version"],
                                           text=True).splitlines()[0].removeprefix("nereid ") + "\n"


def test_cmake_finds_the_libraries(installed, tmp_path):
    def project(wanted):
        (tmp_path / "CMakeLists.txt").write_text(
            f"cmake_minimum_required(VERSION 3.16)\nproject(p C)\nfind_package(nereid {wanted} REQUIRED)\n"
            "add_executable(p p.c)\ntarget_link_libraries(p nereid::nereid nereid::tritonserver)\n")
        return subprocess.run(["cmake", "-S", tmp_path, "-B", tmp_path / "b", f"-DCMAKE_PREFIX_PATH={installed}"], text=True,
                              capture_output=True)

    (tmp_path / "p.c").write_text("#include <nereid/executor.h>\n#include <triton/core/tritonserver.h>\n#include <stdio.h>\n"
                                  "int main(void) { uint32_t a, b; TRITONSERVER_ApiVersion(&a, &b); puts(nrd_version()); return 0; }\n")
    assert project(f"{ABI}.999").returncode != 0 and project("99.0").returncode != 0
    done = project(ABI)
    assert done.returncode == 0, done.stderr
    subprocess.run(["cmake", "--build", tmp_path / "b"], check=True, stdout=subprocess.DEVNULL)
    assert subprocess.check_output([tmp_path / "b/p"], text=True).startswith(VERSION + " ")


def test_everything_says_the_same_version(installed):
    """The files of the tree by scripts/check_version; what was built, by asking it."""
    subprocess.run([ROOT / "scripts/check_version"], check=True)
    ask = {name: subprocess.check_output([installed / "bin" / name, "--version"], text=True) for name in ("nereid", "tritonserver")}
    assert ask["nereid"].startswith(f"nereid {VERSION} ") and f"(Nereid {VERSION})" in ask["tritonserver"]
    soname = subprocess.check_output(["readelf", "-d", installed / "lib/libnereid.so"], text=True)
    assert f"[libnereid.so.{ABI}]" in soname and os.readlink(installed / "lib/libnereid.so") == f"libnereid.so.{ABI}"
    for name in ("nereid", "tritonserver"):
        assert f"\nVersion: {VERSION}\n" in (installed / f"lib/pkgconfig/{name}.pc").read_text()
    assert f'"Nereid {VERSION}"' in (installed / "share/man/man1/nereid.1").read_text()
    python = subprocess.run([sys.executable, "-c", "import nereid; print(nereid.__version__)"], text=True, capture_output=True, check=True,
                            env={**os.environ, "PYTHONPATH": str(installed / "python"), "PYTHONDONTWRITEBYTECODE": "1"})
    assert python.stdout == VERSION + "\n"


def test_python_imports_the_module_from_there(installed):
    done = subprocess.run(
        [sys.executable, "-B", "-c", "import nereid\nprint(nereid.__file__)\nprint(open('/proc/self/maps').read())"],
        env={**os.environ, "PYTHONPATH": str(installed / "python")}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    where, maps = done.stdout.split("\n", 1)
    assert where.startswith(str(installed)) and f"{installed}/lib/libnereid.so" in maps


def test_uninstall_removes_what_was_installed_and_nothing_else(tmp_path):
    make("install", f"DESTDIR={tmp_path}", "PREFIX=/p")
    mine = tmp_path / "p/backends/mine/libtriton_mine.so"
    mine.parent.mkdir()
    mine.write_text("of somebody else")
    assert (tmp_path / "p/share/nereid/LICENSE").exists()
    make("uninstall", f"DESTDIR={tmp_path}", "PREFIX=/p")
    assert [p for p in tmp_path.rglob("*") if not p.is_dir()] == [mine]
    again = make("uninstall", f"DESTDIR={tmp_path}", "PREFIX=/p", check=False)
    assert again.returncode != 0 and "nothing is installed" in again.stderr
