# SPDX-License-Identifier: Apache-2.0
"""Anthropic's /v1/messages, driven by Anthropic's own Python package, over a small random model."""
import json
import shutil

import anthropic
import httpx
import openai
import pytest

from llm_server import Server

MODEL = "ensemble"
HELLO = [{"role": "user", "content": "the quick brown fox"}]
CLOCK = {"name": "clock", "description": "The time", "input_schema": {
    "type": "object", "properties": {"zone": {"enum": ["UTC", "CET"]}}, "required": ["zone"]}}
PLACE = {"name": "get_weather", "input_schema": {
    "type": "object", "properties": {"place": {"type": "string", "maxLength": 6}}, "required": ["place"]}}
# What it writes of a message can be seen in the number of tokens, and by continuing the text.
TEMPLATE = ("{{ bos_token }}{% for t in tools or [] %}{{ t.function.name }} {% endfor %}"
            "{% for m in messages %}{{ '<|' ~ m.role ~ '|>' ~ m.content }}"
            "{% if m.reasoning_content %}({{ m.reasoning_content }}){% endif %}"
            "{% for c in m.tool_calls or [] %}{{ c.function | tojson }}{% endfor %}{% endfor %}"
            "{% if add_generation_prompt %}<|assistant|>{% if enable_thinking %}<think>{% endif %}{% endif %}")
KEY = "secret-key"


@pytest.fixture(scope="module")
def server(tiny_model, cache, tmp_path_factory):
    """With a template that takes tools and thinks, and with a key."""
    folder = tmp_path_factory.mktemp("messages") / "model"
    shutil.copytree(tiny_model, folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    s = Server(folder, cache, f"--api-key={KEY}", "--strict-model-names=true")
    try:
        yield s.wait_ready()
    finally:
        assert s.stop() == 0, s.log_text()[-4000:]


@pytest.fixture(scope="module")
def client(server):
    return anthropic.Anthropic(base_url=server.url(""), api_key=KEY, max_retries=0)


@pytest.fixture(scope="module")
def chat(server):
    """The same conversation through the other API."""
    client = openai.OpenAI(base_url=server.url("/v1"), api_key=KEY, max_retries=0)
    return lambda messages, **more: client.chat.completions.create(model=MODEL, messages=messages, **more)


def body_of(messages=HELLO, max_tokens=12, **more):
    """Arguments of the package, which has no name for the fields of sampling."""
    bare = {k: more.pop(k) for k in ("temperature", "seed", "ignore_eos") if k in more}
    return {"model": MODEL, "messages": messages, "max_tokens": max_tokens, "extra_body": bare, **more}


def ask(client, messages=HELLO, stream=False, **more):
    """The message, also where it comes as a stream."""
    if not stream:
        return client.messages.create(**body_of(messages, **more))
    with client.messages.stream(**body_of(messages, **more)) as s:
        return s.get_final_message()


def count(client, messages=HELLO, **more):
    return client.messages.count_tokens(model=MODEL, messages=messages, **more).input_tokens


def post(server, body, path="/v1/messages", key=KEY):
    r = httpx.post(server.url(path), content=body if isinstance(body, bytes) else json.dumps(body),
                   headers={"x-api-key": key} if key else {}, timeout=60)
    return r.status_code, r.json()


def test_an_answer_is_that_of_the_chat(client, chat):
    r = ask(client, temperature=0, system="kind")
    same = chat([{"role": "system", "content": "kind"}, *HELLO], max_tokens=12, temperature=0)
    assert r.id.startswith("msg_") and r.type == "message" and r.role == "assistant" and r.model == MODEL
    (block,) = r.content
    assert block.type == "text" and block.text == same.choices[0].message.content
    assert r.stop_reason == {"length": "max_tokens", "stop": "end_turn"}[same.choices[0].finish_reason]
    assert r.usage.input_tokens + r.usage.cache_read_input_tokens == same.usage.prompt_tokens
    assert r.usage.output_tokens == same.usage.completion_tokens
    assert count(client, system="kind") == same.usage.prompt_tokens > count(client)


def test_a_stream_has_its_events_in_order_and_adds_up(client):
    body = {"temperature": 1.3, "max_tokens": 16, "seed": 5}
    whole, kinds = ask(client, **body), []
    with client.messages.stream(**body_of(**body)) as stream:
        for event in stream:
            kinds.append(event.type)
        last = stream.get_final_message()
    raw = [k for k in kinds if k not in ("text", "ping")]  # the helper adds "text"
    assert raw[:2] == ["message_start", "content_block_start"]
    assert raw[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert set(raw[2:-3]) == {"content_block_delta"}
    assert last.content[0].text == whole.content[0].text and last.stop_reason == whole.stop_reason
    assert last.usage.output_tokens == whole.usage.output_tokens


@pytest.mark.parametrize("stream", [False, True])
def test_stop_sequences_end_the_text_and_are_named(client, stream):
    text = ask(client, max_tokens=24, temperature=0).content[0].text
    stop = text[len(text) // 2:][:3]
    r = ask(client, max_tokens=24, temperature=0, stop_sequences=["@@never@@", stop], stream=stream)
    assert r.content[0].text == text[:text.index(stop)]
    assert r.stop_reason == "stop_sequence" and r.stop_sequence == stop


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "clock"}])
def test_tools_that_must_be_used(client, choice, stream):
    names = set()
    for seed in range(4):
        r = ask(client, max_tokens=300, tools=[CLOCK, PLACE], tool_choice=choice, temperature=1.5, seed=seed, stream=stream)
        (block,) = r.content
        assert r.stop_reason == "tool_use" and block.type == "tool_use" and block.id
        names.add(block.name)
        if block.name == "clock":
            assert block.input["zone"] in ("UTC", "CET")
        else:
            assert len(block.input["place"]) <= 6
    assert names == {"clock"} if choice["type"] == "tool" else names <= {"clock", "get_weather"}


