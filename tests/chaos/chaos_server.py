# SPDX-License-Identifier: Apache-2.0
"""A server that the chaos run can hurt from outside, and measure."""
import ctypes
import http.client
import json
import mmap
import os
import pathlib
import struct
import subprocess
import sys
import threading
import time

TESTS = pathlib.Path(__file__).resolve().parents[1]
BUILD = pathlib.Path(os.environ.setdefault("NEREID_BUILD", str(TESTS.parent / "build")))
os.environ.setdefault("NEREID_BIN", str(BUILD / "bin"))
sys.path[:0] = [str(TESTS / d) for d in ("e2e", "torture", "server", "tinymodel", ".")]
from harness import KINDS, Control, is_sanitized  # noqa: E402
from llm_server import Server  # noqa: E402

HAS_PYTHON = (BUILD / "backends/python/libtriton_python.so").exists()


def stat_of(pid):
    """Fields of /proc/PID/stat behind the name: state, parent, …; None: gone."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return None


def children(pid):
    """Direct children that live, with their command lines."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (s := stat_of(name)) and int(s[1]) == pid and s[0] != "Z":
            try:
                found[int(name)] = pathlib.Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0")
            except OSError:
                pass
    return found


def last_part(log):
    """The end of a log; a sanitizer's report from its beginning, which names what was lost first."""
    report = log.find("==ERROR: ")
    return log[report:report + 20000] if report >= 0 else log[-3000:]


class Excuse:
    """Whether something was broken on purpose at any time since a request began."""

    def __init__(self):
        self.lock, self.n_open, self.n_begun = threading.Lock(), 0, 0

    def begin(self):
        with self.lock:
            self.n_open += 1
            self.n_begun += 1

    def end(self):
        with self.lock:
            self.n_open -= 1

    def mark(self):
        with self.lock:
            return self.n_begun - (1 if self.n_open else 0)

    def covers(self, mark):
        with self.lock:
            return self.n_begun != mark


class Victim:
    """`nereid serve` with libraries that let allocations fail and move its wall clock."""

    def __init__(self, name, folder, model, *args, log=None, env=None):
        self.name, self.excuse = name, Excuse()
        self.folder = pathlib.Path(folder) / name
        (self.folder / "cache").mkdir(parents=True)
        self.maps = []
        self.control = Control.from_buffer(self.shared("faults", mmap.PAGESIZE))
        self.clock = self.shared("clock", 8)
        preload = [BUILD / "tests/torture/libfaults.so", BUILD / "tests/chaos/libclock.so"]
        env = dict(env or {}, NEREID_FAULTS=str(self.folder / "faults"), NEREID_CLOCK=str(self.folder / "clock"),
                   LD_PRELOAD=":".join(map(str, preload)),
                   MALLOC_ARENA_MAX="4")  # as many as are soon there: one more in the middle of a run looks like a leak
        if is_sanitized():  # what is freed is kept for a while: less of it, or memory grows as the run does
            env["LSAN_OPTIONS"] = f"suppressions={TESTS / 'chaos/leaks.supp'}:print_suppressions=0"
            env["ASAN_OPTIONS"] = "verify_asan_link_order=0:detect_leaks=1:quarantine_size_mb=16:malloc_context_size=12"
        self.server = Server(model, self.folder / "cache", "--http-idle-timeout-secs=20", *args, env=env, launch=self.launch)
        self.console = self.server.log_path
        if log:
            self.server.log_path = log
            log.touch()
        self.samples = []
        self.growth = None  # of memory in the last period of load, in words

    def launch(self, command, _env):
        """What is started: `command`, or a launcher with it."""
        return command

    def shared(self, name, size):
        """Memory that the server has too."""
        with open(self.folder / name, "w+b") as f:
            f.truncate(size)
            self.maps.append(mmap.mmap(f.fileno(), size))
        return self.maps[-1]

    @property
    def pid(self):
        return self.server.process.pid

    def is_alive(self):
        return self.server.process.poll() is None

    # ---- requests ----

    def call(self, path, body, timeout=120):
        """(status, JSON or text); raises OSError where the connection failed."""
        c = http.client.HTTPConnection("127.0.0.1", self.server.http, timeout=timeout)
        try:
            c.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
            r = c.getresponse()
            text = r.read()
        finally:
            c.close()
        try:
            return r.status, json.loads(text or b"null")
        except ValueError:
            return r.status, text.decode(errors="replace")

    def load(self, model):
        return self.call(f"/v2/repository/models/{model}/load", {})

    # ---- faults ----

    def move_clock(self, seconds):
        self.clock[:8] = struct.pack("q", int(seconds * 1e9))

    def fail(self, kinds, at, for_ever):
        c = self.control
        c.kinds, c.at, c.for_ever, c.n_calls, c.n_failed = 0, at, for_ever, 0, 0
        c.kinds = sum(KINDS[k] for k in kinds)

    def stop_failing(self):
        self.control.kinds = 0
        return self.control.n_failed

    def stubs(self):
        return [p for p, c in children(self.pid).items() if c[1:2] != [b"worker"]]

    def ranks(self):
        return [p for p, c in children(self.pid).items() if c[1:2] == [b"worker"]]

    def members(self):
        """The server's process and those of its ranks."""
        return [self.pid, *self.ranks()]

    # ---- figures ----

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def memory(self):
        return int(pathlib.Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * mmap.PAGESIZE

    def rest(self, seconds=60):
        """Until nothing runs: no request in flight, no block in use. What is still there otherwise."""
        until, left = time.monotonic() + seconds, None
        while time.monotonic() < until:
            try:
                text = self.server.metrics_text()
            except OSError as e:
                left = repr(e)
                time.sleep(0.2)
                continue
            left = [line for line in text.splitlines() if not line.endswith((" 0", " 0.000000")) and (
                line.startswith("nv_inference_pending_request_count") or 'kv_cache_block_type="used"' in line or
                'request_type="active"' in line)]
            if not left:
                return None
            time.sleep(0.1)
        return left

    def last_words(self):
        """The ends of its logs, and the text of its crash reports."""
        yield from (f"{p.name}:\n{last_part(p.read_text(errors='replace'))}" for p in {self.console, self.server.log_path} if p.exists())
        for p in self.folder.glob("cache/crashes/*"):
            yield p.read_bytes().split(b"What follows is not text")[0].decode(errors="replace")

    def stop(self):
        status = self.server.stop(120)
        if self.control is not None:
            self.control = None
            self.maps.clear()
        return status


def small_disk(folder, megabytes):
    """A file system of that size at `folder`; False: this user may not mount."""
    folder.mkdir()
    return subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "chaos", folder], capture_output=True,
                          check=False).returncode == 0


def tiny_model(folder):
    subprocess.run([sys.executable, TESTS / "tinymodel/make_model.py", "--arch", "llama", "--out", folder], check=True,
                   stdout=subprocess.DEVNULL)
    return folder
