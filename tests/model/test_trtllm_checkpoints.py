# SPDX-License-Identifier: Apache-2.0
"""Quantized checkpoints of TensorRT-LLM's own converters: held against transformers' float32 of the numbers that they stand
for, what their weights become, and that one that lies is refused by tensor and field."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import check_goldens as cg  # noqa: E402
import hf_folder  # noqa: E402
import make_model  # noqa: E402
import quantized  # noqa: E402
import trtllm_checkpoint as tc  # noqa: E402
import weights  # noqa: E402
from specs import SPECS  # noqa: E402

NEREID = os.path.join(cg.ROOT, "build", "bin", "nereid")
DENSE = "transformer.layers.1.attention.dense"
# of each recipe: the golden of the same numbers, the type of a weight
MEANT = {"fp8": ("llama-fp8-tensor", "fp8"), "fp8-bytes": ("llama-fp8-tensor", "fp8"), "fp8-rows": ("llama-ct-fp8", "fp8"),
         "awq": ("llama-gptq-4", "q4_0"), "awq-uint8": ("llama-gptq-4", "q4_0"), "w4a8": ("llama-gptq-4", "q4_0"),
         "awq-columns": ("llama-modelopt-awq-columns", "q4_0"),
         "w4a8-columns": ("llama-modelopt-w4a8-columns", "q4_0"), "sq": ("llama-gptq-8-row", "int8"),
         "w8a16": ("llama-gptq-8-row", "int8"), "w8a16-rows": ("llama-gptq-8-row", "int8"), "w4a8-mxfp4": ("llama-ct-mxfp4", "q5_0"),
        "mxfp4": ("llama-ct-mxfp4", "q5_0"), "w4a16": ("llama-gptq-4-row", "q4_0"),
         "gptq": ("llama-gptq-4", "q4_0"), "gptq-8": ("llama-gptq-8", "q8_0"),
         "sq-channel-token": ("llama-gptq-8-row", "int8"), "sq-channel-tensor": ("llama-gptq-8-row", "int8")}


def run(*words):
    return subprocess.run([NEREID, *map(str, words)], capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture(scope="module")
def plain_of(tmp_path_factory):
    """A Llama's config.json without `nereid`, of a dtype."""
    made = {}
    for dtype in ("float16", "float32"):
        at = tmp_path_factory.mktemp("plain")
        make_model.write_folder("llama", str(at / "m"), dtype)
        assert run("convert", at / "m", "-o", at / "c").returncode == 0
        made[dtype] = json.loads((at / "c/config.json").read_text())
        del made[dtype]["nereid"]
    return made


def write(folder, plain, recipe, change=lambda tensors, quantization: None, order="tiles"):
    tensors, quantization = tc.checkpoint(weights.build(SPECS["llama"]), recipe, order)
    change(tensors, quantization)
    tc.write(folder, plain, tensors, quantization, plain["dtype"])


@pytest.mark.parametrize("recipe", MEANT)
def test_numbers_are_those_of_transformers(recipe, plain_of, tmp_path):
    name, kept = MEANT[recipe]
    write(tmp_path / "c", plain_of["float16"], recipe)
    shown = run("inspect", tmp_path / "c", "--tensors")
    assert shown.returncode == 0, shown.stderr
    row = next(line for line in shown.stdout.splitlines() if line.split()[:1] == [f"{DENSE}.weight"])
    assert f" {kept} " in row, row
    golden = cg.load_golden(name)
    cg.compare(golden, cg.evaluate([NEREID, "eval"], str(tmp_path / "c"), golden, str(tmp_path)), 1e-4)
    assert run("build", tmp_path / "c", "-o", tmp_path / "e").returncode == 0
    cg.compare(golden, cg.evaluate([NEREID, "eval"], str(tmp_path / "e"), golden, str(tmp_path)), 2e-2)


# what an engine for GPUs keeps
STANDS_FOR = {"nvfp4": "nvfp4", "nvfp4-linear": "nvfp4", "nvfp4-columns": "nvfp4", "w4a16-nvfp4": "nvfp4", "w4a8-nvfp4": "nvfp4",
              "w4a8-mxfp4": "q5_0", "mxfp4": "q5_0", "mxfp8": "mxfp8", "fp8-blocks": "fp8_b128", "w8a16-rows": "int8",
              "qserve-channel": "q4_1"}


