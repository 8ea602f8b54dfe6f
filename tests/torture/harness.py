# SPDX-License-Identifier: Apache-2.0
"""A server whose n-th call of a kind fails (faults.c), and what has to hold then."""
import ctypes
import mmap
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

TESTS = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS))
sys.path.insert(0, str(TESTS / "server"))
from ports import free_ports  # noqa: E402
from triton_server import BUILD, ROOT, Connection, delay, write_model  # noqa: E402

KINDS = {"alloc": 1, "read": 2, "write": 4, "mmap": 8, "thread": 16, "open": 32, "accept": 64,
         "epoll": 128, "process": 256, "look": 512}
DEADLINE = 20  # seconds in which a request must have ended


class Control(ctypes.Structure):
    """struct control of faults.c"""
    _fields_ = [("kinds", ctypes.c_uint32), ("for_ever", ctypes.c_uint32), ("at", ctypes.c_uint64),
                ("n_calls", ctypes.c_uint64), ("n_failed", ctypes.c_uint64),
                ("first_failed", ctypes.c_uint64), ("first_file", ctypes.c_char * 96)]


def is_sanitized():
    text = subprocess.run(["ldd", BUILD / "bin/tritonserver"], capture_output=True, text=True).stdout
    return next((line.split()[2] for line in text.splitlines() if "libasan" in line), None)


def has_grpc():
    text = subprocess.run([BUILD / "bin/nereid", "--version"], capture_output=True, text=True).stdout
    return "no-grpc" not in text


class Server:
    """tritonserver under faults.c. explicit: models are loaded by orders."""

    def __init__(self, folder, repository, *args):
        self.folder = pathlib.Path(folder)
        self.http, self.metrics, self.grpc = free_ports(3)
        self.file = open(self.folder / f"control-{self.http}", "w+b")
        self.file.truncate(mmap.PAGESIZE)
        self.map = mmap.mmap(self.file.fileno(), mmap.PAGESIZE)
        self.control = Control.from_buffer(self.map)
        self.log_path = self.folder / f"log-{self.http}"
        env = dict(os.environ, NEREID_FAULTS=self.file.name,
                   PATH=f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}",
                   LD_PRELOAD=str(BUILD / "tests/torture/libfaults.so"))
        if is_sanitized():
            env["ASAN_OPTIONS"] = "verify_asan_link_order=0:detect_leaks=1:" + env.get("ASAN_OPTIONS", "")
            env["LSAN_OPTIONS"] = f"suppressions={TESTS / 'chaos/leaks.supp'}:print_suppressions=0"
        with open(self.log_path, "w") as log:
            self.process = subprocess.Popen(
                [BUILD / "bin/tritonserver", f"--model-repository={repository}",
                 "--http-address=127.0.0.1", "--grpc-address=127.0.0.1", "--metrics-address=127.0.0.1",
                 f"--http-port={self.http}", f"--metrics-port={self.metrics}",
                 f"--grpc-port={self.grpc}", "--exit-timeout-secs=10", *args],
                stdout=log, stderr=subprocess.STDOUT, env=env)
        self.wait_ready()

    def log(self):
        return self.log_path.read_text(errors="replace")

    def wait_ready(self):
        until = time.monotonic() + 120
        while "Started Metrics Service at " not in self.log():
            if self.process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"the server did not start:\n{self.log()[-3000:]}")
            time.sleep(0.02)

    def connect(self):
        return Connection(self.http, timeout=DEADLINE)

    def call(self, method, path, body=b"", fields=None):
        with self.connect() as c:
            return c.call(method, path, body, fields)

    def start_end(self):
        """SIGTERM; the end is waited for by `stop`."""
        self.process.send_signal(signal.SIGTERM)

    def is_alive(self):
        return self.process.poll() is None

    def arm(self, kind, n, for_ever=False):
        c = self.control
        c.kinds, c.at, c.for_ever = 0, n, for_ever
        c.n_calls = c.n_failed = 0
        c.kinds = KINDS[kind]

    def disarm(self):
        """How many calls failed."""
        self.control.kinds = 0
        return self.control.n_failed

    def where(self):
        """The function whose call failed first."""
        name = self.control.first_file.decode()
        paths = [p for p in BUILD.rglob(name) if p.is_file()]
        at = hex(self.control.first_failed - 1) if self.control.first_failed else "0x0"
        if not paths:
            return f"{name}+{at}"
        text = subprocess.run(["addr2line", "-f", "-s", "-i", "-e", paths[0], at], capture_output=True,
                              text=True).stdout.split()
        return " < ".join(f"{f} {l}" for f, l in zip(text[0::2], text[1::2]))

    def stop(self, keep=False):
        """The exit status; None: it did not end by itself. keep: `close` is called later."""
        if self.is_alive():
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            return None
        finally:
            if not keep:
                self.close()

    def close(self):
        del self.control
        self.map.close()
        self.file.close()


class Broken(AssertionError):
    """What must hold did not."""


