# SPDX-License-Identifier: Apache-2.0
"""OpenAI's /v1/responses, driven by OpenAI's own Python package and by bare requests, over a small random model."""
import json
import shutil
import time

import httpx
import openai
import pytest

from llm_server import Server

MODEL = "ensemble"
FOX = "the quick brown fox"
CLOCK = {"type": "function", "name": "clock", "description": "The time", "strict": True, "parameters": {
    "type": "object", "properties": {"zone": {"enum": ["UTC", "CET"]}}, "required": ["zone"]}}
PLACE = {"type": "function", "name": "get_weather", "strict": None, "parameters": {
    "type": "object", "properties": {"place": {"type": "string", "maxLength": 6}}, "required": ["place"]}}
# What it writes of a conversation can be seen in the number of tokens, and in the text that follows.
TEMPLATE = ("{{ bos_token }}{% for t in tools or [] %}{{ t.function.name }} {% endfor %}"
            "{% for m in messages %}{{ '<|' ~ m.role ~ '|>' ~ m.content }}"
            "{% if m.reasoning_content %}({{ m.reasoning_content }}){% endif %}"
            "{% for c in m.tool_calls or [] %}{{ c.function | tojson }}{% endfor %}{% endfor %}"
            "<|assistant|>{% if reasoning_effort == 'high' %}<think>{% endif %}")
KEYS = ("first-key", "second-key")


