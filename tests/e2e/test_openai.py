# SPDX-License-Identifier: Apache-2.0
"""OpenAI's endpoints, driven by OpenAI's own Python package, over a small random model."""
import asyncio
import concurrent.futures
import contextlib
import http.client
import json
import os
import random
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import jsonschema
import numpy as np
import openai
import pytest

from llm_server import BIN, Server, free_ports

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import eagle_heads  # noqa: E402

MODEL = "ensemble"
HELLO = [{"role": "user", "content": "the quick brown fox"}]
TOOL = {"type": "function", "function": {"name": "get_weather", "description": "Weather", "parameters": {
    "type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]}}}


@pytest.fixture(scope="module")
def client(server):
    return openai.OpenAI(base_url=server.url("/v1"), api_key="none", max_retries=0)


def chat(client, messages=HELLO, **more):
    more.setdefault("max_tokens", 12)
    return client.chat.completions.create(model=MODEL, messages=messages, **more)


def ids_of(server, body):
    status, answer = server.request("/tokenize", dict(body, model=MODEL))
    assert status == 200, answer
    assert answer["count"] == len(answer["tokens"])
    return answer["tokens"]


def wait_until(condition, seconds=20):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if condition():
            return True
        time.sleep(0.05)
    return False


@pytest.fixture
def server_of_a_copy(tiny_model, tmp_path):
    """The server, and the folder that its tokenizer lies in."""
    folder = shutil.copytree(tiny_model, tmp_path / "model")
    s = Server(folder, tmp_path, "--model-control-mode=explicit", "--load-model=*")
    try:
        yield s.wait_ready(), folder
    finally:
        assert s.stop() == 0, s.log_text()[-4000:]


def test_a_tokenizer_that_changed_in_its_folder_is_taken_at_the_next_load(server_of_a_copy):
    server, folder = server_of_a_copy
    text = "the quick brown fox"

    def preprocessed():
        status, answer = server.request("/v2/models/preprocessing/infer", {"inputs": [
            {"name": "QUERY", "shape": [1, 1], "datatype": "BYTES", "data": [text]},
            {"name": "REQUEST_OUTPUT_LEN", "shape": [1, 1], "datatype": "INT32", "data": [4]}],
            "outputs": [{"name": "INPUT_ID"}]})
        assert status == 200, answer
        return answer["outputs"][0]["data"]

    before = ids_of(server, {"prompt": text})
    assert preprocessed() == before
    content = json.loads((folder / "tokenizer.json").read_text())
    content["model"]["merges"] = []
    (folder / "tokenizer.json").write_text(json.dumps(content))
    assert preprocessed() == before  # until it is loaded again
    status, answer = server.request("/v2/repository/models/preprocessing/load", {}, "POST")
    assert status == 200, answer
    after = preprocessed()
    assert len(after) > len(before)
    assert wait_until(lambda: ids_of(server, {"prompt": text}) == after)


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


WAYS_OF_DRAWING = [{"temperature": 0.0, "min_p": 0.0}, {"temperature": 1.3, "top_k": 0, "top_p": 0.9, "min_p": 0.0, "seed": 7},
                   {"temperature": 0.8, "top_k": 5, "top_p": 0.95, "min_p": 0.05, "seed": 11},
                   {"temperature": 1.0, "top_k": 0, "top_p": 0.8, "min_p": 0.0, "seed": 2**40 + 3, "repetition_penalty": 1.3}]


def run_alone(model, cache, prompt, draw, *more):
    """The text that the engine gives without any server."""
    args = [f"--{k}={v}" for k, v in draw.items()]
    return subprocess.run([BIN / "nereid", "run", model, "-q", "-n", "24", "-p", prompt, *args, *more],
                          env=dict(os.environ, NEREID_CACHE=str(cache)), check=True, capture_output=True,
                          text=True).stdout


@pytest.mark.parametrize("draw", WAYS_OF_DRAWING)
def test_one_text_through_v1_generate_and_the_executor(client, server, tiny_model, cache, draw):
    prompt = "the quick brown fox"
    known = {k: v for k, v in draw.items() if k in ("temperature", "top_p", "seed")}
    more = {k: v for k, v in draw.items() if k not in known}
    v1 = client.completions.create(model=MODEL, prompt=prompt, max_tokens=24, extra_body=more, **known).choices[0].text
    by_ids = client.completions.create(model=MODEL, prompt=ids_of(server, {"prompt": prompt}), max_tokens=24,
                                       extra_body=more, **known).choices[0].text
    body = {"text_input": prompt, "max_tokens": 24, "bad_words": "", "stop_words": "",
            "exclude_input_in_output": True, **{k: v for k, v in draw.items() if k != "seed"}}
    body |= {"random_seed": draw["seed"]} if "seed" in draw else {"top_k": 1}
    status, v2 = server.generate(body)
    assert status == 200, v2
    streamed = "".join(a["text_output"] for a in server.stream(dict(body, stream=True)))
    alone = run_alone(tiny_model, cache, prompt, draw)
    assert len(v1) > 10 and v1 == by_ids == v2["text_output"] == streamed
    assert alone.removesuffix("\n") == v1.removesuffix("\n")


@pytest.mark.parametrize("draw", WAYS_OF_DRAWING[:2])
def test_one_chat_through_v1_generate_and_the_executor(client, server, tiny_model, cache, draw):
    known = {k: v for k, v in draw.items() if k in ("temperature", "top_p", "seed")}
    known["extra_body"] = {k: v for k, v in draw.items() if k not in known}
    v1 = chat(client, max_tokens=24, **known).choices[0].message.content
    ids = ids_of(server, {"messages": HELLO})
    by_ids = client.completions.create(model=MODEL, prompt=ids, max_tokens=24, **known).choices[0].text
    alone = run_alone(tiny_model, cache, HELLO[0]["content"], draw, "--chat")
    assert v1 == by_ids and alone.removesuffix("\n") == v1.removesuffix("\n")


def test_seed_repeats_and_no_seed_does_not(client):
    a, b = (chat(client, seed=7, temperature=1.5).choices[0].message.content for _ in range(2))
    assert a == b
    texts = {chat(client, temperature=1.5, max_tokens=16).choices[0].message.content for _ in range(4)}
    assert len(texts) > 1


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


def events_of(stream):
    events = list(stream)
    return events, [e.choices[0].model_extra["token_ids"] for e in events if e.choices and "token_ids" in e.choices[0].model_extra]


def test_ids_are_told_as_vllm_tells_them(client, server):
    """Those of the prompt and the answer, with the token that ended it; joined from a stream they are the same."""
    text = dict(model=MODEL, prompt="the quick", max_tokens=16, temperature=0, extra_body={"return_token_ids": True})
    (c,) = client.completions.create(**text).choices
    assert c.model_extra["prompt_token_ids"] == ids_of(server, {"prompt": "the quick"})
    ids, pieces = c.model_extra["token_ids"], events_of(client.completions.create(stream=True, echo=True, **text))
    assert sum(pieces[1], []) == ids
    told = [e.choices[0].model_extra.get("prompt_token_ids") for e in pieces[0]]
    assert told[0] == c.model_extra["prompt_token_ids"] and set(map(str, told[1:])) == {"None"}
    ask = dict(max_tokens=200, seed=1, temperature=1.5)
    for stop in ([ids[0]], []):  # with an end that comes, and with none
        extra = {"return_token_ids": True, "stop_token_ids": stop or ids[:1], "logit_bias": {str(ids[0]): 4 if stop else -100}}
        whole = chat(client, **ask, extra_body=extra)
        got, (events, parts) = whole.choices[0], events_of(chat(client, stream=True, **ask, extra_body=extra))
        assert whole.model_extra["prompt_token_ids"] == ids_of(server, {"messages": HELLO})
        assert events[0].model_extra["prompt_token_ids"] == whole.model_extra["prompt_token_ids"]
        assert all("prompt_token_ids" not in e.model_extra for e in events[1:])
        assert sum(parts, []) == got.model_extra["token_ids"] and len(got.model_extra["token_ids"]) == whole.usage.completion_tokens
        assert not stop or (got.finish_reason == "stop" and got.model_extra["token_ids"][-1] == ids[0])
    assert "token_ids" not in chat(client).choices[0].model_extra


def test_bad_words_do_not_come(client, server):
    """The word, alone and behind a space; of more than a token only the last is kept from coming behind the others."""
    ask = dict(model=MODEL, prompt="the quick", max_tokens=24, temperature=0)
    extra = {"return_token_ids": True, "ignore_eos": True}

    def ids(**more):
        return client.completions.create(**ask, extra_body={**extra, **more}).choices[0].model_extra["token_ids"]
    usual, words = ids(), {}
    for i, token in enumerate(usual):
        word = server.request("/detokenize", {"model": MODEL, "tokens": [token]})[1]["prompt"]
        if word.strip() and ids_of(server, {"prompt": word.strip(), "add_special_tokens": False}) == [token]:
            words[word.strip()] = token
    assert words
    for word, token in list(words.items())[:2]:
        got = ids(bad_words=[word])
        assert token in usual and token not in got and len(got) == len(usual)
    assert ids(bad_words=[]) == usual and chat(client, extra_body={"bad_words": list(words)}).choices
    for wrong in ("fox", [3], [""], ["  "], ["a"] * 257):
        with pytest.raises(openai.BadRequestError) as e:
            ids(bad_words=wrong)
        assert e.value.param == "bad_words"


def test_only_allowed_tokens_come(client, server):
    ask = dict(model=MODEL, prompt="the quick", max_tokens=16, temperature=0)

    def ids(allowed, **more):
        extra = {"return_token_ids": True, "allowed_token_ids": allowed}
        return client.completions.create(**{**ask, **more}, extra_body=extra).choices[0].model_extra["token_ids"]
    usual = client.completions.create(**ask, extra_body={"return_token_ids": True}).choices[0].model_extra["token_ids"]
    allowed = [i for i in range(5, 12) if i not in usual]
    assert ids(usual) == usual and len(allowed) > 1
    assert set(ids(allowed, temperature=2, seed=1)) <= set(allowed) and len(ids(allowed)) == 16
    assert ids(allowed, logit_bias={str(allowed[1]): 100, str(usual[0]): 100}) == allowed[1:2] * 16
    for wrong in ([], 5, [-1], [10**9], ["a"], [1.5]):
        with pytest.raises(openai.BadRequestError) as e:
            ids(wrong)
        assert e.value.param == "allowed_token_ids"


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


def test_log_probs_of_prompts_are_those_of_the_formula(client, server, tiny_model):
    """Against a forward pass in numpy; as OpenAI's completions have them, whole and streamed, and as vLLM does."""
    ids = ids_of(server, {"prompt": "the quick brown fox and"})
    net = eagle_heads.model_of(tiny_model)
    logits = net.states(ids)[1] @ net.head.T
    want = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    bare = dict(model=MODEL, prompt=ids, temperature=0, max_tokens=3)
    (c,) = client.completions.create(echo=True, logprobs=2, **bare).choices
    lists = c.logprobs
    assert lists.token_logprobs[0] is None and lists.top_logprobs[0] is None and len(lists.tokens) == len(ids) + 3
    assert lists.token_logprobs[1:len(ids)] == pytest.approx([want[i][t] for i, t in enumerate(ids[1:])], abs=0.02)
    for row, got in zip(want, lists.top_logprobs[1:len(ids)]):
        assert sorted(got.values(), reverse=True)[0] == pytest.approx(row.max(), abs=0.02)
    assert lists.text_offset == sorted(lists.text_offset) and c.text[lists.text_offset[-1]:].startswith(lists.tokens[-1])
    chunks = [e.choices[0].logprobs for e in client.completions.create(echo=True, logprobs=2, stream=True, **bare) if e.choices[0].logprobs]
    assert [t for x in chunks for t in x.tokens] == lists.tokens
    assert [p for x in chunks for p in x.token_logprobs][1:] == pytest.approx(lists.token_logprobs[1:], abs=1e-3)
    only = client.completions.create(echo=True, logprobs=0, **dict(bare, max_tokens=0))
    assert only.choices[0].logprobs.token_logprobs == lists.token_logprobs[:len(ids)] and only.usage.completion_tokens == 0
    said = client.completions.create(extra_body={"prompt_logprobs": 1}, **bare).choices[0].model_extra["prompt_logprobs"]
    assert said[0] is None and len(said) == len(ids)
    for i, (token, alternatives) in enumerate(zip(ids[1:], said[1:])):
        own = alternatives[str(token)]
        assert own["logprob"] == pytest.approx(want[i][token], abs=0.02) and 1 <= own["rank"] <= want.shape[1]
        assert own["rank"] == 1 or min(a["rank"] for a in alternatives.values()) == 1
    talk = chat(client, max_tokens=2, extra_body={"prompt_logprobs": 0})
    assert len(talk.model_extra["prompt_logprobs"]) == talk.usage.prompt_tokens
    for more, field in (({"stream": True, "extra_body": {"prompt_logprobs": 1}}, "prompt_logprobs"), ({"extra_body": {"prompt_logprobs": 21}}, "prompt_logprobs"),
                        ({"max_tokens": 0}, "max_tokens")):
        with pytest.raises(openai.BadRequestError) as e:
            client.completions.create(**(bare | more))
        assert e.value.param == field


def test_prompts_are_cut_and_begin_as_asked(client, server):
    """vLLM's fields."""
    text, bare = "the quick brown fox and", dict(model=MODEL, temperature=0, max_tokens=2)
    ids = ids_of(server, {"prompt": text})
    without = ids_of(server, {"prompt": text, "add_special_tokens": False})
    assert ids == [*ids[:len(ids) - len(without)], *without] and len(without) < len(ids)

    def echoed(prompt, **more):
        (c,) = client.completions.create(prompt=prompt, echo=True, logprobs=0, extra_body={"return_tokens_as_token_ids": True, **more}, **bare).choices
        return [int(t.removeprefix("token_id:")) for t in c.logprobs.tokens[:-2]], c.text

    assert echoed(text)[0] == ids and echoed(text, add_special_tokens=False)[0] == without
    cut, said = echoed(text, truncate_prompt_tokens=4)
    assert cut == ids[-4:] and not said.startswith(text) and echoed(ids, truncate_prompt_tokens=4) == (cut, said)
    assert echoed(text, truncate_prompt_tokens=100)[0] == ids
    long = client.completions.create(prompt=ids[1:2] * 5000, extra_body={"truncate_prompt_tokens": -1}, **bare)
    assert 5000 > long.usage.prompt_tokens > 100 and long.usage.completion_tokens == 2
    n = chat(client, max_tokens=2).usage.prompt_tokens
    assert chat(client, max_tokens=2, extra_body={"add_special_tokens": True}).usage.prompt_tokens == n + len(ids) - len(without)
    assert chat(client, max_tokens=2, extra_body={"truncate_prompt_tokens": n - 2}).usage.prompt_tokens == n - 2
    with pytest.raises(openai.BadRequestError) as e:
        client.completions.create(prompt=text, extra_body={"truncate_prompt_tokens": 0}, **bare)
    assert e.value.param == "truncate_prompt_tokens"


def test_chat_log_probs(client):
    r = chat(client, logprobs=True, temperature=0)
    content = r.choices[0].logprobs.content
    assert content and all(t.logprob <= 0 and t.bytes for t in content)
    assert b"".join(bytes(t.bytes) for t in content).decode(errors="replace") .strip() \
        == r.choices[0].message.content.strip()
    streamed = [t for e in chat(client, logprobs=True, temperature=0, stream=True) for c in e.choices if c.logprobs
                for t in c.logprobs.content]
    assert [t.token for t in streamed] == [t.token for t in content]


@pytest.mark.parametrize("stream", [False, True])
def test_alternatives_to_tokens(client, stream):
    r = chat(client, logprobs=True, top_logprobs=4, temperature=0, max_tokens=6, stream=stream)
    content = [t for e in r for c in e.choices if c.logprobs for t in c.logprobs.content] if stream \
        else r.choices[0].logprobs.content
    for t in content:
        assert len(t.top_logprobs) == 4 and t.top_logprobs[0].logprob == pytest.approx(t.logprob, abs=1e-4)
        probs = [a.logprob for a in t.top_logprobs]
        assert probs == sorted(probs, reverse=True) and t.bytes in [a.bytes for a in t.top_logprobs]
    r = client.completions.create(model=MODEL, prompt="the", max_tokens=3, temperature=0, logprobs=2)
    assert [len(t) <= 2 for t in r.choices[0].logprobs.top_logprobs] == [True] * 3


@pytest.mark.parametrize("stream", [False, True])
def test_stop_strings_end_the_text_before_them(client, stream):
    whole = client.completions.create(model=MODEL, prompt="the", max_tokens=24, temperature=0).choices[0].text
    stop = whole[len(whole) // 2:][:3]
    want = whole[:whole.index(stop)]
    r = client.completions.create(model=MODEL, prompt="the", max_tokens=24, temperature=0, stop=["@@never@@", stop],
                                  stream=stream)
    if stream:
        events = list(r)
        assert "".join(e.choices[0].text for e in events) == want
        assert events[-1].choices[0].finish_reason == "stop"
    else:
        assert r.choices[0].text == want and r.choices[0].finish_reason == "stop"


def test_logit_bias_bans_and_forces(client, server):
    a, b = (ids_of(server, {"prompt": c, "add_special_tokens": False})[0] for c in "ab")
    for bias, want in [({a: 100, b: 90}, "aaaa"), ({a: -100, b: 90}, "bbbb")]:
        text = client.completions.create(model=MODEL, prompt="the", max_tokens=4, temperature=0,
                                         logit_bias={str(k): v for k, v in bias.items()}).choices[0].text
        assert text == want


def test_min_tokens_ignore_eos_and_max_completion_tokens(client):
    r = chat(client, max_tokens=40, temperature=0, extra_body={"ignore_eos": True})
    assert r.usage.completion_tokens == 40 and r.choices[0].finish_reason == "length"
    r = client.chat.completions.create(model=MODEL, messages=HELLO, max_completion_tokens=3,
                                       extra_body={"ignore_eos": True, "top_k": 5, "min_p": 0.01,
                                                   "repetition_penalty": 1.1, "min_tokens": 2, "priority": 1})
    assert r.usage.completion_tokens == 3


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


PERSON = {"type": "object", "properties": {
    "name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "minimum": 0, "maximum": 130},
    "tags": {"type": "array", "items": {"enum": ["a", "b", 3]}, "maxItems": 3}, "ok": {"type": "boolean"}},
    "required": ["name", "age", "ok"], "additionalProperties": False}


def check_person(text):
    p = json.loads(text)
    assert set(p) <= {"name", "age", "tags", "ok"} and {"name", "age", "ok"} <= set(p)
    assert isinstance(p["name"], str) and len(p["name"]) <= 8 and 0 <= p["age"] <= 130 and p["ok"] in (True, False)
    assert all(t in ("a", "b", 3) for t in p.get("tags", []))


@pytest.mark.parametrize("stream", [False, True])
def test_json_schema_binds_a_random_model(client, stream):
    fmt = {"type": "json_schema", "json_schema": {"name": "person", "strict": True, "schema": PERSON}}
    for seed in range(12):
        r = chat(client, response_format=fmt, seed=seed, temperature=1.5, max_tokens=440, stream=stream)
        if stream:
            text = "".join(e.choices[0].delta.content or "" for e in r)
        else:
            text = r.choices[0].message.content
            assert r.choices[0].finish_reason == "stop"
        check_person(text)


def random_schema(rng, depth=0):
    kinds = ["integer", "number", "string", "boolean", "null", "enum", "const"]
    kind = rng.choice(kinds + ["object", "array", "anyOf", "types"] * (2 if depth == 0 else depth < 3))
    if kind in ("integer", "number"):
        s = {"type": kind}
        value = (lambda: rng.randint(-300, 300)) if kind == "integer" else (
            lambda: rng.choice([rng.randint(-5, 5), round(rng.uniform(-2, 2), rng.randint(1, 7)), rng.uniform(-900, 900)]))
        low, high = sorted([value(), value()])
        if rng.random() < 0.7:
            s[rng.choice(["minimum", "exclusiveMinimum"])] = low - 2
        if rng.random() < 0.7:
            s[rng.choice(["maximum", "exclusiveMaximum"])] = high + 2
        if rng.random() < 0.2 and len(s) != 2:
            s["multipleOf"] = rng.choice([2, 3, 25])
        return s
    if kind == "string":
        return rng.choice([
            {"type": "string", "maxLength": rng.randint(1, 9)}, {"type": "string", "minLength": 2, "maxLength": 6},
            {"type": "string", "pattern": rng.choice(["^[a-z]{1,5}$", "^(ab|\\d)+x$", "^[^a]{2}$"])},
            {"type": "string", "format": rng.choice(["date", "time", "ipv4", "uuid", "date-time", "email", "ipv6", "uri"])}])
    if kind == "enum":
        s = {"enum": [1, -2.5, "x", "a \"q\"", None, True, [1, {"k": []}], "é"]}
        return rng.choice([s, dict(s, type=["string", "integer"]), dict(s, type="number", maximum=0)])
    if kind == "const":
        return {"const": rng.choice(["c", 3, {"a": [1.5]}, None])}
    if kind == "object":
        names = rng.sample(["id", "long_member_name", "näme", "a b", "x"], rng.randint(1, 4))
        return {"type": "object", "properties": {n: random_schema(rng, depth + 1) for n in names},
                "required": [n for n in names if rng.random() < 0.6],
                "additionalProperties": rng.choice([False, True])}
    if kind == "array":
        if rng.random() < 0.3:
            return {"type": "array", "prefixItems": [random_schema(rng, depth + 1) for _ in range(2)], "items": False}
        low = rng.randint(0, 2)
        return {"type": "array", "items": random_schema(rng, depth + 1), "minItems": low, "maxItems": low + 1}
    if kind == "anyOf":
        return {"anyOf": [random_schema(rng, depth + 1) for _ in range(2)]}
    return {"type": rng.choice([["boolean", "null"], ["integer", "null"], ["boolean", "number"]]), "maximum": 40}


def test_answers_fit_random_schemas(server):
    """Every answer of a random model against an independent validator; refusals must say what is not kept."""
    seed = int(os.environ.get("NEREID_SEED", 20260722))
    rng, n_refused, n_cut = random.Random(seed), 0, 0
    for i in range(80):
        schema = random_schema(rng)
        jsonschema.Draft202012Validator.check_schema(schema)
        status, answer = server.request("/v1/completions", {
            "model": MODEL, "prompt": "the", "n": 2, "max_tokens": 400, "temperature": 1.3, "seed": i, "guided_json": schema})
        if status == 400:
            assert "schema: " in answer["error"]["message"], answer
            n_refused += 1
            continue
        assert status == 200, answer
        for choice in answer["choices"]:
            if choice["finish_reason"] == "stop":
                value = json.loads(choice["text"])
                jsonschema.validate(value, schema, cls=jsonschema.Draft202012Validator,
                                    format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER)
            else:
                n_cut += 1
    assert n_refused <= 8 and n_cut <= 8, (seed, n_refused, n_cut)


def test_several_guided_answers_beside_free_ones(server):
    async def main():
        async with openai.AsyncOpenAI(base_url=server.url("/v1"), api_key="none") as c:
            async def one(i):
                guide = [{"guided_json": PERSON}, {"guided_regex": "[a-f]{3}-[0-9]{2,4}"}, {}][i % 3]
                r = await c.completions.create(model=MODEL, prompt="the", max_tokens=440 if i % 3 < 2 else 20, n=2,
                                               seed=i, temperature=1.2, extra_body=guide)
                return i, [x.text for x in r.choices]
            return await asyncio.gather(*(one(i) for i in range(24)))
    for i, texts in asyncio.run(main()):
        for text in texts:
            if i % 3 == 0:
                check_person(text)
            elif i % 3 == 1:
                assert re.fullmatch("[a-f]{3}-[0-9]{2,4}", text)


def test_forced_text_comes_in_one_step_and_leads_to_the_same_choices(server):
    """What is forced is not chosen token by token; every choice behind it is the one that its tokens as a
    prompt lead to, so that they were computed as a prompt is."""
    literal = lambda s: ["\\" + c if not c.isalnum() and c != " " else c for c in s]
    parts = (literal("the quick brown fox jumps over: ") + ["[a-z]"] * 6 + literal(", the lazy dog sleeps for ") +
             ["[0-9]"] * 3 + literal(" hours"))
    prompt = ids_of(server, {"prompt": "the"})

    def ask(ids, n_done):
        events = server.stream({
            "input_ids": ids, "input_lengths": len(ids), "request_output_len": 100, "end_id": 1, "streaming": True,
            "exclude_input_in_output": True, "guided_decoding_guide_type": "regex",
            "guided_decoding_guide": "".join(parts[n_done:])}, "tensorrt_llm")
        out = [e["output_ids"] for e in events]
        return [ids if isinstance(ids, list) else [ids] for ids in out if ids != []]

    def text_of(ids):
        return server.request("/detokenize", {"model": MODEL, "tokens": ids})[1]["prompt"]

    steps = ask(prompt, 0)
    ids = sum(steps, [])
    assert re.fullmatch("".join(parts), text_of(ids))
    assert max(len(s) for s in steps) > 4 and len(steps) < 0.7 * len(ids), steps
    for i in range(1, len(steps)):
        done = sum(steps[:i], [])
        assert ask(prompt + done, len(text_of(done)))[0][0] == steps[i][0], (i, steps)


def test_stops_and_limits_within_forced_text(client):
    guide = {"guided_regex": "the quick brown fox jumps over the lazy dog and [0-9]{2} others"}
    whole = chat(client, max_tokens=100, temperature=0, extra_body=guide)
    assert whole.choices[0].finish_reason == "stop"
    for stream in False, True:
        r = chat(client, max_tokens=100, temperature=0, stop=["brown", "dog"], extra_body=guide, stream=stream)
        if stream:
            events = list(r)
            assert "".join(e.choices[0].delta.content or "" for e in events) == "the quick "
            assert events[-1].choices[0].finish_reason == "stop"
        else:
            assert r.choices[0].message.content == "the quick " and r.choices[0].finish_reason == "stop"
            assert r.usage.completion_tokens <= whole.usage.completion_tokens
    for n in 1, 2, 5, 9:
        r = chat(client, max_tokens=n, temperature=0, extra_body=guide)
        assert r.usage.completion_tokens == n and r.choices[0].finish_reason == "length"
        assert whole.choices[0].message.content.startswith(r.choices[0].message.content)
    r = chat(client, max_tokens=100, n=3, temperature=1.3, seed=5, presence_penalty=1, frequency_penalty=1,
             extra_body=guide)
    for c in r.choices:
        assert re.fullmatch(guide["guided_regex"], c.message.content) and c.finish_reason == "stop"


def test_with_log_probabilities_forced_text_is_chosen_token_by_token(client):
    guide = {"guided_regex": "the quick brown fox [ab]"}
    plain = chat(client, max_tokens=60, temperature=0, extra_body=guide)
    told = chat(client, max_tokens=60, temperature=0, logprobs=True, top_logprobs=2, extra_body=guide)
    for r in plain, told:
        assert re.fullmatch("the quick brown fox [ab]", r.choices[0].message.content)
    content = told.choices[0].logprobs.content
    assert "".join(t.token for t in content) == told.choices[0].message.content
    assert all(t.logprob <= 0 and 1 <= len(t.top_logprobs) <= 2 for t in content), content
    assert any(t.logprob < -0.1 for t in content)  # among what the guide allows: a choice of how to cut it


def test_choices_grammars_and_any_object(client):
    words = ['yes "quoted"', "no\\", "maybe\n", "Größe"]
    for seed in range(6):
        r = chat(client, seed=seed, max_tokens=60, extra_body={"guided_choice": words})
        assert r.choices[0].message.content in words
        grammar = 'root ::= sum\nsum ::= [1-9] ("+" [1-9]){1,3} | "(" sum ")"'
        r = chat(client, seed=seed, max_tokens=100, extra_body={"guided_grammar": grammar})
        if r.choices[0].finish_reason == "stop":
            assert re.fullmatch(r"\(*[1-9](\+[1-9]){1,3}\)*", r.choices[0].message.content)
    r = chat(client, seed=1, max_tokens=400, response_format={"type": "json_object"},
             logit_bias={str(t): 50 for t in (4 + 125, 4 + 34)})  # closing braces and quotes are likely
    assert r.choices[0].message.content.startswith("{")
    if r.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(r.choices[0].message.content), dict)


@pytest.mark.parametrize("guide, part", [
    ({"guided_regex": "a("}, "')' is missing"), ({"guided_regex": "(?=x)"}, "look around"),
    ({"guided_json": {"not": {}}}, "'not'"), ({"guided_grammar": "root ::= y"}, "not defined"),
    ({"guided_choice": []}, "guided_choice"), ({"guided_regex": "a", "guided_choice": ["b"]}, "already bound"),
    ({"response_format": {"type": "poem"}}, "response_format"),
])
def test_guides_that_are_refused(server, guide, part):
    status, answer = server.request("/v1/chat/completions", {"model": MODEL, "messages": HELLO, **guide})
    assert status == 400 and part in answer["error"]["message"], answer


def test_guides_through_v2(server):
    ids = ids_of(server, {"prompt": "the"})
    status, answer = server.generate({
        "input_ids": ids, "input_lengths": len(ids), "request_output_len": 20, "end_id": 1,
        "exclude_input_in_output": True, "guided_decoding_guide_type": "regex",
        "guided_decoding_guide": "[0-9]{4}x"}, "tensorrt_llm")
    assert status == 200, answer
    text = server.request("/detokenize", {"model": MODEL, "tokens": answer["output_ids"]})[1]["prompt"]
    assert re.fullmatch("[0-9]{4}x", text)


@pytest.fixture(scope="module")
def tool_server(tiny_model, cache, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tools") / "model"
    shutil.copytree(tiny_model, folder)
    (folder / "chat_template.jinja").write_text(
        "{{ bos_token }}{% for t in tools or [] %}{{ t.function.name }} {% endfor %}"
        "{% for m in messages %}{{ '<|' ~ m.role ~ '|>' ~ m.content }}"
        "{% for c in m.tool_calls or [] %}{{ c.function | tojson }}{% endfor %}{% endfor %}<|assistant|>")
    s = Server(folder, cache)
    try:
        yield s.wait_ready()
    finally:
        assert s.stop() == 0


CLOCK = {"type": "function", "function": {"name": "clock", "parameters": {
    "type": "object", "properties": {"zone": {"$ref": "#/$defs/zone"}}, "required": ["zone"],
    "$defs": {"zone": {"enum": ["UTC", "CET"]}}}}}
PLACE = {"type": "function", "function": {"name": "get_weather", "parameters": {
    "type": "object", "properties": {"place": {"type": "string", "maxLength": 6}}, "required": ["place"]}}}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "clock"}}])
