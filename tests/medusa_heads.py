# SPDX-License-Identifier: Apache-2.0
"""Medusa heads of random weights, in the forms that are read."""
import json
import pathlib
import struct

import numpy as np


def heads(n, n_layers, hidden, vocab, seed=1):
    rng = np.random.default_rng(seed)
    out = {}
    for h in range(n):
        for layer in range(n_layers):
            out[f"{h}.{layer}.linear.weight"] = rng.normal(0, 0.05, (hidden, hidden)).astype(np.float16)
            out[f"{h}.{layer}.linear.bias"] = rng.normal(0, 0.05, hidden).astype(np.float16)
        out[f"{h}.{n_layers}.weight"] = rng.normal(0, 0.2, (vocab, hidden)).astype(np.float16)
    return out


def as_checkpoint(tensors, n_layers):
    """Their names in a checkpoint of TensorRT-LLM."""
    names = {}
    for name in tensors:
        head, layer, *rest = name.split(".")
        names[name] = (f"medusa_heads.{head}.lm_head.weight" if int(layer) == n_layers
                       else f"medusa_heads.{head}.medusa_layers.{layer}.{'.'.join(rest)}")
    return {names[k]: v for k, v in tensors.items()}


def write(path, tensors):
    header, data = {}, b""
    for name, t in tensors.items():
        header[name] = {"dtype": {"float16": "F16", "float32": "F32", "int8": "I8", "int64": "I64"}[str(t.dtype)], "shape": list(t.shape),
                        "data_offsets": [len(data), len(data) + t.nbytes]}
        data += t.tobytes()
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    pathlib.Path(path).write_bytes(struct.pack("<Q", len(text)) + text + data)


def write_folder(folder, n, n_layers, hidden, vocab):
    folder = pathlib.Path(folder)
    folder.mkdir(exist_ok=True)
    write(folder / "medusa_lm_head.safetensors", heads(n, n_layers, hidden, vocab))
    (folder / "config.json").write_text(json.dumps({"medusa_num_heads": n, "medusa_num_layers": n_layers,
                                                    "base_model_name_or_path": "base"}))
    return folder


def int8(tensors):
    """Matrices as int8 with what each row is multiplied by, and the same in float32."""
    small, same = {}, {}
    for name, t in tensors.items():
        if t.ndim == 2:
            scale = (np.abs(t).max(1, keepdims=True).clip(1e-9) / 127).astype(np.float32)
            small[name], small[name + "_scale"] = np.rint(t / scale).astype(np.int8), scale
            same[name] = small[name] * scale
        else:
            small[name] = same[name] = t
    return small, same
