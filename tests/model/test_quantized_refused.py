# SPDX-License-Identifier: Apache-2.0
"""Quantized folders that lie, or that nobody here reads, are refused by tensor and field."""

import json
import os
import sys

import numpy as np
import pytest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from test_quantized import LAYER, run, write  # noqa: E402
import make_model  # noqa: E402


def put(name, value):
    return lambda tensors, fields: tensors.__setitem__(f"{LAYER}.{name}", value(tensors[f"{LAYER}.{name}"]))


def at(index, value):
    def change(x):
        x = x.copy()
        x[index] = value
        return x
    return change


def without(name):
    return lambda tensors, fields: tensors.pop(f"{LAYER}.{name}")


def field(**more):
    return lambda tensors, fields: fields.update(more)


def rotated(*locations, targets=("Linear",), **more):
    apply = [{"targets": list(targets), "location": at, "inverse": False, "ignore": []} for at in locations]
    return field(transform_config={"config_groups": {"R": {"type": "hadamard", "apply": apply, "randomize": False}}}, **more)


def narrow(tensors, fields):
    """248 rows, which fill words of 4 bits."""
    for part, n in (("qweight", 248), ("qzeros", 31), ("scales", 248)):
        tensors[f"{LAYER}.{part}"] = tensors[f"{LAYER}.{part}"][:, :n]


def beside(tensors, fields):
    tensors[f"{LAYER}.weight"] = np.zeros((256, 512), np.float32)