def meant_by(recipe):
    return tc.meant(weights.build(SPECS["llama"]), recipe)


@pytest.mark.parametrize("name", cg.TRTLLM)
def test_numbers_are_those_of_a_golden_of_their_own(name, plain_of, tmp_path):
    write(tmp_path / "c", plain_of["float32"], cg.TRTLLM[name])
    golden = cg.load_golden(name)
    half_mins = name.endswith("qserve-group")  # Q4_1's, of groups
    cg.compare(golden, cg.evaluate([NEREID, "eval"], str(tmp_path / "c"), golden, str(tmp_path)), 2e-2 if half_mins else 1e-4)


@pytest.mark.parametrize("recipe, kept", STANDS_FOR.items())
def test_numbers_are_those_that_a_weight_stands_for(recipe, kept, plain_of, tmp_path):
    """Beside a folder of those floats."""
    write(tmp_path / "c", plain_of["float32"], recipe)
    assert logprobs_beside_floats(tmp_path / "c", meant_by(recipe), tmp_path) < 1e-4
    assert run("build", tmp_path / "c", "-o", tmp_path / "e", "--device", "rows").returncode == 0
    shown = run("inspect", tmp_path / "e", "--tensors").stdout
    assert any(line.split()[:2] == ["transformer.layers.1.mlp.proj.weight", kept] for line in shown.splitlines()), shown


def logprobs_beside_floats(folder, meant, tmp_path):
    """Those of the checkpoint, and of a folder of the floats that are meant."""
    spec, said = SPECS["llama"], []
    (tmp_path / "f").mkdir(exist_ok=True)
    hf_folder.write_safetensors(tmp_path / "f/model.safetensors", make_model.stored_tensors(spec, meant), "float32")
    hf_folder.write_json(tmp_path / "f/config.json", make_model.config_json(spec, "float32"))
    for each in (folder, tmp_path / "f"):
        (tmp_path / "in").write_text(json.dumps({"id": 1, "tokens": [1, *range(40, 100)]}) + "\n")
        done = run("eval", each, "--tokens", tmp_path / "in", "--out", tmp_path / "out", "--compute_dtype", "float32")
        assert done.returncode == 0, done.stderr
        said.append(np.array(json.loads((tmp_path / "out").read_text())["logprobs"][1:]))
    assert np.ptp(said[1]) > 1
    return np.abs(said[0] - said[1]).max()


def test_smoothers_divide_the_input(plain_of, tmp_path):
    recipe = quantized.RECIPES["gptq-8-row-columns"]
    meant = {name: quantized.weight_of(name, x, recipe).dequantized() if quantized.is_linear(name, x) else x
             for name, x in weights.build(SPECS["llama"]).items()}
    write(tmp_path / "c", plain_of["float32"], "sq-smoother")
    assert logprobs_beside_floats(tmp_path / "c", meant, tmp_path) < 1e-4
    shown = run("inspect", tmp_path / "c", "--tensors").stdout
    assert any(line.split()[:2] == ["transformer.layers.1.mlp.proj.weight", "int8"] for line in shown.splitlines()), shown


def test_qserve_in_groups_is_rounded_to_half_precision(plain_of, tmp_path, monkeypatch):
    """Scale and number of code 0 of each group, and nothing else."""
    write(tmp_path / "c", plain_of["float32"], "qserve-group")
    off = logprobs_beside_floats(tmp_path / "c", meant_by("qserve-group"), tmp_path)
    assert 1e-4 < off < 2e-2, off
    monkeypatch.setattr(tc.QServe, "dequantized", tc.QServe.of_halves)
    assert logprobs_beside_floats(tmp_path / "c", meant_by("qserve-group"), tmp_path) < 1e-4
    shown = run("inspect", tmp_path / "c", "--tensors").stdout
    assert any(line.split()[:2] == [f"{DENSE}.weight", "q4_1"] for line in shown.splitlines()), shown


def write_mixed(folder, plain, change=lambda tensors, quantization: None):
    tensors, quantization = tc.mixed(weights.build(SPECS["llama"]))
    change(tensors, quantization)
    tc.write(folder, plain, tensors, quantization, plain["dtype"])


