# SPDX-License-Identifier: Apache-2.0
"""Quantized Hugging Face folders beyond their goldens (test_goldens.py): what their weights become, division among
ranks and notes about what is unpacked. Folders that lie: test_quantized_refused.py."""

import json
import os
import re
import struct
import subprocess
import sys

import gguf
import numpy as np
import pytest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import check_goldens as cg  # noqa: E402
import gguf_file  # noqa: E402
import hf_folder  # noqa: E402
import make_model  # noqa: E402
import quantized  # noqa: E402
import weights  # noqa: E402
from specs import SPECS  # noqa: E402

NEREID = os.path.join(cg.ROOT, "build", "bin", "nereid")
LAYER = "model.layers.1.mlp.down_proj"


def run(*words):
    return subprocess.run([NEREID, *map(str, words)], capture_output=True, text=True, timeout=120, check=False)


def write(folder, recipe, change=lambda tensors, fields: None, arch="llama", dtype="float16"):
    """A folder of which `change` has changed tensors and fields."""
    spec = SPECS[arch]
    tensors, fields, meant = quantized.quantized(weights.build(spec), recipe)
    config = make_model.config_json(spec, dtype)
    change(tensors, fields)
    config["quantization_config"] = fields
    os.makedirs(folder, exist_ok=True)
    hf_folder.write_safetensors(os.path.join(folder, "model.safetensors"), make_model.stored_tensors(spec, tensors), dtype)
    hf_folder.write_json(os.path.join(folder, "config.json"), config)
    return meant


TYPES = {"gptq-4": "q4_0", "gptq-4-asym": "q4_1", "gptq-3": "q4_0", "gptq-2": "q4_0", "gptq-8": "q8_0", "gptq-8-asym": "q8_1",
         "gptq-p-3": "q4_0", "gptq-p-4": "q4_0", "gptq-p-5": "q5_0", "gptq-p-6": "q8_0", "gptq-p-7": "q8_0", "gptq-p-8": "q8_0",
         "gptq-8-row": "int8", "gptq-4-row": "q4_0", "gptq-4-order": "q4_0", "gptq-4-16": "float16", "awq": "q4_1", "awq-gemv": "q4_1",
         "auto-round": "q4_0", "auto-round-asym": "q4_1", "auto-round-awq": "q4_1", "auto-round-5": "q5_0", "auto-round-mxfp4": "q5_0",
         "hqq-4": "q4_1", "hqq-2": "q4_1", "hqq-5": "q5_1", "hqq-6": "q8_1", "hqq-8": "q8_1", "hqq-3-columns": "float16", "hqq-4-float": "q4_1", "hqq-3-float": "float16", "bitnet": "q4_0", "bitnet-auto": "q4_0", "bitnet-online": "q4_0",
         "torchao-int8": "int8", "torchao-fp8": "fp8", "torchao-intx": "q4_1", "torchao-floats": "q4_1", "torchao-int4": "q4_1", "torchao-tiles": "q4_1", "torchao-tiles-2": "q4_1",
         "quark-int4": "q4_0", "quark-uint4": "q4_1", "quark-int8": "int8", "quark-fp8": "fp8", "quark-fp8-blocks": "fp8_b128", "quark-mxfp4": "q5_0",
         "mlx-2": "q4_1", "mlx-3": "q4_1", "mlx-4": "q4_1", "mlx-5": "q5_1", "mlx-6": "q8_1", "mlx-8": "q8_1", "mlx-mxfp4": "q5_0", "mlx-mxfp8": "mxfp8",
         "fp8": "fp8_b128", "fp8-tensor": "fp8", "fbgemm": "fp8", "mxfp8": "mxfp8", "ct-4": "q4_0", "ct-4-asym": "q4_1", "ct-4-order": "q4_0", "ct-8": "q8_0", "ct-8-asym": "q8_1",
         "ct-8-row": "int8", "ct-fp8": "fp8", "ct-fp8-tensor": "fp8", "ct-nvfp4": "nvfp4", "ct-mxfp4": "q5_0",
         "modelopt-fp8": "fp8", "modelopt-nvfp4": "nvfp4", "modelopt-awq": "q4_0", "modelopt-w4a8-nvfp4": "nvfp4", "modelopt-w4a8-mxfp4": "q5_0", "modelopt-fp8-blocks": "fp8_b128", "modelopt-fp8-real": "fp8_b128",
         "modelopt-w8a16": "int8", "modelopt-w8a8": "int8",
         "ct-24": "float16", "ct-24-fp8": "fp8", "ct-24-int8": "int8", "ct-marlin-4": "q4_0", "ct-marlin-8": "int8",
         "ct-mxfp8": "mxfp8", "modelopt-mxfp8": "mxfp8", "modelopt-w4a8": "q4_0", "modelopt-awq-columns": "q4_0", "modelopt-w4a8-columns": "q4_0", "modelopt-nvfp4-columns": "nvfp4", "bnb-nf4": "nf4", "bnb-fp4": "fp4", "bnb-int8": "int8", "eetq": "int8"}


@pytest.mark.parametrize("recipe", TYPES)
def test_weights_become_the_type_that_holds_their_numbers(recipe, tmp_path):
    write(tmp_path, recipe)
    shown = run("inspect", tmp_path, "--tensors")
    assert shown.returncode == 0, shown.stderr
    row = next(line for line in shown.stdout.splitlines() if line.split()[:1] == [f"{LAYER}.weight"])
    assert f" {TYPES[recipe]} " in row, row


def logprobs(folder, tmp_path):
    (tmp_path / "in").write_text(json.dumps({"id": 1, "tokens": [1, *range(40, 100)]}) + "\n")
    done = run("eval", folder, "--tokens", tmp_path / "in", "--out", tmp_path / "out", "--compute_dtype", "float32")
    assert done.returncode == 0, done.stderr
    return np.array(json.loads((tmp_path / "out").read_text())["logprobs"][1:])


@pytest.mark.parametrize("recipe", ["gptq-p-5", "gptq-p-6", "gptq-p-7", "auto-round-5", "hqq-2", "hqq-5", "hqq-6", "hqq-8", "gptq-8-asym", "ct-8-asym", "mlx-2", "mlx-3", "mlx-5", "mlx-6", "mlx-8",
                                    "torchao-int4", "torchao-tiles", "torchao-tiles-2", "hqq-4-float", "hqq-3-float", "bitnet-online", "eetq", "ct-24", "ct-24-fp8", "ct-24-int8", "ct-marlin-4", "ct-marlin-8"])
def test_bits_that_no_golden_has_mean_their_numbers(recipe, tmp_path):
    """Beside a folder of the floats that they stand for."""
    meant = write(tmp_path / "q", recipe, dtype="float32")
    small = recipe in ("hqq-2", "hqq-5", "hqq-4-float", "mlx-2", "mlx-3", "mlx-5") or "torchao" in recipe or recipe == "bitnet-online"
    check_numbers(tmp_path, meant, 2e-2 if small else 4e-3 if TYPES[recipe] == "q8_1" else 1e-4)


