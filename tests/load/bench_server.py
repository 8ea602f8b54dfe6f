#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Speed of the server, alone or beside another one, on the same repository with the same backend.

    bench_server.py [--ours PROGRAM] [--theirs PROGRAM] [--seconds 2] [--rounds 5] [--only PATTERN]

Both run on this machine at the same time, on loopback; every case is measured on one and then at
once on the other, round after round, so that what else the machine does falls on both. Printed are
the medians, and the median of the ratios of each round. HTTP is driven by wrk, gRPC by grpc_load.c.
"""
import argparse
import fnmatch
import http.client
import json
import os
import pathlib
import re
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from ports import free_ports  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]

MODEL = """name: "{name}"
backend: "identity"
max_batch_size: 8
input [ {{ name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] }} ]
output [ {{ name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] }} ]
instance_group [ {{ count: 2 kind: KIND_CPU }} ]
{extra}"""
ENSEMBLE = """name: "chain"
platform: "ensemble"
max_batch_size: 8
input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
ensemble_scheduling { step [
  { model_name: "ident" model_version: -1
    input_map { key: "INPUT0" value: "INPUT0" } output_map { key: "OUTPUT0" value: "a" } },
  { model_name: "ident" model_version: -1
    input_map { key: "INPUT0" value: "a" } output_map { key: "OUTPUT0" value: "b" } },
  { model_name: "ident" model_version: -1
    input_map { key: "INPUT0" value: "b" } output_map { key: "OUTPUT0" value: "OUTPUT0" } } ] }
