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
    "w8a16": ("W8A16", "gptq-8-row", False),
    "w4a16": ("W4A16", "gptq-4-row", False),
    "gptq": ("W4A16_GPTQ", "gptq-4", False),
    "gptq-zeros": ("W4A16_GPTQ", "gptq-4-asym", False),
    "gptq-8": ("W8A16_GPTQ", "gptq-8", False),
    "sq-channel-token": ("W8A8_SQ_PER_CHANNEL_PER_TOKEN_PLUGIN", "gptq-8-row", False),
    "sq-channel-tensor": ("W8A8_SQ_PER_CHANNEL_PER_TENSOR_PLUGIN", "gptq-8-row", False),
    "sq-smoother": ("W8A8_SQ_PER_CHANNEL_PER_TOKEN_PLUGIN", "gptq-8-row-columns", False),
}

# columns of a group, as loads of a product on GPUs take them
PERMUTED = {8: [0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15],
            4: [0, 1, 8, 9, 16, 17, 24, 25, 2, 3, 10, 11, 18, 19, 26, 27, 4, 5, 12, 13, 20, 21, 28, 29, 6, 7, 14, 15, 22, 23, 30, 31]}


def for_mixed_gemm(codes, bits, order):
    """Codes [out, in] plus half their range as TensorRT-LLM's preprocess_weights_for_mixed_gemm leaves them, step by step as that
    does it: int8 [in, out] or [in, out / 2]. order: that of a GPU before Hopper ("tiles"), of newer versions on Hopper ("columns"),
    of others ("plain")."""
    rows, cols = codes.shape
    x = codes.T.copy()  # [in, out]
    if order != "plain":
        group = PERMUTED[bits]
        x = x.reshape(-1, len(group), rows)[:, group].reshape(cols, rows)
    x = x.T  # each output's numbers behind each other
    if order == "tiles":
        turns = 16 // bits
        x = x.reshape(rows // turns, turns, cols // 64, 64).transpose(0, 2, 1, 3)
    x = x.reshape(-1)
    if order == "plain":
        x = x ^ (1 << (bits - 1))  # signed
    elif bits == 8:
        x = x.reshape(-1, 4)[:, [0, 2, 1, 3]].reshape(-1)
    else:
        x = x.reshape(-1, 8)[:, [0, 2, 4, 6, 1, 3, 5, 7]].reshape(-1)
    x = x.astype(np.uint8)
    x = x if bits == 8 else x[0::2] | x[1::2] << 4
    return x.view(np.int8).reshape(cols, -1)


INPUT, ACT = np.float32(32), np.float32(0.125)  # scales of static inputs and outputs


def plugin_parts(w, algo):
    """SmoothQuant's, but for the scale of its input."""
    if isinstance(w, quantized.Scaled):
        return {**plugin_parts(w.w, algo), "smoother": (1 / w.scale)[None].astype(np.float32).view("V4")}
    scales, more = w.scales[:, 0].astype(np.float32)[None], {}
    if algo.endswith("TENSOR_PLUGIN"):
        scales, more = scales / (INPUT * ACT), {"act_scale": ACT.reshape(1, 1).view("V4")}
    return {"weight": (w.codes - 128).astype(np.int8), "per_channel_scale": scales.view("V4"), **more}


def parts(w, algo, as_bytes, whole):
    """A weight's tensors; `whole`: the rows of its own scale are not the product's only ones."""
    if algo.endswith("_PLUGIN"):
        return plugin_parts(w, algo)
    if algo.endswith("_GPTQ"):
        zeros = (2 ** (w.bits - 1) - w.zeros.T) * w.scales.T.astype(np.float32)
        return {"codes": w.codes, "weights_scaling_factor": w.scales.T, "zero": zeros.astype(np.float16)}
    if algo in ("W8A16", "W4A16"):
        return {"codes": w.codes, "per_channel_scale": w.scales[:, 0]}
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


ONCE = ("prequant_scaling_factor", "weights_scaling_factor_2", "activation_scaling_factor", "act_scale", "smoother")


def put(out, name, found):
    """One product of `found`, the tensors of those whose rows it has."""
    for part in found[0]:
        of_plugin = found[0][part].shape[0] == 1 and part == "per_channel_scale"
        axis = 1 if of_plugin or ("zero" in found[0] and part != "codes") else 0
        out[f"{name}.{part}"] = found[0][part] if part in ONCE else np.concatenate([f[part] for f in found], axis)


def checkpoint(tensors, recipe, order="tiles"):
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
        if algo.endswith("_PLUGIN"):
            layer = f"transformer.layers.{i}"
            value = (INPUT if algo.endswith("TENSOR_PLUGIN") else np.float32(1)).reshape(1).view("V4")
            for name in ("input_layernorm.scale_to_int", "post_layernorm.scale_to_int"):
                out[f"{layer}.{name}"] = value
            if algo.endswith("TENSOR_PLUGIN"):
                for name in ("attention.quantization_scaling_factor", "mlp.quantization_scaling_factor"):
                    out[f"{layer}.{name}"] = value
    for name in [name for name in out if name.endswith(".codes")]:
        packed = for_mixed_gemm(out.pop(name), 8 if algo.startswith("W8") else 4, order)
        out[name[:-len("codes")] + "weight"] = packed.view(np.float16) if algo.endswith("_GPTQ") else packed
    return out, {"quant_algo": algo, "kv_cache_quant_algo": None, "group_size": 128, "has_zero_point": algo.endswith("_GPTQ"),
                 "pre_quant_scale": kind.endswith("-columns"), "exclude_modules": ["lm_head"]}


MIXED = {"attention.qkv": "fp8-bytes", "attention.dense": "sq", "mlp.fc": "awq", "mlp.gate": "awq", "mlp.proj": "w4a8-columns"}


def mixed(tensors, of=MIXED.get):
    """A recipe for each product (of(name in a layer), None: fp8), as AutoQuantize of ModelOpt chooses them."""
    made, out, layers = {}, {}, {}
    for recipe in {of(stem) for stem in MIXED}:
        made[recipe] = checkpoint(tensors, recipe)
    for name in made[next(iter(made))][0]:
        if not any(f".{stem}." in name for stem in MIXED):
            out[name] = made[next(iter(made))][0][name]
    for stem in MIXED:
        found, quantization = made[of(stem)]
        for name, x in found.items():
            if f".{stem}." in name:
                out[name] = x
                layers[name.rsplit(".", 1)[0]] = {"quant_algo": quantization["quant_algo"], "group_size": 128, "has_zero_point": False}
    return out, {"quant_algo": "MIXED_PRECISION", "kv_cache_quant_algo": None, "layers": layers}


def write(folder, config, tensors, quantization, dtype):
    os.makedirs(folder, exist_ok=True)
    quantization, layers = dict(quantization), quantization.get("layers")
    if quantization.pop("layers", None) is not None:
        with open(os.path.join(folder, "quant_cfg.json"), "w", encoding="utf-8") as f:
            json.dump({"quant_algo": "MIXED_PRECISION", "kv_cache_quant_algo": None, "quantized_layers": layers}, f)
    hf_folder.write_safetensors(os.path.join(folder, "rank0.safetensors"), tensors, dtype)
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as f:
        json.dump({**config, "quantization": quantization}, f)