def test_calls_that_must_come(tool_server, choice, stream):
    client = openai.OpenAI(base_url=tool_server.url("/v1"), api_key="none", max_retries=0)
    names = set()
    for seed in range(8):
        r = chat(client, tools=[CLOCK, PLACE], tool_choice=choice, seed=seed, temperature=1.5, max_tokens=300, stream=stream)
        if stream:
            deltas = [e.choices[0] for e in r]
            calls = [c for d in deltas for c in d.delta.tool_calls or []]
            assert deltas[-1].finish_reason == "tool_calls" and not any(d.delta.content for d in deltas)
        else:
            calls = r.choices[0].message.tool_calls
            assert r.choices[0].finish_reason == "tool_calls" and r.choices[0].message.content is None
        (call,) = calls
        names.add(call.function.name)
        arguments = json.loads(call.function.arguments)
        assert arguments["zone"] in ("UTC", "CET") if call.function.name == "clock" else len(arguments["place"]) <= 6
    assert names == {"clock"} if isinstance(choice, dict) else names <= {"clock", "get_weather"}


def test_a_conversation_with_calls_is_rendered(tool_server):
    client = openai.OpenAI(base_url=tool_server.url("/v1"), api_key="none", max_retries=0)
    messages = [*HELLO, {"role": "assistant", "tool_calls": [{"id": "a", "type": "function", "function": {
        "name": "clock", "arguments": '{"zone": "UTC"}'}}]}, {"role": "tool", "tool_call_id": "a", "content": "12:00"}]
    assert chat(client, messages, tools=[CLOCK], tool_choice="none").usage.prompt_tokens > 20
    with pytest.raises(openai.BadRequestError) as e:
        chat(client, tools=[CLOCK], tool_choice={"type": "function", "function": {"name": "nothing"}})
    assert "nothing" in e.value.message


