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
sys.path[:0] = [str(ROOT / "tests" / "tinymodel"), str(ROOT / "tests" / "model"), str(ROOT / "build" / "python")]
import check_goldens as cg  # noqa: E402
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


# Layers that read the cache of others, and layers whose blocks differ in size.
@pytest.mark.parametrize("name, n_own", [("gemma3n", 3), ("gemma4", 3), ("gemma4-dense", 3), ("gemma4-moe", 3)])
def test_layers_that_share_a_cache_or_differ_in_width_keep_it_in_8_bits(name, n_own, tmp_path):
    golden = cg.load_golden(name)
    assert nereid("convert", cg.write_tiny(name, str(tmp_path)), "-o", tmp_path / "c").returncode == 0
    add_scales(tmp_path / "c" / "rank0.safetensors", n_own, 4 / 127)  # keys and values are normed: below 4 but for few
    done = nereid("build", tmp_path / "c", "-o", tmp_path / "e8", "--kv_cache_dtype", "int8")
    assert done.returncode == 0, done.stderr
    lines = cg.evaluate([NEREID, "eval"], str(tmp_path / "e8"), golden, str(tmp_path), more=())
    error = [abs(got - want) for p in golden["prompts"] for got, want in zip(lines[p["id"]]["logprobs"][1:], p["logprobs"][1:])]
    assert 0 < np.median(error) < 0.1, np.median(error)


@pytest.mark.parametrize("name", ["gemma3n", "gemma4", "gemma4-dense", "gemma4-moe"])
def test_a_prompt_that_begins_as_another_takes_its_blocks_in_all_layers(name, tmp_path):
    executor = pytest.importorskip("nereid.executor")
    prompt = max(cg.load_golden(name)["prompts"], key=lambda p: len(p["tokens"]))
    done = nereid("build", cg.write_tiny(name, str(tmp_path)), "-o", tmp_path / "e", "--tokens-per-block", "8")
    assert done.returncode == 0, done.stderr
    config = executor.ExecutorConfig(kv_cache_config=executor.KvCacheConfig(enable_block_reuse=True, max_tokens=512), n_threads=1)
    output = executor.OutputConfig(exclude_input_from_output=True, return_perf_metrics=True)
    with executor.Executor(str(tmp_path / "e"), executor.ModelType.DECODER_ONLY, config) as x:
        for tokens, reused in ((prompt["tokens"][:20] + [7, 8, 9], 0), (prompt["tokens"], 2)):
            request = x.enqueue_request(executor.Request(tokens, 12, output_config=output))
            (answer,) = x.await_responses(request)
            assert answer.result.request_perf_metrics.kv_cache_metrics.num_reused_blocks == reused
    want = prompt["greedy"]
    sure = next((i for i, margin in enumerate(want["margins"]) if margin < 1e-3), 12)
    assert answer.result.output_token_ids[0][:sure] == want["tokens"][:12][:sure]


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