LIES = [
    ("gptq-4", put("scales", at((0, 3), np.nan)), f"'{LAYER}.scales' has the scale nan for row 3, group 0"),
    ("gptq-4", put("scales", at((1, 0), np.inf)), "has the scale inf for row 0, group 1"),
    ("ct-fp8", put("weight_scale", at((3, 0), np.float32(-1).tobytes())), "has the scale -1 for row 3, group 0; expected a number that is not below 0"),
    ("gptq-4", put("scales", lambda x: x[:2]), f"'{LAYER}.scales' has shape [2, 256], expected [4, 256]"),
    ("gptq-4", put("scales", lambda x: x.astype(np.int32)), f"'{LAYER}.scales' has type I32, expected float32, float16"),
    ("gptq-4", without("scales"), f"tensor '{LAYER}.scales' is missing"),
    ("gptq-4", without("qzeros"), f"tensor '{LAYER}.qzeros' is missing"),
    ("gptq-4", put("qzeros", lambda x: x[:, :-1]), f"'{LAYER}.qzeros' has shape [4, 31], expected [4, 32]"),
    ("gptq-4", put("qweight", lambda x: x.reshape(-1)), f"'{LAYER}.qweight' has shape [16384]"),
    ("gptq-4", put("qweight", lambda x: x.astype(np.float32)), f"'{LAYER}.qweight' has type F16, expected"),
    ("gptq-4", put("qweight", lambda x: x[:0]), f"'{LAYER}.qweight' is empty"),
    ("gptq-4", put("qweight", lambda x: x[:32]), f"'{LAYER}.qzeros' has shape [4, 32], expected [2, 32]"),
    ("gptq-4", put("g_idx", at(7, 4)), f"'{LAYER}.g_idx' names group 4 for column 7"),
    ("gptq-4", put("g_idx", at(7, -1)), f"'{LAYER}.g_idx' names group -1 for column 7"),
    ("gptq-4", put("g_idx", lambda x: x[:-1]), f"'{LAYER}.g_idx' has shape [511], expected [512]"),
    ("gptq-4", beside, f"'{LAYER}.weight' is there beside '{LAYER}.qweight'"),
    ("gptq-4", field(group_size=100), "down_proj.qzeros' has shape [4, 32], expected [6, 32]"),
    ("gptq-4", field(group_size=0), "group_size must be -1 or above 0, got 0"),
    ("gptq-4", field(group_size="128"), "'group_size' must be a whole number"),
    ("gptq-4", field(bits=5), "bits '5' is not supported; known: 2, 3, 4, 8"),
    ("gptq-4", field(bits=8), "down_proj.qzeros' has shape [4, 32], expected [2, 64]"),
    ("gptq-4", field(checkpoint_format="marlin"), "checkpoint_format 'marlin' is not supported; known: gptq, gptq_v2, gptq_p"),
    ("gptq-p-4", narrow, f"'{LAYER}.qweight': 248 rows of 512 columns; 'gptq_p' has 32 of both at a time"),
    ("gptq-p-5", field(bits=9), "'bits' must be"),
    ("gptq-p-3", field(checkpoint_format="gptq", bits=5), "bits '5' is not supported; known: 2, 3, 4, 8"),
    ("gptq-p-5", field(bits=3), "down_proj.qweight' has shape"),
    ("gptq-p-5", put("qzeros", lambda x: x[:, :-1]), f"'{LAYER}.qzeros' has shape [8, 39], expected [8, 40]"),
    ("gptq-4", field(pack_dtype="int16"), "pack_dtype 'int16' is not supported"),
    ("gptq-4", field(dynamic={"+:.*mlp.*": {"format": "marlin"}}), "the rule '+:.*mlp.*' of 'dynamic' has 'format', which is not supported"),
    ("gptq-4", lambda t, f: [field(dynamic={"+:.*mlp.*": {"bits": 8}})(t, f), put("scales", lambda x: x[:3])(t, f)],
     f"'{LAYER}.scales' has 3 groups, which do not divide 512 columns"),
    ("gptq-4", lambda t, f: [field(dynamic={"+:.*mlp.*": {"bits": 8}})(t, f), put("qzeros", lambda x: x[:, :-1])(t, f)],
     f"'{LAYER}.qzeros' has shape [4, 31], expected [4, 32]"),
    ("auto-round", field(data_type="mx_int"), "data_type 'mx_int' is not supported; known: int"),
    ("auto-round", field(extra_config={"model.layers.0.mlp.up_proj": {"data_type": "nvfp4_v2"}}), "data_type 'nvfp4_v2' is not supported"),
    ("auto-round", field(rotation_config={"block_size": 32}), "rotation_config 'object' is not supported; known: none"),
    ("auto-round", field(packing_format="mlx"), "packing_format 'mlx' is not supported; known: auto_round:auto_gptq"),
    ("auto-round", field(act_bits=8), "act_bits '8' is not supported; known: 16, with data_type int"),
    ("auto-round", field(fmt="e5m2"), "fmt 'e5m2' is not supported"),
    ("auto-round", field(group_size=[128]), "group_size 'array' is not supported"),
    ("auto-round", field(bits=1), "'bits' must be a whole number from 2 to 8"),
    ("auto-round-awq", field(bits=8), "bits '8' is not supported; known: 4, with packing_format auto_round:auto_awq"),
    ("auto-round", without("scales"), f"tensor '{LAYER}.scales' is missing"),
    ("hqq-4", put("shape", lambda x: x * 2), f"'{LAYER}.W_q' has shape [1024, 64], expected [4096, 64]"),
    ("hqq-4", put("shape", at(0, -1)), f"'{LAYER}.shape' says -1 x 512"),
    ("hqq-4", put("shape", lambda x: x[:1]), f"'{LAYER}.shape' has shape [1], expected [2]"),
    ("hqq-4", put("nbits", lambda x: np.int32(9).reshape(())), f"'{LAYER}.nbits' is 9, expected 1 to 8"),
    ("hqq-4", put("nbits", lambda x: np.float32(1.58).reshape(()).view("V4")), f"'{LAYER}.nbits' has type F32, expected int32"),
    ("hqq-4", put("axis", lambda x: np.int32(2).reshape(())), f"'{LAYER}.axis' is 2, expected 0 to 1"),
    ("hqq-4", put("axis", lambda x: np.int32(0).reshape(())), f"'{LAYER}.W_q' has shape [1024, 64], expected [32, 2048]"),
    ("hqq-4", put("group_size", lambda x: np.int32(0).reshape(())), f"'{LAYER}.group_size' is 0, expected 1 to "),
    ("hqq-4", put("group_size", lambda x: np.int32(96).reshape(())), f"'{LAYER}.W_q': groups of 96 numbers with 4 bits do not fill 256 x 512"),
    ("hqq-4", put("scale", at((3, 0), np.nan)), f"'{LAYER}.scale' holds nan at 3"),
    ("hqq-4", put("zero", lambda x: x[1:]), f"'{LAYER}.zero' has shape [2047, 1], expected [2048, 1]"),
    ("hqq-4", put("W_q", lambda x: x.astype(np.int32)), f"'{LAYER}.W_q' has type I32, expected uint8"),
    ("hqq-4", without("axis"), f"tensor '{LAYER}.axis' is missing"),
    ("hqq-3-columns", put("zero", at((0, 5), np.inf)), f"'{LAYER}.zero' holds inf at 5"),
    ("mlx-4", put("weight", lambda x: x[1:]), f"'{LAYER}.scales' has shape [256, 8], expected [255, 8]"),
    ("mlx-4", put("weight", lambda x: x[:, 1:]), f"'{LAYER}.scales' has 8 groups; 504 columns of 4 bits in groups of 64 have 7"),
    ("mlx-4", put("weight", lambda x: x.view(np.int32)), f"'{LAYER}.weight' has type I32, expected U32"),
    ("mlx-4", put("weight", lambda x: x[None, None]), f"'{LAYER}.weight' has 4 dimensions, expected [out, words] or [experts, out, words]"),
    ("mlx-4", put("scales", lambda x: x[None, :-1]), f"'{LAYER}.scales' has shape "),
    ("mlx-4", put("scales", at((2, 3), np.nan)), f"'{LAYER}.scales' has the scale nan for row 2, group 3"),
    ("mlx-4", put("biases", at((2, 3), np.inf)), f"'{LAYER}.biases' gives row 2, group 3 no finite number"),
    ("mlx-4", put("biases", lambda x: x[:, 1:]), f"'{LAYER}.biases' has shape [256, 7], expected [256, 8]"),
    ("mlx-4", without("biases"), f"tensor '{LAYER}.biases' is missing"),
    ("mlx-4", field(bits=8), " has 8 groups; 256 columns of 8 bits in groups of 64 have 4"),
    ("mlx-4", field(bits=7), "bits '7' is not supported; known: 2, 3, 4, 5, 6, 8"),
    ("mlx-4", field(mode="nf4"), "mode 'nf4' is not supported; known: affine, mxfp4, mxfp8, nvfp4"),
    ("mlx-4", field(**{LAYER: {"bits": 4, "group_size": 0}}), "'group_size' must be a whole number from 1"),
    ("mlx-mxfp4", put("scales", at((2, 1), 255)), f"'{LAYER}.scales' has the scale nan for row 2, group 1"),
    ("mlx-mxfp4", put("scales", lambda x: x[:, 1:]), f"'{LAYER}.scales' has 15 groups, which do not divide 512 columns"),
    ("bitnet", put("weight_scale", lambda x: np.float32([0]).view("V4")), f"'{LAYER}.weight_scale' is 0, expected a number above 0"),
    ("bitnet", put("weight_scale", lambda x: np.float32([1, 1]).view("V4")), f"'{LAYER}.weight_scale' has 8 bytes, expected one number"),
    ("bitnet", put("weight", lambda x: x.view(np.int8)), f"'{LAYER}.weight' has type I8, expected uint8"),
    ("bitnet-auto", field(quantization_mode="later"), "quantization_mode 'later' is not supported; known: offline, online"),
    ("bitnet-online", put("weight", at((2, 3), np.inf)), f"'{LAYER}.weight' has numbers that are not finite"),
    ("bitnet", field(linear_class="other"), "linear_class 'other' is not supported; known: bitlinear, autobitlinear"),
    ("bitnet", field(use_rms_norm=True), "use_rms_norm 'boolean' is not supported; known: false"),
    ("torchao-int8", put("_weight_qdata", lambda x: x.view(np.uint8)), f"'{LAYER}._weight_qdata' has type U8; of torchao int8, float8"),
    ("torchao-int8", put("_weight_scale", at((7, 0), np.nan)), f"'{LAYER}._weight_scale' has the scale nan for row 7"),
    ("torchao-int8", put("_weight_zero_point", lambda x: x[1:]), f"'{LAYER}._weight_zero_point' has 255 bytes of type I8, expected 256"),
    ("torchao-intx", put("_weight_scale", lambda x: x.T), f"'{LAYER}._weight_zero_point' has type I8, expected float32, float16"),
    ("torchao-int4", put("_weight_scale", lambda x: x[:7]), f"'{LAYER}._weight_scale' has 7 groups, which do not divide 512 columns"),
    ("torchao-int4", put("_weight_zero_point", lambda x: x[:4]), f"'{LAYER}._weight_zero_point' has shape [4, 256], expected [8, 256]"),
    ("torchao-int4", without("_weight_zero_point"), f"'{LAYER}._weight_zero_point'"),
    ("torchao-tiles", put("_weight_qdata", lambda x: x[:, :, :31]), f"'{LAYER}._weight_qdata' is [32, 4, 31, 4], expected tiles"),
    ("torchao-tiles", put("_weight_scale_and_zero", lambda x: x[..., :1]), f"'{LAYER}._weight_scale_and_zero' has 3 dimensions, expected"),
    ("torchao-tiles", put("_weight_scale_and_zero", lambda x: x[:, 1:]), f"'{LAYER}._weight_scale_and_zero' has shape [4, 510], expected [4, 512]"),
    ("torchao-tiles", put("_weight_scale_and_zero", at((1, 2, 0), np.nan)), f"'{LAYER}._weight_scale_and_zero' has the scale nan for row 2, group 1"),
    ("hqq-4-float", put("W_q", lambda x: x[:, 1:]), f"'{LAYER}.W_q' has shape [1024, 60], expected [1024, 64]"),
    ("torchao-floats", put("_weight_zero_point", lambda x: x[:, 1:]), f"'{LAYER}._weight_zero_point' has another shape than"),
    ("torchao-floats", put("_weight_zero_point", at((2, 3), np.inf)), f"'{LAYER}._weight_zero_point' gives row 2, group 3 no finite number"),
    ("torchao-fp8", put("_weight_scale", lambda x: x[1:]), f"'{LAYER}._weight_scale' has shape [255, 1]"),
    ("quark-int4", put("weight", lambda x: x[:384]), f"'{LAYER}.weight_scale' has shape [4, 256], expected [3, 256]"),
    ("quark-int4", put("weight_scale", lambda x: x[:, 1:]), f"'{LAYER}.weight_scale' has shape [4, 255], expected [4, 256]"),
    ("quark-int4", put("weight_zero_point", lambda x: x[1:]), f"'{LAYER}.weight_zero_point' has shape [3, 32], expected [4, 32]"),
    ("quark-uint4", without("weight_zero_point"), f"'{LAYER}.weight' has no 'weight_zero_point' beside it, which uint4 needs"),
    ("quark-uint4", put("weight", lambda x: x.astype(np.int64)), f"'{LAYER}.weight' has type I64, expected float8_e4m3fn, uint8, int8 or int32"),
    ("quark-int4", field(export={"pack_method": "other"}), "pack_method 'other' is not supported; known: reorder, order"),
    ("quark-int4", field(export={"weight_format": "fake_quantized"}), "weight_format 'fake_quantized' is not supported"),
    ("quark-int4", field(algo_config=[{"name": "rotation"}]), "algo_config 'rotation' is not supported"),
    ("quark-int4", field(layer_quant_config={"*v_proj": {"weight": {"dtype": "uint4", "qscheme": "per_group"}}}), "weight.dtype 'uint4' is not supported; known: one of"),
    ("quark-int4", field(layer_quant_config={"*v_proj": {"weight": {"dtype": "int3", "qscheme": "per_group"}}}), "weight.dtype 'int3' is not supported; known: fp8_e4m3"),
    ("quark-int4", field(global_quant_config={"weight": [{"dtype": "fp8_e4m3"}, {"dtype": "int4"}]}), "weight.dtype 'array' is not supported"),
    ("quark-int4", field(global_quant_config={"weight": {"dtype": "int4", "qscheme": "per_channel"}}), "weight.qscheme 'per_channel' is not supported"),
    ("quark-int8", put("weight_scale", at(3, np.nan)), f"'{LAYER}.weight_scale' has the scale nan for row 3"),
    ("quark-mxfp4", put("weight_scale", lambda x: x[:1, :1]), f"'{LAYER}.weight_scale' is one number, expected one for each block of 1 x 32 numbers"),
    ("ct-mxfp8", put("weight_scale", lambda x: x[:1, :1].reshape(())), f"'{LAYER}.weight_scale' is one number, expected one for each block of 1 x 32 numbers"),
    ("mxfp8", put("weight_scale_inv", lambda x: np.repeat(x, 2, 1)), f"'{LAYER}.weight_scale_inv' has an exponent for each 16 columns, expected 32"),
    ("modelopt-nvfp4", put("weight_scale", lambda x: x[:1, :1]), f"'{LAYER}.weight_scale' is one number, expected one for each block of 1 x 16 numbers"),
    ("fp8", put("weight_scale_inv", lambda x: x[:1, :1]), f"'{LAYER}.weight_scale_inv' is one number, expected one for each block of 128 x 128 numbers"),
    ("quark-mxfp4", put("weight_scale", at((2, 1), 255)), f"'{LAYER}.weight_scale' has the scale nan for row 2, group 1"),
    ("gptq-4", field(quant_method="aqlm"), "quant_method 'aqlm' is not supported; known: gptq, awq"),
    ("awq", put("scales", at((0, 3), np.nan)), f"'{LAYER}.scales' has the scale nan for row 3, group 0"),
    ("awq", put("qzeros", lambda x: x[:1]), f"'{LAYER}.qzeros' has shape [1, 32], expected [8, 32]"),
    ("awq", field(bits=8), "bits '8' is not supported; known: 4"),
    ("awq", field(version="gemv_fast"), "version 'gemv_fast' is not supported; known: gemm, gemv"),
    ("awq", field(pack_method="order"), "pack_method 'order' is not supported; known: reorder"),
    ("awq", field(backend="llm-awq"), "backend 'llm-awq' is not supported; known: autoawq"),
    ("awq-gemv", put("qzeros", lambda x: x[:, :0]), f"'{LAYER}.qzeros' has 0 words a row; 8 groups need 1"),
    ("awq-gemv", put("scales", lambda x: x[:, 1:]), f"'{LAYER}.scales' has shape [256, 15], expected [256, 16]"),
    ("fp8", put("weight_scale_inv", lambda x: x[:1]), f"'{LAYER}.weight_scale_inv' has shape [1, 4], expected [2, 4]"),
    ("fp8", put("weight_scale_inv", lambda x: x.view(np.int32)), f"'{LAYER}.weight_scale_inv' has type I32, expected"),
    ("fp8", put("weight", lambda x: x.view(np.uint8)), f"'{LAYER}.weight' has type U8, expected fp8"),
    ("fp8", put("weight", at((5, 6), np.uint8(127).tobytes())), f"'{LAYER}.weight' has a NaN in row 5"),
    ("fp8", put("weight_scale_inv", at((0, 1), np.float32(np.nan).tobytes())), "has the scale nan for row 0, group 1"),
    ("fp8", field(weight_block_size=[128]), "weight_block_size must be two numbers above 0"),
    ("fp8", field(weight_block_size=[0, 128]), "weight_block_size must be two numbers above 0"),
    ("fp8", field(fmt="e5m2"), "fmt 'e5m2' is not supported; known: e4m3"),
    ("fp8-tensor", put("weight", at((255, 0), np.uint8(255).tobytes())), f"'{LAYER}.weight' has a NaN in row 255"),
    ("ct-4", put("weight_shape", lambda x: x * 2), f"'{LAYER}.weight_packed' has shape [256, 64], expected [512, 64]"),
    ("ct-4", put("weight_shape", at(1, 2048)), f"'{LAYER}.weight_shape' says 256 x 2048; rows of"),
    ("ct-4", put("weight_shape", at(0, -1)), f"'{LAYER}.weight_shape' says -1 x 512"),
    ("ct-4", put("weight_shape", at(0, 255)), f"'{LAYER}.weight_packed' has shape [256, 64], expected [255, 64]"),
    ("ct-4", put("weight_shape", lambda x: x[:1]), f"'{LAYER}.weight_shape' has shape [1], expected [2]"),
    ("ct-4", without("weight_shape"), f"tensor '{LAYER}.weight_shape' is missing"),
    ("ct-4", without("weight_packed"), f"tensor '{LAYER}.weight' is missing"),
    ("ct-4", put("weight_scale", lambda x: x[:128]), f"'{LAYER}.weight_scale' has shape [128, 4], expected [256, 4]"),
    ("ct-4", put("weight_scale", lambda x: x[:, :3]), f"'{LAYER}.weight_scale' has shape [256, 3], expected [256, 4]"),
    ("ct-4", lambda t, f: [put("weight_scale", lambda x: x[:, :3])(t, f), f["config_groups"]["group_0"]["weights"].pop("group_size")],
     f"'{LAYER}.weight_scale' has 3 groups, which do not divide 512 columns"),
    ("ct-4-asym", put("weight_zero_point", lambda x: x[:-1]), f"'{LAYER}.weight_zero_point' has shape [31, 8], expected [32, 8]"),
    ("ct-4-asym", without("weight_zero_point"), f"tensor '{LAYER}.weight_zero_point' is missing"),
    ("awq", without("scales"), f"tensor '{LAYER}.scales' is missing"),
    ("bnb-int8", put("SCB", lambda x: np.full(x.shape, np.nan, np.float32).view("V4")), f"'{LAYER}.SCB' has the scale nan for row 0"),
    ("modelopt-fp8", put("weight_scale", lambda x: np.asarray(np.float32(np.nan)).view("V4")), f"'{LAYER}.weight_scale' has the scale nan"),
    ("ct-4-order", put("weight_g_idx", at(3, 9)), f"'{LAYER}.weight_g_idx' names group 9 for column 3"),
    ("ct-8-row", put("weight", lambda x: x.view(np.uint8)), f"'{LAYER}.weight' has type U8"),
    ("ct-8-row", put("weight_scale", at((0, 0), np.nan)), f"'{LAYER}.weight_scale' has the scale nan for row 0"),
    ("ct-nvfp4", put("weight_global_scale", lambda x: np.float32([0]).view("V4")), f"'{LAYER}.weight_global_scale' is 0"),
    ("ct-nvfp4", without("weight_global_scale"), f"tensor '{LAYER}.weight_global_scale' is missing"),
    ("ct-mxfp4", put("weight_scale", at((2, 1), 255)), f"'{LAYER}.weight_scale' has the scale nan for row 2, group 1"),
    ("ct-4", field(format="mxfp6-pack-quantized"), "format 'mxfp6-pack-quantized' is not supported; known: pack-quantized"),
    ("eetq", field(weights="int4"), "weights 'int4' is not supported; known: int8"),
    ("eetq", without("weight_scales"), f"'{LAYER}.weight'"),
    ("eetq", put("weight_scales", lambda x: x[1:]), f"'{LAYER}.weight_scales' has shape [255], expected [256]"),
    ("eetq", put("weight", lambda x: np.zeros_like(x)), f"'{LAYER}.weight' is in no order that is known"),
    ("ct-24", put("bitmask", lambda x: x | 1), f"'{LAYER}.weight' does not have half of its columns in row"),
    ("ct-24-fp8", put("bitmask", lambda x: x & 127), f"'{LAYER}.weight' does not have half of its columns in row"),
    ("ct-24", put("bitmask", lambda x: x[:, :-1]), f"'{LAYER}.bitmask' has shape [256, 63], expected [256, 64]"),
    ("ct-24", put("compressed", lambda x: x[:-1]), f"'{LAYER}.compressed' has shape [255, 256], expected [256, 256]"),
    ("ct-24", put("shape", lambda x: x + 1), f"'{LAYER}.shape' says 257 x 513, expected rows, and columns that are a multiple of 8"),
    ("ct-24-fp8", without("weight_scale"), f"'{LAYER}.weight_scale' is missing"),
    ("ct-marlin-4", put("meta", lambda x: x[:, :-64]), f"'{LAYER}.weight_packed': 512 words a row"),
    ("ct-marlin-4", put("meta", lambda x: x[:-1]), f"'{LAYER}.meta' has shape [15, 512], expected [16, 512]"),
    ("ct-marlin-4", put("scale_packed", lambda x: x[:-1]), f"'{LAYER}.scale_packed' has 3 groups, which do not divide 512 columns"),
    ("ct-4", field(quantization_status="frozen"), "quantization_status 'frozen' is not supported; known: compressed"),
    ("ct-4", field(sparsity_config={"format": "sparse-bitmask"}), "sparsity_config.format 'sparse-bitmask' is not"),
    ("ct-4", rotated("weight_input", "output"), "transform_config: location 'output' is not supported; known: weight_input, weight_output, input of a hadamard, q_attn with k_cache"),
    ("ct-4", rotated("input"), ".R_input.weight' is missing, and no other module has one"),
    ("ct-4", rotated("input", "input"), "' twice"),
    ("ct-4", rotated("input", targets=["re:(?i)x"]), "transform_config: targets 're:(?i)x' is not supported"),
    ("ct-4", rotated("input", targets=["re:("]), "transform_config: targets 're:(' is not supported"),
    ("ct-4", rotated("input", targets=["lm_head"]), "transform_config turns the input of 'lm_head', whose weight is not quantized"),
    ("ct-4", lambda t, f: (rotated("input", targets=[LAYER])(t, f), t.update({LAYER + ".R_input.weight": np.ones((48, 48), np.float16)})),
     "turns 48 columns at a time, expected at most 512 that divide the 512 of"),
    ("ct-4", rotated("q_attn"), "location 'q_attn' is not supported; known: q_attn and k_cache of one hadamard, without kv_cache_scheme"),
    ("ct-4", rotated("q_attn", "k_cache", kv_cache_scheme={"type": "int", "num_bits": 8}), "location 'q_attn' is not supported; known: q_attn and k_cache of one"),
    ("modelopt-w4a8-nvfp4", put("weight_scale", lambda x: x[:, :-1]), f"'{LAYER}.weight_scale' has "),
    ("modelopt-w4a8-mxfp4", put("weight_scale", at((2, 1), 255)), f"'{LAYER}.weight_scale' has the scale nan for row 2, group 1"),
    ("modelopt-fp8-blocks", put("weight_scale", lambda x: x[1:]), f"'{LAYER}.weight_scale' has shape [1, 4], expected [2, 4]"),
    ("modelopt-w8a16", put("weight_scale", lambda x: x[1:]), f"'{LAYER}.weight_scale' has shape [255], expected [256]"),
    ("modelopt-nvfp4", without("weight_scale_2"), f"tensor '{LAYER}.weight_scale_2' is missing"),
    ("modelopt-awq", put("weight_scale", lambda x: x[1:]), f"'{LAYER}.weight_scale' has shape [255, 4], expected [256, 4]"),
    ("modelopt-awq-columns", put("pre_quant_scale", lambda x: x[1:]), f"'{LAYER}.pre_quant_scale' has shape [511], expected [512]"),
    ("modelopt-awq-columns", put("pre_quant_scale", at(3, np.float32(np.nan).tobytes())),
     f"'{LAYER}.pre_quant_scale' has nan for column 3"),
    ("modelopt-fp8", field(quant_algo="W4A8_MXFP4_MXFP8"), "quant_algo 'W4A8_MXFP4_MXFP8' is not supported; known: FP8"),
    ("ct-mxfp8", put("weight_scale", at((2, 1), 255)), f"'{LAYER}.weight_scale' has the scale nan for row 2, group 1"),
    ("ct-mxfp8", put("weight_scale", lambda x: x[:, 1:]), f"'{LAYER}.weight_scale' has shape [256, 15], expected [256, 16]"),
    ("ct-4", field(format="mxfp6-pack-quantized"), "format 'mxfp6-pack-quantized' is not supported; known: pack-quantized"),
    ("bnb-nf4", put("weight.absmax", at(7, np.float32(np.nan).tobytes())), f"'{LAYER}.weight.absmax' holds nan at 7"),
    ("bnb-nf4", put("weight.absmax", lambda x: x[1:]), f"'{LAYER}.weight.absmax' has shape [2047], expected [2048]"),
    ("bnb-nf4", put("weight.quant_map", lambda x: x[1:]), f"'{LAYER}.weight.quant_map' has shape [15], expected [16]"),
    ("bnb-nf4", put("weight", lambda x: x[1:]), f"'{LAYER}.weight' has shape [65535, 1], expected [65536, 1]"),
    ("bnb-nf4", put("weight.quant_state.bitsandbytes__nf4", lambda x: x[1:]),
     f"'{LAYER}.weight.quant_state.bitsandbytes__nf4'"),
    ("bnb-nf4", without("weight.quant_state.bitsandbytes__nf4"), "bitsandbytes__fp4' is missing"),
    ("bnb-nf4-double", without("weight.nested_absmax"), f"tensor '{LAYER}.weight.nested_absmax' is missing"),
    ("bnb-nf4-double", put("weight.nested_absmax", lambda x: x[1:]), f"'{LAYER}.weight.nested_absmax' has shape [7], expected [8]"),
    ("bnb-nf4", field(bnb_4bit_quant_storage="bfloat16"), "bnb_4bit_quant_storage 'bfloat16' is not supported; known: uint8"),
    ("bnb-int8", put("SCB", lambda x: x[1:]), f"'{LAYER}.SCB' has shape [255], expected [256]"),
    ("bnb-int8", put("weight_format", lambda x: np.uint8(1).reshape(())), "only the format 0 (rows) is supported"),
    ("awq-gemv", field(group_size=16), "down_proj.qzeros' has 2 words a row; 32 groups need 4"),
]