def check_numbers(tmp_path, meant, tolerance):
    """The folder `q` gives the log probabilities of one of floats."""
    spec = SPECS["llama"]
    (tmp_path / "f").mkdir()
    hf_folder.write_safetensors(tmp_path / "f/model.safetensors", make_model.stored_tensors(spec, meant), "float32")
    hf_folder.write_json(tmp_path / "f/config.json", make_model.config_json(spec, "float32"))
    said = [logprobs(tmp_path / folder, tmp_path) for folder in ("q", "f")]
    assert np.abs(said[0] - said[1]).max() < tolerance
    assert np.ptp(said[1]) > 1


@pytest.mark.parametrize("tied", [False, True])
def test_mlx_has_quantized_embeddings_and_modules_with_bits_of_their_own(tied, tmp_path):
    """`quantization` is all that the folder has; biases of half precision need no rounding."""
    arch = "llama3-tied" if tied else "llama"
    spec, kind = SPECS[arch], quantized.RECIPES["mlx-4"]
    stored, meant, fields = {}, {}, quantized.mlx_config(kind)
    for name, x in weights.build(spec).items():
        own = {**kind, "bits": 3, "group": 32} if name.endswith("down_proj.weight") else kind
        if x.ndim != 2:
            stored[name] = meant[name] = x
            continue
        w, stem = quantized.weight_of(name, x, own), name[:-len(".weight")]
        stored.update(quantized.mlx(stem, w, own))
        meant[name] = w.dequantized()
        if own is not kind:
            fields[stem] = quantized.mlx_config(own)
    config = make_model.config_json(spec, "float32")
    for folder, tensors, more in (("q", stored, {"quantization": fields}), ("f", meant, {})):
        (tmp_path / folder).mkdir()
        hf_folder.write_safetensors(tmp_path / folder / "model.safetensors", make_model.stored_tensors(spec, tensors), "float32")
        hf_folder.write_json(tmp_path / folder / "config.json", {**config, **more})
    said = [logprobs(tmp_path / folder, tmp_path) for folder in ("q", "f")]
    assert np.abs(said[0] - said[1]).max() < 1e-3
    assert np.ptp(said[1]) > 1
    types = types_of(tmp_path / "q")
    assert types["model.embed_tokens.weight"] == "q4_1" and types[f"{LAYER}.weight"] == "q4_1"


def mlx_experts(tensors, own, kind):
    """What mlx-lm makes of a layer's experts: a tensor of all for each matrix. Returns the folder's tensors and what they mean."""
    stored, meant, stacks = {}, dict(tensors), {}
    places = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}
    for name, x in tensors.items():
        each = re.fullmatch(r"(.*)\.experts\.(\d+)\.(\w+)\.weight", name)
        if each:
            stacks.setdefault(f"{each[1]}.switch_mlp.{places.get(each[3], each[3])}", []).append((name, x))
        elif ".experts.gate_up_proj" in name:  # gpt-oss: [experts, in, 2 out], columns by turns
            stem, is_bias = name.split("gate_up_proj")[0], name.endswith("_bias")
            for i, part in enumerate(("gate_proj", "up_proj")):
                if is_bias:
                    stored[f"{stem}{part}.bias"] = x[:, i::2]
                else:
                    stacks[stem + part] = [((name, e, i), m[:, i::2].T) for e, m in enumerate(x)]
        elif ".experts.down_proj" in name:
            if name.endswith("_bias"):
                stored[name.replace("_bias", ".bias")] = x
            else:
                stacks[name] = [((name, e), m.T) for e, m in enumerate(x)]
        elif name.endswith("_linear.weight"):  # Granite: [experts, out, in], gate over up
            stem, half = name.rsplit(".", 2)[0], x.shape[1] // 2
            parts = {"down_proj": slice(None)} if "output" in name else {"gate_proj": slice(half), "up_proj": slice(half, None)}
            for part, rows in parts.items():
                stacks[f"{stem}.switch_mlp.{part}"] = [((name, e, rows), m[rows]) for e, m in enumerate(x)]
        elif name.endswith("kv_b_proj.weight"):  # of each head; the keys' part turned
            stem, n_keys = name[:-len("kv_b_proj.weight")], 32
            heads = x.reshape(3, -1, x.shape[1])
            stacks[stem + "embed_q"] = [((name, h, slice(n_keys), "turned"), m[:n_keys].T) for h, m in enumerate(heads)]
            stacks[stem + "unembed_out"] = [((name, h, slice(n_keys, None)), m[n_keys:]) for h, m in enumerate(heads)]
            meant[name] = heads.copy()
        else:
            stored[name] = x
    for stem, matrices in stacks.items():
        made = []
        for place, x in matrices:
            w = quantized.weight_of(stem, x, own)
            made.append(quantized.mlx(stem, w, kind))
            if isinstance(place, str):
                meant[place] = w.dequantized()
                continue
            name, e, *part = place
            meant[name] = meant[name].copy() if e == 0 else meant[name]
            if part and isinstance(part[0], slice):
                meant[name][e][part[0]] = w.dequantized().T if part[1:] else w.dequantized()
            else:
                meant[name][e][:, slice(part[0], None, 2) if part else slice(None)] = w.dequantized().T
        stored.update({k: np.stack([m[k] for m in made]) for k in made[0]})
    return stored, {name: x.reshape(-1, x.shape[-1]) if name.endswith("kv_b_proj.weight") else x for name, x in meant.items()}


@pytest.mark.parametrize("arch, recipe, kept", [("qwen3_moe", "mlx-4", "q4_1"), ("mixtral", "mlx-4", "q4_1"), ("granitemoe", "mlx-5", "q5_1"), ("deepseek_v3", "mlx-4", "q4_1"),
                                                ("gpt_oss-32", "mlx-mxfp4", "mxfp4"), ("qwen3_moe", "mlx-mxfp8", "mxfp8"), ("qwen3_moe", "mlx-8", "q8_1")])
def test_mlx_has_a_tensor_of_all_experts(arch, recipe, kept, tmp_path):
    spec, wide = SPECS[arch], {72: 96, 54: 64, 24: 32, 90: 96, 180: 192} if arch != "gpt_oss-32" else {}
    if arch == "deepseek_v3":
        wide.update({30: 64, 84: 120, 44: 72, 36: 64, 102: 192, 42: 96, 108: 128, 20: 32, 14: 32})
    rng, kind = np.random.default_rng(7), {**quantized.RECIPES[recipe]}
    kind.update({"group": 32} if "bits" in kind else {})
    tensors = {name: (x.mean() + x.std() * rng.standard_normal([wide.get(n, n) for n in x.shape])).astype(np.float32) if wide else x
               for name, x in weights.build(spec).items()}
    stored, meant = mlx_experts(tensors, kind, kind)
    config = {k: wide.get(v, v) if k.endswith(("_size", "head_dim", "_rank")) else v for k, v in make_model.config_json(spec, "float32").items()}
    for folder, numbers, more in (("q", stored, {"quantization": quantized.mlx_config(kind)}), ("f", meant, {})):
        (tmp_path / folder).mkdir()
        hf_folder.write_safetensors(tmp_path / folder / "model.safetensors", make_model.stored_tensors(spec, numbers), "float32")
        hf_folder.write_json(tmp_path / folder / "config.json", {**config, **more})
    done = run("build", tmp_path / "q", "-o", tmp_path / "rows", "--device", "rows")
    assert done.returncode == 0, done.stderr
    types = {name.rsplit("experts.")[-1]: kind for name, kind in types_of(tmp_path / "rows").items() if ".1.mlp.experts." in name and "bias" not in name}
    assert types == dict.fromkeys(("fc.weight", "gate.weight", "proj.weight"), kept)
    said = [logprobs(tmp_path / folder, tmp_path) for folder in ("q", "f")]
    assert np.abs(said[0] - said[1]).max() < 0.02, np.abs(said[0] - said[1]).max()
    assert np.ptp(said[1]) > 1


