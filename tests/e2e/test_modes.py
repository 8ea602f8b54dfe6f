"""The same models in other modes: plain (not decoupled), static batching, accumulated tokens, few blocks."""
import concurrent.futures

import pytest

from llm_server import Server

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
    "batch_scheduler_policy:max_utilization,max_tokens_in_paged_kv_cache:2048",
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


def test_a_wrong_parameter_ends_the_start_with_its_reason(tiny_model, cache):
    s = start(tiny_model, cache, "batching_strategy:fastest")
    assert s.process.wait(30) != 0
    assert "Invalid gpt_model_type" in s.log_text()
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
