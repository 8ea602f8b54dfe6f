# SPDX-License-Identifier: Apache-2.0
"""nereid run --chat and nereid chat on a small random model."""
import contextlib
import fcntl
import json
import os
import pathlib
import pty
import select
import shutil
import struct
import subprocess
import sys
import termios
import time

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/e2e"))
sys.path.insert(0, str(ROOT / "tests/tinymodel"))
import vision  # noqa: E402
from llm_server import Server  # noqa: E402

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


def told(model, text, *words):
    """What the conversation told on the standard error, without rates."""
    talk = nereid("chat", model, "-n", 4, "--temperature", 0, *words, text=text)
    assert talk.returncode == 0, talk.stderr
    return [x for x in talk.stderr.decode().splitlines() if not x.startswith(("rank0", "prompt:"))], talk.stdout.decode(errors="replace")


def test_words_with_a_slash_are_commands_and_paths_are_not(model):
    lines, out = told(model, "/bogus\r\n/help\n/?\n/set\n/usr/bin is what?\n/quit\nnever\n")
    assert lines[0] == "unknown command /bogus; /help lists them"
    assert sum(x.startswith("  /help ") for x in lines) == 2 and "  temperature 0" in lines
    assert out.count("\n") >= 1 and len(nereid("chat", model, "-n", 4, text="/bogus\n/help\n").stdout) == 0


def test_an_end_of_windows_is_no_part_of_a_message(model):
    assert told(model, "hello\r\n")[1] == told(model, "hello\n")[1] == told(model, '"""hello"""\n')[1]
    run = [nereid("run", model, "-n", 4, "--temperature", 0, "-q", text=t).stdout for t in ("hello\r\n", "hello\n")]
    assert run[0] == run[1]


def test_values_are_set_and_wrong_ones_are_told(model):
    lines, _ = told(model, "/set top_k 7\n/set seed 5\n/set max_tokens 9\n/set\n/set top_k x\n/set nothing 1\n/set top_p\n/set top_p 2\n")
    assert {"  top_k 7", "  seed 5", "  max_tokens 9"} <= set(lines)
    assert lines[-4:] == ["/set top_k: expected a whole number from 0 on, got 'x'", "/set: unknown name 'nothing'; /set alone lists them",
                          "/set top_p: a value is missing", "/set top_p: expected a number from 0 to 1, got '2'"]


def test_a_conversation_is_saved_and_loaded(model, tmp_path):
    file = tmp_path / "talk.json"
    told(model, f'be there\n"""\ntwo\nlines"""\n/save {file}\n', "--system", "short")
    saved = json.loads(file.read_text())
    assert [m["role"] for m in saved] == ["system", "user", "assistant", "user", "assistant"]
    assert saved[3]["content"] == "two\nlines"
    again = tmp_path / "again.json"
    lines, _ = told(model, f"/load {file}\n/save {again}\n")
    assert lines == ["5 messages"] and json.loads(again.read_text()) == saved
    file.write_text('[{"role": "robot", "content": "x"}]')
    assert "message 1: expected a role" in told(model, f"/load {file}\n/load\n")[0][0]


def test_another_answer_takes_the_place_of_the_last_one(model, tmp_path):
    file = tmp_path / "talk.json"
    lines, out = told(model, f"/regen\nhello\n/regen\n/save {file}\n")
    assert lines == ["there is no answer yet"] and len(json.loads(file.read_text())) == 2
    first, second = out[:len(out) // 2], out[len(out) // 2:]
    assert first == second  # at temperature 0


def test_the_oldest_messages_make_room(model, tmp_path):
    file = tmp_path / "talk.json"
    lines, _ = told(model, "".join(f"the quick brown fox number {i}\n" for i in range(40)) + f"/save {file}\n", "--system", "short")
    assert all("oldest messages were left out" in x for x in lines) and lines
    saved = json.loads(file.read_text())
    assert saved[0]["content"] == "short" and saved[-2]["content"].endswith("39") and len(saved) < 80
    assert "the model takes" in told(model, "x" * 3000 + "\nhello\n")[0][0]  # and it goes on


def test_a_message_that_is_taken_back_takes_its_picture_along(tmp_path):
    vision.write_folder(tmp_path / "llava")
    (tmp_path / "p.png").write_bytes(vision.png(vision.pixels(*vision.PICTURES[0])))
    (tmp_path / "none.png").write_bytes(b"no picture")
    lines, out = told(tmp_path / "llava", f"/image {tmp_path}/p.png\n" + "x" * 9000 + f"\n/image {tmp_path}/none.png\nwhat\nhello\n")
    assert len(lines) == 2 and "the model takes" in lines[0] and "picture" in lines[1], lines
    assert out.strip()


class Terminal:
    """nereid chat on a terminal of 40 columns."""

    def __init__(self, *words, verb="chat"):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.environ.update(TERM="xterm", NO_COLOR="1")
            os.execv(NEREID, [NEREID, verb, *map(str, words)])
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 40, 0, 0))
        self.seen = ""

    def wait(self, text, seconds=60):
        """Until it is there; what came before is forgotten."""
        end = time.monotonic() + seconds
        while text not in self.seen:
            assert time.monotonic() < end and select.select([self.fd], [], [], end - time.monotonic())[0], self.seen
            self.seen += os.read(self.fd, 65536).decode(errors="replace")
        before, self.seen = self.seen.split(text, 1)
        return before

    def type(self, text):
        data = text.encode()
        while data:
            data = data[os.write(self.fd, data):]


