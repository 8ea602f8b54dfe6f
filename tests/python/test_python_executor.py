# SPDX-License-Identifier: Apache-2.0
"""nereid.executor: the classes of the executor, with the names that programs for TensorRT-LLM use."""
import datetime
import os
import random
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

PROMPT = [5, 6, 7, 8, 9]
SECOND = datetime.timedelta(seconds=1)


@pytest.fixture(scope="module")
def trtllm():
    from nereid import executor
    return executor


@pytest.fixture(scope="module")
def executor(trtllm, engine):
    config = trtllm.ExecutorConfig(
        4, scheduler_config=trtllm.SchedulerConfig(trtllm.CapacitySchedulerPolicy.MAX_UTILIZATION),
        kv_cache_config=trtllm.KvCacheConfig(enable_block_reuse=True, max_tokens=8192), n_threads=1)
    with trtllm.Executor(str(engine), trtllm.ModelType.DECODER_ONLY, config) as x:
        yield x


def all_of(executor, request):
    got = []
    while not got or not (got[-1].has_error() or got[-1].result.is_final):
        got += executor.await_responses(request, 60 * SECOND)
    return got


def test_an_answer_holds_the_prompt_unless_it_is_excluded(trtllm, executor):
    whole = all_of(executor, executor.enqueue_request(trtllm.Request(PROMPT, max_tokens=4)))[0].result
    output = trtllm.OutputConfig(exclude_input_from_output=True)
    new = all_of(executor, executor.enqueue_request(trtllm.Request(PROMPT, 4, output_config=output)))[0].result
    assert whole.output_token_ids == [PROMPT + new.output_token_ids[0]] and len(new.output_token_ids[0]) == 4
    assert new.finish_reasons == [trtllm.FinishReason.LENGTH]
    assert new.cum_log_probs is None and new.log_probs is None and new.context_logits is None
    assert new.request_perf_metrics is None


def test_streaming_gives_what_is_new(trtllm, executor):
    whole = all_of(executor, executor.enqueue_request(trtllm.Request(PROMPT, 6)))[0].result.output_token_ids[0]
    pieces = all_of(executor, executor.enqueue_request(trtllm.Request(PROMPT, 6, streaming=True)))
    assert [len(r.result.output_token_ids[0]) for r in pieces] == [1] * 6
    assert PROMPT + [r.result.output_token_ids[0][0] for r in pieces] == whole
    assert [r.result.is_final for r in pieces] == [False] * 5 + [True]


def test_an_answer_of_a_draft_and_a_token_ends_behind_the_draft(trtllm, executor):
    def ask(n, draft):
        request = trtllm.Request(PROMPT, n, output_config=trtllm.OutputConfig(exclude_input_from_output=True),
                                 external_draft_tokens_config=draft and trtllm.ExternalDraftTokensConfig(draft))
        return all_of(executor, executor.enqueue_request(request))[0].result.output_token_ids[0]

    plain = ask(6, None)
    wrong = plain[:2] + [(i + 1) % 320 for i in plain[2:4]]
    assert ask(5, plain[:4]) == plain[:5] and ask(5, wrong) == plain[:3] and ask(6, wrong) == plain


def test_waiting_for_all_for_one_and_for_several(trtllm, executor):
    ids = executor.enqueue_requests([trtllm.Request(PROMPT, 3, client_id=i) for i in range(6)])
    assert [r.request_id for r in executor.await_responses(ids[4])] == [ids[4]]
    pair = executor.await_responses([ids[5], ids[0]], 60 * SECOND)
    assert [[(r.request_id, r.client_id) for r in one] for one in pair] == [[(ids[5], 5)], [(ids[0], 0)]]
    rest = []
    while len(rest) < 3:
        rest += executor.await_responses(timeout=60 * SECOND)
    assert sorted(r.request_id for r in rest) == ids[1:4]


def test_waiting_ends_in_time(trtllm, executor):
    start = time.monotonic()
    assert executor.await_responses(timeout=datetime.timedelta(milliseconds=120)) == []
    assert 0.1 < time.monotonic() - start < 2
    assert executor.await_responses(datetime.timedelta(milliseconds=1)) == []
    assert executor.await_responses(987654321, 60 * SECOND) == []  # nobody's: nothing to wait for


def test_how_many_are_ready(trtllm, executor):
    request = executor.enqueue_request(trtllm.Request(PROMPT, 3))
    until = time.monotonic() + 20
    while executor.get_num_responses_ready(request) == 0 and time.monotonic() < until:
        time.sleep(0.01)
    assert executor.get_num_responses_ready() == executor.get_num_responses_ready(request) == 1
    assert len(executor.await_responses(request)) == 1 and executor.get_num_responses_ready() == 0


