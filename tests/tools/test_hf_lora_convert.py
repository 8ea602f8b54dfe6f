# SPDX-License-Identifier: Apache-2.0
"""nereid hf_lora_convert, and what nereid build does for adapters."""
import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
NEREID = os.environ.get("NEREID", str(ROOT / "build" / "bin" / "nereid"))
sys.path.insert(0, str(ROOT / "tests/tinymodel"))
import adapter  # noqa: E402
import make_model  # noqa: E402


def nereid(*words):
    return subprocess.run([NEREID, *map(str, words)], capture_output=True, text=True, timeout=300)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("lora") / "llama"
    make_model.write_folder("llama", path)
    return path


@pytest.mark.parametrize(("name", "typ"), [("llama", "float16"), ("llama-patterns", "float32"), ("gpt2", "float16")])
def test_converted_arrays_hold_the_pairs_with_their_scales(name, typ, tmp_path):
    path = adapter.write(name, tmp_path / "a")
    r = nereid("hf_lora_convert", "-i", path, "-o", tmp_path / "out", "--storage-type", typ)
    assert r.returncode == 0, r.stderr
    w, k = (np.load(tmp_path / "out" / f"model.lora_{part}.npy") for part in ("weights", "config"))
    pairs = adapter.pairs_of(name)
    assert w.dtype == np.dtype(typ) and k.dtype == np.int32 and w.shape[:2] == k.shape[:2] == (1, len(pairs))
    ids = {"q_proj": 1, "k_proj": 2, "v_proj": 3, "o_proj": 4, "gate_proj": 5, "down_proj": 6, "up_proj": 7,
           "attn.c_attn": 0, "attn.c_proj": 4, "mlp.c_fc": 5, "mlp.c_proj": 6}
    by_place = {tuple(row[:2]): (row[2], w[0, i]) for i, row in enumerate(k[0])}
    for module, (down, up, scale) in pairs.items():
        words = module.split(".")
        place = ids.get(words[-1], ids.get(".".join(words[-2:]))), int(next(x for x in words if x.isdigit()))
        rank, row = by_place[place]
        want = np.concatenate([down.ravel(), (up * np.float32(scale)).ravel()]).astype(typ)
        assert rank == down.shape[0]
        np.testing.assert_allclose(row[:len(want)], want, rtol=2e-3 if typ == "float16" else 1e-6, atol=1e-6)
        assert not row[len(want):].any()


def test_bfloat16_is_written_as_two_raw_bytes(model, tmp_path):
    path = adapter.write("llama", tmp_path / "a")
    assert nereid("hf_lora_convert", "-i", path, "-o", tmp_path / "out", "--storage-type", "bfloat16").returncode == 0
    assert np.load(tmp_path / "out/model.lora_weights.npy").dtype == np.dtype("V2")
    r = nereid("run", model, "--lora_dir", tmp_path / "out", "-p", "the", "-n", "2", "--temperature", "0")
    assert r.returncode == 0, r.stderr


@pytest.mark.parametrize(("words", "text"), [
    ([], "-i DIR and -o DIR are needed"),
    (["-i", "/nowhere", "-o", "x"], "/nowhere/adapter_config.json"),
    (["-i", "a", "-o", "b", "--storage-type", "int8"], "--storage-type: 'int8', expected float16"),
])
def test_wrong_words_of_the_converter(words, text):
    r = nereid("hf_lora_convert", *words)
    assert r.returncode != 0 and text in r.stderr


def config_of(engine):
    return json.loads((engine / "config.json").read_text())["build_config"]


def test_build_keeps_what_adapters_may_be(model, tmp_path):
    r = nereid("build", "--checkpoint_dir", model, "--output_dir", tmp_path / "e", "--lora_plugin", "float16",
               "--max_lora_rank", "4", "--lora_target_modules", "attn_q", "attn_k", "attn_v")
    assert r.returncode == 0, r.stderr
    b = config_of(tmp_path / "e")
    assert b["lora_config"] == {"max_lora_rank": 4, "lora_target_modules": ["attn_q", "attn_k", "attn_v"]}
    assert b["plugin_config"]["lora_plugin"] == "auto"
    run = ["run", tmp_path / "e", "--tokenizer_dir", model, "-p", "the", "-n", "2", "--lora_dir"]
    fits = adapter.write("llama", tmp_path / "fits", target_modules=["q_proj", "v_proj"])
    assert nereid(*run, fits).returncode == 0
    r = nereid(*run, adapter.write("llama", tmp_path / "other"))
    assert r.returncode == 1 and "module attn_dense is none of the engine's lora_target_modules" in r.stderr
    r = nereid(*run, adapter.write("llama", tmp_path / "big", r=5, target_modules=["q_proj"]))
    assert r.returncode == 1 and "rank 5, expected 1 to 4 (max_lora_rank)" in r.stderr


def test_build_reads_the_adapters_it_is_given(model, tmp_path):
    one = adapter.write("llama", tmp_path / "one", target_modules=["q_proj"])
    two = adapter.write("llama", tmp_path / "two", target_modules=["down_proj"])
    r = nereid("build", "--checkpoint_dir", model, "--output_dir", tmp_path / "e", "--lora_plugin", "auto", "--lora_dir",
               one, two, "--max_batch_size", "4")
    assert r.returncode == 0, r.stderr
    b = config_of(tmp_path / "e")
    assert b["lora_config"] == {"max_lora_rank": 64, "lora_target_modules": ["attn_q", "mlp_4h_to_h"]}
    assert b["max_batch_size"] == 4


def test_an_engine_without_these_options_says_nothing_of_adapters(model, tmp_path):
    assert nereid("build", model, "-o", tmp_path / "e", "--lora_plugin", "disable").returncode == 0
    b = config_of(tmp_path / "e")
    assert "lora_config" not in b and "lora_plugin" not in b["plugin_config"]


@pytest.mark.parametrize(("words", "text"), [
    (["--lora_target_modules", "attn_q", "nonsense"], "--lora_target_modules: there is no module nonsense"),
    (["--lora_target_modules", "cross_attn_q"], "this model has no module cross_attn_q"),
    (["--max_lora_rank", "1000"], "--max_lora_rank 1000, expected 1 to 512"),
    (["--lora_dir", "/nowhere"], "--lora_dir: /nowhere holds no LoRA adapter"),
    (["--lora_ckpt_source", "nemo"], "only hf is supported, got 'nemo'"),
])
def test_wrong_words_of_build(model, tmp_path, words, text):
    r = nereid("build", "--checkpoint_dir", model, "--output_dir", tmp_path / "e", *words)
    assert r.returncode != 0 and text in r.stderr and not (tmp_path / "e/config.json").exists()