def test_tools_need_a_template_that_takes_them(client):
    with pytest.raises(openai.BadRequestError) as e:
        chat(client, tools=[CLOCK])
    assert "does not take tools" in e.value.message


def test_a_long_prompt_does_not_hold_up_other_requests(tiny_model, cache):
    """With one event loop: it answers others while a worker tokenizes."""
    s = Server(tiny_model, cache, "--http-thread-count=1")
    text = "the quick brown fox jumps over the lazy dog " * 300000
    took = {}

    def ask():
        begin = time.monotonic()
        took["status"], took["answer"] = s.request("/tokenize", {"model": MODEL, "prompt": text}, timeout=120)
        took["long"] = time.monotonic() - begin

    def workers():
        return s.request("/ui/stats")[1]["workers"]

    try:
        s.wait_ready()
        long = threading.Thread(target=ask)
        long.start()
        assert wait_until(lambda: workers()["running"] == 1, 60)
        begin = time.monotonic()
        ids = ids_of(s, {"prompt": "the quick brown fox"})
        short = time.monotonic() - begin
        assert long.is_alive(), "the long text was tokenized before the short one was answered"
        long.join()
        assert took["status"] == 200 and took["answer"]["count"] > 100 * len(ids)
        assert short < took["long"] / 2, (short, took["long"])
        assert workers()["running"] == 0 and workers()["done"] >= 1
    finally:
        assert s.stop() == 0


