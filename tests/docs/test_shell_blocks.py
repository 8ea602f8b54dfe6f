# SPDX-License-Identifier: Apache-2.0
"""Every command that README.md, docs and tools show runs and ends well, with small models in the place of those that are named;
what does not run here stands in not_run.txt with its reason."""
import json
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/tools"), str(ROOT / "tests"), str(ROOT / "tests/tinymodel"), str(pathlib.Path(__file__).parent)]
import adapter  # noqa: E402
import hub_server  # noqa: E402
import eagle_heads  # noqa: E402
import medusa_heads  # noqa: E402
import mtp_layer  # noqa: E402
import redrafter_heads  # noqa: E402
import pages  # noqa: E402

# What a reader of these pages has started before.
STARTED = {"README.md": "nereid serve SmolLM2-135M-Instruct.Q4_1.gguf", "docs/benchmark.md": "nereid serve MODEL",
           "docs/monitor.md": "nereid serve MODEL", "docs/ui.md": "nereid serve MODEL"}


def runnable(page):
    """[(where, language, commands)] without what not_run.txt names."""
    left_out = [command for p, command in pages.not_run() if p == page]
    out = []
    for line, language, text in pages.blocks(page):
        if language in pages.SHELL:
            kept = [c for c in pages.commands(language, text) if c.strip() and not any(c.startswith(x) for x in left_out)]
            if kept:
                out.append((f"{page}:{line}", language, "\n".join(kept)))
        elif language in pages.PYTHON:
            out.append((f"{page}:{line}", language, text))
    return out


@pytest.fixture(scope="session")
def files(tmp_path_factory):
    """{name in the folder: file or folder}"""
    at = tmp_path_factory.mktemp("models")

    def make(out, *words):
        subprocess.run([sys.executable, ROOT / "tests/tinymodel/make_model.py", "--out", at / out, *words], check=True,
                       stdout=subprocess.DEVNULL)
        return at / out

    gguf, folder = make("tiny.gguf", "--arch", "llama", "--format", "gguf"), make("tiny", "--arch", "llama")
    adapters = {name: adapter.write("llama", at / name, "float16", seed=name) for name in ("ADAPTER", "OTHER", "sql2")}
    config = json.loads((folder / "config.json").read_text())
    medusa_heads.write_folder(at / "HEADS", 4, 1, config["hidden_size"], config["vocab_size"])
    net = eagle_heads.model_of(folder)
    eagle = {"EAGLE1": eagle_heads.Heads(net, 1).write(at / "EAGLE1"), "EAGLE3": eagle_heads.Heads(net, 3, layers=[0, 1, 1]).write(at / "EAGLE3")}
    eagle["DRAFTER"] = redrafter_heads.Drafter(net, 96).write(at / "DRAFTER")
    net, _ = mtp_layer.make(make("glm", "--arch", "glm4_moe"), at / "MTP_MODEL")
    mtp_layer.write(net, at / "MTP_MODEL")
    return {**{name: gguf for name in ("MODEL.gguf", "model.gguf", "SmolLM2-135M-Instruct.gguf", "SmolLM2-135M-Instruct.Q4_1.gguf")},
            **{name: folder for name in ("MODEL", "HF_OR_GGUF", "HF", "TOK", "PATH", "SmolLM2-135M-Instruct", "SMALL", "LARGE",
                                   "Qwen2.5-7B-Instruct", "Qwen2.5-7B-Instruct-AWQ", "TINY")}, "HEADS": at / "HEADS", **adapters, **eagle,
            "samples_arc_easy.jsonl": ROOT / "tests/tools/eval_samples.jsonl", "MIXTURE": make("mixture", "--arch", "gpt_oss-6"), "MTP_MODEL": at / "MTP_MODEL"}


