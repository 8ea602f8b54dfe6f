# SPDX-License-Identifier: Apache-2.0
"""The shell blocks of README.md, docs and tools, and a folder in which their commands run as they stand there.

Words in capitals and names of files are files of that folder, so the text is not changed, but for ports (a server of
the test has free ones), for addresses that others reach, for figures that only cost time, and for the lines of not_run.txt."""
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys

from ports import free_ports

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("NEREID_BIN", ROOT / "build/bin"))
CURL = shutil.which("curl") or "curl"
PAGES = [str(p.relative_to(ROOT)) for folder, names in (("", "*.md"), ("docs", "**/*.md"), ("tools", "**/*.md")) for p in sorted((ROOT / folder).glob(names))]
SHELL, PYTHON, OTHER = ("sh", "bash", "console"), ("python",), ("text", "json", "c", "yaml", "ini", "http")
NOT_RUN = pathlib.Path(__file__).parent / "not_run.txt"
REPLACED = {"--duration 60": "--duration 1", "--num_requests 200": "--num_requests 20", "--host 0.0.0.0": "--host 127.0.0.1"}

# Programs of the folder's build/bin. A server starts in the background, in the place of the one before, and the
# command ends when it is ready, so that the next line of a block finds it.
PROGRAM = """#!/usr/bin/env bash
set -u
home=$(cd "$(dirname "$0")/../.." && pwd) name=$(basename "$0")
case "$name ${1:-}" in
"nereid serve"|"tritonserver --model"*|"tritonserver --load"*) ;;
*) exec "BIN/$name" "$@" ;;
esac
if [ -e "$home/server.pid" ]; then
    kill "$(cat "$home/server.pid")" 2>/dev/null
    while kill -0 "$(cat "$home/server.pid")" 2>/dev/null; do sleep 0.02; done
fi
setsid "BIN/$name" "$@" --http-port=$HTTP --grpc-port=$GRPC --metrics-port=$METRICS >"$home/server.log" 2>&1 </dev/null &
echo $! >"$home/server.pid"
up() { CURL -fs -o "$home/null" "http://localhost:$1" || CURL -fsk -o "$home/null" "https://localhost:$1"; }
until up $HTTP/v2/health/ready && up $METRICS/metrics; do
    kill -0 "$(cat "$home/server.pid")" 2>/dev/null || { cat "$home/server.log" >&2; exit 1; }
    sleep 0.05
done
"""


def blocks(page):
    """[(line number, language, text)] of a page."""
    out, start, lines = [], None, (ROOT / page).read_text(encoding="utf-8").split("\n")
    for i, line in enumerate(lines):
        fence = re.match(r"\s*```(.*)", line)
        if fence and start is None:
            start, language = i, fence[1].strip()
        elif fence:
            out.append((start + 1, language, "\n".join(lines[start + 1:i])))
            start = None
    assert start is None, f"{page}: the block at line {start} has no end"
    return out


def not_run():
    """{(page, beginning of a command)} of not_run.txt; each line there has a reason."""
    rows = [line.split("|") for line in NOT_RUN.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]
    assert all(len(row) == 3 and row[2].strip() for row in rows), "not_run.txt: page | beginning of a command | reason"
    return {(page.strip(), command.strip()) for page, command, _ in rows}


def programs():
    """The first words of all commands."""
    words = {c.split()[0] for page in PAGES for _, language, text in blocks(page) if language in SHELL for c in commands(language, text) if c.split()}
    return sorted(w for w in words if re.fullmatch(r"[\w./-]+", w))


def commands(language, text):
    """The lines to run, those that continue a command joined to it."""
    lines = text.split("\n")
    if language == "console":  # commands stand behind "$ ", the rest is what they print
        kept, more = [], False
        for line in lines:
            if line.startswith("$ ") or more:
                kept.append(line.removeprefix("$ "))
                more = line.endswith("\\")
        lines = kept
    out = []
    for line in lines:
        if out and out[-1].endswith("\\"):
            out[-1] += "\n" + line
        else:
            out.append(line)
    return out


class Folder:
    """Like a checkout beside the models that the pages name; `run` types a block there."""

    def __init__(self, at, files, cache):
        self.at = pathlib.Path(at)
        (self.at / "build/bin").mkdir(parents=True)
        (self.at / "home/.local/share/bash-completion/completions").mkdir(parents=True)
        for name in ("all_models", "examples", "scripts", "tools"):
            (self.at / name).symlink_to(ROOT / name)
        for name, target in files.items():
            (self.at / name).symlink_to(target)
        (self.at / "prompts.txt").write_text("What is rain?\nWhat is snow?\n")
        (self.at / "FILE.jsonl").write_text('{"custom_id": "a", "method": "POST", "url": "/v1/completions", '
                                            '"body": {"prompt": "Once", "max_tokens": 4}}\n')
        (self.at / "TEXT").write_text("The river rose in the night. Nobody was hurt.\n")
        for name in ("nereid", "tritonserver"):
            self._program(f"build/bin/{name}", PROGRAM.replace("BIN/", f"{BIN}/").replace("CURL", CURL))
        # curl says nothing of a refusal; a page that expects one has its status in a comment
        self._program("home/bin/curl", f'#!/bin/sh\nexec {CURL} -sS --fail-with-body "$@"\n')
        self.http, self.grpc, self.metrics = free_ports(3)
        self.env = {**os.environ, "HOME": str(self.at / "home"), "NEREID_CACHE": str(cache), "HTTP": str(self.http),
                    "GRPC": str(self.grpc), "METRICS": str(self.metrics), "PYTHONPATH": str(ROOT / "build/python"),
                    "PYTHONDONTWRITEBYTECODE": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1",
                    "PATH": f"{self.at}/home/bin:{self.at}/build/bin:{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}"}

    def _program(self, name, text):
        path = self.at / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)

    def run(self, where, text, program=("bash", "-e", "-o", "pipefail", "-c")):
        for a, b in {**REPLACED, "localhost:8000": f"localhost:{self.http}", "localhost:8001": f"localhost:{self.grpc}",
                     "localhost:8002": f"localhost:{self.metrics}", "/adapters/": f"{self.at}/"}.items():
            text = text.replace(a, b)
        if program[0] == "bash":
            text = "\n".join(self._line(line) for line in text.split("\n"))
        with open(self.at / "said", "w+") as said:
            done = subprocess.run([*program, text], cwd=self.at, env=self.env, stdin=subprocess.DEVNULL, stdout=said,
                                  stderr=subprocess.STDOUT, timeout=60, check=False)
            said.seek(0)
            heard = said.read()
        log = self.at / "server.log"
        assert done.returncode == 0, f"{where}: {done.returncode}\n{text}\n{heard}\n{log.read_text()[-800:] if log.exists() else ''}"
        return heard

    @staticmethod
    def _line(line):
        if re.search(r"# 4\d\d\b", line):  # refused with this status
            return f"! {line}"
        return re.sub(r" &\s*$", "", line)  # servers are in the background anyway

    def end(self):
        pid = self.at / "server.pid"
        if pid.exists():
            try:
                os.killpg(int(pid.read_text()), signal.SIGTERM)
            except ProcessLookupError:
                pass