QUANTO = {"qint8": lambda x: quantized.Integers("", x, 8, -1, True), "qfloat8_e4m3fn": lambda x: quantized.Fp8(x, [1, -1]),
          "qint4": lambda x: quantized.Shifted(x, 4, 128, False), "qint4-whole": lambda x: quantized.Shifted(x, 4, 64, True),
          "qint2": lambda x: quantized.Shifted(x, 2, 128, False)}


def write_quanto(folder, kind, change=lambda tensors, qmap: None, config=lambda c: None):
    stored, meant, qmap = {}, {}, {}
    for name, x in weights.build(SPECS["llama"]).items():
        if not quantized.is_linear(name, x) and name != "lm_head.weight":
            stored[name] = meant[name] = x
            continue
        w, stem = QUANTO[kind](x), name[:-len(".weight")]
        parts, said = quantized.quanto(stem, w)
        stored.update({**parts, f"{stem}.input_scale": np.float16(1).reshape(()), f"{stem}.output_scale": np.float16(1).reshape(())})
        qmap[stem] = {"weights": said, "activations": "none"}
        meant[name] = w.dequantized()
    change(stored, qmap)
    os.makedirs(folder, exist_ok=True)
    keys = make_model.config_json(SPECS["llama"], "float32")
    config(keys)
    hf_folder.write_safetensors(folder / "model.safetensors", stored, "float32")
    hf_folder.write_json(folder / "config.json", keys)
    hf_folder.write_json(folder / "quanto_qmap.json", qmap)
    return meant


@pytest.mark.parametrize("kind, kept", [("qint8", "int8"), ("qfloat8_e4m3fn", "fp8"), ("qint4", "q4_1"), ("qint4-whole", "q4_1"), ("qint2", "q4_1")])
def test_a_map_beside_the_model_says_what_quanto_made(kind, kept, tmp_path):
    meant = write_quanto(tmp_path / "q", kind)
    types = types_of(tmp_path / "q")
    assert {types[f"{LAYER}.weight"], types["model.layers.0.self_attn.k_proj.weight"], types["lm_head.weight"]} == {kept}
    check_numbers(tmp_path, meant, 2e-2 if kept == "q4_1" else 1e-4)


def test_columns_that_torchao_adds_are_left_out(tmp_path):
    """Its tiles have a multiple of 1,024 columns, whatever the matrix has."""
    def change(tensors, fields):
        for name in [name for name in tensors if name.endswith("_weight_qdata")]:
            scales = name.replace("qdata", "scale_and_zero")
            more = (-tensors[name].shape[1] * 128 % 1024) // 128
            tensors[name] = np.pad(tensors[name], ((0, 0), (0, more), (0, 0), (0, 0)), constant_values=7)
            tensors[scales] = np.pad(tensors[scales], ((0, more), (0, 0), (0, 0)), constant_values=3)
    meant = write(tmp_path / "q", "torchao-tiles", change, dtype="float32")
    assert types_of(tmp_path / "q")[f"{LAYER}.weight"] == "q4_1"
    check_numbers(tmp_path, meant, 2e-2)


@pytest.mark.parametrize("kind, change, message", [
    ("qint4", lambda t, m: m[LAYER].update(weights="qint3"), f"'{LAYER}' has weights 'qint3'; known with groups: qint4, qint2"),
    ("qint4", lambda t, m: m.pop(LAYER), f"quanto_qmap.json: '{LAYER}' has weights '"),
    ("qint4", lambda t, m: t.pop(f"{LAYER}.weight._shift"), f"tensor '{LAYER}.weight._shift' is missing"),
    ("qint4", lambda t, m: t.update({f"{LAYER}.weight._scale": t[f"{LAYER}.weight._scale"][1:]}), "1023 groups of 128 columns do not fill rows of 512"),
    ("qint4", lambda t, m: t.update({f"{LAYER}.weight._shift": t[f"{LAYER}.weight._shift"][1:]}), f"'{LAYER}.weight._shift' has shape [1023, 1], expected [1024, 1]"),
    ("qint4", lambda t, m: t.update({f"{LAYER}.weight._data._data": t[f"{LAYER}.weight._data._data"][1:]}), f"'{LAYER}.weight._data._data' has shape [511, 128]"),
    ("qint4", lambda t, m: t.update({k.replace(LAYER, "model.layers.1.mlp.other"): t.pop(k) for k in list(t) if k.startswith(LAYER)}),
     "'model.layers.1.mlp.other' has weights '"),
    ("qint8", lambda t, m: t.pop(f"{LAYER}.weight._scale"), f"tensor '{LAYER}.weight._scale' is missing")])
def test_a_folder_of_quanto_that_lies_is_refused(kind, change, message, tmp_path):
    write_quanto(tmp_path, kind, change)
    done = run("inspect", tmp_path)
    assert done.returncode == 1 and message in done.stderr, done.stderr


def test_columns_of_quanto_are_those_of_the_configuration(tmp_path):
    write_quanto(tmp_path, "qint4", config=lambda c: c.update(intermediate_size=0))
    done = run("inspect", tmp_path)
    assert done.returncode == 1, done.stdout


@pytest.mark.parametrize("recipe", ["auto-round", "gptq-4-asym", "gptq-8", "gptq-8-row", "ct-4-act"])
def test_scales_may_be_negative(recipe, tmp_path):
    """AutoRound's of symmetric weights have the sign of the number that is largest in its group."""
    floats, own, kind = weights.build(SPECS["llama"]), {}, quantized.RECIPES[recipe]

    def change(tensors, _):
        for name in [name for name in floats if name.endswith("down_proj.weight")]:
            w = quantized.weight_of(name, floats[name], kind)
            w.scales[::2, ::2] *= -1
            tensors.update({k: np.ascontiguousarray(x) for k, x in quantized.FORMS[kind["form"]][0](name[:-len(".weight")], w, kind).items()})
            own[name] = w.dequantized()
    meant = write(tmp_path / "q", recipe, change, dtype="float32")
    check_numbers(tmp_path, {**meant, **own}, 2e-2 if recipe == "gptq-4-asym" else 1e-4)


