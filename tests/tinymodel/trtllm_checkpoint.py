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
    "nvfp4-linear": ("NVFP4", "modelopt-nvfp4", True),
    "nvfp4-columns": ("NVFP4_AWQ", "modelopt-nvfp4-columns", False),
    "w4a16-nvfp4": ("W4A16_NVFP4", "modelopt-nvfp4", False),
    "w4a8-nvfp4": ("W4A8_NVFP4_FP8", "modelopt-w4a8-nvfp4", False),
    "w4a8-mxfp4": ("W4A8_MXFP4_FP8", "modelopt-w4a8-mxfp4", False),
    "mxfp4": ("mxfp4", "modelopt-w4a8-mxfp4", True),
    "mxfp8": ("MXFP8", "modelopt-mxfp8", False),
    "fp8-blocks": ("fp8_pb_wo", "fp8", False),
    "w8a16-rows": ("W8A16", "gptq-8-row", True),
    "qserve-group": ("W4A8_QSERVE_PER_GROUP", "qserve-group", False),
    "qserve-channel": ("W4A8_QSERVE_PER_CHANNEL", "qserve-channel", False),
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

INPUT, ACT = np.float32(32), np.float32(0.125)  # scales of static inputs and outputs


def plugin_parts(w, algo):
    """SmoothQuant's, but for the scale of its input."""
    if isinstance(w, quantized.Scaled):
        return {**plugin_parts(w.w, algo), "smoother": (1 / w.scale)[None].astype(np.float32).view("V4")}
    scales, more = w.scales[:, 0].astype(np.float32)[None], {}
    if algo.endswith("TENSOR_PLUGIN"):
        scales, more = scales / (INPUT * ACT), {"act_scale": ACT.reshape(1, 1).view("V4")}
    return {"weight": (w.codes - 128).astype(np.int8), "per_channel_scale": scales.view("V4"), **more}


