# SPDX-License-Identifier: Apache-2.0
"""A file system of a few megabytes, which only programs that are started for it see."""
import os
import pathlib
import subprocess

SCRIPT = 'mount -t tmpfs -o size="$1" none "$2" && echo ready && exec cat'


class SmallDisk:
    """Mounted at `folder` in a namespace of its own, which ends with this process. OSError: not allowed here."""

    def __init__(self, folder, size):
        self.user = [] if os.geteuid() == 0 else ["-Ur"]
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.holder = subprocess.Popen(["unshare", *self.user, "-m", "sh", "-c", SCRIPT, "sh", size, folder],
                                       stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        if self.holder.stdout.readline() != b"ready\n":
            self.close()
            raise OSError("no file system can be mounted here")
        self.seen = pathlib.Path(f"/proc/{self.holder.pid}/root{folder}")  # the same files, from outside

    def command(self, words):
        """What starts a program that sees the disk, as the same process."""
        more = ["-U", "--preserve-credentials"] if self.user else []
        return ["nsenter", "-t", str(self.holder.pid), *more, "-m", "--wd=" + os.getcwd(), "--", *map(str, words)]

    def fill(self):
        """Takes what is free."""
        with open(self.seen / "filler", "ab", buffering=0) as f:
            try:
                while f.write(bytes(1 << 16)):
                    pass
            except OSError:
                pass

    def empty(self):
        (self.seen / "filler").unlink()

    def files(self):
        return sorted(str(p.relative_to(self.seen)) for p in self.seen.rglob("*") if p.is_file())

    def close(self):
        self.holder.stdin.close()
        self.holder.wait()
        self.holder.stdout.close()
