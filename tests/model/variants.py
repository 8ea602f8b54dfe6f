# SPDX-License-Identifier: Apache-2.0
"""Which models have goldens, and where to find or make them. Standard library (numpy to write).

A tiny variant: architecture, how it is stored, the prompts' lengths, alternatives kept per token,
and the tolerance on log probabilities at float32 arithmetic.
`golden` names another variant whose results must come out, because the weights are the same.
"""

import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "tinymodel"))
from more_families import FAMILIES  # noqa: E402

LENGTHS = [1, 7, 33, 130]
TOLERANCE = 2e-3
# 4-bit weights with zero points become Q4_1, whose m = -scale * zero is rounded to half precision (2^-11 of it); what the
# quantization itself changes is thirty times that.
HALF_MINS = {"tolerance": 2e-2}


# become plain numbers, which keep their values in float32 only
UNPACKED = ("gptq-4-order", "gptq-4-16", "fp8", "ct-nvfp4", "ct-mxfp8", "modelopt-nvfp4-columns", "modelopt-w4a8-nvfp4", "hqq-3-columns", "bnb-nf4", "bnb-nf4-double", "bnb-fp4")


def _tiny():
    def row(name, arch, form, **more):
        base = {"arch": arch, "format": form, "lengths": LENGTHS, "top": 8}
        return name, {**base, **more}

    for arch in ("gpt2", "llama", "llama3", "llama3-tied", "qwen2", "qwen3", "mistral", "gemma2",
                 "gemma2-hd", "gemma3", "gemma3-linear", "gemma"):
        yield row(arch, arch, "safetensors", dtype="float32", shards=1)
    # Within the model's own length, and in an engine for longer sequences. No continuation there:
    # with each token transformers would take another base for it, beside the keys of the others.
    dynamic = {"dtype": "float32", "shards": 1}
    yield row("llama-dynamic", "llama-dynamic", "safetensors", **dynamic, lengths=[1, 7, 30])
    yield row("llama-dynamic-long", "llama-dynamic", "safetensors", **dynamic, lengths=[150],
              n_greedy=0, build=["--max_seq_len", "150"])
    short = {"lengths": [7, 33], "top": 4}
    for arch, family in FAMILIES.items():
        if family.seed == arch and arch != "phi3-longrope":
            # transformers' cached steps of these do not go on with what their whole prompts give
            one = {"n_greedy": 0} if arch in ("bamba", "nemotron_h-moe") else {}
            yield row(arch, arch, "safetensors", **dynamic, **short, **one)
    # The long factors hold for all positions of an engine for long sequences, transformers takes the short ones
    # while a sequence is short.
    yield row("phi3-longrope", "phi3-longrope", "safetensors", **dynamic, lengths=[33], top=4)
    yield row("phi3-longrope-short", "phi3-longrope", "safetensors", **dynamic, lengths=[13], n_greedy=2, top=4,
              build=["--max_seq_len", "16"])
    for arch, dtype in (("gpt2", "float16"), ("llama3", "bfloat16"), ("qwen2", "bfloat16"),
                        ("gemma3", "bfloat16"), ("llama", "float16")):
        yield row(f"{arch}-{dtype}", arch, "safetensors", dtype=dtype, shards=2, **short)
    pairs = [("llama", q) for q in ("f16", "bf16", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q2_k",
                                    "q3_k", "q4_k", "q5_k", "q6_k", "iq4_nl", "iq4_xs")]
    pairs += [("gpt2", "q8_0"), ("llama3", "q5_1"), ("llama3-tied", "q4_0"), ("qwen2", "q4_1"),
              ("qwen3", "q5_0"), ("gemma2-hd", "q4_k"), ("gemma3", "q4_k"), ("gemma3", "q6_k"),
              ("gemma", "q4_k")]
    for arch, recipe in (("llama", "gptq-4"), ("llama", "gptq-4-asym"), ("llama", "gptq-3"), ("llama", "gptq-2"),
                         ("llama", "gptq-8"), ("llama", "gptq-8-row"), ("llama", "gptq-4-row"), ("llama", "gptq-4-order"), ("gpt2", "gptq-4-32"),
                         ("llama", "gptq-4-act"), ("gpt2", "gptq-4-act-asym"), ("qwen2", "gptq-8-act"),
                         ("llama", "gptq-4-16"), ("qwen2", "awq"), ("llama", "fp8"), ("llama", "fp8-tensor"),
                         ("llama", "ct-fp8"), ("llama", "ct-mxfp4"), ("llama", "ct-mxfp8"), ("llama", "modelopt-awq-columns"),
                         ("llama", "modelopt-w4a8-columns"), ("llama", "modelopt-nvfp4-columns"), ("llama", "modelopt-w4a8-nvfp4"), ("llama", "ct-nvfp4"), ("phi3", "ct-8-row"),
                         ("gpt_neox", "ct-fp8"), ("qwen3_moe", "ct-8-row"), ("deepseek_v3", "fp8"), ("llama", "hqq-4"), ("llama", "hqq-3-columns"),
                         ("llama", "hqq-8"), ("llama", "bitnet"), ("llama", "mlx-4"), ("llama", "mlx-8"), ("llama", "ct-8-asym"), ("llama", "ct-24-fp8"), ("llama", "ct-marlin-4"), ("llama", "torchao-int4"), ("llama", "bnb-nf4"), ("llama", "bnb-nf4-double"), ("llama", "bnb-fp4")):
        mins = HALF_MINS if recipe in ("gptq-4-asym", "gptq-4-32", "gptq-4-act-asym", "awq", "hqq-4", "bitnet", "mlx-4", "torchao-int4") else {}
        dtype = "float32" if recipe in UNPACKED else "float16"
        yield row(f"{arch}-{recipe}", arch, "safetensors", dtype=dtype, shards=1, quantized=recipe, **short, **mins)
    yield row("gpt_oss-32-mxfp4", "gpt_oss-32", "safetensors", dtype="float32", shards=2, quantized="mxfp4", **short)
    # several types in one layer: what most people download
    pairs += [("qwen2", "Q4_K_M"), ("llama", "Q4_K_M"), ("gpt2", "Q5_K_M"), ("gemma3", "Q4_K_S")]
    for arch, fmt in pairs:
        yield row(f"{arch}-gguf-{fmt}", arch, "gguf", quant=fmt, gguf_version=3, **short)


