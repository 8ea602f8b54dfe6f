# SPDX-License-Identifier: Apache-2.0
"""Hosts of a test: network namespaces of this machine, and a wire between two of them that delays and loses packets and can be cut.
Needs root; nothing of them is left when their threads have ended."""
import collections
import concurrent.futures
import ctypes
import fcntl
import os
import random
import select
import struct
import subprocess
import threading
import time

CLONE_NEWNET = 0x40000000
TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x400454CA, 0x0002, 0x1000
MOST_BYTES = 65536


def are_possible():
    """Whether this process may make namespaces and wires."""
    return os.getuid() == 0 and os.access("/dev/net/tun", os.W_OK) and subprocess.run(
        ["unshare", "--net", "ip", "link", "set", "lo", "up"], capture_output=True, check=False).returncode == 0


class Host:
    """A thread in a network of its own: what it starts, threads and processes, is there too."""

    def __init__(self, name, address):
        self.name, self.address = name, address
        self.thread = concurrent.futures.ThreadPoolExecutor(1)
        self.id = self.run(self.enter)

    @staticmethod
    def enter():
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.unshare(CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "unshare")
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
        return threading.get_native_id()

    @property
    def net(self):
        """For nsenter --net."""
        return f"/proc/{os.getpid()}/task/{self.id}/ns/net"

    def run(self, function, *words, **names):
        return self.thread.submit(function, *words, **names).result()

    def plug(self):
        """This end of a wire: packets are read and written there."""
        tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(tap, TUNSETIFF, struct.pack("16sH", b"wire", IFF_TAP | IFF_NO_PI))
        for words in (["addr", "add", f"{self.address}/24", "dev", "wire"], ["link", "set", "wire", "up"]):
            subprocess.run(["ip", *words], check=True)
        return tap

    def end(self):
        self.thread.shutdown()


class Wire:
    """Between two hosts, until end()."""

    def __init__(self, a, b, delay=0.0, loss=0.0, seed=1):
        self.taps = [a.run(a.plug), b.run(b.plug)]
        self.delay, self.loss, self.is_cut, self.n_lost = delay, loss, False, 0
        self.ends = threading.Event()
        self.chance = random.Random(seed)
        self.thread = threading.Thread(target=self.carry)
        self.thread.start()

    def carry(self):
        waits = collections.deque()  # (when, to, packet); all wait equally long, so their order stays
        while not self.ends.is_set():
            left = waits[0][0] - time.monotonic() if waits else 0.05
            for tap in select.select(self.taps, [], [], max(0, min(left, 0.05)))[0]:
                packet = os.read(tap, MOST_BYTES)
                if self.is_cut or self.chance.random() < self.loss:
                    self.n_lost += 1
                else:
                    waits.append((time.monotonic() + self.delay, self.taps[tap == self.taps[0]], packet))
            while waits and (waits[0][0] <= time.monotonic()):
                _, tap, packet = waits.popleft()
                if not self.is_cut:
                    os.write(tap, packet)

    def end(self):
        self.ends.set()
        self.thread.join()
        for tap in self.taps:
            os.close(tap)
