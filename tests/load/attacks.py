#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What hostile requests cost the others: each attack runs for some seconds on a server of its own process, while two
probes ask for one token and for /v2/health/live.

  attacks.py MODEL [--seconds 10] [--clients 2] [--only NAME,NAME] [--server-cpus 0,1 --client-cpus 2,3] [--list]

MODEL is what `nereid serve` takes. The two lists of processors keep those who measure off the server's. Prints a Markdown table: for each attack how many requests were answered and with
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

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from attack_connections import CONNECTION_ATTACKS  # noqa: E402

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


def guide_promise():
    """Nothing but text that must come next: whole steps of it, if they were let."""
    words = "".join(f"{word} {i * 7919 % 1009}, " for i in range(40) for word in ("alpha", "green", "window"))
    return completion(guided_regex=words + mark(), max_tokens=1000)


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
    return "/detokenize", json.dumps({"model": model, "tokens": [5 + i % 200 for i in range(3_000_000)]}), {}


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
    return *preprocessing(30_000, [{"name": "INPUT_ID", "parameters": {"classification": 30_000}}]), {}


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


def many_sequences():
    return "/v2/models/tensorrt_llm/generate_stream", json.dumps({
        "input_ids": [5], "input_lengths": [1], "request_output_len": [1], "streaming": [True],
        "num_return_sequences": [2**31 - 1]}), {}


def tokens_batch():
    """A tensor of no elements whose last dimension is 2^40."""
    return "/v2/models/postprocessing/infer", json.dumps({"inputs": [
        {"name": "TOKENS_BATCH", "datatype": "INT32", "shape": [1, 0, 2**40], "data": []},
        {"name": "SEQUENCE_LENGTH", "datatype": "INT32", "shape": [1, 1], "data": [0]}]}), {}


def stop_without_id():
    return "/v2/models/tensorrt_llm/generate", json.dumps({
        "input_ids": [5], "input_lengths": [1], "request_output_len": [1], "stop": [True]}), {}


def load_config():
    """Load orders whose configuration has 100,000 inputs; half of them ask for 2^31 - 1 instances."""
    config = {"name": "none", "backend": "identity"}
    if next(counter) % 2:
        config["input"] = [{"name": f"i{i}", "data_type": "TYPE_INT32", "dims": [1]} for i in range(100_000)]
    else:
        config["instance_group"] = [{"count": 2**31 - 1, "kind": "KIND_CPU"}]
    return "/v2/repository/models/none/load", json.dumps({"parameters": {"config": json.dumps(config)}}), {}


ATTACKS = {f.__name__: f for f in (
    guide_mask, guide_places, guide_nodes, guide_promise, guide_schema, guide_grammar, guide_enum, bias_of_many_choices, long_prompt,
    long_prompt_v2, tokenize_much, detokenize_much, many_messages, many_inputs, many_parameters, classification,
    long_answer, long_answer_gzip, gzip_bomb, context_logits, many_sequences, tokens_batch, stop_without_id, load_config)}
NAMES = [*ATTACKS, *CONNECTION_ATTACKS]
SERVER_ARGS = {"load_config": ["--model-control-mode=explicit", "--load-model=*"]}


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


def attacker(port, grpc, name, until, out):
    while time.monotonic() < until:
        out.put(CONNECTION_ATTACKS[name](port, grpc) if name in CONNECTION_ATTACKS else send(port, *ATTACKS[name]()))


def probe(port, path, body, until, out):
    """Latencies in ms of one connection's requests, one each 10 ms; or what was wrong: the answer is always the same."""
    conn = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    conn.connect()
    conn.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    times, first = [], None
    while time.monotonic() < until:
        began = time.monotonic()
        conn.request("POST" if body else "GET", path, body)
        r = conn.getresponse()
        text = r.read()
        choice = json.loads(text)["choices"][0] if body and r.status == 200 else None
        first = first or choice
        if r.status != 200 or choice != first:
            out.put((path, f"{r.status} {choice or text[:200]}"))
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


def run(port, pid, name, seconds, clients, then=lambda: None, grpc=None):
    """A dict of what was seen; name None: no attack. `then` is called behind the attack, before memory is to come back."""
    set_model(port)
    times, answers = multiprocessing.Queue(), multiprocessing.Queue()
    memory = Memory(pid)
    rss = memory.now()
    until = time.monotonic() + seconds
    token = json.dumps({"model": model, "prompt": "The", "max_tokens": 1, "temperature": 0})
    probes = [multiprocessing.Process(target=probe, args=(port, *a, until, times))
              for a in (("/v1/completions", token), ("/v2/health/live", None))]
    attackers = [multiprocessing.Process(target=attacker, args=(port, grpc, name, until, answers))
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

def serve(model, log, more):
    """The process, its HTTP and its gRPC port."""
    with socket.socket() as a, socket.socket() as b, socket.socket() as c:
        for s in (a, b, c):
            s.bind(("127.0.0.1", 0))
        ports = [s.getsockname()[1] for s in (a, b, c)]
    process = subprocess.Popen([BIN / "nereid", "serve", model, "--host=127.0.0.1", f"--http-port={ports[0]}",
                                f"--grpc-port={ports[1]}", f"--metrics-port={ports[2]}", *more], stdout=log, stderr=log)
    until = time.monotonic() + 120
    while time.monotonic() < until and process.poll() is None:
        try:
            conn = http.client.HTTPConnection("127.0.0.1", ports[0], timeout=5)
            conn.request("GET", "/v2/health/ready")
            if conn.getresponse().status == 200:
                return process, *ports[:2]
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
    p.add_argument("--server-cpus", default="", help="processors of the server, as 0,1")
    p.add_argument("--client-cpus", default="", help="processors of everything else")
    args = p.parse_args()
    if args.list or not args.model:
        print("\n".join(NAMES))
        return
    cpus = [{int(c) for c in text.split(",")} if text else os.sched_getaffinity(0) for text in (args.server_cpus, args.client_cpus)]
    print("| attack | answers | token p50 | p99 | live p50 | p99 | MB before | most | after |\n"
          "|---|---|---|---|---|---|---|---|---|")
    with open("/dev/null" if not os.environ.get("ATTACKS_LOG") else os.environ["ATTACKS_LOG"], "w") as log:
        for name in [None, *(args.only.split(",") if args.only else NAMES)]:
            os.sched_setaffinity(0, cpus[0])  # the server inherits them, and makes as many threads
            process, port, grpc = serve(args.model, log, SERVER_ARGS.get(name, []))
            os.sched_setaffinity(0, cpus[1])
            try:
                set_model(port)
                for _ in range(3):  # the first ones open the tokenizer
                    send(port, *completion(max_tokens=1))
                print(row(name, run(port, process.pid, name, args.seconds, args.clients, grpc=grpc)), flush=True)
            finally:
                process.send_signal(signal.SIGTERM)
                status = process.wait(60)
            if status != 0:
                sys.exit(f"{name}: the server ended with {status}")


if __name__ == "__main__":
    main()
