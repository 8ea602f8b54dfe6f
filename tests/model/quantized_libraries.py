# SPDX-License-Identifier: Apache-2.0
"""The tensors of tests/tinymodel/quantized.py are those that each format's own library writes, bit for bit.

Used by make_goldens.py alone: needs torch, auto-gptq, gptqmodel, autoawq, nvidia-modelopt and compressed-tensors. Of the first three only the
modules that pack are loaded, since the rest wants other versions of transformers, or a GPU. FP8 in blocks, which only
GPUs write, is compared after transformers has unpacked it.
"""

import importlib
import importlib.machinery
import os
import sys
import types

import numpy as np
import torch

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "tinymodel"))
import quantized  # noqa: E402
import weights  # noqa: E402
from specs import SPECS  # noqa: E402


def module(name):
    """A module of a package whose __init__ files are not run."""
    parts = name.split(".")
    for i in range(1, len(parts)):
        package = ".".join(parts[:i])
        if package not in sys.modules:
            home = importlib.machinery.PathFinder.find_spec(parts[0]).submodule_search_locations[0]
            sys.modules[package] = types.ModuleType(package)
            sys.modules[package].__path__ = [os.path.join(home, *parts[1:i])]
    return importlib.import_module(name)


def linear(w):
    """A layer with the weights that the codes stand for, so that the library finds the same codes."""
    layer = torch.nn.Linear(w.codes.shape[1], w.codes.shape[0], bias=False, dtype=torch.float32)
    layer.weight.data = torch.from_numpy(w.dequantized())
    return layer


def gptq(w, recipe):
    if recipe.get("planes"):
        pack = module("gptqmodel.utils.planar_packing")
        codes, zeros = torch.from_numpy(w.codes.T.copy()), torch.from_numpy(w.zeros.T.copy())
        return {"qweight": pack.planar_pack_rows(codes, w.bits), "qzeros": pack.planar_pack_cols(zeros, w.bits)}
    kind = module("auto_gptq.nn_modules.qlinear.qlinear_cuda").QuantLinear
    out = kind(w.bits, recipe["group"], w.codes.shape[1], w.codes.shape[0], False, weight_dtype=torch.float32)
    out.pack(linear(w), torch.from_numpy(w.scales.astype(np.float32)), torch.from_numpy(w.zeros.astype(np.float32)),
             torch.from_numpy(w.order.astype(np.int32)))
    return {"qweight": out.qweight, "qzeros": out.qzeros, "scales": out.scales.half(), "g_idx": out.g_idx}


def awq(w, recipe):
    name = {"gemm": "GEMM", "gemv": "GEMV"}[recipe["version"]]
    kind = getattr(module(f"awq.modules.linear.{recipe['version']}"), f"WQLinear_{name}")
    scales, zeros = torch.from_numpy(w.scales.astype(np.float32)), torch.from_numpy(w.zeros.astype(np.float32))
    if recipe["version"] == "gemm":
        scales, zeros = scales.t().contiguous(), zeros.t().contiguous()
    out = kind.from_linear(linear(w), 4, recipe["group"], scales=scales, zeros=zeros)
    return {"qweight": out.qweight, "qzeros": out.qzeros, "scales": out.scales.half()}


def auto_round(w, recipe):
    """auto-round's layers without GPTQ's or AWQ's names; what those have is compared as their own."""
    if recipe["packing"] != "auto_round" or w.bits not in (2, 4, 8):
        return {}
    out = module("auto_round_extension.torch.qlinear_torch").QuantLinear(w.bits, recipe["group"], w.codes.shape[1], w.codes.shape[0], False)
    out.device = "cpu"
    out.pack(linear(w), torch.from_numpy(w.scales.astype(np.float32)), torch.from_numpy(w.zeros.astype(np.float32)), device="cpu")
    return {"qweight": out.qweight, "qzeros": out.qzeros, "scales": out.scales}