@pytest.mark.parametrize("recipe, other, rules", [
    ("gptq-4", {"bits": 8}, {"dynamic": {r"+:.*\.down_proj": {"bits": 8}, r"-:.*\.lm_head": {}}}),
    ("gptq-4", {"bits": 3, "group": 32}, {"dynamic": {r".*\.down_proj": {"bits": 3, "group_size": 32}}}),
    ("auto-round", {"bits": 8, "group": -1}, {"extra_config": {r".*down_proj": {"bits": 8, "group_size": -1}}}),
    ("auto-round-awq", {"group": 128}, {"extra_config": {r".*down_proj": {"group_size": 128}}})])
def test_a_module_may_have_bits_and_groups_of_its_own(recipe, other, rules, tmp_path):
    floats, own = weights.build(SPECS["llama"]), {}

    def change(tensors, fields):
        for name in [name for name in floats if name.endswith("down_proj.weight")]:
            kind = {**quantized.RECIPES[recipe], **other}
            w = quantized.weight_of(name, floats[name], kind)
            tensors.update({k: np.ascontiguousarray(x) for k, x in quantized.FORMS[kind["form"]][0](name[:-len(".weight")], w, kind).items()})
            own[name] = w.dequantized()
        fields.update(rules)
    meant = write(tmp_path / "q", recipe, change, dtype="float32")
    check_numbers(tmp_path, {**meant, **own}, 2e-2 if recipe == "auto-round-awq" else 1e-4)


def test_experts_of_mxfp4_stay_in_four_bits(tmp_path):
    """17 bytes for 32 numbers, in an engine file, too."""
    write(tmp_path / "model", "mxfp4", arch="gpt_oss-32", dtype="bfloat16")
    assert run("build", tmp_path / "model", "-o", tmp_path / "engine", "--device", "rows").returncode == 0
    for path, name in ((tmp_path / "model", "model.layers.1.mlp.experts.down_proj.weight"),
                       (tmp_path / "engine", "transformer.layers.1.mlp.experts.proj.weight")):
        shown = run("inspect", path, "--tensors")
        assert shown.returncode == 0, shown.stderr
        row = next(line for line in shown.stdout.splitlines() if line.split()[:1] == [name])
        assert row.split()[1:] == ["mxfp4", "672", "x", "96", f"{672 * 96 // 32 * 17 / 1000:.1f}", "kB"], row


@pytest.mark.parametrize("recipe, kept, size", [("fp8", "fp8_b128", 132 / 128), ("ct-mxfp8", "mxfp8", 33 / 32), ("ct-nvfp4", "nvfp4", 40 / 64),
                                                ("bnb-nf4", "nf4", 36 / 64), ("bnb-fp4", "fp4", 36 / 64)])
def test_types_for_gpus_stay_in_an_engine_for_them(recipe, kept, size, tmp_path):
    """An engine for CPUs has 16 bits and says so; a CPU that opens the one for GPUs unpacks its weights to bfloat16."""
    name = f"llama-{recipe}"
    model, golden = cg.write_tiny(name, str(tmp_path)), cg.load_golden(name)
    for device in ("rows", "cpu"):
        done = run("build", model, "-o", tmp_path / device, "--device", device)
        assert done.returncode == 0, done.stderr
        assert (f"matrices of {kept} are unpacked to" in done.stderr) == (device == "cpu"), done.stderr
        row = next(line for line in run("inspect", tmp_path / device, "--tensors").stdout.splitlines()
                   if line.split()[:1] == ["transformer.layers.1.mlp.proj.weight"]).split()
        if device == "rows":
            rows, cols = int(row[2]), int(row[4])
            assert row[1] == kept and row[5] == f"{rows * cols * size / 1000:.1f}", row
        else:
            assert row[1] in ("float16", "float32", "bfloat16"), row
    cg.compare(golden, cg.evaluate([NEREID, "eval"], str(tmp_path / "rows"), golden, str(tmp_path)), 2e-2)


@pytest.mark.parametrize("arch", ["llama", "qwen3_moe"])
def test_fp8_of_rows_runs_on_a_cpu(arch, tmp_path):
    """In 16 bits, which is said; with float32 arithmetic from its own numbers."""
    write(tmp_path / "m", "ct-fp8", arch=arch, dtype="bfloat16")
    done = run("build", tmp_path / "m", "-o", tmp_path / "e")
    assert done.returncode == 0 and "a CPU unpacks " in done.stderr and " matrices of fp8 to bfloat16 when it loads them" in done.stderr, done.stderr
    (tmp_path / "in").write_text(json.dumps({"id": 1, "tokens": [1, *range(40, 100)]}) + "\n")
    said = []
    for more in ([], ["--compute_dtype", "float32"]):
        done = run("eval", tmp_path / "e", "--tokens", tmp_path / "in", "--out", tmp_path / "out", *more)
        assert done.returncode == 0, done.stderr
        said.append(np.array(json.loads((tmp_path / "out").read_text())["logprobs"][1:]))
    assert np.abs(said[0] - said[1]).max() < 0.2 and np.ptp(said[1]) > 5  # a router chooses others where two are near


def built_experts(recipe, tmp_path):
    """The types of a layer's experts in an engine for GPUs, and what building it said. A CPU that unpacks them has the log
    probabilities of the numbers that they stand for."""
    spec, wide, rng = SPECS["qwen3_moe"], {72: 256, 54: 256, 24: 64}, np.random.default_rng(7)
    tensors = {name: x.mean() + x.std() * rng.standard_normal([wide.get(n, n) for n in x.shape], np.float32)
               for name, x in weights.build(spec).items()}
    stored, fields, meant = quantized.quantized(tensors, recipe)
    config = {**make_model.config_json(spec, "float32"), "hidden_size": 256, "moe_intermediate_size": 256,
              "num_attention_heads": 4, "head_dim": 64}
    for folder, numbers, more in (("q", stored, {"quantization_config": fields}), ("f", meant, {})):
        (tmp_path / folder).mkdir()
        hf_folder.write_safetensors(tmp_path / folder / "model.safetensors", make_model.stored_tensors(spec, numbers), "float32")
        hf_folder.write_json(tmp_path / folder / "config.json", {**config, **more})
    done = run("build", tmp_path / "q", "-o", tmp_path / "rows", "--device", "rows")
    assert done.returncode == 0, done.stderr
    types = {line.split()[0].rsplit("experts.")[-1]: line.split()[1]
             for line in run("inspect", tmp_path / "rows", "--tensors").stdout.splitlines() if "layers.1.mlp.experts." in line}
    said, meant = logprobs(tmp_path / "rows", tmp_path), logprobs(tmp_path / "f", tmp_path)
    assert np.abs(said - meant).max() < 0.05, np.abs(said - meant).max()
    assert np.ptp(meant) > 1
    return types, done.stderr


@pytest.mark.parametrize("recipe, kept", [("fp8", "fp8_b128"), ("ct-mxfp8", "mxfp8"), ("ct-nvfp4", "nvfp4"), ("bnb-nf4", "nf4"), ("bnb-fp4", "fp4")])
def test_types_for_gpus_stay_in_stacks_of_experts(recipe, kept, tmp_path):
    types, _ = built_experts(recipe, tmp_path)
    assert types == dict.fromkeys(("fc.weight", "gate.weight", "proj.weight"), kept)


