# SPDX-License-Identifier: Apache-2.0
"""/v1: answers that a schema, a choice, a regular expression, a grammar or a call of a tool binds."""
import asyncio
import json
import os
import random
import re
import shutil

import jsonschema
import openai
import pytest

from llm_server import Server
from openai_client import HELLO, MODEL, chat, client, ids_of  # noqa: F401 (client is a fixture)

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


WRONG = {"type": "object", "properties": {"a": {"not": {}}}}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path, more, field", [
    ("chat/completions", {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": WRONG}}}, "response_format"),
    ("chat/completions", {"guided_json": WRONG}, "guided_json"),
    ("completions", {"structured_outputs": {"json": WRONG}}, "structured_outputs.json"),
    ("completions", {"guided_regex": "("}, "guided_regex"),
    ("completions", {"structured_outputs": {"grammar": "root ::= ("}}, "structured_outputs.grammar"),
    ("responses", {"text": {"format": {"type": "json_schema", "name": "x", "schema": WRONG}}}, "text.format"),
    ("chat/completions", {"prompt_of": 2000}, "messages"), ("completions", {"prompt_of": 2000}, "prompt"),
    ("responses", {"prompt_of": 2000}, "input")])
def test_what_the_engine_refuses_names_its_field(server, path, more, field, stream):
    """Guides are compiled, and prompts counted, behind the tensors: the answer is about the field of the body all the same."""
    more = dict(more)
    text = "the quick " * more.pop("prompt_of", 1)
    prompt = {"responses": {"input": text}, "completions": {"prompt": text}}.get(path, {"messages": [{"role": "user", "content": text}]})
    status, answer = server.request(f"/v1/{path}", {"model": MODEL, "stream": stream, **prompt, **more})
    assert status == 400 and answer["error"]["param"] == field, answer
    assert (" tokens; the model takes at most " if len(text) > 20 else f"{field}: ") in answer["error"]["message"], answer


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


TOOLS = {"type": "structural_tag", "triggers": ["<f=", "[["], "structures": [
    {"begin": "<f=person>", "schema": PERSON, "end": "</f>"}, {"begin": "<f=n>", "schema": {"enum": [1, 2]}, "end": "</f>"},
    {"begin": "[[n]", "schema": {"type": "boolean"}, "end": "]"}]}
TAG = r"<f=person>(?P<person>.*?)</f>|<f=n>[12]</f>|\[\[n\](true|false)\]"


def check_tags(text, done):
    """Each trigger begins one of the tags, the last one maybe cut."""
    n, at = 0, 0
    while begin := re.compile(r"<f=|\[\[").search(text, at):
        tag = re.compile(TAG, re.S).match(text, begin.start())
        if not tag and not done:
            return n
        assert tag, text[begin.start():]
        if tag["person"]:
            check_person(tag["person"])
        n, at = n + 1, tag.end()
    return n


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("as_field", [False, True])
def test_free_text_is_bound_between_tags(client, stream, as_field):
    n = 0
    for seed in range(8):
        how = {"extra_body": {"structured_outputs": {"structural_tag": json.dumps(TOOLS)}}} if as_field else {"response_format": TOOLS}
        r = chat(client, seed=seed, temperature=1.5, max_tokens=300, stream=stream,
                 logit_bias={str(4 + ord(c)): 6 for c in "<f=["}, **how)  # triggers are likely
        events = list(r) if stream else [r]
        text = "".join((e.choices[0].delta if stream else e.choices[0].message).content or "" for e in events)
        n += check_tags(text, events[-1].choices[0].finish_reason == "stop")
    assert n >= 8, n


def test_a_tag_that_must_come_first_and_alone(client):
    fmt = {"type": "structural_tag", "format": {"type": "sequence", "elements": [
        {"type": "tag", "begin": "<t>", "content": {"type": "regex", "pattern": "[a-z]{0,3}"}, "end": ["</t>", "!"]},
        {"type": "triggered_tags", "triggers": ["<f="], "at_least_one": True, "stop_after_first": True, "tags": [
            {"begin": "<f=person>", "content": {"type": "json_schema", "json_schema": PERSON}, "end": "</f>"},
            {"begin": "<f=n>", "content": {"type": "or", "elements": [
                {"type": "const_string", "value": "one"}, {"type": "grammar", "grammar": 'root ::= [0-9]+ "."'}]}, "end": ""}]}]}}
    for seed in range(8):
        r = chat(client, response_format=fmt, seed=seed, temperature=1.5, max_tokens=440)
        assert r.choices[0].finish_reason == "stop"
        m = re.fullmatch(r"<t>[a-z]{0,3}(</t>|!)<f=(person>(?P<person>.*)</f>|n>(one|[0-9]+\.))", r.choices[0].message.content, re.S)
        assert m, r.choices[0].message.content
        if m["person"]:
            check_person(m["person"])