def compressed(w, recipe):
    if recipe.get("sparse"):
        return sparse(w, recipe)
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

    scheme = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**quantized.compressed_scheme(recipe)),
                                format=recipe["format"])
    state = {"weight": torch.from_numpy(w.dequantized()), "weight_scale": torch.from_numpy(w.scales.astype(np.float32))}
    if isinstance(w, quantized.Fp8) and w.scales.size == 1:
        state["weight_scale"] = state["weight_scale"][0]
    if isinstance(w, quantized.Fp4):
        if recipe["kind"] == "nvfp4":  # by the library's rule the scale of a group is one of the file's, unscaled
            state["weight_scale"] = torch.from_numpy(quantized.from_e4m3(w.scale_codes).astype(np.float32))
            state["weight_global_scale"] = torch.tensor([w.factor])
    elif isinstance(w, quantized.Integers):
        zeros = (w.zeros - (1 << (w.bits - 1))).astype(np.int8)
        state["weight_zero_point"] = torch.from_numpy(zeros)
        if recipe.get("reorder"):  # it packs columns in their own order, which ct-4 shows
            return {}
    out = BaseCompressor.get_value_from_registry(recipe["format"]).compress(state, scheme)
    return {k: v.view(torch.uint8) if v.dtype == torch.float8_e4m3fn else v for k, v in out.items()}


def sparse(w, recipe):
    """Two of four columns: compressors that versions of compressed-tensors to 0.9 have."""
    module = importlib.import_module
    whole = module("compressed_tensors.compressors.sparse_compressors.sparse_24_bitmask").sparse24_bitmask_decompress
    order = module("compressed_tensors.compressors.sparse_quantized_compressors.marlin_24")
    if recipe["format"] != "marlin-24":  # which of two zeros is kept is nobody's concern
        ours = {k[2:]: x for k, x in quantized.masked("w", w, recipe).items()}
        numbers = ours["compressed"].view(np.uint8) if isinstance(w, quantized.Fp8) else ours["compressed"]
        codes = (w.codes - 128).astype(np.int8) if isinstance(w, quantized.Integers) else w.codes
        if not np.array_equal(whole(torch.from_numpy(numbers), torch.from_numpy(ours["bitmask"]), codes.shape).numpy(), codes):
            raise RuntimeError("compressed-tensors finds other numbers")
        return {}
    args = module("compressed_tensors.quantization").QuantizationArgs(**quantized.compressed_scheme(recipe))
    state = {"m.weight": torch.from_numpy(w.dequantized()), "m.weight_scale": torch.from_numpy(w.scales)}
    return {k[2:]: x for k, x in order.Marlin24Compressor().compress(state, {"m": args}).items()}


def hqq(w, recipe):
    from hqq.core.quantize import Quantizer

    packed = torch.from_numpy(w.packed())
    packing = "3bit_32" if w.bits == 3 else "8bit_u8" if w.bits > 4 else f"{w.bits}bit_u8"
    meta = {"packing": packing, "view_as_float": "float" in recipe, "unpack_view_dtype": packed.dtype, "nbits": w.bits, "group_size": w.group,
            "axis": w.axis, "shape": w.shape, "compute_dtype": torch.float32, "zero": torch.from_numpy(w.zero).float(),
            "scale": torch.from_numpy(w.scale).float()}
    packed = packed.view(torch.float32) if "float" in recipe else packed
    if not np.array_equal(Quantizer.dequantize(packed, meta).numpy(), w.dequantized()):
        raise RuntimeError("hqq finds other numbers")
    if "float" in recipe:
        return {}
    return {"W_q": Quantizer.pack[meta["packing"]](torch.from_numpy(w.codes.astype(np.int32)))}


def bitnet(w, recipe):
    bitnet = importlib.import_module("transformers.integrations.bitnet")
    if recipe.get("online"):
        with torch.compiler.set_stance("force_eager"):
            meant = bitnet.WeightQuant.apply(torch.from_numpy(w.x))
        if not np.allclose(meant.numpy(), w.dequantized(), rtol=1e-6):
            raise RuntimeError("transformers finds other numbers")
        return {}
    pack = bitnet.pack_weights
    return {"weight": pack(torch.from_numpy(w.codes.copy()))}