def test_each_layer_has_the_algorithm_that_it_names(plain_of, tmp_path):
    """Their bytes are all of the type int8 in the file."""
    meant = weights.build(SPECS["llama"])
    for old, new in [*tc.LAYER.items(), *((x, "attention.qkv") for x in tc.QKV)]:
        for name in [name for name in meant if f".{old}." in name and meant[name].ndim == 2]:
            meant[name] = quantized.weight_of(name, meant[name], quantized.RECIPES[tc.RECIPES[tc.MIXED[new]][1]]).dequantized()
    write_mixed(tmp_path / "c", plain_of["float32"])
    assert logprobs_beside_floats(tmp_path / "c", meant, tmp_path) < 1e-4
    assert run("convert", tmp_path / "c", "-o", tmp_path / "e").returncode == 0
    shown = run("inspect", tmp_path / "e", "--tensors").stdout
    types = {line.split()[0]: line.split()[1] for line in shown.splitlines() if line.startswith("  transformer.layers.1.")}
    want = {"attention.qkv": "fp8", "attention.dense": "int8", "mlp.fc": "q4_0", "mlp.gate": "q4_0", "mlp.proj": "q4_0"}
    assert {stem: types[f"transformer.layers.1.{stem}.weight"] for stem in want} == want
    assert [name for name in types if name.endswith(".int8_input")] == [f"{DENSE}.int8_input"]


def test_layers_have_what_modelopt_alone_writes(plain_of, tmp_path):
    """Inputs in int8 are those of W8A8 alone."""
    of = {"attention.qkv": "nvfp4", "attention.dense": "w8a16-rows", "mlp.fc": "fp8-blocks", "mlp.gate": "w4a8-mxfp4", "mlp.proj": "nvfp4-columns"}
    meant = meant_by("w8a16-rows")
    for old, new in [*tc.LAYER.items(), *((x, "attention.qkv") for x in tc.QKV)]:
        if new in of:
            meant |= {name: x for name, x in meant_by(of[new]).items() if f".{old}." in name}
    tensors, quantization = tc.mixed(weights.build(SPECS["llama"]), of.get)
    tc.write(tmp_path / "c", plain_of["float32"], tensors, quantization, "float32")
    assert logprobs_beside_floats(tmp_path / "c", meant, tmp_path) < 1e-4
    assert run("build", tmp_path / "c", "-o", tmp_path / "e", "--device", "rows").returncode == 0
    shown = run("inspect", tmp_path / "e", "--tensors").stdout
    types = {line.split()[0]: line.split()[1] for line in shown.splitlines() if line.startswith("  transformer.layers.1.")}
    want = {"attention.qkv": "nvfp4", "attention.dense": "int8", "mlp.fc": "fp8_b128", "mlp.gate": "q5_0", "mlp.proj": "nvfp4"}
    assert {stem: types[f"transformer.layers.1.{stem}.weight"] for stem in want} == want
    assert not [name for name in types if name.endswith(".int8_input")], types


@pytest.mark.parametrize("change, message", [
    (lambda _, q: q["layers"].pop(DENSE), f"'{DENSE}' has quant_algo 'nothing'"),
    (lambda _, q: q["layers"][DENSE].update(quant_algo="W4A8_QSERVE_PER_GROUP"), f"'{DENSE}' has quant_algo 'W4A8_QSERVE_PER_GROUP'; known: FP8"),
    (lambda _, q: q["layers"][DENSE].update(quant_algo="W4A16"), f"'{DENSE}' has quant_algo 'W4A16'; known: FP8"),
    (lambda t, q: (q["layers"][DENSE].update(quant_algo="W8A16"), t.update({f"{DENSE}.per_channel_scale": t.pop(f"{DENSE}.weights_scaling_factor")})),
     f"'{DENSE}.weights_scaling_factor' is missing"),
    (lambda _, q: q["layers"][DENSE].update(has_zero_point=True), f"'{DENSE}' has quant_algo 'W8A8_SQ_PER_CHANNEL' and has_zero_point"),
    (lambda _, q: q["layers"][DENSE].update(quant_algo="W4A16_AWQ"), f"'{DENSE}.weights_scaling_factor' has shape ["),
    (lambda _, q: q.pop("layers"), "needs quant_cfg.json with an object quantized_layers, got no such file"),
    (lambda _, q: q.update(layers=[]), "needs quant_cfg.json with an object quantized_layers, got "),
])
def test_layers_that_name_no_algorithm_or_another_are_refused(change, message, plain_of, tmp_path):
    write_mixed(tmp_path / "c", plain_of["float16"], change)
    done = run("inspect", tmp_path / "c")
    assert done.returncode == 1 and message in done.stderr, done.stderr