def test_log_probabilities_logits_and_measurements(trtllm, executor):
    output = trtllm.OutputConfig(True, True, True, True, return_perf_metrics=True)
    r = all_of(executor, executor.enqueue_request(trtllm.Request(PROMPT, 4, output_config=output)))[0].result
    assert len(r.log_probs[0]) == 4 and r.cum_log_probs[0] < 0
    vocabulary = r.context_logits.shape[1]
    assert r.context_logits.shape == (5, vocabulary) and r.generation_logits.shape == (1, 4, vocabulary)
    assert r.generation_logits.dtype == np.float32
    assert np.allclose(r.context_logits[-1], r.generation_logits[0, 0], atol=1e-4)
    assert int(np.argmax(r.generation_logits[0, 1])) == r.output_token_ids[0][1]
    t = r.request_perf_metrics.timing_metrics
    assert datetime.timedelta(0) < t.arrival_time <= t.first_scheduled_time < t.first_token_time < t.last_token_time
    assert r.request_perf_metrics.kv_cache_metrics.num_total_allocated_blocks >= 1
    assert r.request_perf_metrics.speculative_decoding.total_draft_tokens == 0


def test_beams_and_several_sequences(trtllm, executor):
    beams = trtllm.SamplingConfig(beam_width=3)
    r = all_of(executor, executor.enqueue_request(trtllm.Request(PROMPT, 4, sampling_config=beams)))[-1].result
    assert len(r.output_token_ids) == 3 and len(r.finish_reasons) == 3
    several = trtllm.SamplingConfig(top_k=40, seed=3, num_return_sequences=3)
    got = all_of(executor, executor.enqueue_request(trtllm.Request(PROMPT, 4, sampling_config=several)))
    assert sorted(r.result.sequence_index for r in got) == [0, 1, 2]
    assert sum(r.result.is_final for r in got) == 1


def test_stop_words_bad_words_and_bias(trtllm, executor):
    output = trtllm.OutputConfig(exclude_input_from_output=True)
    plain = all_of(executor, executor.enqueue_request(trtllm.Request(PROMPT, 8, output_config=output)))
    ids = plain[0].result.output_token_ids[0]
    stopped = all_of(executor, executor.enqueue_request(
        trtllm.Request(PROMPT, 8, stop_words=[ids[2:4]], output_config=output)))
    assert stopped[0].result.finish_reasons == [trtllm.FinishReason.STOP_WORDS]
    other = all_of(executor, executor.enqueue_request(
        trtllm.Request(PROMPT, 8, bad_words=[[ids[0]]], output_config=output)))[0].result.output_token_ids[0]
    assert ids[0] not in other
    bias = np.zeros(320, np.float16)
    bias[77] = 100
    for given in (bias, bias.tolist()):
        biased = all_of(executor, executor.enqueue_request(
            trtllm.Request(PROMPT, 3, embedding_bias=given, output_config=output)))
        assert biased[0].result.output_token_ids == [[77] * 3]


def test_cancelled(trtllm, executor):
    request = executor.enqueue_request(trtllm.Request(PROMPT, 480, streaming=True))
    executor.await_responses(request)
    executor.cancel_request(request)
    last = all_of(executor, request)[-1].result
    assert last.is_final and last.finish_reasons == [trtllm.FinishReason.CANCELLED]
    executor.cancel_request(request)


def test_stats_of_steps(trtllm, executor):
    executor.get_latest_iteration_stats()
    all_of(executor, executor.enqueue_request(trtllm.Request(PROMPT, 5)))
    stats, until = [], time.monotonic() + 20
    while len(stats) < 5 and time.monotonic() < until:  # the last one is noted after the answer
        stats += executor.get_latest_iteration_stats()
    assert len(stats) >= 5 and [s.iter for s in stats] == sorted(s.iter for s in stats)
    s = stats[0]
    assert abs(datetime.datetime.strptime(s.timestamp, "%m-%d-%Y %H:%M:%S.%f") - datetime.datetime.now()) < 60 * SECOND
    assert s.num_active_requests == 1 and s.kv_cache_stats.max_num_blocks > s.kv_cache_stats.used_num_blocks > 0
    assert s.static_batching_stats is None and s.inflight_batching_stats.num_context_requests == 1
    assert '"num_gen_requests": 0' in s.to_json_str()