TINY = dict(_tiny())

# Llama as TensorRT-LLM's checkpoints have it, in numbers that no other folder has: recipe of trtllm_checkpoint.py
TRTLLM = {f"llama-trtllm-{recipe}": recipe for recipe in ("qserve-group", "qserve-channel", "nvfp4", "w4a8-nvfp4", "fp8-blocks")}

def _same_quantized(arch, golden, recipe, **more):
    return {f"{arch}-{recipe}": {"golden": f"{arch}-{golden}", "arch": arch, "format": "safetensors", "shards": 1, "dtype": "float16",
                                 "quantized": recipe, **more}}


# The same weights stored otherwise: no golden of their own.
SAME = {
    **_same_quantized("llama", "gptq-4", "gptq-4-v2", shards=3),
    **_same_quantized("llama", "gptq-2", "gptq-p-2"),
    **_same_quantized("llama", "gptq-3", "gptq-p-3"),
    **_same_quantized("llama", "gptq-4", "gptq-p-4"),
    **_same_quantized("llama", "gptq-8", "gptq-p-8"),
    **_same_quantized("llama", "gptq-4-asym", "awq", **HALF_MINS),
    **_same_quantized("llama", "gptq-4-asym", "awq-gemv", **HALF_MINS),
    **_same_quantized("llama", "gptq-4", "auto-round"),
    **_same_quantized("llama", "gptq-4-asym", "auto-round-asym", **HALF_MINS),
    **_same_quantized("llama", "gptq-4-asym", "auto-round-awq", **HALF_MINS),
    **_same_quantized("llama", "ct-mxfp4", "auto-round-mxfp4"),
    **_same_quantized("llama", "ct-fp8", "fbgemm"),
    **_same_quantized("llama", "ct-mxfp4", "mlx-mxfp4"),
    **_same_quantized("llama", "ct-mxfp8", "mlx-mxfp8", dtype="float32"),
    **_same_quantized("llama", "ct-mxfp8", "mxfp8", dtype="float32"),
    **_same_quantized("llama", "gptq-4", "quark-int4"),
    **_same_quantized("llama", "gptq-4-asym", "quark-uint4", **HALF_MINS),
    **_same_quantized("llama", "gptq-8-row", "quark-int8"),
    **_same_quantized("llama", "fp8-tensor", "quark-fp8"),
    **_same_quantized("llama", "fp8", "quark-fp8-blocks", dtype="float32"),
    **_same_quantized("llama", "ct-mxfp4", "quark-mxfp4"),
    **_same_quantized("llama", "gptq-8-row", "torchao-int8"),
    **_same_quantized("llama", "ct-fp8", "torchao-fp8"),
    **_same_quantized("llama", "gptq-4-asym", "torchao-intx", **HALF_MINS),
    **_same_quantized("llama", "gptq-4-asym", "torchao-floats", **HALF_MINS),
    **_same_quantized("llama", "bitnet", "bitnet-auto", **HALF_MINS),
    **_same_quantized("llama", "gptq-4", "ct-4"),
    **_same_quantized("llama", "gptq-4-asym", "ct-4-asym", **HALF_MINS),
    **_same_quantized("llama", "gptq-4-order", "ct-4-order", dtype="float32"),
    **_same_quantized("llama", "gptq-4-act", "ct-4-act"),
    **_same_quantized("llama", "gptq-8", "ct-8"),
    **_same_quantized("llama", "gptq-8-row", "ct-8-row"),
    **_same_quantized("llama", "fp8-tensor", "ct-fp8-tensor"),
    **_same_quantized("llama", "ct-nvfp4", "modelopt-nvfp4", dtype="float32"),
    **_same_quantized("llama", "fp8-tensor", "modelopt-fp8"),
    **_same_quantized("llama", "ct-mxfp8", "modelopt-mxfp8", dtype="float32"),
    **_same_quantized("llama", "ct-mxfp4", "modelopt-w4a8-mxfp4"),
    **_same_quantized("llama", "fp8", "modelopt-fp8-blocks", dtype="float32"),
    **_same_quantized("llama", "fp8", "modelopt-fp8-real", dtype="float32"),
    **_same_quantized("llama", "gptq-8-row", "modelopt-w8a16"),
    **_same_quantized("llama", "gptq-8-row", "modelopt-w8a8"),
    **_same_quantized("llama", "gptq-4", "modelopt-w4a8"),
    **_same_quantized("llama", "gptq-4", "modelopt-awq"),
    **_same_quantized("llama", "gptq-8-row", "bnb-int8"),
    **_same_quantized("llama", "gptq-8-row", "eetq"),
    **_same_quantized("llama", "hqq-4", "hqq-4-float", **HALF_MINS),
    "gpt_oss-32-gguf-mxfp4": {"golden": "gpt_oss-32-mxfp4", "arch": "gpt_oss-32", "format": "gguf", "quant": "mxfp4",
                              "gguf_version": 3},
    **{arch: {"golden": family.seed, "arch": arch, "format": "safetensors", "dtype": "float32", "shards": 1}
       for arch, family in FAMILIES.items() if family.seed != arch},
    **{f"{arch}-gguf-f32": {"golden": family.seed, "arch": arch, "format": "gguf", "quant": "f32", "gguf_version": 3}
       for arch, family in FAMILIES.items() if family.gguf_arch},
    "gpt2-plain": {"golden": "gpt2", "arch": "gpt2-plain", "format": "safetensors",
                   "dtype": "float32", "shards": 1},
    "gpt2-plain-bin": {"golden": "gpt2", "arch": "gpt2-plain", "format": "bin",
                       "dtype": "float32", "shards": 1},
    "llama-bin": {"golden": "llama", "arch": "llama", "format": "bin", "dtype": "float32",
                  "shards": 1},
    "llama3-tied-bin": {"golden": "llama3-tied", "arch": "llama3-tied", "format": "bin",
                        "dtype": "float32", "shards": 2},
    "gemma3-bin-bfloat16": {"golden": "gemma3-bfloat16", "arch": "gemma3", "format": "bin",
                            "dtype": "bfloat16", "shards": 3},
    "gpt2-bin-float16": {"golden": "gpt2-float16", "arch": "gpt2", "format": "bin",
                         "dtype": "float16", "shards": 1},
    "qwen3-sharded": {"golden": "qwen3", "arch": "qwen3", "format": "safetensors",
                      "dtype": "float32", "shards": 3},
    "llama-gguf-v2-q4_0": {"golden": "llama-gguf-q4_0", "arch": "llama", "format": "gguf",
                           "quant": "q4_0", "gguf_version": 2},
    **{
        f"{arch}-gguf-f32": {"golden": arch, "arch": arch, "format": "gguf", "quant": "f32",
                             "gguf_version": 3}
        for arch in ("gpt2", "llama", "llama3", "llama3-tied", "qwen2", "qwen3", "gemma2-hd",
                     "gemma3", "gemma")
    },
}

REAL = {
    "smollm2": {"file": "SmolLM2-135M-Instruct.Q4_1.gguf",
                "sha256": "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"},
    "gemma3-270m": {"file": "gemma-3-270m-q4_k_m.gguf",
                    "sha256": "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"},
}


def real_path(name):
    """Where scripts/fetch_model puts the file, or None if it is not there."""
    home = os.environ.get("NEREID_CACHE") or os.path.join(os.path.expanduser("~"), ".cache/nereid")
    path = os.path.join(home, "models", REAL[name]["file"])
    return path if os.path.exists(path) else None


def variant(name):
    return TINY.get(name) or SAME[name]


def golden_of(name):
    return SAME[name]["golden"] if name in SAME else name


def write_tiny(name, folder):
    """Writes the model of a variant below `folder`; the path to give to a program."""
    import make_model

    v = variant(name)
    if v["format"] == "gguf":
        path = os.path.join(folder, f"{name}.gguf")
        make_model.write_gguf(v["arch"], path, v["quant"], v["gguf_version"])
    else:
        path = os.path.join(folder, name)
        make_model.write_folder(v["arch"], path, v["dtype"], v["format"], v["shards"], v.get("quantized"))
    return path
