# SPDX-License-Identifier: Apache-2.0
"""nereid quantize --kv_cache_dtype: scales that make an 8-bit cache right, and weights that are moved for it and mean the same."""
import json
import os
import pathlib
import re
import struct
import subprocess
import sys

import numpy as np
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
NEREID = os.environ.get("NEREID", str(ROOT / "build/bin/nereid"))
sys.path.insert(0, str(ROOT / "tests/tinymodel"))
import hf_folder  # noqa: E402
import make_model  # noqa: E402
import weights  # noqa: E402

TEXT = ROOT / "tests/model/perplexity.txt"
TOKENS = weights.tokens("cache", 60, 300)


def run(*words, status=0):
    done = subprocess.run([NEREID, *map(str, words)], capture_output=True, text=True)
    assert done.returncode == status, done.stderr
    return done.stderr if status else done.stdout


def quantize(model, out, *words, cache="int8", status=0):
    return run("quantize", "--model_dir", model, "--output_dir", out, "--calib_dataset", TEXT, "--calib_size", 1, "--calib_max_seq_length", 64, "--no_eval",
               "-t", 1, "--kv_cache_dtype", cache, *words, status=status)


def logprobs(model, folder, *words):
    (folder / "in").write_text(json.dumps({"id": 1, "tokens": TOKENS}) + "\n")
    run("eval", model, "--tokens", folder / "in", "--out", folder / "out", "--compute_dtype", "float32", "--isa", "generic", "-t", 1, *words)
    return np.array(json.loads((folder / "out").read_text())["logprobs"][1:])


def tensors_of(file):
    data = file.read_bytes()
    (n,) = struct.unpack("<Q", data[:8])
    return {name: np.frombuffer(data[8 + n:][slice(*t["data_offsets"])], np.float32).reshape(t["shape"])
            for name, t in json.loads(data[8:8 + n]).items() if name != "__metadata__" and t["dtype"] == "F32"}


def tensors(folder):
    return {name: x for file in folder.glob("*.safetensors") for name, x in tensors_of(file).items()}


def overwrite(file, name, x):
    data = bytearray(file.read_bytes())
    (n,) = struct.unpack("<Q", data[:8])
    at = 8 + n + json.loads(data[8:8 + n])[name]["data_offsets"][0]
    data[at:at + x.nbytes] = x.astype(np.float32).tobytes()
    file.write_bytes(data)


def changed(a, b):
    return {name.split(".1.", 1)[1] for name in a if name in b and re.search(r"\.(layers|h)\.1\.", name) and not np.array_equal(a[name], b[name])}


KEYS, VALUES = {f"self_attn.{x}_proj.weight" for x in "qk"}, {f"self_attn.{x}_proj.weight" for x in "vo"}
BIASES = {f"self_attn.{x}_proj.bias" for x in "qk"}
NORMS = {"self_attn.q_norm.weight", "self_attn.k_norm.weight"}


@pytest.mark.parametrize("arch, moved", [
    ("llama3", KEYS | VALUES),                                           # queries share keys
    ("qwen2", KEYS | VALUES | BIASES | {"self_attn.v_proj.bias"}),
    ("gemma3", NORMS | VALUES),                                          # norms that stand for one more; two rotations
    ("qwen3", NORMS | VALUES),                                           # one norm for all heads
    ("olmo2", NORMS | VALUES),                                                    # one over all
    ("hunyuan_v1_dense", {"self_attn.query_layernorm.weight", "self_attn.key_layernorm.weight"} | VALUES), # behind the rotation
    ("phi3", {"self_attn.qkv_proj.weight", "self_attn.o_proj.weight"}),                          # rows of one matrix
    ("glm4", KEYS | VALUES | BIASES | {"self_attn.v_proj.bias"}),                                          # neighbours turn, and not all of them
    ("smollm3", KEYS | VALUES),                                                   # layers without positions
    ("cohere-plus", NORMS | VALUES),                                               # norms of each head
    ("stablelm-12b", {f"self_attn.{x}_layernorm.norms.{head}.weight" for x, n in (("q", 3), ("k", 1)) for head in range(n)} | VALUES), # a tensor a head
    ("persimmon", {f"self_attn.{x}_layernorm.{y}" for x in "qk" for y in ("weight", "bias")}), # with biases
    ("gemma4-dense", NORMS),                                                      # values are normed; wide heads in layer 2
    ("gemma4", set()),                                                            # layers 3 and 4 read the keys of layer 1
    ("gpt2", {"attn.c_attn.weight", "attn.c_attn.bias", "attn.c_proj.weight"}),  # matrices as [in, out]
    ("santacoder", {f"attn.{x}_attn.{y}" for x in ("q", "kv") for y in ("weight", "bias")} | {"attn.c_proj.weight"}), # queries alone
    ("gpt_neox", set())])                                                # rows of a head lie together: nothing moves