@pytest.fixture
def terminal(model):
    t = Terminal(model, "-n", 4, "--temperature", 0)
    t.wait("/help lists the commands")
    t.wait("> ")
    yield t
    while (ended := os.waitpid(t.pid, os.WNOHANG))[0] == 0:
        t.type("\x03\x04")  # between two lines the terminal throws away what was typed before Ctrl-C
        with contextlib.suppress(OSError):  # it has just ended
            _ = select.select([t.fd], [], [], 0.1)[0] and os.read(t.fd, 65536)
    assert os.waitstatus_to_exitcode(ended[1]) == 0
    os.close(t.fd)


def test_lines_are_edited(terminal, tmp_path):
    t, file = terminal, tmp_path / "talk.json"
    for typed in ("ad\x1b[Dbc\x05e\x7f\x01\x1b[C\x1b[C",  # "abcd": left, end, backspace, home, right
                  "one two  \x17\x17only\x1b[H\x0bkept",  # words and the rest of the line go
                  "caf\u00e9 \u4f60\u597d\x7f!", "\x1b[200~two\rlines\x1b[201~"):
        t.type(typed + "\r")
        t.wait("prompt:")
        t.wait("> ")
    t.type("\x1b[A\x1b[A\x1b[A\x1b[B\r")  # up three, down one: the third again
    t.wait("prompt:")
    t.type(f"/save {file}\r")
    t.type("/help\r")
    t.wait("these lines")
    asked = [m["content"] for m in json.loads(file.read_text()) if m["role"] == "user"]
    assert asked == ["abcd", "kept", "caf\u00e9 \u4f60!", "two\nlines", "caf\u00e9 \u4f60!"]


def test_a_long_text_is_pasted_and_edited_at_once(terminal):
    t = terminal
    t.type("\x1b[200~" + "many words " * 30000 + "the end\x1b[201~")
    t.wait("the end")
    begin = time.monotonic()
    for _ in range(5):
        t.type("\x1b[D")
        t.wait("\x1b[K")
    assert time.monotonic() - begin < 10  # with a look at the whole text for each column a key took half a minute
    t.type("\x01>\x15\x0b/help\r")
    t.wait("these lines")


def test_a_refused_message_is_told_and_the_conversation_goes_on(model, tmp_path):
    template, file = tmp_path / "t.jinja", tmp_path / "talk.json"
    template.write_text("{% for m in messages %}{% if 'bad' in m.content %}{{ raise_exception('no such words') }}{% endif %}"
                        "{{ m.content }}{% endfor %}")
    lines, _ = told(model, f"hello\nbad\nagain\n/save {file}\n", "--chat_template", template)
    assert len(lines) == 1 and "no such words" in lines[0]
    assert [m["content"] for m in json.loads(file.read_text()) if m["role"] == "user"] == ["hello", "again"]


def test_ctrl_c_forgets_a_line_and_the_second_one_ends(terminal, tmp_path):
    t = terminal
    t.type("not this\x03/help\r")
    t.wait("these lines")
    t.wait("> ")
    t.type("\x03")
    t.wait("Ctrl-C again, Ctrl-D or /exit ends.")
    t.type("hello\r")
    t.wait("prompt:")
    t.wait("> ")
    t.type("\x03")
    t.wait("Ctrl-C again")  # a message came between


NAMED = {  # what each makes of a system message, a question, an answer and a question
    "chatml": "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nA<|im_end|>\n<|im_start|>assistant\nB<|im_end|>\n<|im_start|>user\nC<|im_end|>\n<|im_start|>assistant\n",
    "gemma": "<start_of_turn>user\nS\n\nA<end_of_turn>\n<start_of_turn>model\nB<end_of_turn>\n<start_of_turn>user\nC<end_of_turn>\n<start_of_turn>model\n",
    "llama3": "<|start_header_id|>system<|end_header_id|>\n\nS<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nA<|eot_id|>"
              "<|start_header_id|>assistant<|end_header_id|>\n\nB<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nC<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
    "mistral": "[INST] S\n\nA [/INST] B</s>[INST] C [/INST]",
    "phi3": "<|system|>\nS<|end|>\n<|user|>\nA<|end|>\n<|assistant|>\nB<|end|>\n<|user|>\nC<|end|>\n<|assistant|>\n"}


