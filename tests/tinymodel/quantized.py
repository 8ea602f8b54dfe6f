# SPDX-License-Identifier: Apache-2.0
"""Tiny models as quantized Hugging Face folders: the tensors and fields of each format, by its specification, and the
float32 weights that they stand for. tests/model/make_goldens.py holds them against the format's own library."""

import json
import re

import numpy as np

import quant
import weights


def input_of(name):
    """One name for weights that read the same input, whose columns GPTQ therefore puts in the same order."""
    return re.sub(r"\.([qkv]|gate|up)_proj\.", lambda m: ".qkv." if m[1] in "qkv" else ".gate_up.", name)


class Integers:
    """A weight [out, in] as codes, and scale and zero point of each group of columns."""

    def __init__(self, name, x, bits, group, sym, reorder=False):
        rows, cols = x.shape
        group = cols if group < 0 else group
        self.bits, self.n_groups, self.order = bits, cols // group, np.arange(cols) // group
        if reorder:  # columns of a group lie apart, as GPTQ leaves them that goes by activations
            key = input_of(name) if reorder == "input" else name
            self.order = self.order[np.argsort(weights.splitmix64(weights.key_of(key), cols), kind="stable")]
        top = (1 << bits) - 1
        self.scales = np.empty((rows, self.n_groups), np.float16)
        self.zeros = np.empty((rows, self.n_groups), np.int64)
        self.codes = np.empty(x.shape, np.int64)
        for g in range(self.n_groups):
            part = x[:, self.order == g]
            low, high = np.minimum(part.min(1), 0), np.maximum(part.max(1), 0)
            if sym:
                self.scales[:, g] = 2 * np.maximum(high, -low) / top
                self.zeros[:, g] = (top + 1) // 2
            else:
                self.scales[:, g] = (high - low) / top
                self.zeros[:, g] = np.clip(np.rint(-low / self.scales[:, g].astype(np.float32)), 0, top)
            step = self.scales[:, g, None].astype(np.float32)
            self.codes[:, self.order == g] = np.clip(np.rint(part / step) + self.zeros[:, g, None], 0, top)

    def dequantized(self):
        scales, zeros = self.scales.astype(np.float32)[:, self.order], self.zeros[:, self.order]
        return (scales * (self.codes - zeros)).astype(np.float32)


def input_scale(name, n, recipe):
    """What AWQ multiplies a weight's input by, if it does. `columns`: True, everywhere by the same powers of two; or the modules
    whose scales ModelOpt can make part of nothing in front of them, each by its own halves."""
    columns = recipe.get("columns")
    if columns is True:
        return (2.0 ** -(np.arange(n) * 7 % 5 - 2)).astype(np.float32)
    if not columns or not name.endswith(columns):
        return None
    return (2.0 ** (weights.splitmix64(weights.key_of(name), n) / 2.0**62 - 2)).astype(np.float16).astype(np.float32)


class Scaled:
    """A weight whose columns were divided before they were rounded, by what its input is multiplied by."""

    def __init__(self, scale, make, x):
        self.scale, self.w = scale, make(x / scale)

    def dequantized(self):
        return self.w.dequantized() * self.scale


def nearest(x, values):
    """Places in a sorted table."""
    middle = (values[1:] + values[:-1]) / 2
    return np.searchsorted(middle, x)


def _e4m3():
    bits = np.arange(127)
    exponent, fraction = bits >> 3, bits & 7
    return np.where(exponent == 0, fraction / 512, (1 + fraction / 8) * 2.0 ** (exponent - 7))


E4M3 = _e4m3()  # of the bytes 0 to 126; the rest are negative, or no number


def to_e4m3(x):
    return (nearest(np.abs(x), E4M3) | np.where(x < 0, 128, 0)).astype(np.uint8)


def from_e4m3(codes):
    return np.where(codes & 128, -1, 1) * E4M3[codes & 127]


class Fp8:
    """A weight as E4M3 with a scale for each block of numbers; MX: the scales are powers of two."""

    def __init__(self, x, block, is_mx=False):
        self.block = [n if b < 0 else b for n, b in zip(x.shape, block)]
        n = [-(-s // b) for s, b in zip(x.shape, self.block)]
        self.scales = np.empty(n, np.float32)
        for i in range(n[0]):
            for k in range(n[1]):
                part = x[i * self.block[0]:(i + 1) * self.block[0], k * self.block[1]:(k + 1) * self.block[1]]
                self.scales[i, k] = np.abs(part).max() / 448
        if is_mx:
            self.scale_codes = (127 + np.ceil(np.log2(self.scales))).astype(np.uint8)
            self.scales = (2.0 ** (self.scale_codes.astype(np.float64) - 127)).astype(np.float32)
        rows = np.repeat(self.scales, self.block[0], 0)[:x.shape[0]]
        self.spread = np.repeat(rows, self.block[1], 1)[:, :x.shape[1]]
        self.codes = to_e4m3(x / self.spread)

    def dequantized(self):
        return (from_e4m3(self.codes) * self.spread).astype(np.float32)


E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])


class Fp4:
    """A weight as E2M1: groups of 32 columns with powers of two (MX), or of 16 with E4M3 and one scale for all (NV)."""

    def __init__(self, x, is_nv, group=None):
        group = group or (16 if is_nv else 32)
        self.is_nv = is_nv
        parts = x.reshape(x.shape[0], -1, group)
        top = np.abs(parts).max(2)
        if is_nv:
            self.factor = np.float32(448 * 6 / top.max())
            self.scale_codes = to_e4m3(top / 6 * self.factor)
            self.scales = (from_e4m3(self.scale_codes) / self.factor).astype(np.float32)
        else:
            self.scale_codes = (127 + np.ceil(np.log2(top / 6))).astype(np.uint8)
            self.scales = (2.0 ** (self.scale_codes.astype(np.float64) - 127)).astype(np.float32)
        codes = nearest(np.abs(parts) / self.scales[:, :, None], E2M1)
        codes = np.where((parts < 0) & (codes > 0), codes | 8, codes)
        self.values = np.where(codes & 8, -1, 1) * E2M1[codes & 7] * self.scales[:, :, None]
        self.values = self.values.reshape(x.shape).astype(np.float32)
        codes = codes.reshape(x.shape).astype(np.uint8)
        self.packed = codes[:, 0::2] | codes[:, 1::2] << 4

    def dequantized(self):
        return self.values


NF4 = np.array([-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
                -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
                0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0],
               np.float32)


FP4 = (np.array([0, 0.0625, 8, 12, 4, 6, 2, 3, 0, -0.0625, -8, -12, -4, -6, -2, -3], np.float32) / np.float32(12))
TABLES = {"nf4": NF4, "fp4": FP4}