def test_a_client_that_leaves_while_a_worker_reads_leaves_nothing(tiny_model, cache):
    s = Server(tiny_model, cache, "--http-thread-count=1")
    body = json.dumps({"model": MODEL, "prompt": "the quick brown fox " * 200000}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    try:
        s.wait_ready()
        for _ in range(6):
            c = socket.create_connection(("127.0.0.1", s.http))
            c.sendall(head + body)
            c.close()
        assert wait_until(lambda: (w := s.request("/ui/stats")[1]["workers"])["running"] == w["waiting"] == 0, 120)
        assert len(ids_of(s, {"prompt": "the quick brown fox"})) > 0
    finally:
        assert s.stop() == 0


def test_tokenize_and_back(server):
    ids = ids_of(server, {"prompt": "the quick brown fox", "add_special_tokens": False})
    status, answer = server.request("/detokenize", {"model": MODEL, "tokens": ids})
    assert status == 200 and answer["prompt"].strip() == "the quick brown fox"
    assert server.request("/detokenize", {"model": MODEL, "tokens": [-1]})[0] == 400


def test_clients_that_go_away_stop_the_work(client, server):
    def outputs(kind):
        return server.metric(f"nv_llm_output_token_len_{kind}", model="tensorrt_llm")
    done, tokens = outputs("count"), outputs("sum")
    streams = [chat(client, max_tokens=100000, stream=True, n=4, extra_body={"ignore_eos": True}) for _ in range(4)]
    for s in streams:
        next(iter(s))
        s.close()
    assert wait_until(lambda: outputs("count") == done + 16)
    assert outputs("sum") - tokens < 16 * 400  # each would have gone on to almost 500


def test_async_and_many_at_once(server):
    async def main():
        async with openai.AsyncOpenAI(base_url=server.url("/v1"), api_key="none") as c:
            async def one(i):
                stream = await c.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=16, seed=i % 4,
                                                         stream=True)
                return "".join([e.choices[0].delta.content or "" async for e in stream])
            return await asyncio.gather(*(one(i) for i in range(32)))
    texts = asyncio.run(main())
    assert all(texts[i] == texts[i % 4] for i in range(32))


