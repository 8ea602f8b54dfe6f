# SPDX-License-Identifier: Apache-2.0
"""The server that most tests of this folder share. What tests import is in triton_server.py: there is
one module called conftest, and of the folders named in one call each has its own."""
import pytest

from triton_server import Server, delay, launch, write_model  # noqa: F401


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    folder = tmp_path_factory.mktemp("repository")
    write_model(folder, "ident", count=2)
    write_model(folder, "text", "TYPE_STRING")
    write_model(folder, "bytes", "TYPE_UINT8")
    write_model(folder, "half", "TYPE_FP16")
    write_model(folder, "floats", "TYPE_FP32")
    write_model(folder, "slow", count=4, extra=delay(300))
    return folder


@pytest.fixture(scope="module")
def server(repository, tmp_path_factory):
    s = Server(tmp_path_factory.mktemp("log"), repository)
    try:
        yield s.wait_ready()
    finally:
        code = s.stop()
    assert code == 0, s.log()