def test_blocks_are_what_the_chat_has_for_them(client, chat):
    blocks = [
        {"role": "user", "content": [{"type": "text", "text": "the", "cache_control": {"type": "ephemeral"}},
                                     {"type": "text", "text": "fox"}]},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "well", "signature": ""}, {"type": "text", "text": "so"},
            {"type": "tool_use", "id": "a", "name": "clock", "input": {"zone": "UTC"}}]},
        {"role": "user", "content": [{"type": "text", "text": "and?"},
                                     {"type": "tool_result", "tool_use_id": "a", "content": [
                                         {"type": "text", "text": "12:00"}]},
                                     {"type": "tool_result", "tool_use_id": "b"}]}]
    plain = [
        {"role": "user", "content": "the\nfox"},
        {"role": "assistant", "content": "so", "reasoning_content": "well", "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "clock", "arguments": '{"zone": "UTC"}'}}]},
        {"role": "tool", "tool_call_id": "a", "content": "12:00"}, {"role": "tool", "tool_call_id": "b", "content": ""},
        {"role": "user", "content": "and?"}]
    tool = {"type": "function", "function": {"name": "clock", "description": "The time",
                                             "parameters": CLOCK["input_schema"]}}
    a = ask(client, blocks, tools=[CLOCK], temperature=0, max_tokens=16)
    b = chat(plain, tools=[tool], temperature=0, max_tokens=16)
    assert a.content[0].text == b.choices[0].message.content
    assert count(client, blocks, tools=[CLOCK]) == b.usage.prompt_tokens
    assert count(client, blocks) == b.usage.prompt_tokens - (count(client, tools=[CLOCK]) - count(client))


@pytest.mark.parametrize("stream", [False, True])
def test_thinking_is_a_block_of_its_own(client, stream):
    body = {"max_tokens": 40, "temperature": 0, "ignore_eos": True, "stream": stream}
    r = ask(client, thinking={"type": "enabled", "budget_tokens": 1024}, **body)
    assert [b.type for b in r.content] == ["thinking", "text"] and r.content[0].thinking  # a random model never ends it
    assert r.content[1].text == ""
    off = ask(client, thinking={"type": "disabled"}, **body)
    assert [b.type for b in off.content] == ["text"] and off.content[0].text


def test_an_assistants_message_at_the_end_is_continued(client, chat):
    whole = ask(client, max_tokens=20, temperature=0).content[0].text
    begun = [*HELLO, {"role": "assistant", "content": "well, the quick"}]
    r = ask(client, begun, temperature=0)
    same = chat(begun, max_tokens=12, temperature=0, extra_body={"continue_final_message": True})
    turn = chat(begun, max_tokens=12, temperature=0)
    assert r.content[0].text == same.choices[0].message.content and not whole.startswith(r.content[0].text)
    assert count(client, begun) == same.usage.prompt_tokens < turn.usage.prompt_tokens
    for more in (False, True):  # as vLLM's clients say it, and with what is the default
        again = chat(begun, max_tokens=12, temperature=0,
                     extra_body={"continue_final_message": True, "add_generation_prompt": more})
        assert again.choices[0].message.content == same.choices[0].message.content
        assert again.usage.prompt_tokens == same.usage.prompt_tokens
    parts = [*HELLO, {"role": "assistant", "content": [{"type": "text", "text": "well, the quick"}]}]
    again = chat(parts, max_tokens=12, temperature=0, extra_body={"continue_final_message": True})
    assert again.choices[0].message.content == same.choices[0].message.content
    for last in ({"role": "assistant", "content": None}, {"role": "assistant", "content": [{"type": "image_url"}]}):
        with pytest.raises(openai.BadRequestError):
            chat([*HELLO, last], extra_body={"continue_final_message": True})
    with pytest.raises(openai.BadRequestError) as e:
        chat(HELLO, extra_body={"continue_final_message": True})
    assert e.value.param == "continue_final_message"


def test_a_schema_binds_the_text(client):
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"], "additionalProperties": False}
    r = ask(client, max_tokens=60, temperature=1.5, output_config={"format": {"type": "json_schema", "schema": schema}})
    assert json.loads(r.content[0].text)["ok"] in (True, False)


@pytest.mark.parametrize("change, status, part", [
    ({"temperature": 9}, 400, "temperature"), ({"max_tokens": None}, 400, "max_tokens"),
    ({"max_tokens": 0}, 400, "max_tokens"), ({"model": "nothing"}, 404, "does not exist"),
    ({"messages": []}, 400, "messages"), ({"messages": [{"role": "wizard", "content": "x"}]}, 400, "messages.0.role"),
    ({"messages": [*HELLO, {"role": "assistant", "content": 3}]}, 400, "messages.1.content"),
    ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, 400, "messages.0.content.0: has the type 'image'"),
    ({"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": [
        {"type": "image"}]}]}]}, 400, "messages.0.content.0.content.0"),
    ({"messages": [{"role": "user", "content": [{"type": "document", "source": {"type": "base64", "media_type": "application/pdf",
      "data": "JVBERi0="}}]}]}, 400, "messages.0.content.0: has the type 'document' and a source of the type 'base64'"),
    ({"messages": [{"role": "assistant", "content": "x"}]}, 400, "one before it"),
    ({"system": 3}, 400, "system"), ({"stop_sequences": "x"}, 400, "stop_sequences"),
    ({"stop_sequences": ["x"] * 17}, 400, "stop_sequences: at most 16"),
    ({"tools": [{"name": "x"}]}, 400, "input_schema"), ({"tool_choice": {"type": "some"}}, 400, "tool_choice"),
    ({"tools": [CLOCK], "tool_choice": {"type": "tool", "name": "other"}}, 400, "other"),
    ({"thinking": {"type": "maybe"}}, 400, "thinking"), ({"mcp_servers": [{}]}, 400, "mcp_servers"),
    ({"output_config": {"format": {"type": "json_schema", "schema": {"type": "magic"}}}}, 400, "magic"),
])
def test_errors_have_anthropics_form(server, change, status, part):
    got, answer = post(server, {"model": MODEL, "messages": HELLO, "max_tokens": 4, **change})
    assert got == status, answer
    assert answer["type"] == "error" and set(answer["error"]) == {"type", "message"}
    assert part in answer["error"]["message"]
    assert answer["error"]["type"] == ("not_found_error" if status == 404 else "invalid_request_error")