@pytest.mark.parametrize("order", ["columns", "plain"])
@pytest.mark.parametrize("recipe", ["w8a16", "w4a16", "gptq", "gptq-zeros", "gptq-8"])
def test_weights_in_the_order_of_another_gpu_are_the_same(recipe, order, plain_of, tmp_path):
    for name in ("tiles", order):
        write(tmp_path / name, plain_of["float16"], recipe, order=name)
        done = run("convert", tmp_path / name, "-o", tmp_path / ("from_" + name))
        assert done.returncode == 0, done.stderr
    got, want = (safetensors_of(tmp_path / ("from_" + name) / "rank0.safetensors") for name in (order, "tiles"))
    assert got == want, sorted(name for name in want if got.get(name) != want[name])
    one, other = (safetensors_of(tmp_path / name / "rank0.safetensors") for name in (order, "tiles"))
    assert one[f"{DENSE}.weight"] != other[f"{DENSE}.weight"]


def test_an_order_that_cannot_be_told_is_refused(plain_of, tmp_path, monkeypatch):
    """Groups of a tile's columns look alike wherever the tile is."""
    monkeypatch.setitem(quantized.RECIPES, "gptq-4", {**quantized.RECIPES["gptq-4"], "group": 64})
    write(tmp_path / "c", plain_of["float16"], "gptq")
    done = run("inspect", tmp_path / "c")
    assert done.returncode == 1 and "cannot be told from them. Give the GPTQ folder itself" in done.stderr, done.stderr


def test_weights_of_one_folder_are_in_one_order(plain_of, tmp_path):
    write(tmp_path / "c", plain_of["float16"], "w8a16")
    other, _ = tc.checkpoint(weights.build(SPECS["llama"]), "w8a16", "columns")
    write(tmp_path / "c", plain_of["float16"], "w8a16", put("weight", lambda _: other[f"{DENSE}.weight"]))
    done = run("inspect", tmp_path / "c")
    assert done.returncode == 1 and f"'{DENSE}.weight' is in no order that is known" in done.stderr, done.stderr


def put(part, make):
    return lambda tensors, _: tensors.update({f"{DENSE}.{part}": make(tensors[f"{DENSE}.{part}"])})


def drop(part):
    return lambda tensors, _: tensors.pop(f"{DENSE}.{part}")


