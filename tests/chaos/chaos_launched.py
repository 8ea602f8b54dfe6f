# SPDX-License-Identifier: Apache-2.0
"""A server whose two ranks mpirun started: it ends when one of them or mpirun is killed, nothing of it is left, and started
again it answers as before. A rank that stands still for a moment only makes others wait."""
import contextlib
import os
import pathlib
import shutil
import signal
import subprocess
import time

from chaos_server import Victim, children

from processes import left  # noqa: I001  (tests: a path of chaos_server)

HAS_MPIRUN = shutil.which("mpirun") is not None


class Launched(Victim):
    """`mpirun -n 1 nereid serve … : -n 1 nereid serve …`. Calls fail in rank 0 only, which has the ports."""

    parts = ("mpirun", "rank 0", "rank 1")

    def __init__(self, *args, **options):
        self.again = False  # it is being started again
        super().__init__(*args, **options)

    def launch(self, command, env):
        preload = ["env", f"LD_PRELOAD={env.pop('LD_PRELOAD')}"]
        root = ["--allow-run-as-root"] if os.getuid() == 0 else []
        return ["mpirun", *root, "--oversubscribe", "--bind-to", "none", "-n", "1", *preload, *command, ":", "-n", "1", *command]

    def launched(self, rank):
        """The process that mpirun started as this rank."""
        mine = f"OMPI_COMM_WORLD_RANK={rank}".encode()
        for pid in children(self.server.process.pid):
            try:
                if mine in pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                    return pid
            except OSError:
                pass
        raise ProcessLookupError(f"rank {rank} is gone")

    @property
    def pid(self):
        return self.launched(0)

    def is_alive(self):
        return self.again or super().is_alive()

    def ranks(self):
        """The process of the model's rank 1: a child of the one that mpirun started."""
        return [p for p, c in children(self.launched(1)).items() if c[1:2] == [b"worker"]]

    def members(self):
        return [*super().members(), self.launched(1)]

    def memory(self):
        try:
            return super().memory()
        except OSError:
            return 0  # it is being started again

    def kill(self, part):
        """All of it ends with any of its parts, and it is started again. What is wrong, or None."""
        self.again = True
        try:
            os.kill(self.server.process.pid if part == "mpirun" else self.launched(int(part[-1])), signal.SIGKILL)
            self.server.process.wait(60)
            until = time.monotonic() + 60
            while there := left(self.folder / "cache"):
                if time.monotonic() > until:
                    return f"processes {there} are left after {part} was killed"
                time.sleep(0.05)
            self.server.start()
            self.server.wait_ready(180)
        except (RuntimeError, AssertionError, subprocess.TimeoutExpired) as e:
            return f"{part} was killed: {e}"
        finally:
            self.again = False
        return None

    def stop(self):
        """As the end of a job does: a signal to each rank."""
        if super().is_alive():
            for rank in (0, 1):
                os.kill(self.launched(rank), signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.server.process.wait(120)
        return super().stop()