def attempt(case, server):
    """What the client saw: (True, what it is worth to compare) for an answer, (False, why) for an
    error or a connection that ended. A request that does not end in time breaks the run."""
    begin = time.monotonic()
    try:
        answer = case.run(server)
    except (TimeoutError, *case.timeouts) as e:
        raise Broken(f"no answer in {DEADLINE} s: {e!r}") from e
    except Exception as e:  # noqa: BLE001 - every other end is an end
        answer = (False, repr(e)[:200])
    if time.monotonic() - begin > DEADLINE:
        raise Broken(f"it took {time.monotonic() - begin:.0f} s")
    return answer


def settle(case, server, expected, tries=40):
    """The same request works again, at once or when what was lost has been replaced."""
    for i in range(tries):
        ok, answer = attempt(case, server)
        if ok and answer == expected:
            return
        if not server.is_alive():
            break
        time.sleep(0.05 * min(i, 10))
    raise Broken(f"the next request: {(ok, answer)!r}, expected {expected!r}")


def strides(most_each):
    """1, 2, 3, … most_each, then in growing steps."""
    n, step = 1, 1
    while True:
        yield n
        if n >= most_each:
            step += max(1, step // 4)
        n += step


class Result:
    def __init__(self):
        self.n_run = self.n_answered = self.n_refused = self.last = 0
        self.complete = False  # a run met no failure: there are no more calls
        self.broken = []
        self.refusals = []  # what clients were told


def torture(case, make_server, kind="alloc", most_each=10 ** 9, for_ever=False, seconds=None, log=None,
            server=None, stop_at_first=True, first=1):
    """Lets call 1, 2, 3 … fail, until a run has no failure. Returns (Result, the server)."""
    result = Result()
    server = server or make_server()
    if case.prepare:
        case.prepare(server)
    expected = None
    for _ in range(3):  # warm: what is made once is made
        ok, expected = attempt(case, server)
        if not ok:
            raise Broken(f"{case.name} does not work without faults: {expected}")
    until = time.monotonic() + seconds if seconds else None
    for n in strides(most_each):
        if n < first:
            continue
        server.arm(kind, n, for_ever)
        why = None
        try:
            ok, answer = attempt(case, server)
            n_failed = server.disarm()
            if ok and answer != expected:
                why = f"a wrong answer: {answer!r}, expected {expected!r}"
            if not why and server.is_alive():
                settle(case, server, expected)
            time.sleep(0)
        except Broken as e:
            n_failed = server.disarm()
            why = str(e)
        if not server.is_alive():
            why = f"the server ended with {server.process.poll()}:\n{server.log()[-1500:]}"
        if why:
            text = f"{case.name}, {kind} {n}{' and all after' if for_ever else ''}: {server.where()}: {why}"
            result.broken.append(text)
            if log:
                log(text)
            if stop_at_first:
                return result, server
            server.stop()
            server = make_server()
            if case.prepare:
                case.prepare(server)
            for _ in range(3):
                attempt(case, server)
            continue
        if n_failed == 0:
            result.complete = True
            break
        result.n_run += 1
        result.last = n
        result.n_answered += ok
        result.n_refused += not ok
        result.refusals += [] if ok else [str(answer)]
        if until and time.monotonic() > until:
            break
    return result, server


def torture_end(case, make_server, kind="alloc", most_each=10 ** 9, seconds=None, log=None, first=1):
    """The server is told to end in the middle of a request, and call 1, 2, 3 … from there on fails. Each
    run has a server of its own. The request may be answered, refused or cut, but not wrongly; the server
    ends by itself with status 0 or 1 (1 only where something failed). Returns a Result."""
    result = Result()
    until = time.monotonic() + seconds if seconds else None
    for n in strides(most_each):
        if n < first:
            continue
        server, why = make_server(), None
        text_of_log = server.log_path
        try:
            ok, expected = attempt(case, server)
            if not ok:
                raise Broken(f"{case.name} does not work without faults: {expected}")
            begun, box = threading.Event(), []
            thread = threading.Thread(target=lambda: box.append(catch(attempt, _Begun(case, begun), server)))
            thread.start()
            begun.wait(DEADLINE)
            server.arm(kind, n)
            server.start_end()
            thread.join(DEADLINE + 10)
            ok, answer = box[0] if box else (True, "no end")
            if isinstance(answer, Broken):
                why = str(answer)
            elif ok and answer != expected:
                why = f"a wrong answer: {answer!r}, expected {expected!r}"
        except Broken as e:
            why = str(e)
        where = server.where
        code, n_failed, first_failed = server.stop(keep=True), server.control.n_failed, None
        if n_failed:
            first_failed = where()
        server.close()
        if not why and (code is None or code not in ((0, 1) if n_failed else (0,))):
            why = f"the server ended with {code}:\n{text_of_log.read_text(errors='replace')[-1500:]}"
        if why:
            text = f"{case.name}, {kind} {n} while it ends: {first_failed}: {why}"
            result.broken.append(text)
            if log:
                log(text)
        if n_failed == 0:
            result.complete = True
            break
        result.n_run += 1
        result.last = n
        result.n_answered += ok
        result.n_refused += not ok
        if until and time.monotonic() > until:
            break
    return result


def catch(f, *args):
    try:
        return f(*args)
    except Broken as e:
        return False, e


class _Begun:
    """A case that tells when its request is with the server."""

    def __init__(self, case, begun):
        self.name, self.timeouts = case.name, case.timeouts
        self.run = lambda server: case.run(server, begun)