def test_keys_and_broken_bodies(server):
    for key in (None, "", KEY + "x"):
        status, answer = post(server, {}, key=key)
        assert status == 401 and answer["error"]["type"] == "authentication_error"
    for body in (b"", b"{", b"[]", b"\xff", b'{"a":' * 100000):
        for path in ("/v1/messages", "/v1/messages/count_tokens"):
            status, answer = post(server, body, path)
            assert status == 400 and answer["type"] == "error", (body[:9], answer)
    with anthropic.Anthropic(base_url=server.url(""), auth_token=KEY, api_key=None, max_retries=0) as other:
        assert count(other) > 3  # Authorization: Bearer
    status, answer = post(server, {"model": MODEL, "messages": [{"role": "user", "content": "the fox " * 3000}], "max_tokens": 4})
    assert status == 400 and "the model takes at most" in answer["error"]["message"]


def test_a_key_in_x_api_key_opens_the_other_endpoints(server):
    r = httpx.get(server.url("/v1/models"), headers={"x-api-key": KEY})
    assert r.status_code == 200 and httpx.get(server.url("/v1/models")).status_code == 401
    body = {"text_input": "a", "max_tokens": 1, "bad_words": "", "stop_words": ""}
    assert httpx.post(server.url("/v2/models/ensemble/generate"), json=body).status_code == 401
    assert httpx.post(server.url("/v2/models/ensemble/generate"), json=body, headers={"x-api-key": KEY}).status_code == 200


def test_documents_are_text(client):
    def tokens(content):
        return client.messages.count_tokens(model=MODEL, messages=[{"role": "user", "content": content}]).input_tokens

    document = {"type": "document", "title": "On foxes", "source": {"type": "text", "media_type": "text/plain", "data": "They are quick."}}
    assert tokens([document, {"type": "text", "text": "Are they?"}]) == tokens("On foxes\nThey are quick.\nAre they?")


def test_unknown_fields_are_named(client):
    r = client.messages.with_raw_response.create(model=MODEL, messages=HELLO, max_tokens=1,
                                                 tools=[{"type": "web_search_20250305", "name": "web_search"}, CLOCK],
                                                 extra_body={"wings": 2, "n": 3, "service_tier": "auto"})
    assert r.headers["x-nereid-warning"] == "unknown fields: tools.0.web_search_20250305, n, wings"