def test_errors_arrive_where_they_belong(trtllm, executor):
    import nereid
    refused = [
        (dict(input_token_ids=[]), nereid.InvalidArgumentError, "input_ids"),
        (dict(sampling_config=trtllm.SamplingConfig(beam_width=9)), nereid.InvalidArgumentError, "beam_width"),
        (dict(embedding_bias=[0.0] * 7), ValueError, "embedding_bias has 7 elements, expected 320"),
        (dict(lora_config=trtllm.LoraConfig(3, np.zeros((2, 8), np.float16), np.zeros((3, 3), np.int32))),
         ValueError, "lora_config has 9 elements, expected 6"),
        (dict(external_draft_tokens_config=trtllm.ExternalDraftTokensConfig([1, 2], np.zeros((1, 3), np.float32))),
         ValueError, "draft_logits has 3 elements, expected 640"),
        (dict(prompt_tuning_config=trtllm.PromptTuningConfig(np.zeros((2, 7), np.float16))), ValueError,
         "prompt_embedding_table has 28 bytes"),
        (dict(mrope_config=trtllm.MropeConfig(np.zeros(8, np.float32), 2)), nereid.UnsupportedError, "positions have several axes"),
        (dict(position_ids=[1]), nereid.UnsupportedError, "position_ids"),
        (dict(stop_words=[["a"]]), TypeError, "integer"),
        (dict(input_token_ids=[1 << 40]), OverflowError, "greater than maximum|too large")]
    for fields, error, text in refused:
        with pytest.raises(error, match=text):
            executor.enqueue_request(trtllm.Request(**{"input_token_ids": PROMPT, "max_tokens": 3, **fields}))
    with pytest.raises(nereid.Error):  # and those before it are gone
        executor.enqueue_requests([trtllm.Request(PROMPT, 400), trtllm.Request([], 3)])
    assert not executor._inbox._queues
    with pytest.raises(RuntimeError, match="no error"):
        trtllm.Response(1, trtllm.Result(is_final=True)).error_msg
    assert trtllm.Response(1, "why").has_error() and trtllm.Response(1, "why").error_msg == "why"


def test_any_dictionary_is_an_answer_or_an_exception(executor):
    """What reaches C: names, types and lengths at random."""
    rng = random.Random(5)
    names = ["input_ids", "max_new_tokens", "streaming", "end_id", "top_k", "top_p", "random_seed", "priority",
             "embedding_bias", "stop_words", "bad_words", "draft_input_ids", "draft_logits", "lora_task_id",
             "lora_weights", "lora_config", "lora_rows", "lora_width", "lora_weights_dtype", "prompt_embedding_table",
             "prompt_table_extra_ids", "prompt_table_dtype", "bias_ids", "bias_values", "retention_ranges", "guide",
             "encoder_input_features", "encoder_features_dtype", "n_encoder_frames", "encoder_feature_size", "cross_attention_mask",
             "n_cross_mask_rows", "n_cross_mask_cols",
             "guide_type", "cache_salt", "beam_width", "kind", "pooling", "n_top_logprobs", "lora_config_width"]
    values = [None, 0, 1, -1, 3, 1 << 31, 1 << 70, 0.5, float("nan"), "", "json", "a\0b", "float16", "q4_0", b"",
              b"\1\0\0\0" * 3, b"abc", b"\0" * 1280, [], [1], [(0, 1, 2, 3)], [(0, 1)], (b"", b""),
              (b"\1\0\0\0", b"\1\0\0\0"), (b"\1\0\0\0", b"\2\0\0\0"), (b"\1\0\0\0", b"\377\377\377\377"), ("", 1), {}]
    for _ in range(3000):
        fields = {"input_ids": b"\5\0\0\0" * 4, "max_new_tokens": 2}
        fields.update({rng.choice(names): rng.choice(values) for _ in range(rng.randint(1, 4))})
        try:
            request = executor._inbox.enqueue(fields)
        except (ValueError, TypeError, OverflowError, RuntimeError):
            continue
        executor._inbox.drop([request])
    executor._inbox.drain()
    assert executor._inbox._running == 0


def test_names_of_earlier_releases(trtllm):
    s = trtllm.SamplingConfig(random_seed=4, min_length=2)
    assert (s.seed, s.min_tokens, s.random_seed, s.min_length) == (4, 2, 4, 2)
    assert trtllm.SamplingConfig(seed=4, min_tokens=2) == s
    r = trtllm.Request(PROMPT, max_new_tokens=5, num_return_sequences=2,
                       speculative_decoding_config=trtllm.SpeculativeDecodingConfig([1]))
    assert r.max_tokens == 5 and r.num_return_sequences == 2 and r.external_draft_tokens_config.tokens == [1]
    assert trtllm.DecodingMode.TOP_K == trtllm.DecodingMode.TopK() != trtllm.DecodingMode.TopP()
    assert trtllm.KvCacheConfig(max_attention_window=64).max_attention_window == [64]
    config = trtllm.ExecutorConfig(decoding_mode=trtllm.DecodingMode.NONE)
    assert config.decoding_config.decoding_mode == trtllm.DecodingMode.Auto()


