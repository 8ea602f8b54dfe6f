#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Sends the same requests to two Triton servers and prints every difference in their answers.

    compare.py [--ours PROGRAM] [--theirs PROGRAM] [--backends FOLDER] [--only PATTERN] [-v]

Both programs serve the same model repository, made of the identity backend of this build, on
loopback ports. Compared are the status, Content-Type, Inference-Header-Content-Length and body
of every answer (JSON by structure, everything else byte by byte), then the metrics and the
tables of the start-up log. Differences listed in known_differences.md are counted, not printed.
Exit status: 0 when nothing else differs.
"""
import argparse
import collections
import fnmatch
import http.client
import json
import pathlib
import re
import struct
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from ports import free_ports  # noqa: E402
from their_triton import find_theirs  # noqa: E402

import cases
import cases_sched

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
HEADERS = ("content-type", "inference-header-content-length", "content-encoding")
# Numbers that differ between any two runs; their presence and type is compared all the same.
VOLATILE = {"ns", "last_inference"}

Answer = collections.namedtuple("Answer", "status headers body")
Difference = collections.namedtuple("Difference", "case part ours theirs")


def find_program():
    """NVIDIA's program, or None."""
    folder = find_theirs()
    return folder and folder / "pytriton/tritonserver/bin/tritonserver"


class Server:
    def __init__(self, program, repository, backends, log_path, *args):
        self.http, self.grpc, self.metrics = free_ports(3)
        self.log_path = pathlib.Path(log_path)
        with open(log_path, "w") as log:
            self.process = subprocess.Popen(
                [program, f"--model-repository={repository}", f"--backend-directory={backends}",
                 "--http-address=127.0.0.1", f"--http-port={self.http}",
                 "--grpc-address=127.0.0.1", f"--grpc-port={self.grpc}",
                 "--metrics-address=127.0.0.1", f"--metrics-port={self.metrics}", *args],
                stdout=log, stderr=subprocess.STDOUT)

    def log(self):
        return self.log_path.read_text(errors="replace")

    def wait(self):
        until = time.monotonic() + 120
        while "Started Metrics Service" not in self.log():
            if self.process.poll() is not None or time.monotonic() > until:
                self.stop()
                raise SystemExit(f"{self.process.args[0]} did not start:\n{self.log()}")
            time.sleep(0.05)

    def call(self, method, path, body=b"", fields=None, port=None):
        connection = http.client.HTTPConnection("127.0.0.1", port or self.http, timeout=60)
        try:
            connection.request(method, path, body or None, fields or {})
            reply = connection.getresponse()
            body = reply.read()
            headers = {k: reply.headers[k] for k in HEADERS if k in reply.headers}
            return Answer(reply.status, headers, body)
        except (http.client.HTTPException, OSError) as err:
            return Answer(type(err).__name__, {}, b"")
        finally:
            connection.close()

    def stop(self):
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(40)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


# ---- comparing ----

def calm(value, key=None):
    """JSON without what cannot be the same twice."""
    if isinstance(value, dict):
        return {k: calm(v, k) for k, v in value.items()}
    if isinstance(value, list):
        return [calm(v) for v in value]
    if key in VOLATILE and type(value) is int:
        return "<number>"
    return value


def parts(body):
    """Values of a body for comparing: one JSON document, or the events of a stream."""
    text = body.decode()
    if text.startswith("data: "):
        return [calm(json.loads(event[6:])) if event.startswith("data: ") else event
                for event in text.split("\n\n")]
    return calm(json.loads(text))


def readable(answer):
    """The body as (JSON or None, binary tail)."""
    body = answer.body
    n = answer.headers.get("inference-header-content-length")
    head, tail = (body[:int(n)], body[int(n):]) if n else (body, b"")
    try:
        return parts(head), tail
    except (ValueError, UnicodeDecodeError):
        return None, body


def as_fp32(value):
    try:
        return struct.pack("<f", value)
    except OverflowError:
        return struct.pack("<d", value)


def as_bytes(value):
    return struct.pack("<d", value)


def walk(ours, theirs, at=""):
    """Paths at which two JSON values differ; 1, 1.0 and true are different."""
    if type(ours) is not type(theirs):
        yield at or ".", ours, theirs
    elif isinstance(ours, dict):
        for key in list(theirs) + [k for k in ours if k not in theirs]:
            yield from walk(ours.get(key, "<absent>"), theirs.get(key, "<absent>"), f"{at}.{key}")
    elif isinstance(ours, list) and len(ours) == len(theirs):
        for i, (a, b) in enumerate(zip(ours, theirs)):
            yield from walk(a, b, f"{at}[{i}]")
    elif type(ours) is float and as_fp32(ours) == as_fp32(theirs):
        if as_bytes(ours) != as_bytes(theirs):
            yield at + " (equal as FP32)", ours, theirs
    elif ours != theirs:
        yield at or ".", ours, theirs


