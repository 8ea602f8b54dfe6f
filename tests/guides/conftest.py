# SPDX-License-Identifier: Apache-2.0
"""Stand-ins for the models of the guides, and a shell in which their commands are typed."""
import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(pathlib.Path(__file__).parent)]
from guide import Guide  # noqa: E402


def make_model(folder, arch, **options):
    words = [f"--{name}={value}" for name, value in options.items()]
    subprocess.run([sys.executable, ROOT / "tests/tinymodel/make_model.py", "--arch", arch, "--out", folder, *words],
                   check=True, stdout=subprocess.DEVNULL)
    return pathlib.Path(folder)


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    """{family: folder}"""
    at = tmp_path_factory.mktemp("models")
    return {arch: make_model(at / arch, arch) for arch in ("gpt2", "llama", "qwen2", "gemma")}


@pytest.fixture
def guide(tmp_path):
    """A shell in a folder that has what a checkout has."""
    shell = Guide(tmp_path / "tensorrtllm_backend", os.environ)
    yield shell
    shell.end()
