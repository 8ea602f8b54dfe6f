# SPDX-License-Identifier: Apache-2.0
"""nereid run --chat and nereid chat on a small random model."""
import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
NEREID = os.environ.get("NEREID", str(ROOT / "build" / "bin" / "nereid"))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("chat") / "llama"
    subprocess.run([sys.executable, ROOT / "tests/tinymodel/make_model.py", "--arch", "llama", "--out", folder],
                   check=True, stdout=subprocess.DEVNULL)
    return folder


def nereid(*words, text=""):
    return subprocess.run([NEREID, *map(str, words)], capture_output=True, input=text.encode())


def test_a_prompt_goes_through_the_template(model):
    chat = nereid("run", model, "--chat", "-p", "hello", "-n", 8, "--temperature", 0)
    plain = nereid("run", model, "-p", "<|user|>hello\n<|assistant|>", "-n", 8, "--temperature", 0)
    assert chat.returncode == plain.returncode == 0, chat.stderr
    assert chat.stdout == plain.stdout and chat.stdout.strip()


def test_another_template(model, tmp_path):
    template = tmp_path / "t.jinja"
    template.write_text("{{ bos_token }}{{ messages[0].content }}:{{ messages[-1].content }}")
    chat = nereid("run", model, "--chat", "--system", "be", "--chat_template", template, "-p", "hello", "-n", 8,
                  "--temperature", 0, "-q")
    plain = nereid("run", model, "-p", "be:hello", "-n", 8, "--temperature", 0, "-q")
    assert chat.returncode == 0 and chat.stdout == plain.stdout
    template.write_text("{% for %}")
    broken = nereid("run", model, "--chat", "--chat_template", template, "-p", "x")
    assert broken.returncode == 1 and b"template line 1" in broken.stderr


def test_a_conversation_keeps_its_history(model):
    talk = nereid("chat", model, "-n", 6, "--temperature", 0, text="hello\nagain\n/clear\nhello\n/exit\nnever\n")
    assert talk.returncode == 0, talk.stderr
    prompts = [int(line.split(b" ")[1]) for line in talk.stderr.splitlines() if line.startswith(b"prompt:")]
    assert len(prompts) == 3 and prompts[1] > prompts[0] == prompts[2]