def test_every_name_that_the_published_models_use(trtllm, build_folder):
    """From v0.10 to v0.19, through the package that carries their name."""
    names = """BatchingType.INFLIGHT BatchingType.STATIC CapacitySchedulerPolicy.MAX_UTILIZATION DecodingConfig
        CapacitySchedulerPolicy.GUARANTEED_NO_EVICT CommunicationMode.ORCHESTRATOR DecodingMode.Auto DecodingMode.NONE
        DecodingMode.TOP_K DecodingMode.TOP_P DecodingMode.TOP_K_TOP_P DecodingMode.BEAM_SEARCH DecodingMode.MEDUSA
        DecodingMode.TopK DecodingMode.TopP DecodingMode.TopKTopP DecodingMode.BeamSearch DecodingMode.Medusa
        DecodingMode.ExplicitDraftTokens DecodingMode.Lookahead DecodingMode.Eagle EagleConfig Executor ExecutorConfig
        ExtendedRuntimePerfKnobConfig ExternalDraftTokensConfig GuidedDecodingParams.GuideType.JSON
        GuidedDecodingConfig.GuidedDecodingBackend.XGRAMMAR GuidedDecodingParams.GuideType.JSON_SCHEMA
        GuidedDecodingParams.GuideType.REGEX GuidedDecodingParams.GuideType.EBNF_GRAMMAR KvCacheConfig
        KvCacheRetentionConfig.TokenRangeRetentionConfig LookaheadDecodingConfig LoraConfig ModelType.DECODER_ONLY
        MropeConfig OrchestratorConfig OutputConfig ParallelConfig PeftCacheConfig PromptTuningConfig Request
        SamplingConfig SchedulerConfig SpeculativeDecodingConfig""".split()
    script = ("import functools, sys, tensorrt_llm.bindings.executor as e, tensorrt_llm.logger as logger\n"
              "from tensorrt_llm.llmapi.tokenizer import _xgrammar_tokenizer_info\n"
              "logger.debug('x')\n"
              "for n in sys.argv[1:]: functools.reduce(getattr, n.split('.'), e)\n"
              "print(e.Executor.__module__)")
    path = subprocess.run([sys.executable, "-m", "nereid", "compat"], capture_output=True, text=True, check=True,
                          env=dict(os.environ, PYTHONPATH=str(build_folder / "python"))).stdout.strip()
    done = subprocess.run([sys.executable, "-c", script, *names], capture_output=True, text=True,
                          env=dict(os.environ, PYTHONPATH=path))
    assert done.stdout == "nereid.executor\n", done.stderr
    without = subprocess.run([sys.executable, "-c", "import nereid, tensorrt_llm"], capture_output=True, text=True,
                             cwd=build_folder,  # where no folder has that name
                             env=dict(os.environ, PYTHONPATH=str(build_folder / "python")))
    assert "No module named 'tensorrt_llm'" in without.stderr


def test_shutdown_waits_for_what_runs(trtllm, engine):
    import nereid
    x = trtllm.Executor(engine, trtllm.ModelType.DECODER_ONLY, trtllm.ExecutorConfig(n_threads=1))
    ids = x.enqueue_requests([trtllm.Request(PROMPT, 50) for _ in range(3)])
    x.shutdown()
    assert not x.can_enqueue_requests()
    got = [x.await_responses(i) for i in ids]
    assert [len(r[0].result.output_token_ids[0]) for r in got] == [55] * 3
    with pytest.raises(nereid.UnavailableError, match="shut down"):
        x.enqueue_request(trtllm.Request(PROMPT, 1))
    x.shutdown()


def test_one_thread_awaits_while_others_ask(trtllm, executor):
    """As a server's model does it."""
    got, running = {}, True

    def await_all():
        while running:
            for r in executor.await_responses(timeout=datetime.timedelta(milliseconds=1)):
                got.setdefault(r.request_id, []).append(r)
    awaiter = threading.Thread(target=await_all)
    awaiter.start()
    ids = []
    lock = threading.Lock()

    def ask():
        for _ in range(10):
            request = executor.enqueue_request(trtllm.Request(PROMPT, 4, streaming=True))
            with lock:
                ids.append(request)
    askers = [threading.Thread(target=ask) for _ in range(4)]
    for t in askers:
        t.start()
    for t in askers:
        t.join()
    until = time.monotonic() + 60
    while sum(r[-1].result.is_final for r in list(got.values())) < 40 and time.monotonic() < until:
        time.sleep(0.01)
    running = False
    awaiter.join()
    assert sorted(got) == sorted(ids) and all(len(r) == 4 for r in got.values())