def test_keys_rate_limit_and_origins(tiny_model, cache, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("# of the team\nsecond-key\n")
    s = Server(tiny_model, cache, "--api-key=first-key", f"--api-key-file={keys}", "--openai-rate-limit=3",
               "--cors-origin=https://page.example")
    try:
        s.wait_ready()
        for key in ["", "first-ke", "first-key1", "wrong"]:
            with pytest.raises(openai.AuthenticationError):
                openai.OpenAI(base_url=s.url("/v1"), api_key=key or "x", max_retries=0).models.list()
        assert s.request("/v1/models")[0] == 401
        assert s.request("/v2/health/ready")[0] == 200
        second = openai.OpenAI(base_url=s.url("/v1"), api_key="second-key", max_retries=0)
        for _ in range(3):
            chat(second, max_tokens=1)
        with pytest.raises(openai.RateLimitError) as e:
            chat(second, max_tokens=1)
        assert int(e.value.response.headers["Retry-After"]) > 0
        chat(openai.OpenAI(base_url=s.url("/v1"), api_key="first-key", max_retries=0), max_tokens=1)
        c = http.client.HTTPConnection("127.0.0.1", s.http, timeout=30)
        for origin, allowed in [("https://page.example", "https://page.example"), ("https://other.example", None)]:
            c.request("OPTIONS", "/v1/chat/completions", headers={"Origin": origin})
            r = c.getresponse()
            assert r.status == 204 and r.headers["Access-Control-Allow-Origin"] == allowed
            r.read()
    finally:
        assert s.stop() == 0


def test_a_key_has_so_many_tokens_and_answers_at_once(tiny_model, cache):
    s = Server(tiny_model, cache, "--api-key=a", "--api-key=b", "--openai-max-concurrent=1", "--openai-token-limit=2")
    try:
        s.wait_ready()
        first, second = (openai.OpenAI(base_url=s.url("/v1"), api_key=k, max_retries=0) for k in "ab")

        def refused(client):
            with pytest.raises(openai.RateLimitError) as e:
                chat(client, max_tokens=1)
            assert int(e.value.response.headers["Retry-After"]) > 0
            return e.value.message

        stream = chat(first, max_tokens=100000, stream=True, extra_body={"ignore_eos": True})
        next(iter(stream))
        assert "requests of this key at once" in refused(first)
        chat(second, max_tokens=1)  # with its prompt more than a minute's tokens
        assert "tokens for this key" in refused(second)
        stream.close()
        assert wait_until(lambda: "tokens for this key" in refused(first))  # its place is free, its tokens are used
    finally:
        assert s.stop() == 0


@pytest.mark.parametrize("beside", [True, False])
def test_a_port_of_their_own(tiny_model, cache, beside):
    (port,) = free_ports(1)
    s = Server(tiny_model, cache, f"--openai-port={port}", "--api-key=k", f"--allow-http={str(beside).lower()}")
    own = openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="k", max_retries=0)
    try:
        if beside:
            s.wait_ready()
        assert wait_until(lambda: "Started OpenAI endpoints" in s.log_text())
        whole = chat(own, temperature=0).choices[0].message.content
        assert "".join(e.choices[0].delta.content or "" for e in chat(own, temperature=0, stream=True)) == whole
        if beside:
            there = openai.OpenAI(base_url=s.url("/v1"), api_key="k", max_retries=0)
            assert chat(there, temperature=0).choices[0].message.content == whole
        c = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        for path, status in [("/v2/health/ready", 404), ("/", 404), ("/v1/models", 401), ("/openapi.json", 401)]:
            c.request("GET", path)
            r = c.getresponse()
            r.read()
            assert r.status == status, path
        with pytest.raises(OSError) if not beside else contextlib.nullcontext():
            s.request("/v2/health/ready")
    finally:
        assert s.stop() == 0