@pytest.fixture(scope="module")
def server(tiny_model, cache, tmp_path_factory):
    """With a template that takes tools and thinks, with two keys, and with room for five answers."""
    folder = tmp_path_factory.mktemp("responses") / "model"
    shutil.copytree(tiny_model, folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    s = Server(folder, cache, *(f"--api-key={k}" for k in KEYS), "--openai-responses-kept=5", "--strict-model-names=true")
    try:
        yield s.wait_ready()
    finally:
        assert s.stop() == 0, s.log_text()[-4000:]


@pytest.fixture(scope="module")
def client(server):
    return openai.OpenAI(base_url=server.url("/v1"), api_key=KEYS[0], max_retries=0)


@pytest.fixture(scope="module")
def other(server):
    return openai.OpenAI(base_url=server.url("/v1"), api_key=KEYS[1], max_retries=0)


def ask(client, input=FOX, stream=False, **more):
    """The response, also where it comes as a stream."""
    bare = {k: more.pop(k) for k in ("seed", "ignore_eos") if k in more}
    body = {"model": MODEL, "input": input, "max_output_tokens": 12, "extra_body": bare, **more}
    if not stream:
        return client.responses.create(**body)
    with client.responses.stream(**body) as s:
        return s.get_final_response() if body["max_output_tokens"] > 100 else [e for e in s][-1].response


def chat(client, messages, **more):
    return client.chat.completions.create(model=MODEL, messages=messages, **{"max_tokens": 12, "temperature": 0, **more})


def post(server, body, path="/v1/responses", key=KEYS[0], method="POST"):
    content = None if body is None else body if isinstance(body, bytes) else json.dumps(body)
    r = httpx.request(method, server.url(path), content=content, headers={"Authorization": f"Bearer {key}"}, timeout=60)
    return r.status_code, r.json()


def test_an_answer_is_that_of_the_chat(client):
    r = ask(client, temperature=0, instructions="kind", metadata={"a": "b"}, user="me", top_p=0.5)
    same = chat(client, [{"role": "system", "content": "kind"}, {"role": "user", "content": FOX}], top_p=0.5)
    assert r.id.startswith("resp_") and r.object == "response" and r.model == MODEL and r.output_text
    assert r.output_text == same.choices[0].message.content
    assert r.status == {"length": "incomplete", "stop": "completed"}[same.choices[0].finish_reason]
    assert (r.incomplete_details is None) == (r.status == "completed")
    assert r.usage.input_tokens == same.usage.prompt_tokens and r.usage.output_tokens == same.usage.completion_tokens
    assert r.usage.total_tokens == same.usage.total_tokens and r.usage.output_tokens_details.reasoning_tokens == 0
    assert (r.instructions, r.metadata, r.user, r.temperature, r.top_p) == ("kind", {"a": "b"}, "me", 0, 0.5)
    assert (r.tools, r.tool_choice, r.parallel_tool_calls, r.truncation) == ([], "auto", True, "disabled")
    assert r.max_output_tokens == 12 and r.text.format.type == "text" and r.previous_response_id is None


def test_a_stream_has_its_events_in_order_and_adds_up(client):
    body = {"temperature": 1.3, "max_output_tokens": 16, "seed": 5}
    whole = ask(client, **body)
    events = list(client.responses.create(model=MODEL, input=FOX, stream=True, temperature=1.3, max_output_tokens=16,
                                          extra_body={"seed": 5}))
    kinds = [e.type.removeprefix("response.") for e in events]
    assert [e.sequence_number for e in events] == list(range(len(events)))
    assert kinds[:4] == ["created", "in_progress", "output_item.added", "content_part.added"]
    assert kinds[-4:] == ["output_text.done", "content_part.done", "output_item.done", whole.status]
    assert set(kinds[4:-4]) == {"output_text.delta"} and len(kinds) > 10
    text = "".join(e.delta for e in events if e.type == "response.output_text.delta")
    last = events[-1].response
    assert text == whole.output_text == last.output_text == events[-4].text == events[-3].part.text
    assert last.usage.output_tokens == whole.usage.output_tokens and events[0].response.usage is None
    assert events[0].response.status == "in_progress" and {e.item_id for e in events if hasattr(e, "item_id")} == {last.output[0].id}
    assert client.responses.retrieve(last.id).to_dict() == last.to_dict()


def test_bare_bytes_of_a_stream(server):
    body = {"model": MODEL, "input": FOX, "max_output_tokens": 2, "stream": True, "stream_options": {"include_obfuscation": False}}
    with httpx.stream("POST", server.url("/v1/responses"), json=body, headers={"x-api-key": KEYS[0]}) as r:
        assert r.headers["content-type"].startswith("text/event-stream") and "x-nereid-warning" not in r.headers
        for event in [e for e in r.read().decode().split("\n\n") if e]:
            name, data = event.split("\n")
            assert name == "event: " + json.loads(data.removeprefix("data: "))["type"]


def test_a_conversation_goes_on(client):
    first = ask(client, temperature=0, instructions="kind")
    second = ask(client, "and then?", temperature=0, previous_response_id=first.id, stream=True)
    third = ask(client, [{"role": "user", "content": "so"}], temperature=0, previous_response_id=second.id, instructions="curt")
    said = [{"role": "user", "content": FOX}, {"role": "assistant", "content": first.output_text},
            {"role": "user", "content": "and then?"}, {"role": "assistant", "content": second.output_text},
            {"role": "user", "content": "so"}]
    assert second.output_text == chat(client, said[:3]).choices[0].message.content
    same = chat(client, [{"role": "system", "content": "curt"}, *said])
    assert third.output_text == same.choices[0].message.content and third.usage.input_tokens == same.usage.prompt_tokens
    assert third.previous_response_id == second.id
    client.responses.delete(first.id)  # what continues it keeps it
    again = ask(client, "so", temperature=0, previous_response_id=second.id, instructions="curt")
    assert again.output_text == third.output_text and again.usage.input_tokens == third.usage.input_tokens


def test_kept_answers_are_listed_and_deleted(client):
    r = ask(client, [{"role": "developer", "content": "a"}, {"type": "message", "role": "user", "content": [
        {"type": "input_text", "text": "b"}]}, {"role": "assistant", "content": "c"}])
    assert client.responses.retrieve(r.id).to_dict() == r.to_dict()
    items = client.responses.input_items.list(r.id, order="asc")
    assert [(i.type, i.role, i.content[0].text) for i in items.data] == [
        ("message", "developer", "a"), ("message", "user", "b"), ("message", "assistant", "c")]
    assert items.first_id == items.data[0].id and items.last_id == items.data[2].id and not items.has_more
    assert [i.id for i in client.responses.input_items.list(r.id, limit=1)] == [i.id for i in items.data][::-1]  # page by page
    for query in ("limit=0", "limit=x", "order=up", "after=none", "after=%zz&limit=101"):
        with pytest.raises(openai.BadRequestError):
            client.get(f"/responses/{r.id}/input_items?{query}", cast_to=object)
    with pytest.raises(openai.BadRequestError) as e:
        client.responses.cancel(r.id)
    assert "has ended" in e.value.message
    with pytest.raises(openai.BadRequestError):
        list(client.responses.retrieve(r.id, stream=True))
    client.responses.delete(r.id)
    for call in (client.responses.retrieve, client.responses.delete, client.responses.cancel, client.responses.input_items.list):
        with pytest.raises(openai.NotFoundError) as e:
            call(r.id)
        assert r.id in e.value.message and e.value.code == "response_not_found"
    with pytest.raises(openai.NotFoundError) as e:
        ask(client, previous_response_id=r.id)
    assert e.value.code == "previous_response_not_found" and "previous_response_id" in e.value.message


def test_no_key_sees_the_answers_of_another(client, other):
    mine = ask(client)
    for call in (other.responses.retrieve, other.responses.delete, other.responses.input_items.list,
                 lambda i: ask(other, previous_response_id=i)):
        with pytest.raises(openai.NotFoundError):
            call(mine.id)
    assert client.responses.retrieve(mine.id).id == mine.id


def test_the_longest_unused_answers_make_room(client):
    ids = [ask(client, max_output_tokens=1).id for _ in range(5)]
    client.responses.retrieve(ids[0])
    ids.append(ask(client, max_output_tokens=1).id)
    not_kept = ask(client, max_output_tokens=1, store=False)
    assert not_kept.to_dict()["store"] is False
    for i, wanted in zip([*ids, not_kept.id], (True, False, True, True, True, True, False)):
        if wanted:
            client.responses.retrieve(i)
        else:
            with pytest.raises(openai.NotFoundError):
                client.responses.retrieve(i)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "clock"}, {
    "type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "clock"}]}])
def test_tools_that_must_be_called(client, choice, stream):
    names = set()
    for seed in range(4):
        r = ask(client, max_output_tokens=300, tools=[CLOCK, PLACE], tool_choice=choice, temperature=1.5, seed=seed, stream=stream)
        (call,) = r.output
        assert r.status == "completed" and call.type == "function_call" and call.call_id and call.id != call.call_id
        names.add(call.name)
        arguments = json.loads(call.arguments)
        assert arguments["zone"] in ("UTC", "CET") if call.name == "clock" else len(arguments["place"]) <= 6
    assert names <= {"clock", "get_weather"} if choice == "required" else names == {"clock"}


def test_many_tools_of_which_many_may_be_called_are_read_at_once(server):
    tools = [{"type": "function", "name": f"f{i}", "parameters": {}} for i in range(30000)]
    begin = time.monotonic()
    status, answer = post(server, {"model": MODEL, "input": FOX, "tools": tools, "tool_choice": {
        "type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": t["name"]} for t in tools]}})
    assert status == 400 and "Prompt length" in answer["error"]["message"], answer
    assert time.monotonic() - begin < 5  # compared each with each it was 10 s and more


