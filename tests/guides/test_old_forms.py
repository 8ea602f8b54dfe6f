# SPDX-License-Identifier: Apache-2.0
"""What the guides of v0.5 to v0.8 convert and build: .bin files with config.ini, and engines with builder_config."""
import json
import pathlib
import shutil
import struct
import subprocess

import numpy as np
import pytest

from guide import BIN
from test_entry_points import ROOT, python
from test_guides import QUESTION, check

CONVERT = ROOT / "examples/gpt/hf_gpt_convert.py"
BUILD = ROOT / "examples/gpt/build.py"


def read_safetensors(path):
    data = pathlib.Path(path).read_bytes()
    (n,) = struct.unpack("<Q", data[:8])
    out = {}
    for name, t in json.loads(data[8:8 + n]).items():
        if name != "__metadata__":
            start, end = (8 + n + x for x in t["data_offsets"])
            out[name.removeprefix("transformer.")] = np.frombuffer(data[start:end], np.float32).reshape(t["shape"])
    return out


def published(tensors, tp):
    """{file: array} as the published converter divides Hugging Face's tensors."""
    out = {"model.wte.bin": tensors["wte.weight"], "model.wpe.bin": tensors["wpe.weight"],
           "model.final_layernorm.weight.bin": tensors["ln_f.weight"], "model.final_layernorm.bias.bin": tensors["ln_f.bias"]}
    for i in range(sum(name.endswith("ln_1.bias") for name in tensors)):
        to, of = f"model.layers.{i}.", f"h.{i}."
        for theirs, ours in (("input_layernorm", "ln_1"), ("post_attention_layernorm", "ln_2")):
            for part in ("weight", "bias"):
                out[f"{to}{theirs}.{part}.bin"] = tensors[f"{of}{ours}.{part}"]
        out[f"{to}attention.dense.bias.bin"] = tensors[f"{of}attn.c_proj.bias"]
        out[f"{to}mlp.dense_4h_to_h.bias.bin"] = tensors[f"{of}mlp.c_proj.bias"]
        for part in ("weight", "bias"):
            qkv = tensors[f"{of}attn.c_attn.{part}"]
            qkv = qkv.reshape(*qkv.shape[:-1], 3, -1)
            for r, x in enumerate(np.split(qkv, tp, axis=-1)):
                out[f"{to}attention.query_key_value.{part}.{r}.bin"] = x
            for r, x in enumerate(np.split(tensors[f"{of}mlp.c_fc.{part}"], tp, axis=-1)):
                out[f"{to}mlp.dense_h_to_4h.{part}.{r}.bin"] = x
        for theirs, ours in (("attention.dense", "attn.c_proj"), ("mlp.dense_4h_to_h", "mlp.c_proj")):
            for r, x in enumerate(np.split(tensors[f"{of}{ours}.weight"], tp, axis=0)):
                out[f"{to}{theirs}.weight.{r}.bin"] = x
    return out


@pytest.mark.parametrize("tp", [1, 3])
def test_bin_files_are_those_of_the_published_converter(tp, models, tmp_path):
    said = python(CONVERT, "-i", models["gpt2"], "-o", tmp_path, "--tensor-parallelism", tp, "--storage-type", "float16").stdout
    assert said.splitlines()[1] == "=============== Arguments ===============" and f"tensor_parallelism: {tp}\n" in said
    want = published(read_safetensors(models["gpt2"] / "model.safetensors"), tp)
    folder = tmp_path / f"{tp}-gpu"
    assert {p.name for p in folder.iterdir()} == {*want, "config.ini"}
    for name, x in want.items():
        assert np.array_equal(np.fromfile(folder / name, np.float16), x.astype(np.float16).ravel()), name


def test_an_engine_of_bin_files_is_the_engine_of_the_model(models, tmp_path):
    """Byte for byte, also where another number of ranks is built than was converted."""
    python(CONVERT, "-i", models["gpt2"], "-o", tmp_path, "-tp", 3, "-t", "float16")
    words = ["--max_batch_size", 4, "--max_input_len", 200, "--max_output_len", 56]
    for ranks in (1, 3):
        python(BUILD, "--model_dir", tmp_path / "3-gpu", "--world_size", ranks, "--dtype", "float16", "--output_dir",
               tmp_path / f"old{ranks}", *words)
        subprocess.run([BIN / "nereid", "build", models["gpt2"], f"--tp_size={ranks}", "--dtype=float16", "-o",
                        tmp_path / f"new{ranks}", *map(str, words)], check=True, stdout=subprocess.DEVNULL)
        for r in range(ranks):
            old = tmp_path / f"old{ranks}/gpt_float16_tp{ranks}_rank{r}.engine"
            assert old.read_bytes() == (tmp_path / f"new{ranks}/rank{r}.engine").read_bytes()
    config = json.loads((tmp_path / "old3/config.json").read_text())
    built = config["builder_config"]
    assert {k: built[k] for k in ("name", "precision", "tensor_parallel", "max_batch_size", "max_input_len", "max_output_len",
                                  "hidden_size", "num_layers")} == {
        "name": "gpt", "precision": "float16", "tensor_parallel": 3, "max_batch_size": 4, "max_input_len": 200,
        "max_output_len": 56, "hidden_size": 96, "num_layers": 4}
    assert config["plugin_config"]["gpt_attention_plugin"] == "float16" and config["plugin_config"]["paged_kv_cache"]


