#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Many streaming clients at once against a running server on this machine, standard library only.

  streams.py --port 8000 --clients 1000 --requests 1000             every stream must be complete
  streams.py --port 8000 --clients 64 --seconds 600 --cancel 0.3    mixed load, some clients vanish
With --metrics-port it checks at the end that every KV block is free again and prints the server's memory.
Exits 1 when a stream was lost, cut or answered with an error."""
import argparse
import asyncio
import json
import random
import sys
import time
import urllib.request


def percentile(values, p):
    values = sorted(values)
    return values[min(len(values) - 1, int(p * len(values)))] if values else float("nan")


class Load:
    def __init__(self, args):
        self.args = args
        self.rng = random.Random(args.seed)
        self.done = self.cancelled = self.tokens = 0
        self.errors, self.first, self.gaps = [], [], []
        self.left = args.requests
        self.until = time.monotonic() + args.seconds if args.seconds else None

    def next_body(self):
        n = self.rng.randint(self.args.min_tokens, self.args.max_tokens)
        words = " ".join(self.rng.choice(["the", "quick", "brown", "fox", "jumps", "over", "lazy",
                                          "dog"]) for _ in range(self.rng.randint(1, self.args.words)))
        return n, json.dumps({"text_input": words, "max_tokens": n, "stream": True, "end_id": -1})

    async def one(self):
        n, body = self.next_body()
        vanish = self.rng.random() < self.args.cancel
        start = last = time.monotonic()
        reader, writer = await asyncio.open_connection("127.0.0.1", self.args.port)
        try:
            writer.write((f"POST /v2/models/{self.args.model}/generate_stream HTTP/1.1\r\n"
                          f"Host: localhost\r\nContent-Length: {len(body)}\r\n"
                          f"Connection: close\r\n\r\n{body}").encode())
            status = await reader.readline()
            if b" 200 " not in status:
                raise RuntimeError(f"{status!r} {(await reader.read(400))!r}")
            pieces, stop_at = 0, self.rng.randint(1, n) if vanish else None
            ended = False
            while line := await asyncio.wait_for(reader.readline(), self.args.timeout):
                if line.startswith(b"data: "):
                    answer = json.loads(line[6:])
                    if "error" in answer:
                        raise RuntimeError(answer["error"])
                    now = time.monotonic()
                    (self.gaps if pieces else self.first).append(now - (last if pieces else start))
                    last = now
                    pieces += 1
                    if pieces == stop_at:
                        self.cancelled += 1
                        writer.transport.abort()
                        return
                elif line == b"0\r\n":
                    ended = True
            if not ended or pieces < n:
                raise RuntimeError(f"{pieces} pieces of {n}, chunked end {'seen' if ended else 'missing'}")
            self.tokens += n
            self.done += 1
        finally:
            writer.close()

    async def client(self):
        while self.left > 0 if self.until is None else time.monotonic() < self.until:
            self.left -= 1
            try:
                await self.one()
            except Exception as e:  # every loss is counted and shown
                self.errors.append(f"{type(e).__name__}: {e}")

    async def run(self):
        start = time.monotonic()
        await asyncio.gather(*(self.client() for _ in range(self.args.clients)))
        return time.monotonic() - start


def metric(port, name, label):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as r:
        for line in r.read().decode().splitlines():
            if line.startswith(name + "{") and label in line:
                return float(line.rsplit(" ", 1)[1])
    raise KeyError((name, label))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--port", type=int, default=8000)
    p.add_argument("--metrics-port", type=int)
    p.add_argument("--pid", type=int, help="server process: its memory is printed")
    p.add_argument("--model", default="ensemble")
    p.add_argument("--clients", type=int, default=64)
    p.add_argument("--requests", type=int, default=256)
    p.add_argument("--seconds", type=float, default=0)
    p.add_argument("--cancel", type=float, default=0.0, help="share of clients that vanish")
    p.add_argument("--min-tokens", type=int, default=4)
    p.add_argument("--max-tokens", type=int, default=16)
    p.add_argument("--words", type=int, default=40)
    p.add_argument("--timeout", type=float, default=120)
    p.add_argument("--seed", type=int, default=1)
    args = p.parse_args()
    load = Load(args)
    seconds = asyncio.run(load.run())
    print(f"{load.done} complete, {load.cancelled} cancelled, {len(load.errors)} failed in {seconds:.1f} s; "
          f"{load.tokens / seconds:.0f} tokens/s; first piece p50 {percentile(load.first, .5) * 1e3:.0f} ms "
          f"p99 {percentile(load.first, .99) * 1e3:.0f} ms; gap p50 {percentile(load.gaps, .5) * 1e3:.1f} ms "
          f"p99 {percentile(load.gaps, .99) * 1e3:.1f} ms")
    for e in load.errors[:5]:
        print("  ", e)
    status = 1 if load.errors else 0
    if args.metrics_port:
        family, until = "nv_trt_llm_request_metrics", time.monotonic() + 20
        while metric(args.metrics_port, family, 'request_type="active"') and time.monotonic() < until:
            time.sleep(0.1)
        used = metric(args.metrics_port, "nv_trt_llm_kv_cache_block_metrics", 'block_type="used"')
        active = metric(args.metrics_port, family, 'request_type="active"')
        print(f"active requests {active:.0f}, KV blocks in use {used:.0f}")
        status |= active != 0
    if args.pid:
        with open(f"/proc/{args.pid}/status") as f:
            print(" ".join(l.strip() for l in f if l.startswith(("VmRSS", "VmHWM", "Threads"))))
    return status


if __name__ == "__main__":
    sys.exit(main())
