# SPDX-License-Identifier: Apache-2.0
"""Llama as quantized checkpoints of TensorRT-LLM have it (tensorrt_llm.models.modeling_utils, ModelOpt's
export_tensorrt_llm_checkpoint): names, q, k and v in one, and the types of older files."""

import json
import os

import hf_folder
import numpy as np
import quantized

SINGLE = {"model.embed_tokens": "transformer.vocab_embedding", "model.norm": "transformer.ln_f", "lm_head": "lm_head"}
LAYER = {"input_layernorm": "input_layernorm", "post_attention_layernorm": "post_layernorm", "self_attn.o_proj": "attention.dense",
         "mlp.gate_proj": "mlp.fc", "mlp.up_proj": "mlp.gate", "mlp.down_proj": "mlp.proj"}
QKV = [f"self_attn.{x}_proj" for x in "qkv"]

# quant_algo, recipe of the weights, whether their bytes are kept as int8
RECIPES = {
    "fp8": ("FP8", "fp8-tensor", False),
    "fp8-bytes": ("FP8", "fp8-tensor", True),
    "fp8-rows": ("FP8_PER_CHANNEL_PER_TOKEN", "ct-fp8", False),
    "awq": ("W4A16_AWQ", "modelopt-awq", True),
    "awq-uint8": ("W4A16_AWQ", "modelopt-awq", False),
    "w4a8": ("W4A8_AWQ", "modelopt-w4a8", True),
    "awq-columns": ("W4A16_AWQ", "modelopt-awq-columns", True),
    "w4a8-columns": ("W4A8_AWQ", "modelopt-w4a8-columns", False),
    "nvfp4": ("NVFP4", "modelopt-nvfp4", False),
    "sq": ("W8A8_SQ_PER_CHANNEL", "gptq-8-row", False),
}


def parts(w, algo, as_bytes, whole):
    """A weight's tensors; `whole`: the rows of its own scale are not the product's only ones."""
    if isinstance(w, quantized.Scaled):
        return {**parts(w.w, algo, as_bytes, whole), "prequant_scaling_factor": w.scale.view("V4")}
    if isinstance(w, quantized.Fp4):
        return {"weight": w.packed, "weights_scaling_factor": w.scale_codes.view("V1"),
                "weights_scaling_factor_2": np.array([1 / w.factor], np.float32).view("V4"),
                "activation_scaling_factor": np.array([0.02], np.float32).view("V4")}
    if isinstance(w, quantized.Fp8):
        scales = w.spread[:, 0].astype(np.float32)
        name = "per_channel_scale" if algo == "FP8_PER_CHANNEL_PER_TOKEN" else "weights_scaling_factor"
        one = name == "weights_scaling_factor" and whole
        out = {"weight": w.codes.view(np.int8 if as_bytes else "V1"), name: (scales[:1] if one else scales).view("V4")}
        return {**out, "activation_scaling_factor": np.array([0.02], np.float32).view("V4")} if algo == "FP8" else out
    if algo == "W8A8_SQ_PER_CHANNEL":
        return {"weight": (w.codes - 128).astype(np.int8), "weights_scaling_factor": w.scales[:, 0].astype(np.float32).view("V4"),
                "activation_scaling_factor": np.array([0.02], np.float32).view("V4")}
    nibbles = ((w.codes - 8) & 15).astype(np.uint8)
    packed = nibbles[0::2] | nibbles[1::2] << 4
    out = {"weight": packed.view(np.int8) if as_bytes else packed, "weights_scaling_factor": w.scales}
    if algo == "W4A8_AWQ":
        out["weights_scaling_factor_2"] = np.array([0.03], np.float32).view("V4")
        out["activation_scaling_factor"] = np.array([0.02], np.float32).view("V4")
    return out


ONCE = ("prequant_scaling_factor", "weights_scaling_factor_2", "activation_scaling_factor")


def put(out, name, found):
    """One product of `found`, the tensors of those whose rows it has."""
    for part in found[0]:
        out[f"{name}.{part}"] = found[0][part] if part in ONCE else np.concatenate([f[part] for f in found])


def checkpoint(tensors, recipe):
    """(tensors, quantization of config.json) of Hugging Face's tensors of a Llama. q, k and v are quantized apart and then stand
    one below the other, NVFP4's as one, since they have one factor."""
    algo, kind, as_bytes = RECIPES[recipe]

    def of(name, whole=True):
        return parts(quantized.weight_of(name, tensors[name], quantized.RECIPES[kind]), algo, as_bytes, whole)

    out = {f"{new}.weight": tensors[f"{old}.weight"] for old, new in SINGLE.items() if f"{old}.weight" in tensors}
    layers = {int(name.split(".")[2]) for name in tensors if name.startswith("model.layers.")}
    for i in sorted(layers):
        for old, new in LAYER.items():
            name, place = f"model.layers.{i}.{old}.weight", f"transformer.layers.{i}.{new}"
            if tensors[name].ndim == 1:
                out[f"{place}.weight"] = tensors[name]
            else:
                put(out, place, [of(name)])
        qkv = [f"model.layers.{i}.{x}.weight" for x in QKV]
        if algo == "NVFP4":
            w = quantized.weight_of(qkv[0], np.concatenate([tensors[name] for name in qkv]), quantized.RECIPES[kind])
            put(out, f"transformer.layers.{i}.attention.qkv", [parts(w, algo, as_bytes, True)])
        else:
            put(out, f"transformer.layers.{i}.attention.qkv", [of(name, False) for name in qkv])
    return out, {"quant_algo": algo, "kv_cache_quant_algo": None, "group_size": 128, "has_zero_point": False,
                 "pre_quant_scale": kind.endswith("-columns"), "exclude_modules": ["lm_head"]}


def write(folder, config, tensors, quantization, dtype):
    os.makedirs(folder, exist_ok=True)
    hf_folder.write_safetensors(os.path.join(folder, "rank0.safetensors"), tensors, dtype)
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as f:
        json.dump({**config, "quantization": quantization}, f)
