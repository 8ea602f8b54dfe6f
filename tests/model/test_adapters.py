# SPDX-License-Identifier: Apache-2.0
"""LoRA adapters: log probabilities as PEFT gives them (see make_goldens.py), and as the model has whose
weights were merged with the adapter; every form of folder; and what is refused, by its name."""

import json
import os
import shlex
import struct
import subprocess
import sys

import numpy as np
import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "tinymodel")]
import adapter  # noqa: E402
import check_goldens as cg  # noqa: E402
import hf_folder  # noqa: E402
import make_model  # noqa: E402
import quantized  # noqa: E402
import weights  # noqa: E402
from specs import SPECS  # noqa: E402

NEREID = shlex.split(os.environ.get("NEREID", os.path.join(cg.ROOT, "build", "bin", "nereid")))
FLOAT32 = ("--compute-dtype", "float32")


@pytest.fixture(scope="module")
def bases(tmp_path_factory):
    """Base models, made once each: bases(arch) or bases(arch, gguf type)."""
    folder, made = tmp_path_factory.mktemp("base"), {}

    def base(arch, quant=None):
        if (arch, quant) not in made:
            path = str(folder / f"{arch}-{quant}{'.gguf' if quant else ''}")
            if quant:
                make_model.write_gguf(arch, path, quant)
            else:
                make_model.write_folder(arch, path)
            made[arch, quant] = path
        return made[arch, quant]
    return base


def logprobs(model, folder, *words, arch="llama", seed="", status=0, n=48):
    """Of random tokens; with status 1: the error text."""
    os.makedirs(folder, exist_ok=True)
    asked, answer = os.path.join(folder, "in.jsonl"), os.path.join(folder, "out.jsonl")
    vocab = SPECS[arch].config["vocab_size"]
    with open(asked, "w", encoding="utf-8") as f:
        f.write(json.dumps({"id": "a", "tokens": weights.tokens(f"lora/prompt{seed}", n, vocab)}) + "\n")
    r = subprocess.run([*NEREID, "eval", model, "--tokens", asked, "--out", answer, *map(str, words)],
                       capture_output=True, text=True, timeout=300, check=False)
    assert r.returncode == status, r.stderr
    if status:
        return r.stderr
    with open(answer, encoding="utf-8") as f:
        return np.array(json.loads(f.readline())["logprobs"][1:])


def merged_model(name, folder, seed="", **changes):
    arch = adapter.ADAPTERS[name]["arch"]
    make_model.write_folder(arch, folder)
    tensors = adapter.merged(name, seed, **changes)
    hf_folder.write_weights(folder, make_model.stored_tensors(SPECS[arch], tensors), "float32", "safetensors", 1)
    return folder


def goldens():
    return sorted(name for name in adapter.ADAPTERS
                  if os.path.exists(os.path.join(HERE, "goldens", f"lora-{name}.json")))


@pytest.mark.parametrize("name", goldens())
def test_adapter_gives_the_logprobs_of_peft(name, bases, tmp_path):
    golden = cg.load_golden(f"lora-{name}")
    path = adapter.write(name, tmp_path / "adapter")
    lines = cg.evaluate([*NEREID, "eval"], bases(adapter.ADAPTERS[name]["arch"]), golden, str(tmp_path),
                        (*FLOAT32, "--lora_dir", path))
    worst = cg.compare(golden, lines, cg.TOLERANCE)
    print(f"{name}: worst {worst.error:.2e} at {worst.where}")


@pytest.mark.parametrize("name", list(adapter.ADAPTERS))
def test_adapter_gives_what_the_merged_model_gives(name, bases, tmp_path):
    arch = adapter.ADAPTERS[name]["arch"]
    base = logprobs(bases(arch), tmp_path, *FLOAT32, arch=arch)
    got = logprobs(bases(arch), tmp_path, *FLOAT32, "--lora_dir", adapter.write(name, tmp_path / "a"), arch=arch)
    want = logprobs(merged_model(name, str(tmp_path / "merged")), tmp_path, *FLOAT32, arch=arch)
    assert np.abs(got - want).max() < 2e-3
    assert np.abs(base - want).max() > 0.5, "the adapter must matter"


