# SPDX-License-Identifier: Apache-2.0
"""The commands of a guide, as somebody types them in a checkout of their own."""
import json
import os
import pathlib
import shutil
import signal
import subprocess
import time
import urllib.error
import urllib.request

from ports import free_ports

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("NEREID_BIN", ROOT / "build/bin"))
FOLDERS = ("all_models", "ci", "examples", "scripts", "tools", "tensorrt_llm")


class Guide:
    """A folder like a checkout, and shells in it. What a shell leaves in the background ends with the guide."""

    def __init__(self, folder, environment):
        self.folder = pathlib.Path(folder)
        self.folder.mkdir()
        for name in FOLDERS:
            (self.folder / name).symlink_to(ROOT / name)
        self.http, self.grpc, self.metrics = free_ports(3)
        self.env = dict(environment, PATH=f"{BIN}:{environment['PATH']}", NEREID_CACHE=str(self.folder / "cache"),
                        TMPDIR=str(self.folder.parent))
        self.groups = []

    def type(self, text, status=0, timeout=120, **variables):
        """What bash prints while it does `text`: (standard output, standard error)."""
        with open(self.folder / "out", "w+") as out, open(self.folder / "err", "w+") as err:
            shell = subprocess.Popen(["bash", "-e", "-c", text], cwd=self.folder, stdin=subprocess.DEVNULL, stdout=out,
                                     stderr=err, env={**self.env, **variables}, start_new_session=True)
            self.groups.append(shell.pid)
            ended = shell.wait(timeout)
            out.seek(0)
            err.seek(0)
            said, complained = out.read(), err.read()
        assert ended == status, f"{ended}\n{said}\n{complained}"
        return said, complained

    def launch(self, text, force="--force"):
        """The same for a command that leaves a server behind; waits until it is ready. Another program may take a port
        between the choice and the start: then once more with others."""
        for attempt in range(3):
            ports = f"--http_port {self.http} --grpc_port {self.grpc} --metrics_port {self.metrics}"
            self.type(f"{text} {ports} {force} >server.log 2>&1")
            if self._wait_ready(attempt < 2):
                return
            self.http, self.grpc, self.metrics = free_ports(3)

    def _wait_ready(self, may_be_busy):
        until = time.monotonic() + 120
        while True:
            over = not self._signal(self.groups[-1], 0)  # asked before the log is read: it is whole then
            log = (self.folder / "server.log").read_text(errors="replace")
            if over and may_be_busy and "in use" in log.lower():
                return False
            assert not over and time.monotonic() < until, f"{'ended' if over else 'not ready'}:\n{log}"
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.http}/v2/health/ready", timeout=5) as r:
                    if r.status == 200:
                        return True
            except (urllib.error.URLError, OSError):
                pass
            time.sleep(0.05)

    def generate(self, body, model="ensemble"):
        """Of curl's line: the parsed answer."""
        data = body if isinstance(body, str) else json.dumps(body)
        said, _ = self.type(f"curl -s -X POST localhost:{self.http}/v2/models/{model}/generate -d '{data}'")
        return json.loads(said)

    def end(self):
        alive = [g for g in self.groups if self._signal(g, signal.SIGTERM)]
        until = time.monotonic() + 60
        while alive and time.monotonic() < until:
            alive = [g for g in alive if self._signal(g, 0)]
            time.sleep(0.02)
        for g in alive:
            self._signal(g, signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)
        assert not alive, "a server did not end within a minute"

    @staticmethod
    def _signal(group, number):
        try:
            os.killpg(group, number)
        except ProcessLookupError:
            return False
        return True
