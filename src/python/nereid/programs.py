# SPDX-License-Identifier: Apache-2.0
"""The programs that a wheel brings along: those of the folder runtime/bin."""
import os
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