@pytest.mark.parametrize("name", ["llama", "llama-dora"])
@pytest.mark.parametrize("recipe", ["gptq-4-act", "modelopt-awq-columns"])
def test_adapter_of_a_base_whose_products_make_their_input(name, recipe, tmp_path):
    """Inputs of pairs and lengths of rows go by the columns of the model, not by those of its packed weights."""
    spec = SPECS["llama"]
    stored, fields, meant = quantized.quantized(weights.build(spec), recipe)
    for folder, tensors, more in (("packed", stored, {"quantization_config": fields}), ("meant", meant, {})):
        (tmp_path / folder).mkdir()
        hf_folder.write_safetensors(tmp_path / folder / "model.safetensors", make_model.stored_tensors(spec, tensors), "float32")
        hf_folder.write_json(tmp_path / folder / "config.json", {**make_model.config_json(spec, "float32"), **more})
    words = (*FLOAT32, "--lora_dir", adapter.write(name, tmp_path / "a"))
    got, want = (logprobs(str(tmp_path / folder), tmp_path, *words) for folder in ("packed", "meant"))
    assert np.abs(got - want).max() < 2e-3
    assert np.abs(logprobs(str(tmp_path / "meant"), tmp_path, *FLOAT32) - want).max() > 0.5


def test_adapter_where_ranks_share_the_experts(bases, tmp_path):
    words = (*FLOAT32, "--threads", 1, "--lora_dir", adapter.write("mixtral", tmp_path / "a"))
    want = logprobs(bases("mixtral"), tmp_path, *words, arch="mixtral")
    got = logprobs(bases("mixtral"), tmp_path, *words, "--tp-size", 3, "--moe-ep-size", 3, arch="mixtral")
    assert np.abs(got - want).max() < 1e-3


@pytest.mark.parametrize("name, ranks", [("gemma4", ["--tp-size", 3]), ("gemma4-dense", ["--tp-size", 3]),
                                         ("gemma4-dense", ["--pp-size", 3]), ("gemma4-dense-dora", ["--tp-size", 3]),
                                         ("gemma4-dense-dora", ["--pp-size", 3]), ("gpt2-dora", ["--tp-size", 2]),
                                         ("qwen2-dora", ["--tp-size", 2])])
def test_adapter_over_ranks(name, ranks, bases, tmp_path):
    """Layers of several widths; lengths of rows whose inputs are divided; biases, which one rank has."""
    arch = adapter.ADAPTERS[name]["arch"]
    words = (*FLOAT32, "--threads", 1, "--lora_dir", adapter.write(name, tmp_path / "a"))
    want = logprobs(bases(arch), tmp_path, *words, arch=arch)
    assert np.abs(logprobs(bases(arch), tmp_path, *words, *ranks, arch=arch) - want).max() < 1e-3


@pytest.mark.parametrize("name, layer, module", [("gemma4-dense", 2, "v_proj"), ("gemma4", 4, "k_proj")])
def test_a_module_that_a_layer_lacks_is_refused(name, layer, module, bases, tmp_path):
    """Values that are the keys have no product, and layers that read those of others have none for either."""
    at, rank = f"base_model.model.model.layers.{layer}.self_attn.{module}", adapter.ADAPTERS[name]["r"]
    path = adapter.write(name, tmp_path / "a", extra={f"{at}.lora_A.weight": np.zeros((rank, 90), np.float32),
                                                      f"{at}.lora_B.weight": np.zeros((40, rank), np.float32)})
    error = logprobs(bases(name), tmp_path, "--lora_dir", path, arch=name, status=1)
    assert f"layer {layer} has no module attn_{module[0]} of its own" in error


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("form", ["safetensors", "bin"])
def test_folder_in_every_type_and_form(dtype, form, bases, tmp_path):
    got = logprobs(bases("llama"), tmp_path, *FLOAT32, "--lora_dir",
                   adapter.write("llama", tmp_path / "a", dtype, form))
    want = logprobs(bases("llama"), tmp_path, *FLOAT32, "--lora_dir", adapter.write("llama", tmp_path / "b"))
    assert np.abs(got - want).max() < {"float32": 1e-6, "float16": 0.02, "bfloat16": 0.15}[dtype]


