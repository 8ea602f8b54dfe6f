# SPDX-License-Identifier: Apache-2.0
"""Ports for the servers of a test."""
import contextlib
import socket


def free_ports(n):
    """Ports of the loopback address that nobody uses, all different."""
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(n)]
        for s in sockets:
            s.bind(("127.0.0.1", 0))
        return [s.getsockname()[1] for s in sockets]
