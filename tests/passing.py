# SPDX-License-Identifier: Apache-2.0
"""Starts a program as a service manager with listening sockets does: sd_listen_fds(3)."""
import json
import subprocess
import sys

# Descriptors argv[1] become 3, 4, …; the variables argv[2] are set beside the program's own process id.
HELPER = """
import fcntl, json, os, sys
high = [fcntl.fcntl(fd, fcntl.F_DUPFD, 100) for fd in json.loads(sys.argv[1])]
os.closerange(3, 100)
for i, fd in enumerate(high):
    os.dup2(fd, 3 + i)
os.closerange(100, 200)
os.environ.update(LISTEN_PID=str(os.getpid()))
os.environ.update(json.loads(sys.argv[2]))
os.execv(sys.argv[3], sys.argv[3:])
"""


def start_with(sockets, names, program, *args, variables=None, **popen):
    """names: LISTEN_FDNAMES, None: not set."""
    variables = {"LISTEN_FDS": str(len(sockets)), **({} if names is None else {"LISTEN_FDNAMES": names}), **(variables or {})}
    fds = [s.fileno() for s in sockets]
    return subprocess.Popen([sys.executable, "-c", HELPER, json.dumps(fds), json.dumps(variables), program, *args],
                            pass_fds=fds, **popen)