def test_experts_whose_input_is_multiplied_are_unpacked(tmp_path):
    types, said = built_experts("modelopt-awq-columns", tmp_path)
    assert types == dict.fromkeys(("fc.weight", "gate.weight", "proj.weight"), "float32")
    assert "matrices are unpacked to float32, because their input is multiplied by other numbers (pre_quant_scale)" in said, said


def _no_scales(tensors, fields):
    del tensors["model.layers.0.mlp.experts.down_proj_scales"]


def _nan(tensors, fields):
    tensors["model.layers.0.mlp.experts.gate_up_proj_scales"][2, 5, 1] = 255


def _flat(tensors, fields):
    name = "model.layers.0.mlp.experts.gate_up_proj_blocks"
    tensors[name] = tensors[name].reshape(7 * 192, -1)


def _fewer(tensors, fields):
    name = "model.layers.0.mlp.experts.down_proj_scales"
    tensors[name] = tensors[name][:, :-1]


@pytest.mark.parametrize("change, message", [
    (_no_scales, "down_proj_scales' is missing"), (_nan, "gate_up_proj_scales' has the scale nan for row 389, group 1"),
    (_flat, "gate_up_proj_blocks' has type U8 and 2 dimensions, expected uint8 [experts, out, in / 32, 16]"),
    (_fewer, "down_proj_scales' has shape [665, 3], expected [672, 3]")])
def test_a_folder_of_mxfp4_that_lies_is_refused(change, message, tmp_path):
    write(tmp_path, "mxfp4", change, arch="gpt_oss-32", dtype="bfloat16")
    done = run("inspect", tmp_path)
    assert done.returncode == 1 and message in done.stderr, done.stderr


@pytest.mark.parametrize("name, tp_size", [("llama-gptq-4", 2), ("llama-awq", 4), ("llama-gptq-8-row", 2), ("llama-mlx-8", 2),
                                           ("llama-gptq-4-order", 2), ("llama-gptq-4-act", 2), ("llama-modelopt-awq-columns", 2),
                                           ("llama-modelopt-w4a8-columns", 4), ("gpt2-gptq-4-32", 3), ("llama-fp8", 2),
                                           ("llama-ct-fp8", 4), ("phi3-ct-8-row", 3), ("gpt_neox-ct-fp8", 3),
                                           ("gpt_oss-32-mxfp4", 3)])
def test_several_ranks_give_the_logprobs_of_the_reference(name, tp_size, tmp_path):
    cg.check(name, [NEREID, "eval", "--tp-size", str(tp_size), "--threads", "1"], cg.TOLERANCE, str(tmp_path))


@pytest.mark.parametrize("name", ["llama-gptq-4", "llama-gptq-3", "llama-gptq-4-act", "qwen2-gptq-8-act", "llama-modelopt-w4a8-columns", "llama-ct-8-row", "llama-ct-8-asym", "llama-ct-fp8", "llama-ct-mxfp4", "gpt_oss-32-mxfp4"])
def test_through_a_checkpoint_the_numbers_stay(name, tmp_path):
    model, out = cg.write_tiny(name, str(tmp_path)), tmp_path / "checkpoint"
    assert run("convert", model, "-o", out).returncode == 0
    golden = cg.load_golden(name)
    cg.compare(golden, cg.evaluate([NEREID, "eval"], str(out), golden, str(tmp_path)), cg.TOLERANCE)


@pytest.mark.parametrize("recipe", ["ct-fp8", "ct-8-row", "gptq-4"])
def test_another_type_is_made_from_the_numbers(recipe, tmp_path):
    write(tmp_path / "model", recipe)
    for asked, got in (("float32", "float32"), ("q8_0", "q8_0"), ("int8", "int8"), ("fp8", "fp8")):
        done = run("convert", tmp_path / "model", "-o", tmp_path / asked, "--quantize", asked)
        assert done.returncode == 0, done.stderr
        assert f" {got} " in run("inspect", tmp_path / asked, "--tensors").stdout


W8 = {"num_bits": 8, "type": "int", "symmetric": True}


@pytest.mark.parametrize("inputs, words, algo", [
    ({**W8, "strategy": "token", "dynamic": True}, [], "W8A8"),
    ({**W8, "strategy": "tensor", "dynamic": False}, [], "W8A8"),
    ({**W8, "type": "float"}, [], "W8A16"),
    ({**W8, "num_bits": 4}, [], "W8A16"),
    (None, [], "W8A16"),
    ({**W8, "strategy": "token", "dynamic": True}, ["--quantize", "int8"], "W8A16"),
])
def test_weights_for_inputs_of_int8_are_known_by_the_folder(inputs, words, algo, tmp_path):
    write(tmp_path / "model", "ct-8-row", lambda _, f: f["config_groups"]["group_0"].update(input_activations=inputs))
    assert run("convert", tmp_path / "model", "-o", tmp_path / "once", *words).returncode == 0
    assert run("convert", tmp_path / "once", "-o", tmp_path / "twice").returncode == 0
    assert json.loads((tmp_path / "twice" / "config.json").read_text())["quantization"]["quant_algo"] == algo
    assert run("build", tmp_path / "twice", "-o", tmp_path / "engine").returncode == 0
    assert f'"quantization":"{algo}"' in run("inspect", tmp_path / "engine", "--json").stdout.replace(" ", "")


@pytest.mark.parametrize("recipe, field, algo, marked", [
    ("modelopt-w8a8", "W8A8_SQ_PER_CHANNEL", "W8A8", False), ("modelopt-w8a16", "W8A16", "W8A16", False),
    ("modelopt-w8a8", "MIXED_PRECISION", "W8A16", True), ("modelopt-w8a16", "MIXED_PRECISION", "W8A16", False)])
def test_inputs_of_int8_are_known_by_their_scales(recipe, field, algo, marked, tmp_path):
    write(tmp_path / "model", recipe, lambda _, f: f.update(quant_algo=field))
    assert run("convert", tmp_path / "model", "-o", tmp_path / "c").returncode == 0
    assert json.loads((tmp_path / "c/config.json").read_text())["quantization"]["quant_algo"] == algo
    assert any(name.endswith(".int8_input") for name in types_of(tmp_path / "c")) == marked


STEMS = ("attention.qkv", "attention.dense", "mlp.fc", "mlp.proj")