@pytest.mark.parametrize("name", ["llama", "qwen2", "gpt2", "llama-dora", "qwen2-dora"])
def test_base_in_a_gguf_file(name, bases, tmp_path):
    """Rows of q and k lie in another order there."""
    path, arch = adapter.write(name, tmp_path / "a"), adapter.ADAPTERS[name]["arch"]
    got = logprobs(bases(arch, "f32"), tmp_path, *FLOAT32, "--lora_dir", path, arch=arch)
    want = logprobs(bases(arch), tmp_path, *FLOAT32, "--lora_dir", path, arch=arch)
    assert np.abs(got - want).max() < 2e-3


@pytest.mark.parametrize("name", ["llama", "llama-dora"])
@pytest.mark.parametrize("quant", ["q8_0", "q4_k"])
def test_quantized_base(quant, name, bases, tmp_path):
    """In the weights' own arithmetic: the adapter's input is the product's, in 8 bits."""
    path = adapter.write(name, tmp_path / "a")
    base = bases("llama", quant)
    got, want = (logprobs(base, tmp_path, *more, "--lora_dir", path) for more in ((), FLOAT32))
    without = [logprobs(base, tmp_path, *more) for more in ((), FLOAT32)]
    own = np.abs(without[0] - without[1]).max()  # what the arithmetic itself does
    assert np.abs(got - want).max() < 3 * own + 0.02
    assert np.abs(want - without[1]).max() > 0.5


def test_generation_with_an_adapter(bases, tmp_path):
    def text(model, *words):
        r = subprocess.run([*NEREID, "run", model, "-p", "the quick brown fox", "-n", "24", "--temperature", "0",
                            *FLOAT32, *words], capture_output=True, text=True, timeout=300, check=True)
        return r.stdout
    path = adapter.write("llama", tmp_path / "a")
    assert text(bases("llama"), "--lora_dir", path) == text(merged_model("llama", str(tmp_path / "m")))
    assert text(bases("llama"), "--lora_dir", path) != text(bases("llama"))


def zeros(*shape):
    return np.zeros(shape, dtype=np.float32)


LAYER = "base_model.model.model.layers.0."


@pytest.mark.parametrize(("what", "words"), [
    ({"config": {"use_dora": True}}, "has no lora_magnitude_vector"),
    ({"config": {"modules_to_save": ["lm_head"]}}, "modules_to_save (whole modules"),
    ({"config": {"bias": "all"}}, "bias 'all': adapters that train biases"),
    ({"config": {"lora_bias": True}}, "lora_bias"),
    ({"config": {"peft_type": "IA3"}}, "peft_type 'IA3' is not supported"),
    ({"config": {"init_lora_weights": "pissa_niter_4"}}, "init_lora_weights 'pissa_niter_4' changes the base"),
    ({"config": {"trainable_token_indices": [1]}}, "trainable_token_indices"),
    ({"config": {"r": 0}}, "r must be a whole number of at least 1, got 0"),
    ({"config": {"lora_alpha": "much"}}, "lora_alpha must be a number"),
    ({"config": {"r": 5}}, "do not fit rank 5"),
    ({"config": {"target_modules": ["q_proj"]}}, "k_proj is none of target_modules"),
    ({"config": {"rank_pattern": {"((": 4}}}, "rank_pattern: the pattern '((' cannot be read"),
    ({"extra": {"base_model.model.model.embed_tokens.lora_embedding_A": zeros(4, 300)}}, "an adapter of the embeddings"),
    ({"extra": {"base_model.model.lm_head.weight": zeros(3, 4)}}, "is a whole weight (modules_to_save)"),
    ({"extra": {LAYER + "self_attn.q_proj.lora_B.bias": zeros(3)}}, "is a bias"),
    ({"extra": {LAYER + "self_attn.q_proj.lora_magnitude_vector": zeros(3)}}, "but adapter_config.json has no use_dora"),
    ({"extra": {LAYER + "self_attn.q_proj.lora_magnitude_vector": zeros(3, 3)}}, "has 2 dimensions, expected 1"),
    ({"extra": {"base_model.model.lm_head.lora_A.weight": zeros(4, 8)}}, "lm_head has no lora_B"),
    ({"extra": {LAYER + "self_attn.x_proj.lora_A.weight": zeros(4, 8),
                LAYER + "self_attn.x_proj.lora_B.weight": zeros(8, 4)},
      "config": {"target_modules": "all-linear"}}, "x_proj' is no linear module of a layer of llama models"),
    ({"extra": {LAYER.replace("0", "99") + "self_attn.q_proj.lora_A.weight": zeros(4, 8),
                LAYER.replace("0", "99") + "self_attn.q_proj.lora_B.weight": zeros(8, 4)}}, "layer 99, but the model has"),
    ({"extra": {LAYER + "mlp.up_proj.lora_A.weight": zeros(4, 8),
                LAYER + "mlp.up_proj.lora_B.weight": zeros(16, 4)}}, "an adapter of another model"),
    ({"extra": {LAYER + "mlp.up_proj.lora_A.weight": zeros(4, 8, 1)}}, "has 3 dimensions, expected 2"),
])
def test_what_is_not_computed_is_refused_by_name(what, words, bases, tmp_path):
    path = adapter.write("llama", tmp_path / "a", **what)
    assert words in logprobs(bases("llama"), tmp_path, "--lora_dir", path, status=1)