@pytest.mark.parametrize("form", ["folder", "gguf"])
def test_a_model_without_a_template_takes_one_by_name_or_from_a_file(model, tmp_path, form):
    """Through the terminal and through a server."""
    plain = tmp_path / "plain"
    if form == "gguf":
        plain = tmp_path / "plain.gguf"
        subprocess.run([sys.executable, ROOT / "tests/tinymodel/make_model.py", "--arch", "llama", "--format", "gguf", "--out", plain],
                       check=True, stdout=subprocess.DEVNULL)
    else:
        shutil.copytree(model, plain)
        settings = json.loads((plain / "tokenizer_config.json").read_text())
        del settings["chat_template"]
        (plain / "tokenizer_config.json").write_text(json.dumps(settings))
        refused = nereid("run", plain, "--chat", "-p", "x")
        assert refused.returncode == 1 and b"--chat-template takes a file, or one of chatml, gemma" in refused.stderr
    own = tmp_path / "own.jinja"
    own.write_text("{% for m in messages %}[{{ m.content }}]{% endfor %}")
    messages = [{"role": r, "content": c} for r, c in (("system", "S"), ("user", "A"), ("assistant", "B"), ("user", "C"))]
    eos = json.loads((model / "tokenizer_config.json").read_text())["eos_token"]
    for name, text in {**NAMED, str(own): "[S][A][B][C]"}.items():
        s = Server(plain, tmp_path, "--chat-template", name)
        try:
            status, answer = s.wait_ready().request("/apply-template", {"messages": messages})
            assert status == 200 and answer["prompt"].endswith(text.replace("</s>", eos)), answer
        finally:
            assert s.stop() == 0
    talk = nereid("chat", plain, "--chat-template", "chatml", "-n", 4, "--temperature", 0, "-q", text="A\n")
    run = nereid("run", plain, "--chat", "--chat-template", "chatml", "-p", "A", "-n", 4, "--temperature", 0, "-q")
    assert talk.returncode == 0 and talk.stdout == run.stdout and run.stdout.strip()


@pytest.mark.parametrize("verb", ["serve", "chat"])
def test_a_template_that_is_not_there_or_wrong_is_refused(model, tmp_path, verb):
    broken = tmp_path / "broken.jinja"
    broken.write_text("{% for %}")
    for name, part in (("/nope", "'/nope' is no file, and no name: chatml, gemma"), (broken, "template line 1")):
        r = nereid(verb, model, "--chat-template", name)
        assert r.returncode in (1, 2) and part in r.stderr.decode().splitlines()[-1]


def test_a_question_is_answered_as_in_a_chat(model):
    asked = nereid("run", model, "hello", "-n", 8, "--temperature", 0, "-q")
    chat = nereid("run", model, "--chat", "-p", "hello", "-n", 8, "--temperature", 0, "-q")
    assert asked.returncode == 0 and asked.stdout == chat.stdout and asked.stdout.strip(), asked.stderr
    both = nereid("run", model, "hello", "-p", "hello")
    assert both.returncode == 2 and both.stderr == b"nereid run: two prompts: 'question' or --prompt, --prompt-file\n"


def test_a_model_that_only_continues_says_so_first(model, tmp_path):
    folder = shutil.copytree(model, tmp_path / "plain")
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    del settings["chat_template"]
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    def first(*words):
        run = nereid("run", *words, "-n", 4)
        assert run.returncode == 0, run.stderr
        return next((x for x in run.stderr.decode().splitlines() if not x.startswith("rank0")), "")

    for words in (["hello"], ["-p", "hello"]):
        assert first(folder, *words) == "plain has no chat template: it continues the text, and does not answer"
    assert first(folder, "-p", "hello", "-q") == ""
    named = nereid("run", folder, "hello", "--chat-template", "chatml", "-n", 4)  # a template makes it a chat
    assert named.returncode == 0 and b"no chat template" not in named.stderr
    assert first(model, "-p", "hello") == "the text is continued; --chat asks the model"


def test_run_at_a_terminal_without_a_prompt_is_a_conversation(model):
    t = Terminal(model, "-n", 4, verb="run")
    t.wait("/help lists the commands")
    t.type("hello\r")
    t.wait("prompt:")
    t.wait("> ")
    t.type("\x04")
    assert os.waitstatus_to_exitcode(os.waitpid(t.pid, 0)[1]) == 0
    os.close(t.fd)
