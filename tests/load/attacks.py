#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What hostile requests cost the others: each attack runs for some seconds on a server of its own process, while two
probes ask for one token and for /v2/health/live.

  attacks.py MODEL [--seconds 10] [--clients 2] [--only NAME,NAME] [--list]

MODEL is what `nereid serve` takes. Prints a Markdown table: for each attack how many requests were answered and with
which status, the probes' p50 and p99 in ms, and the server's memory in MB: before, at most, and 10 s after."""
import argparse
import collections
import gzip
import http.client
import itertools
import json
import multiprocessing
import os
import pathlib
import queue
import signal
import socket
import subprocess
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("NEREID_BIN", ROOT / "build/bin"))
SETTLE_S = 10
counter = itertools.count()
model = "ensemble"  # as /v1 calls it; set from the server that is attacked


# ---- attacks: each gives (path, body, headers) anew ----

def completion(**more):
    return "/v1/completions", json.dumps(dict({"model": model, "prompt": "The", "max_tokens": 16}, **more)), {}


def mark():
    """Different each time, so that nothing was compiled or cached before."""
    return f"{os.getpid():x}{next(counter):06x}"


def slow_regex(times=300):
    letters = "abcdefghijklmnopqrstuvwxyz"
    return "(" + "".join(f"[{a}-{b}]?" for a, b in zip(letters[:-2], letters[2:])) + f"){{{times}}}{mark()}"


def guide_mask():
    """A few hundred bytes whose first mask visits millions of places."""
    return completion(guided_regex=slow_regex())


def guide_places():
    return completion(guided_regex=slow_regex(600))


def guide_nodes():
    return completion(guided_regex=f"(((a|b{mark()}){{99}}c?){{99}}d?){{99}}")


def guide_schema():
    names = [f"{mark()}_{i}" for i in range(20000)]
    return completion(guided_json={"type": "object", "properties": {n: {"type": "string", "pattern": "^[a-z]{1,40}$"}
                                                                    for n in names}, "required": names})


def guide_grammar():
    n, me = 30000, mark()
    rules = "\n".join(f'r{i} ::= r{i + 1} "x"? | "{i % 10}"' for i in range(n))
    return completion(guided_grammar=f'root ::= r0 "{me}"\n{rules}\nr{n} ::= "end"\n')


def guide_enum():
    return completion(guided_choice=[f"{mark()} {i * 7919 % 100003}" for i in range(30000)])


def bias_of_many_choices():
    return completion(n=128, max_tokens=1, logit_bias={"5": 1})


def long_prompt():
    return completion(prompt="word " * 8_000_000)


def long_prompt_v2():
    return "/v2/models/ensemble/generate", json.dumps({"text_input": "word " * 2_000_000, "max_tokens": 1}), {}


def tokenize_much():
    return "/tokenize", json.dumps({"model": model, "prompt": "some words " * 1_500_000}), {}


def detokenize_much():
    return "/detokenize", json.dumps({"model": model, "tokens": [300 + i % 1000 for i in range(3_000_000)]}), {}


def many_messages():
    return "/v1/chat/completions", json.dumps({"model": model, "max_tokens": 1, "messages": [
        {"role": "assistant" if i % 2 else "user", "content": "a"} for i in range(200_000)]}), {}


def many_inputs():
    inputs = [{"name": f"i{i}", "datatype": "INT32", "shape": [1, 1], "data": [1]} for i in range(100_000)]
    return "/v2/models/preprocessing/infer", json.dumps({"inputs": inputs}), {}


def many_parameters():
    return "/v2/models/ensemble/generate", json.dumps({f"p{i}": 1 for i in range(100_000)}), {}


def preprocessing(words, outputs):
    return "/v2/models/preprocessing/infer", json.dumps({"inputs": [
        {"name": "QUERY", "datatype": "BYTES", "shape": [1, 1], "data": ["a b " * (words // 2)]},
        {"name": "REQUEST_OUTPUT_LEN", "datatype": "INT32", "shape": [1, 1], "data": [1]}], "outputs": outputs})


def classification():
    return *preprocessing(60_000, [{"name": "INPUT_ID", "parameters": {"classification": 60_000}}]), {}


def long_answer():
    return *preprocessing(8_000_000, [{"name": "INPUT_ID"}]), {}


def long_answer_gzip():
    return *preprocessing(8_000_000, [{"name": "INPUT_ID"}]), {"Accept-Encoding": "gzip"}


BOMB = []


def gzip_bomb():
    if not BOMB:
        BOMB.append(gzip.compress(b" " * (1 << 30), 9))
    return "/v2/models/ensemble/generate", BOMB[0], {"Content-Encoding": "gzip"}


def context_logits():
    return "/v2/models/tensorrt_llm/generate", json.dumps({
        "input_ids": [5] * 500, "input_lengths": [500], "request_output_len": [1],
        "return_context_logits": [True], "return_generation_logits": [True]}), {}


ATTACKS = {f.__name__: f for f in (
    guide_mask, guide_places, guide_nodes, guide_schema, guide_grammar, guide_enum, bias_of_many_choices, long_prompt,
    long_prompt_v2, tokenize_much, detokenize_much, many_messages, many_inputs, many_parameters, classification,
    long_answer, long_answer_gzip, gzip_bomb, context_logits)}


# ---- clients ----

def send(port, path, body, headers, timeout=120):
    """Status of the answer, or what went wrong."""
    conn = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        conn.request("POST", path, body, dict({"Content-Type": "application/json"}, **headers))
        r = conn.getresponse()
        while r.read(1 << 20):
            pass
        return str(r.status)
    except (OSError, http.client.HTTPException) as e:  # a server may close while a body too large still comes
        return type(e).__name__
    finally:
        conn.close()


def attacker(port, name, until, out):
    while time.monotonic() < until:
        out.put(send(port, *ATTACKS[name]()))


def probe(port, path, body, until, out):
    """Latencies in ms of one connection's requests, one each 10 ms."""
    conn = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    conn.connect()
    conn.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    times = []
    while time.monotonic() < until:
        began = time.monotonic()
        conn.request("POST" if body else "GET", path, body)
        r = conn.getresponse()
        r.read()
        if r.status != 200:
            out.put((path, f"status {r.status}"))
            return
        times.append((time.monotonic() - began) * 1e3)
        time.sleep(0.01)
    out.put((path, times))


