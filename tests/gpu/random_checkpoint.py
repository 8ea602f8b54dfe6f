#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A Hugging Face folder of a Llama's shape with random bfloat16 weights, to time `nereid quantize`:
random_checkpoint.py CONFIG.json FOLDER [LAYERS]. Needs numpy. Numbers repeat after 64 million."""
import json
import os
import pathlib
import struct
import sys

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tinymodel"))
import tokenizer  # noqa: E402

POOL = 1 << 26


def shapes(c):
    """Names and shapes of all tensors, in order."""
    h, inter, n = c["hidden_size"], c["intermediate_size"], c["head_dim"]
    yield "model.embed_tokens.weight", (c["vocab_size"], h)
    for i in range(c["num_hidden_layers"]):
        at = f"model.layers.{i}."
        yield at + "input_layernorm.weight", (h,)
        yield at + "self_attn.q_proj.weight", (c["num_attention_heads"] * n, h)
        yield at + "self_attn.k_proj.weight", (c["num_key_value_heads"] * n, h)
        yield at + "self_attn.v_proj.weight", (c["num_key_value_heads"] * n, h)
        yield at + "self_attn.o_proj.weight", (h, c["num_attention_heads"] * n)
        yield at + "post_attention_layernorm.weight", (h,)
        yield at + "mlp.gate_proj.weight", (inter, h)
        yield at + "mlp.up_proj.weight", (inter, h)
        yield at + "mlp.down_proj.weight", (h, inter)
    yield "model.norm.weight", (h,)
    if not c.get("tie_word_embeddings"):
        yield "lm_head.weight", (c["vocab_size"], h)


def write(config, folder, n_layers):
    c = json.loads(pathlib.Path(config).read_text())
    c["num_hidden_layers"] = n_layers or c["num_hidden_layers"]
    os.makedirs(folder, exist_ok=True)
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, shape in shapes(c):
        size = 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    numbers = np.random.default_rng(1).standard_normal(POOL, dtype=np.float32) * 0.02
    pool = (numbers.view(np.uint32) >> 16).astype("<u2")
    with open(os.path.join(folder, "model.safetensors"), "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for name, shape in shapes(c):
            left = int(np.prod(shape))
            if name.endswith("norm.weight"):
                f.write(np.full(left, 0x3F80, "<u2").tobytes())
                continue
            while left > 0:
                f.write(pool[:min(left, POOL)].tobytes())
                left -= POOL
    for name, value in {"config.json": c, "tokenizer.json": tokenizer.tokenizer_json(c["vocab_size"], True),
                        "tokenizer_config.json": tokenizer.tokenizer_config(True)}.items():
        pathlib.Path(folder, name).write_text(json.dumps(value))


if __name__ == "__main__":
    write(sys.argv[1], sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 0)
