# SPDX-License-Identifier: Apache-2.0
"""docs/llmapi.md: a repository of one model that takes text, whose model.yaml is all there is to edit. The stand-in's texts are
those of `nereid run`."""
import json
import re
import subprocess
import sys

import pytest

from guide import BIN, ROOT

sys.path.insert(0, str(ROOT / "all_models/llmapi/tensorrt_llm/1"))
import model_yaml  # noqa: E402

PROMPT = "The future of AI is"
LLMAPI = "tensorrt_llm/triton_backend/"


def run(model, prompt, n):
    return subprocess.run([BIN / "nereid", "run", model, "-p", prompt, "-n", str(n), "--temperature", "0", "--quiet"],
                          capture_output=True, text=True, check=True).stdout.rstrip("\n")


def prepare(guide, model, decoupled):
    """The guide's commands, with a folder in place of the hub's name."""
    guide.env["PATH"] = f"{BIN}:{sys.prefix}/bin:{guide.env['PATH']}"
    guide.type(f"""
        cp -R {LLMAPI}all_models/llmapi/ llmapi_repo/
        sed -i 's|^model:.*|model: {model}|; s|decoupled: False|decoupled: {decoupled}|' llmapi_repo/tensorrt_llm/1/model.yaml
        echo 'kv_cache_config: # of a stand-in
          max_tokens: 2048' >> llmapi_repo/tensorrt_llm/1/model.yaml
    """)
    guide.launch(f"python3 {LLMAPI}scripts/launch_triton_server.py --model_repo=llmapi_repo/")


