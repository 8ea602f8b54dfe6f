# SPDX-License-Identifier: Apache-2.0
"""The programs that carry the names of the guides: what they hand on, print and refuse."""
import json
import os
import pathlib
import subprocess
import sys
import time

import pytest

from guide import BIN

ROOT = pathlib.Path(__file__).resolve().parents[2]
LAUNCH = ROOT / "scripts/launch_triton_server.py"
FILL = ROOT / "tools/fill_template.py"


def program(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def python(script, *words, status=0, env=None, cwd=None):
    done = subprocess.run([sys.executable, script, *map(str, words)], capture_output=True, text=True,
                          env={**os.environ, **(env or {})}, cwd=cwd)
    assert status is None or done.returncode == status, done.stderr
    return done


# ---- fill_template.py ----


@pytest.mark.parametrize("words, filled", [
    (["a:1,b:two"], '"1" "two" "${c}" "0"'),
    (["gpu_device_ids:x,a:0\\,1"], '"0,1" "${b}" "${c}" "0"'),
    (["a:http\\\\://h,max_queue_size:7"], '"http://h" "${b}" "${c}" "7"'),
])
def test_fill_template_writes_what_the_published_one_writes(words, filled, tmp_path):
    text = '"${a}" "${b}" "${c}" "${max_queue_size}"\n'
    file = tmp_path / "config.pbtxt"
    file.write_text(text)
    assert python(FILL, file, *words).stdout == filled + "\n\n"
    assert file.read_text() == text
    assert python(FILL, "-i", file, *words).stdout == ""
    assert file.read_text() == filled + "\n"


def test_fill_template_knows_whether_there_is_a_python_model(tmp_path):
    file = tmp_path / "config.pbtxt"
    file.write_text("${triton_backend}")
    done = python(FILL, file, "triton_backend:python")
    assert done.stdout == "tensorrtllm\n" and f"{tmp_path}/1/model.py" in done.stderr
    (tmp_path / "1").mkdir()
    (tmp_path / "1/model.py").write_text("")
    done = python(FILL, file, "triton_backend:python")
    assert (done.stdout, done.stderr) == ("python\n", "")
    file.write_text("${a}")
    assert python(FILL, file, "triton_backend:python,a:1").stderr == ""


def test_fill_template_takes_participant_ids(tmp_path):
    file = tmp_path / "config.pbtxt"
    file.write_text("${participant_ids} ${a}")
    python(FILL, "--in_place", file, "a:1", "--participant_ids", "1,2\\:3")
    assert file.read_text() == "1,2\\:3 1"


def test_fill_template_refuses_what_is_no_pair(tmp_path):
    file = tmp_path / "config.pbtxt"
    file.write_text("${a}")
    assert "expected name:value" in python(FILL, file, "a:1:2", status=1).stderr


# ---- launch_triton_server.py ----


@pytest.fixture
def recorder(tmp_path):
    """A server and an mpirun that write down how they were called."""
    text = (f'#!/bin/sh\nprintf "%s\\n" "$0" "$@" > {tmp_path}/called.tmp\n'
            f'echo "env ${{TRTLLM_ORCHESTRATOR}} ${{TRTLLM_ORCHESTRATOR_SPAWN_PROCESSES}}" >> {tmp_path}/called.tmp\n'
            f'/bin/mv {tmp_path}/called.tmp {tmp_path}/called\n')
    server = program(tmp_path / "bin/tritonserver", text)

    def launch(*words, mpi=True, status=0, **env):
        if mpi:
            program(tmp_path / "bin/mpirun", text)
        env = {"PATH": f"{tmp_path}/bin", "NVIDIA_TRITON_SERVER_VERSION": "", **env}
        done = python(LAUNCH, "--force", "--tritonserver", server, *words, status=status, env=env)
        if status:
            return done.stderr
        until = time.monotonic() + 60
        while not (tmp_path / "called").exists():
            assert time.monotonic() < until
            time.sleep(0.01)
        lines = (tmp_path / "called").read_text().splitlines()
        (tmp_path / "called").unlink()
        return os.path.basename(lines[0]), lines[1:-1], lines[-1].split()[1:]
    launch.server = str(server)
    return launch


def rank_words(server, rank, repo="R", before=(), behind=()):
    explicit = ["--model-control-mode=explicit", "--load-model=tensorrt_llm"] if rank else []
    return ["-n", "1", server, f"--model-repository={repo}", *before, *explicit, *behind, "--grpc-port=8001", "--http-port=8000",
            "--metrics-port=8002", "--disable-auto-complete-config",
            f"--backend-config=python,shm-region-prefix-name=prefix{rank}_", ":"]


def test_ranks_are_colons_of_one_mpirun(recorder):
    name, words, _ = recorder("--world_size=3", "--model_repo=R")
    server = recorder.server
    assert name == "mpirun" and words == ["--allow-run-as-root", *rank_words(server, 0), *rank_words(server, 1),
                                          *rank_words(server, 2)]


def test_options_of_later_releases(recorder):
    _, words, _ = recorder("--world-size", 2, "--model-repo", "R", "--log", "--log-file", "F", "--oversubscribe",
                           "--multimodal_gpu0_cuda_mem_pool_bytes", 5)
    first = rank_words(recorder.server, 0, before=["--log-verbose=3", "--log-file=F"],
                       behind=["--cuda-memory-pool-byte-size=0:5"])
    assert words == ["--allow-run-as-root", "--oversubscribe", *first, *rank_words(recorder.server, 1)]
    _, words, _ = recorder("--world_size=2", "--model_repo=R", "--tensorrt_llm_model_name=a,b", "--grpc_port=1",
                           "--http_port=2", "--metrics_port=3")
    assert [w for w in words if w.startswith(("--load", "--grpc", "--http", "--metrics"))] == [
        "--grpc-port=1", "--http-port=2", "--metrics-port=3", "--load-model=a", "--load-model=b", "--grpc-port=1",
        "--http-port=2", "--metrics-port=3"]


def test_several_models_have_an_orchestrator(recorder):
    _, words, env = recorder("--model_repo=R", "--multi-model")
    assert env == ["1", "1"] and words == ["--allow-run-as-root", *rank_words(recorder.server, 0)]
    _, words, env = recorder("--model_repo=R", "--multi-model", NVIDIA_TRITON_SERVER_VERSION="24.07")
    assert words == ["--allow-run-as-root", *rank_words(
        recorder.server, 0, behind=["--pinned-memory-pool-byte-size=0", "--enable-peer-access=false"])]
    _, words, env = recorder("--model_repo=R", "--multi-model", "--disable-spawn-processes", "--world_size=2")
    assert env == ["1", "0"] and words.count(":") == 2
    assert "--world_size must be 1" in recorder("--multi-model", "--world_size=2", status=2)


def test_without_mpirun_the_server_itself_starts(recorder, tmp_path):
    name, words, _ = recorder("--world_size=2", "--model_repo=R", mpi=False)
    assert name == "tritonserver" and words == rank_words("", 0)[3:-1]
    name, again, _ = recorder("--model_repo=R", "--no-mpi")
    assert name == "tritonserver" and again == words


def test_a_server_that_computes_is_found_and_named(recorder, tmp_path):
    busy = tmp_path / "busy/tritonserver"  # a process has the name of its file
    busy.parent.mkdir()
    busy.write_bytes(pathlib.Path("/bin/sh").resolve().read_bytes())
    busy.chmod(0o755)
    other = subprocess.Popen([busy, "-c", "while :; do :; done"])
    try:
        until = time.monotonic() + 60
        while "tritonserver" not in pathlib.Path(f"/proc/{other.pid}/comm").read_text():
            assert time.monotonic() < until
        done = python(LAUNCH, "--tritonserver", recorder.server, "--model_repo=R", status=1)
        assert "tritonserver process(es) already found with PID(s): " in done.stderr and str(other.pid) in done.stderr
        assert "to stop them. Or use --force." in done.stderr
    finally:
        other.kill()
        other.wait()


def test_a_server_that_is_not_there_is_named():
    done = python(LAUNCH, "--tritonserver", "/nowhere/tritonserver", status=1)
    assert "there is no program '/nowhere/tritonserver'" in done.stderr


# ---- converting ----


def convert(family, *words, **more):
    return python(ROOT / "examples" / family / "convert_checkpoint.py", *words, **more)


@pytest.mark.parametrize("family, arch", [("gpt", "gpt2"), ("llama", "llama"), ("qwen", "qwen2"), ("gemma", "gemma")])
def test_convert_checkpoint_of_each_family(family, arch, models, tmp_path):
    done = convert(family, "--model_dir", models[arch], "--dtype", "float16", "--output_dir", tmp_path / "c", "--workers", 2)
    assert "--workers has no effect" in done.stderr
    last = done.stdout.splitlines()[-1]
    assert last.startswith("Total time of converting checkpoints: 00:00:")
    assert json.loads((tmp_path / "c/config.json").read_text())["dtype"] == "float16"
    assert (tmp_path / "c/rank0.safetensors").stat().st_size > 0


@pytest.mark.parametrize("family, arch", [("llama", "llama"), ("gpt", "gpt2")])
@pytest.mark.parametrize("words, algorithm, cache", [
    (["-sq", 0.5, "--per_token", "--per_channel"], "W8A8", False), (["--smoothquant=0.5", "--int8_kv_cache"], "W8A8", True),
    (["--int8_kv_cache", "--use_weight_only", "--weight_only_precision", "int8"], "W8A16", True)])
def test_convert_checkpoint_calibrates_what_needs_texts(words, algorithm, cache, family, arch, models, tmp_path):
    done = convert(family, "--model_dir", models[arch], *words, "--tp_size", 2, "--workers", 2, "--output_dir", tmp_path / "c")
    assert done.stdout.splitlines()[-1].startswith("Total time of converting checkpoints: 00:00:0") and "--workers has no effect" in done.stderr
    assert json.loads((tmp_path / "c/config.json").read_text())["quantization"]["quant_algo"] == algorithm
    assert (tmp_path / "c/rank1.safetensors").exists() and not (tmp_path / "c.quantized").exists()
    built = subprocess.run([BIN / "nereid", "build", tmp_path / "c", "-o", tmp_path / "e"], capture_output=True, text=True, check=True)
    assert ("has scales of an 8-bit cache" in built.stderr) == cache


def test_a_version_of_a_family_is_found_in_the_folder(models, tmp_path):
    for family, words in (("baichuan", ["--model_version", "v1_7b"]), ("chatglm", ["--chatglm_version", "chatglm3"]),
                          ("qwen", ["--qwen_type", "qwen2"]), ("mixtral", ["--moe_num_experts", 8, "--moe_top_k", 2])):
        done = convert(family, "--model_dir", models["llama"], *words, "--output_dir", tmp_path / family)
        assert "has no effect: config.json tells" in done.stderr and (tmp_path / family / "rank0.safetensors").exists()


def test_gemma_s_own_options(models, tmp_path):
    words = ["--ckpt-type", "hf", "--model-dir", models["gemma"], "--dtype", "bfloat16", "--world-size", 1,
             "--output-model-dir", tmp_path / "c", "--use-weight-only-with-precision", "int8"]
    convert("gemma", *words)
    config = json.loads((tmp_path / "c/config.json").read_text())
    assert config["quantization"]["quant_algo"] == "W8A16" and config["dtype"] == "bfloat16"
    words[1] = "keras"
    assert "--ckpt_type 'keras' is not supported" in convert("gemma", *words, status=1).stderr


def test_a_family_that_is_missing_is_refused_with_the_nearest(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "rwkv", "architectures": ["RwkvForCausalLM"]}')
    said = convert("llama", "--model_dir", tmp_path, "--output_dir", tmp_path / "c", status=1).stderr
    assert "model_type 'rwkv' is not" in said and "nearest: " in said and "nereid inspect --families" in said


QUANTIZE = ROOT / "examples/quantization/quantize.py"


def test_quantize_py_says_where_and_how_long(models, tmp_path):
    done = python(QUANTIZE, "--model_dir", models["qwen2"], "--dtype", "float16", "--qformat", "fp8", "--calib_size", 4,
                  "--output_dir", tmp_path / "q")
    first, second = done.stdout.splitlines()[-2:]
    assert first == f"Quantized model exported to {tmp_path}/q" and second.startswith("Total time used 0.")
    assert json.loads((tmp_path / "q/config.json").read_text())["quantization"]["quant_algo"] == "FP8"
    python(QUANTIZE, "--model_dir", models["qwen2"], "--qformat", "int8_wo", cwd=tmp_path)
    assert (tmp_path / "exported_model/rank0.safetensors").exists()


def test_quantize_py_refuses_by_name(models, tmp_path):
    said = python(QUANTIZE, "--model_dir", models["qwen2"], "--qformat", "no_such", "--output_dir", tmp_path, status=1).stderr
    assert "'no_such' is not supported" in said
    said = python(QUANTIZE, "--model_dir", models["qwen2"], "--medusa_model_dir", tmp_path, "--output_dir", tmp_path / "q", status=1).stderr
    assert f"'{tmp_path}' has no Medusa heads" in said


# ---- trtllm-build ----


def test_trtllm_build_says_how_long_it_took(guide, models):
    said, complained = guide.type(f"trtllm-build --checkpoint_dir {models['llama']} --gpt_attention_plugin float16 "
                                  "--gemm_plugin auto --max_batch_size 4 --output_dir engine")
    assert "[TRT-LLM] [I] Total time of building all engines: 00:00:" in said.splitlines()[-1]
    assert "--gemm_plugin has no effect" in complained
    built = json.loads((guide.folder / "engine/config.json").read_text())
    assert built["build_config"]["max_batch_size"] == 4


def test_trtllm_build_of_a_configuration_has_random_weights(guide, models):
    guide.type(f"trtllm-build --model_config {models['llama']}/config.json --output_dir engine --max_batch_size 1")
    assert (guide.folder / "engine/rank0.engine").exists()


def test_trtllm_build_takes_lists_and_options_of_later_releases(guide, models):
    said, complained = guide.type(f"trtllm-build --checkpoint_dir {models['llama']} --lora_plugin float16 --lora_target_modules "
                                  "attn_q attn_v --max_lora_rank 8 --input_timing_cache model.cache --mamba_conv1d_plugin disable "
                                  "--explicitly_disable_gemm_plugin --dora_plugin enable --pp_reduce_scatter enable --output_dir engine")
    assert "Total time of building all engines" in said.splitlines()[-1]
    for text in ("there is no 'model.cache'", "--mamba_conv1d_plugin has no effect", "--dora_plugin has no effect"):
        assert text in complained
    built = json.loads((guide.folder / "engine/config.json").read_text())["build_config"]
    assert built["lora_config"] == {"max_lora_rank": 8, "lora_target_modules": ["attn_q", "attn_v"]}
    assert "Total time" not in guide.type("trtllm-build --help")[0]


def test_trtllm_build_ends_with_its_errors(guide):
    said, complained = guide.type("trtllm-build --checkpoint_dir nowhere", status=1)
    assert "Total time" not in said and "'nowhere' does not exist" in complained


# ---- trtllm-bench ----


@pytest.fixture
def dataset(guide):
    rows = [{"task_id": 0, "prompt": "Once upon a time", "output_tokens": 7}, {"task_id": 1, "input_ids": [5, 6, 7], "output_tokens": 40}]
    (guide.folder / "set.txt").write_text("".join(json.dumps(r) + "\n" for r in rows))
    return "set.txt"


def test_trtllm_bench_builds_and_measures(guide, models, dataset):
    model = f"trtllm-bench --model org/llama --model_path {models['llama']} --workspace work"
    said, _ = guide.type(f"{model} build --dataset {dataset}")
    assert said.splitlines()[-1] == "ENGINE SAVED: work/org/llama/tp_1_pp_1"
    built = json.loads((guide.folder / "work/org/llama/tp_1_pp_1/config.json").read_text())["build_config"]
    assert (built["max_seq_len"], built["max_batch_size"], built["max_num_tokens"]) == (43, 2048, 8192)
    said, complained = guide.type(f"{model} throughput --engine_dir work/org/llama/tp_1_pp_1 --dataset {dataset} --backend tensorrt "
                                  "--scheduler_policy max_utilization --streaming --report_json report.json --kv_cache_free_gpu_mem_fraction 0.1")
    assert "--backend has no effect: there is one engine" in complained
    report = json.loads((guide.folder / "report.json").read_text())
    assert report["concurrency"] == 2 and report["output_tokens_per_s"] * report["seconds"] == pytest.approx(47)
    said, _ = guide.type(f"{model} latency --dataset {dataset} --num_requests 1 --report_json report.json --kv_cache_free_gpu_mem_fraction 0.1")
    report = json.loads((guide.folder / "report.json").read_text())
    assert report["concurrency"] == 1 and report["output_tokens_per_s"] * report["seconds"] == pytest.approx(7)


def test_trtllm_bench_reads_arguments_of_the_llm_api(guide, models, dataset):
    """As the published overview of performance has it: a file beside --backend pytorch."""
    line = f"trtllm-bench --model org/llama --model_path {models['llama']} throughput --dataset {dataset} --backend pytorch --extra_llm_api_options extra.yml"

    def bench(text, more="", status=0):
        (guide.folder / "extra.yml").write_text(text)
        return guide.type(f"{line} {more}", status=status)[1]

    said = bench("cuda_graph_config:\n  enable_padding: true\nmax_batch_size: 1\nkv_cache_config: {dtype: auto, free_gpu_memory_fraction: 0.1, "
                 "enable_block_reuse: true}\nspeculative_config: {decoding_type: NGram, max_draft_len: 3}\n", "--report_json report.json --max_batch_size 8")
    assert said.count("trtllm-bench: --extra_llm_api_options: 'cuda_graph_config' has no effect") == 1 and "max_batch_size" not in said
    report = json.loads((guide.folder / "report.json").read_text())
    assert report["output_tokens_per_s"] * report["seconds"] == pytest.approx(47)
    for text, why, status in (("max_batch_size: few\n", "--max_batch_size: 'few' is not a whole number", 2), ("speculative_config: {decoding_type: NGram, max_draft_len: 0}\n", "num_speculative_tokens must be", 1),
                              ("speculative_config: {decoding_type: MTP}\n", "mtp", 1), ("kv_cache_config: {free_gpu_memory_fraction: 7}\n", "kv_cache_free_gpu_mem_fraction must be", 1),
                              ("no_such: 1\n", "extra.yml: 'no_such' is not known", 1)):
        assert why in bench(text, status=status), text
    assert "belongs to throughput and latency" in guide.type(line.replace("throughput", "build --max_seq_len 64"), status=1)[1]


def test_trtllm_bench_builds_the_published_recipe(guide, models):
    guide.type(f"trtllm-bench -m {models['llama']} -w work --no_weights_loading True build -q FP8 --max_seq_len 64 --max_batch_size 4 "
               "--max_num_tokens 128")
    [built] = (guide.folder / "work").glob("**/tp_1_pp_1/config.json")
    config = json.loads(built.read_text())
    assert config["pretrained_config"]["quantization"]["quant_algo"] == "FP8"
    assert config["build_config"]["plugin_config"]["use_fp8_context_fmha"] and config["build_config"]["nereid"]["kv_dtype"] == "fp8"


@pytest.mark.parametrize("words, why, status", [
    ("throughput", "throughput: --dataset FILE is missing", 1), ("build", "build: --max_seq_len N is missing", 1),
    ("build -q W4A16_AWQ --max_seq_len 64", "--quantization W4A16_AWQ needs texts to measure with: nereid quantize", 1),
    ("latency --dataset set.txt --beam_width 2", "--beam_width 2: beams are not measured", 1),
    ("throughput --dataset set.txt --eos_id 2", "--eos_id 2: answers are as long as the data set says", 1),
    ("throughput --dataset set.txt --scheduler_policy static", "--scheduler_policy: expected guaranteed_no_evict or", 1),
    ("throughput --dataset set.txt --modality image", "--modality is not supported: use nereid bench serve", 2),
    ("measure", "expected --model NAME and build, throughput or latency", 2), ("", "expected --model NAME and build", 2)])
def test_trtllm_bench_says_what_it_does_not_do(guide, models, dataset, words, why, status):
    _, complained = guide.type(f"trtllm-bench --model llama --model_path {models['llama']} {words}", status=status)
    assert why in complained


def test_trtllm_bench_writes_below_its_workspace(guide, models):
    _, complained = guide.type(f"trtllm-bench --model ../llama --model_path {models['llama']} -w work build --max_seq_len 64", status=1)
    assert "--model ../llama: a name is needed" in complained and not (guide.folder / "llama").exists()
