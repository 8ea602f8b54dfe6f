# SPDX-License-Identifier: Apache-2.0
"""nereid quantize on tiny models: what it writes builds and runs, near to the float model, and says what it cost."""
import json
import os
import pathlib
import re
import signal
import struct
import subprocess
import sys
import time

import numpy as np
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
NEREID = os.environ.get("NEREID", str(ROOT / "build/bin/nereid"))
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests/tinymodel")]
import encdec  # noqa: E402
import encoders  # noqa: E402
import hf_folder  # noqa: E402
import make_model  # noqa: E402
import medusa_heads  # noqa: E402
import quantized  # noqa: E402
import vision  # noqa: E402

TEXT = ROOT / "tests/model/perplexity.txt"
# --qformat: of the products' squares at most so much is off, a token's mean divergence at most this; bits a weight in memory
FORMATS = {"int8_wo": (1e-4, 0.01, 8), "int8_sq": (1e-4, 0.01, 8), "fp8": (2e-3, 0.05, 16), "int4_wo": (0.03, 0.6, 4.5),
           "int4_awq": (0.03, 0.6, 4.5), "int4_gptq": (0.03, 0.6, 4.5), "w4a8_awq": (0.03, 0.6, 4.5), "fp8_pb_wo": (2e-3, 0.05, None),
           "mxfp8": (2e-3, 0.05, 32), "mxfp4": (0.03, 0.6, 5.5), "nvfp4": (0.02, 0.4, 32)}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    home = tmp_path_factory.mktemp("quantize")
    for arch in ("llama3", "gemma3", "qwen2", "phi3", "gpt2", "qwen3_moe", "gpt_neox", "qwen2_moe", "deepseek_v3-plain",
                 "bamba", "bitnet", "lfm2", "qwen3_next", "santacoder", "gpt_oss", "granitemoe", "gemma4", "gemma4-dense", "gemma4-moe"):
        make_model.write_folder(arch, str(home / arch))
    return home


def run(*words, status=0, **more):
    done = subprocess.run([NEREID, *map(str, words)], capture_output=True, text=True, **more)
    assert done.returncode == status, done.stderr
    return done.stderr if status else done.stdout


def quantize(model, out, qformat, *words, status=0):
    said = run("quantize", "--model_dir", model, "--output_dir", out, "--qformat", qformat, "--calib_dataset", TEXT,
               "--eval_dataset", TEXT, *words, status=status)
    return said if status else json.loads((out / "report.json").read_text())


def errors(report):
    return [m["error"] for layer in report["layers"] for m in layer["modules"]]


@pytest.mark.parametrize("qformat", FORMATS)
def test_a_format_is_near_the_float_model(home, tmp_path, qformat):
    report = quantize(home / "llama3", tmp_path / "q", qformat)
    worst, divergence, bits = FORMATS[qformat]
    assert len(errors(report)) == 21 and 0 < max(errors(report)) < worst
    assert 0 < report["kl_divergence"] < divergence and report["bytes_after"] < 0.5 * report["bytes_before"]
    assert report["perplexity_after"] == pytest.approx(report["perplexity_before"], rel=0.1)
    head = 4 * 512 * 128  # stays float32, and the embedding, which is as large, is not read as a whole
    linear = report["token_bytes_before"] - head
    assert linear == report["bytes_before"] - 2 * head
    assert bits is None or report["token_bytes_after"] - head == pytest.approx(linear * bits / 32, rel=0.05)
    assert report["expected_speedup"] == pytest.approx(report["token_bytes_before"] / report["token_bytes_after"], rel=1e-5)
    page = (tmp_path / "q/report.html").read_text()
    assert "model.layers.2.mlp.down_proj" in page and "http" not in page and "<script" not in page
    assert f"<title>{qformat}, " in page and f"<tr><td>calib_dataset</td><td>{TEXT}</td></tr>" in page
    worst = max((m["error"], m["bits"]) for layer in report["layers"] for m in layer["modules"])
    assert f"<td>{worst[1]}</td><td>{100 * worst[0]:.3g}&nbsp;%" in page
    # the engine that is built from it computes the same
    run("build", "--checkpoint_dir", tmp_path / "q", "--output_dir", tmp_path / "e")
    said = run("eval", tmp_path / "e", "--tokenizer_dir", tmp_path / "q", "-f", TEXT, "-c", "511")
    assert float(re.search(r"perplexity ([\d.]+)", said)[1]) == pytest.approx(report["perplexity_after"], rel=0.02)


@pytest.mark.parametrize("arch, qformat, words", [
    ("gemma3", "int4_awq", ""), ("qwen2", "int4_awq", ""), ("gemma3", "int8_sq", ""), ("qwen2", "int8_sq", ""), ("phi3", "int8_sq", ""),
    ("gpt_neox", "int8_sq", ""), ("bitnet", "int8_sq", ""), ("gpt2", "int4_awq", ""), ("gpt2", "int8_sq", ""), ("santacoder", "int8_sq", ""),
    ("gpt2", "int8_sq", "--exclude c_attn")])
def test_scales_that_move_between_tensors_change_nothing_else(home, tmp_path, arch, qformat, words):
    """Norms that add one, biases, stacked weights, matrices as [in, out], one norm for attention and MLP: with 8 bits nearly nothing is lost."""
    report = quantize(home / arch, tmp_path / "q", qformat, *words.split())
    assert report["kl_divergence"] < (0.02 if qformat == "int8_sq" else 0.8)


def test_scales_of_smoothquant_are_searched_or_given(home, tmp_path):
    made = {}
    for alpha in ("auto", "0.5", None):
        report = quantize(home / "llama3", tmp_path / str(alpha), "int8_sq", *(["--alpha", alpha] if alpha else []))
        assert report["settings"]["alpha"] == (0.5 if alpha == "0.5" else "auto") and report["kl_divergence"] < 0.01
        made[alpha] = safetensors(next((tmp_path / str(alpha)).glob("model-00002-*")))
    for name, x in made["auto"].items():
        assert (x == made[None][name]).all()
        assert name.endswith("_scale") or (x != made["0.5"][name]).any()  # norms and codes of all products


def put_dead_channels(path):
    """As in Gemma 3: norms, kept less 1 in bfloat16, that let nothing of some channels through."""
    spec = make_model.SPECS["gemma3"]
    made = {name: x.copy() for name, x in make_model.weights.build(spec).items()}
    for name in made:
        if name.endswith(("input_layernorm.weight", "pre_feedforward_layernorm.weight")):
            made[name][5::32] = -1
    hf_folder.write_safetensors(str(path / "model.safetensors"), make_model.stored_tensors(spec, made), "bfloat16")