def torchao(w, recipe):
    """The library's tensors mean the same numbers; of those of 4 bits, which only GPUs unpack, the order is that of PyTorch's source."""
    if "tiles" in recipe:
        return {}
    from torchao.quantization import Float8Tensor, Int8Tensor, IntxUnpackedToInt8Tensor

    parts = {k[len("w._weight_"):]: x for k, x in quantized.torchao("w", w, recipe).items()}
    if isinstance(w, quantized.Fp8):
        tensor = Float8Tensor(torch.from_numpy(w.codes).view(torch.float8_e4m3fn), torch.from_numpy(w.scales), [1, w.codes.shape[1]], torch.float32)
    elif w.bits == 8:
        tensor = Int8Tensor(torch.from_numpy(parts["qdata"]), torch.from_numpy(w.scales.astype(np.float32)), [1, w.codes.shape[1]], torch.float32,
                            zero_point=torch.from_numpy(parts["zero_point"]))
    else:
        tensor = IntxUnpackedToInt8Tensor(torch.from_numpy(parts["qdata"]), torch.from_numpy(w.scales.astype(np.float32)),
                                          torch.from_numpy(parts["zero_point"]), torch.int4, (1, recipe["group"]), torch.float32, None)
    if not np.array_equal(tensor.dequantize().numpy(), w.dequantized()):
        raise RuntimeError("torchao finds other numbers")
    return {}


def quark(w, recipe):
    from quark.torch.utils.pack import create_pack_method

    if isinstance(w, quantized.Fp8):
        return {}
    pack = create_pack_method(recipe["scheme"], recipe["dtype"])
    if isinstance(w, quantized.Fp4):
        return {"weight": pack.pack(torch.from_numpy((w.values / np.repeat(w.scales, 32, 1)).astype(np.float32)), False)}
    half = {"int4": 8, "uint4": 0, "int8": 128}[recipe["dtype"]]
    reorder = not recipe.get("order")
    if w.bits == 8:
        return {"weight": pack.pack(torch.from_numpy(w.codes - half), reorder)}
    return {"weight": pack.pack(torch.from_numpy((w.codes - half).astype(np.int32)), reorder),
            "weight_zero_point": pack.pack(torch.from_numpy((w.zeros - half).astype(np.int32)), reorder)}


def mlx(w, recipe):
    import mlx.core as mx

    parts = [mx.array(np.ascontiguousarray(x)) for x in quantized.mlx("w", w, recipe).values()]
    parts = [x.astype(mx.float32) if x.dtype == mx.float16 else x for x in parts]
    meant = mx.dequantize(*parts, **quantized.mlx_config(recipe), dtype=mx.float32)
    if not np.allclose(np.array(meant), w.dequantized(), rtol=1e-6, atol=1e-7):
        raise RuntimeError("mlx finds other numbers")
    return {}


def fp8(w, recipe):
    from transformers.integrations import finegrained_fp8

    block = recipe["block"] if recipe["block"][0] > 0 else None
    scales = torch.from_numpy(w.scales if block else w.scales[0])
    codes = torch.from_numpy(w.codes).view(torch.float8_e4m3fn)
    meant = finegrained_fp8._dequantize_fp8_weight(codes, scales, block, torch.float32)
    if not np.array_equal(meant.numpy(), w.dequantized()):
        raise RuntimeError("transformers finds other numbers")
    return {}


