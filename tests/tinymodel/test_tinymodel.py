# SPDX-License-Identifier: Apache-2.0
"""The tiny models are the same bits everywhere, and the block formats mean what they should."""

import hashlib
import os
import struct
import sys

import numpy as np
import pytest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import gguf_file  # noqa: E402
import hf_folder  # noqa: E402
import make_model  # noqa: E402
import quant  # noqa: E402
import weights  # noqa: E402
from more_families import FAMILIES  # noqa: E402
from specs import SPECS  # noqa: E402

# Goldens hold only for these bits. A change here means: make them all again.
SUMS = {
    ("llama", "safetensors", "float32"): "ad4ee8b5dc86c456",
    ("gemma3", "safetensors", "bfloat16"): "16fb0edc7b31e0fe",
    ("gpt2-plain", "bin", "float16"): "fa7ddcf9b197f434",
    ("llama", "gguf", "q4_k"): "e943f9c2b070ce17",
    ("qwen3", "gguf", "q3_k"): "0db4e4f771af507a",
}


def sum_of(arch, form, kind, folder):
    path = os.path.join(folder, "m.gguf")
    if form == "gguf":
        make_model.write_gguf(arch, path, kind)
    else:
        make_model.write_folder(arch, folder, kind, form)
        path = os.path.join(
            folder, "model.safetensors" if form == "safetensors" else "pytorch_model.bin")
    with open(path, "rb") as f:
        return hashlib.sha256(f.read()).hexdigest()[:16]


@pytest.mark.parametrize("case", list(SUMS), ids="-".join)
def test_a_model_is_the_same_bits_every_time(case, tmp_path):
    assert sum_of(*case, str(tmp_path)) == SUMS[case]


def test_the_counter_gives_the_published_splitmix64_values():
    # First outputs for seed 1234567, from the reference program by S. Vigna.
    assert list(weights.splitmix64(1234567, 3)) == [
        6457827717110365317, 3203168211198807973, 9817491932198370423]


def half(x):
    return struct.pack("<e", x)


def read(fmt, raw):
    return quant.dequantize(np.frombuffer(raw, np.uint8), fmt)


def test_hand_made_blocks_of_32_read_as_defined():
    low_first = bytes([0xF0 | 1] + [0x88] * 15)
    x = read("q4_0", half(0.5) + low_first)
    assert x[0] == -3.5 and x[16] == 3.5 and not x[1:16].any() and not x[17:].any()
    x = read("q4_1", half(0.5) + half(-2) + low_first)
    assert x[0] == -1.5 and x[16] == 5.5 and x[1] == 2
    # fifth bits: value 0 has it, value 16 has not, value 31 has
    fifth = struct.pack("<I", 1 | (1 << 31))
    x = read("q5_0", half(2) + fifth + low_first)
    assert x[0] == 2 and x[16] == -2 and x[1] == -16 and x[31] == 16
    x = read("q5_1", half(2) + half(1) + fifth + low_first)
    assert x[0] == 35 and x[16] == 31 and x[31] == 49
    x = read("q8_0", half(0.25) + bytes([0x80, 0x7F] + [0] * 30))
    assert x[0] == -32 and x[1] == 31.75 and not x[2:].any()


def test_hand_made_blocks_of_256_read_as_defined():
    scales = bytes([0x21] + [0] * 7 + [0x43] + [0] * 7)  # group 0: 1, minimum 2; group 8: 3 and 4
    x = read("q2_k", scales + bytes([0b11100100] * 64) + half(1) + half(0.5))
    assert x[0] == 0 - 1 and x[16] == 0 and x[128] == 0 - 2 and x[255] == 0
    # group 0 has scale 33 - 32; its third bits are set for value 0 only
    scales = bytes([1] + [0] * 7 + [2] + [0] * 3)
    x = read("q3_k", bytes([1] + [0] * 31) + bytes([3] * 64) + scales + half(2))
    assert x[0] == 6 and x[1] == -2 and x[16] == 64
    # group 0: scale 63, minimum 1; group 4: scale 0x2F (low nibble 15, high bits 2)
    scales = bytes([63 | 0x80, 0, 0, 0, 1, 0, 0, 0, 15, 0, 0, 0])
    x = read("q4_k", half(1) + half(1) + scales + bytes([0xA3] * 128))
    assert x[0] == 63 * 3 - 1 and x[32] == 0 and x[128] == 0x2F * 3
    x = read("q5_k", half(1) + half(1) + scales + bytes([0b10001] * 32) + bytes([0xA3] * 128))
    assert x[0] == 63 * 19 - 1 and x[128] == 0x2F * 19
    x = read("q6_k", bytes([0x21] * 128) + bytes([0b11_10_01_00] * 64)
             + bytes([1, 0, 2, 0, 255] + [0] * 11) + half(1))
    assert x[0] == 1 - 32 and x[32] == 2 * (17 - 32) and x[64] == -(34 - 32)


def test_hand_made_blocks_of_named_values_read_as_defined():
    x = read("iq4_nl", half(0.5) + bytes([0xF0 | 1] + [0x88] * 15))
    assert x[0] == -52 and x[16] == 56.5 and x[1] == 0.5
    # group 0: scale 33 - 32, group 5: (15 | 3 << 4) - 32
    head = half(2) + struct.pack("<H", 2 | 3 << 10) + bytes([1, 0, 0xF0, 0])
    x = read("iq4_xs", head + bytes([0xF8] * 128))
    assert x[0] == 2 and x[16] == 226 and x[32] == -64 and x[160] == 62 and x[176] == 62 * 113


@pytest.mark.parametrize("fmt", list(quant.FORMATS))
def test_quantizing_keeps_values_within_a_step(fmt):
    x = weights.normal("quant", (8, 512), 0.1, 0.0)
    got = quant.dequantize(quant.quantize(x, fmt), fmt)
    # the steps of IQ4 (24 of 240) and MXFP4 (2 of 6) are widest at their ends: as those of 3 bits
    bits = {"f32": 24, "f16": 11, "bf16": 8, "iq4_nl": 3, "iq4_xs": 3, "mxfp4": 3}.get(fmt) or int(fmt[1])
    assert np.abs(got - x).max() <= 1.1 * np.abs(x).max() / (1 << (bits - 1))
    assert not quant.dequantize(quant.quantize(np.zeros((1, 256), np.float32), fmt), fmt).any()


@pytest.mark.parametrize("arch", [a for a, s in SPECS.items() if s.gguf_arch and a not in FAMILIES])
def test_a_gguf_file_turns_back_into_the_same_weights(arch, tmp_path):
    path = str(tmp_path / "m.gguf")
    make_model.write_gguf(arch, path)
    got, want = gguf_file.from_gguf(gguf_file.File(path)), weights.build(SPECS[arch])
    assert set(got) == set(want)
    for name, x in want.items():
        # gemma's norms went through 1 + w
        assert np.abs(got[name] - x).max() <= 2.4e-7, name


@pytest.mark.parametrize("n", [1, 2, 5])
def test_shards_hold_every_tensor_once(n):
    tensors = weights.build(SPECS["llama3-tied"])
    names = [name for part in hf_folder.split(tensors, n) for name in part]
    assert names == list(tensors)
