#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Streaming chats of two builds of this server, by turns: did a change make ordinary requests slower?

  chat_builds.py MODEL NOW BEFORE [--rounds 7] [--chats 1x16,64x256,256x512] [--tokens 64]

MODEL is what `nereid serve` takes, NOW and BEFORE are folders with both builds' programs (build/bin). One server of each
runs all the time; each case is measured on one and at once on the other, in turns that change sides. CLIENTSxCHATS is a
case: so many chats at a time, so many in all. Prints medians with the least and the most, and the median of the rounds'
ratios; the server's processor time depends least on what else runs."""
import argparse
import http.client
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))
from ports import free_ports  # noqa: E402

DRIVER = ROOT / "build/tests/load/chat_load"
FIGURES = {"tokens_per_second": "tokens/s", "first": "first text p50 ms", "overhead": "overhead a token p50 ms",
           "overhead99": "overhead a token p99 ms", "cpu": "server's CPU µs a token"}


class Build:
    def __init__(self, folder, model, cache):
        self.port, grpc, metrics = free_ports(3)
        log = open(f"{cache}.log", "w")
        self.process = subprocess.Popen(
            [pathlib.Path(folder) / "nereid", "serve", model, f"--http-port={self.port}", f"--grpc-port={grpc}",
             f"--metrics-port={metrics}"], stdout=log, stderr=log, env=dict(os.environ, NEREID_CACHE=str(cache)))
        until = time.monotonic() + 180
        while True:
            try:
                c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
                c.request("GET", "/v2/health/ready")
                if c.getresponse().status == 200:
                    return
            except OSError:
                pass
            if self.process.poll() is not None or time.monotonic() > until:
                self.process.kill()
                sys.exit(f"{folder} does not become ready:\n{pathlib.Path(log.name).read_text()[-2000:]}")
            time.sleep(0.05)

    def cpu_s(self):
        fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def chats(self, clients, chats, tokens):
        before = self.cpu_s()
        out = subprocess.run([DRIVER, "--clients", str(clients), "--requests", str(chats), "--tokens", str(tokens), str(self.port)],
                             capture_output=True, text=True, check=True).stdout
        r = json.loads(out)
        return {"tokens_per_second": r["tokens_per_s"], "first": r["first"]["p50"], "overhead": r["overhead_per_token"]["p50"],
                "overhead99": r["overhead_per_token"]["p99"], "cpu": (self.cpu_s() - before) * 1e6 / (chats * tokens)}


def short(x):
    return f"{x:,.0f}" if x >= 1000 else f"{x:.3g}"


def spread(values):
    return f"{short(statistics.median(values))} ({short(min(values))} to {short(max(values))})"


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("model", "now", "before"):
        p.add_argument(name)
    p.add_argument("--rounds", type=int, default=7)
    p.add_argument("--chats", default="1x16,64x256,256x512")
    p.add_argument("--tokens", type=int, default=64)
    args = p.parse_args()
    print("| chats at a time | what | now | before | now : before |\n|---|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        builds = []
        try:
            for i, f in enumerate((args.now, args.before)):
                builds.append(Build(f, args.model, pathlib.Path(folder) / str(i)))
            for case in args.chats.split(","):
                clients, chats = map(int, case.split("x"))
                for b in builds:
                    b.chats(clients, chats, args.tokens)  # what is made once
                rounds = []
                for i in range(args.rounds):
                    pair = {j: builds[j].chats(clients, chats, args.tokens) for j in ((0, 1) if i % 2 == 0 else (1, 0))}
                    rounds.append((pair[0], pair[1]))
                for key, what in FIGURES.items():
                    now, before = ([r[j][key] for r in rounds] for j in (0, 1))
                    ratios = [a / b for a, b in zip(now, before) if b > 0]
                    ratio = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})" if ratios else "-"
                    print(f"| {clients} | {what} | {spread(now)} | {spread(before)} | {ratio} |", flush=True)
        finally:
            for b in builds:
                b.process.send_signal(signal.SIGTERM)
            for b in builds:
                b.process.wait(60)


if __name__ == "__main__":
    main()