@pytest.mark.parametrize("plain, targets, marked", [
    (["re:.*down_proj"], ["Linear"], STEMS[:3]),
    (["re:.*self_attn\\.(q|k|v)_proj$"], ["Linear"], STEMS[1:]),
    (["Linear"], ["re:model.layers.[01]+.mlp.*", "re:model.layers.1.self_attn.o_proj"], STEMS[1:]),
    (["model.layers.1.mlp.up_proj"], ["Linear"], STEMS[:2] + STEMS[3:]),  # gate_proj and up_proj read the same
    (["Linear"], ["re:.*down_proj{1}", "re:(.*)\\1", "re:(", "re:" + "a" * 999], ()),  # what is not understood matches nothing
    (["re:down_proj"], ["Linear"], STEMS),  # a match begins with the name
])
def test_each_product_is_for_the_inputs_that_its_group_names(plain, targets, marked, tmp_path):
    def change(_, fields):
        first = fields["config_groups"]["group_0"]
        fields["config_groups"]["group_1"] = {**first, "targets": plain}
        first.update(targets=targets, input_activations={**W8, "strategy": "token", "dynamic": True})
    write(tmp_path / "model", "ct-8-row", change)
    assert run("convert", tmp_path / "model", "-o", tmp_path / "once").returncode == 0
    assert json.loads((tmp_path / "once" / "config.json").read_text())["quantization"]["quant_algo"] == "W8A16"
    assert run("convert", tmp_path / "once", "-o", tmp_path / "twice").returncode == 0
    assert run("build", tmp_path / "twice", "-o", tmp_path / "engine").returncode == 0
    for folder in ("twice", "engine"):
        got = {name for name in types_of(tmp_path / folder) if name.startswith("transformer.layers.1.") and name.endswith(".int8_input")}
        assert got == {f"transformer.layers.1.{stem}.int8_input" for stem in marked}
    # quantized anew it is for no such input
    assert run("convert", tmp_path / "model", "-o", tmp_path / "q8", "--quantize", "int8").returncode == 0
    assert not any(name.endswith(".int8_input") for name in types_of(tmp_path / "q8"))


def test_int8_beside_another_type_is_for_its_own_inputs(tmp_path):
    """Whichever comes first in the folder."""
    for first in (True, False):
        model, out = tmp_path / f"model{first}", tmp_path / f"out{first}"

        def change(tensors, fields, first=first):
            floats = weights.build(SPECS["llama"])
            for name in [name for name in tensors if name.endswith("_proj.weight") and ("self_attn" in name) == first]:
                w = quantized.weight_of(name, floats[name], quantized.RECIPES["ct-4"])
                scale = name[:-len("weight")] + "weight_scale"
                del tensors[name], tensors[scale]
                tensors.update(quantized.compressed(name[:-len(".weight")], w, quantized.RECIPES["ct-4"]))
            group = fields["config_groups"]["group_0"]
            four = {**group, "weights": quantized.compressed_scheme(quantized.RECIPES["ct-4"]), "format": "pack-quantized",
                    "targets": ["re:.*self_attn.*" if first else "re:.*mlp.*"]}
            group["input_activations"] = {**W8, "strategy": "token", "dynamic": True}
            fields.update(format="mixed-precision", config_groups={"group_0": four, "group_1": group})
        write(model, "ct-8-row", change)
        done = run("convert", model, "-o", out)
        assert done.returncode == 0, done.stderr
        types = types_of(out)
        for stem in STEMS:
            is_int8 = stem.startswith("mlp") == first
            assert types[f"transformer.layers.1.{stem}.weight"] == ("int8" if is_int8 else "q4_0")
            assert (f"transformer.layers.1.{stem}.int8_input" in types) == is_int8


def test_a_mark_of_another_shape_is_refused_by_its_name(tmp_path):
    write(tmp_path / "model", "ct-8-row", lambda _, f: f["config_groups"].update(
        group_1={**f["config_groups"]["group_0"], "targets": ["re:.*down_proj"], "input_activations": W8}))
    assert run("convert", tmp_path / "model", "-o", tmp_path / "out").returncode == 0
    path = tmp_path / "out" / "rank0.safetensors"
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8:8 + size])
    header["transformer.layers.1.mlp.proj.int8_input"] = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + size:])
    done = run("build", tmp_path / "out", "-o", tmp_path / "engine")
    assert done.returncode == 1 and "transformer.layers.1.mlp.proj.int8_input" in done.stderr, done.stderr


def test_what_is_unpacked_is_said_with_its_size(tmp_path):
    write(tmp_path / "model", "gptq-4-order")
    done = run("convert", tmp_path / "model", "-o", tmp_path / "out")
    assert done.returncode == 0
    assert "6 matrices are unpacked to float16, because their columns are in another order" in done.stderr
    assert "1.6 MB instead of 0.4 MB" in done.stderr
    write(tmp_path / "short", "gptq-4-16")
    done = run("convert", tmp_path / "short", "-o", tmp_path / "out-short")
    assert "14 of 14 gptq weights are unpacked to float16, because their groups are no multiples of 32 columns" in done.stderr


def types_of(folder):
    shown = run("inspect", folder, "--tensors").stdout.splitlines()
    return {words[0]: words[1] for words in map(str.split, shown) if len(words) > 1}


@pytest.mark.parametrize("recipe", ["gptq-4-order", "gptq-4-act", "modelopt-awq-columns"])
def test_inspect_shows_a_folder_in_the_types_that_run(recipe, tmp_path):
    write(tmp_path / "model", recipe)
    assert run("build", tmp_path / "model", "-o", tmp_path / "engine").returncode == 0
    shown, kept = types_of(tmp_path / "model"), types_of(tmp_path / "engine")
    for module, stem in (("q_proj", "qkv"), ("k_proj", "qkv"), ("o_proj", "dense")):
        assert shown[f"model.layers.1.self_attn.{module}.weight"] == kept[f"transformer.layers.1.attention.{stem}.weight"]
    for module, stem in (("gate_proj", "fc"), ("up_proj", "gate"), ("down_proj", "proj")):
        assert shown[f"model.layers.1.mlp.{module}.weight"] == kept[f"transformer.layers.1.mlp.{stem}.weight"]
    sums = json.loads(run("inspect", tmp_path / "model", "--json").stdout)["types"]
    assert ("float16", 7 if recipe != "gptq-4-order" else 17) == (next(iter(sums)), sums["float16"]["n_tensors"])


@pytest.mark.parametrize("recipe, suffix", [("gptq-4-act", "order"), ("modelopt-awq-columns", "prequant_scaling_factor")])
def test_what_the_input_wants_stays_beside_packed_weights(recipe, suffix, tmp_path):
    write(tmp_path / "model", recipe)
    done = run("convert", tmp_path / "model", "-o", tmp_path / "out")
    assert done.returncode == 0 and "unpacked" not in done.stderr, done.stderr
    types = types_of(tmp_path / "out")
    for stem in ("attention.qkv", "attention.dense", "mlp.fc", "mlp.proj"):
        assert types[f"transformer.layers.1.{stem}.weight"] == "q4_0"
        assert types[f"transformer.layers.1.{stem}.{suffix}"] == "float32"
    assert types["transformer.layers.1.mlp.gate.weight"] == "q4_0"
    # what is quantized anew has it in its numbers
    assert run("convert", tmp_path / "model", "-o", tmp_path / "q8", "--quantize", "q8_0").returncode == 0
    assert not any(name.endswith(f".{suffix}") for name in types_of(tmp_path / "q8"))


def test_ranks_that_divide_sorted_columns_get_them_unpacked(tmp_path):
    write(tmp_path / "model", "gptq-4-act")
    done = run("convert", tmp_path / "model", "-o", tmp_path / "out", "--tp_size", "2")
    assert done.returncode == 0 and "4 matrices are unpacked to float16" in done.stderr, done.stderr