"""
TOKENS = 200  # answers of one request to the decoupled model
BIG = 16 << 20


def write_repository(folder):
    stream = ("model_transaction_policy { decoupled: true }\n"
              'parameters { key: "responses" value: { string_value: "%d" } }\n' % TOKENS)
    for name, text in (("ident", MODEL.format(name="ident", extra="")),
                       ("tokens", MODEL.format(name="tokens", extra=stream)), ("chain", ENSEMBLE)):
        (folder / name / "1").mkdir(parents=True)
        (folder / name / "config.pbtxt").write_text(text)


def write_scripts(folder):
    """Requests for wrk."""
    small = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 4],
                         "data": [1.0, 2.0, 3.0, 4.0]}]}
    (folder / "small.lua").write_text(
        f'wrk.method = "POST"\nwrk.body = [==[{json.dumps(small)}]==]\n'
        'wrk.headers["Content-Type"] = "application/json"\n')
    head = json.dumps({"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, BIG // 4],
                                   "parameters": {"binary_data_size": BIG}}],
                       "outputs": [{"name": "OUTPUT0", "parameters": {"binary_data": True}}]})
    (folder / "big.bin").write_bytes(head.encode() + struct.pack("<f", 1.5) * (BIG // 4))
    (folder / "big.lua").write_text(
        f'local f = io.open("{folder}/big.bin", "rb")\nwrk.method = "POST"\n'
        f'wrk.body = f:read("*a")\nwrk.headers["Inference-Header-Content-Length"] = "{len(head)}"\n')
    (folder / "ready.lua").write_text("")


class Server:
    def __init__(self, program, repository, folder):
        self.http, self.grpc, metrics = free_ports(3)
        log = open(folder / f"log-{self.http}", "w")
        begin = time.monotonic()
        self.process = subprocess.Popen(
            [program, f"--model-repository={repository}", "--http-address=127.0.0.1",
             f"--backend-directory={ROOT / 'build/backends'}", "--grpc-address=127.0.0.1",
             f"--http-port={self.http}", f"--grpc-port={self.grpc}", f"--metrics-port={metrics}",
             "--http-max-input-size=100000000" if is_ours(program) else "--log-verbose=0"],
            stdout=log, stderr=subprocess.STDOUT)
        self.wait_ready()
        self.start_ms = (time.monotonic() - begin) * 1e3

    def wait_ready(self):
        until = time.monotonic() + 60
        while time.monotonic() < until and self.process.poll() is None:
            try:
                c = http.client.HTTPConnection("127.0.0.1", self.http, timeout=5)
                c.request("GET", "/v2/health/ready")
                if c.getresponse().status == 200:
                    return
            except OSError:
                pass
            finally:
                c.close()
            time.sleep(0.001)
        raise RuntimeError(f"{self.process.args[0]} does not become ready")

    def rss_mb(self):
        text = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", text).group(1)) / 1024

    def cpu_s(self):
        f = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(f[11]) + int(f[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(40)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def is_ours(program):
    return "Nereid" in subprocess.run([program, "--version"], capture_output=True, text=True).stdout


UNITS = {"us": 1e-3, "ms": 1.0, "s": 1e3, "m": 6e4}


def wrk(server, path, script, connections, seconds):
    out = subprocess.run(
        ["wrk", "-t", "1", "-c", str(connections), "-d", f"{seconds}s", "--latency",
         "--timeout", "20s", "-s", script, f"http://127.0.0.1:{server.http}{path}"],
        capture_output=True, text=True, check=True).stdout
    bad = re.search(r"(Non-2xx.*|Socket errors.*)", out)
    if bad:
        raise RuntimeError(bad.group(1))
    p = {k: float(v) * UNITS[u] for k, v, u in re.findall(r"(\d+)%\s+([\d.]+)(us|ms|s|m)\b", out)}
    return {"rate": float(re.search(r"Requests/sec:\s+([\d.]+)", out).group(1)),
            "p50_ms": p["50"], "p99_ms": p["99"]}


def grpc(server, model, calls, size, seconds, answers=None):
    out = subprocess.run(
        [ROOT / "build/tests/load/grpc_load", f"127.0.0.1:{server.grpc}", model, str(calls),
         str(seconds), str(size)] + ([str(answers)] if answers else []),
        capture_output=True, text=True, check=True, timeout=seconds * 5 + 20).stdout
    r = json.loads(out)
    if answers:
        return {"rate": r["answers_rate"]}
    return {"rate": r["rate"], "p50_ms": r["p50_us"] / 1e3, "p99_ms": r["p99_us"] / 1e3}


def cases(folder, seconds):
    infer = "/v2/models/ident/infer"
    out = {}
    for n in (1, 16, 256):
        out[f"HTTP JSON infer, {n} connections"] = \
            lambda s, n=n: wrk(s, infer, folder / "small.lua", n, seconds)
    out["HTTP health/ready, 16 connections"] = \
        lambda s: wrk(s, "/v2/health/ready", folder / "ready.lua", 16, seconds)
    out["HTTP 16 MB binary, 2 connections"] = \
        lambda s: wrk(s, infer, folder / "big.lua", 2, max(3, seconds))
    for n in (1, 16, 64):
        out[f"gRPC unary, {n} calls at a time"] = lambda s, n=n: grpc(s, "ident", n, 16, seconds)
    out["gRPC 16 MB, 2 calls at a time"] = lambda s: grpc(s, "ident", 2, BIG, max(3, seconds))
    for n in (1, 16):
        out[f"gRPC stream answers, {n} streams"] = \
            lambda s, n=n: grpc(s, "tokens", n, 16, seconds, TOKENS)
    for n in (1, 16):
        out[f"ensemble of 3 steps, HTTP, {n} connections"] = \
            lambda s, n=n: wrk(s, "/v2/models/chain/infer", folder / "small.lua", n, seconds)
    return out


def measured(run, server):
    """With the CPU time that the server took for each answer: what else runs hardly changes it."""
    before, begin = server.cpu_s(), time.monotonic()
    result = run(server)
    answers = result["rate"] * (time.monotonic() - begin)
    return {**result, "cpu_us": (server.cpu_s() - before) * 1e6 / answers if answers else 0.0}


def show(name, key, values):
    ours = statistics.median(v[0] for v in values)
    line = f"| {name} | {key} | {ours:,.3g} |" if ours < 1000 else f"| {name} | {key} | {ours:,.0f} |"
    if len(values[0]) == 2:
        theirs = statistics.median(v[1] for v in values)
        ratio = statistics.median(v[0] / v[1] for v in values)
        line += (f" {theirs:,.3g} |" if theirs < 1000 else f" {theirs:,.0f} |") + f" {ratio:.2f} |"
    print(line, flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ours", default=ROOT / "build/bin/tritonserver")
    parser.add_argument("--theirs")
    parser.add_argument("--seconds", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="*", help="shell pattern of case names")
    args = parser.parse_args()
    programs = [args.ours] + ([args.theirs] if args.theirs else [])
    print("| case | what | ours |" + (" theirs | ratio |" if args.theirs else ""))
    print("|---|---|---|" + ("---|---|" if args.theirs else ""))
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        write_repository(folder / "repository")
        write_scripts(folder)
        servers, starts, memory = [], [], []
        try:
            for i in range(args.rounds):
                for s in servers:
                    s.stop()
                servers = [Server(p, folder / "repository", folder) for p in programs]
                starts.append([s.start_ms for s in servers])
                time.sleep(0.2)
                memory.append([s.rss_mb() for s in servers])
            show("start to ready", "ms", starts)
            show("memory, idle", "MB resident", memory)
            for case, run in cases(folder, args.seconds).items():
                if not fnmatch.fnmatchcase(case, args.only):
                    continue
                rounds = []
                try:
                    for i in range(args.rounds):
                        order = servers if i % 2 == 0 else servers[::-1]
                        results = {id(s): measured(run, s) for s in order}
                        rounds.append([results[id(s)] for s in servers])
                except (RuntimeError, subprocess.SubprocessError) as e:
                    print(f"| {case} | failed: {e} |", flush=True)
                    continue
                for key in rounds[0][0]:
                    show(case, {"rate": "per second", "p50_ms": "p50 ms", "p99_ms": "p99 ms",
                                "cpu_us": "server's CPU µs each"}[key],
                         [[r[key] for r in round_] for round_ in rounds])
        finally:
            for s in servers:
                s.stop()


if __name__ == "__main__":
    main()