class Table:
    """A weight as bitsandbytes keeps it: 64 numbers in a row share their largest magnitude, which may itself be one of
    256 values, shared by 256 such blocks."""

    def __init__(self, x, kind, nested):
        self.kind, table = kind, TABLES[kind]
        order = np.argsort(table, kind="stable")
        flat = x.reshape(-1, 64)
        top = np.abs(flat).max(1)
        self.shape, self.nested = list(x.shape), nested
        if nested:
            self.offset = np.float32(top.mean())
            self.table = np.linspace(-1, 1, 256, dtype=np.float32)
            self.outer = np.array([np.abs(part - self.offset).max() for part in np.split(top, range(256, top.size, 256))])
            spread = np.repeat(self.outer, 256)[:top.size]
            self.inner = nearest((top - self.offset) / spread, self.table).astype(np.uint8)
            top = self.table[self.inner] * spread + self.offset
        self.top = top.astype(np.float32)
        codes = order[nearest(flat / self.top[:, None], table[order])]
        self.values = (table[codes] * self.top[:, None]).reshape(x.shape)
        codes = codes.reshape(-1).astype(np.uint8)
        self.packed = (codes[0::2] << 4 | codes[1::2])[:, None]

    def dequantized(self):
        return self.values


class Hqq:
    """A weight cut into groups through all its rows; zero points are no whole numbers."""

    def __init__(self, x, bits, group, axis):
        self.bits, self.group, self.axis, self.shape = bits, group, axis, x.shape
        flat = x.reshape(-1, group) if axis == 1 else x.reshape(group, -1)
        low, high = flat.min(axis, keepdims=True), flat.max(axis, keepdims=True)
        self.scale = ((high - low) / ((1 << bits) - 1)).astype(np.float16)
        self.zero = (-low / self.scale.astype(np.float32)).astype(np.float16)
        self.codes = np.clip(np.rint(flat / self.scale.astype(np.float32) + self.zero.astype(np.float32)), 0, (1 << bits) - 1).astype(np.int64)

    def packed(self):
        """Words of numbers that lie apart, the first in the upper bits."""
        per_word, top = (10, 27) if self.bits == 3 else (1, 0) if self.bits > 4 else (8 // self.bits, 8 - self.bits)
        step = -(-len(self.codes) // per_word)
        padded = np.zeros((step * per_word, self.codes.shape[1]), np.int64)
        padded[:len(self.codes)] = self.codes
        parts = [padded[i * step:(i + 1) * step] << (top - i * self.bits) for i in range(per_word)]
        return sum(parts).astype(np.int32 if self.bits == 3 else np.uint8)

    def dequantized(self):
        x = (self.codes - self.zero.astype(np.float32)) * self.scale.astype(np.float32)
        return x.reshape(self.shape).astype(np.float32)


class Affine:
    """A weight of codes with a scale and a smallest number for each group of columns (MLX), which half precision holds."""

    def __init__(self, x, bits, group):
        self.bits = bits
        parts = x.reshape(len(x), -1, group)
        low, high = parts.min(2), parts.max(2)
        self.scales = ((high - low) / ((1 << bits) - 1)).astype(np.float16)
        self.biases = low.astype(np.float16)
        self.scales[::3] *= -1  # as mlx does where the largest number is further from 0
        self.biases[::3] = high[::3]
        scales, biases = (np.repeat(p.astype(np.float32), group, 1) for p in (self.scales, self.biases))
        self.codes = np.clip(np.rint((x - biases) / scales), 0, (1 << bits) - 1).astype(np.int64)
        self.values = (self.codes * scales + biases).astype(np.float32)

    def dequantized(self):
        return self.values


class Ternary:
    """A weight of -1, 0 and 1 times its mean magnitude (BitNet), which is kept as what divides."""

    def __init__(self, x, online=False):
        self.x, self.divisor = x, np.float32(1 / np.abs(x).mean())
        self.divisor = self.divisor if online else self.divisor.astype(np.float16).astype(np.float32)
        self.codes = np.clip(np.rint(x * self.divisor), -1, 1).astype(np.int64)

    def dequantized(self):
        return (self.codes / self.divisor).astype(np.float32)


def stream(codes, bits):
    """Codes along axis 0 as a stream of 32-bit words, lowest bits first."""
    pieces = (codes[:, None, ...] >> np.arange(bits).reshape(1, bits, *[1] * (codes.ndim - 1))) & 1
    flat = pieces.reshape(-1, 32, *codes.shape[1:]).astype(np.uint64)
    place = np.arange(32, dtype=np.uint64).reshape(1, 32, *[1] * (codes.ndim - 1))
    return (flat << place).sum(1).astype(np.uint32).view(np.int32)


PLANES = {2: [2], 3: [2, 1], 4: [4], 5: [4, 1], 6: [4, 2], 7: [4, 2, 1], 8: [8]}


def planes(codes, bits):
    """Codes along axis 0, each 32 of them as the words of their low bits, then those of the higher ones (GPTQModel's gptq_p)."""
    parts, low = [], 0
    for width in PLANES[bits]:
        words = stream(codes >> low & ((1 << width) - 1), width)
        parts.append(words.reshape(-1, width, *codes.shape[1:]))
        low += width
    return np.concatenate(parts, axis=1).reshape(-1, *codes.shape[1:])


def gptq(stem, w, recipe):
    if recipe.get("planes"):
        return {f"{stem}.qweight": planes(w.codes.T, w.bits), f"{stem}.qzeros": planes(w.zeros, w.bits).T,
                f"{stem}.scales": w.scales.T, f"{stem}.g_idx": w.order.astype(np.int32)}
    zeros = w.zeros.T if recipe.get("v2") else (w.zeros.T - 1) & ((1 << w.bits) - 1)
    return {f"{stem}.qweight": stream(w.codes.T, w.bits), f"{stem}.qzeros": stream(zeros.T, w.bits).T,
            f"{stem}.scales": w.scales.T, f"{stem}.g_idx": w.order.astype(np.int32)}


def gptq_config(recipe):
    config = {"quant_method": "gptq", "bits": recipe["bits"], "group_size": recipe["group"], "sym": recipe["sym"],
              "desc_act": bool(recipe.get("reorder")), "damp_percent": 0.01, "true_sequential": True, "lm_head": False}
    return {**config, "checkpoint_format": "gptq_p" if recipe.get("planes") else "gptq_v2" if recipe.get("v2") else "gptq"}


def auto_round(stem, w, recipe):
    """AutoRound in its own packing: integers as GPTQ or AWQ have them, floats as compressed-tensors."""
    if recipe.get("kind"):
        return compressed(stem, w, recipe)
    if "awq" in recipe["packing"]:
        return awq(stem, w, {**recipe, "version": "gemm"})
    return {k: x for k, x in gptq(stem, w, {**recipe, "v2": "gptq" not in recipe["packing"]}).items() if not k.endswith(".g_idx")}


def auto_round_config(recipe):
    kind = {"data_type": "mx_fp", "act_bits": 4, "act_data_type": "mx_fp", "group_size": 32, "sym": True, "bits": 4}
    kind = kind if recipe.get("kind") else {"data_type": "int", "bits": recipe["bits"], "group_size": recipe["group"], "sym": recipe["sym"]}
    return {"quant_method": "auto-round", "packing_format": recipe["packing"], "iters": 200, "autoround_version": "0.16.1", **kind}


AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]  # which of eight rows lies in nibble i


def awq(stem, w, recipe):
    if recipe["version"] == "gemv":
        words = -(-w.n_groups // 8)  # AutoAWQ pads further, to whole lines of its kernel
        words = -(-words // 2) * 2

        def padded(x):
            return np.pad(x, ((0, 0), (0, words * 8 - x.shape[1])))

        return {f"{stem}.qweight": stream(w.codes.T, 4).T, f"{stem}.qzeros": stream(padded(w.zeros).T, 4).T,
                f"{stem}.scales": padded(w.scales)}

    def packed(x):  # [out, n] -> [n, out / 8]
        eight = x.reshape(-1, 8, x.shape[1])[:, AWQ_ORDER]
        return stream(eight.reshape(x.shape), 4).T

    return {f"{stem}.qweight": packed(w.codes), f"{stem}.qzeros": packed(w.zeros), f"{stem}.scales": w.scales.T}


def awq_config(recipe):
    return {"quant_method": "awq", "bits": 4, "group_size": recipe["group"], "zero_point": True,
            "version": recipe["version"], "modules_to_not_convert": None}


def fp8(stem, w, recipe):
    if recipe.get("method"):  # mxfp8, fbgemm_fp8
        more = {} if recipe.get("kind") else {f"{stem}.input_scale_ub": np.asarray(np.float32(1200)).view("V4")}
        scales = {f"{stem}.weight_scale_inv": w.scale_codes} if recipe.get("kind") else {f"{stem}.weight_scale": w.scales.view("V4")}
        return {f"{stem}.weight": w.codes.view("V1"), **scales, **more}
    scales = w.scales if recipe["block"][0] > 0 else w.scales.reshape(())
    return {f"{stem}.weight": w.codes.view("V1"), f"{stem}.weight_scale_inv": scales.view("V4")}


def fp8_config(recipe):
    if recipe.get("method"):
        return {"quant_method": recipe["method"], "modules_to_not_convert": None,
                **({"weight_block_size": recipe["block"], "scale_fmt": "ue8m0"} if recipe.get("kind") else {"activation_scale_ub": 1200.0})}
    block = recipe["block"] if recipe["block"][0] > 0 else None
    return {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": block}


def compressed(stem, w, recipe):
    """compressed-tensors. Integers here are those of the file plus half their range, as the format packs them."""
    if recipe.get("sparse"):
        return marlin(stem, w) if recipe["format"] == "marlin-24" else masked(stem, w, recipe)
    if isinstance(w, Fp8):
        if recipe.get("kind"):
            return {f"{stem}.weight": w.codes.view("V1"), f"{stem}.weight_scale": w.scale_codes}
        scales = w.scales if w.scales.size > 1 else w.scales[0]
        return {f"{stem}.weight": w.codes.view("V1"), f"{stem}.weight_scale": scales.view("V4")}
    if isinstance(w, Fp4):
        kind = "V1" if recipe["kind"] == "nvfp4" else np.uint8
        more = {f"{stem}.weight_global_scale": np.array([w.factor], np.float32).view("V4")} if kind == "V1" else {}
        return {f"{stem}.weight_packed": w.packed, f"{stem}.weight_scale": w.scale_codes.view(kind), **more}
    out = {f"{stem}.weight_scale": w.scales}
    if recipe["format"] == "int-quantized":
        return {**out, f"{stem}.weight": (w.codes - 128).astype(np.int8)}
    out[f"{stem}.weight_packed"] = stream(w.codes.T, w.bits).T
    out[f"{stem}.weight_shape"] = np.array(w.codes.shape, np.int64)
    if not recipe["sym"]:
        out[f"{stem}.weight_zero_point"] = stream(w.zeros, w.bits)
    if recipe.get("reorder"):
        out[f"{stem}.weight_g_idx"] = w.order.astype(np.int32)
    return out


def pruned(x):
    """2:4: the two largest of four columns."""
    four = np.abs(x.reshape(len(x), -1, 4))
    keep = np.argsort(np.argsort(-four, 2, kind="stable"), 2) < 2
    return np.where(keep.reshape(x.shape), x, np.float32(0))


def masked(stem, w, recipe):
    """compressed-tensors' sparse-24-bitmask: the numbers that are kept, and a bit for each that says so."""
    codes = w.codes if isinstance(w, (Fp8, Dense)) else (w.codes - 128).astype(np.int8)
    kept = np.argsort(np.argsort(-np.abs(w.dequantized().reshape(len(codes), -1, 4)), 2, kind="stable"), 2) < 2
    kept = kept.reshape(codes.shape)
    numbers = codes[kept].reshape(len(codes), -1)
    out = {f"{stem}.compressed": numbers.view("V1") if isinstance(w, Fp8) else numbers, f"{stem}.shape": np.array(codes.shape, np.int64)[:, None],
           f"{stem}.bitmask": np.packbits(kept, axis=1, bitorder="little")}
    if isinstance(w, Fp8):
        out[f"{stem}.weight_scale"] = w.scales.view("V4")
    elif isinstance(w, Integers):
        out[f"{stem}.weight_scale"] = w.scales
    return out


class Dense:
    """A weight as it is."""

    def __init__(self, x):
        self.codes = x.astype(np.float32)

    def dequantized(self):
        return self.codes


def marlin_tile(bits):
    """Which number of four tiles of 16 x 16 comes where in the order of a product with 2:4 sparse weights."""
    perm = [16 * row + i // 8 * 256 + 8 * (i // 4 % 2) + 4 * block + j
            for i in range(32) for j in range(4) for block in (0, 1)
            for row in (2 * (i % 4), 2 * (i % 4) + 1, 2 * (i % 4 + 4), 2 * (i % 4 + 4) + 1)]
    turn = [0, 2, 4, 6, 1, 3, 5, 7] if bits == 4 else [0, 2, 1, 3]
    return np.array(perm).reshape(-1, len(turn))[:, turn].ravel()


def cutlass_places(rows, cols):
    """Where meta [rows, cols] lies, for each of its numbers."""
    r, c = np.meshgrid(np.arange(rows), np.arange(cols), indexing="ij")
    r = r // 64 * 64 + r % 2 * 2 + r % 8 // 4 + r % 4 // 2 * 32 + r % 64 // 8 * 4
    up, down = (r % 2 == 0) & (c % 2 == 1), (r % 2 == 1) & (c % 2 == 0)
    r, c = r + up - down, c - up + down
    return c // 2 * rows * 2 + r * 2 + c % 2


def marlin(stem, w):
    """compressed-tensors' marlin-24: codes of the columns that are kept, and for each four of them two places of two bits."""
    half, rows = 1 << (w.bits - 1), len(w.codes)
    four = (w.codes - half).reshape(rows, -1, 4)
    m0, m1, _, m3 = np.moveaxis(four != 0, 2, 0)
    one = (~m0 & m1) | (~m0 & ~m1) << 1
    two = ((m0 & m1) | (~m0 & ~m1) | m3) | ((~m0 & m1) | ~m1) << 1
    kept = np.take_along_axis(four, np.stack([one, two], 2), 2).reshape(rows, -1).T + half
    tiles = kept.reshape(len(kept) // 16, 16, rows // 16, 16).transpose(0, 2, 1, 3).reshape(len(kept) // 16, -1)
    tiles = tiles.reshape(-1, 1024)[:, marlin_tile(w.bits)].reshape(tiles.shape)
    places = (one | two << 2).reshape(rows, -1, 4).astype(np.uint32)
    places = places[..., 0] | places[..., 1] << 4 | places[..., 2] << 8 | places[..., 3] << 12
    meta = np.empty(places.size, np.uint16)
    meta[cutlass_places(*places.shape)] = places.astype(np.uint16)
    scales = w.scales.T
    if 1 < w.n_groups and w.codes.shape[1] // w.n_groups < len(kept):
        scales = scales.reshape(len(scales), -1, 8)[:, :, [0, 4, 1, 5, 2, 6, 3, 7]].reshape(scales.shape)
    return {f"{stem}.weight_packed": stream(tiles.T, w.bits).T, f"{stem}.scale_packed": scales,
            f"{stem}.meta": meta.view(np.int16).reshape(places.shape[1] // 2, rows * 2)}


def compressed_scheme(recipe):
    """`weights` of a group, as the library's QuantizationArgs takes them."""
    if recipe.get("kind") == "mxfp8":
        return {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "group", "group_size": 32,
                "scale_dtype": "torch.uint8"}
    if "block" in recipe:
        strategy = "tensor" if recipe["block"][0] < 0 else "channel"
        return {"num_bits": 8, "type": "float", "symmetric": True, "strategy": strategy}
    if recipe.get("kind"):
        nv = recipe["kind"] == "nvfp4"
        return {"num_bits": 4, "type": "float", "symmetric": True, "strategy": "tensor_group" if nv else "group",
                "group_size": 16 if nv else 32}
    group = {"strategy": "group", "group_size": recipe["group"]} if recipe["group"] > 0 else {"strategy": "channel"}
    return {"num_bits": recipe["bits"], "type": "int", "symmetric": recipe["sym"], **group}


def compressed_config(recipe):
    sparsity = {"sparsity_config": {"format": "sparse-24-bitmask", "global_sparsity": 0.5, "ignore": ["lm_head"], "registry_requires_subclass": False,
                                    "sparsity_structure": "2:4", "targets": ["Linear"]}} if recipe.get("sparse") and recipe["format"] != "marlin-24" else {}
    if recipe["format"] == "dense":
        return {"quant_method": "compressed-tensors", **sparsity}
    group = {"targets": ["Linear"], "weights": compressed_scheme(recipe), "input_activations": None}
    return {"quant_method": "compressed-tensors", "format": recipe["format"], "quantization_status": "compressed",
            "config_groups": {"group_0": group}, "ignore": ["lm_head", "re:.*embed.*"], **sparsity}


def modelopt(stem, w, recipe):
    if isinstance(w, Scaled):
        return {**modelopt(stem, w.w, recipe), f"{stem}.pre_quant_scale": w.scale.view("V4")}
    if recipe.get("kind") == "mxfp8":
        return compressed(stem, w, recipe)
    if recipe["algo"].startswith("fp8_pb"):
        scales = w.scales if recipe["algo"] == "fp8_pb_real" else w.scales[:, None, :, None]
        return {f"{stem}.weight": w.codes.view("V1"), f"{stem}.weight_scale": scales.view("V4")}
    if isinstance(w, Integers) and w.bits == 8:
        out = {f"{stem}.weight": (w.codes - 128).astype(np.int8), f"{stem}.weight_scale": w.scales[:, 0].astype(np.float32).view("V4")}
        return out if recipe["algo"] == "W8A16" else {**out, f"{stem}.input_scale": np.asarray(np.float32(0.02)).view("V4")}
    if isinstance(w, Fp8):
        return {f"{stem}.weight": w.codes.view("V1"), f"{stem}.weight_scale": w.scales.reshape(()).view("V4"),
                f"{stem}.input_scale": np.asarray(np.float32(0.02)).view("V4")}
    if isinstance(w, Fp4) and not w.is_nv:
        return {f"{stem}.weight": w.packed, f"{stem}.weight_scale": w.scale_codes}
    if isinstance(w, Fp4):
        return {f"{stem}.weight": w.packed, f"{stem}.weight_scale": w.scale_codes.view("V1"),
                f"{stem}.weight_scale_2": np.asarray(1 / w.factor).view("V4")}
    nibbles = ((w.codes - 8) & 15).astype(np.uint8)
    more = {}
    if recipe["algo"] == "W4A8_AWQ":
        more = {f"{stem}.weight_scale_2": np.asarray(np.float32(0.03)).view("V4"),
                f"{stem}.input_scale": np.asarray(np.float32(0.02)).view("V4")}
    return {f"{stem}.weight": nibbles[0::2] | nibbles[1::2] << 4, f"{stem}.weight_scale": w.scales, **more}


def modelopt_config(recipe):
    return {"quant_method": "modelopt", "quant_algo": recipe["algo"], "producer": {"name": "modelopt"}}


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


def eetq(stem, w, recipe):
    return {f"{stem}.weight": for_mixed_gemm(w.codes, 8, "tiles"), f"{stem}.weight_scales": w.scales[:, 0]}


def eetq_config(recipe):
    return {"quant_method": "eetq", "weights": "int8", "modules_to_not_convert": None}


def hqq(stem, w, recipe):
    def text(s):
        return np.frombuffer(s.encode(), np.uint8)

    one = {"nbits": w.bits, "group_size": w.group, "axis": w.axis}
    flags = {"view_as_float": 0, "quant_scale": 0, "quant_zero": 0, "offload_meta": 0, "encoded_state_dict": 1, "stores_quant_config": 1,
             "channel_wise": 1, "optimize": 1, "round_zero": 0}
    flags["view_as_float"] = int("float" in recipe)
    out = {"W_q": w.packed().view(f"V{recipe['float']}") if "float" in recipe else w.packed(), "scale": w.scale, "zero": w.zero, "shape": np.array(w.shape, np.int64),
           "packing": text("3bit_32" if w.bits == 3 else f"{w.bits}bit_u8"), "compute_dtype": text("torch.float16"),
           "unpack_view_dtype": text("torch.int32" if w.bits == 3 else "torch.uint8"),
           **{k: np.int32(v).reshape(()) for k, v in one.items()}, **{k: np.uint8(v).reshape(()) for k, v in flags.items()}}
    return {f"{stem}.{k}": x for k, x in out.items()}


def hqq_config(recipe):
    weights_as = {"nbits": recipe["bits"], "group_size": recipe["group"], "axis": recipe["axis"], "channel_wise": True, "optimize": True}
    return {"quant_method": "hqq", "skip_modules": ["lm_head"],
            "quant_config": {"weight_quant_params": weights_as, "scale_quant_params": None, "zero_quant_params": None, "offload_meta": False}}


def bitnet(stem, w, recipe):
    if recipe.get("online"):
        return {f"{stem}.weight": w.x}
    quarter = np.split(w.codes + 1, 4)
    scale = 1 / w.divisor if recipe.get("multiplies") else w.divisor
    return {f"{stem}.weight": sum(part << 2 * i for i, part in enumerate(quarter)).astype(np.uint8),
            f"{stem}.weight_scale": np.array([scale], np.float32).view("V4")}


def bitnet_config(recipe):
    more = {"linear_class": "autobitlinear", "quantization_mode": "offline"} if recipe.get("multiplies") else {}
    more = {"linear_class": "autobitlinear", "quantization_mode": "online"} if recipe.get("online") else more
    return {"quant_method": "bitnet", "modules_to_not_convert": None, **more}


class Int4:
    """A weight of numbers from -8 to 7 times a scale of their group, plus a number that stands for 0 (torchao)."""

    def __init__(self, x, group):
        parts = x.reshape(len(x), -1, group)
        low, high = parts.min(2), parts.max(2)
        self.scales = ((high - low) / 15).astype(np.float16)
        self.zeros = (low + 8 * self.scales.astype(np.float32)).astype(np.float16)
        scales, zeros = (np.repeat(p.astype(np.float32), group, 1) for p in (self.scales, self.zeros))
        self.codes = np.clip(np.rint((x - zeros) / scales), -8, 7).astype(np.int64)
        self.values = (self.codes * scales + zeros).astype(np.float32)

    def dequantized(self):
        return self.values


def tinygemm(codes, inner):
    """Codes from 0 to 15 [out, in] in the order of _convert_weight_to_int4pack with `inner` tiles."""
    out = np.zeros((len(codes) // 8, codes.shape[1] // (16 * inner), 32, inner // 2), np.uint32)
    lane, word = np.arange(32), np.arange(inner // 2)
    for n in range(out.shape[0]):
        for k in range(out.shape[1]):
            first = (k * inner + 2 * word[None, :]) * 16 + lane[:, None] % 4 * 2
            for i, (step, shift) in enumerate(zip((0, 1, 8, 9, 16, 17, 24, 25), (0, 16, 4, 20, 8, 24, 12, 28))):
                out[n, k] |= codes[n * 8 + lane[:, None] // 4, first + step].astype(np.uint32) << np.uint32(shift)
    return out.view(np.int32)


class Shifted:
    """A weight of codes times a scale of their group less a number of it (Quanto)."""

    def __init__(self, x, bits, group, whole):
        self.bits, self.whole, self.group = bits, whole, group
        parts = x.reshape(-1, group)
        low, high = np.minimum(parts.min(1, keepdims=True), 0), np.maximum(parts.max(1, keepdims=True), 0)
        self.scales = ((high - low) / ((1 << bits) - 1)).astype(np.float16)
        scales = self.scales.astype(np.float32)
        self.shifts = np.clip(np.rint(-low / scales), 0, 15).astype(np.uint8) if whole else (-low).astype(np.float16)
        less = scales * self.shifts if whole else self.shifts.astype(np.float32)
        self.codes = np.clip(np.rint((parts + less) / scales), 0, (1 << bits) - 1).astype(np.int64)
        self.values = (self.codes * scales - less).reshape(x.shape).astype(np.float32)

    def dequantized(self):
        return self.values


def quanto(stem, w):
    """The parts that Quanto writes, and what its map says of the module."""
    if isinstance(w, Fp8):
        return {f"{stem}.weight._data": w.codes.view("V1"), f"{stem}.weight._scale": w.scales}, "qfloat8_e4m3fn"
    if isinstance(w, Integers):
        return {f"{stem}.weight._data": (w.codes - 128).astype(np.int8), f"{stem}.weight._scale": w.scales}, "qint8"
    step = len(w.codes) * w.bits // 8
    data = sum(w.codes[i * step:(i + 1) * step] << (i * w.bits) for i in range(8 // w.bits)).astype(np.uint8)
    return {f"{stem}.weight._data._data": data, f"{stem}.weight._scale": w.scales, f"{stem}.weight._shift": w.shifts}, f"qint{w.bits}"


def torchao(stem, w, recipe):
    at = f"{stem}._weight_"
    if recipe.get("tiles"):
        both = np.stack([w.scales, w.zeros], 2).swapaxes(0, 1)
        return {at + "qdata": tinygemm(w.codes + 8, recipe["tiles"]), at + "scale_and_zero": both}
    if isinstance(w, Int4):
        nibbles = (w.codes & 15).astype(np.uint8)
        return {at + "qdata": (nibbles[:, 0::2] | nibbles[:, 1::2] << 4).view(np.int8), at + "scale": w.scales.T, at + "zero_point": w.zeros.T}
    if isinstance(w, Fp8):
        return {at + "qdata": w.codes.view("V1"), at + "scale": w.scales.view("V4")}
    half = 1 << (w.bits - 1)
    zeros = (w.zeros - half).astype(np.float16 if recipe.get("float_zeros") else np.int8)
    return {at + "qdata": (w.codes - half).astype(np.int8), at + "scale": w.scales, at + "zero_point": zeros}


def torchao_config(recipe):
    if "tiles" in recipe:
        data = {"group_size": recipe["group"], "int4_packing_format": {"_type": "Int4PackingFormat", "_data": "TILE_PACKED_TO_4D" if recipe["tiles"] else "PLAIN"}}
        return {"quant_method": "torchao", "quant_type": {"default": {"_type": "Int4WeightOnlyConfig", "_version": 2, "_data": data}}}
    kind = "Float8WeightOnlyConfig" if "block" in recipe else "Int8WeightOnlyConfig" if recipe["bits"] == 8 else "IntxWeightOnlyConfig"
    data = {} if recipe.get("bits") == 8 else {"weight_dtype": {"_type": "torch.dtype", "_data": f"int{recipe['bits']}" if "bits" in recipe else "float8_e4m3fn"}}
    return {"quant_method": "torchao", "include_input_output_embeddings": False, "modules_to_not_convert": None,
            "quant_type": {"default": {"_type": kind, "_version": 2, "_data": data}}}


def quark(stem, w, recipe):
    if isinstance(w, Fp4):
        return {f"{stem}.weight": w.packed, f"{stem}.weight_scale": w.scale_codes}
    if isinstance(w, Fp8):
        scales = w.scales.reshape(()) if w.scales.size == 1 else w.scales
        return {f"{stem}.weight": w.codes.view("V1"), f"{stem}.weight_scale": scales.view("V4"),
                f"{stem}.input_scale": np.asarray(np.float32(0.02)).view("V4")}
    if w.bits == 8:
        return {f"{stem}.weight": (w.codes - 128).astype(np.int8), f"{stem}.weight_scale": w.scales[:, 0],
                f"{stem}.weight_zero_point": (w.zeros[:, 0] - 128).astype(np.int8)}

    def packed(x):  # [out, n] -> [n, out / 8]
        eight = x.reshape(-1, 8, x.shape[1])
        eight = eight if recipe.get("order") else eight[:, AWQ_ORDER]
        return stream(eight.reshape(x.shape), 4).T

    half = 8 if recipe["sym"] else 0  # int4 and not uint4
    return {f"{stem}.weight": packed((w.codes - half) & 15), f"{stem}.weight_scale": w.scales.T,
            f"{stem}.weight_zero_point": packed((w.zeros - half) & 15)}


def quark_config(recipe):
    weight = {"dtype": recipe["dtype"], "qscheme": recipe["scheme"], "ch_axis": 0, "group_size": recipe.get("group"), "is_dynamic": False,
              **({"block_size": recipe["block"]} if recipe["scheme"] == "per_block" else {})}
    none = {"input_tensors": None, "output_tensors": None, "bias": None, "target_device": None}
    return {"quant_method": "quark", "quant_mode": "eager_mode", "algo_config": None, "exclude": ["lm_head"], "layer_quant_config": {},
            "layer_type_quant_config": {}, "global_quant_config": {"weight": weight, **none},
            "export": {"kv_cache_group": [], "min_kv_scale": 0.0, "pack_method": "order" if recipe.get("order") else "reorder",
                       "weight_format": "real_quantized", "weight_merge_groups": None}}


def mlx(stem, w, recipe):
    if isinstance(w, Fp8):
        return {f"{stem}.weight": w.codes.view(np.uint32), f"{stem}.scales": w.scale_codes}
    if isinstance(w, Fp4):
        return {f"{stem}.weight": w.packed.view(np.uint32), f"{stem}.scales": w.scale_codes}
    return {f"{stem}.weight": stream(w.codes.T, w.bits).T.copy().view(np.uint32), f"{stem}.scales": w.scales, f"{stem}.biases": w.biases}


def mlx_config(recipe):
    kind = recipe.get("kind", "affine")
    return {"group_size": recipe.get("group", 32), "bits": recipe.get("bits", 8 if kind == "mxfp8" else 4), "mode": kind}


def bnb(stem, w, recipe):
    if isinstance(w, Integers):
        return {f"{stem}.weight": (w.codes - 128).astype(np.int8), f"{stem}.weight_format": np.uint8(0).reshape(()),
                f"{stem}.SCB": (w.scales[:, 0].astype(np.float32) * 127).view("V4")}
    state = {"quant_type": w.kind, "blocksize": 64, "dtype": "float16", "shape": w.shape}
    out = {"": w.packed, ".quant_map": TABLES[w.kind].view("V4")}
    if w.nested:
        state.update(nested_blocksize=256, nested_dtype="float32", nested_offset=float(w.offset))
        out.update({".absmax": w.inner, ".nested_absmax": w.outer.astype(np.float32).view("V4"),
                    ".nested_quant_map": w.table.view("V4")})
    else:
        out[".absmax"] = w.top.view("V4")
    out[f".quant_state.bitsandbytes__{w.kind}"] = np.frombuffer(json.dumps(state).encode(), np.uint8)
    return {f"{stem}.weight{part}": x for part, x in out.items()}


def bnb_config(recipe):
    four = "nested" in recipe
    return {"quant_method": "bitsandbytes", "load_in_4bit": four, "load_in_8bit": not four, "bnb_4bit_quant_type": recipe.get("kind", "nf4"),
            "bnb_4bit_use_double_quant": recipe.get("nested", False), "bnb_4bit_quant_storage": "uint8",
            "llm_int8_threshold": 6.0}


FORMS = {"modelopt": (modelopt, modelopt_config), "bnb": (bnb, bnb_config), "gptq": (gptq, gptq_config), "awq": (awq, awq_config), "fp8": (fp8, fp8_config),
         "compressed": (compressed, compressed_config), "auto_round": (auto_round, auto_round_config),
         "hqq": (hqq, hqq_config), "bitnet": (bitnet, bitnet_config), "torchao": (torchao, torchao_config), "quark": (quark, quark_config), "mlx": (mlx, mlx_config), "eetq": (eetq, eetq_config)}


def weight_of(name, x, recipe):
    """The numbers of a weight [out, in] by a recipe."""
    x = pruned(x) if recipe.get("sparse") else x
    if recipe.get("format") == "dense":
        return Dense(x)
    scale = input_scale(name, x.shape[1], recipe)
    if scale is not None:
        return Scaled(scale, lambda divided: weight_of(name, divided, {**recipe, "columns": None}), x)
    if "block" in recipe:
        return Fp8(x, recipe["block"], recipe.get("kind") == "mxfp8")
    if recipe["form"] == "hqq":
        return Hqq(x, recipe["bits"], recipe["group"], recipe["axis"])
    if recipe["form"] == "mlx" and "bits" in recipe:
        return Affine(x, recipe["bits"], recipe["group"])
    if "tiles" in recipe:
        return Int4(x, recipe["group"])
    if recipe["form"] == "bitnet":
        return Ternary(x, recipe.get("online", False))
    if "nested" in recipe:
        return Table(x, recipe["kind"], recipe["nested"])
    if recipe.get("kind"):
        return Fp4(x, recipe["kind"] == "nvfp4", recipe.get("group"))
    return Integers(name, x, recipe["bits"], recipe["group"], recipe["sym"], recipe.get("reorder", False))


class Mxfp4:
    """Experts' matrices [experts, in, out], as GPT-OSS's folders have them: blocks of 32 along `in`."""

    def __init__(self, x):
        x = np.ascontiguousarray(x.swapaxes(1, 2))
        self.shape = x.shape
        self.scales, self.codes = quant.mxfp4_parts(x.reshape(*x.shape[:2], -1, 32))

    def stored(self, name):
        return {f"{name}_blocks": self.codes[..., 0::2] | self.codes[..., 1::2] << 4, f"{name}_scales": self.scales[..., 0]}

    def dequantized(self):
        x = np.ldexp(quant.MXFP4_VALUES[self.codes], self.scales.astype(np.int32) - 127)
        return np.ascontiguousarray(x.reshape(self.shape).swapaxes(1, 2), np.float32)


def is_gpt_oss_expert(name):
    return name.endswith(("experts.gate_up_proj", "experts.down_proj"))


def mxfp4(tensors):
    stored, meant = {}, {}
    for name, x in tensors.items():
        if is_gpt_oss_expert(name):
            w = Mxfp4(x)
            stored.update(w.stored(name))
            meant[name] = w.dequantized()
        else:
            stored[name] = meant[name] = x
    fields = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router",
                                                                  "model.embed_tokens", "lm_head"]}
    return stored, fields, meant


UNFOLDED = ("o_proj.weight", "down_proj.weight")
RECIPES = {
    "mxfp4": {"form": "mxfp4"},
    "gptq-4": {"form": "gptq", "bits": 4, "group": 128, "sym": True},
    "gptq-4-v2": {"form": "gptq", "bits": 4, "group": 128, "sym": True, "v2": True},
    "gptq-4-asym": {"form": "gptq", "bits": 4, "group": 64, "sym": False},
    "gptq-3": {"form": "gptq", "bits": 3, "group": 32, "sym": False},
    "gptq-2": {"form": "gptq", "bits": 2, "group": 32, "sym": False, "v2": True},
    "gptq-p-2": {"form": "gptq", "bits": 2, "group": 32, "sym": False, "planes": True},
    "gptq-p-3": {"form": "gptq", "bits": 3, "group": 32, "sym": False, "planes": True},
    "gptq-p-4": {"form": "gptq", "bits": 4, "group": 128, "sym": True, "planes": True},
    "gptq-p-5": {"form": "gptq", "bits": 5, "group": 64, "sym": True, "planes": True},
    "gptq-p-6": {"form": "gptq", "bits": 6, "group": 64, "sym": False, "planes": True},
    "gptq-p-7": {"form": "gptq", "bits": 7, "group": 32, "sym": True, "planes": True},
    "gptq-p-8": {"form": "gptq", "bits": 8, "group": 128, "sym": True, "planes": True},
    "gptq-8": {"form": "gptq", "bits": 8, "group": 128, "sym": True},
    "gptq-8-asym": {"form": "gptq", "bits": 8, "group": 32, "sym": False},
    "gptq-8-row": {"form": "gptq", "bits": 8, "group": -1, "sym": True},
    "gptq-4-row": {"form": "gptq", "bits": 4, "group": -1, "sym": True},
    "gptq-8-row-columns": {"form": "gptq", "bits": 8, "group": -1, "sym": True, "columns": UNFOLDED},
    "gptq-4-order": {"form": "gptq", "bits": 4, "group": 128, "sym": True, "reorder": True},
    "gptq-4-act": {"form": "gptq", "bits": 4, "group": 128, "sym": True, "reorder": "input"},
    "gptq-4-act-asym": {"form": "gptq", "bits": 4, "group": 32, "sym": False, "reorder": "input"},
    "gptq-8-act": {"form": "gptq", "bits": 8, "group": 32, "sym": True, "reorder": "input"},
    "gptq-4-16": {"form": "gptq", "bits": 4, "group": 16, "sym": True},
    "gptq-4-32": {"form": "gptq", "bits": 4, "group": 32, "sym": False},
    "awq": {"form": "awq", "bits": 4, "group": 64, "sym": False, "version": "gemm"},
    "awq-gemv": {"form": "awq", "bits": 4, "group": 64, "sym": False, "version": "gemv"},
    "auto-round": {"form": "auto_round", "packing": "auto_round:auto_gptq", "bits": 4, "group": 128, "sym": True},
    "auto-round-asym": {"form": "auto_round", "packing": "auto_round", "bits": 4, "group": 64, "sym": False},
    "auto-round-awq": {"form": "auto_round", "packing": "auto_round:auto_awq", "bits": 4, "group": 64, "sym": False},
    "auto-round-5": {"form": "auto_round", "packing": "auto_round:auto_gptq", "bits": 5, "group": 32, "sym": True},
    "auto-round-mxfp4": {"form": "auto_round", "packing": "auto_round:llm_compressor", "kind": "mxfp4"},
    "fp8": {"form": "fp8", "block": [128, 128]},
    "fbgemm": {"form": "fp8", "method": "fbgemm_fp8", "block": [1, -1]},
    "mxfp8": {"form": "fp8", "method": "mxfp8", "kind": "mxfp8", "block": [1, 32]},
    "fp8-tensor": {"form": "fp8", "block": [-1, -1]},
    "ct-4": {"form": "compressed", "format": "pack-quantized", "bits": 4, "group": 128, "sym": True},
    "ct-4-asym": {"form": "compressed", "format": "pack-quantized", "bits": 4, "group": 64, "sym": False},
    "ct-4-order": {"form": "compressed", "format": "pack-quantized", "bits": 4, "group": 128, "sym": True, "reorder": True},
    "ct-4-act": {"form": "compressed", "format": "pack-quantized", "bits": 4, "group": 128, "sym": True, "reorder": "input"},
    "ct-8": {"form": "compressed", "format": "pack-quantized", "bits": 8, "group": 128, "sym": True},
    "ct-8-asym": {"form": "compressed", "format": "pack-quantized", "bits": 8, "group": 64, "sym": False},
    "ct-8-row": {"form": "compressed", "format": "int-quantized", "bits": 8, "group": -1, "sym": True},
    "ct-fp8": {"form": "compressed", "format": "float-quantized", "block": [1, -1]},
    "ct-fp8-tensor": {"form": "compressed", "format": "naive-quantized", "block": [-1, -1]},
    "ct-nvfp4": {"form": "compressed", "format": "nvfp4-pack-quantized", "kind": "nvfp4"},
    "ct-mxfp4": {"form": "compressed", "format": "mxfp4-pack-quantized", "kind": "mxfp4"},
    "ct-mxfp8": {"form": "compressed", "format": "mxfp8-quantized", "kind": "mxfp8", "block": [1, 32]},
    "ct-24": {"form": "compressed", "format": "dense", "sparse": True},
    "ct-24-fp8": {"form": "compressed", "format": "float-quantized", "block": [1, -1], "sparse": True},
    "ct-24-int8": {"form": "compressed", "format": "int-quantized", "bits": 8, "group": -1, "sym": True, "sparse": True},
    "ct-marlin-4": {"form": "compressed", "format": "marlin-24", "bits": 4, "group": 128, "sym": True, "sparse": True},
    "ct-marlin-8": {"form": "compressed", "format": "marlin-24", "bits": 8, "group": -1, "sym": True, "sparse": True},
    "modelopt-mxfp8": {"form": "modelopt", "algo": "MXFP8", "kind": "mxfp8", "block": [1, 32]},
    "modelopt-w4a8": {"form": "modelopt", "algo": "W4A8_AWQ", "bits": 4, "group": 128, "sym": True},
    "modelopt-awq-columns": {"form": "modelopt", "algo": "W4A16_AWQ", "bits": 4, "group": 128, "sym": True, "columns": True},
    "modelopt-w4a8-columns": {"form": "modelopt", "algo": "W4A8_AWQ", "bits": 4, "group": 128, "sym": True, "columns": UNFOLDED},
    "modelopt-nvfp4-columns": {"form": "modelopt", "algo": "NVFP4_AWQ", "kind": "nvfp4", "columns": UNFOLDED},
    "modelopt-fp8": {"form": "modelopt", "algo": "FP8", "block": [-1, -1]},
    "modelopt-nvfp4": {"form": "modelopt", "algo": "NVFP4", "kind": "nvfp4"},
    "modelopt-w4a8-nvfp4": {"form": "modelopt", "algo": "W4A8_NVFP4_FP8", "kind": "nvfp4", "group": 32},
    "modelopt-w4a8-mxfp4": {"form": "modelopt", "algo": "W4A8_MXFP4_FP8", "kind": "mxfp4"},
    "modelopt-fp8-blocks": {"form": "modelopt", "algo": "fp8_pb_wo", "block": [128, 128]},
    "modelopt-fp8-real": {"form": "modelopt", "algo": "fp8_pb_real", "block": [128, 128]},
    "modelopt-w8a16": {"form": "modelopt", "algo": "W8A16", "bits": 8, "group": -1, "sym": True},
    "modelopt-w8a8": {"form": "modelopt", "algo": "W8A8_SQ_PER_CHANNEL", "bits": 8, "group": -1, "sym": True},
    "modelopt-awq": {"form": "modelopt", "algo": "W4A16_AWQ", "bits": 4, "group": 128, "sym": True},
    "hqq-4": {"form": "hqq", "bits": 4, "group": 64, "axis": 1},
    "hqq-2": {"form": "hqq", "bits": 2, "group": 32, "axis": 1},
    "hqq-3-columns": {"form": "hqq", "bits": 3, "group": 64, "axis": 0},
    "hqq-5": {"form": "hqq", "bits": 5, "group": 64, "axis": 1},
    "hqq-4-float": {"form": "hqq", "bits": 4, "group": 64, "axis": 1, "float": 4},
    "hqq-3-float": {"form": "hqq", "bits": 3, "group": 64, "axis": 0, "float": 4},
    "hqq-6": {"form": "hqq", "bits": 6, "group": 64, "axis": 1},
    "hqq-8": {"form": "hqq", "bits": 8, "group": 128, "axis": 1},
    "bitnet": {"form": "bitnet"},
    "bitnet-auto": {"form": "bitnet", "multiplies": True},
    "bitnet-online": {"form": "bitnet", "online": True},
    "torchao-int8": {"form": "torchao", "bits": 8, "group": -1, "sym": True},
    "torchao-fp8": {"form": "torchao", "block": [1, -1]},
    "torchao-intx": {"form": "torchao", "bits": 4, "group": 64, "sym": False},
    "torchao-floats": {"form": "torchao", "bits": 4, "group": 64, "sym": False, "float_zeros": True},
    "torchao-int4": {"form": "torchao", "tiles": 0, "group": 64},
    "torchao-tiles": {"form": "torchao", "tiles": 8, "group": 128},
    "torchao-tiles-2": {"form": "torchao", "tiles": 2, "group": 32},
    "quark-int4": {"form": "quark", "dtype": "int4", "scheme": "per_group", "bits": 4, "group": 128, "sym": True},
    "quark-uint4": {"form": "quark", "dtype": "uint4", "scheme": "per_group", "bits": 4, "group": 64, "sym": False, "order": True},
    "quark-int8": {"form": "quark", "dtype": "int8", "scheme": "per_channel", "bits": 8, "group": -1, "sym": True},
    "quark-fp8": {"form": "quark", "dtype": "fp8_e4m3", "scheme": "per_tensor", "block": [-1, -1]},
    "quark-fp8-blocks": {"form": "quark", "dtype": "fp8_e4m3", "scheme": "per_block", "block": [128, 128]},
    "quark-mxfp4": {"form": "quark", "dtype": "fp4", "scheme": "per_group", "kind": "mxfp4", "group": 32},
    **{f"mlx-{bits}": {"form": "mlx", "bits": bits, "group": 64} for bits in (2, 3, 4, 5, 6, 8)},
    "mlx-mxfp4": {"form": "mlx", "kind": "mxfp4"},
    "mlx-mxfp8": {"form": "mlx", "kind": "mxfp8", "block": [1, 32]},
    "eetq": {"form": "eetq", "bits": 8, "group": -1, "sym": True},
    "bnb-nf4": {"form": "bnb", "kind": "nf4", "nested": False},
    "bnb-nf4-double": {"form": "bnb", "kind": "nf4", "nested": True},
    "bnb-fp4": {"form": "bnb", "kind": "fp4", "nested": False},
    "bnb-int8": {"form": "bnb", "bits": 8, "group": -1, "sym": True},
}

# modules that quantizers take; the rest stays as it is
LINEAR = ("_proj.weight", ".c_attn.weight", ".c_fc.weight", ".c_proj.weight", "query_key_value.weight", "dense.weight",
          "_h_to_4h.weight", "_4h_to_h.weight")


def is_linear(name, x):
    return x.ndim == 2 and name.endswith(LINEAR)


def turned(name):
    """GPT-2's Conv1D keeps [in, out]; quantized files do not."""
    return name.endswith((".c_attn.weight", ".c_fc.weight", ".c_proj.weight"))


def quantized(tensors, recipe_name):
    """(tensors of the folder, quantization_config, the weights that they stand for)."""
    recipe = RECIPES[recipe_name]
    if recipe["form"] == "mxfp4":
        return mxfp4(tensors)
    form, config = FORMS[recipe["form"]]
    stored, meant = {}, {}
    for name, x in tensors.items():
        if not is_linear(name, x):
            stored[name] = meant[name] = x
            continue
        w = weight_of(name, x.T if turned(name) else x, recipe)
        stored.update({k: np.ascontiguousarray(v) for k, v in form(name[:-len(".weight")], w, recipe).items()})
        meant[name] = w.dequantized().T if turned(name) else w.dequantized()
    return stored, config(recipe), meant
