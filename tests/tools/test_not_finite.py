# SPDX-License-Identifier: Apache-2.0
"""A weight that is NaN or infinite is refused when an engine is built or a checkpoint made: softmax and maxima swallow it, and the
answers would only be wrong.

Needs numpy, gguf and the built program (NEREID, else build/bin/nereid).
"""
import json
import os
import pathlib
import struct
import subprocess
import sys

import gguf
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
NEREID = os.environ.get("NEREID", str(ROOT / "build" / "bin" / "nereid"))
NAN = {"float32": b"\0\0\xc0\x7f", "float16": b"\0\x7e", "bfloat16": b"\xc0\x7f"}
INFINITY = {"float32": b"\0\0\x80\xff", "float16": b"\0\xfc", "bfloat16": b"\x80\xff"}


def make(path, arch, *words):
    subprocess.run([sys.executable, ROOT / "tests/tinymodel/make_model.py", "--arch", arch, "--out", path, *words], check=True,
                   stdout=subprocess.DEVNULL)
    return path


def plant(folder, name, number, value):
    """Puts a value's bytes in place of a tensor's number; a negative number counts from the end. Returns the number."""
    file = folder / "model.safetensors"
    data = bytearray(file.read_bytes())
    (n,) = struct.unpack("<Q", data[:8])
    first, end = json.loads(data[8:8 + n])[name]["data_offsets"]
    number %= (end - first) // len(value)
    at = 8 + n + first + number * len(value)
    data[at:at + len(value)] = value
    file.write_bytes(data)
    return number


def refuses(source, name, number, verb, *words):
    out = source.parent / "made"
    done = subprocess.run([NEREID, verb, source, "--output_dir", out, *words], capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    assert f"tensor '{name}': number {number} is not finite" in done.stderr, done.stderr
    assert not (out / "config.json").exists()


@pytest.mark.parametrize("verb,words", [("build", []), ("convert", []), ("build", ["--quantize", "q8_0"]), ("convert", ["--quantize", "int8"]),
                                        ("build", ["--tp_size", "2"])])
@pytest.mark.parametrize("dtype,values", [("float32", NAN), ("float16", INFINITY), ("bfloat16", NAN)])
def test_each_way_a_matrix_is_read(tmp_path, verb, words, dtype, values):
    model = make(tmp_path / "model", "llama", "--dtype", dtype)
    name = "model.layers.1.self_attn.k_proj.weight"
    refuses(model, name, plant(model, name, -7, values[dtype]), verb, *words)


@pytest.mark.parametrize("arch,name", [
    ("llama", "model.embed_tokens.weight"), ("llama", "model.norm.weight"),
    ("gpt2", "transformer.h.1.attn.c_attn.weight"),  # turned
    ("gpt2", "transformer.h.0.mlp.c_fc.bias"),
    ("mixtral", "model.layers.1.block_sparse_moe.experts.3.w2.weight"),
])
@pytest.mark.parametrize("number", [0, -1])
def test_each_kind_of_weight(tmp_path, arch, name, number):
    model = make(tmp_path / "model", arch)
    refuses(model, name, plant(model, name, number, NAN["float32"]), "build")


@pytest.mark.parametrize("quant,at", [("q8_0", 0), ("q4_1", 2), ("q6_k", 208)])
def test_the_scale_of_a_block(tmp_path, quant, at):
    file = make(tmp_path / "model.gguf", "llama", "--format", "gguf", "--quant", quant)
    tensor = next(t for t in gguf.GGUFReader(file).tensors if t.name == "blk.1.attn_k.weight")
    block, size = gguf.GGML_QUANT_SIZES[tensor.tensor_type]
    assert block > 1
    data = bytearray(file.read_bytes())
    place = int(tensor.data_offset) + 3 * size + at
    data[place:place + 2] = NAN["float16"]
    file.write_bytes(data)
    refuses(file, tensor.name, 3 * block, "build")
