#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Mixed load while things go wrong: every answer is checked, and afterwards everything is free.

usage: chaos.py SECONDS [--seed N] [--workers N] [--pace SECONDS] [--calm SECONDS] [--drafts METHOD,METHOD]
       (make chaos SECONDS=3600)

Servers: one with adapters, a Python model, small tensors and a small file system for its log and traces; one whose model
runs over two ranks that it starts, one over two that mpirun starts (where it is); one with ten models of other kinds, of which not all fit into its memory; and one for each method of
--drafts. Load: /v1 and /v2 by HTTP and gRPC, whole and as streams, with guides and adapters (chaos_load.py), pictures, sounds
and vectors (chaos_kinds.py). Faults: see chaos_faults.py. An answer is right, or it is an error while something is broken. Where
memory has grown after SECONDS, all go on for as long again: a leak grows again too. Prints what was asked and broken;
ends with 1 when something was wrong.
"""
import argparse
import collections
import http.client
import json
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from chaos_faults import Faults  # noqa: E402
from chaos_kinds import MEMORY, Many, draft_config, write_models  # noqa: E402
from chaos_launched import HAS_MPIRUN, Launched  # noqa: E402
from chaos_load import Excused, Load  # noqa: E402
from chaos_server import HAS_PYTHON, TESTS, Victim, small_disk, tiny_model  # noqa: E402

import adapter  # noqa: E402  (tests/tinymodel)

ECHO = """name: "echo"
backend: "identity"
input [ { name: "INPUT0" data_type: TYPE_INT32 dims: [ -1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ -1 ] } ]
instance_group [ { count: 2 kind: KIND_CPU } ]
"""
ARENA = 8 << 20  # what malloc keeps for one more thread: more than a twentieth of a small server
PERIODS = 3  # of load at most: what is lost by a leak is lost in each again, what malloc keeps is not
CONTROL = ["--model-control-mode=explicit", "--load-model=*", "--served-model-name=tiny", "--restart-on-failure=false"]


class Chaos:
    def __init__(self, folder, options):
        self.folder, self.o = pathlib.Path(folder), options
        self.asked, self.refused, self.broken = collections.Counter(), collections.Counter(), collections.Counter()
        self.wrong, self.lock, self.stop = [], threading.Lock(), threading.Event()
        self.victims, self.loads, self.disk = [], [], None

    def note(self, what, wrong):
        with self.lock:
            self.wrong.append(f"{what}: {wrong}")
            print(time.strftime("%H:%M:%S"), "WRONG", what, wrong, flush=True)

    # ---- the servers ----

    def start(self):
        models, tiny = self.folder / "models", tiny_model(self.folder / "tiny")
        (models / "echo/1").mkdir(parents=True)
        (models / "echo/config.pbtxt").write_text(ECHO)
        if HAS_PYTHON:
            shutil.copytree(TESTS / "server/python_backend/models/add_sub", models / "add_sub",
                            ignore=shutil.ignore_patterns("__pycache__"))
        self.adapters = {n: adapter.write("llama", self.folder / "adapters" / n, "float16", seed=n) for n in ("one", "two", "three")}
        disk = self.folder / "disk"
        if small_disk(disk, 16):
            self.disk = disk
        else:
            print("no right to mount a small file system: full_disk is left out, short_files is not", flush=True)
        one = self.serve("one", tiny, f"--model-repository={models}", *CONTROL, "--lora", f"one={self.adapters['one']}",
                         "--lora", f"two={self.adapters['two']}", "--allow-lora-loading=true", f"--log-file={disk}/log",
                         f"--trace-config=triton,file={disk}/trace", "--trace-config=rate=7", "--trace-config=level=TIMESTAMPS",
                         f"--backend-config=python,python-interpreter={sys.executable}", log=disk / "log",
                         env={"TMPDIR": str(disk)})
        divided = [self.serve("two", tiny, *CONTROL, "--tp-size=2")]
        if HAS_MPIRUN:
            divided.append(self.serve("mpirun", tiny, *CONTROL, "--tp-size=2", kind=Launched))
        else:
            print("no mpirun: ranks are started by the server only", flush=True)
        first, *others = write_models(self.folder / "kinds")
        many = self.serve("many", first, *others, f"--model-memory-gb={MEMORY}")
        methods = [m for m in self.o.drafts.split(",") if m]
        drafts = [self.serve(m, tiny, *CONTROL, "--speculative-config", json.dumps(draft_config(m, tiny, self.folder / f"heads-{m}")))
                  for m in methods]
        for v in self.victims:
            v.server.wait_ready(180)
        self.load_one = Load(one, ["one", "two"], HAS_PYTHON, True)
        self.load_many, self.divided, self.drafting = Many(many), list(map(Load, divided)), list(map(Load, drafts))
        self.loads = [self.load_one, self.load_many, *self.divided, *self.drafting]
        for load in self.loads:
            load.learn()
        for load in (*self.divided, *self.drafting):
            assert load.expected == self.load_one.expected, f"{load.v.name} answers as one"

    def serve(self, *args, kind=Victim, **options):
        self.victims.append(kind(args[0], self.folder, *args[1:], **options))
        return self.victims[-1]

    def close(self):
        for v in self.victims:
            v.stop()
        if self.disk:
            subprocess.run(["umount", self.disk], check=False)

    def all_alive(self):
        return all(v.is_alive() for v in self.victims)

    # ---- the run ----

    def ask(self, load, kind, rng):
        mark = load.v.excuse.mark()
        wrong = excuse = None
        try:
            wrong = kind(rng)
        except Excused as e:
            excuse = str(e)
        except (OSError, http.client.HTTPException) as e:
            excuse = repr(e)
        except AssertionError as e:
            wrong = str(e)
        if excuse is not None and "before receiving SETTINGS" in excuse:
            wrong = excuse  # who is not let in is told so at once
        elif excuse is not None and not load.v.excuse.covers(mark):
            wrong = f"nothing was broken: {excuse}"
        name = f"{load.v.name}.{kind.__name__}"
        with self.lock:
            self.asked[name] += 1
            self.refused[name] += excuse is not None
        if wrong is not None:
            self.note(name, wrong)

    def work(self, number):
        rng = random.Random(f"{self.o.seed}-{number}")
        while not self.stop.is_set() and self.all_alive():
            load = rng.choices(self.loads, [3, 4] + [1] * (len(self.loads) - 2))[0]
            self.ask(load, rng.choice(load.kinds), rng)
            if self.o.pace:
                time.sleep(rng.uniform(0, 2 * self.o.pace))

    def break_things(self):
        rng = random.Random(f"{self.o.seed}-faults")
        faults = Faults(self, rng)
        while not self.stop.wait(rng.uniform(0.3, 1.5) * self.o.calm) and self.all_alive():
            try:
                name = faults.inject()
            except (OSError, http.client.HTTPException, ValueError) as e:
                name = f"{type(e).__name__}"
            with self.lock:
                self.broken[name] += 1

    def watch(self, seconds):
        """Samples of memory; a line each minute."""
        begin, last = time.monotonic(), 0
        while (at := time.monotonic() - begin) < seconds and self.all_alive():
            for v in self.victims:
                v.samples.append((at / seconds, v.memory()))
            if at - last > 60:
                last = at
                print(f"{at:.0f} s: {sum(self.asked.values())} asked, {sum(self.broken.values())} faults, {len(self.wrong)} wrong; MB "
                      + " ".join(f"{v.memory() >> 20}" for v in self.victims), flush=True)
            time.sleep(1)

    def run(self):
        self.start()
        for v in self.victims:
            v.rest()
        time.sleep(21)  # the connections of the start are closed
        before = {v.name: v.descriptors() for v in self.victims}
        for _ in range(PERIODS):
            self.period()
            if not self.all_alive() or not any([self.grew(load) for load in self.loads]):
                break
        for load in self.loads:
            v = load.v
            if not v.is_alive():
                self.note(v.name, f"the server ended with {v.server.process.returncode}")
            else:
                self.look(load, before[v.name])
        print("asked:", " ".join(f"{k}={v}" for k, v in sorted(self.asked.items())))
        print("refused while something was broken:", " ".join(f"{k}={v}" for k, v in sorted(self.refused.items()) if v))
        print("broken:", " ".join(f"{k}={v}" for k, v in sorted(self.broken.items())))
        print(f"{self.o.seconds:.0f} s, {sum(self.asked.values())} requests, {sum(self.broken.values())} faults, seed {self.o.seed}",
              flush=True)
        for v in self.victims:
            if v.is_alive() and (status := v.stop()):
                self.note(v.name, f"the server ended with {status}")

    def period(self):
        """Load and faults for the time that was asked for."""
        self.stop.clear()
        for v in self.victims:
            v.samples.clear()
        threads = [threading.Thread(target=self.work, args=(i,)) for i in range(self.o.workers)]
        threads.append(threading.Thread(target=self.break_things))
        for t in threads:
            t.start()
        self.watch(self.o.seconds)
        self.stop.set()
        for t in threads:
            t.join()

    def grew(self, load):
        """Whether the server at rest has more memory than in the middle of the last period."""
        v = load.v
        load.bring_back()  # what is wrong with it is said by `look`
        v.rest()
        plateau = max([m for at, m in v.samples if 0.3 <= at <= 0.7], default=v.memory())
        most, until = max(plateau * 1.05, plateau + ARENA), time.monotonic() + 10
        while (now := v.memory()) > most and time.monotonic() < until:  # a model that was loaded again is still going
            time.sleep(0.2)
        print(f"{v.name}: memory {plateau / 2**20:.1f} MB at the plateau, {now / 2**20:.1f} MB at the end", flush=True)
        v.growth = f"memory grew from {plateau} to {now}" if now > most else None
        return v.growth

    def look(self, load, before):
        """Everything works, and is free again."""
        v = load.v
        problems = []
        if wrong := load.bring_back():
            problems.append(wrong)
        if left := v.rest():
            problems.append(f"still in use: {left}")
        rng = random.Random(1)
        for kind in load.kinds:
            until = time.monotonic() + 40  # a stub that was killed while it started is started again by the next request
            while True:
                try:
                    wrong = kind(rng)
                    break
                except (Excused, OSError) as e:
                    wrong = repr(e)
                    if kind != getattr(load, "python", None) or time.monotonic() > until:
                        break
                    time.sleep(0.1)
            if wrong is not None:
                problems.append(f"afterwards {kind.__name__}: {wrong}")
        if left := v.rest():
            problems.append(f"still in use: {left}")
        until = time.monotonic() + 60
        while v.descriptors() != before and time.monotonic() < until:  # idle connections are closed after 20 s
            time.sleep(0.5)
        after = v.descriptors()
        print(f"{v.name}: descriptors {before} -> {after}")
        if after != before:
            problems.append(f"{after} descriptors, before {before}")
        if v.growth:
            problems.append(f"{v.growth}, in each of {PERIODS} periods")
        for p in problems:
            self.note(v.name, p)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("seconds", type=float, nargs="?", default=60)
    p.add_argument("--seed", type=int, default=time.time_ns() % 10**6)
    p.add_argument("--workers", type=int, default=6)
    p.add_argument("--pace", type=float, default=0, help="mean pause between a worker's requests, seconds")
    p.add_argument("--calm", type=float, default=1, help="pauses between faults are so many times longer")
    p.add_argument("--drafts", default="ngram,medusa,eagle", help="a server for each of these methods of speculation")
    options = p.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        chaos = Chaos(folder, options)
        try:
            chaos.run()
        finally:
            logs = [text for v in chaos.victims for text in v.last_words()]
            chaos.close()
    if chaos.wrong:
        print(*logs, sep="\n----\n")
    print("chaos:", "clean" if not chaos.wrong else f"{len(chaos.wrong)} problems")
    return 1 if chaos.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
