# SPDX-License-Identifier: Apache-2.0
"""What goes wrong. Each fault opens an excuse for the servers it hurts, and closes it when it is over: errors of requests
that began before its end are right then. A jump of the clock and a client that leaves excuse nothing."""
import os
import resource
import signal
import time

GRACE = 0.5  # seconds in which what was refused is tried again


class Faults:
    def __init__(self, chaos, rng):
        self.chaos, self.rng = chaos, rng
        one, two = chaos.one, chaos.two
        self.kinds = [(self.few_descriptors, one), (self.few_descriptors, two), (self.short_files, one), (self.no_memory, one),
                      (self.no_memory, two), (self.one_call_fails, one), (self.one_call_fails, two), (self.clock, one),
                      (self.clock, two), (self.load_again, one), (self.kill_rank, two)]
        self.kinds += [(self.kill_stub, one)] * 2 if chaos.load_one.python in chaos.load_one.kinds else []
        self.kinds += [(self.full_disk, one)] if chaos.disk else []
        self.kinds += [(self.adapters, one)]

    def inject(self):
        fault, victim = self.rng.choice(self.kinds)
        fault(victim)
        return f"{fault.__name__}"

    def excused(self, victim, seconds, begin, end):
        victim.excuse.begin()
        try:
            begin()
            self.chaos.stop.wait(seconds)
        finally:
            end()
            self.chaos.stop.wait(GRACE)
            victim.excuse.end()

    def limit(self, victim, what, value):
        before = resource.prlimit(victim.pid, what)
        self.excused(victim, 1, lambda: resource.prlimit(victim.pid, what, (min(value, before[1]), before[1])),
                     lambda: resource.prlimit(victim.pid, what, before))

    def few_descriptors(self, victim):
        self.limit(victim, resource.RLIMIT_NOFILE, victim.descriptors() + self.rng.randrange(4))

    def short_files(self, victim):
        self.limit(victim, resource.RLIMIT_FSIZE, 1)

    def full_disk(self, victim):
        """The file system of logs, traces and temporary files is full."""
        path = self.chaos.disk / "filler"

        def fill():
            with open(path, "wb", buffering=0) as f:
                try:
                    while True:
                        f.write(bytes(1 << 16))
                except OSError:
                    pass

        def empty():
            path.unlink()
            for f in self.chaos.disk.iterdir():
                if f.is_file() and f.stat().st_size > 1 << 20:
                    os.truncate(f, 0)
        self.excused(victim, 1, fill, empty)

    def no_memory(self, victim):
        """No allocation, mapping or thread of our own code for a moment."""
        self.excused(victim, self.rng.choice([0.02, 0.1, 0.4]),
                     lambda: victim.fail(self.rng.choice([["alloc"], ["alloc", "mmap", "thread"]]), 1, 1), victim.stop_failing)

    def one_call_fails(self, victim):
        kind = self.rng.choice(["alloc", "read", "write", "mmap", "thread", "open", "accept", "epoll"])
        self.excused(victim, 0.3, lambda: victim.fail([kind], self.rng.randrange(1, 300), 0), victim.stop_failing)

    def clock(self, victim):
        """The wall clock jumps, and back: nobody may notice."""
        victim.move_clock(self.rng.choice([-1, 1]) * self.rng.choice([5, 3600, 86400 * 400, 86400 * 3650]))
        self.chaos.stop.wait(self.rng.uniform(0.2, 2))
        victim.move_clock(0)

    def kill_stub(self, victim):
        stubs = victim.stubs()
        self.excused(victim, 0.1, lambda: stubs and os.kill(self.rng.choice(stubs), signal.SIGKILL), lambda: None)

    def load_again(self, victim):
        models = ["echo", "echo", "tensorrt_llm"] + (["add_sub"] if self.chaos.load_one.python in self.chaos.load_one.kinds else [])
        name = self.rng.choice(models)
        status = []
        self.excused(victim, 0, lambda: status.extend(victim.load(name)), lambda: None)
        if status[0] != 200:
            self.chaos.note("load_again", f"{name}: {status}")

    def adapters(self, victim):
        """An adapter comes and goes at run time."""
        path = str(self.chaos.adapters["three"])
        for what, body in (("load", {"lora_name": "three", "lora_path": path}), ("unload", {"lora_name": "three"})):
            mark = victim.excuse.mark()
            status, answer = victim.call(f"/v1/{what}_lora_adapter", body)
            there = what == "load" and "has already been loaded" in str(answer)  # the unload before was refused
            if status != 200 and not there and not victim.excuse.covers(mark):
                self.chaos.note("adapters", f"{what}: {status} {answer}")

    def kill_rank(self, victim):
        """A rank dies: the model is lost, and a load brings it back."""
        victim.excuse.begin()
        try:
            ranks = victim.ranks()
            if ranks:
                os.kill(self.rng.choice(ranks), self.rng.choice([signal.SIGKILL, signal.SIGSEGV]))
            until = time.monotonic() + 30
            while ranks and victim.call("/v2/models/tensorrt_llm/infer", {})[0] != 503 and time.monotonic() < until:
                time.sleep(0.05)
            answer = self.bring_back(victim)
            if answer:
                self.chaos.note("kill_rank", answer)
        finally:
            victim.excuse.end()

    @staticmethod
    def bring_back(victim, seconds=60):
        """Loads a lost model until it answers. What the last load said otherwise."""
        until, answer = time.monotonic() + seconds, None
        while time.monotonic() < until:
            answer = victim.load("tensorrt_llm")
            if answer[0] == 200 and victim.server.request("/v2/models/ensemble/ready")[0] == 200:
                return None
            time.sleep(0.2)
        return f"the model does not come back: {answer}"
