# SPDX-License-Identifier: Apache-2.0
"""LoRA adapters for the tiny models: folders as PEFT writes them, the same bits on every machine.

An adapter's matrices are large enough to change every token: A has deviation 1 / sqrt(in), B one that makes
scale * B A about a third of the base weight. With use_dora the rows of W + scale * B A get lengths that are not theirs.
"""

import json
import math
import os
import re

import hf_folder
import weights
from specs import SPECS

ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
ALL = [*ATTENTION, "gate_proj", "up_proj", "down_proj"]
GPT2 = ["c_attn", "c_proj", "c_fc"]

# name: architecture, and what differs from PEFT's defaults
ADAPTERS = {
    "llama": {"arch": "llama", "r": 4, "lora_alpha": 8, "target_modules": ALL},
    "llama-q": {"arch": "llama", "r": 16, "lora_alpha": 16, "target_modules": ["q_proj", "v_proj"],
                "use_rslora": True},
    "llama-patterns": {"arch": "llama", "r": 3, "lora_alpha": 5, "target_modules": ALL,
                       "rank_pattern": {"layers.0.self_attn.q_proj": 8, "^model.layers.1.mlp.down_proj": 1},
                       "alpha_pattern": {"mlp.(gate|up)_proj": 7, r"model\.layers\.\d+\.self_attn\.o_proj": 2}},
    "qwen2": {"arch": "qwen2", "r": 8, "lora_alpha": 16, "target_modules": r".*\.(q_proj|k_proj|o_proj|up_proj)"},
    "gemma3": {"arch": "gemma3", "r": 6, "lora_alpha": 12, "target_modules": "all-linear"},
    "mixtral": {"arch": "mixtral", "r": 4, "lora_alpha": 12, "target_modules": ATTENTION},
    "gemma4": {"arch": "gemma4", "r": 4, "lora_alpha": 12, "target_modules": ALL},
    "gemma4-dense": {"arch": "gemma4-dense", "r": 5, "lora_alpha": 10, "target_modules": ALL},
    "gpt2": {"arch": "gpt2", "r": 5, "lora_alpha": 10, "target_modules": GPT2, "fan_in_fan_out": True},
    "llama-dora": {"arch": "llama", "r": 4, "lora_alpha": 8, "target_modules": ALL, "use_dora": True},
    "qwen2-dora": {"arch": "qwen2", "r": 3, "lora_alpha": 6, "target_modules": ALL, "use_dora": True},
    "gpt2-dora": {"arch": "gpt2", "r": 5, "lora_alpha": 10, "target_modules": GPT2, "fan_in_fan_out": True, "use_dora": True},
    "gemma4-dense-dora": {"arch": "gemma4-dense", "r": 5, "lora_alpha": 10, "target_modules": ATTENTION, "use_dora": True},
}


def linear_modules(arch):
    """(module, inputs, outputs) of every linear module of a layer, with the names of the model class."""
    spec = SPECS[arch]
    turned = spec.config["model_type"] == "gpt2"
    for name, shape, *_ in spec.tensors():
        if name.endswith(".weight") and len(shape) == 2 and re.search(r"\.(h|layers)\.\d+\.", name):
            n_in, n_out = shape if turned else shape[::-1]
            yield name.removesuffix(".weight"), n_in, n_out


def is_target(module, target):
    if isinstance(target, str):
        return target == "all-linear" or re.fullmatch(target, module) is not None
    return any(module == t or module.endswith("." + t) for t in target)


def by_pattern(patterns, module, otherwise):
    for pattern, value in patterns.items():
        if re.match(rf"(.*\.)?({pattern})$", module) or re.fullmatch(pattern, module):
            return value
    return otherwise


def pairs_of(name, seed="", **changes):
    """{module: (A, B, scale)} of an adapter; another seed makes other values."""
    a = {**ADAPTERS[name], **changes}
    out = {}
    for module, n_in, n_out in linear_modules(a["arch"]):
        if not is_target(module, a["target_modules"]):
            continue
        r = by_pattern(a.get("rank_pattern", {}), module, a["r"])
        alpha = by_pattern(a.get("alpha_pattern", {}), module, a["lora_alpha"])
        scale = alpha / (math.sqrt(r) if a.get("use_rslora") else r)
        key = f"lora/{name}{seed}/{module}"
        down = weights.normal(key + "/A", (r, n_in), 1 / math.sqrt(n_in), 0.0)
        up = weights.normal(key + "/B", (n_out, r), 0.35 / math.sqrt(r) / scale, 0.0)
        out[module] = (down, up, scale)
    return out


def changed_rows(name, seed="", **changes):
    """{module: W + scale * B A [outputs, inputs]} of the modules that an adapter changes, in float64."""
    arch = ADAPTERS[name]["arch"]
    tensors, turned = weights.build(SPECS[arch]), SPECS[arch].config["model_type"] == "gpt2"
    for module, (down, up, scale) in pairs_of(name, seed, **changes).items():
        base = tensors[f"{module}.weight"].astype("float64")
        yield module, (base.T if turned else base) + (up.astype("float64") @ down.astype("float64")) * scale


def magnitudes_of(name, seed="", **changes):
    """{module: lengths that its rows get}, some of them negative; nothing for a plain LoRA."""
    if not {**ADAPTERS[name], **changes}.get("use_dora"):
        return {}
    return {module: ((rows * rows).sum(1) ** 0.5 *
                     weights.normal(f"lora/{name}{seed}/{module}/m", (rows.shape[0],), 0.4, 1.0)).astype("float32")
            for module, rows in changed_rows(name, seed, **changes)}


def write(name, out, dtype="float32", form="safetensors", seed="", config=None, extra=None, **changes):
    """A PEFT folder. config, extra: further keys of adapter_config.json, further tensors."""
    a = {**ADAPTERS[name], **changes}
    os.makedirs(out, exist_ok=True)
    tensors = {}
    for module, (down, up, _) in pairs_of(name, seed, **changes).items():
        tensors[f"base_model.model.{module}.lora_A.weight"] = down
        tensors[f"base_model.model.{module}.lora_B.weight"] = up
    for module, m in magnitudes_of(name, seed, **changes).items():
        tensors[f"base_model.model.{module}.lora_magnitude_vector"] = m
    tensors.update(extra or {})
    if form == "bin":
        hf_folder.write_bin(os.path.join(out, "adapter_model.bin"), tensors, dtype)
    else:
        hf_folder.write_safetensors(os.path.join(out, "adapter_model.safetensors"), tensors, dtype)
    keys = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": a["arch"], "bias": "none",
            "fan_in_fan_out": False, "inference_mode": True, "init_lora_weights": True, "lora_dropout": 0.0,
            "modules_to_save": None, "use_dora": False, "use_rslora": False, "rank_pattern": {}, "alpha_pattern": {}}
    keys.update({k: v for k, v in a.items() if k != "arch"})
    keys.update(config or {})
    with open(os.path.join(out, "adapter_config.json"), "w", encoding="utf-8") as f:
        json.dump(keys, f, indent=1)
    return str(out)


def merged(name, seed="", **changes):
    """The base model's tensors with the adapter in them."""
    arch = ADAPTERS[name]["arch"]
    tensors, lengths = weights.build(SPECS[arch]), magnitudes_of(name, seed, **changes)
    turned = SPECS[arch].config["model_type"] == "gpt2"
    for module, rows in changed_rows(name, seed, **changes):
        if module in lengths:
            rows = rows * (lengths[module] / (rows * rows).sum(1) ** 0.5)[:, None]
        tensors[f"{module}.weight"] = (rows.T if turned else rows).astype("float32")
    return tensors
