# SPDX-License-Identifier: Apache-2.0
"""Every verb that prints results prints them as JSON when --json is given: by the table of verbs, and by running them."""
import json
import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
NEREID = os.environ.get("NEREID", str(ROOT / "build" / "bin" / "nereid"))
# What prints no results: a server, a talk, a script for the shell, and verbs that write files and say nothing.
SILENT = {"serve", "chat", "completion", "fill_template", "hf_lora_convert", "hf_gpt_convert", "build_multimodal_engine", "repro", "tritonserver"}
BY_FILE = {"bench", "bench_serve", "simulate"}  # --json FILE: figures stay on the terminal
NEEDS_A_SERVER = {"top", "client", "bench_serve", "pull"}  # or a hub: their own tests have one
NEEDS_FIGURES = {"simulate"}  # of engines that were measured; tests/tools/test_simulate.py


def nereid(*words, code=0, text=""):
    r = subprocess.run([NEREID, *map(str, words)], capture_output=True, text=True, timeout=180, input=text)
    assert r.returncode == code, r.stdout + r.stderr
    return r.stdout


@pytest.fixture(scope="module")
def table():
    return json.loads(nereid("options", "--json"))


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    folder = tmp_path_factory.mktemp("json")
    before = dict(os.environ)
    os.environ.update(NEREID_CACHE=str(folder / "cache"), HF_HUB_CACHE=str(folder / "hub"), HF_HUB_OFFLINE="1")
    subprocess.run([sys.executable, ROOT / "tests/tinymodel/make_model.py", "--arch", "llama", "--out", folder / "model"], check=True,
                   stdout=subprocess.DEVNULL)
    nereid("convert", folder / "model", "-o", folder / "checkpoint")
    nereid("build", folder / "model", "-o", folder / "engine", "--max_seq_len", 256)
    (folder / "requests.jsonl").write_text(json.dumps(
        {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "hello", "max_tokens": 4}}) + "\n")
    (folder / "matrix.json").write_text(json.dumps(
        {"models": [{"name": "tiny", "path": str(folder / "model")}], "precisions": ["fp16"], "batch_sizes": [2], "lengths": ["32,32"]}))
    yield folder
    os.environ.clear()
    os.environ.update(before)


COMMANDS = {
    "batch": lambda w: ["requests.jsonl", "-o", w / "out.jsonl", "--model", w / "model"],
    "list": lambda w: [],
    "ps": lambda w: [],
    "prune": lambda w: ["--dry-run"],
    "show": lambda w: [w / "model"],
    "run": lambda w: [w / "model", "-p", "hello", "-n", 4],
    "convert": lambda w: [w / "model", "-o", w / "converted"],
    "build": lambda w: [w / "model", "-o", w / "built", "--max_seq_len", 256],
    "quantize": lambda w: ["-m", w / "model", "-o", w / "quantized", "--qformat", "int8_wo", "--no_eval"],
    "repo": lambda w: ["--engine_dir", w / "engine", "--tokenizer_dir", w / "model", "-o", w / "repo"],
    "deploy": lambda w: [w / "matrix.json", "-o", w / "deployed", "--dry_run"],
    "inspect": lambda w: [w / "engine"],
    "tokenize": lambda w: [w / "model"],
    "detokenize": lambda w: [w / "model"],
    "eval": lambda w: [w / "model", "-f", w / "text.txt"],
}


def test_each_verb_has_json_or_prints_no_results(table):
    def has_json(verb):
        return any(o["name"] == "--json" and o["state"] == "used" for o in table[verb])
    assert {v for v in table if not has_json(v)} == SILENT
    assert set(table) - SILENT - BY_FILE - NEEDS_A_SERVER - NEEDS_FIGURES - {"rm", "options"} == set(COMMANDS)


def test_version_is_an_object():
    said = json.loads(nereid("version", "--json"))
    assert said["version"] in nereid("version") and len(said["features"]) > 5 and said["ranks_over_hosts"]


@pytest.mark.parametrize("verb", COMMANDS)
def test_its_output_is_json(work, verb):
    (work / "text.txt").write_text("the quick brown fox jumps over the lazy dog. " * 20)
    words = [work / w if w == "requests.jsonl" else w for w in COMMANDS[verb](work)]
    text = {"tokenize": '{"text": "hello"}\n', "detokenize": '{"ids": [5, 6]}\n'}.get(verb, "")
    out = nereid(verb, *words, "--json", text=text)
    value = json.loads(out)
    assert isinstance(value, list if verb in ("list", "ps", "deploy") else dict), out
    if verb == "batch":
        assert (value["lines"], value["completed"], value["failed"], value["output_tokens"]) == (1, 1, 0, 4)
    if verb in ("convert", "build"):
        assert value["output_dir"] == str(words[2]) and value["weights"] > 5 and value["bytes"] > 1000
    if verb == "quantize":
        assert 0 < value["bytes_after"] < value["bytes_before"]
