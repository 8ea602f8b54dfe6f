# SPDX-License-Identifier: Apache-2.0
"""Hugging Face folders: safetensors, and pytorch_model.bin written without torch.

A .bin file is a zip archive: `data.pkl`, a pickle whose storages are named by persistent ids, and
one stored (not compressed) member per storage. The few pickle opcodes it takes are written by hand.
"""

import json
import os
import struct
import zipfile

import numpy as np

import quant

DTYPES = {
    "float32": ("F32", "FloatStorage", lambda x: x.astype("<f4").tobytes()),
    "float16": ("F16", "HalfStorage", lambda x: x.astype("<f2").tobytes()),
    "bfloat16": ("BF16", "BFloat16Storage", lambda x: quant.bf16_from_f32(x).tobytes()),
    "uint8": ("U8", "ByteStorage", lambda x: x.astype(np.uint8).tobytes()),
    "int8": ("I8", "CharStorage", lambda x: x.tobytes()),
    "int16": ("I16", None, lambda x: x.tobytes()),
    "int32": ("I32", "IntStorage", lambda x: x.tobytes()),
    "uint32": ("U32", None, lambda x: x.tobytes()),
    "int64": ("I64", "LongStorage", lambda x: x.tobytes()),
    "void8": ("F8_E4M3", None, lambda x: x.tobytes()),  # bytes of a type that numpy lacks
    "void32": ("F32", None, lambda x: x.tobytes()),  # float32 whatever the folder's type is
}


def rounded(x, dtype):
    """What a reader gets back as float32."""
    if dtype == "float16":
        return x.astype(np.float16).astype(np.float32)
    if dtype == "bfloat16":
        return quant.f32_from_bf16(quant.bf16_from_f32(x))
    return x


def dtype_of(x, dtype):
    """float32 arrays are stored as the folder's type, others as what they are."""
    return dtype if x.dtype == np.float32 else x.dtype.name


def write_json(path, value):
    with open(path, "w", encoding="utf-8") as f:
        json.dump(value, f, indent=1, ensure_ascii=False)
        f.write("\n")


# ---- safetensors: length of the header, header (JSON), data ----


def write_safetensors(path, tensors, dtype):
    header, blobs, offset = {"__metadata__": {"format": "pt"}}, [], 0
    for name, x in tensors.items():
        tag, _, to_bytes = DTYPES[dtype_of(x, dtype)]
        blob = to_bytes(x)
        header[name] = {"dtype": tag, "shape": list(x.shape),
                        "data_offsets": [offset, offset + len(blob)]}
        offset += len(blob)
        blobs.append(blob)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for blob in blobs:
            f.write(blob)


# ---- pytorch_model.bin ----


def _text(s):
    s = s.encode()
    return b"X" + struct.pack("<I", len(s)) + s  # BINUNICODE


def _int(n):
    return b"J" + struct.pack("<i", n)  # BININT


def _tuple(*items):
    return b"(" + b"".join(items) + b"t"


def _global(module, name):
    return b"c" + module.encode() + b"\n" + name.encode() + b"\n"


_EMPTY_ORDERED = _global("collections", "OrderedDict") + b")R"


def _tensor(key, storage, x):
    """torch._utils._rebuild_tensor_v2(storage, offset, size, stride, requires_grad, hooks)"""
    strides = [int(np.prod(x.shape[i + 1:])) for i in range(x.ndim)]
    persistent = _tuple(_text("storage"), _global("torch", storage), _text(key), _text("cpu"),
                        _int(x.size)) + b"Q"
    return _global("torch._utils", "_rebuild_tensor_v2") + _tuple(
        persistent, _int(0), _tuple(*map(_int, x.shape)), _tuple(*map(_int, strides)), b"\x89",
        _EMPTY_ORDERED) + b"R"


def _add(archive, name, data):
    """A stored member whose data starts at a multiple of 64, as torch lays them out."""
    info = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
    start = archive.fp.tell() + 30 + len(name.encode())
    pad = -(start + 4) % 64
    info.extra = b"FB" + struct.pack("<H", pad) + b"Z" * pad
    archive.writestr(info, data)


