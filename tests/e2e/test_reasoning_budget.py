# SPDX-License-Identifier: Apache-2.0
"""An answer reasons no longer than it may, through every API. The random model never ends its reasoning by itself."""
import json
import shutil

import httpx
import pytest

from llm_server import Server

MODEL = "model"
HELLO = [{"role": "user", "content": "the quick brown fox"}]
TEMPLATE = ("{{ bos_token }}{% for m in messages %}{{ '<|' ~ m.role ~ '|>' ~ m.content }}{% endfor %}"
            "<|assistant|>{% if enable_thinking is not defined or enable_thinking %}<think>{% endif %}")
GREEDY = {"temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def server(tiny_model, cache, tmp_path_factory):
    folder = tmp_path_factory.mktemp("budget") / MODEL
    shutil.copytree(tiny_model, folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    s = Server(folder, cache)
    try:
        yield s.wait_ready()
    finally:
        assert s.stop() == 0, s.log_text()[-4000:]


def post(server, path, **body):
    r = httpx.post(server.url(path), json={"model": MODEL, **body}, timeout=60)
    return r.status_code, r.json()


def chat(server, max_tokens=40, **more):
    status, answer = post(server, "/v1/chat/completions", messages=HELLO, max_tokens=max_tokens, **GREEDY, **more)
    assert status == 200, answer
    return answer["choices"][0]


def said(choice):
    m = choice["message"]
    return m.get("reasoning_content") or "", m["content"] or ""


def events(server, path, **body):
    with httpx.stream("POST", server.url(path), json={"model": MODEL, "stream": True, **body}, timeout=60) as r:
        assert r.status_code == 200
        for line in r.iter_lines():
            line = line.removeprefix("data: ")
            if line.startswith("{"):
                yield json.loads(line)


def test_reasoning_ends_when_its_budget_is_used_up(server):
    free, rest = said(chat(server))
    assert free and not rest
    cut, content = said(chat(server, thinking_token_budget=9))
    assert content and "</think>" not in content and free.startswith(cut) and 0 < len(cut) < len(free)
    longer = said(chat(server, thinking_token_budget=18))[0]
    assert longer.startswith(cut) and len(longer) > len(cut)


def test_only_a_guide_that_binds_the_beginning_leaves_no_reasoning(server):
    tag = {"type": "tag", "begin": "<f>", "content": {"type": "const_string", "value": "x"}, "end": "</f>"}
    tags = {"type": "triggered_tags", "triggers": ["<f"], "tags": [tag]}

    def ask(form, **more):
        return said(chat(server, response_format={"type": "structural_tag", **form}, **more))
    for form in ({"format": tags}, {"structures": [{"begin": "<f>", "schema": {}, "end": ""}], "triggers": ["<f"]}):
        thought, content = ask(form)
        assert thought and not content
        thought, content = ask(form, thinking_token_budget=0)
        assert content and not thought
    for form in ({"format": tag}, {"format": {**tags, "at_least_one": True}}):
        thought, content = ask(form)
        assert content.startswith("<f>x</f>") and not thought


@pytest.mark.parametrize("fields", [
    {"thinking_budget": 9}, {"reasoning_budget_tokens": 9}, {"reasoning": {"max_tokens": 9}},
    {"thinking": {"type": "enabled", "budget_tokens": 9}}, {"chat_template_kwargs": {"thinking_budget": 9}}])
def test_every_name_of_the_field_means_the_same(server, fields):
    assert said(chat(server, **fields)) == said(chat(server, thinking_token_budget=9))


@pytest.mark.parametrize("fields", [{"thinking_token_budget": 0}, {"reasoning_effort": "none"}, {"reasoning": {"effort": "none"}},
                                    {"reasoning": {"enabled": False}}, {"thinking": {"type": "disabled"}}])
def test_without_a_budget_there_is_no_reasoning(server, fields):
    thought, content = said(chat(server, **fields))
    assert not thought and content


def test_a_stream_is_cut_where_the_whole_answer_is(server):
    whole = said(chat(server, thinking_token_budget=9))
    deltas = [e["choices"][0]["delta"] for e in events(server, "/v1/chat/completions", messages=HELLO, max_tokens=40,
                                                       thinking_token_budget=9, **GREEDY) if e["choices"]]
    assert ("".join(d.get("reasoning_content") or "" for d in deltas), "".join(d.get("content") or "" for d in deltas)) == whole


def test_log_probabilities_say_that_the_mark_was_certain(server):
    choice = chat(server, thinking_token_budget=9, logprobs=True, top_logprobs=2)
    tokens = choice["logprobs"]["content"]
    assert all(t["logprob"] < 0 for t in tokens[:9]) and tokens[9]["logprob"] == 0
    assert [t["token"] for t in tokens[9]["top_logprobs"]] == [tokens[9]["token"]]


def test_messages_responses_and_ollama_keep_to_it_too(server):
    whole = said(chat(server, thinking_token_budget=9))
    status, m = post(server, "/v1/messages", messages=HELLO, max_tokens=40, thinking={"type": "enabled", "budget_tokens": 9}, **GREEDY)
    assert status == 200 and [b["type"] for b in m["content"]] == ["thinking", "text"]
    assert (m["content"][0]["thinking"], m["content"][1]["text"]) == whole
    status, r = post(server, "/v1/responses", input=HELLO, max_output_tokens=40, reasoning={"max_tokens": 9}, **GREEDY)
    assert status == 200 and [i["type"] for i in r["output"]] == ["reasoning", "message"]
    assert (r["output"][0]["content"][0]["text"], r["output"][1]["content"][0]["text"]) == whole
    status, o = post(server, "/api/chat", messages=HELLO, stream=False, thinking_token_budget=9, ignore_eos=True,
                     options={"temperature": 0, "num_predict": 40})
    assert status == 200 and (o["message"]["thinking"], o["message"]["content"]) == whole


@pytest.mark.parametrize("path,body,field", [
    ("/v1/chat/completions", {"thinking_token_budget": -2}, "thinking_token_budget"),
    ("/v1/chat/completions", {"thinking_token_budget": "9"}, "thinking_token_budget"),
    ("/v1/chat/completions", {"reasoning": 3}, "reasoning"),
    ("/v1/messages", {"thinking": {"type": "enabled", "budget_tokens": 1.5}}, "thinking.budget_tokens")])
def test_what_is_no_budget_is_refused_by_name(server, path, body, field):
    status, answer = post(server, path, messages=HELLO, max_tokens=4, **body)
    assert status == 400 and field in answer["error"]["message"]


def test_a_rule_of_its_own_through_v2(server):
    """The parameter that front ends send: what is wrong in it is told."""
    for text, says in (("[]", "budget"), ('{"budget":3}', "begin"), ('{"budget":3,"open":true,"end":[5],"close":[6]}', "close"),
                       ('{"budget":3,"open":true,"end":[5000000],"close":[5000000]}', "expected 0 to")):
        r = httpx.post(server.url("/v2/models/ensemble/generate"), timeout=60,
                       json={"text_input": "hi", "max_tokens": 4, "parameters": {"reasoning": text}})
        assert r.status_code == 400 and says in r.text, r.text