def test_nan_and_missing_files_are_named(bases, tmp_path):
    bad = adapter.pairs_of("llama")["model.layers.1.mlp.down_proj"][0].copy()
    bad[0, 3] = np.nan
    path = adapter.write("llama", tmp_path / "a",
                         extra={"base_model.model.model.layers.1.mlp.down_proj.lora_A.weight": bad})
    assert "model.layers.1.mlp.down_proj: holds NaN" in logprobs(bases("llama"), tmp_path, "--lora_dir", path, status=1)
    os.remove(os.path.join(path, "adapter_model.safetensors"))
    assert "neither adapter_model.safetensors nor" in logprobs(bases("llama"), tmp_path, "--lora_dir", path, status=1)
    empty = str(tmp_path / "empty")
    os.makedirs(empty)
    assert "holds no LoRA adapter" in logprobs(bases("llama"), tmp_path, "--lora_dir", empty, status=1)


# ---- NumPy files ----

MODULES = {"q_proj": 1, "k_proj": 2, "v_proj": 3, "o_proj": 4, "gate_proj": 5, "down_proj": 6, "up_proj": 7}


def write_arrays(out, dtype="<f2", three_dims=True, config_name="model.lora_config.npy", change=None, name="llama"):
    """As TensorRT-LLM's converter writes them; of DoRA behind B what its script made of the lengths of rows."""
    rows, numbers = [], []
    lengths = adapter.magnitudes_of(name)
    gains = {m: lengths[m] / (w * w).sum(1) ** 0.5 for m, w in adapter.changed_rows(name) if m in lengths}
    for module, (down, up, scale) in adapter.pairs_of(name).items():
        gain = [gains[module]] if gains else []
        rows.append(np.concatenate([down.ravel(), (up * np.float32(scale)).ravel(), *gain]))
        numbers.append([MODULES[module.split(".")[-1]], int(module.split(".")[2]), down.shape[0], *([1] if gains else [])])
    width = max(map(len, rows))
    w = np.stack([np.pad(r, (0, width - len(r))) for r in rows])
    config = np.array(numbers, dtype=np.int32)
    if change:
        w, config = change(w, config)
    w = w.view("<u4") >> 16 if dtype == "|V2" else w.astype(dtype)
    w = w.astype("<u2").view("|V2") if dtype == "|V2" else w
    os.makedirs(out, exist_ok=True)
    np.save(os.path.join(out, "model.lora_weights.npy"), w[None] if three_dims else w)
    np.save(os.path.join(out, config_name), config[None] if three_dims else config)
    return str(out)


