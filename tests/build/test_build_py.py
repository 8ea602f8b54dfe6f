# SPDX-License-Identifier: Apache-2.0
"""build.py: the options of Triton's driver choose the parts that make builds."""
import pathlib
import shlex
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
# the line of the published guide to building the server with the backend
GUIDE = """-v --no-container-interactive --enable-logging --enable-stats --enable-tracing --enable-metrics --enable-gpu-metrics --enable-cpu-metrics
    --filesystem=gcs --filesystem=s3 --filesystem=azure_storage --endpoint=http --endpoint=grpc --endpoint=sagemaker --endpoint=vertex-ai
    --backend=ensemble --no-container-pull --image=base,nvcr.io/nvidia/tritonserver:24.10-py3-min --repoagent=checksum --cache=local --cache=redis
    --backend=tensorrtllm:v0.16.0 --backend=python:r24.10"""


def build_py(line, status=0):
    done = subprocess.run([sys.executable, ROOT / "build.py", *line.split()], capture_output=True, text=True)
    assert done.returncode == status, done.stderr
    return [shlex.split(x) for x in done.stdout.splitlines()], done.stderr


def parts(words):
    return set(next(w for w in words if w.startswith("FEATURES=")).partition("=")[2].split())


def test_the_line_of_the_guide():
    [words], said = build_py(f"--dryrun {GUIDE}")
    assert words[0] == "make" and "V=1" in words and {"cpu", "grpc", "cloud", "redis", "python"} <= parts(words) and "CUDA=1" not in words
    assert "no container is built" in said


def test_what_is_not_named_is_not_built():
    unnamed = {"tls", "hub", "image", "sound"}  # parts without an option there
    [words], said = build_py("--dryrun --no-container-build --endpoint=http --backend=tensorrtllm -j 3")
    assert words[1] == "-j3" and parts(words) - unnamed == {"cpu"} and said == ""
    [words], _ = build_py("--dryrun --enable-gpu --backend python --build-type Debug")
    assert parts(words) - unnamed == {"cpu", "cuda", "python"} and {"CUDA=1", "CFLAGS=-g"} <= set(words)
    first, second = build_py("--dryrun --enable-all --install-dir /opt/x -q")[0]
    assert first == ["make", first[1], "-s"] and second == [*first, "install", "PREFIX=/opt/x"]


def test_make_does_what_it_prints():
    [words], _ = build_py("--dryrun -q --endpoint=grpc")
    apart = ["-n", "BUILD=build_py", "help"]  # of the tests' own build no part may leave
    made = subprocess.run([*words, *apart], cwd=ROOT, capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    assert "no such part" in subprocess.run(["make", "FEATURES=nothing", *apart], cwd=ROOT, capture_output=True, text=True).stderr
    shutil.rmtree(ROOT / "build/build_py", ignore_errors=True)


@pytest.mark.parametrize("line, why", [
    ("--backend=onnxruntime:r24.10", "--backend=onnxruntime: there is none here; there are ensemble, identity, tensorrtllm, python."),
    ("--endpoint=ftp", "--endpoint=ftp: there is none here"), ("--cache=disk", "there are local, redis"), ("--build-type=Fast", "--build-type is Release"),
    ("--build-parallel=0", "must be above 0"), ("--enable-gps", "unrecognized arguments: --enable-gps")])
def test_wrong_options_are_refused_by_name(line, why):
    assert why in build_py(f"--dryrun {line}", status=2)[1]