def test_programs_open_an_engine_under_its_old_name(models, tmp_path):
    python(BUILD, "--model_dir", models["gpt2"], "--max_output_len", 20, cwd=tmp_path)
    engine = tmp_path / "gpt_outputs"
    assert [p.name for p in engine.glob("*.engine")] == ["gpt_float32_tp1_rank0.engine"]
    for words in (["inspect", engine], ["run", engine, "-p", "a", "-n", "2", "--tokenizer_dir", models["gpt2"]]):
        subprocess.run([BIN / "nereid", *words], check=True, stdout=subprocess.DEVNULL)


@pytest.mark.parametrize("spoil, said", [
    (lambda f: (f / "model.wpe.bin").unlink(), "model.wpe.bin"),
    (lambda f: (f / "model.wte.bin").write_bytes(b"short"), "model.wte.bin has 5 bytes, expected "),
    (lambda f: (f / "model.layers.0.mlp.dense_h_to_4h.bias.1.bin").write_bytes(b""), "dense_h_to_4h.bias.1.bin has 0 bytes"),
    (lambda f: edit(f, "n_embd = 96", "n_embd = 9999999999"), "n_embd in [gpt] must be a whole number from 1 to 16777216"),
    (lambda f: edit(f, "n_layer = 4", "n_layer = four"), "n_layer in [gpt] must be a whole number from 1 to 1024, got 'four'"),
    (lambda f: edit(f, "n_head = 6\n", ""), "n_head in [gpt] must be a whole number"),
    (lambda f: edit(f, "[gpt]", "[opt]"), "n_embd in [gpt] must be"),
    (lambda f: edit(f, "tensor_parallelism = 2", "tensor_parallelism = 5"), "tensor_parallelism 5 does not divide n_embd 96"),
    (lambda f: edit(f, "storage_dtype = float16", "storage_dtype = int8"), "storage_dtype 'int8', expected float32"),
    (lambda f: edit(f, "multi_query_mode = False", "multi_query_mode = True"), "multi_query_mode is not supported"),
])
def test_a_damaged_folder_is_refused_by_file_or_key(spoil, said, converted, tmp_path):
    folder = shutil.copytree(converted, tmp_path / "c")
    spoil(folder)
    assert said in python(BUILD, "--model_dir", folder, "--output_dir", tmp_path / "e", status=1).stderr
    assert not (tmp_path / "e/config.json").exists()


def edit(folder, old, new):
    text = (folder / "config.ini").read_text()
    assert old in text
    (folder / "config.ini").write_text(text.replace(old, new))


@pytest.fixture(scope="module")
def converted(models, tmp_path_factory):
    at = tmp_path_factory.mktemp("bins")
    python(CONVERT, "-i", models["gpt2"], "-o", at, "-tp", 2, "-t", "float16")
    return at / "2-gpu"


def test_only_gpt2_has_this_form(models, tmp_path):
    assert "is no GPT-2" in python(CONVERT, "-i", models["llama"], "-o", tmp_path, status=1).stderr
    assert "only gpt2" in python(CONVERT, "-i", models["gpt2"], "-o", tmp_path, "--model", "starcoder", status=2).stderr


@pytest.mark.parametrize("words, options, kinds", [
    (["--smoothquant", 0.5], ["--use_smooth_quant"], (True, False)), (["-sq", 0.5, "-kv"], ["--use_smooth_quant", "--per_token", "--per_channel", "--int8_kv_cache"], (True, True)),
    (["--calibrate-kv-cache"], ["--int8_kv_cache"], (False, True))])
def test_smoothquant_and_an_int8_cache_of_v0_5_to_v0_8(words, options, kinds, models, tmp_path):
    said = python(CONVERT, "-i", models["gpt2"], "-o", tmp_path / "c", *words, "--tensor-parallelism", 2, "--storage-type", "float16").stdout
    assert said.splitlines()[1] == "=============== Arguments ===============" and "tensor_parallelism: 2\n" in said
    python(BUILD, "--model_dir", tmp_path / "c/2-gpu", "--world_size", 2, "--dtype", "float16", "--max_output_len", 56, "--output_dir", tmp_path / "e", *options)
    config = (tmp_path / "e/config.json").read_text()
    scales = b".k_scale" in b"".join(p.read_bytes() for p in (tmp_path / "c/2-gpu").glob("*.safetensors"))
    assert ('"quant_algo": "W8A8"' in config, '"kv_dtype": "int8"' in config, scales) == (*kinds, kinds[1])
    subprocess.run([BIN / "nereid", "run", tmp_path / "e", "-p", "a", "-n", "2", "--tokenizer_dir", models["gpt2"]], check=True, stdout=subprocess.DEVNULL)


