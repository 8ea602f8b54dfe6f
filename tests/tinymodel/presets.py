# SPDX-License-Identifier: Apache-2.0
"""Which type each matrix gets in the files that people download: the mixes of llama.cpp's quantizer.

A preset names one type for most matrices; a few that matter more (attn_v, ffn_down of some layers,
the output) get a better one, and matrices whose rows are no multiple of 256 get a type with blocks
of 32. So one layer holds two or three types, and another layer others.
Source: the rules of llama.cpp's src/llama-quant.cpp, without an importance matrix.
"""

import re

import quant

BASE = {
    "Q4_0": "q4_0", "Q4_1": "q4_1", "Q5_0": "q5_0", "Q5_1": "q5_1", "Q8_0": "q8_0",
    "Q2_K": "q2_k", "Q3_K_S": "q3_k", "Q3_K_M": "q3_k", "Q3_K_L": "q3_k", "Q4_K_S": "q4_k",
    "Q4_K_M": "q4_k", "Q5_K_S": "q5_k", "Q5_K_M": "q5_k", "Q6_K": "q6_k", "BF16": "bf16",
    "IQ4_NL": "iq4_nl", "IQ4_XS": "iq4_xs",
}
SMALLER_BLOCKS = {"q2_k": "iq4_nl", "q3_k": "iq4_nl", "iq4_xs": "iq4_nl", "q4_k": "q5_0",
                  "q5_k": "q5_1", "q6_k": "q8_0"}


def _more_bits(layer, n_layers):
    return layer < n_layers // 8 or layer >= 7 * n_layers // 8 or (layer - n_layers // 8) % 3 == 2


def _attn_v(preset, layer, n_layers, n_gqa):
    if preset == "Q2_K":
        return "q4_k" if n_gqa >= 4 else "q3_k"
    if preset == "Q3_K_M":
        return "q5_k" if layer < 2 else "q4_k"
    if preset == "Q3_K_L" or (preset == "Q4_K_S" and layer < 4):
        return "q5_k"
    if preset in ("Q4_K_M", "Q5_K_M") and _more_bits(layer, n_layers):
        return "q6_k"
    if preset in ("IQ4_NL", "IQ4_XS") and n_gqa >= 4:
        return "q5_k"
    return None


def _ffn_down(preset, layer, n_layers):
    if preset == "Q2_K":
        return "q3_k"
    if preset == "Q3_K_M":
        return "q5_k" if layer < n_layers // 16 else "q4_k"
    if preset == "Q3_K_L" or (preset in ("Q4_K_S", "IQ4_NL", "IQ4_XS") and layer < n_layers // 8):
        return "q5_k"
    if preset in ("Q4_K_M", "Q5_K_M") and _more_bits(layer, n_layers):
        return "q6_k"
    return None


_ATTN_OUTPUT = {"Q2_K": "q3_k", "Q3_K_M": "q4_k", "Q3_K_L": "q5_k"}
_ATTN_QKV = {"Q3_K_M": "q4_k", "Q3_K_L": "q4_k", "Q4_K_M": "q5_k", "Q5_K_M": "q6_k"}


def _wanted(preset, name, cols, n_layers, n_gqa, tied):
    base = BASE[preset]
    if name == ("token_embd.weight" if tied else "output.weight"):
        if base == "bf16":
            return base
        return "q8_0" if cols % 256 or base == "q8_0" else "q6_k"
    block = re.match(r"blk\.(\d+)\.(\w+)\.weight", name)
    if not block:
        return base
    layer, kind = int(block[1]), block[2]
    better = {
        "attn_v": lambda: _attn_v(preset, layer, n_layers, n_gqa),
        "ffn_down": lambda: _ffn_down(preset, layer, n_layers),
        "attn_output": lambda: _ATTN_OUTPUT.get(preset),
        "attn_qkv": lambda: _ATTN_QKV.get(preset),
    }
    return better.get(kind, lambda: None)() or base


def types(preset, spec):
    """type_of(name, shape) for gguf_file.to_gguf."""
    c = spec.config
    heads = c.get("num_attention_heads", 1)
    n_gqa = heads // c.get("num_key_value_heads", heads)
    tied = c.get("tie_word_embeddings", c["model_type"] == "gpt2")

    def type_of(name, shape):
        n_layers = c.get("num_hidden_layers", c.get("n_layer"))
        chosen = _wanted(preset, name, shape[-1], n_layers, n_gqa, tied)
        if shape[-1] % quant.FORMATS[chosen].block:
            chosen = SMALLER_BLOCKS.get(chosen, "f16")
        return chosen if shape[-1] % quant.FORMATS[chosen].block == 0 else "f16"

    return type_of
