# SPDX-License-Identifier: Apache-2.0
"""The training scripts, a few steps of each on a tiny model: what they write is read, and guesses without changing the text. Needs PyTorch."""
import json
import subprocess
import sys

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
from test_convert import NEREID, ROOT, make  # noqa: E402

SIZES = {"medusa": ["--vocab", "40", "--heads", "2"], "eagle3": ["--vocab", "40", "--inter", "64", "--depth", "2"], "redrafter": ["--exit", "32"],
         "draft_model": ["--hidden", "32"]}


def script(name, *words):
    done = subprocess.run([sys.executable, ROOT / f"tools/train/{name}.py", *map(str, words), "--device", "cpu"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_what_is_trained_guesses(tmp_path):
    made = make(tmp_path / "hf", "llama")
    assert made.returncode == 0, made.stderr
    text = tmp_path / "text.safetensors"
    for rows in (4, 8):  # the second time it goes on
        assert f"{rows} answers of" in script("make_text", tmp_path / "hf", text, "--rows", rows, "--batch", 4, "--tokens", 12)
    plain = None
    for method, sizes in SIZES.items():
        said = script(method, tmp_path / "hf", text, tmp_path / method, "--steps", 2, "--rows", 2, "--anchors", 8, *sizes)
        assert "2 steps, loss" in said and "tokens a step" in said
        assert json.loads((tmp_path / method / "config.json").read_text())["trained"]["positions"] > 0
        words = [NEREID, "run", str(tmp_path / "hf"), "-p", "one two three", "--temperature", "0", "--max-tokens", "16", "--ignore-eos"]
        plain = plain or subprocess.run(words, capture_output=True, text=True, check=True).stdout
        config = {"method": method, "model": str(tmp_path / method), "adaptive": False}
        done = subprocess.run([*words, "--speculative-config", json.dumps(config)], capture_output=True, text=True)
        assert done.returncode == 0 and "drafted tokens held" in done.stderr, done.stderr
        assert done.stdout == plain