def test_what_moves_between_weights_changes_no_answer(tmp_path, arch, moved):
    make_model.write_folder(arch, str(tmp_path / "m"))
    quantize(tmp_path / "m", tmp_path / "q", "--qformat", "full_prec")
    assert changed(tensors(tmp_path / "m"), tensors(tmp_path / "q")) == moved
    want = logprobs(tmp_path / "m", tmp_path, "--kv_dtype", "float32")
    assert np.abs(logprobs(tmp_path / "q", tmp_path, "--kv_dtype", "float32") - want).max() < 1e-4


def put_outlier(path):
    """One channel of the keys goes a hundred times as far as the others, as biases of Qwen2 do."""
    spec = make_model.SPECS["qwen2"]
    made = {name: x.copy() for name, x in weights.build(spec).items()}
    for i in range(spec.config["num_hidden_layers"]):
        made[f"model.layers.{i}.self_attn.k_proj.bias"][3] = 300
        made[f"model.layers.{i}.self_attn.q_proj.bias"][3::spec.config["hidden_size"] // spec.config["num_attention_heads"]] = 0
    hf_folder.write_safetensors(str(path / "model.safetensors"), make_model.stored_tensors(spec, made), "float32")


def test_an_outlier_among_the_keys_does_not_cost_the_other_channels(tmp_path):
    make_model.write_folder("qwen2", str(tmp_path / "m"))
    put_outlier(tmp_path / "m")
    for words in (["full_prec"], ["int8_wo"], ["int4_awq", "--calib_size", 2]):
        quantize(tmp_path / "m", tmp_path / words[0], "--qformat", *words)
        want, got = (logprobs(tmp_path / words[0], tmp_path, "--kv_dtype", t) for t in ("float32", "int8"))
        assert 0 < np.abs(got - want).mean() < 0.3  # measured 0.12 to 0.15; 0.6 where keys are not made even


def ranges(model, folder):
    """What an engine keeps: how far keys and values go, layer by layer."""
    run("convert", model, "-o", folder)
    return [x for name, x in sorted(tensors(folder).items()) if name.endswith("attention.kv_cache_range")]


def test_one_calibration_serves_both_types_of_cache(tmp_path):
    make_model.write_folder("llama3", str(tmp_path / "m"))
    for cache, top, kind in (("int8", 127, "int"), ("fp8", 448, "float")):
        quantize(tmp_path / "m", tmp_path / cache, "--qformat", "int8_wo", cache=cache)
        scheme = json.loads((tmp_path / cache / "config.json").read_text())["quantization_config"]["kv_cache_scheme"]
        assert scheme["num_bits"] == 8 and scheme["type"] == kind and scheme["strategy"] == "attn_head" and not scheme["dynamic"]
        files, kept = tensors(tmp_path / cache), ranges(tmp_path / cache, tmp_path / f"c{cache}")
        assert len(kept) == 3
        for i, pair in enumerate(kept):
            scales = [files[f"model.layers.{i}.self_attn.{x}_scale"] for x in "kv"]
            assert [x.shape for x in scales] == [(2, 1, 1)] * 2
            np.testing.assert_allclose(pair, np.concatenate(scales).ravel() * top, rtol=1e-6)
    np.testing.assert_allclose(ranges(tmp_path / "int8", tmp_path / "d"), ranges(tmp_path / "fp8", tmp_path / "e"), rtol=1e-5)
    run("build", tmp_path / "fp8", "-o", tmp_path / "engine", "--kv_cache_dtype", "int8", "--tp_size", 2)
    for i, (folder, words, told) in enumerate([("fp8", [], True), ("fp8", ["--kv_cache_dtype", "int8"], False), ("m", [], False)]):
        done = subprocess.run([NEREID, "build", tmp_path / folder, "-o", tmp_path / f"b{i}", *words], capture_output=True, text=True, check=True)
        assert ("has scales of an 8-bit cache; --kv_cache_dtype int8 " in done.stderr) == told
    report = json.loads((tmp_path / "int8/report.json").read_text())
    assert report["settings"]["kv_cache_dtype"] == "int8" and min(report["layers"][0]["k_scale"]) > 0


@pytest.mark.parametrize("names, top, config", [
    (("k_proj.k_scale", "v_proj.v_scale"), 448, {"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}),
    (("k_scale", "v_scale"), 127, {"quant_method": "compressed-tensors", "format": "dense", "config_groups": {},
                                   "kv_cache_scheme": {"num_bits": 8, "type": "int", "strategy": "tensor"}}),
    (("kv_scale", "kv_scale"), 448, {"quant_method": "fp8", "activation_scheme": "static"})])
def test_scales_of_others_are_read(tmp_path, names, top, config):
    make_model.write_folder("llama", str(tmp_path / "m"))
    spec = make_model.SPECS["llama"]
    made = make_model.stored_tensors(spec, dict(weights.build(spec)))
    for i in range(2):
        for k, name in enumerate(names):
            made[f"model.layers.{i}.self_attn.{name}"] = np.array([0.5 if names[0] == names[1] else 0.25 * (i + k + 1)], np.float32)
    hf_folder.write_safetensors(str(tmp_path / "m/model.safetensors"), made, "float32")
    whole = json.loads((tmp_path / "m/config.json").read_text())
    (tmp_path / "m/config.json").write_text(json.dumps(whole | {"quantization_config": config}))
    n = whole.get("num_key_value_heads", whole["num_attention_heads"])
    want = [np.repeat([0.5, 0.5] if names[0] == names[1] else [0.25 * (i + 1), 0.25 * (i + 2)], n) * top for i in range(2)]
    np.testing.assert_allclose(ranges(tmp_path / "m", tmp_path / "c"), want, rtol=1e-6)


def with_scales(folder, shape, keys, values):
    """A Llama 3 of 2 heads of keys for more of queries, whose layers have these scales of keys and values."""
    make_model.write_folder("llama3", str(folder))
    spec = make_model.SPECS["llama3"]
    made = make_model.stored_tensors(spec, dict(weights.build(spec)))
    for i in range(3):
        made[f"model.layers.{i}.self_attn.k_scale"] = np.array(keys, np.float32).reshape(shape)
        made[f"model.layers.{i}.self_attn.v_scale"] = np.array(values, np.float32).reshape(shape)
    hf_folder.write_safetensors(str(folder / "model.safetensors"), made, "float32")
    whole = json.loads((folder / "config.json").read_text())
    scheme = {"num_bits": 8, "type": "float", "strategy": "attn_head"}
    whole["quantization_config"] = {"quant_method": "compressed-tensors", "format": "dense", "config_groups": {},
                                    "kv_cache_scheme": scheme}
    (folder / "config.json").write_text(json.dumps(whole))
    return whole["num_key_value_heads"]


@pytest.mark.parametrize("shape", [(2,), (2, 1, 1)])
def test_scales_of_heads_are_kept_and_divided_over_ranks(tmp_path, shape):
    assert with_scales(tmp_path / "m", shape, [0.25, 0.5], [1.5, 0.75]) == 2
    np.testing.assert_allclose(ranges(tmp_path / "m", tmp_path / "c"), np.array([[0.25, 0.5, 1.5, 0.75]] * 3) * 448, rtol=1e-6)
    run("convert", tmp_path / "m", "-o", tmp_path / "c2", "--tp_size", 2)
    for rank, want in enumerate(([0.25, 1.5], [0.5, 0.75])):
        files = tensors_of(tmp_path / f"c2/rank{rank}.safetensors")
        kept = [x for name, x in files.items() if name.endswith("attention.kv_cache_range")]
        np.testing.assert_allclose(kept, np.array([want] * 3) * 448, rtol=1e-6)


def test_a_head_that_goes_far_costs_the_others_nothing(tmp_path):
    """Keys and values of one head go 32 times as far as the other's, and what reads them takes it back."""
    make_model.write_folder("llama3", str(tmp_path / "m"))
    quantize(tmp_path / "m", tmp_path / "q", "--qformat", "full_prec")
    want = logprobs(tmp_path / "q", tmp_path, "--kv_dtype", "int8")
    config = make_model.SPECS["llama3"].config
    n = config["hidden_size"] // 2  # columns and rows of the queries that read the first of two heads of keys
    d = config["hidden_size"] // config["num_attention_heads"]
    for file in (tmp_path / "q").glob("*.safetensors"):
        for name, x in tensors_of(file).items():
            x = x.copy()
            kind = name.rsplit("self_attn.")[-1]
            if kind in ("k_proj.weight", "v_proj.weight"):
                x[:d] *= 32
            elif kind in ("k_scale", "v_scale"):
                assert x.shape == (2, 1, 1)
                x[0] *= 32
            elif kind == "q_proj.weight":
                x[:n] /= 32
            elif kind == "o_proj.weight":
                x[:, :n] /= 32
            overwrite(file, name, x)
    assert np.abs(logprobs(tmp_path / "q", tmp_path, "--kv_dtype", "int8") - want).max() < 1e-4  # the same codes
    for file in (tmp_path / "q").glob("*.safetensors"):
        for name, x in tensors_of(file).items():
            if name.endswith(("k_scale", "v_scale")):
                overwrite(file, name, np.full_like(x, x.max()))
    assert np.abs(logprobs(tmp_path / "q", tmp_path, "--kv_dtype", "int8") - want).mean() > 0.3


@pytest.mark.parametrize("keys, shape, why", [
    ([1, 1, 1], (3,), "self_attn.k_scale' has 3 scales; expected one, or one for each of 2 heads of keys"),
    ([1, 1], (1, 2), "self_attn.k_scale' has 2 scales"),
    ([2, np.nan], (2,), "tensor 'model.layers.0.self_attn.k_scale': number 1 is not finite"),
    ([2, 0], (2,), "kv_cache_range must be above 0, got 0"),
    ([-1, 2], (2,), "kv_cache_range must be above 0, got -448")])
def test_wrong_scales_of_heads_are_refused(tmp_path, keys, shape, why):
    with_scales(tmp_path / "m", shape, keys, np.ones(len(keys)))
    assert why in run("eval", tmp_path / "m", "--tokens", os.devnull, "--out", tmp_path / "o", "--kv_dtype", "int8", status=1)


def test_what_cannot_be_is_refused(tmp_path):
    make_model.write_folder("llama", str(tmp_path / "m"))
    assert "--kv_cache_dtype is int8, fp8 or auto, not 'int4'" in quantize(tmp_path / "m", tmp_path / "q", "--qformat", "int8_wo",
                                                                         cache="int4", status=1)
    for arch, why in (("deepseek_v3-plain", "has latent attention"), ("mamba2", "has no KV cache")):
        make_model.write_folder(arch, str(tmp_path / arch))
        assert why in quantize(tmp_path / arch, tmp_path / "q", "--qformat", "int8_wo", status=1)
    quantize(tmp_path / "m", tmp_path / "q", "--qformat", "full_prec")
    file = next(f for f in (tmp_path / "q").glob("*.safetensors") if "model.layers.1.self_attn.k_scale" in tensors_of(f))
    overwrite(file, "model.layers.1.self_attn.k_scale", np.full(1, np.nan, np.float32))
    said = run("eval", tmp_path / "q", "--tokens", os.devnull, "--out", tmp_path / "o", "--kv_dtype", "int8", status=1)
    assert "tensor 'model.layers.1.self_attn.k_scale': number 0 is not finite" in said


def test_compare_py_makes_a_table_of_accuracy_and_speed(tmp_path):
    make_model.write_folder("llama", str(tmp_path / "m"))
    words = [sys.executable, ROOT / "examples/quantization/compare.py", "--model_dir", tmp_path / "m", "--output_dir", tmp_path / "o",
             "--calib_dataset", TEXT, "--calib_size", "1", "--eval_dataset", TEXT, "--input_len", "32", "--output_len", "8", "--runs",
             "1", "--threads", "1", "--json", tmp_path / "t.json", "--sequences", "2", "--recipe", "full_prec --kv_cache_dtype int8", "--recipe",
             "int8_wo"]
    said = subprocess.run(words, capture_output=True, text=True, check=True)
    rows = json.loads((tmp_path / "t.json").read_text())["rows"]
    assert [r["recipe"] for r in rows] == ["", "full_prec --kv_cache_dtype int8", "int8_wo"]
    assert 0 < rows[1]["kl_divergence"] < 0.1 and rows[2]["bytes"] < 0.6 * rows[0]["bytes"] <= 0.6 * rows[1]["bytes"]
    assert all(r["prefill_tokens_per_s"] > 0 and r["decode_tokens_per_s"] > 0 and r["perplexity"] > 1 for r in rows)
    assert all(r["many_tokens_per_s"] > 0 for r in rows) and "| of 2 sequences |" in said.stdout
    assert said.stdout.count("\n| ") == 4 and "| `int8_wo` |" in said.stdout and said.stderr.count("…") == 2
    again = subprocess.run(words, capture_output=True, text=True, check=True)  # what is there is measured only for speed
    assert again.stderr == "" and again.stdout.splitlines()[-1].split("|")[3:7] == said.stdout.splitlines()[-1].split("|")[3:7]
    words[-1] = "no_such"
    refused = subprocess.run(words, capture_output=True, text=True)
    assert refused.returncode == 1 and "'no_such' is not supported" in refused.stderr