@pytest.mark.parametrize("guide, part", [
    ({"response_format": {"type": "structural_tag"}}, "format is missing"),
    ({"response_format": {"type": "structural_tag", "format": {"type": "tag", "begin": "a"}}}, "format.end"),
    ({"structural_tag": "{"}, "structural tag"), ({"structural_tag": TOOLS, "guided_regex": "a"}, "already bound"),
    ({"guided_regex": "a("}, "')' is missing"), ({"guided_regex": "(?=x)"}, "look around"),
    ({"guided_json": {"not": {}}}, "'not'"), ({"guided_grammar": "root ::= y"}, "not defined"),
    ({"guided_choice": []}, "guided_choice"), ({"guided_regex": "a", "guided_choice": ["b"]}, "already bound"),
    ({"response_format": {"type": "poem"}}, "response_format"),
])
def test_guides_that_are_refused(server, guide, part):
    status, answer = server.request("/v1/chat/completions", {"model": MODEL, "messages": HELLO, **guide})
    assert status == 400 and part in answer["error"]["message"], answer
    assert not re.search("requestId|guided_decoding|[Ee]xecutor", answer["error"]["message"]), answer


def test_guides_through_v2(server):
    ids = ids_of(server, {"prompt": "the"})
    status, answer = server.generate({
        "input_ids": ids, "input_lengths": len(ids), "request_output_len": 20, "end_id": 1,
        "exclude_input_in_output": True, "guided_decoding_guide_type": "regex",
        "guided_decoding_guide": "[0-9]{4}x"}, "tensorrt_llm")
    assert status == 200, answer
    text = server.request("/detokenize", {"model": MODEL, "tokens": answer["output_ids"]})[1]["prompt"]
    assert re.fullmatch("[0-9]{4}x", text)


def test_structural_tags_through_v2(server):
    guide = {"type": "structural_tag", "triggers": ["<"], "structures": [{"begin": "<n>", "schema": {"enum": [10, 20]}, "end": "</n>"}]}
    ids = ids_of(server, {"prompt": "the <n>10</n> and <"})  # nothing of the prompt is bound
    events = server.stream({
        "input_ids": ids, "input_lengths": len(ids), "request_output_len": 60, "end_id": 1, "streaming": True,
        "exclude_input_in_output": True, "guided_decoding_guide_type": "structural_tag", "temperature": 1.0, "runtime_top_p": 1.0,
        "random_seed": 3, "guided_decoding_guide": json.dumps(guide), "logit_bias": json.dumps({str(4 + ord("<")): 8})}, "tensorrt_llm")
    out = sum((e["output_ids"] if isinstance(e["output_ids"], list) else [e["output_ids"]] for e in events), [])
    text = server.request("/detokenize", {"model": MODEL, "tokens": out})[1]["prompt"]
    assert re.fullmatch(r"([^<]|<n>(10|20)</n>)*(<(n(>([12](0(<(/n?)?)?)?)?)?)?)?", text, re.S) and "</n>" in text, text


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


def test_each_tool_has_its_own_definitions(tool_server):
    """Schemas that a library makes of classes often call them the same; and one may lead to its own root."""
    item = [{"enum": ["a"]}, {"type": "integer", "minimum": 7, "maximum": 9}]
    tools = [{"type": "function", "function": {"name": f"f{i}", "parameters": {
        "type": "object", "properties": {"item": {"$ref": "#/$defs/Item"}, "const": {"$ref": "#/$defs/Item"}}, "required": ["item", "const"],
        "$defs": {"Item": item[i]}}}} for i in range(2)]
    tools.append({"type": "function", "function": {"name": "f2", "parameters": {
        "type": "object", "properties": {"next": {"anyOf": [{"type": "null"}, {"$ref": "#"}]}}, "required": ["next"]}}})
    client, seen = openai.OpenAI(base_url=tool_server.url("/v1"), api_key="none", max_retries=0), set()
    for seed in range(24):
        choice = {"type": "function", "function": {"name": f"f{seed % 4}"}} if seed % 4 < 3 else "required"
        r = chat(client, tools=tools, tool_choice=choice, seed=seed, temperature=1.5, max_tokens=300)
        for call in r.choices[0].message.tool_calls if r.choices[0].finish_reason == "tool_calls" else []:
            jsonschema.validate(json.loads(call.function.arguments), tools[int(call.function.name[1])]["function"]["parameters"])
            seen.add(call.function.name)
    assert seen == {"f0", "f1", "f2"}


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