@pytest.mark.parametrize(("dtype", "allowed"), [("<f4", 1e-5), ("<f2", 0.02), ("|V2", 0.3)])
@pytest.mark.parametrize("three_dims", [True, False])
def test_numpy_files(dtype, allowed, three_dims, bases, tmp_path):
    name = "model.lora_config.npy" if three_dims else "model.lora_keys.npy"
    got = logprobs(bases("llama"), tmp_path, *FLOAT32, "--lora_dir",
                   write_arrays(tmp_path / "n", dtype, three_dims, name))
    want = logprobs(bases("llama"), tmp_path, *FLOAT32, "--lora_dir", adapter.write("llama", tmp_path / "a"))
    assert np.abs(got - want).max() < allowed


@pytest.mark.parametrize("name", ["llama-dora", "qwen2-dora"])
def test_numpy_files_with_gains(name, bases, tmp_path):
    arch = adapter.ADAPTERS[name]["arch"]
    got = logprobs(bases(arch), tmp_path, *FLOAT32, "--lora_dir", write_arrays(tmp_path / "n", "<f4", name=name), arch=arch)
    want = logprobs(bases(arch), tmp_path, *FLOAT32, "--lora_dir", adapter.write(name, tmp_path / "a"), arch=arch)
    assert np.abs(got - want).max() < 1e-3


def set_config(row, column, value):
    def change(w, config):
        config[row, column] = value
        return w, config
    return change


def nan_at(row):
    def change(w, config):
        w[row, 1] = np.nan
        return w, config
    return change


@pytest.mark.parametrize(("change", "words"), [
    (set_config(2, 0, 42), "row 2 (no module of layer 0): module id 42 is unknown, expected 0 to 18"),
    (set_config(2, 0, 9), "this model has no module cross_attn_q (id 9)"),
    (set_config(3, 1, 77), "layer 77, but the model has layers"),
    (set_config(0, 2, 0), "rank 0, expected 1 to"),
    (set_config(0, 2, 3), "values behind the"),
    (set_config(0, 2, 500), "an adapter of another model"),
    (set_config(1, 0, 1), "attn_q of layer 0 comes twice"),
    (nan_at(4), "row 4 (mlp_h_to_4h of layer 0): holds NaN"),
    (lambda w, c: (w[:, :-40], c), "an adapter of another model"),
    (lambda w, c: (w, c[:-1]), "model.lora_config.npy has"),
    (lambda w, c: (w, c[:, :2]), "rows of 2 numbers, expected 3"),
    (lambda w, c: (w, c.astype(np.int64)), "is of int64, expected int32"),
    (lambda w, c: (w, np.pad(c, ((0, 0), (0, 1)), constant_values=1)), "outputs of DoRA): an adapter of another model"),
    (lambda w, c: (w, np.pad(c, ((0, 0), (0, 1)), constant_values=2)), "(is_dora) must be 0 or 1, got 2"),
])
def test_numpy_files_that_do_not_fit_are_named(change, words, bases, tmp_path):
    path = write_arrays(tmp_path / "n", change=change)
    assert words in logprobs(bases("llama"), tmp_path, "--lora_dir", path, status=1)


def test_numpy_files_that_are_none(bases, tmp_path):
    path = write_arrays(tmp_path / "n")
    file = os.path.join(path, "model.lora_weights.npy")
    with open(file, "rb") as f:
        whole = f.read()
    length = struct.unpack("<H", whole[8:10])[0]
    for data, words in ((b"not at all", "is no NumPy file"), (whole[:-100], "bytes of data expected"),
                        (whole[:8] + b"\xff\xff" + whole[10:200], "a header of 65535 bytes"),
                        (whole.replace(b"False", b"True "), "Fortran order"),
                        (whole.replace(b"<f2", b"<f8"), "its element type is none of"),
                        (whole[:10] + whole[10:10 + length].replace(b"(1,", b"(x,") + whole[10 + length:], "its shape")):
        with open(file, "wb") as f:
            f.write(data)
        assert words in logprobs(bases("llama"), tmp_path, "--lora_dir", path, status=1)
