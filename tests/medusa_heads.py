# SPDX-License-Identifier: Apache-2.0
"""Medusa heads of random weights, in the forms that are read."""
import json
import pathlib
import struct
import sys

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).parent / "tinymodel"))
import quantized  # noqa: E402


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
        header[name] = {"dtype": {"float16": "F16", "float32": "F32", "int8": "I8", "int64": "I64", "void8": "F8_E4M3"}[t.dtype.name], "shape": list(t.shape),
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


def in_bytes(tensors, form="int8"):
    """Matrices as int8 or fp8 with what each row is multiplied by, or ("fp8 whole") all of it, and the same in float32."""
    small, same = {}, {}
    for name, t in tensors.items():
        if t.ndim == 2:
            top = np.abs(t).max() if form == "fp8 whole" else np.abs(t).max(1, keepdims=True).clip(1e-9)
            scale = np.float32(top / (127 if form == "int8" else 448))
            if form == "int8":
                small[name] = np.rint(t / scale).astype(np.int8)
                same[name] = small[name] * scale
            else:
                codes = quantized.to_e4m3(t / scale)
                small[name] = codes.view("V1")
                same[name] = (quantized.from_e4m3(codes) * scale).astype(np.float32)
            small[name + "_scale"] = scale.reshape(-1, 1) if form != "fp8 whole" else scale.reshape(1)
        else:
            small[name] = same[name] = t
    return small, same