def differences(case, ours, theirs):
    if ours.status != theirs.status:
        yield Difference(case, "status", ours.status, theirs.status)
    for name in HEADERS:
        a, b = ours.headers.get(name), theirs.headers.get(name)
        # the length of a header whose JSON holds other numbers or texts says nothing of its own
        if name == "inference-header-content-length":
            a, b = a is not None, b is not None
        if a != b:
            yield Difference(case, name, a, b)
    if "content-encoding" in theirs.headers:
        return
    (a, rest_a), (b, rest_b) = readable(ours), readable(theirs)
    if a is None or b is None:
        if ours.body != theirs.body:
            yield Difference(case, "body", ours.body[:300], theirs.body[:300])
        return
    for at, x, y in walk(a, b):
        yield Difference(case, "body" + at, x, y)
    if rest_a != rest_b:
        yield Difference(case, "binary", rest_a[:100], rest_b[:100])


def answered(case, ours):
    """For requests that end NVIDIA's program: ours must refuse them."""
    if ours.status != 400:
        yield Difference(case, "refused", ours.status, "the program ends")


class Known:
    """known_differences.md: the last column of a row has `case` `part` `part`; `case` `part` …"""

    def __init__(self, path):
        self.rows, self.hits = [], collections.Counter()
        for line in path.read_text().splitlines() if path.exists() else []:
            for case in line.strip(" |").rpartition(" | ")[2].split("; ") if line[:1] == "|" else ():
                spans = re.findall(r"`([^`]+)`", case)
                self.rows += [(spans[0], part) for part in spans[1:]]

    def has(self, difference):
        for row in self.rows:
            if (fnmatch.fnmatchcase(difference.case, row[0])
                    and fnmatch.fnmatchcase(difference.part, row[1])):
                self.hits[row] += 1
                return True
        return False

    def stale(self):
        return [row for row in self.rows if not self.hits[row]]


# ---- metrics and logs ----

def metrics(server):
    """{line without value: value} and {help or type line}."""
    text = server.call("GET", "/metrics", port=server.metrics).body.decode()
    samples, heads = {}, set()
    for line in text.splitlines():
        if line.startswith("#"):
            heads.add(line)
        elif line:
            key, value = line.rsplit(" ", 1)
            name, _, labels = key.partition("{")
            samples[name, tuple(sorted(labels.rstrip("}").split(",")))] = value
    return samples, heads


def compare_metrics_port(ours, theirs):
    """How the port answers; what the metrics say is compared as metrics."""
    for method, path in (("GET", "/metrics"), ("GET", "/metrics/"), ("GET", "/metrics?x=1"),
                         ("GET", "/metrics/x"), ("GET", "/other"), ("GET", "/"),
                         ("POST", "/metrics"), ("HEAD", "/metrics"), ("PUT", "/other")):
        a, b = (s.call(method, path, port=s.metrics) for s in (ours, theirs))
        if a.body.startswith(b"# HELP") and b.body.startswith(b"# HELP"):
            a, b = a._replace(body=b""), b._replace(body=b"")
        yield from differences(f"metrics port/{method} {path}", a, b)


def compare_metrics(ours, theirs):
    (a, heads_a), (b, heads_b) = metrics(ours), metrics(theirs)
    for key in sorted(a.keys() | b.keys()):
        name = key[0] + "{" + ",".join(key[1]) + "}"
        x, y = a.get(key), b.get(key)
        counted = "duration" not in key[0] and key[0].startswith("nv_inference")
        if x is None or y is None or (counted and x != y):
            yield Difference("metrics", name, x, y)
    for line in sorted(heads_a ^ heads_b):
        yield Difference("metrics", line.split()[2] + " head",
                         line if line in heads_a else None, line if line in heads_b else None)


def tables(server):
    """{title cell: rows} of every table in the log."""
    found, table = {}, None
    for line in server.log().splitlines():
        if line.startswith("| "):
            cells = tuple(c.strip() for c in line.strip("|").split("|"))
            if table is None:
                table = found.setdefault(cells, [])
            else:
                table.append(cells)
        elif not line.startswith("+-"):
            table = None
    return found


def messages(server):
    """Log lines as (level, text), in any order, with what belongs to one run taken out."""
    found = set()
    for line in server.log().splitlines():
        m = re.match(r"([IWE])\d{4} \d\d:\d\d:\d\d\.\d{6} \d+ [\w./-]+:\d+\] (.*)", line)
        if m and m[2].strip():
            text = m[2][1:-1].replace('\\"', '"') if m[2].startswith('"') else m[2]
            text = re.sub(r"127\.0\.0\.1:\d+", "<address>", text)
            found.add((m[1], text))
    return found


def compare_logs(case, ours, theirs):
    a, b = tables(ours), tables(theirs)
    for head in list(b) + [h for h in a if h not in b]:
        if head not in a or head not in b:
            yield Difference(case, "table " + head[0], head if head in a else None,
                             head if head in b else None)
            continue
        rows_a, rows_b = ({r[0]: r for r in t[head]} for t in (a, b))
        for key in list(rows_b) + [k for k in rows_a if k not in rows_b]:
            if rows_a.get(key) != rows_b.get(key):
                yield Difference(case, f"table {head[0]} {key}", rows_a.get(key), rows_b.get(key))
    a, b = messages(ours), messages(theirs)
    for level, text in sorted(a ^ b):
        yield Difference(case, f"line {level} {text}", f"{level} {text}" if (level, text) in a else None,
                         f"{level} {text}" if (level, text) in b else None)