@pytest.mark.parametrize("qformat, most", [("int8_sq", 0.015), ("int4_awq", 0.3)])
def test_channels_that_nothing_reaches_leave_the_others_exact(tmp_path, qformat, most):
    report = quantize(folder(tmp_path / "m", "gemma3", put_dead_channels), tmp_path / "q", qformat)
    assert report["kl_divergence"] < most


def test_calibrated_rounding_is_better_than_the_nearest(home, tmp_path):
    made = {}
    for name in ("int4_wo", "int4_awq", "int4_gptq"):
        made[name] = quantize(home / "llama3", tmp_path / name, name)
    assert made["int4_gptq"]["kl_divergence"] < 0.8 * made["int4_wo"]["kl_divergence"]
    assert made["int4_awq"]["kl_divergence"] < 1.1 * made["int4_gptq"]["kl_divergence"]  # its rounding, too, behind scales
    with_zeros = quantize(home / "llama3", tmp_path / "z", "int4_gptq", "--zero_point")
    assert with_zeros["kl_divergence"] < made["int4_gptq"]["kl_divergence"]


@pytest.mark.parametrize("qformat", ["mxfp4", "nvfp4"])
def test_gptq_rounds_small_groups_better_than_the_nearest(home, tmp_path, qformat):
    made = [quantize(home / "llama3", tmp_path / str(len(more)), qformat, *more) for more in ((), ("--gptq",))]
    assert made[1]["kl_divergence"] < 0.8 * made[0]["kl_divergence"]


def test_scales_of_inputs_are_what_the_calibration_saw(home, tmp_path):
    """One number a module, the same for what reads one input; half of the range would make half the number."""
    seen = {}
    for name in ("fp8", "int8_sq", "w4a8_awq"):
        quantize(home / "llama3", tmp_path / name, name, "--static_inputs", "--no_eval", "--alpha", "0")
        tensors = safetensors(next((tmp_path / name).glob("model-00002-*")))
        seen[name] = {key.split(".")[-2]: x.item() for key, x in tensors.items() if key.endswith(".input_scale")}
        config = json.loads((tmp_path / name / "config.json").read_text())["quantization_config"]["config_groups"]["group_0"]
        assert config["input_activations"]["strategy"] == "tensor" and config["input_activations"]["dynamic"] is False
        assert len(seen[name]) == 7 and seen[name]["q_proj"] == seen[name]["v_proj"] != seen[name]["o_proj"]
    assert 0.001 < seen["fp8"]["q_proj"] < 1


def safetensors(path):
    data = path.read_bytes()
    (n,) = struct.unpack("<Q", data[:8])
    types = {"F32": np.float32, "F16": np.float16, "I32": np.uint32, "I64": np.int64, "I8": np.int8, "F8_E4M3": np.uint8, "U8": np.uint8}
    return {name: np.frombuffer(data[8 + n:][slice(*t["data_offsets"])], types[t["dtype"]]).reshape(t["shape"])
            for name, t in json.loads(data[8:8 + n]).items() if name != "__metadata__"}


def unpacked(words, bits, n):
    """compressed-tensors: codes along a row, the lowest bits of a word first."""
    codes = words[:, :, None] >> np.arange(0, 32, bits, dtype=np.uint32) & (1 << bits) - 1
    return codes.reshape(len(words), -1)[:, :n].astype(np.int64)


