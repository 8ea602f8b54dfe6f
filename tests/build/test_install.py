# SPDX-License-Identifier: Apache-2.0
"""What `make install` puts into a folder serves a model from wherever that folder is moved to."""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time
import urllib.request

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))
from ports import free_ports  # noqa: E402


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


def test_a_program_is_built_with_the_installed_headers_and_library(installed, tmp_path):
    (tmp_path / "p.c").write_text("#include <nereid/executor.h>\n#include <stdio.h>\n"
                                  "int main(void) { puts(nrd_version()); return 0; }\n")
    env = {**os.environ, "PKG_CONFIG_PATH": str(installed / "lib/pkgconfig")}
    flags = subprocess.run(["pkg-config", "--cflags", "--libs", "nereid"], env=env, check=True,
                           text=True, capture_output=True).stdout.split()
    subprocess.run(["cc", tmp_path / "p.c", "-o", tmp_path / "p", *flags], check=True)
    needed = subprocess.check_output(["readelf", "-d", tmp_path / "p"], text=True)
    assert "libnereid.so.0.1" in needed  # the version that it was built with, not any
    env["LD_LIBRARY_PATH"] = str(installed / "lib")
    said = subprocess.check_output([tmp_path / "p"], env=env, text=True)
    assert said == subprocess.check_output([installed / "bin/nereid", "--version"],
                                           text=True).splitlines()[0].removeprefix("nereid ") + "\n"


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
