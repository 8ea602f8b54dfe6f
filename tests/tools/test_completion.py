# SPDX-License-Identifier: Apache-2.0
"""What TAB does in each shell, with the files of an installation, where the shell finds them by itself."""
import os
import pathlib
import pty
import shutil
import subprocess
import time

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
NEREID = os.environ.get("NEREID", str(ROOT / "build/bin/nereid"))
PATH = f"{pathlib.Path(NEREID).parent}:{os.environ['PATH']}"  # fish looks only at programs that are there
# What is typed -> what is offered, as far as a test tells it: all of it, or what must be there (behind "…").
CASES = [("nereid be", ["bench", "bench_serve"]), ("nereid help comp", ["completion"]), ("nereid run --temp", ["--temperature"]),
         ("nereid serve m --metrics-p", ["--metrics-port"]), ("nereid serve m --chat-temp", ["--chat-template"]),
         ("nereid bench serve --num-req", ["--num-requests"]), ("nereid fill-template --", ["--in-place"]),
         ("tritonserver --grpc-p", ["--grpc-port"]), ("trtllm-build --max-num-tok", ["--max-num-tokens"]),
         ("trtllm-serve --max-beam", ["--max-beam-width"]), ("trtllm-bench --model m throughput --data", ["--dataset"]),
         ("trtllm-bench --model m thr", ["throughput"])]


def installed(shell, folder):
    """Puts the completion of a shell into a folder as scripts/install_tree does."""
    text = subprocess.run([NEREID, "completion", shell], capture_output=True, text=True, check=True).stdout
    name = {"bash": "nereid", "zsh": "_nereid", "fish": "nereid.fish"}[shell]
    (folder / name).write_text(text)
    if shell != "zsh":  # there one file names its programs
        for program in ("tritonserver", "trtllm-build", "trtllm-serve", "trtllm-bench"):
            (folder / name.replace("nereid", program)).symlink_to(name)
    return folder


def in_bash(typed, folder):
    words = typed.split(" ")
    ask = (f"source {folder}/{words[0]}; COMP_WORDS=({' '.join(words)}); COMP_CWORD={len(words) - 1}; "
           f"complete -p {words[0]} >/dev/null && _nereid; printf '%s\\n' \"${{COMPREPLY[@]}}\"")
    return subprocess.run(["bash", "-c", ask], capture_output=True, text=True, check=True).stdout.split()


def in_fish(typed, folder):
    said = subprocess.run(["fish", "--no-config", "-c", f"set fish_complete_path {folder}; complete -C '{typed}'"], capture_output=True,
                          text=True, check=True, env={**os.environ, "HOME": str(folder), "PATH": PATH})
    assert said.stderr == ""
    lines = [line.split("\t") for line in said.stdout.splitlines()]
    assert all(len(line) == 2 and line[1] for line in lines)  # each with what it is
    return [line[0] for line in lines]


def in_zsh(typed, folder):
    """At a terminal, with one TAB; a key of the test's own writes down what can be chosen, as it is listed, and the line."""
    seen = folder / "seen"
    (folder / ".zshrc").write_text(
        f"fpath=({folder} $fpath)\nautoload -Uz compinit && compinit -u -D\nsetopt no_list_beep\n"
        f"remember() {{ print -r -- \"$BUFFER\" >{seen}.part && mv {seen}.part {seen} }}\nzle -N remember\nbindkey '^X^B' remember\n"
        f"print ready >{folder}/ready\n")
    pid, terminal = pty.fork()
    if pid == 0:
        os.execvpe("zsh", ["zsh", "-i"], {**os.environ, "ZDOTDIR": str(folder), "TERM": "dumb", "HOME": str(folder)})
    try:
        wait_for(folder / "ready")
        os.write(terminal, f"{typed}\t\x18\x02".encode())
        wait_for(seen)
        return seen.read_text().rstrip("\n")
    finally:
        os.close(terminal)
        os.waitpid(pid, 0)


def wait_for(file):
    until = time.monotonic() + 30
    while not file.exists():
        assert time.monotonic() < until
        time.sleep(0.02)


@pytest.mark.parametrize("typed,offered", CASES)
def test_bash_completes(typed, offered, tmp_path):
    assert in_bash(typed, installed("bash", tmp_path)) == offered


def test_words_that_are_no_options_are_left_to_bash(tmp_path):
    assert in_bash("nereid run fi", installed("bash", tmp_path)) == []
    assert "complete -o default" in (tmp_path / "nereid").read_text()


@pytest.mark.skipif(not shutil.which("fish"), reason="no fish")
@pytest.mark.parametrize("typed,offered", CASES)
def test_fish_completes(typed, offered, tmp_path):
    assert in_fish(typed, installed("fish", tmp_path)) == offered


@pytest.mark.skipif(not shutil.which("zsh"), reason="no zsh")
@pytest.mark.parametrize("typed,offered", CASES)
def test_zsh_completes_at_the_first_tab(typed, offered, tmp_path):
    """With one offer the word is there whole, with several what they have in common."""
    line = in_zsh(typed, installed("zsh", tmp_path))
    common = os.path.commonprefix(offered)
    assert line.rstrip() == typed[:typed.rindex(" ") + 1] + (common or typed.split(" ")[-1])


def test_another_shell_is_refused():
    r = subprocess.run([NEREID, "completion", "tcsh"], capture_output=True, text=True)
    assert r.returncode == 2 and "bash, zsh or fish is needed, got 'tcsh'" in r.stderr