NAN = np.array([np.nan], np.float32).view("V4")
LIES = [
    ("fp8", put("weights_scaling_factor", lambda x: NAN), f"'{DENSE}.weights_scaling_factor' has the scale nan"),
    ("fp8", put("weights_scaling_factor", lambda x: np.zeros(3, np.float32).view("V4")), f"'{DENSE}.weights_scaling_factor' has shape [3]"),
    ("fp8", drop("weight"), f"tensor '{DENSE}.weight' is missing"),
    ("fp8-rows", put("per_channel_scale", lambda x: x[1:]), f"'{DENSE}.per_channel_scale' has shape ["),
    ("awq", put("weights_scaling_factor", lambda x: x[1:]), f"'{DENSE}.weights_scaling_factor' has shape ["),
    ("awq", lambda _, q: q.update(has_zero_point=True), "has_zero_point of W4A16_AWQ is not supported"),
    ("awq-columns", put("prequant_scaling_factor", lambda x: x[1:]), f"'{DENSE}.prequant_scaling_factor' has shape ["),
    ("nvfp4", drop("weights_scaling_factor_2"), f"tensor '{DENSE}.weights_scaling_factor_2' is missing"),
    ("nvfp4-linear", drop("weights_global_scaling_factor"), f"tensor '{DENSE}.weights_global_scaling_factor' is missing"),
    ("nvfp4-linear", put("weights_block_scaling_factor", lambda x: x[1:]), f"'{DENSE}.weights_block_scaling_factor' has shape ["),
    ("w4a8-nvfp4", put("weights_scaling_factor", lambda x: (x.view(np.uint8) | np.uint8(127)).view("V1")), f"'{DENSE}.weights_scaling_factor' has the scale nan"),
    ("w4a8-nvfp4", put("weights_scaling_factor_2", lambda x: NAN), f"'{DENSE}.weights_scaling_factor_2' is nan, expected a number above 0"),
    ("w4a8-mxfp4", put("weights_scaling_factor", lambda x: np.full_like(x, 255)), f"'{DENSE}.weights_scaling_factor' has the scale nan"),
    ("w4a8-mxfp4", put("weights_scaling_factor", lambda x: x[1:]), f"'{DENSE}.weights_scaling_factor' has shape ["),
    ("mxfp8", put("weights_scaling_factor", lambda x: x[1:]), f"'{DENSE}.weights_scaling_factor' has shape ["),
    ("fp8-blocks", put("weights_scaling_factor", lambda x: x[1:]), f"'{DENSE}.weights_scaling_factor' has shape [1, 2], expected [2, 2]"),
    ("fp8-blocks", put("weights_scaling_factor", lambda x: np.full(x.shape, np.nan, np.float32).view("V4")),
     f"'{DENSE}.weights_scaling_factor' has the scale nan"),
    ("w8a16-rows", put("weights_scaling_factor", lambda x: x[1:]), f"'{DENSE}.weights_scaling_factor' has shape ["),
    ("qserve-group", drop("s2_zeros"), f"tensor '{DENSE}.s2_zeros' is missing"),
    ("qserve-group", put("s2_scales", lambda x: x[:, 1:]), f"'{DENSE}.s2_scales' has shape [2, 255], expected [2, 256]"),
    ("qserve-group", put("s2_scales", lambda x: np.concatenate([x, x[:1]])), f"'{DENSE}.s2_scales' has 2 dimensions and 3 groups"),
    ("qserve-group", put("s2_scales", lambda x: -x), f"'{DENSE}.s2_scales' has the scale -"),
    ("qserve-group", put("s2_zeros", lambda x: x.astype(np.float32)), f"'{DENSE}.s2_zeros' has type "),
    ("qserve-group", put("weight", lambda x: x[1:]), f"'{DENSE}.weight' is 255 x 256, expected multiples of 32"),
    ("qserve-group", put("weight", lambda x: x[0]), f"'{DENSE}.weight' has shape [128], expected "),
    ("qserve-channel", put("s1_scales", lambda x: x[1:]), f"'{DENSE}.s1_scales' has shape [255], expected [256]"),
    ("qserve-channel", put("s1_szeros", lambda x: np.full_like(x, np.nan)), f"'{DENSE}.s1_szeros' gives row 0, group 0 no finite number"),
    ("qserve-channel", drop("s1_szeros"), f"tensor '{DENSE}.s1_szeros' is missing"),
    ("sq", put("weights_scaling_factor", lambda x: x[1:]), f"'{DENSE}.weights_scaling_factor' has shape ["),
    ("w8a16", put("per_channel_scale", lambda x: x[1:]), f"'{DENSE}.per_channel_scale' has shape ["),
    ("w4a16", drop("weight"), f"tensor '{DENSE}.weight' is missing"),
    ("w8a16", put("weight", lambda x: x[0]), f"'{DENSE}.weight' has one dimension, expected [in, out]"),
    ("w8a16", put("weight", lambda x: x.astype(np.float32)), f"'{DENSE}.weight' has type "),
    ("w8a16", put("weight", np.sort), f"'{DENSE}.weight' is in no order that is known"),
    ("w4a16", lambda tensors, _: tensors.update({k: np.zeros_like(x) for k, x in tensors.items() if x.dtype == np.int8}),
     "attention.dense.weight' is in no order that is known"),
    ("gptq", put("zero", lambda x: x + x.dtype.type(0.01)), f"'{DENSE}.zero' gives row 0, group 0 the zero point "),
    ("gptq", put("zero", lambda x: x[:, 1:]), f"'{DENSE}.zero' has shape ["),
    ("gptq", put("weights_scaling_factor", lambda x: x[:, 1:]), f"'{DENSE}.weights_scaling_factor' has shape ["),
    ("gptq", put("weight", lambda x: x[1:]), f"'{DENSE}.weights_scaling_factor' has 2 groups, which do not divide 255 columns"),
    ("gptq", put("weight", lambda x: x[0]), "expected bytes as float16 or bfloat16, and two"),
    ("gptq-zeros", drop("zero"), f"tensor '{DENSE}.zero' is missing"),
    ("sq-channel-token", put("weight", lambda x: x.astype(np.float32)), f"'{DENSE}.weight' has type "),
    ("sq-channel-token", put("per_channel_scale", lambda x: x[:, 1:]), f"'{DENSE}.per_channel_scale' has shape ["),
    ("sq-smoother", put("smoother", lambda x: np.zeros(x.shape, np.float32).view("V4")), f"'{DENSE}.smoother' has 0 for column 0"),
    ("sq-channel-tensor", put("act_scale", lambda x: NAN), f"'{DENSE}.act_scale' is nan, expected a number above 0"),
    ("sq-channel-tensor", lambda tensors, _: tensors.pop("transformer.layers.1.mlp.quantization_scaling_factor"),
     "'transformer.layers.1.mlp.quantization_scaling_factor' is missing"),
]