def test_the_guide(guide, models):
    pytest.importorskip("tritonclient.grpc")
    model = models["llama"]
    prepare(guide, model, "False")
    want = run(model, PROMPT, 10)
    said, _ = guide.type(f"""curl -s -X POST localhost:{guide.http}/v2/models/tensorrt_llm/generate -d '{{"text_input": "{PROMPT}", "max_tokens":10, "sampling_param_temperature": 0}}'""")
    assert json.loads(said)["text_output"] == PROMPT + want
    said, _ = guide.type(f"python3 {LLMAPI}tools/inflight_batcher_llm/end_to_end_test.py --dataset {LLMAPI}ci/L0_backend_trtllm/simple_data.json "
                         f"--max-input-len 500 --test-llmapi --model-name tensorrt_llm -u localhost:{guide.http}")
    assert re.fullmatch(r"\[INFO\] Start testing on 13 prompts\.\n\[INFO\] Functionality test succeeded\.\n"
                        r"\[INFO\] Warm up for benchmarking\.\nFLAGS\.model_name: tensorrt_llm\n"
                        r"\[INFO\] Start benchmarking on 13 prompts\.\n\[INFO\] Total Latency: [\d.]+ ms\n", said), said
    said, _ = guide.type(f"""python3 {LLMAPI}tools/inflight_batcher_llm/benchmark_core_model.py --max-input-len 500 \\
        --tensorrt-llm-model-name tensorrt_llm \\
        --test-llmapi -u localhost:{guide.http} \\
        dataset --dataset ./{LLMAPI}tools/dataset/mini_cnn_eval.json \\
        --tokenizer-dir {model}
    """)
    assert re.fullmatch(r"dataset\nTokenizer: Tokens per word =  [\d.]+\n\[INFO\] Warm up for benchmarking\.\n"
                        r"\[INFO\] Start benchmarking on \d+ prompts\.\n\[INFO\] Total Latency: [\d.]+ ms\n", said), said
    asked = {"text_input": PROMPT, "sampling_param_temperature": 0, "sampling_param_max_tokens": 10,
             "sampling_param_exclude_input_from_output": True}
    stop = want[len(want) // 2:][:3]
    answer = guide.generate({**asked, "sampling_param_stop": [stop], "return_finish_reason": True, "return_stop_reason": True,
                             "return_cumulative_logprob": True}, "tensorrt_llm")
    assert answer["text_output"] == want[:want.index(stop)]
    assert (answer["finish_reason"], answer["stop_reason"]) == ("stop", stop) and answer["cumulative_logprob"] < 0
    answer = guide.generate({**asked, "sampling_param_return_perf_metrics": True, "return_finish_reason": True}, "tensorrt_llm")
    assert answer["text_output"] == want and answer["finish_reason"] == "length"
    assert 0 < answer["arrival_time_ns"] <= answer["first_token_time_ns"] <= answer["last_token_time_ns"]
    assert answer["kv_cache_reused_block"] + answer["kv_cache_alloc_new_blocks"] > 0
    for more, part in (({"streaming": True}, "decoupled mode"), ({"sampling_param_best_of": 0}, "sampling_param_best_of: expected 1"),
                       ({"text_input": ["a", "b"]}, "one prompt a request"), ({"stop": True}, "A request id must be provided"),
                       ({"stop": True, "id": "7"}, "Request cancelled by client")):
        assert part in guide.generate({**asked, **more}, "tensorrt_llm")["error"]


def test_streaming_tells_the_text_so_far(guide, models):
    pytest.importorskip("tritonclient.grpc")
    model = models["llama"]
    prepare(guide, model, "True")
    want = run(model, PROMPT, 10)
    body = json.dumps({"text_input": PROMPT, "sampling_param_temperature": 0, "sampling_param_max_tokens": 10, "streaming": True})
    said, _ = guide.type(f"curl -s -X POST localhost:{guide.http}/v2/models/tensorrt_llm/generate_stream -d '{body}'")
    texts = [json.loads(line[6:])["text_output"] for line in said.splitlines() if line.startswith("data: ")]
    assert len(texts) > 2 and texts[-1] == want and all(b.startswith(a) for a, b in zip(texts, texts[1:])), texts
    said, _ = guide.type(f"""python3 tools/inflight_batcher_llm/end_to_end_test.py --dataset ci/L0_backend_trtllm/simple_data.json \\
        -i grpc -u localhost:{guide.grpc} --max-input-len 500 --test-llmapi --model-name tensorrt_llm --streaming -v \\
        --sampling-params "{{'temperature': 0.0, 'max_tokens': 4}}" --output-config "{{'return_finish_reason': True}}" | grep -v '^infer\\|^stream'
    """)
    assert "[INFO] Functionality test succeeded." in said and "finish_reason: b'length'" in said


@pytest.mark.parametrize("text, part", [
    ("model: a\nmodel: b\n", "line 2: 'model' stands there twice"), ("model\n", "line 1: expected 'name: value'"),
    ("model: a\nx: 1\n", "'x' is not known"), ("model: a\ntriton_config: 3\n", "triton_config must have its own lines"),
    ("model: a\nkv_cache_config:\n  max_token: 1\n", "kv_cache_config: 'max_token' is not known"),
    ("model: a\n  b: c\n", "line 2: 'b' has an indentation of 2, expected 0"), ("a: {b: c}\n", "expected a number or a text"),
    ("model: 3\n", "model must name"), ("backend: x\n", "model must name"), ("model: [a\n", "a list must end on its line")])
def test_model_yaml_says_where_it_is_wrong(tmp_path, text, part):
    (tmp_path / "model.yaml").write_text(text)
    with pytest.raises(model_yaml.Bad) as e:
        model_yaml.read(tmp_path / "model.yaml")
    assert part in str(e.value) and "model.yaml" in str(e.value)


def test_model_yaml_reads_what_the_guides_write(tmp_path):
    (tmp_path / "model.yaml").write_text(
        'model: "a/b # c" # name\nbackend: \'pytorch\'\ntensor_parallel_size: 2\ncuda_graph_config:\n  max_batch_size: 8\n\n'
        "kv_cache_config:\n    free_gpu_memory_fraction: 0.5\n    max_attention_window: [16, 32]\n    enable_block_reuse: false\n"
        "triton_config:\n  decoupled: True\n")
    options, triton, unused = model_yaml.read(tmp_path / "model.yaml")
    assert options == {"model": "a/b # c", "tensor_parallel_size": 2, "kv_cache_free_mem_fraction": 0.5,
                       "max_attention_window": [16, 32], "enable_kv_cache_reuse": False}
    assert triton == {"max_batch_size": 0, "decoupled": True, "cancellation_check_period_ms": 100} and unused == ["cuda_graph_config"]
