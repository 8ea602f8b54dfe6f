# SPDX-License-Identifier: Apache-2.0
"""A cache of 8-bit integers: with a checkpoint's calibrated scales it works, without it is refused."""

import json
import os
import pathlib
import struct
import subprocess
import sys

import numpy as np
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "tinymodel"))
import make_model  # noqa: E402
import weights  # noqa: E402

NEREID = os.environ.get("NEREID", str(ROOT / "build" / "bin" / "nereid"))
TOKENS = weights.tokens("kv", 60, 320)


def nereid(*words):
    return subprocess.run([NEREID, *map(str, words)], capture_output=True, text=True, check=False)


def logprobs(model, folder, *more):
    asked, answer = folder / "in.jsonl", folder / "out.jsonl"
    asked.write_text(json.dumps({"id": "a", "tokens": TOKENS}) + "\n")
    done = nereid("eval", model, "--tokens", asked, "--out", answer, "--top", 1, *more)
    assert done.returncode == 0, done.stderr
    return np.array(json.loads(answer.read_text())["logprobs"][1:], np.float64)


def add_scales(file, n_layers, scale):
    """What TensorRT-LLM's converters write with --int8_kv_cache."""
    data = file.read_bytes()
    (n,) = struct.unpack("<Q", data[:8])
    header, body = json.loads(data[8:8 + n]), data[8 + n:]
    for i in range(n_layers):
        name = f"transformer.layers.{i}.attention.kv_cache_scaling_factor"
        header[name] = {"dtype": "F32", "shape": [1], "data_offsets": [len(body), len(body) + 4]}
        body += struct.pack("<f", scale)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    file.write_bytes(struct.pack("<Q", len(text)) + text + body)


@pytest.fixture
def checkpoint(tmp_path):
    make_model.write_folder("llama", tmp_path / "m")
    assert nereid("convert", tmp_path / "m", "-o", tmp_path / "c").returncode == 0
    return tmp_path / "c"


def test_scales_of_the_checkpoint_make_an_int8_cache_right(checkpoint, tmp_path):
    assert nereid("build", checkpoint, "-o", tmp_path / "e").returncode == 0
    want = logprobs(tmp_path / "e", tmp_path)
    add_scales(checkpoint / "rank0.safetensors", 2, 6 / 127)  # keys and values are below 6
    done = nereid("build", checkpoint, "-o", tmp_path / "e8", "--kv_cache_dtype", "int8")
    assert done.returncode == 0, done.stderr
    # measured 0.04 and 0.13; with a scale of 1 it is 0.68 and 2
    error = np.abs(logprobs(tmp_path / "e8", tmp_path) - want)
    assert 0 < error.mean() < 0.08 and error.max() < 0.3


def test_without_scales_an_int8_cache_is_refused_at_build_and_at_load(checkpoint, tmp_path):
    for words in (["--kv_cache_dtype", "int8"], ["--int8_kv_cache"]):
        done = nereid("build", checkpoint, "-o", tmp_path / "e", *words)
        assert done.returncode == 1 and "kv_cache_dtype int8 needs a calibrated scale" in done.stderr
        assert done.stderr.count("\n") == 1 and not (tmp_path / "e").exists()
    done = nereid("eval", checkpoint, "--tokens", os.devnull, "--out", tmp_path / "o", "--kv_dtype", "int8")
    assert done.returncode == 1 and "kv_cache_dtype int8 needs a calibrated scale" in done.stderr


def test_an_older_engine_with_an_int8_cache_is_refused_by_name(checkpoint, tmp_path):
    assert nereid("build", checkpoint, "-o", tmp_path / "e").returncode == 0
    config = tmp_path / "e" / "config.json"
    text = config.read_text()
    assert '"kv_dtype": "auto"' in text
    config.write_text(text.replace('"kv_dtype": "auto"', '"kv_dtype": "int8"'))
    done = nereid("eval", tmp_path / "e", "--tokens", os.devnull, "--out", tmp_path / "o")
    assert done.returncode == 1 and "kv_cache_dtype int8 needs a calibrated scale" in done.stderr
