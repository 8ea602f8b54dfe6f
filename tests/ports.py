# SPDX-License-Identifier: Apache-2.0
"""Ports for the servers of a test."""
import contextlib
import random
import socket

# Below the range from which systems take the ports of outgoing connections: one of these could be given away between the
# choice here and the server's start.
RANGE = range(12000, 32000)


def free_ports(n):
    """Ports of the loopback address that nobody uses, all different."""
    ports = []
    with contextlib.ExitStack() as held:
        for port in random.SystemRandom().sample(RANGE, len(RANGE)):
            s = held.enter_context(socket.socket())
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                s.bind(("127.0.0.1", port))
            except OSError:
                continue
            ports.append(port)
            if len(ports) == n:
                return ports
    raise RuntimeError(f"fewer than {n} ports are free")
