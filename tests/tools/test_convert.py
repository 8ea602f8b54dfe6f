# SPDX-License-Identifier: Apache-2.0
"""nereid convert, build and inspect on tiny models of every family.

Needs numpy and the built program (NEREID, else build/bin/nereid).
"""

import json
import os
import pathlib
import struct
import subprocess
import sys

import numpy as np
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
NEREID = os.environ.get("NEREID", str(ROOT / "build" / "bin" / "nereid"))
MAKE = [sys.executable, str(ROOT / "tests" / "tinymodel" / "make_model.py")]
sys.path.insert(0, str(ROOT / "tests" / "tinymodel"))
from more_families import FAMILIES  # noqa: E402

# Those of families.py differ in names and flags: tests/model compares their folders and GGUF files by results.
ARCHS = [arch for arch in subprocess.run([*MAKE, "--list"], capture_output=True, text=True, check=True).stdout.split()
         if arch not in FAMILIES]
TYPES = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16, "U8": np.uint8, "I8": np.int8, "I64": np.int64, "F8_E4M3": "V1"}


def make(path, arch, **options):
    command = [*MAKE, "--arch", arch, "--out", str(path)]
    for key, value in options.items():
        command += [f"--{key}", str(value)]
    return subprocess.run(command, capture_output=True, text=True)