def meant(tensors, is_block):
    """The numbers that a folder's tensors stand for, by the format's specification."""
    out = {name: x for name, x in tensors.items() if not re.search(r"weight_(packed|scale|shape|zero_point|global_scale)$|input_scale$", name)}
    for name in [n for n in tensors if n.endswith(".weight_scale")]:
        stem, scale = name[:-len("_scale")], tensors[name]
        if stem + "_global_scale" in tensors:
            scale = quantized.from_e4m3(scale) / tensors[stem + "_global_scale"]
        elif scale.dtype == np.uint8:
            scale = 2.0 ** (scale.astype(np.float64) - 127)
        if stem not in out and tensors[stem + "_packed"].dtype == np.uint8:
            packed = tensors[stem + "_packed"]
            codes = np.stack([packed & 15, packed >> 4], axis=2).reshape(len(packed), -1)
            codes = np.where(codes & 8, -1, 1) * quantized.E2M1[codes & 7]
        elif stem in out:
            codes = quantized.from_e4m3(out[stem]) if out[stem].dtype == np.uint8 else out[stem].astype(np.int64)
        else:
            rows, cols = tensors[stem + "_shape"]
            bits = 32 * tensors[stem + "_packed"].shape[1] // cols
            codes, zeros = unpacked(tensors[stem + "_packed"], bits, cols), np.int64(1 << (bits - 1))
            if stem + "_zero_point" in tensors:
                packed = tensors[stem + "_zero_point"]
                zeros = unpacked(np.ascontiguousarray(packed.T), bits, rows).T.repeat(cols // packed.shape[1], axis=1)
            codes = codes - zeros
        for axis in (0, 1) if scale.ndim == 2 else ():
            block = -(-codes.shape[axis] // scale.shape[axis]) if scale.shape[axis] in (1, codes.shape[axis]) or not is_block else 128
            scale = scale.repeat(block, axis=axis)[tuple(slice(n) for n in codes.shape[:axis + 1])]
        number = (codes * scale).astype(np.float32)
        out[stem] = np.ascontiguousarray(number.T) if name.startswith("transformer.h.") else number  # GPT-2's own folder has [in, out]
    return out


@pytest.mark.parametrize("arch, words", [
    *(("llama3", words) for words in ("int8_wo", "int8_sq", "fp8", "int4_gptq", "int4_awq --zero_point", "fp8_pb_wo", "mxfp4", "mxfp8 --gptq",
                                      "nvfp4 --gptq", "fp8 --per_tensor --static_inputs", "int8_sq --per_tensor --static_inputs",
                                      "int8_sq --mixed auto", "fp8 --mixed auto", "int8_sq --autoq_format int8_sq,int8_wo",
                                      "fp8 --autoq_format fp8,int8_wo --gptq", "int4_gptq --autoq_format fp8,int4_gptq --mixed auto",
                                      "w4a8_awq --autoq_format w4a8_awq,fp8 --static_inputs")),
    ("qwen3_moe", "int4_gptq --awq_block_size 18 --auto_quantize_bits 5.5"),
    ("deepseek_v3-plain", "int8_sq"), ("qwen3_moe", "int8_sq"), ("bamba", "int8_sq"), ("qwen3_next", "int8_wo"),
    *(("gpt2", words) for words in ("int8_wo", "int8_sq", "fp8", "int4_awq", "w4a8_awq", "nvfp4", "int4_gptq --exclude c_attn", "int8_sq --mixed auto")),
    ("santacoder", "int8_sq"), ("santacoder", "int4_gptq --awq_block_size 8"), ("santacoder", "int8_sq --exclude q_attn"), ("santacoder", "int8_wo --exclude kv_attn"),
    ("gemma4", "int8_sq"), ("gemma4", "int4_gptq --awq_block_size 8 --exclude down_proj"), ("gemma4-dense", "int8_sq"),
    ("gemma4-moe", "int8_wo --exclude *.experts.*")])
def test_the_folder_means_by_its_specification_what_the_engine_computes(home, tmp_path, arch, words):
    name, *more = words.split()
    run("quantize", "--model_dir", home / arch, "--output_dir", tmp_path / "q", "--qformat", name, "--no_eval", *more)
    tensors = {}
    for part in (tmp_path / "q").glob("model-*.safetensors"):
        tensors |= safetensors(part)
    (tmp_path / "f").mkdir()
    hf_folder.write_safetensors(str(tmp_path / "f/model.safetensors"), meant(tensors, name == "fp8_pb_wo"), "float32")
    (tmp_path / "f/config.json").write_bytes((home / arch / "config.json").read_bytes())
    (tmp_path / "in").write_text(json.dumps({"id": 1, "tokens": [2, *range(40, 100)]}) + "\n")
    said = []
    for folder_ in ("q", "f"):
        run("eval", tmp_path / folder_, "--tokens", tmp_path / "in", "--out", tmp_path / "out", "--compute_dtype", "float32")
        said.append(np.array(json.loads((tmp_path / "out").read_text())["logprobs"][1:]))
    assert np.abs(said[0] - said[1]).max() < (2e-2 if "--zero_point" in more else 1e-4)  # zero points become halves: docs/quantized-checkpoints.md


def test_full_prec_is_a_copy(home, tmp_path):
    run("quantize", "--model_dir", home / "llama3", "--output_dir", tmp_path / "q", "--qformat", "full_prec")
    a, b = (run("inspect", f, "--tensors") for f in (home / "llama3", tmp_path / "q"))
    assert sorted(x for x in a.splitlines() if "model.layers" in x) == sorted(x for x in b.splitlines() if "model.layers" in x)


def test_modules_that_are_excluded_stay(home, tmp_path):
    report = quantize(home / "llama3", tmp_path / "q", "int4_awq", "--exclude", "down_proj,model.layers.0.*")
    assert len(errors(report)) == 12
    config = json.loads((tmp_path / "q/config.json").read_text())["quantization_config"]
    assert {"lm_head", "model.layers.0.self_attn.q_proj", "model.layers.1.mlp.down_proj"} <= set(config["ignore"])
    assert report["kl_divergence"] < 0.6
    run("build", "--checkpoint_dir", tmp_path / "q", "--output_dir", tmp_path / "e", "--tp_size", "2")


REASONS = {"embeddings": "embeddings stay", "tied": "the embedding is the LM head, too", "head": "the LM head stays without --quantize_lm_head",
           "excluded": "excluded by --exclude", "budget": "kept by the budget of bits", "router": "a router is not quantized",
           "copy": "full_prec quantizes no weight", "latent": "keys and values are not multiplied as one"}


@pytest.mark.parametrize("arch, qformat, words, reasons", [
    ("llama3", "int8_wo", "--exclude o_proj,layers.0.mlp", "embeddings head excluded"),
    ("gemma3", "int8_sq", "--auto_quantize_bits 11", "tied budget"), ("llama3", "int4_gptq", "--mixed auto", "embeddings head"),
    ("qwen3_moe", "int8_wo", "--quantize_lm_head", "embeddings router"), ("gemma3", "full_prec", "", "tied copy"),
    ("deepseek_v3-plain", "int8_wo", "--exclude gate_proj", "embeddings head excluded router latent")])
def test_the_report_names_every_matrix_with_its_bits_or_why_it_stays(home, tmp_path, arch, qformat, words, reasons):
    report = quantize(home / arch, tmp_path / "q", qformat, *words.split())
    sources, made = {}, {}
    for folder_, out in ((home / arch, sources), (tmp_path / "q", made)):
        for part in folder_.glob("model*.safetensors"):
            out |= safetensors(part)
    matrices = {name.removesuffix(".weight") for name, x in sources.items() if x.ndim == 2 and not name.endswith("bias")}
    rounded = [m["name"] for layer in report["layers"] for m in layer["modules"]]
    kept = {m["name"]: m for m in report["kept"]}
    assert sorted(rounded + list(kept)) == sorted(matrices) and len(kept) == len(report["kept"])
    assert {m["reason"] for m in report["kept"]} == {REASONS[word] for word in reasons.split()}
    for name, m in kept.items():
        assert m["bits"] == 8 * made[name + ".weight"].itemsize
        assert ("exclude" in words and (".o_proj" in name or "layers.0.mlp." in name or "gate_proj" in name)) <= ("--exclude" in m["reason"])
    stored = sum(x.nbytes for x in made.values())
    assert report["bits_per_weight_after"] == pytest.approx(8 * stored / sum(x.size for x in sources.values()), rel=1e-5)
    page = (tmp_path / "q/report.html").read_text()
    assert all(f"<td>{name}</td><td>{m['bits']}</td>" in page for name, m in kept.items())
    assert all(page.count(REASONS[word]) == sum(m["reason"] == REASONS[word] for m in report["kept"]) for word in reasons.split())


def test_the_lm_head_can_be_quantized(home, tmp_path):
    report = quantize(home / "llama3", tmp_path / "q", "int8_wo", "--quantize_lm_head")
    assert [m["name"] for m in report["layers"][-1]["modules"]] == ["lm_head"] and report["kl_divergence"] < 0.02
    config = json.loads((tmp_path / "q/config.json").read_text())["quantization_config"]
    assert config["ignore"] == []


@pytest.mark.parametrize("name", ["int8_wo", "int8_sq", "fp8"])
def test_eight_bits_take_the_rounding_of_gptq(home, tmp_path, name):
    nearest = quantize(home / "llama3", tmp_path / "n", name)
    report = quantize(home / "llama3", tmp_path / "q", name, "--gptq")
    assert report["settings"]["gptq"] is True and report["calibration_tokens"] > 1000
    if name != "int8_wo":  # without calibration the report has errors of weights
        assert report["kl_divergence"] < 1.05 * nearest["kl_divergence"]
    if name == "int8_sq":
        assert np.mean(errors(report)) < 0.8 * np.mean(errors(nearest))


@pytest.mark.parametrize("arch, group", [("llama3", 32), ("qwen3_moe", 18)])
def test_a_budget_of_bits_is_spent_where_products_are_most_off(home, tmp_path, arch, group):
    plain = quantize(home / arch, tmp_path / "p", "int4_gptq", "--awq_block_size", group)
    report = quantize(home / arch, tmp_path / "q", "int4_gptq", "--awq_block_size", group, "--auto_quantize_bits", "5.5")
    sizes = {name[:-len(".weight_shape")]: int(np.prod(x)) for part in (tmp_path / "q").glob("model-*.safetensors")
             for name, x in safetensors(part).items() if name.endswith("weight_shape")}
    bits = {m["name"]: m["bits"] for layer in report["layers"] for m in layer["modules"]}
    groups = json.loads((tmp_path / "q/config.json").read_text())["quantization_config"]["config_groups"]
    for one in groups.values():
        assert one["targets"] == [m for m in bits if bits[m] == one["weights"]["num_bits"]] and one["targets"]
    assert set(bits) == set(sizes) and len(groups) == 2
    spent = sum(n * (8 if bits[m] == 8 else 4 + 16 / group) for m, n in sizes.items()) / sum(sizes.values())
    assert 5 < spent <= 5.5 and report["kl_divergence"] < 0.9 * plain["kl_divergence"]
    layers = {}  # what reads one input has one type, and so have all experts
    for name in bits:
        layers.setdefault(re.sub(r"[qkv]_proj|(gate|up)_proj|experts[.]\d+", "", name), set()).add(bits[name])
    assert all(len(kinds) == 1 for kinds in layers.values())


@pytest.mark.parametrize("arch, name, words", [("llama3", "int8_sq", "--gptq"), ("llama3", "fp8", ""), ("gemma3", "int8_wo", ""),
                                               ("qwen3_moe", "int8_sq", "--static_inputs --kv_cache_dtype int8")])
def test_of_eight_bits_a_budget_leaves_what_is_most_off(home, tmp_path, arch, name, words):
    """What stays is as the model has it, unless its rows take another's scales, stands among `ignore`, and lessens the loss."""
    plain = quantize(home / arch, tmp_path / "p", name, *words.split())
    report = quantize(home / arch, tmp_path / "q", name, "--auto_quantize_bits", "11", *words.split())
    config = json.loads((tmp_path / "q/config.json").read_text())["quantization_config"]
    before = {m["name"] for layer in plain["layers"] for m in layer["modules"]}
    rounded = {m["name"] for layer in report["layers"] for m in layer["modules"]}
    left, size = before - rounded, {}
    tensors, original = {}, {}
    for folder_, out in ((tmp_path / "q", tensors), (home / arch, original)):
        for part in folder_.glob("model*.safetensors"):
            out |= safetensors(part)
    for m in before:
        size[m] = original[m + ".weight"].size
        assert (m in config["ignore"]) == (m in left) == (m + ".weight_scale" not in tensors)
    assert 10 < 8 + 8 * sum(size[m] for m in left) / sum(size.values()) <= 11
    same = {m for m in left if np.array_equal(tensors[m + ".weight"], original[m + ".weight"])}
    assert same if name == "int8_sq" else same == left
    parts = {}  # what reads one input is chosen together
    for m in before:
        parts.setdefault(re.sub(r"[qkv]_proj|(gate|up)_proj|experts[.]\d+", "", m), set()).add(m in left)
    assert all(len(kinds) == 1 for kinds in parts.values())
    assert report["kl_divergence"] < plain["kl_divergence"]
    run("build", "--checkpoint_dir", tmp_path / "q", "--output_dir", tmp_path / "e")


@pytest.mark.parametrize("arch, name, words", [("llama3", "int8_sq", "--gptq"), ("llama3", "fp8", "--static_inputs"),
                                               ("qwen3_moe", "int8_sq", "--kv_cache_dtype int8")])
def test_inputs_that_rounding_hurts_most_keep_their_bits(home, tmp_path, arch, name, words):
    """Their modules are as int8_wo, in words and in a group of their own, and the others alone have inputs of 8 bits."""
    report = quantize(home / arch, tmp_path / "q", name, "--autoq_format", f"{name},int8_wo", "--auto_quantize_bits", "11", *words.split())
    modules = [m for layer in report["layers"] for m in layer["modules"]]
    keep = [m["name"] for m in modules if m.get("input_bits") == 16]
    config = json.loads((tmp_path / "q/config.json").read_text())["quantization_config"]
    first, second = config["config_groups"].values()
    assert config["format"] == "mixed-precision" and all(m["bits"] == 8 and m["name"] not in config["ignore"] for m in modules)
    assert first["targets"] == [m["name"] for m in modules if m["name"] not in keep] and second["targets"] == keep
    assert first["input_activations"]["num_bits"] == 8 and first["format"] == ("float-quantized" if name == "fp8" else "int-quantized")
    assert second["input_activations"] is None and second["format"] == "pack-quantized" and second["weights"]["type"] == "int"
    assert second["weights"]["strategy"] == ("group" if arch == "llama3" else "channel")  # 32 does not divide all columns of the other
    tensors, size = {}, {}
    for part in (tmp_path / "q").glob("model*.safetensors"):
        tensors |= safetensors(part)
    for m in (m["name"] for m in modules):
        assert (m + ".weight_packed" in tensors) == (m in keep) != (m + ".weight" in tensors)
        assert (m + ".input_scale" in tensors) == ("--static_inputs" in words and m not in keep)
        size[m] = np.prod(tensors[m + ".weight_shape"]) if m in keep else tensors[m + ".weight"].size
    assert 10 < 8 + 8 * sum(size[m] for m in keep) / sum(size.values()) <= 11
    parts = {}  # what reads one input is chosen together
    for m in size:
        parts.setdefault(re.sub(r"[qkv]_proj|(gate|up)_proj|experts[.]\d+", "", m), set()).add(m in keep)
    assert all(len(kinds) == 1 for kinds in parts.values())
    run("convert", "--model_dir", tmp_path / "q", "--output_dir", tmp_path / "c")
    marks = {"self_attn.q_proj": "attention.qkv", "self_attn.o_proj": "attention.dense", "mlp.up_proj": "mlp.fc", "mlp.down_proj": "mlp.proj"}
    marked = {re.sub("^model", "transformer", m).replace(key, mark) for m in size for key, mark in marks.items() if key in m and m not in keep}
    if arch == "llama3":
        names = {n[:-len(".int8_input")] for n in safetensors(tmp_path / "c/rank0.safetensors") if n.endswith(".int8_input")}
        assert names == (marked if name == "int8_sq" else set())


@pytest.mark.parametrize("name, bits", [("int8_sq", "10"), ("fp8", "12")])
def test_mixed_auto_is_the_recipe_that_the_docs_measure(home, tmp_path, name, bits):
    mixed = quantize(home / "llama3", tmp_path / "m", name, "--mixed", "auto", "--no_eval")
    quantize(home / "llama3", tmp_path / "q", name, "--autoq_format", f"{name},int8_wo", "--auto_quantize_bits", bits, "--gptq", "--no_eval")
    assert {m["input_bits"] for layer in mixed["layers"] for m in layer["modules"] if "input_bits" in m} == {16}
    weights = [{part.name: part.read_bytes() for part in (tmp_path / out).glob("model*.safetensors")} for out in "mq"]
    assert weights[0] and weights[0] == weights[1]


def put_large_columns(path):
    """One weight of 32 in each row is thirty times as large as the others, so that a row's scale leaves those little."""
    spec = make_model.SPECS["llama3"]
    made = {name: x.copy() for name, x in make_model.weights.build(spec).items()}
    for name in made:
        if name.endswith("down_proj.weight"):
            made[name][:, 7] *= 30
    hf_folder.write_safetensors(str(path / "model.safetensors"), make_model.stored_tensors(spec, made), "bfloat16")


@pytest.mark.parametrize("name", ["int8_sq", "fp8"])
def test_weights_whose_inputs_keep_their_bits_have_scales_for_few_columns(tmp_path, name):
    model = folder(tmp_path / "m", "llama3", put_large_columns)
    rows = quantize(model, tmp_path / "p", "int8_wo", "--no_eval")
    report = quantize(model, tmp_path / "q", name, "--autoq_format", f"{name},int8_wo", "--auto_quantize_bits", "16", "--no_eval")
    before, after = ({m["name"]: m["error"] for layer in r["layers"] for m in layer["modules"]} for r in (rows, report))
    down = [m for m in before if "down_proj" in m]
    assert down and all(after[m] < 0.5 * before[m] for m in down), [(before[m], after[m]) for m in down]


def put_quiet_layer(path):
    """Norms behind the blocks of the second layer (Gemma) let a 250th of them through."""
    spec = make_model.SPECS["gemma3"]
    made = {name: x.copy() for name, x in make_model.weights.build(spec).items()}
    for name in ("post_attention_layernorm", "post_feedforward_layernorm"):
        made[f"model.layers.1.{name}.weight"][:] = -0.996
    hf_folder.write_safetensors(str(path / "model.safetensors"), make_model.stored_tensors(spec, made), "bfloat16")


@pytest.mark.parametrize("words", ["int4_wo --awq_block_size 32 --auto_quantize_bits 5.5", "int8_sq --auto_quantize_bits 10",
                                   "int8_sq --auto_quantize_bits 10 --autoq_format int8_sq,int8_wo"])
def test_a_budget_leaves_out_what_a_norm_behind_it_makes_small(tmp_path, words):
    report = quantize(folder(tmp_path / "m", "gemma3", put_quiet_layer), tmp_path / "q", *words.split())
    wide = [m["name"] for m in report["kept"] if "budget" in m["reason"]]
    if "int4" in words or "int8_wo" in words:
        wide = [m["name"] for layer in report["layers"] for m in layer["modules"] if m.get("input_bits") == 16 or (m["bits"] == 8 and "int4" in words)]
    assert wide and not any(".layers.1." in m for m in wide)


def put_unread_layer(path):
    """What the last layer's MLP adds is large, and in channels that the last norm takes away."""
    spec = make_model.SPECS["llama3"]
    made = {name: x.copy() for name, x in make_model.weights.build(spec).items()}
    half = len(made["model.norm.weight"]) // 2
    made["model.norm.weight"][:half] = 0
    made["model.layers.2.mlp.down_proj.weight"][half:] = 0
    made["model.layers.2.mlp.down_proj.weight"] *= 4
    hf_folder.write_safetensors(str(path / "model.safetensors"), make_model.stored_tensors(spec, made), "bfloat16")


@pytest.mark.parametrize("name", ["int8_sq", "fp8"])
def test_rounding_counts_by_what_the_model_says_then(tmp_path, name):
    model = folder(tmp_path / "m", "llama3", put_unread_layer)
    report = quantize(model, tmp_path / "q", name, "--autoq_format", f"{name},int8_wo", "--auto_quantize_bits", "11", "--gptq")
    keep = [m["name"] for layer in report["layers"] for m in layer["modules"] if m.get("input_bits") == 16]
    assert keep and not any(".layers.2.mlp." in m for m in keep), keep


def test_experts_are_calibrated_with_the_tokens_that_they_get(home, tmp_path):
    assert quantize(home / "qwen3_moe", tmp_path / "q", "int8_wo")["kl_divergence"] < 0.02
    made = {name: quantize(home / "qwen3_moe", tmp_path / name, name, "--awq_block_size", 18)
            for name in ("int4_wo", "int4_awq", "int4_gptq")}
    off = {name: report["kl_divergence"] for name, report in made.items()}
    assert off["int4_gptq"] < 0.6 * off["int4_wo"] and off["int4_awq"] < off["int4_wo"]
    experts = [m["error"] for layer in made["int4_gptq"]["layers"] for m in layer["modules"] if ".experts." in m["name"]]
    assert len(experts) > 20 and np.mean(experts) < 0.02
    config = json.loads((tmp_path / "int4_gptq/config.json").read_text())["quantization_config"]
    assert "model.layers.1.mlp.gate" in config["ignore"]


@pytest.mark.parametrize("arch", ["qwen2_moe", "deepseek_v3-plain", "bamba", "lfm2", "qwen3_next"])
def test_experts_latent_attention_and_states_take_scales_of_smoothquant(home, tmp_path, arch):
    """Shared experts, products before and behind latent vectors, those around a scan: nearly nothing is lost."""
    assert quantize(home / arch, tmp_path / "q", "int8_sq")["kl_divergence"] < 0.1
    config = json.loads((tmp_path / "q/config.json").read_text())["quantization_config"]
    assert ("model.layers.1.self_attn.kv_b_proj" in config["ignore"]) == (arch == "deepseek_v3-plain")


@pytest.mark.parametrize("arch", ["gemma4", "gemma4-dense"])
def test_layers_of_several_widths_take_scales_of_their_own(home, tmp_path, arch):
    """Wide heads without a product for values, normed values, layers that read keys of others, products with embeddings of each layer."""
    off = {name: quantize(home / arch, tmp_path / name, name, "--awq_block_size", "8", "--exclude", "down_proj")["kl_divergence"]
           for name in ("int4_wo", "int4_awq", "int4_gptq")}
    assert off["int4_gptq"] < 0.8 * off["int4_wo"] and off["int4_awq"] < off["int4_wo"]
    ignored = json.loads((tmp_path / "int4_wo/config.json").read_text())["quantization_config"]["ignore"]
    assert ("model.layers.1.per_layer_input_gate" in ignored and "model.per_layer_model_projection" in ignored) == (arch == "gemma4")


def test_a_vision_tower_is_named_among_what_stays(tmp_path):
    vision.write_folder(str(tmp_path / "m"))
    run("quantize", "--model_dir", tmp_path / "m", "--output_dir", tmp_path / "q", "--qformat", "int8_wo", "--no_eval")
    ignored = json.loads((tmp_path / "q/config.json").read_text())["quantization_config"]["ignore"]
    assert "multi_modal_projector.linear_1" in ignored
    assert "vision_tower.vision_model.encoder.layers.1.self_attn.q_proj" in ignored


def test_json_lines_and_the_built_in_text(home, tmp_path):
    lines = [json.dumps({"text": line}) for line in TEXT.read_text().splitlines() if len(line) > 40]
    (tmp_path / "c.jsonl").write_text("\n".join(lines) + "\n\n")
    quantize(home / "llama3", tmp_path / "a", "int4_gptq", "--calib_dataset", tmp_path / "c.jsonl", "--calib_size", 5)
    report = json.loads((tmp_path / "a/report.json").read_text())
    assert 10 < report["calibration_tokens"] < 5 * 200
    run("quantize", "--model_dir", home / "llama3", "--output_dir", tmp_path / "b", "--qformat", "int4_gptq", "--no_eval")
    report = json.loads((tmp_path / "b/report.json").read_text())
    assert report["calibration_tokens"] > 1000 and "perplexity_after" not in report


def folder(path, arch, change):
    make_model.write_folder(arch, str(path))
    change(path)
    return path


def put_nan(path):
    spec = make_model.SPECS["llama3"]
    tensors = dict(make_model.weights.build(spec))
    tensors["model.layers.1.mlp.up_proj.weight"][3, 4] = np.nan
    hf_folder.write_safetensors(str(path / "model.safetensors"), make_model.stored_tensors(spec, tensors), "float32")


@pytest.mark.parametrize("words, message", [
    (["--exclude", "layers.7.mlp"], "--exclude: no linear module is called 'layers.7.mlp'"),
    (["--gptq"], "--gptq is for int8_wo, int8_sq, fp8, mxfp8, mxfp4 and nvfp4, not int4_awq"),
    (["--per_tensor"], "--per_tensor is for int8_sq and fp8, not int4_awq"),
    (["--alpha", "1.5"], "--alpha is auto or a number in [0, 1], not '1.5'"),
    (["--alpha", "0.5x"], "--alpha is auto or a number in [0, 1], not '0.5x'"),
    (["--static_inputs"], "--static_inputs is for int8_sq, fp8 and w4a8_awq, not int4_awq"),
    (["--qformat", "fp8", "--per_tensor", "--gptq"], "not fp8 with --per_tensor"),
    (["--qformat", "nvfp4", "--zero_point"], "--zero_point is for integers of 4 bits, not nvfp4"),
    (["--qformat", "mxfp4", "--mixed", "auto"], "--auto_quantize_bits is for integers of 4 bits, int8_wo, int8_sq and fp8, not mxfp4"),
    (["--qformat", "int8_sq", "--auto_quantize_bits", "7"], "--auto_quantize_bits 7: int8_sq alone has 8.000 bits a weight"),
    (["--auto_quantize_bits", "4.2"], "--auto_quantize_bits 4.2: int4_awq alone has 4.500 bits a weight"),
    (["--output_format", "awq"], "--output_format is compressed-tensors or gptq, not 'awq'"),
    (["--output_format", "gptq", "--qformat", "w4a8_awq"], "leave the option out for w4a8_awq"),
    (["--output_format", "gptq", "--mixed", "auto"], "with one number of bits"),
    (["--output_format", "gptq", "--kv_cache_dtype", "int8"], "without --kv_cache_dtype"),
    (["--exclude", "*"], "--exclude leaves no linear module to quantize"),
    (["--autoq_format", "fp8,int8_sq"], "--autoq_format 'fp8,int8_sq': a format of 4 bits is mixed with one of 8 (int4_awq,int8_wo or int4_awq,fp8)"),
    (["--autoq_format", "mxfp8,int8_wo"], "--autoq_format 'mxfp8,int8_wo': a format of 4 bits is mixed with one of 8"),
    (["--autoq_format", "int4_awq,fp8,int8_wo"], "--autoq_format 'int4_awq,fp8,int8_wo': a format of 4 bits is mixed with one of 8"),
    (["--autoq_format", "int4_awq,"], "--autoq_format 'int4_awq,': a format of 4 bits is mixed with one of 8"),
    (["--autoq_format", "fp8,int8_wo"], "--autoq_format 'fp8,int8_wo' is not --qformat 'int4_awq'; leave one out"),
    (["--autoq_format", "int4_gptq,int8_wo"], "--autoq_format 'int4_gptq,int8_wo' is not --qformat 'int4_awq'; leave one out"),
    (["--autoq_format", "fp8"], "--autoq_format 'fp8' is not --qformat 'int4_awq'; leave one out"),
    (["--mixed", "5"], "--mixed is auto, not '5'"),
    (["--device", "tpu"], "--device is cpu or cuda, not 'tpu'"),
    (["--awq_block_size", "48"], "groups of 48 columns do not divide the 352 of 'model.layers.0."),
    (["--calib_dataset", "nowhere.txt"], "without the option a text that is built in): cannot open 'nowhere.txt'"),
    (["--calib_dataset", "empty.txt"], "'empty.txt' holds no text of at least two tokens"),
    (["--calib_dataset", "bad.jsonl"], "bad.jsonl: line 2: expected {\"text\": \"…\"}"),
    (["--calib_dataset", "broken.jsonl"], "broken.jsonl: line 1"),
])
def test_wrong_options_are_refused_by_name(home, tmp_path, words, message):
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "bad.jsonl").write_text('{"text": "a b c d e"}\n{"words": 1}\n')
    (tmp_path / "broken.jsonl").write_text('{"text": \n')
    said = run("quantize", "--model_dir", home / "llama3", "--output_dir", "q", "--qformat", "int4_awq", *words, status=1,
               cwd=tmp_path)
    assert message in said and not (tmp_path / "q/config.json").exists()


@pytest.mark.parametrize("words, said", [
    ("--auto_quantize_bits 17", "--auto_quantize_bits must be in [0, 16], and is 17"), ("--damp_percent 0", "--damp_percent must be in (0, 1], and is 0"),
    ("--calib_memory 0", "--calib_memory must be in (0, 1000000] gigabytes, and is 0"), ("--threads -3", "--threads: -3 is not between 0 and 1024"), ("--calib_size 0", "--calib_size: 0 is not between")])
def test_numbers_out_of_range_are_refused_by_name(home, tmp_path, words, said):
    assert said in run("quantize", "--model_dir", home / "llama3", "--qformat", "int8_sq", *words.split(), status=2, cwd=tmp_path)


def test_options_that_a_format_does_not_look_at_are_told(home, tmp_path):
    for qformat, unused in (("int8_wo", {"--awq_block_size", "--alpha", "--no_act_order", "--calib_dataset"}), ("int4_awq", {"--alpha"}),
                            ("int8_sq", {"--awq_block_size", "--no_act_order"})):
        done = subprocess.run([NEREID, "quantize", "--model_dir", home / "llama3", "--output_dir", tmp_path / "q", "--qformat", qformat, "--awq_block_size", "32",
                               "--alpha", "0.5", "--no_act_order", "--calib_dataset", TEXT, "--no_eval"], capture_output=True, text=True)
        assert done.returncode == 0 and set(re.findall(r"(--\w+) has no effect", done.stderr)) == unused


def test_wrong_models_are_refused_by_name(home, tmp_path):
    nan = folder(tmp_path / "nan", "llama3", put_nan)
    assert "tensor 'model.layers.1.mlp.up_proj.weight': number " in quantize(nan, tmp_path / "q", "int4_wo", status=1)
    assert "experts.gate_up_proj' has all experts in one" in quantize(home / "gpt_oss", tmp_path / "o", "int4_gptq", status=1)
    assert "has all experts in one" in quantize(home / "granitemoe", tmp_path / "m", "int4_gptq", status=1)
    encdec.write_folder("t5", str(tmp_path / "t5"))
    assert "'t5' is an encoder-decoder model" in quantize(tmp_path / "t5", tmp_path / "t", "int8_wo", status=1)
    encoders.write_folder("bert", str(tmp_path / "bert"))
    assert "'bert' is an encoder, which" in quantize(tmp_path / "bert", tmp_path / "b", "int8_wo", status=1)
    make_model.write_folder("falcon_h1", str(tmp_path / "falcon"))
    assert "'falcon_h1' multiplies the results" in quantize(tmp_path / "falcon", tmp_path / "f", "int8_wo", status=1)
    said = run("quantize", "--model_dir", home / "llama3", "--output_dir", home / "llama3", "--qformat", "int8_wo", status=1)
    assert "--output_dir is where --model_dir lies" in said
    said = quantize(home / "llama3", home / "qwen2", "int8_wo", status=1)
    assert "holds a model that was not made here" in said and (home / "qwen2/model.safetensors").exists()
    quantize(home / "llama3", tmp_path / "once", "int8_wo")
    assert "of a quantized folder" in quantize(tmp_path / "once", tmp_path / "twice", "int4_wo", status=1)
    for name in ("w4a8_nvfp4_fp8", "no_such"):
        assert f"'{name}' is not supported" in quantize(home / "llama3", tmp_path / "q", name, status=1)


def files(path):
    return {p.name: p.read_bytes() for p in path.iterdir() if p.suffix == ".safetensors"}


def test_a_run_that_was_ended_goes_on(home, tmp_path):
    words = ["quantize", "--model_dir", str(home / "llama3"), "--output_dir", str(tmp_path / "q"), "--qformat", "int4_gptq",
             "--mixed", "auto", "--calib_dataset", str(TEXT), "--no_eval"]
    ended = subprocess.Popen([NEREID, *words], stderr=subprocess.DEVNULL)
    until = time.monotonic() + 60
    while not (tmp_path / "q/model-00002-of-00004.safetensors").exists() and ended.poll() is None:
        assert time.monotonic() < until
        time.sleep(0.001)
    ended.send_signal(signal.SIGKILL)
    ended.wait()
    before = {p.name: p.stat().st_mtime_ns for p in (tmp_path / "q").glob("model-*.safetensors")}
    if not (tmp_path / "q/config.json").exists():
        run(*words)
        for name in ("model-00001-of-00004.safetensors",):
            assert (tmp_path / "q" / name).stat().st_mtime_ns == before[name]
    assert not (tmp_path / "q/quantize.progress").exists()
    words[words.index(str(tmp_path / "q"))] = str(tmp_path / "whole")
    run(*words)
    assert files(tmp_path / "q") == files(tmp_path / "whole")
    assert len(errors(json.loads((tmp_path / "q/report.json").read_text()))) == 21
    # other settings begin anew
    quantize(home / "llama3", tmp_path / "q", "int8_wo")
    run("build", "--checkpoint_dir", tmp_path / "q", "--output_dir", tmp_path / "e")


def test_quantize_py_makes_what_builds_and_runs(home, tmp_path):
    script = ROOT / "examples/quantization/quantize.py"
    for tp in (1, 2):
        out = tmp_path / f"ckpt{tp}"
        done = subprocess.run([sys.executable, script, "--model_dir", home / "llama3", "--dtype", "float16", "--qformat",
                               "int4_awq", "--awq_block_size", "32", "--output_dir", out, "--calib_size", "4",
                               "--exclude", "down_proj", "--tp_size", str(tp), "--kv_cache_dtype", "int8"], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert f"Quantized model exported to {out}" in done.stdout
        run("build", "--checkpoint_dir", out, "--output_dir", tmp_path / f"e{tp}", "--kv_cache_dtype", "int8")
        assert len(list((tmp_path / f"e{tp}").glob("rank*.engine"))) == tp
    run("run", tmp_path / "e1", "-p", "Hello", "-n", "4", "--tokenizer_dir", home / "llama3")


def quantize_py(cwd, line, status=0):
    done = subprocess.run([sys.executable, ROOT / "examples/quantization/quantize.py", *line.split()], capture_output=True, text=True, cwd=cwd)
    assert done.returncode == status, done.stderr
    return done.stderr if status else done.stdout


# what examples/quantization/README.md, the models' README.md and vLLM's guide pass beside --model_dir, with groups and sizes for a small model
@pytest.mark.parametrize("line, method, ranks", [
    ("--qformat fp8 --kv_cache_dtype fp8", "compressed-tensors", 1),
    ("--qformat int4_awq --awq_block_size 32 --tp_size 2 --exclude_modules down_proj", None, 2),
    ("--qformat int8_sq --kv_cache_dtype int8", "compressed-tensors", 1),
    ("--dtype float16 --qformat fp8 --kv_cache_dtype fp8 --calib_size 4 --tp_size 2", None, 2),
    ("--dtype bfloat16 --kv_cache_dtype int8 --calib_size 4", "compressed-tensors", 1),
    ("--dtype=float16 --qformat=int4_awq --calib_size=4 --cache_dir=./dataset", "compressed-tensors", 1),
    ("--dtype float16 --qformat fp8 --kv-cache-dtype fp8 --calib-size 4 --tp-size 1", "compressed-tensors", 1),
    ("--qformat int8_wo --export_format hf --device cpu --device_map auto --decoder_type llama --pp_size 1 --cp_size 1", "compressed-tensors", 1),
    ("--qformat int8_wo --export_format tensorrt_llm --num_medusa_heads 4 --num_medusa_layers 1 --max_draft_len 63 --quant_medusa_head", None, 1),
    ("--autoq_format int4_awq,int8_wo --auto_quantize_bits 5.5 --calib_size 4", "compressed-tensors", 1),
    ("--autoq_format fp8,int4_awq,w4a8_awq --auto_quantize_bits 5.5 --tp_size 2 --exclude down_proj", None, 2),
    ("--autoq_format int4_awq,int8_sq --auto_quantize_bits 5.5 --calib_size 4 --batch_size 4", "compressed-tensors", 1),
    ("--autoq_format int8_sq --auto_quantize_bits 10 --calib_size 4 --tp_size 2", None, 2),
    ("--qformat int4_awq --awq_block_size 32 --tp_size 2 --exclude c_proj --kv_cache_dtype int8", None, 2),
    ("--qformat int8_sq --kv_cache_dtype int8 --calib_size 4 --exclude mlp.c_proj", "compressed-tensors", 1)])
def test_quantize_py_takes_the_lines_of_the_guides(home, tmp_path, line, method, ranks):
    arch = "gpt2" if "c_proj" in line else "llama3"
    quantize_py(tmp_path, f"--model_dir {home / arch} --output_dir q {line}")
    config = json.loads((tmp_path / "q/config.json").read_text())
    quantization = config.get("quantization_config", {})
    assert quantization.get("quant_method") == method and ("architecture" in config) == (method is None)
    if method is None:
        assert len(list((tmp_path / "q").glob("rank*.safetensors"))) == ranks
    else:
        assert (quantization["kv_cache_scheme"] is not None) == ("cache" in line and "cache_dir" not in line)
    run("build", "--checkpoint_dir", tmp_path / "q", "--output_dir", tmp_path / "e")


def test_quantize_py_helps_with_what_it_will_run(tmp_path):
    assert "--calib-dataset" in quantize_py(tmp_path, "--help") and "nereid quantize" in quantize_py(tmp_path, "--qformat int8_sq --help")
    assert "nereid convert" in quantize_py(tmp_path, "--qformat int8_wo --help")


def test_quantize_py_of_several_ranks_goes_on(home, tmp_path):
    line = f"--model_dir {home / 'llama3'} --qformat int8_sq --no_eval --output_dir q --tp_size 2"
    words = ["quantize", f"--output_dir={tmp_path / 'q.quantized'}", *line.replace("--output_dir q --tp_size 2", "").split()]
    ended = subprocess.Popen([NEREID, *words], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    first = tmp_path / "q.quantized/model-00002-of-00004.safetensors"
    while not first.exists() and ended.poll() is None:
        time.sleep(0.001)
    ended.kill()
    ended.wait()
    assert first.exists()
    quantize_py(tmp_path, line)
    assert not (tmp_path / "q.quantized").exists()
    quantize_py(tmp_path, line.replace("--output_dir q", "--output_dir once"))
    assert files(tmp_path / "q") == files(tmp_path / "once") and len(files(tmp_path / "q")) == 2


def test_quantize_py_takes_medusa_heads_along(home, tmp_path):
    config = json.loads((home / "llama3/config.json").read_text())
    medusa_heads.write_folder(tmp_path / "heads", 4, 1, config["hidden_size"], config["vocab_size"])
    for i, cache in enumerate(["--kv_cache_dtype fp8", ""]):
        quantize_py(tmp_path, f"--model_dir {home / 'llama3'} --dtype float16 --qformat fp8 {cache} --output_dir q{i} --calib_size 4 --tp_size 1 "
                              "--medusa_model_dir heads --num_medusa_heads 2")
        assert sum(name.endswith(".linear.weight") for name in safetensors(tmp_path / f"q{i}/medusa_lm_head.safetensors")) == 2
        run("build", "--checkpoint_dir", tmp_path / f"q{i}", "--output_dir", tmp_path / f"e{i}", "--speculative_decoding_mode", "medusa",
            "--max_draft_len", "63")


@pytest.mark.parametrize("line, status, message", [
    ("--autoq_format fp8,int8_sq --auto_quantize_bits 8 --tp_size 2", 1, "a format of 4 bits is mixed with one of 8"),
    ("--qformat w8a8_sq --smoothquant 0.5", 1, "--qformat 'w8a8_sq' is not supported; known are"),
    ("--qformat fp8 --cp_size 2", 1, "--cp_size 2: there is no context parallelism; use --tp_size or --pp_size"),
    ("--qformat int8_sq --export_format onnx", 1, "--export_format is tensorrt_llm or hf, not 'onnx'"),
    ("--qformat int8_sq --export_format hf --tp_size 2", 1, "--export_format hf is a folder of no ranks"),
    ("--qformat int8_sq --calib_dataset cnn_dailymail", 1, "--calib_dataset (a file of text or JSON lines; without the option"),
    ("--qformat int8_sq --calib_dataset .", 1, "'.' is not a regular file"),
    ("--qformat fp8 --nemo_ckpt_path x.nemo", 2, "--nemo_ckpt_path is not supported: export it to Hugging Face first"),
    ("--qformat int8_sq --tp_size 0", 1, "--tp_size must be a number above 0, got '0'"),
    ("--qformat int8_sq --tp_size 5", 1, "tp_size 5 must divide num_attention_heads")])
def test_quantize_py_refuses_with_the_reason(home, tmp_path, line, status, message):
    said = quantize_py(tmp_path, f"--model_dir {home / 'llama3'} --output_dir q {line}", status)
    assert message in said and "Traceback" not in said and not list(tmp_path.glob("q*"))
