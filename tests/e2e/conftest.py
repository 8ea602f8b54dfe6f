# SPDX-License-Identifier: Apache-2.0
"""A real server over a real repository: a small random model, built and served by `nereid serve`."""
import os
import signal
import subprocess
import sys

import pytest

from llm_server import ROOT, Server
from hosts import Host, Wire  # noqa: I001  (llm_server has set its folder)
from processes import left


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


@pytest.fixture
def own_cache(tmp_path):
    """A cache that marks the processes of one test, none of which may be left."""
    folder = tmp_path / "cache"
    folder.mkdir()
    yield folder
    for pid in left(folder):
        os.kill(pid, signal.SIGKILL)


@pytest.fixture
def hosts():
    """Two, which are network namespaces, and the wire between them."""
    both = Host("one", "10.77.0.1"), Host("two", "10.77.0.2")
    wire = Wire(*both)
    yield *both, wire
    wire.end()
    for host in both:
        host.end()


@pytest.fixture(scope="module")
def server(tiny_model, cache):
    s = Server(tiny_model, cache, "--strict-model-names=true")
    try:
        yield s.wait_ready()
    finally:
        status = s.stop()
    assert status == 0, f"the server ended with {status}:\n{s.log_text()[-4000:]}"
