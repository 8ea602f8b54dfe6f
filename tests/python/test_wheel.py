# SPDX-License-Identifier: Apache-2.0
"""The wheel in a fresh environment, somewhere else, without a network."""
import json
import os
import pathlib
import re
import subprocess
import sys
import time
import urllib.request
import zipfile

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))
from ports import free_ports  # noqa: E402

VERSION = re.search(r"^NRD_VERSION := (\S+)", (ROOT / "Makefile").read_text(), re.M).group(1)
# Whatever points here would hide that the wheel does not stand alone.
CLEAN = {k: v for k, v in os.environ.items() if not k.startswith(("NEREID_", "PYTHON", "PIP_", "LD_"))}


def pack(build_folder, folder):
    return pathlib.Path(subprocess.run([sys.executable, ROOT / "scripts/wheel.py", build_folder, VERSION, folder],
                                       check=True, capture_output=True, text=True).stdout.strip())


@pytest.fixture(scope="module")
def wheel(build_folder, tmp_path_factory):
    return pack(build_folder, tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def environment(wheel, tmp_path_factory):
    folder = tmp_path_factory.mktemp("installed here") / "venv"
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    subprocess.run([folder / "bin/pip", "install", "--quiet", "--no-index", "--disable-pip-version-check", wheel],
                   check=True, env=CLEAN)
    return folder


def test_two_wheels_of_one_build_are_the_same(build_folder, wheel, tmp_path):
    assert pack(build_folder, tmp_path).read_bytes() == wheel.read_bytes()


def test_each_file_is_listed_with_its_sum(wheel):
    with zipfile.ZipFile(wheel) as z:
        names = set(z.namelist())
        record = z.read(f"nereid-{VERSION}.dist-info/RECORD").decode().splitlines()
    assert {line.rsplit(",", 2)[0] for line in record} == names
    assert {"nereid/_nereid.abi3.so", "nereid/py.typed", "nereid/runtime/bin/nereid"} <= names
    assert not [n for n in names if "__pycache__" in n or n.endswith(".pyc")]


def test_the_module_answers(environment, model, tmp_path):
    done = subprocess.run(
        [environment / "bin/python", "-c",
         "import sys, nereid\n"
         "with nereid.LLM(sys.argv[1], n_threads=1) as llm:\n"
         "    out = llm.generate('hello', nereid.SamplingParams(max_tokens=5, ignore_eos=True))\n"
         "print(nereid.__version__, len(out.outputs[0].token_ids), nereid.__file__)", model],
        capture_output=True, text=True, cwd=tmp_path, env=CLEAN)
    assert done.returncode == 0, done.stderr
    version, n, where = done.stdout.split(" ", 2)
    assert (version, n) == (VERSION, "5") and str(environment) in where


def test_the_programs_run(environment, model, tmp_path):
    said = subprocess.run([environment / "bin/nereid", "run", model, "-p", "hello", "-n", "3", "--quiet"],
                          capture_output=True, cwd=tmp_path, env=CLEAN)
    assert said.returncode == 0, said.stderr
    path = subprocess.run([environment / "bin/python", "-m", "nereid", "compat"], capture_output=True, text=True,
                          check=True, env=CLEAN).stdout.strip()
    found = subprocess.run([environment / "bin/python", "-c", "import tensorrt_llm.bindings.executor as e; print(e)"],
                           capture_output=True, text=True, env=dict(CLEAN, PYTHONPATH=path))
    assert "compat" in found.stdout, found.stderr


def test_the_server_serves(environment, model, tmp_path):
    """With its backends, which it finds beside itself."""
    http, grpc, metrics = free_ports(3)
    log = tmp_path / "server.log"
    with open(log, "w") as out:
        server = subprocess.Popen(
            [environment / "bin/nereid", "serve", model, "--host=127.0.0.1", f"--http-port={http}",
             f"--grpc-port={grpc}", f"--metrics-port={metrics}"], cwd=tmp_path, stdout=out, stderr=subprocess.STDOUT,
            env=dict(CLEAN, NEREID_CACHE=str(tmp_path)))
    try:
        answer = None
        until = time.monotonic() + 60
        while answer is None:
            assert server.poll() is None and time.monotonic() < until, log.read_text()
            try:
                request = urllib.request.Request(f"http://127.0.0.1:{http}/v2/models/ensemble/generate",
                                                 json.dumps({"text_input": "hello", "max_tokens": 3}).encode())
                with urllib.request.urlopen(request, timeout=30) as r:
                    answer = json.load(r)
            except OSError:
                time.sleep(0.05)
        assert answer["text_output"].startswith("hello")
    finally:
        server.terminate()
        server.wait(40)