@pytest.mark.parametrize("change", [lambda x: x[::-1], lambda x: np.roll(x, 1)])
def test_groups_of_other_lengths_than_blocks_are_unpacked(change, tmp_path):
    def one_more(tensors, _):
        order = change(tensors[f"{LAYER}.g_idx"].copy())
        order[np.flatnonzero(order == 0)[0]] = 1
        tensors[f"{LAYER}.g_idx"] = order
    write(tmp_path, "gptq-4-act", one_more)
    assert types_of(tmp_path)[f"{LAYER}.weight"] == "float16"


@pytest.mark.parametrize("value", [512, -1, 0.5, float("nan"), "twice"])
def test_an_order_that_is_none_is_refused_by_its_name(value, tmp_path):
    write(tmp_path / "model", "gptq-4-act")
    assert run("convert", tmp_path / "model", "-o", tmp_path / "out").returncode == 0
    path, name = tmp_path / "out" / "rank0.safetensors", "transformer.layers.1.mlp.proj.order"
    data = bytearray(path.read_bytes())
    size = int.from_bytes(data[:8], "little")
    at = 8 + size + json.loads(data[8:8 + size])[name]["data_offsets"][0]
    data[at:at + 4] = data[at + 4:at + 8] if value == "twice" else np.float32(value).tobytes()
    path.write_bytes(data)
    (tmp_path / "in").write_text(json.dumps({"id": 1, "tokens": [1, 2]}) + "\n")
    done = run("eval", tmp_path / "out", "--tokens", tmp_path / "in", "--out", tmp_path / "found")
    said = f"tensor '{name}': number 0 is not finite" if value != value else f"weight {name} has "
    assert done.returncode == 1 and said in done.stderr, done.stderr
    assert value != value or "each column of 512 once" in done.stderr


def stored(folder, rank, name):
    data = (folder / f"rank{rank}.safetensors").read_bytes()
    size = int.from_bytes(data[:8], "little")
    first, end = json.loads(data[8:8 + size])[name]["data_offsets"]
    return np.frombuffer(data[8 + size + first:8 + size + end], np.float32)


def test_ranks_have_the_numbers_of_their_columns(tmp_path):
    """Of products whose columns are divided; others have all."""
    given = {}
    write(tmp_path / "model", "modelopt-awq-columns", lambda tensors, _: given.update(tensors))
    done = run("convert", tmp_path / "model", "-o", tmp_path / "out", "--tp_size", "2")
    assert done.returncode == 0 and "unpacked" not in done.stderr, done.stderr
    for rank in range(2):
        for stem, module, divided in (("mlp.proj", "mlp.down_proj", True), ("attention.dense", "self_attn.o_proj", True),
                                      ("mlp.fc", "mlp.gate_proj", False)):
            whole = given[f"model.layers.1.{module}.pre_quant_scale"].view(np.float32)
            want = np.split(whole, 2)[rank] if divided else whole
            assert np.array_equal(stored(tmp_path / "out", rank, f"transformer.layers.1.{stem}.prequant_scaling_factor"), want)


@pytest.mark.parametrize("module, n", [("mlp.up_proj", 2), ("self_attn.k_proj", 1)])
@pytest.mark.parametrize("change", ["other", "none"])
def test_matrices_whose_inputs_differ_are_unpacked(module, n, change, tmp_path):
    """ModelOpt gives matrices that read the same the same numbers; others are right, too."""
    stem, spec, factors = f"model.layers.1.{module}", SPECS["llama"], []

    def differ(tensors, _):
        before = tensors.pop(f"{stem}.pre_quant_scale")
        if change == "other":
            tensors[f"{stem}.pre_quant_scale"] = np.roll(before, 1)
        factors.append((np.roll(before, 1).view(np.float32) if change == "other" else 1) / before.view(np.float32))
    meant = write(tmp_path / "model", "modelopt-awq-columns", differ, dtype="float32")
    meant[f"{stem}.weight"] = meant[f"{stem}.weight"] * factors[0]
    (tmp_path / "meant").mkdir()
    hf_folder.write_safetensors(tmp_path / "meant/model.safetensors", make_model.stored_tensors(spec, meant), "float32")
    hf_folder.write_json(tmp_path / "meant/config.json", make_model.config_json(spec, "float32"))
    done = run("build", tmp_path / "model", "-o", tmp_path / "engine")
    assert done.returncode == 0, done.stderr
    assert f"{n if change == 'other' else 1} matrices are unpacked to float32, because their input is multiplied by other numbers (pre_quant_scale)" in done.stderr
    types, name = types_of(tmp_path / "engine"), "attention.qkv" if n == 1 else "mlp.fc"
    assert types[f"transformer.layers.1.{name}.weight"] == "float32" and types[f"transformer.layers.0.{name}.weight"] == "q4_0"
    assert f"transformer.layers.1.{name}.prequant_scaling_factor" not in types
    assert np.abs(logprobs(tmp_path / "engine", tmp_path) - logprobs(tmp_path / "meant", tmp_path)).max() < 1e-4


def test_numbers_of_the_input_that_are_none_are_refused_by_their_name(tmp_path):
    write(tmp_path / "model", "modelopt-awq-columns")
    assert run("convert", tmp_path / "model", "-o", tmp_path / "out").returncode == 0
    path, name = tmp_path / "out" / "rank0.safetensors", "transformer.layers.1.mlp.proj.prequant_scaling_factor"
    data = bytearray(path.read_bytes())
    size = int.from_bytes(data[:8], "little")
    at = 8 + size + json.loads(data[8:8 + size])[name]["data_offsets"][0]
    data[at:at + 4] = np.float32(np.nan).tobytes()
    path.write_bytes(data)
    (tmp_path / "in").write_text(json.dumps({"id": 1, "tokens": [1, 2]}) + "\n")
    done = run("eval", tmp_path / "out", "--tokens", tmp_path / "in", "--out", tmp_path / "found")
    assert done.returncode == 1 and f"tensor '{name}': number 0 is not finite" in done.stderr, done.stderr


def test_the_file_of_modelopt_is_read(tmp_path):
    """hf_quant_config.json, as its export_hf_checkpoint writes it beside config.json."""
    write(tmp_path, "modelopt-w4a8-columns")
    config = make_model.config_json(SPECS["llama"], "float16")
    hf_folder.write_json(tmp_path / "config.json", config)
    hf_folder.write_json(tmp_path / "hf_quant_config.json", {
        "producer": {"name": "modelopt", "version": "0.40.0"},
        "quantization": {"quant_algo": "W4A8_AWQ", "kv_cache_quant_algo": None, "group_size": 128, "has_zero_point": False,
                         "pre_quant_scale": True, "exclude_modules": ["lm_head"]}})
    golden = cg.load_golden("llama-modelopt-w4a8-columns")
    cg.compare(golden, cg.evaluate([NEREID, "eval"], str(tmp_path), golden, str(tmp_path)), 1e-4)


