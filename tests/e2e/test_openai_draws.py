# SPDX-License-Identifier: Apache-2.0
"""/v1: how tokens are drawn, refused, allowed and told, with log probabilities; the same text on every way."""
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import openai
import pytest

from llm_server import BIN
from openai_client import HELLO, MODEL, chat, client, ids_of  # noqa: F401 (client is a fixture)

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import eagle_heads  # noqa: E402

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
