#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a step costs when an engine's ranks are on two hosts: processor time of all ranks, wall time and bytes on the wire.

    bench_hosts.py TOKENIZER ENGINE [ENGINE ...] [--turns 3] [--tokens 100]

Hosts are network namespaces (needs root), the wire a veth pair. Each engine is served by its ranks on one host and on two, by turns. A step has
--rows sequences of one token, all of one length. Processor time is that of all threads of all ranks while they generate.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import uuid

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests/e2e")]
from hosts import Host  # noqa: E402
from llm_server import BIN, Server  # noqa: E402
from ports import free_ports  # noqa: E402
from processes import left  # noqa: E402

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("tokenizer")
parser.add_argument("engines", nargs="+")
parser.add_argument("--turns", type=int, default=3)
parser.add_argument("--tokens", type=int, default=100)
parser.add_argument("--rows", type=int, nargs="+", default=[1, 8])
args = parser.parse_args()


def veth(one, two):
    one.run(subprocess.run, ["ip", "link", "add", "wire", "type", "veth", "peer", "name", "wire", "netns", two.net], check=True)
    for host in (one, two):
        for words in (["addr", "add", f"{host.address}/24", "dev", "wire"], ["link", "set", "wire", "up"]):
            host.run(subprocess.run, ["ip", *words], check=True)


def sent(host):
    """Bytes that left the host."""
    out = host.run(subprocess.run, ["ip", "-s", "-j", "link", "show", "wire"], check=True, capture_output=True).stdout
    return json.loads(out)[0]["stats64"]["tx"]["bytes"]


def processor_ns(cache):
    total = 0
    for pid in left(cache):
        for path in pathlib.Path(f"/proc/{pid}/task").glob("*/schedstat"):
            total += int(path.read_text().split()[0])
    return total


class Job:
    """A server whose n ranks were started as a launcher does, the second half of them on the last host."""

    def __init__(self, engine, hosts, cache):
        config = json.loads((pathlib.Path(engine) / "config.json").read_text())["pretrained_config"]["mapping"]
        n, each = config["world_size"], config["world_size"] // len(hosts)
        self.cache, self.host = cache, hosts[0]
        meet = {"NEREID_RANKS_ADDRESS": f"{hosts[0].address}:{free_ports(1)[0]}", "NEREID_RANKS_KEY": "bench"} if len(hosts) > 1 else {}
        job = uuid.uuid4().hex[:8]

        def environment(rank):
            where = rank // each
            return {"OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_SIZE": str(n), "OMPI_COMM_WORLD_LOCAL_SIZE": str(each),
                    "OMPI_COMM_WORLD_LOCAL_RANK": str(rank % each), "PMIX_NAMESPACE": f"bench-{job}-{where}", **meet}

        self.others = [hosts[r // each].run(subprocess.Popen, [BIN / "nereid", "serve", engine], stdout=subprocess.DEVNULL,
                                            env=dict(os.environ, NEREID_CACHE=cache, **environment(r))) for r in range(1, n)]
        self.server = self.host.run(lambda: Server(engine, cache, f"--tokenizer_dir={args.tokenizer}", "--threads=1",
                                                   env=environment(0)).wait_ready())

    def generate(self, rows):
        """rows answers of --tokens tokens at once."""
        body = {"text_input": "A", "max_tokens": args.tokens, "min_tokens": args.tokens, "top_k": 1, "end_id": -1}

        def start():
            threads = [threading.Thread(target=self.server.generate, args=(body,)) for _ in range(rows)]
            for t in threads:
                t.start()
            return threads
        for t in self.host.run(start):
            t.join()

    def end(self):
        self.server.process.terminate()
        self.server.process.wait(60)
        for p in self.others:
            p.wait(60)


def measure(engine, hosts, wired):
    """For each number of rows: microseconds of processor and of wall, and bytes sent by each host, of a step."""
    with tempfile.TemporaryDirectory() as cache:
        job = Job(engine, hosts, cache)
        try:
            for rows in args.rows:
                job.generate(rows)
                before, begin = (processor_ns(cache), *(sent(h) if wired else 0 for h in hosts)), time.monotonic()
                job.generate(rows)
                wall = time.monotonic() - begin
                after = (processor_ns(cache), *(sent(h) if wired else 0 for h in hosts))
                more = [(b - a) / args.tokens for a, b in zip(before, after)]
                yield rows, (more[0] / 1e3, wall * 1e6 / args.tokens, *more[1:])
        finally:
            job.end()


def main():
    one, two = Host("one", "10.78.0.1"), Host("two", "10.78.0.2")
    veth(one, two)
    for engine in args.engines:
        found = {}
        for _ in range(args.turns):
            for hosts in ([one], [one, two]):
                for rows, figures in measure(engine, hosts, len(hosts) > 1):
                    found.setdefault((len(hosts), rows), []).append(figures)
        for (n, rows), runs in sorted(found.items()):
            print(f"{pathlib.Path(engine).name}: {n} host{'s' * (n > 1)}, {rows} rows: processor",
                  " ".join(f"{r[0]:.0f}" for r in runs), "us, wall", " ".join(f"{r[1]:.0f}" for r in runs), "us",
                  f"({statistics.median(r[0] for r in runs):.0f}, {statistics.median(r[1] for r in runs):.0f})",
                  "" if n == 1 else f"bytes sent {runs[0][2]:.0f} {runs[0][3]:.0f}", flush=True)
    one.end()
    two.end()


main()