@pytest.mark.parametrize("recipe, change, message", LIES, ids=[f"{r}: {m}" for r, _, m in LIES])
def test_a_folder_that_lies_is_refused_by_tensor_and_field(recipe, change, message, tmp_path):
    write(tmp_path, recipe, change)
    done = run("convert", tmp_path, "-o", tmp_path / "out")
    assert done.returncode == 1, done.stdout
    assert message in done.stderr


def test_inspect_says_why_a_folder_is_not_read_that_has_a_tokenizer(tmp_path):
    make_model.write_folder("llama", str(tmp_path))
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "quantization_config": {"quant_method": "aqlm"}}))
    shown = run("inspect", tmp_path)
    assert shown.returncode == 1 and "quant_method 'aqlm' is not supported; known: gptq" in shown.stderr, shown.stderr
    assert shown.stdout.startswith("tokenizer ")
    (tmp_path / "model.safetensors").unlink()
    assert run("inspect", tmp_path).returncode == 0  # a tokenizer and what it belongs to


# quantization.quant_algo of TensorRT-LLM's checkpoints
# that are not read; test_trtllm_checkpoints.py has those that are
ALGORITHMS = ["FP8_BLOCK_SCALES", "INT8", "W4A8_MXFP4_MXFP8", "W4A16_MXFP4"]


def test_quantized_checkpoints_of_other_converters_are_refused_by_algorithm(tmp_path):
    make_model.write_folder("llama", str(tmp_path / "m"))
    assert run("convert", tmp_path / "m", "-o", tmp_path / "c").returncode == 0
    config = json.loads((tmp_path / "c/config.json").read_text())
    del config["nereid"]
    for name in [None, *ALGORITHMS]:
        config["quantization"]["quant_algo"] = name
        (tmp_path / "c/config.json").write_text(json.dumps(config))
        done = run("inspect", tmp_path / "c")
        assert done.returncode == (name is not None), done.stderr
        assert name is None or f"quantization '{name}' of a checkpoint made by another converter" in done.stderr