@pytest.mark.parametrize("recipe, lie, message", LIES)
def test_one_that_lies_is_refused(recipe, lie, message, plain_of, tmp_path):
    write(tmp_path / "c", plain_of["float16"], recipe, lie)
    done = run("inspect", tmp_path / "c")
    assert done.returncode == 1 and message in done.stderr, done.stderr


def test_scales_beside_an_output_layer_in_floats_are_not_used(plain_of, tmp_path):
    """Exporters write them where the layer was left out of the quantization."""
    more = {f"lm_head.{part}": np.array([3], np.float32).view("V4") for part in ("weights_scaling_factor", "activation_scaling_factor")}
    write(tmp_path / "c", plain_of["float16"], "fp8", lambda tensors, _: tensors.update(more))
    shown = run("inspect", tmp_path / "c", "--tensors")
    assert shown.returncode == 0, shown.stderr
    row = next(line for line in shown.stdout.splitlines() if line.split()[:1] == ["lm_head.weight"])
    assert " float16 " in row, row


def shares(tensors, rank, heads, kv_heads):
    """What one of two ranks has of FP8 by rows: rows of qkv, fc and gate, columns of dense and proj."""
    out = {}
    for name, x in tensors.items():
        if ".attention.qkv." in name:
            d = len(x) // (heads + 2 * kv_heads)
            parts = np.split(x, [heads * d, (heads + kv_heads) * d])
            out[name] = np.concatenate([np.split(part, 2)[rank] for part in parts])
        elif ".mlp.fc." in name or ".mlp.gate." in name or name == "lm_head.weight":
            out[name] = np.split(x, 2)[rank]
        else:
            by_columns = name.endswith((".dense.weight", ".proj.weight"))
            out[name] = np.ascontiguousarray(np.split(x, 2, 1)[rank]) if by_columns else x
    return out


def test_each_rank_has_its_share(plain_of, tmp_path):
    """The same as the ranks that are made of Hugging Face's folder with the same weights."""
    plain = plain_of["float16"]
    tensors, quantization = tc.checkpoint(weights.build(SPECS["llama"]), "fp8-rows")
    config = {**plain, "mapping": {"world_size": 2, "tp_size": 2, "pp_size": 1}}
    for rank in (1, 0):
        own = shares(tensors, rank, plain["num_attention_heads"], plain["num_key_value_heads"])
        tc.write(tmp_path / "c", config, own, quantization, "float16")
        if rank:
            os.rename(tmp_path / "c/rank0.safetensors", tmp_path / "c/rank1.safetensors")
    make_model.write_folder("llama", str(tmp_path / "m"), "float16", recipe="ct-fp8")
    assert run("convert", tmp_path / "m", "-o", tmp_path / "from_m", "--tp_size", 2).returncode == 0
    done = run("convert", tmp_path / "c", "-o", tmp_path / "from_c")
    assert done.returncode == 0, done.stderr
    for rank in range(2):
        got, want = (safetensors_of(tmp_path / folder / f"rank{rank}.safetensors") for folder in ("from_c", "from_m"))
        assert got == want, sorted(name for name in want if got.get(name) != want[name])


def safetensors_of(path):
    raw = path.read_bytes()
    n = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8:8 + n])
    header.pop("__metadata__", None)
    return {name: (t["dtype"], t["shape"], raw[8 + n + t["data_offsets"][0]:8 + n + t["data_offsets"][1]]) for name, t in header.items()}