def test_the_endpoints_can_be_turned_off(tiny_model, cache):
    s = Server(tiny_model, cache, "--allow-openai=false")
    try:
        s.wait_ready()
        assert s.request("/v1/models")[0] == 404
    finally:
        s.stop()


# ---- embeddings ----


def states_of(tiny_model, ids, pooling):
    """What the model's float32 arithmetic gives, by numpy: the last layer's normed states, pooled."""
    import numpy as np
    config = json.loads((tiny_model / "config.json").read_text())
    w = read_safetensors(tiny_model / "model.safetensors")
    heads, kv = config["num_attention_heads"], config["num_key_value_heads"]
    dim = config.get("head_dim") or config["hidden_size"] // heads
    theta = config.get("rope_theta") or config["rope_parameters"]["rope_theta"]
    n = len(ids)
    turn = np.arange(n)[:, None] * theta ** (-np.arange(0, dim, 2) / dim)[None]
    cos, sin = np.cos(turn)[:, None], np.sin(turn)[:, None]

    def norm(x, name):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + config["rms_norm_eps"]) * w[name]

    def rotate(x):
        a, b = x[..., :dim // 2], x[..., dim // 2:]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)

    x = w["model.embed_tokens.weight"][ids]
    for i in range(config["num_hidden_layers"]):
        p = f"model.layers.{i}."
        h = norm(x, p + "input_layernorm.weight")
        q, k, v = ((h @ w[f"{p}self_attn.{c}_proj.weight"].T).reshape(n, -1, dim) for c in "qkv")
        q, k = rotate(q), np.repeat(rotate(k), heads // kv, 1)
        score = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(dim) + np.triu(np.full((n, n), -1e30), 1)
        score = np.exp(score - score.max(-1, keepdims=True))
        score /= score.sum(-1, keepdims=True)
        x = x + np.einsum("hqk,khd->qhd", score, np.repeat(v, heads // kv, 1)).reshape(n, -1) \
            @ w[p + "self_attn.o_proj.weight"].T
        h = norm(x, p + "post_attention_layernorm.weight")
        gate, up = (h @ w[f"{p}mlp.{c}_proj.weight"].T for c in ("gate", "up"))
        x = x + (gate / (1 + np.exp(-gate)) * up) @ w[p + "mlp.down_proj.weight"].T
    x = norm(x, "model.norm.weight")
    v = x[-1] if pooling == "last" else x.mean(0)
    return v / np.linalg.norm(v)


def read_safetensors(path):
    import numpy as np
    raw = path.read_bytes()
    n = int.from_bytes(raw[:8], "little")
    out = {}
    for name, t in json.loads(raw[8:8 + n]).items():
        if name != "__metadata__":
            a, b = t["data_offsets"]
            part = raw[8 + n + a:8 + n + b]
            if t["dtype"] == "BF16":
                v = (np.frombuffer(part, "<u2").astype("<u4") << 16).view("<f4")
            else:
                v = np.frombuffer(part, {"F32": "<f4", "F16": "<f2"}[t["dtype"]])
            out[name] = v.astype(float).reshape(t["shape"])
    return out


@pytest.fixture(scope="module")
def mean_server(tiny_model, cache):
    s = Server(tiny_model, cache, "--set", "embedding_pooling:mean", "--build", "--dtype=float32",
               "--build", "--kv_cache_dtype=float32")
    try:
        yield s.wait_ready()
    finally:
        s.stop()


def embed(client, text, **more):
    return client.embeddings.create(model=MODEL, input=text, **more)


def test_embeddings_are_the_models_states(server, mean_server, tiny_model):
    import numpy as np
    texts = ["the quick brown fox", "jumps", "over the lazy dog " * 20]
    for s, pooling, tolerance in ((server, "last", 2e-2), (mean_server, "mean", 1e-4)):
        c = openai.OpenAI(base_url=s.url("/v1"), api_key="none", max_retries=0)
        ids = [ids_of(s, {"prompt": t}) for t in texts]
        r = embed(c, texts)
        assert [d.index for d in r.data] == [0, 1, 2] and r.model == MODEL
        assert r.usage.prompt_tokens == r.usage.total_tokens == sum(map(len, ids))
        for d, i in zip(r.data, ids):
            want = states_of(tiny_model, i, pooling)
            got = np.array(d.embedding, dtype=float)
            assert abs(np.linalg.norm(got) - 1) < 1e-5
            assert np.abs(got - want).max() < tolerance and got @ want > 0.999


def test_embeddings_of_ids_and_in_both_encodings(client, server):
    import numpy as np
    text = "the quick brown fox"
    ids = ids_of(server, {"prompt": text})
    ways = [embed(client, text), embed(client, text, encoding_format="float"), embed(client, ids),
            embed(client, [text]), embed(client, [ids, ids])]
    first = np.array(ways[0].data[0].embedding)
    for r in ways:
        for d in r.data:
            assert np.abs(np.array(d.embedding) - first).max() < 1e-3
    same = embed(client, text, dimensions=len(first))
    assert len(same.data[0].embedding) == len(first)
    many = embed(client, ["the quick", "brown"] * 100)
    assert [d.index for d in many.data] == list(range(200))
    assert np.abs(np.array(many.data[0].embedding) - np.array(many.data[198].embedding)).max() < 1e-3


def test_embeddings_beside_chats(client, server):
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        chats = [pool.submit(chat, client, seed=5) for _ in range(8)]
        vectors = [pool.submit(embed, client, "the quick brown fox") for _ in range(16)]
        assert len({c.result().choices[0].message.content for c in chats}) == 1
        assert all(v.result().usage.total_tokens > 0 for v in vectors)


@pytest.mark.parametrize("change, part", [
    ({"input": None}, "input"), ({"input": []}, "input"), ({"input": [[]]}, "input"),
    ({"input": [1, "a"]}, "input"), ({"input": {"a": 1}}, "input"), ({"input": [-1]}, "input"),
    ({"input": ["a"] * 2049}, "2048"), ({"dimensions": 3}, "dimensions"), ({"dimensions": 0}, "dimensions"),
    ({"encoding_format": "hex"}, "encoding_format"), ({"model": 3}, "model"),
    ({"input": "fox " * 5000}, "exceeds maximum input length"),
])
def test_embeddings_refused(server, change, part):
    body = dict({"model": MODEL, "input": "fox"}, **change)
    status, answer = server.request("/v1/embeddings", {k: v for k, v in body.items() if v is not None})
    assert status == 400 and part in answer["error"]["message"], answer
    assert server.request("/v1/embeddings", {"model": MODEL, "input": "fox"})[0] == 200


def test_a_model_may_give_no_embeddings(tiny_model, tmp_path):
    s = Server(tiny_model, tmp_path, "--set", "embedding_pooling:none")
    try:
        s.wait_ready()
        status, answer = s.request("/v1/embeddings", {"model": MODEL, "input": "fox"})
        assert status == 400 and "gives no embeddings" in answer["error"]["message"]
        assert s.request("/v1/completions", {"model": MODEL, "prompt": "fox", "max_tokens": 2})[0] == 200
    finally:
        s.stop()
