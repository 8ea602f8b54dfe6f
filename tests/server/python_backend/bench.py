#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Requests per second of a Python model over HTTP, this server beside NVIDIA's, in turns.

    bench.py [--rounds N] [--seconds S] [--backend-in-theirs]

Three loads: add_sub with small JSON tensors on 1 and on 16 connections, and 16 MB in and 16 MB out
in binary on 1. Each server runs alone while it is measured; the median of the rounds is printed.
--backend-in-theirs measures this backend inside NVIDIA's server as a third candidate. Needs what
compare.py needs.
"""
import argparse
import json
import pathlib
import selectors
import socket
import statistics
import sys
import tempfile
import time

import pb_lab

SMALL = json.dumps({"inputs": [
    {"name": "A", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]},
    {"name": "B", "datatype": "FP32", "shape": [1, 4], "data": [5, 6, 7, 8]}]}).encode()
LARGE = 16 << 20


def small_request():
    return (b"POST /v2/models/add_sub/infer HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"
            % len(SMALL)) + SMALL


def large_request():
    head = json.dumps({"inputs": [{"name": "IN", "datatype": "UINT8", "shape": [LARGE],
                                   "parameters": {"binary_data_size": LARGE}}],
                       "outputs": [{"name": "OUT", "parameters": {"binary_data": True}}]}).encode()
    return (b"POST /v2/models/copy/infer HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n"
            b"Inference-Header-Content-Length: %d\r\n\r\n" % (len(head) + LARGE, len(head))
            + head + bytes(LARGE))


class Client:
    """One connection with one request at a time."""

    def __init__(self, port, request):
        self.sock = socket.create_connection(("127.0.0.1", port))
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.request = request
        self.buffer = bytearray(1 << 20)

    def send(self):
        self.start = time.perf_counter()
        self.left = None
        self.head = b""
        self.sock.sendall(self.request)

    def receive(self):
        """True when the whole answer is here."""
        n = self.sock.recv_into(self.buffer)
        if n == 0:
            raise ConnectionError("closed")
        if self.left is None:
            self.head += self.buffer[:n]
            at = self.head.find(b"\r\n\r\n")
            if at < 0:
                return False
            fields = self.head[:at].decode().lower().split("\r\n")
            if " 200" not in fields[0]:
                raise RuntimeError(self.head)
            length = next(int(f.split(":")[1]) for f in fields if f.startswith("content-length"))
            self.left = length - (len(self.head) - at - 4)
        else:
            self.left -= n
        return self.left == 0


def load(port, request, connections, seconds):
    """Requests per second, median and 99th percentile of the time of one in ms."""
    poll = selectors.DefaultSelector()
    for _ in range(connections):
        c = Client(port, request)
        poll.register(c.sock, selectors.EVENT_READ, c)
        c.send()
    times, start = [], time.perf_counter()
    end = start + seconds
    while time.perf_counter() < end:
        for key, _ in poll.select():
            c = key.data
            if c.receive():
                times.append(time.perf_counter() - c.start)
                c.send()
    rate = len(times) / (time.perf_counter() - start)
    times.sort()
    return rate, times[len(times) // 2] * 1e3, times[len(times) * 99 // 100] * 1e3


LOADS = (("small, 1 connection", small_request, 1), ("small, 16 connections", small_request, 16),
         ("16 MB in and out, 1 connection", large_request, 1))


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--seconds", type=float, default=2)
    p.add_argument("--backend-in-theirs", action="store_true")
    args = p.parse_args()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="pb_bench_"))
    models = folder / "models"
    models.mkdir()
    pb_lab.add_model(models, "add_sub")
    pb_lab.add_model(models, "copy", extra="""max_batch_size: 0
input [ { name: "IN" data_type: TYPE_UINT8 dims: [ -1 ] } ]
output [ { name: "OUT" data_type: TYPE_UINT8 dims: [ -1 ] } ]""")
    kinds = [("ours", {}), ("theirs", {"kind": "theirs"})]
    if args.backend_in_theirs:
        kinds.append(("our backend in theirs",
                      {"kind": "theirs", "backends": pb_lab.BUILD / "backends"}))
    found = {}
    servers = {name: pb_lab.Server(folder, models, python=None, **kw) for name, kw in kinds}
    try:
        for s in servers.values():
            s.wait_ready()
        for round_ in range(args.rounds + 1):  # the first one warms up
            for title, make, connections in LOADS:
                request = make()
                for name, s in servers.items():
                    seconds = args.seconds if round_ else 0.5
                    result = load(s.http, request, connections, seconds)
                    if round_:
                        found.setdefault((title, name), []).append(result)
    finally:
        for s in servers.values():
            s.stop(9)
    for title, _, _ in LOADS:
        base = None
        for name, _ in kinds:
            rate, p50, p99 = (statistics.median(v) for v in zip(*found[title, name]))
            base = base or rate
            print(f"{title:32} {name:22} {rate:9.1f}/s  p50 {p50:7.3f} ms  p99 {p99:7.3f} ms"
                  + (f"  ours / this {base / rate:.2f}" if name != "ours" else ""))


if __name__ == "__main__":
    sys.exit(main())
