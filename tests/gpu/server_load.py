#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Output tokens a second of a server's tensorrt_llm model, over HTTP's generate.

    server_load.py HOST:PORT [--requests N] [--concurrency N] [--input_len N] [--output_len N] [--vocab N]

Prompts are random token ids and the end token is -1, so that lengths are as asked: the figures can be
held against `nereid bench throughput` with the same lengths. Exit status 1 if an answer is wrong.
"""

import argparse
import asyncio
import json
import random
import sys
import time


class Load:
    def __init__(self, args):
        self.args, self.left, self.tokens, self.wrong, self.latency = args, args.requests, 0, [], []
        self.random = random.Random(0)

    def body(self):
        a = self.args
        ids = [self.random.randrange(a.vocab) for _ in range(a.input_len)]
        return json.dumps({"input_ids": ids, "input_lengths": a.input_len, "request_output_len": a.output_len,
                           "end_id": -1, "streaming": False}).encode()

    async def worker(self, host, port):
        reader, writer = await asyncio.open_connection(host, port, limit=1 << 24)
        while self.left > 0:
            self.left -= 1
            body, start = self.body(), time.perf_counter()
            writer.write(b"POST /v2/models/tensorrt_llm/generate HTTP/1.1\r\nHost: %s\r\nContent-Type: "
                         b"application/json\r\nContent-Length: %d\r\n\r\n" % (host.encode(), len(body)))
            writer.write(body)
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:"))
            answer = await reader.readexactly(length)
            self.latency.append(time.perf_counter() - start)
            n = json.loads(answer).get("sequence_length", 0) - self.args.input_len if b" 200 " in head[:16] else 0
            self.tokens += n
            if n != self.args.output_len:
                self.wrong.append(answer[:200])
        writer.close()


async def run(args):
    host, port = args.server.rsplit(":", 1)
    load = Load(args)
    start = time.perf_counter()
    await asyncio.gather(*(load.worker(host, int(port)) for _ in range(args.concurrency)))
    seconds = time.perf_counter() - start
    load.latency.sort()
    print(f"{args.requests} requests, {args.concurrency} at a time, {args.input_len} in, {args.output_len} out: "
          f"{load.tokens / seconds:.0f} tokens/s, {seconds:.2f} s, latency p50 "
          f"{load.latency[len(load.latency) // 2]:.2f} s, wrong {len(load.wrong)}")
    for w in load.wrong[:3]:
        print(w.decode(errors="replace"))
    return 1 if load.wrong else 0


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("server")
    for name, value in (("requests", 2000), ("concurrency", 1024), ("input_len", 128), ("output_len", 128),
                        ("vocab", 100000)):
        p.add_argument("--" + name, type=int, default=value)
    sys.exit(asyncio.run(run(p.parse_args())))


if __name__ == "__main__":
    main()
