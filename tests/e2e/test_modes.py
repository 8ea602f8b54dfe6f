# SPDX-License-Identifier: Apache-2.0
"""The same models in other modes: plain (not decoupled), static batching, accumulated tokens, few blocks."""
import concurrent.futures
import json
import re
import shutil
import subprocess
import time

import numpy as np
import pytest

from llm_server import BIN, Server

http = pytest.importorskip("tritonclient.http")
from tritonclient.utils import InferenceServerException, np_to_triton_dtype  # noqa: E402

PROMPT = {"text_input": "the quick brown fox", "max_tokens": 12}


@pytest.fixture(scope="module")
def reference(server):
    return server.generate(PROMPT)[1]["text_output"]


def start(tiny_model, cache, values):
    return Server(tiny_model, cache, "--set", values) if values else Server(tiny_model, cache)


@pytest.mark.parametrize("values", [
    "decoupled_mode:False",
    "decoupled_mode:False,batching_strategy:V1",
    "batch_scheduler_policy:guaranteed_no_evict,enable_kv_cache_reuse:False,enable_chunked_context:False",
    "batch_scheduler_policy:max_utilization,max_tokens_in_paged_kv_cache:2048,two_step_head:true",
])
def test_every_mode_gives_the_same_text(tiny_model, cache, reference, values):
    s = start(tiny_model, cache, values)
    try:
        s.wait_ready()
        with concurrent.futures.ThreadPoolExecutor(12) as pool:
            jobs = [pool.submit(s.generate, PROMPT, m)
                    for m in ("ensemble", "tensorrt_llm_bls") for _ in range(12)]
            assert {j.result()[1].get("text_output") for j in jobs} == {reference}
        if "decoupled_mode:False" in values:
            for model in ("ensemble", "tensorrt_llm_bls"):
                status, answer = s.generate(dict(PROMPT, stream=True), model)
                assert status == 400 and "decoupled" in answer["error"]
    finally:
        assert s.stop() == 0


def test_bls_accumulates_tokens_when_told_to(tiny_model, cache, reference):
    s = start(tiny_model, cache, "accumulate_tokens:True")
    try:
        s.wait_ready()
        pieces = [p["text_output"] for p in s.stream(dict(PROMPT, stream=True), "tensorrt_llm_bls")]
        assert all(b.startswith(a.rstrip("\ufffd")) for a, b in zip(pieces, pieces[1:]))
        assert PROMPT["text_input"] + pieces[-1] == reference
    finally:
        assert s.stop() == 0


@pytest.fixture(scope="module")
def plain(tiny_model, cache, tmp_path_factory):
    folder = tmp_path_factory.mktemp("plain")
    engine, repo = folder / "engine", folder / "repo"
    values = ("decoupled_mode:False,participant_ids:0,lora_cache_max_adapter_size:64,multi_block_mode:false,"
              "logits_datatype:TYPE_FP16")
    for words in (["build", tiny_model, "--output_dir", engine, "--gather_context_logits"],
                  ["repo", "--engine_dir", engine, "--tokenizer_dir", tiny_model, "--output_dir", repo, "--set",
                   values]):
        subprocess.run([BIN / "nereid", *map(str, words)], check=True, capture_output=True)
    s = Server(repo, cache)
    s.repository = repo
    try:
        yield s.wait_ready()
    finally:
        assert s.stop() == 0


@pytest.mark.parametrize("level, warnings, infos", [("ERROR", 0, 0), ("internal_error", 0, 0), ("warning", 2, 0), ("TRACE", 2, 1),
                                                    ("VERBOSE", 2, 1), ("loud", 2, 1)])
def test_the_environment_says_which_lines_of_the_engine_come(plain, cache, level, warnings, infos):
    s = Server(plain.repository, cache, env={"TLLM_LOG_LEVEL": level})
    try:
        text = s.wait_ready().log_text()
    finally:
        assert s.stop() == 0
    lines = [line[line.index("[TensorRT-LLM]["):] for line in text.splitlines() if "[TensorRT-LLM][" in line]
    told = [line for line in lines if "has no effect: " in line]
    assert len(told) == warnings and (sum(line.startswith("[TensorRT-LLM][INFO]") for line in lines) > 0) == (infos > 0), lines
    assert any("is none of TRACE" in line for line in lines) == (level == "loud")


def test_parameters_without_effect_are_named_once(plain):
    for name, value in (("participant_ids", "0"), ("multi_block_mode", "false")):
        line = f"[TensorRT-LLM][WARNING] model 'tensorrt_llm': {name} '{value}' has no effect: "
        assert plain.log_text().count(line) == 1
    assert plain.log_text().count("has no effect: ") == 2  # nothing else was given