def test_events_of_a_call(client):
    events = list(client.responses.create(model=MODEL, input=FOX, tools=[CLOCK], tool_choice="required", stream=True))
    kinds = [e.type.removeprefix("response.") for e in events]
    assert kinds == ["created", "in_progress", "output_item.added", "function_call_arguments.delta",
                     "function_call_arguments.done", "output_item.done", "completed"]
    assert events[2].item.arguments == "" and events[3].delta == events[4].arguments == events[5].item.arguments
    assert [e.sequence_number for e in events] == list(range(7))


def test_custom_tools_and_namespaces_are_called_by_their_names(server, client):
    """As agents send them: a tool with a text for input, tools in a namespace, and some that a server would call itself."""
    patch = {"type": "custom", "name": "patch", "description": "Changes files.",
             "format": {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"}}
    spaces = [{"type": "namespace", "name": name, "description": "d", "tools": [dict(CLOCK, name=tool)]}
              for name, tool in (("mcp__time", "now"), ("zone__", "then"))]
    tools, more = [{"type": "web_search"}, patch, *spaces], {"max_output_tokens": 300, "temperature": 1}
    quote = post(server, {"prompt": '"', "add_special_tokens": False}, "/tokenize")[1]["tokens"]
    more["extra_body"] = {"logit_bias": {str(quote[0]): 4}}  # a text ends before long
    raw = client.responses.with_raw_response.create(model=MODEL, input=FOX, tools=tools, max_output_tokens=1)
    assert "tools.0.web_search" in raw.headers["x-nereid-warning"] and raw.parse().tools[0].type == "web_search"
    for choice, names in (({"type": "custom", "name": "patch"}, ("custom_tool_call", "patch", None)),
                          ({"type": "function", "name": "mcp__time__now"}, ("function_call", "now", "mcp__time")),
                          ({"type": "function", "name": "then", "namespace": "zone__"}, ("function_call", "then", "zone__"))):
        call = ask(client, tools=tools, tool_choice=choice, **more).output[-1]
        assert call.type != "message", call
        assert (call.type, call.name, call.namespace) == names
        text = call.input if call.type == "custom_tool_call" else call.arguments
        assert call.type == "custom_tool_call" or json.loads(text)["zone"] in ("UTC", "CET")
        back = [{"role": "user", "content": FOX}, call.to_dict(), {"type": f"{call.type}_output", "call_id": call.call_id, "output": "done"}]
        assert ask(client, back, tools=tools, max_output_tokens=2).usage.output_tokens == 2
    events = list(client.responses.create(model=MODEL, input=FOX, tools=[patch], tool_choice="required", stream=True, **more))
    kinds = [e.type.removeprefix("response.") for e in events]
    assert kinds == ["created", "in_progress", "output_item.added", "custom_tool_call_input.delta", "custom_tool_call_input.done",
                     "output_item.done", "completed"]
    assert events[2].item.input == "" and events[3].delta == events[4].input == events[5].item.input


def test_results_of_tools_go_back(client):
    tools, more = [CLOCK, PLACE], {"temperature": 0, "max_output_tokens": 16}
    call = ask(client, tools=tools, tool_choice="required", max_output_tokens=300)
    answer = {"type": "function_call_output", "call_id": call.output[0].call_id, "output": "12:00"}
    later = ask(client, [answer], previous_response_id=call.id, tools=tools, **more)
    whole = ask(client, [{"role": "user", "content": FOX}, call.output[0].to_dict(),
                         dict(answer, output=[{"type": "input_text", "text": "12:00"}])], tools=tools, **more)
    same = chat(client, [
        {"role": "user", "content": FOX},
        {"role": "assistant", "tool_calls": [{"id": call.output[0].call_id, "type": "function", "function": {
            "name": call.output[0].name, "arguments": call.output[0].arguments}}]},
        {"role": "tool", "tool_call_id": call.output[0].call_id, "content": "12:00"}], max_tokens=16, tools=[
            {"type": "function", "function": {k: t[k] for k in ("name", "description", "parameters") if k in t}} for t in tools])
    assert later.output_text == whole.output_text == same.choices[0].message.content
    assert later.usage.input_tokens == whole.usage.input_tokens == same.usage.prompt_tokens


def test_tokens_are_counted_as_usage_says(client, server):
    first = ask(client, instructions="kind")
    for more in ({"instructions": "kind"}, {"previous_response_id": first.id, "input": "so"}):
        r = ask(client, **more)
        status, answer = post(server, {"model": MODEL, "input": FOX, **more}, "/v1/responses/input_tokens")
        assert (status, answer) == (200, {"object": "response.input_tokens", "input_tokens": r.usage.input_tokens})
    status, answer = post(server, {"model": MODEL, "input": FOX, "previous_response_id": first.id}, "/v1/responses/input_tokens", KEYS[1])
    assert status == 404
    body = {"model": MODEL, "messages": [{"role": "user", "content": FOX}]}
    status, answer = post(server, body, "/v1/chat/completions/input_tokens")
    assert (status, answer["input_tokens"]) == (200, chat(client, body["messages"]).usage.prompt_tokens)


@pytest.mark.parametrize("stream", [False, True])
def test_reasoning_is_an_item_of_its_own(client, stream):
    r = ask(client, max_output_tokens=40, temperature=0, ignore_eos=True, reasoning={"effort": "high"}, stream=stream)
    (item,) = r.output  # a random model never ends it
    assert item.type == "reasoning" and item.content[0].type == "reasoning_text" and item.content[0].text
    assert r.status == item.status == "incomplete" and r.usage.output_tokens_details.reasoning_tokens == 40
    assert r.reasoning.effort == "high"
    plain = ask(client, max_output_tokens=40, temperature=0, ignore_eos=True, reasoning={"effort": "none"})
    assert plain.output[0].type == "message" and plain.usage.output_tokens_details.reasoning_tokens == 0
    message = {"role": "assistant", "content": "so"}
    said = [{"role": "user", "content": FOX}, {"type": "reasoning", "id": "rs_1", "summary": [], "content": [
        {"type": "reasoning_text", "text": "well"}]}, message, {"role": "user", "content": "and?"}]
    same = chat(client, [said[0], dict(message, reasoning_content="well"), said[3]])
    assert ask(client, said, temperature=0).output_text == same.choices[0].message.content


def test_a_chat_can_leave_its_reasoning_out(client):
    messages, more = [{"role": "user", "content": FOX}], {"max_tokens": 20, "reasoning_effort": "high"}
    for shown in (True, False):
        extra = {"ignore_eos": True, "include_reasoning": shown}
        whole = chat(client, messages, **more, extra_body=extra)
        assert ("reasoning_content" in whole.choices[0].message.model_extra) == shown and whole.usage.completion_tokens == 20
        deltas = [e.choices[0].delta for e in chat(client, messages, **more, stream=True, extra_body=extra)]
        assert any("reasoning_content" in d.model_extra for d in deltas) == shown
        assert "".join(d.content or "" for d in deltas) == (whole.choices[0].message.content or "") == ""


@pytest.mark.parametrize("extra", [{"separate_reasoning": False}, {"reasoning_format": "none"}, {"reasoning_format": "auto"}],
                         ids=["sglang", "llama.cpp", "apart"])
def test_the_reasoning_of_a_chat_can_stay_in_its_content(client, extra):
    messages, more = [{"role": "user", "content": FOX}], {"max_tokens": 20, "reasoning_effort": "high", "temperature": 0}
    extra = {"ignore_eos": True, **extra}
    apart = chat(client, messages, **more, extra_body={"ignore_eos": True}).choices[0].message
    whole = chat(client, messages, **more, extra_body=extra).choices[0].message
    deltas = [e.choices[0].delta for e in chat(client, messages, **more, stream=True, extra_body=extra)]
    if "auto" in extra.values():
        assert whole == apart and any("reasoning_content" in d.model_extra for d in deltas)
    else:
        assert "reasoning_content" not in whole.model_extra and not any("reasoning_content" in d.model_extra for d in deltas)
        assert whole.content.strip() == apart.model_extra["reasoning_content"]
        assert "".join(d.content or "" for d in deltas) == whole.content


@pytest.mark.parametrize("extra, field", [({"reasoning_format": "loud"}, "reasoning_format"), ({"separate_reasoning": 1}, "separate_reasoning"),
                                          ({"separate_reasoning": False, "include_reasoning": False}, "include_reasoning")])
def test_where_reasoning_cannot_be(client, extra, field):
    with pytest.raises(openai.BadRequestError) as e:
        chat(client, [{"role": "user", "content": FOX}], max_tokens=2, extra_body=extra)
    assert e.value.param == field


def test_metrics_need_a_key_where_there_are_any(server):
    assert httpx.get(server.url("/metrics")).status_code == 401
    r = httpx.get(server.url("/metrics"), headers={"x-api-key": KEYS[1]})
    assert r.status_code == 200 and "nv_inference_count" in r.text and r.headers["content-type"].startswith("text/plain")


def test_events_of_reasoning(client):
    events = list(client.responses.create(model=MODEL, input=FOX, stream=True, temperature=0, max_output_tokens=8,
                                          reasoning={"effort": "high"}, extra_body={"ignore_eos": True}))
    kinds = [e.type.removeprefix("response.") for e in events]
    assert kinds[2:4] == ["output_item.added", "content_part.added"] and "reasoning_text.delta" in kinds
    assert kinds[-4:] == ["reasoning_text.done", "content_part.done", "output_item.done", "incomplete"]
    assert "".join(e.delta for e in events if e.type.endswith("delta")) == events[-4].text


def test_formats_bind_the_text(client):
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"], "additionalProperties": False}
    form = {"type": "json_schema", "name": "x", "schema": schema, "strict": True}
    r = ask(client, max_output_tokens=60, temperature=1.5, text={"format": form, "verbosity": "low"})
    assert json.loads(r.output_text)["ok"] in (True, False)
    assert r.text.format.to_dict() == form and r.text.verbosity == "low"
    r = ask(client, max_output_tokens=200, temperature=0.1, text={"format": {"type": "json_object"}})
    assert r.output_text.lstrip().startswith("{")


@pytest.mark.parametrize("stream", [False, True])
def test_log_probabilities(client, stream):
    r = ask(client, temperature=0, include=["message.output_text.logprobs"], top_logprobs=2, stream=stream)
    part = r.output[0].content[0]
    assert len(part.logprobs) >= r.usage.output_tokens - 1 and all(len(p.top_logprobs) == 2 for p in part.logprobs)
    same = chat(client, [{"role": "user", "content": FOX}], logprobs=True, top_logprobs=2)
    assert [p.to_dict() for p in part.logprobs] == [p.to_dict() for p in same.choices[0].logprobs.content]


@pytest.mark.parametrize("change, status, field, part", [
    ({"model": "nothing"}, 404, None, "does not exist"), ({"input": None}, 400, "input", "string or a list"),
    ({"input": []}, 400, "input", ""), ({"input": 3}, 400, "input", ""),
    ({"input": [3]}, 400, "input.0.role", ""), ({"input": [{"role": "wizard", "content": "x"}]}, 400, "input.0.role", "wizard"),
    ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, 400, "input.0.content.0", "input_image"),
    ({"input": [{"type": "item_reference", "id": "x"}]}, 400, "input.0", "item_reference"),
    ({"input": [{"type": "function_call", "call_id": "x"}]}, 400, "input.0.name", ""),
    ({"input": [{"type": "function_call_output", "call_id": "x"}]}, 400, "input.0.output", ""),
    ({"instructions": ["x"]}, 400, "instructions", ""), ({"max_output_tokens": 0}, 400, "max_output_tokens", ""),
    ({"temperature": 9}, 400, "temperature", ""), ({"top_logprobs": 21}, 400, "top_logprobs", ""),
    ({"background": True, "store": False}, 400, "background", "needs store"), ({"truncation": "auto"}, 400, "truncation", "disabled"),
    ({"conversation": "x"}, 400, "conversation", ""), ({"prompt": {"id": "x"}}, 400, "prompt", ""),
    ({"store": "x"}, 400, "store", ""), ({"stream": 1}, 400, "stream", ""), ({"metadata": {"a": 1}}, 400, "metadata", ""),
    ({"metadata": {str(i): "" for i in range(17)}}, 400, "metadata", "16"), ({"include": "x"}, 400, "include", ""),
    ({"previous_response_id": 3}, 400, "previous_response_id", ""),
    ({"previous_response_id": "resp_x"}, 404, None, "previous_response_id: there is no response 'resp_x'"),
    ({"tools": [{"name": "x"}]}, 400, "tools.0", "type"), ({"tools": [{"type": "namespace", "name": "x"}]}, 400, "tools.0", "tools"),
    ({"tools": 3}, 400, "tools", ""),
    ({"tools": [{"type": "function"}]}, 400, "tools.0", "name"), ({"tool_choice": "some"}, 400, "tool_choice", ""),
    ({"tool_choice": {"type": "file_search"}}, 400, "tool_choice", "allowed_tools"), ({"tool_choice": "required"}, 400, "tool_choice", ""),
    ({"tools": [CLOCK], "tool_choice": {"type": "function", "name": "x"}}, 400, "tool_choice", "'x'"),
    ({"tools": [CLOCK], "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"name": "y"}]}}, 400, "tool_choice", "'y'"),
    *(({"tools": [CLOCK], "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": x}}, 400, "tool_choice.tools", "list")
      for x in ("x" * 500, 3, {"name": "clock"}, None)),
    ({"text": 3}, 400, "text", ""), ({"text": {"format": {"type": "x"}}}, 400, "text.format", ""),
    ({"text": {"format": {"type": "json_schema"}}}, 400, "text.format", "schema"),
    ({"text": {"format": {"type": "json_schema", "schema": {"type": "magic"}}}}, 400, "text.format", "magic"),
    ({"reasoning": 3}, 400, "reasoning", ""), ({"reasoning": {"effort": 3}}, 400, "reasoning.effort", ""),
    ({"input": "the fox " * 9000}, 400, "input", ""),
])
def test_errors_name_the_field(server, change, status, field, part):
    got, answer = post(server, {"model": MODEL, "input": FOX, "max_output_tokens": 4, **change})
    assert got == status, answer
    error = answer["error"]
    assert set(error) == {"message", "type", "param", "code"} and part in error["message"] and "\n" not in error["message"]
    assert error["param"] == field and (field is None or error["message"].startswith(field + ":"))


def test_keys_and_broken_bodies(server):
    for path, method in (("", "POST"), ("/resp_x", "GET"), ("/resp_x", "DELETE"), ("/resp_x/input_items", "GET"), ("/resp_x/cancel", "POST")):
        status, answer = post(server, {} if method == "POST" else None, "/v1/responses" + path, "wrong", method)
        assert status == 401 and answer["error"]["type"] == "authentication_error"
    assert post(server, None, "/v1/responses/resp_x", method="PUT")[0] == 405
    assert post(server, None, "/v1/responses", method="DELETE")[0] == 405
    for body in (b"", b"{", b"[]", b"\xff", b'{"a":' * 100000):
        status, answer = post(server, body)
        assert status == 400 and answer["error"]["type"] == "invalid_request_error", (body[:9], answer)


def test_unknown_fields_are_named(server):
    r = httpx.post(server.url("/v1/responses"), headers={"x-api-key": KEYS[0]}, json={
        "model": MODEL, "input": FOX, "max_output_tokens": 1, "wings": 2, "n": 3, "max_tool_calls": 1, "service_tier": "auto"})
    assert r.status_code == 200 and r.headers["x-nereid-warning"] == "unknown fields: n, wings"
