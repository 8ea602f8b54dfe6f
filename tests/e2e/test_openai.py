# SPDX-License-Identifier: Apache-2.0
"""OpenAI's endpoints, driven by OpenAI's own Python package, over a small random model."""
import http.client
import json
import re

import openai
import pytest

from llm_server import wait_until
from openai_client import HELLO, MODEL, chat, client, ids_of  # noqa: F401 (client is a fixture)

TOOL = {"type": "function", "function": {"name": "get_weather", "description": "Weather", "parameters": {
    "type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]}}}


def test_models(client):
    assert [m.id for m in client.models.list()] == ["llama"]
    assert client.models.retrieve("ensemble").owned_by == "nereid"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("preprocessing")


def test_chat_has_the_fields_of_the_api(client, server):
    r = chat(client, temperature=0)
    assert r.object == "chat.completion" and r.model == MODEL and r.id.startswith("chatcmpl-")
    (choice,) = r.choices
    assert choice.message.role == "assistant" and choice.finish_reason in ("stop", "length")
    assert r.usage.prompt_tokens == len(ids_of(server, {"messages": HELLO}))
    assert 0 < r.usage.completion_tokens <= 12
    assert r.usage.total_tokens == r.usage.prompt_tokens + r.usage.completion_tokens


def test_same_text_as_generate_for_the_same_tokens(client, server):
    prompt = "the quick brown fox"
    ours = client.completions.create(model=MODEL, prompt=prompt, max_tokens=12, temperature=0).choices[0].text
    status, theirs = server.generate({"text_input": prompt, "max_tokens": 12, "top_k": 1, "bad_words": "",
                                      "stop_words": "", "exclude_input_in_output": True})
    assert status == 200 and theirs["text_output"] == ours


@pytest.mark.parametrize("n", [1, 3])
def test_stream_adds_up_to_the_whole(client, n):
    whole = chat(client, seed=3, n=n, max_tokens=16)
    texts, reasons = [""] * n, [None] * n
    stream = chat(client, seed=3, n=n, max_tokens=16, stream=True, stream_options={"include_usage": True})
    usage = None
    for event in stream:
        assert event.object == "chat.completion.chunk"
        usage = event.usage or usage
        for c in event.choices:
            texts[c.index] += c.delta.content or ""
            reasons[c.index] = c.finish_reason or reasons[c.index]
    assert texts == [c.message.content for c in whole.choices]
    assert reasons == [c.finish_reason for c in whole.choices]
    assert usage.completion_tokens == whole.usage.completion_tokens


def test_usage_can_come_with_every_chunk(client):
    options = {"include_usage": True, "continuous_usage_stats": True}
    events = list(chat(client, stream=True, max_tokens=12, seed=2, stream_options=options))
    counts = [e.usage.completion_tokens for e in events]
    assert counts == sorted(counts) and counts[-1] == counts[-2] > counts[0]
    assert {e.usage.prompt_tokens for e in events} == {events[-1].usage.prompt_tokens}
    assert all(e.usage.total_tokens == e.usage.prompt_tokens + e.usage.completion_tokens for e in events)
    events = list(chat(client, stream=True, max_tokens=3, stream_options={"continuous_usage_stats": True}))
    assert not any(e.usage for e in events)  # only with include_usage


def test_metrics_are_on_this_port_too(server):
    status, text = server.request("/metrics")
    names = {line.split()[2] for line in text.splitlines() if line.startswith("# HELP")}
    assert status == 200 and {n for n in names if not n.startswith("vllm:")} == {
        line.split()[2] for line in server.metrics_text().splitlines() if line.startswith("# HELP")}


def vllm_series(server):
    """Name and labels -> value, of what is there under vLLM's names. None comes twice, and each belongs to the family before it."""
    found, family = {}, None
    for line in server.request("/metrics")[1].splitlines():
        if line.startswith("# TYPE vllm:"):
            _, _, family, kind = line.split()
        elif line.startswith("vllm:"):
            name, labels, value = re.fullmatch(r'(vllm:\w+)\{((?:\w+="[^"]*",?)+)\} (\S+)', line).groups()
            assert name in ([family + s for s in ("_bucket", "_sum", "_count")] if kind == "histogram" else [family]), line
            key = name, frozenset(re.findall(r'(\w+)="([^"]*)"', labels))
            assert key not in found, line
            found[key] = float(value)
    return found


def test_what_is_counted_has_the_names_of_vllm_too(client, server):
    us = {("model_name", client.models.list().data[0].id), ("engine", "0")}

    def look(name, **more):
        return vllm_series(server)["vllm:" + name, frozenset(us | set(more.items()))]

    def looks():
        return {n: look(n) for n in ("prompt_tokens_total", "generation_tokens_total", "e2e_request_latency_seconds_count",
                                     "time_to_first_token_seconds_count", "prefix_cache_queries_total")} | {
            why: look("request_success_total", finished_reason=why) for why in ("stop", "length", "abort", "error", "timeout")}
    before = looks()
    c = client.completions.create(model=MODEL, prompt="the quick brown fox", max_tokens=5, temperature=0, extra_body={"ignore_eos": True})
    n_cut, more = 0, {"abort": 0}
    while more["abort"] == 0 and n_cut < 20:  # on a busy machine an answer may be over before it is cut
        cut = client.completions.create(model=MODEL, prompt="over", max_tokens=100000, stream=True, extra_body={"ignore_eos": True})
        next(iter(cut))
        cut.close()
        n_cut += 1
        assert wait_until(lambda n=n_cut + 1: sum(looks()[why] - before[why] for why in ("length", "abort")) == n)
        more = {k: v - before[k] for k, v in looks().items()}
    assert c.usage.completion_tokens == 5 and more["generation_tokens_total"] >= 6
    assert more["abort"] == 1 and more["length"] == n_cut and more["stop"] == more["error"] == more["timeout"] == 0
    assert more["e2e_request_latency_seconds_count"] == more["time_to_first_token_seconds_count"] == n_cut + 1
    assert more["prompt_tokens_total"] >= c.usage.prompt_tokens + n_cut and more["prefix_cache_queries_total"] >= c.usage.prompt_tokens
    assert look("prefix_cache_hits_total") < look("prefix_cache_queries_total")
    assert wait_until(lambda: look("num_requests_running") == look("num_requests_waiting") == 0)
    assert 0 <= look("kv_cache_usage_perc") <= 1 and look("inter_token_latency_seconds_count") >= 4

    for phase in ("queue", "prefill", "decode", "inference"):  # of answers that were not cut, and of those that were
        assert look(f"request_{phase}_time_seconds_count") == look("request_queue_time_seconds_count") >= 1
    sums = {p: look(f"request_{p}_time_seconds_sum") for p in ("queue", "prefill", "decode", "inference")}
    assert sums["inference"] == pytest.approx(sums["prefill"] + sums["decode"]) and sums["prefill"] > 0
    assert sum(sums.values()) - sums["inference"] <= look("e2e_request_latency_seconds_sum")
    assert look("iteration_tokens_total_sum") >= look("generation_tokens_total") > 0 and look("num_preemptions_total") >= 0

    text = server.metrics_text()
    assert "vllm:" not in text  # the metrics port has Triton's names alone
    ours = {k: server.metric(f"nv_llm_request_ms_{k}", model="tensorrt_llm") for k in ("sum", "count")}
    assert look("e2e_request_latency_seconds_sum") == pytest.approx(ours["sum"] / 1000) and look("e2e_request_latency_seconds_count") == ours["count"]
    buckets = [(dict(labels)["le"], v) for (name, labels), v in vllm_series(server).items() if name == "vllm:e2e_request_latency_seconds_bucket"]
    assert [float(le) for le, _ in buckets] == sorted(float(le) for le, _ in buckets) and buckets[0][0] == "0.0001"
    assert [v for _, v in buckets] == sorted(v for _, v in buckets) and buckets[-1] == ("+Inf", ours["count"])
    (info,) = [dict(labels) for (name, labels), _ in vllm_series(server).items() if name == "vllm:cache_config_info"]
    assert int(info["block_size"]) == server.metric("nv_trt_llm_kv_cache_block_metrics", kv_cache_block_type="tokens_per")


def test_completions_of_several_prompts_with_echo_and_log_probs(client, server):
    prompts = ["the quick", ids_of(server, {"prompt": "brown fox"})]
    bare = dict(model=MODEL, prompt="the quick", max_tokens=6, temperature=0)
    (c,) = client.completions.create(logprobs=1, **bare).choices
    (echoed,) = client.completions.create(echo=True, **bare).choices
    assert echoed.text == "the quick" + c.text
    assert len(c.logprobs.tokens) == len(c.logprobs.token_logprobs) == len(c.logprobs.text_offset)
    assert all(p <= 0 for p in c.logprobs.token_logprobs)
    r = client.completions.create(model=MODEL, prompt=[prompts[1], prompts[1]], max_tokens=6, temperature=0)
    assert r.choices[0].text == r.choices[1].text and [c.index for c in r.choices] == [0, 1]
    best = client.completions.create(model=MODEL, prompt="the", max_tokens=6, n=2, best_of=5, seed=1)
    assert len(best.choices) == 2 and best.usage.completion_tokens > 12


def test_content_parts_and_developer_messages(client, server):
    parts = [{"role": "developer", "content": "kind"}, {"role": "user", "content": [
        {"type": "text", "text": "the quick"}, {"type": "text", "text": "brown"}]}]
    plain = [{"role": "system", "content": "kind"}, {"role": "user", "content": "the quick\nbrown"}]
    a, b = chat(client, parts, temperature=0), chat(client, plain, temperature=0)
    assert a.choices[0].message.content == b.choices[0].message.content
    assert a.usage.prompt_tokens == b.usage.prompt_tokens


def test_cached_tokens_of_a_second_turn(client):
    long = [{"role": "user", "content": "the quick brown fox jumps over the lazy dog " * 12}]
    chat(client, long, max_tokens=2)
    r = chat(client, long, max_tokens=2)
    assert 0 < r.usage.prompt_tokens_details.cached_tokens < r.usage.prompt_tokens


@pytest.mark.parametrize("change, status, part", [
    ({"temperature": 9}, 400, "temperature"),
    ({"temperature": "hot"}, 400, "temperature"),
    ({"model": "nothing"}, 404, "does not exist"),
    ({"model": "preprocessing"}, 404, "no language model"),
    ({"messages": []}, 400, "messages"),
    ({"messages": [{"role": "wizard", "content": "x"}]}, 400, "wizard"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, 400, "image_url"),
    ({"n": 0}, 400, "n:"), ({"n": 10**9}, 400, "n:"), ({"max_tokens": 0}, 400, "max_tokens"),
    ({"stop": [1]}, 400, "stop"), ({"logit_bias": {"x": 1}}, 400, "logit_bias"),
    ({"top_logprobs": 5}, 400, "needs logprobs"), ({"top_logprobs": 21, "logprobs": True}, 400, "top_logprobs"), ({"stream_options": {}}, 400, "stream_options"),
    ({"audio": {}}, 400, "audio"), ({"chat_template": "x"}, 400, "chat_template"),
    ({"tools": [{"type": "magic"}]}, 400, "tools"),
    ({"messages": [{"role": "user", "content": 5}]}, 400, "content of message 0"),
    ({"messages": [{"role": "user", "content": {"text": "x"}}]}, 400, "content of message 0"),
    ({"messages": [*HELLO, {"role": "assistant", "tool_calls": "f()"}]}, 400, "tool_calls of message 1"),
    ({"messages": [*HELLO, {"role": "assistant", "tool_calls": [{"function": {"name": 5}}]}]}, 400, "tool_calls of message 1"),
    ({"tools": [{"type": "function", "function": {"name": "f", "parameters": "none"}}]}, 400, "function.parameters"),
    ({"tools": [{"type": "function", "function": {"name": "f", "description": 5}}]}, 400, "function.description"),
    ({"tool_choice": 5}, 400, "tool_choice"), ({"tool_choice": ["auto"]}, 400, "tool_choice"),
    ({"stream": True, "stream_options": "usage"}, 400, "stream_options"), ({"structured_outputs": "json"}, 400, "structured_outputs"),
    ({"reasoning_effort": 5}, 400, "reasoning_effort"), ({"reasoning": {"effort": {}}}, 400, "reasoning.effort"),
    ({"thinking": {"type": True}}, 400, "thinking.type"),
])
def test_errors_have_openais_form(server, change, status, part):
    body = {"model": MODEL, "messages": HELLO, "max_tokens": 4, **change}
    got, answer = server.request("/v1/chat/completions", body)
    assert got == status, answer
    error = answer["error"]
    assert part in error["message"] and set(error) == {"message", "type", "param", "code"}
    assert error["type"] == ("not_found_error" if status == 404 else "invalid_request_error")


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"model": 1}', b"\xff", b'{"a":' * 100000])
def test_broken_bodies(server, body):
    status, answer = server.request("/v1/chat/completions", body)
    assert status == 400 and answer["error"]["message"]


def test_a_prompt_that_is_too_long_has_its_code(client):
    with pytest.raises(openai.BadRequestError) as e:
        chat(client, [{"role": "user", "content": "the quick brown fox " * 1000}])
    assert e.value.code == "context_length_exceeded"


def test_a_suffix_needs_marks_of_the_model_and_unknown_fields_give_a_warning(server):
    status, answer = server.request("/v1/completions", {"model": MODEL, "prompt": "a", "suffix": "b"})
    assert status == 400 and answer["error"]["param"] == "suffix"
    c = http.client.HTTPConnection("127.0.0.1", server.http, timeout=30)
    c.request("POST", "/v1/completions", json.dumps({"model": MODEL, "prompt": "a", "max_tokens": 1, "wings": 2,
                                                     "bad\r\nname": 1}))
    r = c.getresponse()
    assert r.status == 200 and r.headers["x-nereid-warning"] == "unknown fields: wings"
    r.read()