def test_sizes_are_logged_in_the_published_words(plain):
    blocks = {kind: plain.metric("nv_trt_llm_kv_cache_block_metrics", kv_cache_block_type=kind) for kind in ("max", "tokens_per")}
    tokens = int(blocks["max"] * blocks["tokens_per"])
    for line in ("MPI size: 1, MPI local size: 1, rank: 0", "TRTGptModel maxNumSequences: #", "TRTGptModel maxBatchSize: #", "TRTGptModel maxBeamWidth: #",
                 "TRTGptModel maxSequenceLen: #", "TRTGptModel maxNumTokens: #", "Loaded engine size: # MiB",
                 "TRTGptModel mMaxAttentionWindowSize: (512) * 2", "TRTGptModel enableTrtOverlap: 0", "TRTGptModel normalizeLogProbs: 1",
                 "TRTGptModel maxInputLen: 511", f"Using {tokens} total tokens in paged KV cache, and # blocks per sequence",
                 "Memory usage when calculating max tokens in paged kv cache: total: # GiB, available: # GiB",
                 f"Number of blocks in KV cache primary pool: {int(blocks['max'])}",
                 "Number of blocks in KV cache secondary pool: 0, onboard blocks to primary memory before reuse: true",
                 "Max KV cache pages per sequence: #", f"Number of tokens per block: {int(blocks['tokens_per'])}.",
                 f"[MemUsageChange] Allocated # GiB for max tokens in paged KV cache ({tokens})."):
        pattern = re.escape(f"[TensorRT-LLM][INFO] {line}").replace(r"\#", r"[\d.]+")
        assert len(re.findall(f"{pattern}$", plain.log_text(), re.M)) == 1, line


def test_attention_windows_are_logged_as_layers_take_them(plain, cache, tmp_path):
    repo = shutil.copytree(plain.repository, tmp_path / "repo")
    config = repo / "tensorrt_llm/config.pbtxt"
    text, n = re.subn(r'(key: "max_attention_window_size"\s+value: \{ string_value: )"[^"]*"', r'\1"64,9999"', config.read_text())
    assert n == 1
    config.write_text(text)
    s = Server(repo, cache)
    try:
        assert "[TensorRT-LLM][INFO] TRTGptModel mMaxAttentionWindowSize: (64, 512) * 1\n" in s.wait_ready().log_text()
    finally:
        assert s.stop() == 0


def statistics(server):
    """What the log has of each step: one JSON object a line."""
    return [json.loads(line[line.index("{"):]) for line in server.log_text().splitlines() if '"Active Request Count"' in line]


def test_statistics_of_steps_are_logged_while_the_log_is_verbose(plain):
    assert plain.generate(PROMPT)[0] == 200 and not statistics(plain)
    assert plain.request("/v2/logging", {"log_verbose_level": 1})[0] == 200
    try:
        assert plain.generate(PROMPT)[0] == 200
        until = time.monotonic() + 20
        while not statistics(plain) and time.monotonic() < until:
            time.sleep(0.02)
    finally:
        assert plain.request("/v2/logging", {"log_verbose_level": 0})[0] == 200
    first = statistics(plain)[0]
    assert first["Max Request Count"] >= first["Active Request Count"] > 0
    assert first["Tokens per KV cache block"] == plain.metric("nv_trt_llm_kv_cache_block_metrics", kv_cache_block_type="tokens_per")


def test_logits_have_the_declared_type(plain):
    with http.InferenceServerClient(f"127.0.0.1:{plain.http}") as c:
        answer = c.infer("tensorrt_llm", prompt([1, 2, 3]) + [tensor("return_context_logits", [[True]], bool)])
    logits = answer.as_numpy("context_logits")
    assert logits.dtype == np.float16 and logits.shape[:2] == (1, 3)
    assert np.isfinite(logits).all() and logits.std() > 0


def tensor(name, value, dtype):
    array = np.array(value, dtype)
    t = http.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
    t.set_data_from_numpy(array)
    return t


def prompt(ids):
    return [tensor("input_ids", [ids], np.int32), tensor("input_lengths", [[len(ids)]], np.int32),
            tensor("request_output_len", [[2]], np.int32)]