def test_smoothquant_needs_weights_of_it(converted, models, tmp_path):
    said = python(BUILD, "--model_dir", converted, "--use_smooth_quant", "--output_dir", tmp_path / "e", status=1).stderr
    assert "has no weights of SmoothQuant" in said and not (tmp_path / "e/config.json").exists()
    assert "--in_file is missing" in python(CONVERT, "-o", tmp_path, "-sq", 0.5, status=1).stderr
    assert "must be a number above 0" in python(CONVERT, "-i", models["gpt2"], "-o", tmp_path, "-sq", 0.5, "-tp", "x", status=1).stderr


def test_readme_of_v0_5_to_v0_8(guide, models):
    """hf_gpt_convert.py, build.py, and the engine's files copied into the repository. The stand-in has learned 256
    positions, so that the default of 200 new tokens would be refused."""
    shutil.copytree(models["gpt2"], guide.folder / "gpt2")
    said, _ = guide.type("""
        python3 tensorrt_llm/examples/gpt/hf_gpt_convert.py -p 8 -i gpt2 -o ./c-model/gpt2 --tensor-parallelism 2 --storage-type float16
        python3 tensorrt_llm/examples/gpt/build.py --model_dir=./c-model/gpt2/2-gpu/ --world_size=2 --dtype float16 --use_inflight_batching \\
            --use_gpt_attention_plugin float16 --paged_kv_cache --use_gemm_plugin float16 --remove_input_padding \\
            --use_layernorm_plugin float16 --hidden_act gelu --parallel_build --output_dir=engines/fp16/2-gpu --max_output_len 56
        mkdir triton_model_repo
        cp -r all_models/inflight_batcher_llm/* triton_model_repo/
        cp engines/fp16/2-gpu/* triton_model_repo/tensorrt_llm/1
        for m in triton_model_repo/*; do python3 tools/fill_template.py -i $m/config.pbtxt triton_max_batch_size:4,decoupled_mode:False,tokenizer_dir:$PWD/gpt2,tokenizer_type:auto,engine_dir:$PWD/triton_model_repo/tensorrt_llm/1,kv_cache_free_gpu_mem_fraction:0.01,batching_strategy:inflight_fused_batching; done
    """)
    assert "storage_type: float16" in said and "Total time of building all 2 engines: 00:00:" in said
    assert (guide.folder / "triton_model_repo/tensorrt_llm/1/gpt_float16_tp2_rank1.engine").exists()
    guide.launch("python3 scripts/launch_triton_server.py --world_size=2 --model_repo=triton_model_repo")
    check(guide.generate(QUESTION))


def test_the_default_repository_of_the_launcher(guide, models):
    """all_models/gpt, which launch_triton_server.py takes without --model_repo: filled where it lies, as the guides of
    v0.5 have it, with the clients of tools/gpt."""
    for name in ("all_models", "scripts"):  # files are changed in place, and the launcher looks beside itself
        (guide.folder / name).unlink()
        shutil.copytree(ROOT / name, guide.folder / name)
    (guide.folder / "build").symlink_to(BIN.parent)
    guide.type(f"""
        python3 tensorrt_llm/examples/gpt/build.py --model_dir={models['gpt2']} --dtype float32 --max_output_len 56 --output_dir=engines
        for m in preprocessing postprocessing tensorrt_llm; do
            python3 tools/fill_template.py --in_place all_models/gpt/$m/config.pbtxt tokenizer_dir:{models['gpt2']},tokenizer_type:auto,engine_dir:$PWD/engines
        done
    """)
    guide.launch("python3 scripts/launch_triton_server.py")
    answer = guide.generate({"INPUT_0": "hello there", "INPUT_1": 8, "INPUT_2": "", "INPUT_3": ""})
    assert answer["OUTPUT_0"].startswith("hello there") and len(answer["OUTPUT_0"]) > len("hello there")
    pytest.importorskip("tritonclient.grpc")
    words = ["-b", 1, "-o", 6]
    said = python(ROOT / "tools/gpt/benchmark_core_model.py", "-u", f"localhost:{guide.http}", "-i", "http", "-s", 24,
                  "--vocab_size", 300, *words).stdout
    assert "[INFO] Batch size: 1, Start len: 24, Output len: 6" in said and "sentences / sec" in said
    said = python(ROOT / "tools/gpt/end_to_end_test.py", "-u", f"localhost:{guide.grpc}", "-i", "grpc", *words).stdout
    assert said.count("============After ensemble============") == 1  # it fails where the three models say another text
