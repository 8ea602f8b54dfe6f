# SPDX-License-Identifier: Apache-2.0
"""The programs that a wheel brings along, those of the folder runtime/bin, and what others do with them."""
import os
import subprocess
import sys


def _run(name: str, called: str = "") -> None:
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "runtime", "bin", name)
    try:
        os.execv(path, [called or path, *sys.argv[1:]])
    except OSError as e:
        sys.exit(f"{name}: cannot run '{path}': {e.strerror}")


def nereid() -> None:
    _run("nereid")


def tritonserver() -> None:
    _run("tritonserver")


def trtllm_build() -> None:
    _run("nereid", "trtllm-build")


def trtllm_serve() -> None:
    _run("nereid", "trtllm-serve")


def trtllm_bench() -> None:
    _run("nereid", "trtllm-bench")


def fetch(model: str) -> str:
    """The path of a model: one that is there, else that of the hub's cache, into which it is fetched first."""
    if os.path.exists(model):
        return model
    here = os.path.dirname(os.path.abspath(__file__))
    for program in (os.path.join(here, "../../bin/nereid"), os.path.join(here, "runtime/bin/nereid"), "nereid"):
        try:
            done = subprocess.run([program, "pull", "--quiet", model], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                  universal_newlines=True, check=False)
        except OSError:
            continue
        if done.returncode != 0:
            raise ValueError(done.stderr.strip())
        return done.stdout.strip()
    raise ValueError(f"there is no '{model}', and no program `nereid` that could fetch it")
