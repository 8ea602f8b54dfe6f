# SPDX-License-Identifier: Apache-2.0
"""A real server over a real repository: a small random model, built and served by `nereid serve`."""
import subprocess
import sys

import pytest

from llm_server import ROOT, Server


def make_tiny(folder, arch="llama"):
    subprocess.run([sys.executable, ROOT / "tests/tinymodel/make_model.py", "--arch", arch, "--out",
                    folder], check=True, stdout=subprocess.DEVNULL)
    return folder


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory):
    return make_tiny(tmp_path_factory.mktemp("tiny") / "llama")


@pytest.fixture(scope="session")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def server(tiny_model, cache):
    s = Server(tiny_model, cache, "--strict-model-names=true")
    try:
        yield s.wait_ready()
    finally:
        status = s.stop()
    assert status == 0, f"the server ended with {status}:\n{s.log_text()[-4000:]}"
