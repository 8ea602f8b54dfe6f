#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What running answers notice of adapters that come and go: the times between their tokens.

  adapter_swap.py MODEL ADAPTER [--swaps 1000] [--cached 64] [--streams 2] [--rounds 10]

MODEL and ADAPTER are folders as Hugging Face writes them. A server has a cache of CACHED adapters and knows three times as
many, each by a number; all are ADAPTER. While STREAMS answers run, one request after the other asks for one token with an
adapter: those of half the cache by turns, which stay there, or all by turns, so that each request lets one go and reads its
own. The two take turns too, ROUNDS times, so that what else runs on the machine hits both. Prints for each the times between two
tokens of a running answer, and the same less the longest time for which a thread of the engine or of HTTP waited for a core,
which is the machine's and not the server's; and the processor time of the threads that take requests and read adapters, a request."""
import argparse
import http.client
import json
import os
import pathlib
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/e2e"), str(ROOT / "tests")]
from llm_server import Server  # noqa: E402


class Waits:
    """How long the threads that make and send tokens have waited for a core, in ms."""

    def __init__(self, pid):
        self.files = [t / "schedstat" for t in pathlib.Path(f"/proc/{pid}/task").iterdir()
                      if (t / "comm").read_text().startswith(("nrd-engine", "nrd-cpu", "HTTP"))]

    def now(self):
        return [int(f.read_text().split()[1]) / 1e6 for f in self.files]

    @staticmethod
    def between(a, b):
        """They work side by side or hand over: the most of one is certain."""
        return max(y - x for x, y in zip(a, b))


def reader_ms(pid):
    """Processor time of the threads that take requests for the models, and read their adapters."""
    tasks = pathlib.Path(f"/proc/{pid}/task").iterdir()
    return sum(int((t / "schedstat").read_text().split()[0]) for t in tasks if (t / "comm").read_text().startswith(("i:", "instances"))) / 1e6


def ask(server, body, on_piece=None):
    c = http.client.HTTPConnection("127.0.0.1", server.http, timeout=600)
    c.request("POST", "/v2/models/ensemble/generate" + ("_stream" if on_piece else ""), json.dumps(body))
    r = c.getresponse()
    if r.status != 200:
        raise RuntimeError(r.read())
    if not on_piece:
        return json.loads(r.read())
    for line in r:
        if line.startswith(b"data: ") and on_piece():
            break
    return c.close()


def stream(server, waits, until, gaps):
    """Long answers, one after the other, until the end is told."""
    last = None

    def piece():
        nonlocal last
        now = (time.perf_counter() * 1e3, waits.now())
        if last:
            gap = now[0] - last[0]
            gaps.append((gap, max(gap - Waits.between(last[1], now[1]), 0)))
        last = now
        return until.is_set()

    while not until.is_set():
        last = None
        ask(server, {"text_input": "the quick brown fox", "max_tokens": 400, "end_id": -1, "top_k": 1, "stream": True}, piece)


def measure(server, args, ids):
    """(gaps, seconds, the reader's ms) of running answers beside a request for each of `ids`."""
    waits, until, gaps = Waits(server.process.pid), threading.Event(), []
    threads = [threading.Thread(target=stream, args=(server, waits, until, gaps)) for _ in range(args.streams)]
    for t in threads:
        t.start()
    begin, read = time.perf_counter(), reader_ms(server.process.pid)
    for i in ids:
        ask(server, {"text_input": "A", "max_tokens": 1, "top_k": 1, "lora_task_id": i})
    seconds, read = time.perf_counter() - begin, reader_ms(server.process.pid) - read
    until.set()
    for t in threads:
        t.join()
    return gaps, seconds, read


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model")
    p.add_argument("adapter", type=pathlib.Path)
    for name, value in (("swaps", 1000), ("cached", 64), ("streams", 2), ("rounds", 10)):
        p.add_argument(f"--{name}", type=int, default=value)
    args = p.parse_args()
    size = max(f.stat().st_size for f in args.adapter.iterdir())
    with tempfile.TemporaryDirectory() as folder:
        known = pathlib.Path(folder) / "known"
        known.mkdir()
        n = 3 * args.cached
        for i in range(1, n + 1):
            os.symlink(args.adapter.resolve(), known / str(i))
        server = Server(args.model, folder, "--set", f"lora_prefetch_dir:{known}", "--set",
                        f"lora_cache_host_memory_bytes:{int(size * (args.cached + 0.5))}")
        try:
            server.wait_ready(600)
            print("| adapters by turns | requests/s | tokens | between tokens p50 ms | p99 | p99.9 | most "
                  "| less waits p50 | p99 | p99.9 | most | > 50 ms | reader ms a request |")
            print("|---" * 13 + "|")
            kinds = {args.cached // 2: ([], [], []), n: ([], [], [])}
            begun = dict.fromkeys(kinds, 0)
            for _ in range(args.rounds):
                for several, figures in kinds.items():
                    ids = [1 + (begun[several] + i) % several for i in range(args.swaps // args.rounds)]
                    begun[several] += len(ids)
                    gaps, seconds, read = measure(server, args, ids)
                    figures[0].extend(gaps)
                    figures[1].append(seconds)
                    figures[2].append(read)
            for several, (gaps, seconds, read) in kinds.items():
                row = []
                for which in (0, 1):
                    v = sorted(g[which] for g in gaps)
                    row += [f"{v[min(int(len(v) * q), len(v) - 1)]:.1f}" for q in (0.5, 0.99, 0.999, 1)]
                over = sum(g[1] > 50 for g in gaps)
                print(f"| {several} | {begun[several] / sum(seconds):.1f} | {len(gaps)} | {' | '.join(row)} | {over} | "
                      f"{sum(read) / begun[several]:.1f} |", flush=True)
            print("\n".join(line for line in server.metrics_text().splitlines() if line.startswith("nv_llm_lora")))
        finally:
            server.stop()


if __name__ == "__main__":
    main()
