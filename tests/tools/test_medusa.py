# SPDX-License-Identifier: Apache-2.0
"""Medusa heads from a folder, through convert and build, and of a checkpoint: the same text as without them."""
import json
import pathlib
import subprocess
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
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
