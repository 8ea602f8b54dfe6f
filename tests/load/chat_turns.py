#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A conversation of several turns against a running server: the time to the first text of each turn.

  chat_turns.py --port 8000 [--model ensemble] [--turns 10] [--tokens 64] [--rounds 3]

Each turn sends all that was said before and about 60 new words. Prints one line for each turn: the median
over the rounds of the time to the first text, the prompt's tokens and those that came from the prefix cache."""
import argparse
import json
import random
import statistics
import time
import http.client

WORDS = ("river stone market letter winter garden engine silver window teacher island bottle shadow "
         "planet forest candle harbour ladder copper valley").split()


def turn(conn, args, messages):
    body = json.dumps({"model": args.model, "messages": messages, "max_tokens": args.tokens, "stream": True,
                       "temperature": 0, "stream_options": {"include_usage": True}})
    begin, first, text, usage = time.perf_counter(), None, "", None
    conn.request("POST", "/v1/chat/completions", body)
    r = conn.getresponse()
    assert r.status == 200, r.read()
    while line := r.readline():
        if line.startswith(b"data: {"):
            event = json.loads(line[6:])
            usage = event.get("usage") or usage
            for c in event["choices"]:
                if c["delta"].get("content"):
                    first = first or time.perf_counter() - begin
                    text += c["delta"]["content"]
    return first or time.perf_counter() - begin, text, usage


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--port", type=int, required=True)
    p.add_argument("--model", default="ensemble")
    for name, value in (("turns", 10), ("tokens", 64), ("rounds", 3)):
        p.add_argument(f"--{name}", type=int, default=value)
    args = p.parse_args()
    conn = http.client.HTTPConnection("127.0.0.1", args.port, timeout=300)
    seen = [[] for _ in range(args.turns)]
    for round_ in range(args.rounds):
        rng, messages = random.Random(time.time_ns()), []  # another conversation each time
        for i in range(args.turns):
            messages.append({"role": "user", "content": "Tell me about " + " ".join(rng.choices(WORDS, k=60)) + "."})
            first, text, usage = turn(conn, args, messages)
            messages.append({"role": "assistant", "content": text or "Yes."})
            seen[i].append((first, usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]))
    for i, rows in enumerate(seen):
        first, prompt, cached = (statistics.median(x) for x in zip(*rows))
        print(f"turn {i + 1:2}  first text {first * 1e3:7.1f} ms  prompt {prompt:5.0f}  from the cache {cached:5.0f}")


if __name__ == "__main__":
    main()