def modelopt(w, recipe):
    """The packed numbers; scales are the caller's there as well. FP8 has nothing to pack."""
    if isinstance(w, quantized.Scaled):
        return modelopt(w.w, recipe)
    if isinstance(w, quantized.Integers):
        from modelopt.torch.export.quant_utils import pack_int4_in_uint8

        scales, zero = w.scales.astype(np.float32), 1 << (w.bits - 1)
        numbers = (w.codes.astype(np.float32) - zero) * np.repeat(scales, recipe["group"], axis=1)
        return {"weight": pack_int4_in_uint8(torch.from_numpy(numbers), torch.from_numpy(scales), recipe["group"])}
    if recipe.get("kind") == "nvfp4":
        from modelopt.torch.quantization.qtensor import NVFP4QTensor

        scales = torch.from_numpy(w.scale_codes).view(torch.float8_e4m3fn)
        packed, *_ = NVFP4QTensor.quantize(torch.from_numpy(w.dequantized()), recipe.get("group", 16), scales.float(), torch.tensor(float(1 / w.factor)))
        return {"weight": packed._quantized_data}
    return {}


def bnb(w, recipe):
    from bitsandbytes import functional

    if isinstance(w, quantized.Integers):
        return {}  # int8 and the scale of a row, times 127
    packed = {k[len("w.weight."):]: torch.from_numpy(np.ascontiguousarray(x.view(np.float32) if x.dtype.kind == "V" else x))
              for k, x in quantized.bnb("w", w, recipe).items() if k != "w.weight"}
    state = functional.QuantState.from_dict(packed, device="cpu")
    state.dtype = torch.float32
    meant = functional.dequantize_4bit(torch.from_numpy(w.packed), state).numpy()
    if not np.allclose(meant, w.dequantized(), rtol=1e-6, atol=1e-7):
        raise RuntimeError("bitsandbytes finds other numbers")
    return {}


def eetq(w, recipe):
    """A library that only GPUs build; the order is that of its cutlass_preprocessors.cc, compiled for a CPU and compared once."""
    return {}


LIBRARIES = {"eetq": eetq, "mlx": mlx, "hqq": hqq, "bitnet": bitnet, "torchao": torchao, "quark": quark, "auto_round": auto_round, "modelopt": modelopt, "bnb": bnb, "gptq": gptq, "awq": awq, "compressed": compressed, "fp8": fp8}


def check_mxfp4(arch):
    """transformers makes the same numbers of the blocks."""
    unpack = importlib.import_module("transformers.integrations.mxfp4").convert_moe_packed_tensors
    stored, _, meant = quantized.mxfp4(weights.build(SPECS[arch]))
    for name in filter(quantized.is_gpt_oss_expert, meant):
        parts = [torch.from_numpy(stored[f"{name}_{part}"]) for part in ("blocks", "scales")]
        if not np.array_equal(unpack(*parts, dtype=torch.float32).numpy(), meant[name]):
            raise RuntimeError(f"{arch}: {name} differs from what transformers makes of it")


def check(arch, recipe_name):
    recipe = quantized.RECIPES[recipe_name]
    if recipe["form"] == "mxfp4":
        check_mxfp4(arch)
        return
    form, _ = quantized.FORMS[recipe["form"]]
    for name, x in weights.build(SPECS[arch]).items():
        if not quantized.is_linear(name, x):
            continue
        w = quantized.weight_of(name, x.T if quantized.turned(name) else x, recipe)
        ours = form("w", w, {**recipe, "v2": False})  # auto-gptq writes version 1; 2 only keeps zeros as they are
        for part, theirs in LIBRARIES[recipe["form"]](w, recipe).items():
            mine, theirs = ours[f"w.{part}"], theirs.detach().numpy()
            if recipe["form"] == "awq" and mine.shape != theirs.shape:  # gemv: padding of another length
                columns = min(mine.shape[1], theirs.shape[1])
                mine, theirs = mine[:, :columns], theirs[:, :columns]
            mine = mine.view({1: np.uint8, 4: np.float32}[mine.itemsize]) if mine.dtype.kind == "V" else mine
            if not np.array_equal(mine, theirs.astype(mine.dtype) if mine.dtype == np.float16 else theirs):
                raise RuntimeError(f"{arch}, {recipe_name}: {name}, {part} differs from the library's")
