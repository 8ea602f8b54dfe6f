# SPDX-License-Identifier: Apache-2.0
"""OpenAI's endpoints, driven by OpenAI's own Python package, over a small random model."""
import http.client
import json

import openai
import pytest

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
    assert status == 200 and names == {line.split()[2] for line in server.metrics_text().splitlines() if line.startswith("# HELP")}


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