def write_bin(path, tensors, dtype, aliases=(), dims=None):
    """aliases: (name, name of the tensor whose storage it shares), as tied weights are saved. dims: numbers beside the tensors, as
    OpenAI's Whisper files have them."""
    storages, items = [], []
    keys = {}
    for name, x in tensors.items():
        kind = dtype_of(x, dtype)
        keys[name] = str(len(storages))
        storages.append(DTYPES[kind][2](x))
        items.append(_text(name) + _tensor(keys[name], DTYPES[kind][1], x))
    for name, source in aliases:
        if source in tensors:
            x = tensors[source]
            items.append(_text(name) + _tensor(keys[source], DTYPES[dtype][1], x))
    root = _EMPTY_ORDERED + b"(" + b"".join(items) + b"u"
    if dims is not None:
        numbers = b"".join(_text(name) + _int(n) for name, n in dims.items())
        root = b"}(" + _text("dims") + b"}(" + numbers + b"u" + _text("model_state_dict") + root + b"u"
    pickle = b"\x80\x02" + root + b"."
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        _add(archive, "pytorch_model/data.pkl", pickle)
        _add(archive, "pytorch_model/byteorder", b"little")
        for i, blob in enumerate(storages):
            _add(archive, f"pytorch_model/data/{i}", blob)
        _add(archive, "pytorch_model/version", b"3\n")


def _value(x):
    """A value of a Namespace."""
    if x is None or isinstance(x, bool):
        return {None: b"N", True: b"\x88", False: b"\x89"}[x]
    return _int(x) if isinstance(x, int) else b"G" + struct.pack(">d", x) if isinstance(x, float) else _text(x)


def write_fairseq_pt(path, tensors, args, old=True):
    """A checkpoint of fairseq. old: in PyTorch's format before 1.6. The last tensor shares a storage of the others where it is one of them."""
    keys, storages, items = {}, {}, []
    for name, x in tensors.items():
        key = keys.setdefault(id(x), str(len(keys)))
        storages[key] = x
        items.append(_text(name) + _tensor(key, "FloatStorage", x))
    namespace = _global("argparse", "Namespace") + b")\x81}(" + b"".join(_text(k) + _value(v) for k, v in args.items()) + b"ub"
    root = b"}(" + _text("args") + namespace + _text("model") + _EMPTY_ORDERED + b"(" + b"".join(items) + b"u" + _text("optimizer_history") + b"]" + b"u"
    pickle = b"\x80\x02" + root + b"."
    if old:
        magic = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
        version, machine = b"\x80\x02M\xe9\x03.", b"\x80\x02}(" + _text("little_endian") + b"\x88u."
        order = sorted(storages, reverse=True)
        names = b"\x80\x02](" + b"".join(_text(key) for key in order) + b"e."
        with open(path, "wb") as f:
            f.write(magic + version + machine + pickle + names)
            for key in order:
                f.write(struct.pack("<q", storages[key].size) + np.ascontiguousarray(storages[key], np.float32).tobytes())
        return
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        _add(archive, "model/data.pkl", pickle)
        for key, x in storages.items():
            _add(archive, f"model/data/{key}", np.ascontiguousarray(x, np.float32).tobytes())
        _add(archive, "model/version", b"3\n")


# ---- shards ----


def split(tensors, n_shards):
    """n_shards parts of about equal size, in order."""
    total = sum(x.size for x in tensors.values())
    parts, seen = [{} for _ in range(n_shards)], 0
    for name, x in tensors.items():
        parts[min(seen * n_shards // total, n_shards - 1)][name] = x
        seen += x.size
    return parts


def write_weights(folder, tensors, dtype, form, n_shards, aliases=()):
    stem, end = {"safetensors": ("model", "safetensors"), "bin": ("pytorch_model", "bin")}[form]

    def write(path, part):
        if form == "bin":
            write_bin(path, part, dtype, aliases)
        else:
            write_safetensors(path, part, dtype)

    if n_shards == 1:
        write(os.path.join(folder, f"{stem}.{end}"), tensors)
        return
    places, total = {}, 0
    for i, part in enumerate(split(tensors, n_shards), 1):
        name = f"{stem}-{i:05d}-of-{n_shards:05d}.{end}"
        write(os.path.join(folder, name), part)
        for tensor, x in part.items():
            places[tensor] = name
            total += len(DTYPES[dtype_of(x, dtype)][2](x))
        if form == "bin":
            places.update({a: name for a, source in aliases if source in part})
    write_json(os.path.join(folder, f"{stem}.{end}.index.json"),
               {"metadata": {"total_size": total}, "weight_map": places})