def nereid(*words):
    done = subprocess.run([NEREID, *map(str, words)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def tensors(path):
    data = pathlib.Path(path).read_bytes()
    (n,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + n])
    header.pop("__metadata__", None)
    out = {}
    for name, t in header.items():
        start, end = (8 + n + x for x in t["data_offsets"])
        out[name] = np.frombuffer(data[start:end], TYPES[t["dtype"]]).reshape(t["shape"])
    return out


def assert_equal(a, b):
    assert sorted(a) == sorted(b)
    for name in a:
        assert a[name].dtype == b[name].dtype, name
        assert np.array_equal(a[name], b[name]), name


@pytest.mark.parametrize("arch", ARCHS)
def test_every_form_of_a_model_gives_the_same_checkpoint(arch, tmp_path):
    forms = {
        "one": {"format": "safetensors"},
        "shards": {"format": "safetensors", "shards": 3},
        "bin": {"format": "bin"},
        "bins": {"format": "bin", "shards": 3},
    }
    found = {}
    for name, options in forms.items():
        made = make(tmp_path / name, arch, dtype="bfloat16", **options)
        assert made.returncode == 0, made.stderr
        nereid("convert", tmp_path / name, "-o", tmp_path / f"{name}.ckpt")
        found[name] = tensors(tmp_path / f"{name}.ckpt" / "rank0.safetensors")
    for name in forms:
        assert_equal(found["one"], found[name])


@pytest.mark.parametrize("arch", ARCHS)
def test_a_gguf_file_holds_the_same_values(arch, tmp_path):
    made = make(tmp_path / "m.gguf", arch, format="gguf", quant="f32")
    if made.returncode:
        assert "a GGUF file" in made.stderr or "GGUF files" in made.stderr, made.stderr
        pytest.skip(made.stderr.strip())
    assert make(tmp_path / "hf", arch, dtype="float32").returncode == 0
    nereid("convert", tmp_path / "m.gguf", "-o", tmp_path / "g")
    nereid("convert", tmp_path / "hf", "-o", tmp_path / "h")
    g, h = tensors(tmp_path / "g/rank0.safetensors"), tensors(tmp_path / "h/rank0.safetensors")
    config = json.loads((tmp_path / "g/config.json").read_text())
    heads, kv = config["num_attention_heads"], config["num_key_value_heads"]
    size = config["head_size"]
    g.pop("rope_factors", None)
    assert sorted(g) == sorted(h)
    for name, want in h.items():
        if config["position_embedding_type"] == "rope_gptj" and ".qkv." in name:
            # pairs (i, i + d/2) of the folder stand side by side in the file
            n = (heads + kv) * size
            head = want[:n].reshape(-1, 2, size // 2, *want.shape[1:])
            want = np.concatenate([head.swapaxes(1, 2).reshape(n, *want.shape[1:]), want[n:]])
        assert np.array_equal(g[name], want), name


@pytest.mark.parametrize("arch,tp,pp", [("llama", 2, 2), ("llama", 8, 1), ("gpt2", 2, 1), ("gemma3", 2, 1)])
def test_shards_put_together_are_the_whole(arch, tp, pp, tmp_path):
    assert make(tmp_path / "m", arch, dtype="float32").returncode == 0
    nereid("convert", tmp_path / "m", "-o", tmp_path / "whole")
    nereid("convert", tmp_path / "m", "-o", tmp_path / "parts", "-tp", tp, "--pp_size", pp)
    whole = tensors(tmp_path / "whole/rank0.safetensors")
    config = json.loads((tmp_path / "parts/config.json").read_text())
    assert config["mapping"] == {"world_size": tp * pp, "tp_size": tp, "pp_size": pp}
    heads, kv = config["num_attention_heads"], config["num_key_value_heads"]
    q_rows = heads // tp * config["head_size"]
    per_stage = config["num_hidden_layers"] // pp
    seen = set()
    for stage in range(pp):
        ranks = [tensors(tmp_path / f"parts/rank{stage * tp + r}.safetensors") for r in range(tp)]
        for name in ranks[0]:
            words = name.split(".")
            if "layers" in words:
                words[2] = str(int(words[2]) + stage * per_stage)
            full = ".".join(words)
            seen.add(full)
            pieces = [r[name] for r in ranks]
            if full not in whole:
                assert full == "lm_head.weight"
                full = "transformer.vocab_embedding.weight"
            if ".qkv." in name:
                k_rows = (len(pieces[0]) - q_rows) // 2
                step = max(1, tp // kv)  # ranks that share a head
                ks = [p[q_rows : q_rows + k_rows] for p in pieces][::step]
                vs = [p[q_rows + k_rows :] for p in pieces][::step]
                got = np.concatenate([p[:q_rows] for p in pieces] + ks + vs)
            elif name.endswith(("dense.weight", "mlp.proj.weight")):
                got = np.concatenate(pieces, axis=1)
            elif any(part in name for part in ("mlp.fc", "mlp.gate", "lm_head")):
                got = np.concatenate(pieces)[: len(whole[full])]
            else:
                got = pieces[0]
                assert all(np.array_equal(p, got) for p in pieces), name
            assert np.array_equal(got, whole[full]), name
    assert set(whole) <= seen


@pytest.mark.parametrize("quant", ["q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q2_k", "q4_k", "q6_k", "iq4_nl", "iq4_xs", "bf16"])
def test_block_formats_are_kept_bit_for_bit(quant, tmp_path):
    made = make(tmp_path / "m.gguf", "llama", format="gguf", quant=quant)
    assert made.returncode == 0, made.stderr
    nereid("convert", tmp_path / "m.gguf", "-o", tmp_path / "c")
    data = (tmp_path / "m.gguf").read_bytes()
    t = tensors(tmp_path / "c/rank0.safetensors")
    for name in ("attention.dense", "mlp.fc", "mlp.gate", "mlp.proj"):
        for layer in range(2):
            assert t[f"transformer.layers.{layer}.{name}.weight"].tobytes() in data


@pytest.mark.parametrize("options", [[], ["--quantize", "int8"], ["--quantize", "q4_0"], ["--quantize", "q8_1"], ["--dtype", "float16"]])
def test_a_build_through_a_checkpoint_is_the_same(options, tmp_path):
    assert make(tmp_path / "m", "qwen2", dtype="bfloat16").returncode == 0
    nereid("build", tmp_path / "m", "-o", tmp_path / "direct", *options)
    nereid("convert", tmp_path / "m", "-o", tmp_path / "c", *options)
    nereid("build", tmp_path / "c", "-o", tmp_path / "through")
    assert (tmp_path / "direct/rank0.engine").read_bytes() == (tmp_path / "through/rank0.engine").read_bytes()
    assert "checksums are right" in nereid("inspect", tmp_path / "direct", "--verify")


@pytest.mark.parametrize("words", [
    ["convert", "--model_dir", "M", "--output_dir", "M/."], ["build", "--checkpoint_dir", "M", "--output_dir", "M"],
    ["build", "--checkpoint_dir", "C", "-o", "link"], ["build", "--model_config", "C/config.json", "-o", "C"],
    ["quantize", "--model_dir", "M", "--output_dir", "M", "--qformat", "int8_sq"]])
def test_what_is_read_is_not_overwritten(tmp_path, words):
    make = [sys.executable, ROOT / "tests/tinymodel/make_model.py", "--arch", "llama", "--out", tmp_path / "M"]
    subprocess.run(make, check=True, stdout=subprocess.DEVNULL)
    subprocess.run([NEREID, "convert", "--model_dir", "M", "--output_dir", "C"], cwd=tmp_path, check=True, stdout=subprocess.DEVNULL)
    (tmp_path / "link").symlink_to("C")
    before = {p: p.read_bytes() for p in tmp_path.glob("?/*")}
    done = subprocess.run([NEREID, *words], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1 and "--output_dir is where --" in done.stderr, done.stderr
    assert {p: p.read_bytes() for p in tmp_path.glob("?/*")} == before


@pytest.mark.parametrize("words, holds", [
    (["convert", "--model_dir", "M", "-o", "O"], "a Hugging Face model"), (["build", "--checkpoint_dir", "M", "-o", "O"], "a Hugging Face model"),
    (["convert", "--model_dir", "M", "-o", "E"], "an engine"), (["build", "--checkpoint_dir", "M", "-o", "C"], "a checkpoint"),
    (["convert", "--model_dir", "M", "-o", "W"], "no model's")])
def test_a_model_of_another_kind_is_not_overwritten(tmp_path, words, holds):
    assert make(tmp_path / "M", "llama").returncode == 0 and make(tmp_path / "O", "qwen2").returncode == 0
    nereid("convert", tmp_path / "O", "-o", tmp_path / "C")
    nereid("build", tmp_path / "O", "-o", tmp_path / "E")
    (tmp_path / "W").mkdir()
    (tmp_path / "W/config.json").write_text('{"port": 80}')
    before = {p: p.read_bytes() for p in tmp_path.glob("?/*")}
    done = subprocess.run([NEREID, *words], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1 and f"{holds}, whose config.json would be overwritten; give another folder" in done.stderr, done.stderr
    assert {p: p.read_bytes() for p in tmp_path.glob("?/*")} == before


def test_what_was_made_before_is_made_again_and_another_model_of_it_is_named(tmp_path):
    assert make(tmp_path / "M", "llama").returncode == 0 and make(tmp_path / "O", "qwen2").returncode == 0
    made = (("convert", "C", "a checkpoint", []), ("build", "E", "an engine", []), ("build", "old", "an engine", ["--old_layout"]))
    for verb, out, kind, more in made:
        for model, says in (("O", ""), ("O", ""), ("M", f"nereid {verb}: warning: '{out}' holds {kind} of Qwen2ForCausalLM, which is overwritten\n")):
            done = subprocess.run([NEREID, verb, model, "-o", out, *more], cwd=tmp_path, capture_output=True, text=True)
            assert done.returncode == 0 and says in done.stderr and ("warning" in done.stderr) == bool(says), done.stderr


def test_options_of_trtllm_build_are_used_refused_or_named(tmp_path):
    assert make(tmp_path / "m", "llama", dtype="float32").returncode == 0
    done = subprocess.run(
        [NEREID, "build", "--checkpoint-dir", tmp_path / "m", "--output_dir", tmp_path / "e",
         "--gpt_attention_plugin", "float16", "--gemm_plugin=auto", "--remove_input_padding", "enable",
         "--kv_cache_type", "paged", "--max_batch_size", "7", "--max-input-len", "40",
         "--max_output_len", "30", "--gather_all_token_logits"],
        capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "--gemm_plugin has no effect" in done.stderr
    build = json.loads((tmp_path / "e/config.json").read_text())["build_config"]
    assert (build["max_batch_size"], build["max_input_len"], build["max_seq_len"]) == (7, 40, 70)
    assert build["gather_context_logits"] and build["gather_generation_logits"]
    for words, message in (
        (["--no_such_option"], "unknown option"),
        (["--max_batch_size", "many"], "not a whole number"),
        (["--strip_plan"], "not supported"),
        (["--max_num_tokens", "-4"], "max_num_tokens"),
        (["--quantize", "awq"], "awq"),
        (["--tp_size", "5"], "tp_size 5 must divide num_attention_heads"),
        (["--pp_size", "5"], "pp_size"),
        (["--max_draft_len", "-1"], "max_draft_len"),
        (["--speculative_decoding_mode", "draft_tokens_external"], "needs --max_draft_len"),
        (["--speculative_decoding_mode", "medusa"], "needs a checkpoint with Medusa heads"),
        (["--speculative_decoding_mode", "explicit_draft_tokens"], "needs a checkpoint with a ReDrafter"),
        (["--speculative_decoding_mode", "draft_tokens"], "known: none, draft_tokens_external, lookahead_decoding, medusa, eagle"),
        (["--speculative_decoding_mode", "eagle"], "nereid convert --eagle_model_dir writes one"),
        (["--lora_dir", "adapter"], "adapter holds no LoRA adapter"),
        (["--auto_parallel", "2"], "an engine runs on one device"),
    ):
        done = subprocess.run([NEREID, "build", tmp_path / "m", "-o", tmp_path / "f", *words],
                              capture_output=True, text=True)
        assert done.returncode != 0 and message in done.stderr, (words, done.stderr)
        assert done.stderr.count("\n") == 1
        assert not (tmp_path / "f" / "config.json").exists()


def test_repo_says_what_is_not_there_yet(tmp_path):
    for name in ("engine", "tokenizer"):
        (tmp_path / name).mkdir()
    done = subprocess.run([NEREID, "repo", "--engine_dir", tmp_path / "engine", "--tokenizer_dir", tmp_path / "tokenizer", "-o",
                           tmp_path / "repo"], capture_output=True, text=True)
    assert done.returncode == 0 and (tmp_path / "repo/ensemble/config.pbtxt").exists()
    assert f"warning: '{tmp_path / 'engine'}' holds no engine" in done.stderr and "warning: no tokenizer: " in done.stderr


def test_repo_takes_only_names_that_the_templates_have(tmp_path):
    model = tmp_path / "llama"
    make(model, "llama")
    nereid("build", "--checkpoint_dir", model, "--output_dir", tmp_path / "engine")
    repo = ["repo", "--engine_dir", tmp_path / "engine", "--tokenizer_dir", model, "--output_dir", tmp_path / "repo"]
    done = subprocess.run([NEREID, *map(str, repo), "--set", "n_threads:1,max_queue_sise:4"], capture_output=True, text=True)
    assert done.returncode == 1 and "${max_queue_sise}; did you mean max_queue_size?" in done.stderr and not (tmp_path / "repo").exists()
    nereid(*repo, "--set", "n_threads:1,mixed_context_tokens:64")
    config = (tmp_path / "repo/tensorrt_llm/config.pbtxt").read_text()
    assert 'key: "n_threads"\n  value: { string_value: "1" }' in config
    assert 'key: "mixed_context_tokens"\n  value: { string_value: "64" }' in config


def refused(path):
    done = subprocess.run([NEREID, "inspect", path], capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    return done.stderr


def test_what_is_no_model_is_told_what_it_is(tmp_path):
    model = tmp_path / "m"
    assert make(model, "llama").returncode == 0
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 269060552\n"
    (model / "model.safetensors").write_text(pointer)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (model / file).unlink()
    assert "git lfs pull" in refused(model)
    (tmp_path / "p.gguf").write_text(pointer)
    assert "git lfs pull" in refused(tmp_path / "p.gguf")

    adapter = tmp_path / "lora"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text('{"base_model_name_or_path": "org/base"}')
    assert "LoRA adapter" in refused(adapter) and "org/base" in refused(adapter)

    folder = tmp_path / "g"
    folder.mkdir()
    assert make(folder / "x.gguf", "llama", format="gguf").returncode == 0
    assert f"give the file itself: {folder}/x.gguf" in refused(folder)
