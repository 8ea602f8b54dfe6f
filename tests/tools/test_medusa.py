# SPDX-License-Identifier: Apache-2.0
"""Medusa heads from a folder, through convert and build, and of a checkpoint: the same text as without them."""
import json
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import eagle_heads  # noqa: E402
import medusa_heads  # noqa: E402
from test_convert import NEREID, make, nereid, tensors  # noqa: E402


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("medusa")
    made = make(folder / "hf", "llama")
    assert made.returncode == 0, made.stderr
    config = json.loads((folder / "hf/config.json").read_text())
    medusa_heads.write_folder(folder / "heads", 3, 1, config["hidden_size"], config["vocab_size"])
    return folder


def text(model, config=None, tokenizer=None):
    tokenizer = tokenizer or model
    words = ["--speculative-config", json.dumps(config)] if config else []
    done = subprocess.run([NEREID, "run", str(model), "--tokenizer-dir", str(tokenizer), "-p", "one two three", "--temperature", "0", "--max-tokens", "24",
                           "--ignore-eos", *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def test_text_with_heads_is_that_without(model):
    plain, _ = text(model / "hf")
    got, said = text(model / "hf", {"method": "medusa", "model": str(model / "heads"), "adaptive": False})
    assert got == plain and "drafted tokens held" in said
    choices = {"method": "medusa", "model": str(model / "heads"), "adaptive": False, "medusa_choices": [[0], [1], [0, 0], [0, 0, 1]]}
    assert text(model / "hf", choices)[0] == plain


def test_convert_and_build_take_the_heads_along(model, tmp_path):
    nereid("convert", "--model_dir", model / "hf", "--output_dir", tmp_path / "ckpt", "--speculative_decoding_mode", "medusa",
           "--medusa_model_dir", model / "heads", "--num_medusa_heads", 2, "--num_medusa_layers", 1)
    assert len(tensors(tmp_path / "ckpt/medusa_lm_head.safetensors")) == 2 * 3
    nereid("build", "--checkpoint_dir", tmp_path / "ckpt", "--output_dir", tmp_path / "engine", "--speculative_decoding_mode", "medusa",
           "--max_draft_len", 63)
    config = json.loads((tmp_path / "engine/config.json").read_text())
    assert "medusa" in json.dumps(config)
    plain, _ = text(tmp_path / "engine", tokenizer=model / "hf")
    assert text(tmp_path / "engine", {"method": "medusa", "adaptive": False}, model / "hf")[0] == plain


def test_an_engine_is_built_of_heads_that_share_a_matrix(model, fitted, tmp_path):
    """Their names have num_hidden_layers for their own layers, which the checkpoint's configuration has for the model's."""
    layers, head, _ = fitted
    want = guess(model, tmp_path / "heads", {**layers, "lm_head.weight": head}, BLOCKS)
    assert want[1] > N_NEW / 3, "some guesses are right"
    nereid("convert", "--model_dir", model / "hf", "--output_dir", tmp_path / "ckpt", "--speculative_decoding_mode", "medusa",
           "--medusa_model_dir", tmp_path / "heads")
    nereid("build", "--checkpoint_dir", tmp_path / "ckpt", "--output_dir", tmp_path / "engine", "--speculative_decoding_mode", "medusa",
           "--max_draft_len", 63)
    assert guess_of(tmp_path / "engine", {}, tokenizer=model / "hf") == want


def test_heads_inside_a_checkpoint_are_read(model, tmp_path):
    nereid("convert", "--model_dir", model / "hf", "--output_dir", tmp_path / "ckpt")
    all_of_it = {**tensors(tmp_path / "ckpt/rank0.safetensors"),
                 **medusa_heads.as_checkpoint(tensors(model / "heads/medusa_lm_head.safetensors"), 1)}
    heads = {k: v for k, v in all_of_it.items() if k.startswith("medusa_heads.")}
    (tmp_path / "inside").mkdir()
    medusa_heads.write(tmp_path / "inside/rank0.safetensors", heads)
    plain, _ = text(model / "hf")
    assert text(model / "hf", {"method": "medusa", "model": str(tmp_path / "inside"), "adaptive": False})[0] == plain


@pytest.mark.parametrize("words, message", [
    (["--speculative_decoding_mode", "medusa"], "needs --medusa_model_dir"),
    (["--num_medusa_heads", "2"], "need --medusa_model_dir"),
    (["--medusa_model_dir", "HEADS", "--num_medusa_heads", "4"], "has 3 heads of 1 layers"),
    (["--medusa_model_dir", "HEADS", "--num_medusa_layers", "2"], "has 3 heads of 1 layers"),
    (["--medusa_model_dir", "nowhere"], "'nowhere' has no Medusa heads"),
    (["--speculative_decoding_mode", "draft_tokens"], "known: none"),
    (["--speculative_decoding_mode", "eagle"], "needs --eagle_model_dir"),
    (["--eagle_model_dir", "nowhere"], "'nowhere' has no EAGLE heads"),
])
def test_what_convert_refuses(model, tmp_path, words, message):
    words = [str(model / "heads") if w == "HEADS" else w for w in words]
    done = subprocess.run([NEREID, "convert", "--model_dir", model / "hf", "--output_dir", tmp_path / "ckpt", *words],
                          capture_output=True, text=True)
    assert done.returncode != 0 and message in done.stderr, done.stderr


N_HEADS, PROMPT, N_NEW = 2, "one two three and what comes then", 24


@pytest.fixture(scope="module")
def fitted(model):
    """Layers and one LM head of float32 of which the first head's guesses along a greedy text are right, and the tokens of that text."""
    net = eagle_heads.model_of(model / "hf")
    said = subprocess.run([NEREID, "tokenize", str(model / "hf")], input=PROMPT + "\n", capture_output=True, text=True, check=True)
    text = net.greedy([int(x) for x in said.stdout.split()], N_NEW)
    states, rng = net.states(text)[1], np.random.default_rng(5)
    hidden, head = states.shape[1], np.zeros(net.head.shape, np.float32)
    for at in range(len(text) - 2):
        head[text[at + 2]] += (states[at] / np.linalg.norm(states[at])).astype(np.float32)
    layers = {}
    for h in range(N_HEADS):
        layers[f"blocks.{h}.layers.0.weight"] = rng.normal(0, 0.02, (hidden, hidden)).astype(np.float32)
        layers[f"blocks.{h}.layers.0.bias"] = np.full(hidden, -4, np.float32)
    return layers, head, text


def guess(model, folder, tensors, config, file="model.safetensors", tp_size=1, dtype="float32", **more):
    """The text, how many drafted tokens held and of how many."""
    folder.mkdir(exist_ok=True)
    medusa_heads.write(folder / file, tensors)
    (folder / "config.json").write_text(json.dumps(config))
    return guess_of(model / "hf", {"model": str(folder), **more}, model / "hf", tp_size, dtype)


def guess_of(model, config, tokenizer, tp_size=1, dtype="float32"):
    speculative = {"method": "medusa", "adaptive": False, "num_speculative_tokens": 6, **config}
    done = subprocess.run([NEREID, "run", str(model), "--tokenizer-dir", str(tokenizer), "-p", PROMPT, "--temperature", "0", "--max-tokens", str(N_NEW),
                           "--ignore-eos", "--compute-dtype", dtype, "--tp-size", str(tp_size), "--speculative-config", json.dumps(speculative)],
                          capture_output=True, text=True)
    if done.returncode:
        return done.stderr
    said = re.search(r"(\d+) of (\d+) drafted tokens held", done.stderr)
    return done.stdout, int(said[1]), int(said[2])


def published(layers, head):
    """The first form: a matrix for each head."""
    return {**{re.sub(r"blocks.(\d+).layers.0", r"\1.0.linear", k): v for k, v in layers.items()},
            **{f"{h}.1.weight": head for h in range(N_HEADS)}}


BLOCKS = {"num_heads": N_HEADS, "num_hidden_layers": 1, "original_lm_head": True}


def test_heads_may_share_an_lm_head(model, fitted, tmp_path):
    layers, head, _ = fitted
    want = guess(model, tmp_path / "a", published(layers, head), {"medusa_num_heads": N_HEADS}, "medusa_lm_head.safetensors")
    assert want[1] > N_NEW / 3, "some guesses are right"
    for i, name in enumerate(("lm_heads.0.weight", "lm_head.weight")):
        assert guess(model, tmp_path / f"b{i}", {**layers, name: head}, BLOCKS) == want


@pytest.mark.parametrize("form", ["int8", "fp8", "fp8 whole"])
def test_matrices_of_bytes_have_scales(model, fitted, tmp_path, form):
    layers, head, _ = fitted
    small, same = medusa_heads.in_bytes({**layers, "lm_head.weight": head}, form)
    want = guess(model, tmp_path / "a", published({k: v for k, v in same.items() if k in layers}, same["lm_head.weight"]), {}, "medusa_lm_head.safetensors")
    assert guess(model, tmp_path / "c", small, BLOCKS) == want and want[1] > 0


def test_heads_are_brought_to_bytes_when_they_are_opened(model, fitted, tmp_path):
    """The same guesses as with heads that come so, and the text of any heads."""
    layers, head, _ = fitted
    whole = {**layers, "lm_head.weight": head}
    small, _ = medusa_heads.in_bytes(whole)
    want = guess(model, tmp_path / "a", small, BLOCKS, dtype="auto")
    assert guess(model, tmp_path / "b", whole, BLOCKS, dtype="auto", quantization="int8") == want and want[1] > 0
    assert guess(model, tmp_path / "b", whole, BLOCKS, dtype="auto")[0] == want[0]
    assert "a CPU has no products of fp8: use the quantization int8" in guess(model, tmp_path / "b", whole, BLOCKS, quantization="fp8")
    eight, _ = medusa_heads.in_bytes(whole, "fp8")
    assert guess(model, tmp_path / "c", eight, BLOCKS, dtype="auto")[0] == want[0]


@pytest.mark.parametrize("form", ["int8", "fp8 whole"])
def test_rows_of_the_lm_head_are_the_tokens_of_a_map(model, fitted, tmp_path, form):
    layers, head, text = fitted
    order = np.random.default_rng(3).permutation(len(head))
    whole = guess(model, tmp_path / "a", {**layers, "lm_head.weight": head}, BLOCKS)
    assert guess(model, tmp_path / "b", {**layers, "lm_head.weight": head[order], "token_map": order.astype(np.int64)}, BLOCKS) == whole
    # tokens that are not in the map cannot be guessed
    said = text[-N_NEW:]
    known = np.array(sorted(set(text) - {max(said, key=said.count)}), np.int64)
    some = guess(model, tmp_path / "c", {**layers, "lm_head.weight": head[known], "token_map": known}, BLOCKS)
    assert some[0] == whole[0] and some[1] < whole[1]
    small, _ = medusa_heads.in_bytes({**layers, "lm_head.weight": head[known]}, form)
    heads = {**small, "token_map": known}
    (tmp_path / "d").mkdir()
    plain = guess(model, tmp_path / "d", heads, BLOCKS)
    nereid("convert", "--model_dir", model / "hf", "--output_dir", tmp_path / "ckpt", "--speculative_decoding_mode", "medusa",
           "--medusa_model_dir", tmp_path / "d")
    kept = tensors(tmp_path / "ckpt/medusa_lm_head.safetensors")
    assert sorted(kept) == sorted(heads) and all(kept[k].tobytes() == heads[k].tobytes() for k in heads)
    assert guess(model, tmp_path / "e", kept, BLOCKS, "medusa_lm_head.safetensors") == plain


def test_without_an_lm_head_the_models_is_used(model, fitted, tmp_path):
    layers, _, _ = fitted
    net = eagle_heads.model_of(model / "hf")
    want = guess(model, tmp_path / "a", published(layers, net.head.astype(np.float32)), {}, "medusa_lm_head.safetensors")
    only = {k: v for k, v in published(layers, net.head).items() if "linear" in k}
    assert guess(model, tmp_path / "b", only, {}, "medusa_lm_head.safetensors") == want
    assert guess(model, tmp_path / "c", layers, BLOCKS) == want
    for tp_size in (2, 4):  # which is in parts then
        assert guess(model, tmp_path / "c", layers, BLOCKS, tp_size=tp_size) == want


def test_what_does_not_fit_together_is_refused_by_name(model, fitted, tmp_path):
    layers, head, _ = fitted
    small, _ = medusa_heads.in_bytes({**layers, "lm_head.weight": head})
    floats, _ = medusa_heads.in_bytes({**layers, "lm_head.weight": head}, "fp8 whole")
    ids = np.arange(8, dtype=np.int64)
    for i, (heads, why) in enumerate((
            ({**layers, "lm_head.weight": head[:8]}, "lm_head.weight has 2 dimensions, the first of 8"),
            ({**layers, "lm_head.weight": head[:8], "token_map": ids[:7]}, "lm_head.weight has 2 dimensions, the first of 8"),
            ({**layers, "lm_head.weight": head[:8], "token_map": ids // 2}, "token_map[1] is 0, expected a token of the model"),
            ({**layers, "lm_head.weight": head[:8], "token_map": ids + len(head) - 4}, f"token_map[4] is {len(head)}, expected a token"),
            ({**layers, "token_map": ids}, "has a tensor token_map, but no LM head"),
            ({**layers, "lm_head.weight": head[:8], "token_map": ids.astype(np.float32)}, "token_map must be 1 to"),
            ({k: v for k, v in small.items() if k != "lm_head.weight_scale"}, "there is no tensor lm_head.weight_scale"),
            ({**small, "lm_head.weight_scale": head[:8, :1]}, "lm_head.weight_scale must have the shape"),
            ({**floats, "lm_head.weight_scale": np.zeros(1, np.float32)}, "lm_head.weight_scale is 0, expected a number above 0"),
            ({**floats, "lm_head.weight_scale": np.ones(2, np.float32)}, "or be one number"),
            ({**small, "blocks.1.layers.0.bias": np.zeros(head.shape[1], np.int8)}, "blocks.1.layers.0.bias has the type"),
            ({k: v for k, v in published(layers, head).items() if k != "1.1.weight"}, "has no tensor 1.1.weight"))):
        said = guess(model, tmp_path / str(i), heads, {})
        assert why in said, (why, said)
    assert "num_heads is 3" in guess(model, tmp_path / "n", {**layers, "lm_head.weight": head}, {"num_heads": 3})
