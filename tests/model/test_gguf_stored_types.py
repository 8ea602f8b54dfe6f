# SPDX-License-Identifier: Apache-2.0
"""Types of GGUF files that no device multiplies: TQ1_0, TQ2_0, IQ1 to IQ3.

What their blocks stand for is what the `gguf` package's `dequantize` says. Ternary blocks are made by the package's quantizer.
It has none for the IQ types: theirs are random bytes with a small scale, since any bytes are a block.
"""

import json
import pathlib
import subprocess
import sys

import gguf
import numpy as np
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "tinymodel"))
sys.path.insert(0, str(ROOT / "tests" / "model"))
import gguf_file  # noqa: E402
import weights  # noqa: E402
from specs import SPECS  # noqa: E402
from test_gguf_presets import N_TOKENS, NEAR_MAX, NEAR_MEAN, SAME, logprobs, write_dequantized  # noqa: E402

# The IQ types become Q8_0, which is off by 1/254 of a block's largest number. Measured: up to 0.07.
ROUNDED_MAX = 0.15
TERNARY, IQ = ["TQ1_0", "TQ2_0"], ["IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S"]
# In the file, in our checkpoint; rows of 256 or 512 numbers.
MATRICES = {"blk.0.attn_output.weight": "transformer.layers.0.attention.dense.weight",
            "blk.0.ffn_gate.weight": "transformer.layers.0.mlp.fc.weight",
            "blk.1.ffn_up.weight": "transformer.layers.1.mlp.gate.weight",
            "blk.1.ffn_down.weight": "transformer.layers.1.mlp.proj.weight"}


def random_blocks(kind, shape, rng):
    """Bytes, with scales of about 2^-11."""
    block, size = gguf.GGML_QUANT_SIZES[kind]
    b = rng.integers(0, 256, (shape[0] * shape[1] // block, size), np.uint8)
    d = rng.uniform(2e-4, 8e-4, len(b)).astype(np.float16).view(np.uint16)
    if kind.name == "IQ1_M":  # four bits of it on top of each of four words
        words = b[:, 48:].copy().view(np.uint16)
        words = (words & 0xFFF) | (d[:, None] >> np.array([0, 4, 8, 12], np.uint16)) << np.uint16(12)
        b[:, 48:] = words.view(np.uint8)
    else:
        at = {"TQ1_0": 52, "TQ2_0": 64}.get(kind.name, 0)
        b[:, at:at + 2] = d[:, None].view(np.uint8)
    return b.reshape(shape[0], -1)


def write(path, name, rng):
    spec, kind = SPECS["llama"], gguf.GGMLQuantizationType[name]
    keys, rows = gguf_file.to_gguf(spec, weights.build(spec), "f32")
    w = gguf.GGUFWriter(path, spec.gguf_arch)
    values = {"string": "STRING", "uint32": "UINT32", "float32": "FLOAT32"}
    for key, type_name, value in keys:
        if key != "general.architecture":
            w.add_key_value(key, value, gguf.GGUFValueType[values[type_name]])
    for tensor, _, shape, data in rows:
        x = np.ascontiguousarray(data).view(np.float32).reshape(shape)
        if tensor not in MATRICES:
            w.add_tensor(tensor, x)
        elif name in TERNARY:
            w.add_tensor(tensor, gguf.quantize(x, kind), raw_dtype=kind)
        else:
            w.add_tensor(tensor, random_blocks(kind, shape, rng), raw_dtype=kind)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def checkpoint_tensors(folder):
    raw = (folder / "rank0.safetensors").read_bytes()
    n = int.from_bytes(raw[:8], "little")
    for name, t in json.loads(raw[8:8 + n]).items():
        if name != "__metadata__" and t["dtype"] == "F32":
            a, b = t["data_offsets"]
            yield name, np.frombuffer(raw[8 + n + a:8 + n + b], np.float32).reshape(t["shape"])


@pytest.mark.parametrize("kind", TERNARY + IQ)
def test_blocks_stand_for_the_numbers_that_the_gguf_package_reads(kind, tmp_path):
    write(tmp_path / "m.gguf", kind, np.random.default_rng(7))
    done = subprocess.run([ROOT / "build/bin/nereid", "convert", tmp_path / "m.gguf", "-o", tmp_path / "c", "--quantize",
                           "float32"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    got = dict(checkpoint_tensors(tmp_path / "c"))
    file = {t.name: t for t in gguf.GGUFReader(tmp_path / "m.gguf").tensors}
    for name, ours in MATRICES.items():
        assert file[name].tensor_type.name == kind
        want = gguf.dequantize(file[name].data, file[name].tensor_type)
        assert len(np.unique(want)) > 2
        assert np.array_equal(got[ours].ravel(), want.ravel()), name


@pytest.mark.parametrize("kind", TERNARY + IQ)
def test_a_file_gives_the_logprobs_of_its_dequantized_weights(kind, tmp_path):
    write(tmp_path / "m.gguf", kind, np.random.default_rng(8))
    write_dequantized(tmp_path / "f32.gguf", tmp_path / "m.gguf")
    tokens = weights.tokens("llama/mix", N_TOKENS, SPECS["llama"].config["vocab_size"])
    want = logprobs(tmp_path / "f32.gguf", tokens, tmp_path, "--compute-dtype", "float32")
    same = np.abs(logprobs(tmp_path / "m.gguf", tokens, tmp_path, "--compute-dtype", "float32") - want)
    assert same.max() < (SAME if kind in TERNARY else ROUNDED_MAX)
    near = np.abs(logprobs(tmp_path / "m.gguf", tokens, tmp_path) - want)
    assert near.mean() < NEAR_MEAN and near.max() < NEAR_MAX


@pytest.mark.parametrize("kind, computed", [("TQ1_0", "q2_k"), ("TQ2_0", "q2_k"), ("IQ2_XS", "q8_0")])
def test_a_type_becomes_the_one_that_it_is_computed_in(kind, computed, tmp_path):
    write(tmp_path / "m.gguf", kind, np.random.default_rng(9))
    subprocess.run([ROOT / "build/bin/nereid", "convert", tmp_path / "m.gguf", "-o", tmp_path / "c"], check=True, capture_output=True)
    raw = (tmp_path / "c/rank0.safetensors").read_bytes()
    types = json.loads(raw[8:8 + int.from_bytes(raw[:8], "little")])["__metadata__"]
    for ours in MATRICES.values():
        assert types[ours].split()[0] == computed