def set_model(port):
    global model
    conn = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    conn.request("GET", "/v1/models")
    model = json.loads(conn.getresponse().read())["data"][0]["id"]


def percentile(times, p):
    return sorted(times)[min(len(times) - 1, int(len(times) * p))]


class Memory:
    """Resident bytes of a process: now, and at most since the beginning."""

    def __init__(self, pid):
        self.path = f"/proc/{pid}/statm"
        self.peak = 0
        self.end = threading.Event()
        self.thread = threading.Thread(target=self.watch)
        self.thread.start()

    def now(self):
        return int(pathlib.Path(self.path).read_text().split()[1]) * os.sysconf("SC_PAGESIZE")

    def watch(self):
        while not self.end.wait(0.01):
            self.peak = max(self.peak, self.now())

    def stop(self):
        self.end.set()
        self.thread.join()


def run(port, pid, name, seconds, clients, then=lambda: None):
    """A dict of what was seen; name None: no attack. `then` is called behind the attack, before memory is to come back."""
    set_model(port)
    times, answers = multiprocessing.Queue(), multiprocessing.Queue()
    memory = Memory(pid)
    rss = memory.now()
    until = time.monotonic() + seconds
    token = json.dumps({"model": model, "prompt": "The", "max_tokens": 1, "temperature": 0})
    probes = [multiprocessing.Process(target=probe, args=(port, *a, until, times))
              for a in (("/v1/completions", token), ("/v2/health/live", None))]
    attackers = [multiprocessing.Process(target=attacker, args=(port, name, until, answers))
                 for _ in range(clients if name else 0)]
    for p in probes + attackers:
        p.start()
    seen = dict(times.get(timeout=seconds + 130) for _ in probes)
    statuses = collections.Counter()
    while any(p.is_alive() for p in attackers) or not answers.empty():
        try:
            statuses[answers.get(timeout=0.1)] += 1
        except queue.Empty:
            pass
    for p in probes + attackers:
        p.join()
    then()
    ended = time.monotonic()
    while name and time.monotonic() < ended + SETTLE_S and memory.now() > rss + (32 << 20):
        time.sleep(0.1)
    result = {"rss": rss, "peak": memory.peak, "after": memory.now(), "settled_s": time.monotonic() - ended,
              "statuses": dict(statuses), "token": seen["/v1/completions"], "live": seen["/v2/health/live"]}
    memory.stop()
    return result


# ---- the table ----

def serve(model, log):
    with socket.socket() as a, socket.socket() as b, socket.socket() as c:
        for s in (a, b, c):
            s.bind(("127.0.0.1", 0))
        ports = [s.getsockname()[1] for s in (a, b, c)]
    process = subprocess.Popen([BIN / "nereid", "serve", model, "--host=127.0.0.1", f"--http-port={ports[0]}",
                                f"--grpc-port={ports[1]}", f"--metrics-port={ports[2]}"], stdout=log, stderr=log)
    until = time.monotonic() + 120
    while time.monotonic() < until and process.poll() is None:
        try:
            conn = http.client.HTTPConnection("127.0.0.1", ports[0], timeout=5)
            conn.request("GET", "/v2/health/ready")
            if conn.getresponse().status == 200:
                return process, ports[0]
        except OSError:
            pass
        time.sleep(0.05)
    process.kill()
    raise SystemExit("the server did not become ready")


def row(name, r):
    def times(t):
        return f"{percentile(t, 0.5):.1f} | {percentile(t, 0.99):.1f}" if isinstance(t, list) else f"{t} | "

    statuses = ", ".join(f"{n} x {s}" for s, n in sorted(r["statuses"].items())) or "-"
    return (f"| {name or 'none'} | {statuses} | {times(r['token'])} | {times(r['live'])} | {r['rss'] >> 20} | "
            f"{r['peak'] >> 20} | {r['after'] >> 20} ({r['settled_s']:.1f} s) |")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model", nargs="?")
    p.add_argument("--seconds", type=float, default=10)
    p.add_argument("--clients", type=int, default=2)
    p.add_argument("--only", default="")
    p.add_argument("--list", action="store_true")
    args = p.parse_args()
    if args.list or not args.model:
        print("\n".join(ATTACKS))
        return
    print("| attack | answers | token p50 | p99 | live p50 | p99 | MB before | most | after |\n"
          "|---|---|---|---|---|---|---|---|---|")
    with open("/dev/null" if not os.environ.get("ATTACKS_LOG") else os.environ["ATTACKS_LOG"], "w") as log:
        for name in [None, *(args.only.split(",") if args.only else ATTACKS)]:
            process, port = serve(args.model, log)
            try:
                set_model(port)
                for _ in range(3):  # the first ones open the tokenizer
                    send(port, *completion(max_tokens=1))
                print(row(name, run(port, process.pid, name, args.seconds, args.clients)), flush=True)
            finally:
                process.send_signal(signal.SIGTERM)
                status = process.wait(60)
            if status != 0:
                sys.exit(f"{name}: the server ended with {status}")


if __name__ == "__main__":
    main()