def test_the_file_of_older_versions_is_read(tmp_path):
    fields = {}
    write(tmp_path, "awq", lambda _, f: fields.update(f))
    config = make_model.config_json(SPECS["llama"], "float16")
    hf_folder.write_json(tmp_path / "config.json", config)
    hf_folder.write_json(tmp_path / "quant_config.json", {"w_bit": 4, "q_group_size": fields["group_size"],
                                                          "zero_point": True, "version": "GEMM"})
    assert " q4_1 " in run("inspect", tmp_path, "--tensors").stdout


def test_rotations_that_are_part_of_weights_need_nothing(tmp_path):
    """R1, R2 and R3 of SpinQuant: of hidden states and of values in the weights, of queries and keys beside them."""
    def place(*locations):
        return {"type": "hadamard", "randomize": False, "apply": [{"targets": ["re:.*"], "location": at, "inverse": False} for at in locations]}

    def change(tensors, fields):
        fields["transform_config"] = {"config_groups": {"R1": place("weight_output", "weight_input"), "R3": place("q_attn", "k_cache")}}
        for layer in range(2):
            for at in ("q_attn", "k_cache"):
                tensors[f"model.layers.{layer}.self_attn.R3_{at}.weight"] = np.eye(32, dtype=np.float32).view("V4")

    write(tmp_path / "q", "ct-4", change)
    write(tmp_path / "f", "ct-4")
    assert np.array_equal(logprobs(tmp_path / "q", tmp_path), logprobs(tmp_path / "f", tmp_path))


@pytest.mark.parametrize("inverse", [False, True])
def test_weights_whose_inputs_are_turned_are_turned_back(inverse, tmp_path):
    """R4 of SpinQuant in blocks, whose matrix one layer has for all."""
    spec, n = SPECS["llama"], 64
    turn = np.ones((1, 1))
    while len(turn) < n:
        turn = np.block([[turn, turn], [turn, -turn]])
    turn = turn * np.where(np.arange(n) * 7 % 5 < 2, -1, 1)  # not the same as its transpose

    def blocks(x, by):
        return (x.reshape(len(x), -1, n) @ by / np.sqrt(n)).reshape(x.shape).astype(np.float32)

    is_turned = {name: name.endswith("down_proj.weight") for name in weights.build(spec)}
    tensors = {name: blocks(x, turn) if is_turned[name] else x for name, x in weights.build(spec).items()}
    stored, fields, meant = quantized.quantized(tensors, "ct-4")
    meant = {name: blocks(x, turn.T) if is_turned[name] else x for name, x in meant.items()}
    stored["model.layers.0.mlp.down_proj.R4_input.weight"] = (turn.T if inverse else turn).astype(np.float32)
    places = [{"targets": ["re:.*down_proj$"], "location": "input", "inverse": inverse, "ignore": []},
              {"targets": ["re:.*down_proj$"], "location": "weight_input", "inverse": not inverse, "ignore": []}]
    fields["transform_config"] = {"config_groups": {"R4": {"type": "random-hadamard", "head_dim": n, "randomize": False, "apply": places}}}
    (tmp_path / "q").mkdir()
    hf_folder.write_safetensors(tmp_path / "q/model.safetensors", make_model.stored_tensors(spec, stored), "float32")
    hf_folder.write_json(tmp_path / "q/config.json", {**make_model.config_json(spec, "float32"), "quantization_config": fields})
    check_numbers(tmp_path, meant, 1e-4)
    shown = run("inspect", tmp_path / "q", "--tensors")
    assert re.search(r"1.mlp.down_proj.weight +.*float32", shown.stdout) and re.search(r"1.mlp.up_proj.weight +.*q4_0", shown.stdout)
    done = run("build", tmp_path / "q", "-o", tmp_path / "e")
    assert "because their inputs are turned (transform_config)" in done.stderr, done.stderr


def write_i2_s(path, spoil=lambda data: data):
    """Llama's matrices of three values; what they mean."""
    spec, meant, parts = SPECS["llama"], {}, {}
    for name, x in weights.build(spec).items():
        meant[name] = x
        if quantized.is_linear(name, x):
            w = quantized.Ternary(x)
            meant[name] = w.dequantized()
    keys, tensors = gguf_file.to_gguf(spec, meant, "f32")
    for name, fmt, shape, data in tensors:
        x = data.view(np.float32).reshape(shape)
        is_ternary = name.startswith("blk.") and x.ndim == 2
        scale = np.abs(x).max()
        parts[name] = (name, "i2_s", shape, spoil(gguf_file.i2_s(np.sign(x), scale))) if is_ternary else (name, fmt, shape, data)
    gguf_file.write(str(path), keys, list(parts.values()))
    return meant


def test_matrices_of_bitnet_cpp_mean_their_numbers(tmp_path):
    meant = write_i2_s(tmp_path / "m.gguf")
    spec = SPECS["llama"]
    (tmp_path / "f").mkdir()
    hf_folder.write_safetensors(tmp_path / "f/model.safetensors", make_model.stored_tensors(spec, meant), "float32")
    hf_folder.write_json(tmp_path / "f/config.json", make_model.config_json(spec, "float32"))
    said = [logprobs(tmp_path / model, tmp_path) for model in ("m.gguf", "f")]
    assert np.abs(said[0] - said[1]).max() < 4e-3 and np.ptp(said[1]) > 1
    shown = run("inspect", tmp_path / "m.gguf", "--tensors")
    assert re.search(r"blk.1.ffn_down.weight +.*q4_0", shown.stdout), shown.stdout


def test_a_matrix_of_bitnet_cpp_has_a_scale(tmp_path):
    write_i2_s(tmp_path / "m.gguf", lambda data: np.concatenate([data[:-32], np.zeros(32, np.uint8)]))
    done = run("inspect", tmp_path / "m.gguf")
    assert done.returncode == 1 and "has the scale 0, expected a number above 0" in done.stderr, done.stderr


READ = {"F64", "F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "MXFP4",
        "TQ1_0", "TQ2_0", "IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S"}


def test_every_type_of_ggml_is_read_or_refused_by_name(tmp_path):
    """The list is that of the gguf package; what is read is compared elsewhere (test_gguf_presets.py, test_gguf_stored_types.py, test_goldens.py)."""
    path, name = tmp_path / "m.gguf", b"blk.1.ffn_down.weight"
    keys, tensors = gguf_file.to_gguf(SPECS["llama"], weights.build(SPECS["llama"]), "q8_0")
    gguf_file.write(str(path), keys, tensors)
    raw = path.read_bytes()
    at = raw.index(name) + len(name) + 4 + 16  # behind the number of dimensions and two of them
    assert struct.unpack_from("<I", raw, at) == (gguf.GGMLQuantizationType.Q8_0,)
    for kind in gguf.GGMLQuantizationType:
        if kind.name in READ:
            continue
        path.write_bytes(raw[:at] + struct.pack("<I", kind) + raw[at + 4:] + bytes(1 << 20))  # some types need more
        done = run("convert", path, "-o", tmp_path / "out")
        assert done.returncode == 1 and f"has type {kind.name}, which cannot be used for weights" in done.stderr, done.stderr