@pytest.mark.parametrize("more, parameters, text", [
    ([], {"request_type": "nonsense"}, "request_type must be context_and_generation, context_only or "),
    ([], {"request_type": 3}, "request_type must be context_and_generation, context_only or "),
    ([], {"top_logprobs": "2"}, "top_logprobs must be a whole number"),
    ([], {"prompt_logprobs": True}, "prompt_logprobs must be a whole number"),
    ([], {"background": 1}, "background must be true or false"),
    ([], {"logit_bias": 3}, "logit_bias must be a string, a JSON object"),
    ([], {"pooling": True}, "pooling must be last, mean, first, model or labels"),
    ([], {"pooling": "most"}, "pooling must be last, mean, first, model or labels, not 'most'"),
    ([], {"second_text_from": -1}, "second_text_from must be a whole number from 0 to 2147483646"),
    ([], {"request_type": "generation_only"}, "request type generation_only needs context_phase_params"),
    ([("prompt_vocab_size", [[4]], np.int32)], {}, "'prompt_vocab_size' needs the input 'prompt_embedding_table'"),
    ([("encoder_output_lengths", [[4]], np.int32)], {}, "encoder_output_lengths is not supported"),
    ([("cross_attention_mask", [[[True]]], bool)], {}, "cross_attention_mask is not supported"),
    ([("skip_cross_attn_blocks", [[True]], bool)], {}, "skip_cross_attn_blocks is not supported"),
    ([("mrope_position_deltas", [[1]], np.int64)], {}, "'mrope_position_deltas' needs"),
    ([("stop", [[True]], bool)], {}, "Trying to stop a request but request ID is not provided"),
])
def test_what_cannot_be_obeyed_is_refused_by_name(plain, more, parameters, text):
    with http.InferenceServerClient(f"127.0.0.1:{plain.http}") as c:
        with pytest.raises(InferenceServerException, match=re.escape(text)):
            c.infer("tensorrt_llm", prompt([1, 2, 3]) + [tensor(*m) for m in more], parameters=parameters)
        assert c.infer("tensorrt_llm", prompt([1, 2, 3])).as_numpy("output_ids").shape[2] >= 2


def test_an_empty_prompt_is_refused(plain):
    with http.InferenceServerClient(f"127.0.0.1:{plain.http}") as c:
        with pytest.raises(InferenceServerException, match="input 'input_ids' holds no token: the prompt is empty"):
            c.infer("tensorrt_llm", prompt(np.zeros(0, np.int32)))


def test_ids_that_the_vocabulary_lacks_are_refused(plain):
    with http.InferenceServerClient(f"127.0.0.1:{plain.http}") as c:
        with pytest.raises(InferenceServerException, match=r"input_ids\[1\] is 1000000, expected at most \d+"):
            c.infer("tensorrt_llm", prompt([1, 1000000, 3]))


@pytest.mark.parametrize("setting, reason", [("batching_strategy:fastest", "Invalid gpt_model_type"),
                                             ("gpu_weights_percent:50", "gpu_weights_percent must be in [0, 1]"),
                                             ("max_beam_width:4294967298", "max_beam_width is 4294967298, expected 0 to 2147483647"),
                                             ("sink_token_length:-1", "sink_token_length is -1, expected 0 to 2147483647"),
                                             ("max_tokens_in_paged_kv_cache:-1", "max_tokens_in_paged_kv_cache is -1, expected 0 to "),
                                             ("kv_cache_host_memory_bytes:1e17", "kv_cache_host_memory_bytes is 1e+17, expected 0 to "),
                                             ("stats_check_period_ms:0", "stats_check_period_ms is 0, expected 1 to 2147483647"),
                                             ("kv_cache_free_gpu_mem_fraction:0", "kv_cache_free_gpu_mem_fraction is 0, expected above 0"),
                                             ("lora_cache_gpu_memory_fraction:2", "lora_cache_gpu_memory_fraction is 2, expected above 0")])
def test_a_wrong_parameter_ends_the_start_with_its_reason(tiny_model, cache, setting, reason):
    s = start(tiny_model, cache, setting)
    assert s.process.wait(30) != 0
    log = s.log_text().splitlines()
    assert log[-1].startswith("error: ") and reason in log[-1]
    assert sum("loading: tensorrt_llm:1" in line for line in log) <= 1  # not again for the ensemble
    assert not any(line.startswith("+---") for line in log)
    s.stop()


def test_sigterm_lets_running_requests_finish(tiny_model, cache):
    s = start(tiny_model, cache, "")
    s.wait_ready()
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        job = pool.submit(s.stream, dict(PROMPT, max_tokens=150, stream=True, end_id=-1))
        while s.metric("nv_trt_llm_general_metrics", general_type="iteration_counter") < 1:
            pass
        assert s.stop() == 0
        assert len(job.result()) >= 150


def test_the_input_that_clients_send_for_nothing_is_ignored(tiny_model, cache):
    def tensor(name, datatype, *values):
        return {"name": name, "datatype": datatype, "shape": [1, len(values)], "data": values}

    s = start(tiny_model, cache, "decoupled_mode:False")
    try:
        s.wait_ready()
        status, answer = s.request("/v2/models/tensorrt_llm/infer", {"inputs": [
            tensor("input_ids", "INT32", 1, 2, 3), tensor("input_lengths", "INT32", 3),
            tensor("request_output_len", "INT32", 4), tensor("output_log_probs", "BOOL", True)]})
        assert status == 200, answer
    finally:
        assert s.stop() == 0
