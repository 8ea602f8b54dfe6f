#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Processor time that a streamed token costs beside the engine, for each form of answer.

  stream_cost.py --pid PID --port PORT --model NAME [--rounds 5] [--streams 64] [--tokens 256]

PID is the process that serves on this machine (Linux). What its threads used is read before and after each round; all
but the engine's own (nrd-engine, nrd-cpu-N) is counted: reading requests, templates, tokens to text, events,
sockets. A round has long answers and as many short ones: their difference is the cost of a token, what is left
is the cost of a request. Standard library only."""
import argparse
import json
import pathlib
import re
import selectors
import socket
import sys
import time

MESSAGES = [{"role": "user", "content": "hello world"}]
ENGINE = re.compile(r"nrd-engine|nrd-cpu-\d+")
SHORT = 8  # tokens of the short answers

# path, body for n tokens, the number of tokens as the last event that has one tells it
FORMS = {
    "/v1/chat/completions": (lambda n: {"messages": MESSAGES, "max_tokens": n, "ignore_eos": True, "stream": True,
                                        "stream_options": {"include_usage": True}}, r'"completion_tokens": ?(\d+)'),
    "/v1/completions": (lambda n: {"prompt": "hello world", "max_tokens": n, "ignore_eos": True, "stream": True,
                                   "stream_options": {"include_usage": True}}, r'"completion_tokens": ?(\d+)'),
    "/v1/responses": (lambda n: {"input": "hello world", "max_output_tokens": n, "ignore_eos": True, "stream": True},
                      r'"output_tokens": ?(\d+)'),
    "/v1/messages": (lambda n: {"messages": MESSAGES, "max_tokens": n, "ignore_eos": True, "stream": True},
                     r'"output_tokens": ?(\d+)'),
    "/api/chat": (lambda n: {"messages": MESSAGES, "options": {"num_predict": n, "ignore_eos": True}},
                  r'"eval_count": ?(\d+)'),
    "/api/generate": (lambda n: {"prompt": "hello world", "options": {"num_predict": n, "ignore_eos": True}},
                      r'"eval_count": ?(\d+)'),
    "/v2/models/ensemble/generate_stream": (lambda n: {"text_input": "hello world", "max_tokens": n, "end_id": -1,
                                                       "stream": True}, None),
}


def busy(pid):
    """Nanoseconds of processor time of the threads that are not the engine's."""
    total = 0
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        try:
            if not ENGINE.fullmatch((task / "comm").read_text().strip()):
                total += int((task / "schedstat").read_text().split()[0])
        except (FileNotFoundError, ProcessLookupError):  # a thread that ended
            pass
    return total


def answers(port, path, body, streams):
    """The whole answers, as bytes, of so many requests at once, each on a connection of its own."""
    data = json.dumps(body).encode()
    request = (f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n"
               f"Content-Length: {len(data)}\r\n\r\n").encode() + data
    got = {}
    with selectors.DefaultSelector() as selector:
        for _ in range(streams):
            s = socket.create_connection(("127.0.0.1", port), timeout=60)
            got[s] = []
            selector.register(s, selectors.EVENT_READ)
        for s in got:
            s.sendall(request)
        left, until = streams, time.monotonic() + 120
        while left:
            if time.monotonic() > until:
                raise TimeoutError(f"{left} of {streams} streams of {path} did not end")
            for key, _ in selector.select(timeout=5):
                if piece := key.fileobj.recv(65536):
                    got[key.fileobj].append(piece)
                else:
                    selector.unregister(key.fileobj)
                    key.fileobj.close()
                    left -= 1
    return [b"".join(pieces) for pieces in got.values()]


def tokens_of(answer, pattern):
    text = answer.decode(errors="replace")
    if " 200 " not in text[:20]:
        raise RuntimeError(text[:600])
    if pattern is None:
        return text.count("data: ")
    return int(re.findall(pattern, text)[-1])


def round_of(pid, port, model, path, streams, n):
    """(nanoseconds, tokens) of so many answers of n tokens at once."""
    form, pattern = FORMS[path]
    body = {"model": model, **form(n)}
    before = busy(pid)
    whole = answers(port, path, body, streams)
    spent = busy(pid) - before
    return spent, sum(tokens_of(a, pattern) for a in whole)


def cost(pid, port, model, path, streams=64, n=256, rounds=5):
    """Microseconds (a token, a request), of the round whose token was the cheapest: others only add to it."""
    best = None
    for _ in range(rounds):
        short, few = round_of(pid, port, model, path, streams, SHORT)
        long, many = round_of(pid, port, model, path, streams, n)
        token = (long - short) / (many - few) / 1e3
        found = token, (short / 1e3 - few * token) / streams
        best = min(best or found, found)
    return best


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--pid", type=int, required=True)
    p.add_argument("--port", type=int, default=8000)
    p.add_argument("--model", default="ensemble")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--streams", type=int, default=64)
    p.add_argument("--tokens", type=int, default=256)
    p.add_argument("--only", action="append", choices=list(FORMS))
    a = p.parse_args()
    print("| form | µs a token | µs a request |\n|---|---|---|")
    for path in a.only or FORMS:
        token, request = cost(a.pid, a.port, a.model, path, a.streams, a.tokens, a.rounds)
        print(f"| `{path}` | {token:.1f} | {request:.0f} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
