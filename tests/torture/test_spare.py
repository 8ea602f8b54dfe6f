# SPDX-License-Identifier: Apache-2.0
"""Descriptors that the ports keep for bad times are taken again after them."""
import os
import resource
import socket
import time

import pytest

from harness import KINDS, Server, has_grpc
from triton_server import wait_until, write_model


@pytest.fixture
def server(tmp_path):
    write_model(tmp_path / "models", "echo")
    s = Server(tmp_path, tmp_path / "models")
    yield s
    assert s.stop() == 0


def descriptors(server):
    return len(os.listdir(f"/proc/{server.process.pid}/fd"))


@pytest.mark.parametrize("port", ["http", "grpc"])
def test_the_spare_descriptors_come_back(server, port):
    """None is left, and none can be opened, while connections come."""
    if port == "grpc" and not has_grpc():
        pytest.skip("built without gRPC")
    where = ("127.0.0.1", getattr(server, port))
    socket.create_connection(where).close()  # what a first connection opens for good
    time.sleep(1)
    before = descriptors(server)
    limit = resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (before, limit[1]))
    server.control.at, server.control.for_ever = 1, 1
    server.control.kinds = KINDS["open"]
    held = [socket.create_connection(where, timeout=20) for _ in range(3)]
    wait_until(lambda: server.control.n_failed > 0)
    server.control.kinds = 0
    resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, limit)
    for c in held:
        c.close()

    def are_back():
        socket.create_connection(where).close()
        time.sleep(0.5)
        return descriptors(server) == before

    wait_until(are_back, 20)
