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
        one, many = chaos.load_one, chaos.load_many
        self.kinds = [(f, load) for load in chaos.loads for f in (self.few_descriptors, self.no_memory, self.one_call_fails, self.clock)]
        self.kinds += [(self.short_files, one), (self.load_again, one), (self.adapters, one), (self.let_go, many), (self.sleep, many)]
        self.kinds += [(f, load) for load in chaos.divided for f in (self.kill_rank, self.stop_rank)]
        self.kinds += [(self.kill_launched, load) for load in chaos.divided if hasattr(load.v, "parts")] * 2
        self.kinds += [(self.load_draft, load) for load in chaos.drafting]
        self.kinds += [(self.kill_stub, one)] * 2 if one.python in one.kinds else []
        self.kinds += [(self.full_disk, one)] if chaos.disk else []

    def inject(self):
        fault, load = self.rng.choice(self.kinds)
        fault(load)
        return f"{fault.__name__}"

    def excused(self, load, seconds, begin, end):
        load.v.excuse.begin()
        try:
            begin()
            self.chaos.stop.wait(seconds)
        finally:
            end()
            self.chaos.stop.wait(GRACE)
            if wrong := load.settle(self.rng):
                self.chaos.note(f"{load.v.name} behind a fault", wrong)
            load.v.excuse.end()

    def limit(self, load, what, value):
        pid = load.v.pid
        before = resource.prlimit(pid, what)
        self.excused(load, 1, lambda: resource.prlimit(pid, what, (min(value, before[1]), before[1])),
                     lambda: resource.prlimit(pid, what, before))

    def few_descriptors(self, load):
        self.limit(load, resource.RLIMIT_NOFILE, load.v.descriptors() + self.rng.randrange(4))

    def short_files(self, load):
        self.limit(load, resource.RLIMIT_FSIZE, 1)

    def full_disk(self, load):
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
        self.excused(load, 1, fill, empty)

    def no_memory(self, load):
        """No allocation, mapping or thread of our own code for a moment."""
        kinds = self.rng.choice([["alloc"], ["alloc", "mmap", "thread"]])
        self.excused(load, self.rng.choice([0.02, 0.1, 0.4]), lambda: load.v.fail(kinds, 1, 1), load.v.stop_failing)

    def one_call_fails(self, load):
        kind = self.rng.choice(["alloc", "read", "write", "mmap", "thread", "open", "accept", "epoll"])
        self.excused(load, 0.3, lambda: load.v.fail([kind], self.rng.randrange(1, 300), 0), load.v.stop_failing)

    def clock(self, load):
        """The wall clock jumps, and back: nobody may notice."""
        load.v.move_clock(self.rng.choice([-1, 1]) * self.rng.choice([5, 3600, 86400 * 400, 86400 * 3650]))
        self.chaos.stop.wait(self.rng.uniform(0.2, 2))
        load.v.move_clock(0)

    def kill_stub(self, load):
        stubs = load.v.stubs()
        self.excused(load, 0.1, lambda: stubs and os.kill(self.rng.choice(stubs), signal.SIGKILL), lambda: None)

    def load_again(self, load):
        self.load_of(load, ["echo", "echo", "tensorrt_llm"] + (["add_sub"] if load.python in load.kinds else []))

    def load_draft(self, load):
        """The engine with the heads that draft."""
        self.load_of(load, ["tensorrt_llm"])

    def load_of(self, load, models):
        name, status = self.rng.choice(models), []
        self.excused(load, 0, lambda: status.extend(load.v.load(name)), lambda: None)
        if status[0] != 200:
            self.chaos.note("load_again", f"{load.v.name}: {name}: {status}")

    def let_go(self, load):
        """A model goes when its requests have ended, and comes back with the next one: nobody may notice."""
        self.order(load, "/models/unload", {"model": self.rng.choice(load.models)})

    def sleep(self, load):
        """All models go, and requests are refused until they are woken."""
        self.excused(load, 0.1, lambda: self.order(load, "/sleep", {}), lambda: self.order(load, "/wake_up", {}))

    def order(self, load, path, body):
        status, answer = load.v.call(path, body)
        if status != 200:
            self.chaos.note("order", f"{path} {body}: {status} {answer}")

    def adapters(self, load):
        """An adapter comes and goes at run time."""
        path = str(self.chaos.adapters["three"])
        for what, body in (("load", {"lora_name": "three", "lora_path": path}), ("unload", {"lora_name": "three"})):
            mark = load.v.excuse.mark()
            status, answer = load.v.call(f"/v1/{what}_lora_adapter", body)
            there = what == "load" and "has already been loaded" in str(answer)  # the unload before was refused
            if status != 200 and not there and not load.v.excuse.covers(mark):
                self.chaos.note("adapters", f"{what}: {status} {answer}")

    def kill_rank(self, load):
        """A rank dies: the model is lost, and a load brings it back."""
        load.v.excuse.begin()
        try:
            ranks = load.v.ranks()
            if ranks:
                os.kill(self.rng.choice(ranks), self.rng.choice([signal.SIGKILL, signal.SIGSEGV]))
            until = time.monotonic() + 30
            while ranks and load.v.call("/v2/models/tensorrt_llm/infer", {})[0] != 503 and time.monotonic() < until:
                time.sleep(0.05)
            if answer := load.bring_back():
                self.chaos.note("kill_rank", answer)
        finally:
            load.v.excuse.end()

    def stop_rank(self, load):
        """A rank, or the server, stands still and goes on: requests wait, nothing else."""
        pid = self.rng.choice(load.v.members())
        os.kill(pid, signal.SIGSTOP)
        self.chaos.stop.wait(self.rng.uniform(0.1, 2))
        os.kill(pid, signal.SIGCONT)

    def kill_launched(self, load):
        """mpirun or what it started is killed: nothing is left, and the next job serves as this one did."""
        load.v.excuse.begin()
        try:
            wrong = load.v.kill(self.rng.choice(load.v.parts)) or load.bring_back()
            if wrong:
                self.chaos.note("kill_launched", wrong)
        finally:
            load.v.excuse.end()