def for_qserve(codes):
    """Codes [out, in] as TensorRT-LLM's qserve_pack_reorder_per_group leaves them: int8 [out, in / 2]."""
    rows, cols = codes.shape
    x = codes.astype(np.uint8).reshape(rows // 32, 2, 2, 8, cols // 32, 2, 4, 4)
    x = x.transpose(0, 4, 3, 6, 5, 2, 7, 1)  # of rows that are 16 apart the second half is the upper nibble
    return np.ascontiguousarray(x[..., 0] | x[..., 1] << 4).view(np.int8).reshape(rows, cols // 2)


def qserve_groups(x):
    """[out, groups] as [groups, out], the rows of each 32 in turn by eights."""
    return np.ascontiguousarray(x.T.reshape(x.shape[1], -1, 4, 8).swapaxes(2, 3).reshape(x.shape[1], -1).astype(np.int8))


class QServe:
    """A weight [out, in] by rows: scale * code - szero; or in int8 by rows, which are 4 bits by groups: s1 * (s2 * code - s2_zeros)."""

    def __init__(self, x, group):
        rows, cols = x.shape
        self.group = group
        if not group:
            w = quantized.Integers("", x, 4, -1, False)
            self.scales, self.szeros = w.scales[:, 0], (w.scales * w.zeros.astype(np.float16))[:, 0]
            step, zero = self.scales.astype(np.float32)[:, None], self.szeros.astype(np.float32)[:, None]
            self.codes = np.clip(np.rint((x + zero) / step), 0, 15).astype(np.int64)
            self.values = step * self.codes - zero
            return
        self.s1 = (np.abs(x).max(1) / 119).astype(np.float16)
        s1 = self.s1.astype(np.float32)[:, None]
        levels = np.rint(x / s1).reshape(rows, -1, group)
        low, high = np.minimum(levels.min(2), 0), np.maximum(levels.max(2), 0)
        self.s2 = np.maximum(np.ceil((high - low) / 15), 1)
        self.s2_zeros = np.clip(np.rint(-low / self.s2), 0, 15) * self.s2
        codes = np.clip(np.rint((levels + self.s2_zeros[:, :, None]) / self.s2[:, :, None]), 0, 15)
        self.values = s1 * (codes * self.s2[:, :, None] - self.s2_zeros[:, :, None]).reshape(rows, cols)
        self.codes = codes.reshape(rows, cols).astype(np.int64)

    def dequantized(self):
        return self.values.astype(np.float32)

    def of_halves(self):
        s1 = self.s1.astype(np.float32)[:, None]
        step, low = ((s1 * x).astype(np.float16).astype(np.float32)[:, :, None] for x in (self.s2, -self.s2_zeros))
        return (step * self.codes.reshape(*self.s2.shape, -1) + low).reshape(self.codes.shape).astype(np.float32)


def numbers_of(name, x, kind):
    if kind.startswith("qserve"):
        return QServe(x, min(128, x.shape[1]) if kind == "qserve-group" else 0)
    return quantized.weight_of(name, x, quantized.RECIPES[kind])


def qserve_parts(w):
    if w.group:
        return {"qserve": w.codes, "s1_scales": w.s1, "s2_scales": w.s2, "s2_zeros": -w.s2_zeros}
    return {"qserve": w.codes, "s1_scales": w.scales, "s1_szeros": w.szeros}


def fp4_parts(w, algo, as_bytes):
    packed = w.packed.view(np.int8) if as_bytes else w.packed
    if not w.is_nv:
        return {"weight": packed, "weights_scaling_factor": w.scale_codes}
    scales, factor = w.scale_codes.view("V1"), np.array([1 / w.factor], np.float32).view("V4")
    if as_bytes:  # what convert_checkpoint.py --use_nvfp4 leaves
        return {"weight": packed, "weights_block_scaling_factor": scales, "weights_block_scaling_factor_interleaved": scales[::-1].copy(),
                "weights_global_scaling_factor": factor, "activation_global_scaling_factor": np.array([0.02], np.float32).view("V4"),
                "alpha": np.array([0.01], np.float32).view("V4")}
    more = {} if algo == "W4A16_NVFP4" else {"activation_scaling_factor": np.array([0.02], np.float32).view("V4")}
    return {"weight": packed, "weights_scaling_factor": scales, "weights_scaling_factor_2": factor.reshape(()), **more}


def parts(w, algo, as_bytes, whole):
    """A weight's tensors; `whole`: the rows of its own scale are not the product's only ones."""
    if "QSERVE" in algo:
        return qserve_parts(w)
    if algo.endswith("_PLUGIN"):
        return plugin_parts(w, algo)
    if algo.endswith("_GPTQ"):
        zeros = (2 ** (w.bits - 1) - w.zeros.T) * w.scales.T.astype(np.float32)
        return {"codes": w.codes, "weights_scaling_factor": w.scales.T, "zero": zeros.astype(np.float16)}
    if algo in ("W8A16", "W4A16"):
        if as_bytes:
            return {"weight": (w.codes - 128).astype(np.int8), "weights_scaling_factor": w.scales[:, 0].astype(np.float32).view("V4")}
        return {"codes": w.codes, "per_channel_scale": w.scales[:, 0]}
    if isinstance(w, quantized.Scaled):
        return {**parts(w.w, algo, as_bytes, whole), "prequant_scaling_factor": w.scale.view("V4")}
    if isinstance(w, quantized.Fp4):
        return fp4_parts(w, algo, as_bytes)
    if isinstance(w, quantized.Fp8) and algo == "MXFP8":
        return {"weight": w.codes.view("V1"), "weights_scaling_factor": w.scale_codes}
    if isinstance(w, quantized.Fp8) and algo == "fp8_pb_wo":
        return {"weight": w.codes.view("V1"), "weights_scaling_factor": w.scales[:, None, :, None].view("V4")}
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


ONCE = ("prequant_scaling_factor", "weights_scaling_factor_2", "activation_scaling_factor", "act_scale", "smoother", "alpha",
        "weights_global_scaling_factor", "activation_global_scaling_factor")
# their q, k and v have one factor, and blocks of 128 rows do not end with them
AS_ONE = ("NVFP4", "NVFP4_AWQ", "W4A16_NVFP4", "W4A8_NVFP4_FP8", "fp8_pb_wo")


def put(out, name, found):
    """One product of `found`, the tensors of those whose rows it has."""
    for part in found[0]:
        of_plugin = part == "per_channel_scale" and found[0][part].shape[0] == 1
        axis = 1 if of_plugin or ("zero" in found[0] and part != "codes") else 0
        out[f"{name}.{part}"] = found[0][part] if part in ONCE else np.concatenate([f[part] for f in found], axis)


def checkpoint(tensors, recipe, order="tiles"):
    """(tensors, quantization of config.json) of Hugging Face's tensors of a Llama. q, k and v are quantized apart and then stand
    one below the other, those of AS_ONE as one."""
    algo, kind, as_bytes = RECIPES[recipe]

    def of(name, whole=True):
        return parts(numbers_of(name, tensors[name], kind), algo, as_bytes, whole)

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
        if algo in AS_ONE:
            w = numbers_of(qkv[0], np.concatenate([tensors[name] for name in qkv]), kind)
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
        packed = quantized.for_mixed_gemm(out.pop(name), 8 if algo.startswith("W8") else 4, order)
        out[name[:-len("codes")] + "weight"] = packed.view(np.float16) if algo.endswith("_GPTQ") else packed
    for name in list(out):
        if name.endswith(".qserve"):
            out[name[:-len("qserve")] + "weight"] = for_qserve(out.pop(name))
        elif name.endswith((".s2_scales", ".s2_zeros")):
            out[name] = qserve_groups(out[name])
    return out, {"quant_algo": algo, "kv_cache_quant_algo": None, "group_size": 128, "has_zero_point": algo.endswith("_GPTQ"),
                 "pre_quant_scale": kind.endswith("-columns"), "exclude_modules": ["lm_head"]}


def meant(tensors, recipe):
    """Hugging Face's tensors as the numbers of a recipe."""
    algo, kind, _ = RECIPES[recipe]
    out = {name: numbers_of(name, x, kind).dequantized() if quantized.is_linear(name, x) else x for name, x in tensors.items()}
    for stem in {name.rsplit(".", 2)[0] for name in tensors if name.endswith("q_proj.weight") and algo in AS_ONE}:
        three = [f"{stem}.{x}_proj.weight" for x in "qkv"]
        rows = numbers_of(three[0], np.concatenate([tensors[name] for name in three]), kind).dequantized()
        out.update(zip(three, np.split(rows, np.cumsum([len(tensors[name]) for name in three])[:-1])))
    return out


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