# ---- the run ----

class Run:
    def __init__(self, known, verbose=False):
        self.known, self.verbose = known, verbose
        self.n = self.equal = self.n_known = 0
        self.different = []

    def take(self, found):
        found = list(found)
        new = [d for d in found if not self.known.has(d)]
        self.n += 1
        self.equal += not found
        self.n_known += bool(found) and not new
        self.different += new
        for d in found if self.verbose else new:
            print(f"{d.case}: {d.part}\n    ours   {d.ours!r}\n    theirs {d.theirs!r}", flush=True)

    def pair(self, programs, repository, backends, folder, requests, name, *args):
        servers = []
        try:
            for side, program in zip(("ours", "theirs"), programs):
                more = ["--ui=false"] if side == "ours" else []  # theirs has no page at /
                servers.append(Server(program, repository, backends, f"{folder}/{name}-{side}.log",
                                      *args, *more))
            for s in servers:
                s.wait()
            self.take(compare_logs(f"log of start, {name}", *servers))
            for case, *request in [r for r in requests if r[0] not in cases.CARRIED_OUT_THERE]:
                if case in cases.END_THEIRS or case in cases_sched.END_THEIRS:
                    self.take(answered(case, servers[0].call(*request)))
                    continue
                self.take(differences(case, *(s.call(*request) for s in servers)))
                if request[1].endswith("/unload"):
                    time.sleep(0.3)  # Triton answers before the model is gone
            self.take(compare_metrics(*servers))
            self.take(compare_metrics_port(*servers))
            for case, *request in [r for r in requests if r[0] in cases.CARRIED_OUT_THERE]:
                self.take(differences(case, *(s.call(*request) for s in servers)))
            for s in servers:
                if s.process.poll() is not None:
                    self.take([Difference("end", str(s.process.args[0]), "ended early", "")])
        finally:
            for s in servers:
                s.stop()

    def summary(self):
        n_different = self.n - self.equal - self.n_known
        return (f"{self.n} compared: {self.equal} equal, {self.n_known} different as listed in "
                f"known_differences.md, {n_different} different otherwise")


def run(ours, theirs, backends, folder, only="*", verbose=False):
    folder = pathlib.Path(folder)
    result = Run(Known(HERE / "known_differences.md"), verbose)
    cases.write_repository(folder / "repository")
    cases.write_repository(folder / "explicit")
    cases.write_broken(folder / "explicit")
    wanted = lambda all_cases: [c for c in all_cases if fnmatch.fnmatchcase(c[0], only)]
    result.pair((ours, theirs), folder / "repository", backends, folder, wanted(cases.cases()),
                "all models")
    result.pair((ours, theirs), folder / "explicit", backends, folder,
                wanted(cases.explicit_cases()), "explicit", "--model-control-mode=explicit")
    probe = pathlib.Path(backends).parent / "tests/backends"
    cases_sched.write_repository(folder / "sched", cases_sched.MODELS)
    cases_sched.write_broken(folder / "sched-broken")
    result.pair((ours, theirs), folder / "sched", probe, folder, wanted(cases_sched.cases()),
                "schedulers")
    result.pair((ours, theirs), folder / "sched-broken", probe, folder,
                wanted(cases_sched.broken_cases()), "broken", "--model-control-mode=explicit")
    cases_sched.write_repository(folder / "cached", cases_sched.CACHED)
    for name, caches in (("our cache", pathlib.Path(backends).parent / "caches"),
                         ("their cache", pathlib.Path(theirs).parents[1] / "caches")):
        result.pair((ours, theirs), folder / "cached", probe, folder,
                    wanted(cases_sched.cache_cases()), name, f"--cache-directory={caches}",
                    "--cache-config=local,size=1048576")
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ours", default=ROOT / "build/bin/tritonserver")
    parser.add_argument("--theirs", default=find_program(), help="NVIDIA's, from scripts/fetch_triton")
    parser.add_argument("--backends", default=ROOT / "build/backends")
    parser.add_argument("--only", default="*", help="shell pattern of case names")
    parser.add_argument("--logs", help="folder for repository and logs, kept afterwards")
    parser.add_argument("-v", "--verbose", action="store_true", help="also known differences")
    args = parser.parse_args()
    if not args.theirs:
        raise SystemExit("NVIDIA's server is not here: run scripts/fetch_triton")
    with tempfile.TemporaryDirectory() as folder:
        result = run(args.ours, args.theirs, args.backends, args.logs or folder, args.only,
                     args.verbose)
    print(result.summary())
    if args.only == "*":
        for row in result.known.stale():
            print("no longer different:", *row)
    sys.exit(1 if result.different else 0)


if __name__ == "__main__":
    main()