@pytest.fixture(scope="session")
def hub(files):
    """Has small models under the names that the pages pull."""
    folder = {p.name: p.read_bytes() for p in files["MODEL"].iterdir()}
    folder["chat_template.jinja"] = b"{% for m in messages %}{{ m.content }}{% endfor %}"
    one_file = {"model-Q4_K_M.gguf": files["MODEL.gguf"].read_bytes()}
    h = hub_server.Hub({"Qwen/Qwen3-0.6B": folder, "ORG/NAME": folder, "org/name": one_file,
                        "bartowski/Qwen2.5-7B-Instruct-GGUF": one_file})
    yield h
    h.close()


@pytest.fixture
def folder(tmp_path, files, hub, tmp_path_factory):
    f = pages.Folder(tmp_path / "page", files, tmp_path_factory.getbasetemp() / "cache")
    f.env = {k: v for k, v in f.env.items() if not k.startswith("HF_")} | {"HF_ENDPOINT": hub.url, "XDG_RUNTIME_DIR": str(tmp_path)}
    yield f
    f.end()


@pytest.mark.parametrize("page", [p for p in pages.PAGES if runnable(p)])
def test_the_commands_of_a_page_run(page, folder):
    if page in STARTED:
        folder.run("before " + page, STARTED[page])
    for where, language, text in runnable(page):
        if language == "python":
            folder.run(where, text, (sys.executable, "-c"))
        else:
            folder.run(where, text)


def test_a_newcomers_first_answer_comes_within_a_minute(folder, tmp_path):
    """Nothing is in any cache: the model is fetched, loaded and asked. With a small model this takes two seconds."""
    empty = {"HOME": str(tmp_path / "new"), "NEREID_CACHE": str(tmp_path / "new/cache")}
    done = subprocess.run([ROOT / "build/bin/nereid", "run", "Qwen/Qwen3-0.6B", "--chat", "-p", "What is the capital of France?",
                           "--max_tokens", "8", "--ignore-eos"], env={**folder.env, **empty}, stdin=subprocess.DEVNULL, capture_output=True, timeout=60)
    assert done.returncode == 0 and done.stdout.strip(), done.stderr
    assert (tmp_path / "new/.cache/huggingface/hub/models--Qwen--Qwen3-0.6B").is_dir()


def test_the_walk_through_is_the_same_in_both_languages():
    """Commands, sections and the pages that it leads to."""
    def parts(page):
        text = (ROOT / page).read_text(encoding="utf-8")
        return ([b[1:] for b in pages.blocks(page)], re.findall(r"^#+ (?:\d+)?", text, re.M),
                sorted(set(re.findall(r"\]\(([a-z-]+\.md)\)", text)) - {"walkthrough.md"}))
    assert parts("docs/walkthrough.md") == parts("docs/walkthrough.zh.md")


def test_every_block_says_its_language():
    known = pages.SHELL + pages.PYTHON + pages.OTHER
    wrong = [f"{page}:{line}: '{language}'" for page in pages.PAGES for line, language, _ in pages.blocks(page) if language not in known]
    assert not wrong, f"expected one of {known}"


def test_no_command_hides_in_a_block_of_text():
    """Blocks of text are not run."""
    typed = re.compile(rf"(\$ \S|({'|'.join(map(re.escape, pages.programs()))}) \S)")
    wrong = [f"{page}:{line}: '{t.split(chr(10))[0]}'" for page in pages.PAGES for line, language, t in pages.blocks(page)
             if language == "text" and any(typed.match(x) for x in t.split("\n"))]
    assert not wrong, "such a block is 'sh', or 'console' with what the command prints"


def test_what_is_not_run_is_there():
    """A line of not_run.txt that names no command any more goes away."""
    there = {(page, c) for page in pages.PAGES for _, language, text in pages.blocks(page) if language in pages.SHELL
             for c in pages.commands(language, text)}
    for page, command in pages.not_run():
        assert any(p == page and c.startswith(command) for p, c in there), f"{page}: {command}"


def test_commands_are_joined_and_taken_from_transcripts():
    assert pages.commands("sh", "a \\\n  b\nc") == ["a \\\n  b", "c"]
    assert pages.commands("console", "$ a \\\n  b\nprinted\n$ c") == ["a \\\n  b", "c"]
