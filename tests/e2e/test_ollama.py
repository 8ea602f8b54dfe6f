# SPDX-License-Identifier: Apache-2.0
"""Ollama's API, driven by Ollama's own Python package, over a small random model."""
import json
import shutil

import httpx
import ollama
import openai
import pytest

from llm_server import Server

MODEL = "ensemble"
HELLO = [{"role": "user", "content": "the quick brown fox"}]
CLOCK = {"type": "function", "function": {"name": "clock", "description": "The time", "parameters": {
    "type": "object", "properties": {"zone": {"type": "string"}}, "required": ["zone"]}}}
TEMPLATE = ("{{ bos_token }}{% for t in tools or [] %}{{ t.function.name }} {% endfor %}"
            "{% for m in messages %}{{ '<|' ~ m.role ~ '|>' ~ m.content }}"
            "{% for c in m.tool_calls or [] %}{{ c.function | tojson }}{% endfor %}{% endfor %}"
            "<|assistant|>{% if enable_thinking %}<think>{% endif %}")


@pytest.fixture(scope="module")
def server(tiny_model, cache, tmp_path_factory):
    folder = tmp_path_factory.mktemp("ollama") / "model"
    shutil.copytree(tiny_model, folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    s = Server(folder, cache, "--strict-model-names=true")
    try:
        yield s.wait_ready()
    finally:
        assert s.stop() == 0, s.log_text()[-4000:]


@pytest.fixture(scope="module")
def client(server):
    return ollama.Client(host=server.url(""))


@pytest.fixture(scope="module")
def v1(server):
    return openai.OpenAI(base_url=server.url("/v1"), api_key="none", max_retries=0)


def options(**more):
    return {"temperature": 0, "num_predict": 12, **more}


def joined(parts):
    parts = list(parts)
    assert all(not p.done for p in parts[:-1]) and parts[-1].done
    return parts


def check_end(r, count):
    assert r.done_reason in ("stop", "length") and r.eval_count == count
    assert r.total_duration > 0 and r.prompt_eval_duration >= 0 and r.eval_duration >= 0 and r.load_duration == 0
    assert r.total_duration >= r.prompt_eval_duration


@pytest.mark.parametrize("stream", [False, True])
def test_a_chat_is_that_of_v1(client, v1, stream):
    same = v1.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=12, temperature=0)
    r = client.chat(model=MODEL + ":latest", messages=HELLO, options=options(), stream=stream)
    if stream:
        parts = joined(r)
        text, r = "".join(p.message.content for p in parts), parts[-1]
    else:
        text = r.message.content
    assert text == same.choices[0].message.content and r.message.role == "assistant" and r.model == MODEL
    check_end(r, same.usage.completion_tokens)
    assert r.prompt_eval_count == same.usage.prompt_tokens
    assert r.done_reason == same.choices[0].finish_reason


@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize("stream", [False, True])
def test_generate_with_and_without_the_template(client, v1, stream, raw):
    if raw:
        same = v1.completions.create(model=MODEL, prompt="the quick", max_tokens=20, temperature=0).choices[0].text
    else:
        messages = [{"role": "system", "content": "kind"}, {"role": "user", "content": "the quick"}]
        same = v1.chat.completions.create(model=MODEL, messages=messages, max_tokens=20, temperature=0)
        same = same.choices[0].message.content
    r = client.generate(model=MODEL, prompt="the quick", system="kind", raw=raw, options=options(num_predict=20), stream=stream)
    assert ("".join(p.response for p in joined(r)) if stream else r.response) == same


def test_options_are_those_of_v1(client, v1):
    known = {"temperature": 1.1, "top_p": 0.9, "seed": 7, "presence_penalty": 0.4, "frequency_penalty": 0.2}
    same = v1.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=16, extra_body={
        "top_k": 30, "min_p": 0.01, "repetition_penalty": 1.2}, **known).choices[0].message.content
    ours = dict(known, top_k=30, min_p=0.01, repeat_penalty=1.2, num_predict=16, num_ctx=4096, num_thread=3)
    assert client.chat(model=MODEL, messages=HELLO, options=ours).message.content == same
    whole = client.chat(model=MODEL, messages=HELLO, options=options(num_predict=24)).message.content
    stop = whole[len(whole) // 2:][:3]
    r = client.chat(model=MODEL, messages=HELLO, options=options(num_predict=24, stop=[stop]))
    assert r.message.content == whole[:whole.index(stop)] and r.done_reason == "stop"


@pytest.mark.parametrize("stream", [False, True])
def test_a_format_binds_the_text(client, stream):
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"], "additionalProperties": False}
    r = client.chat(model=MODEL, messages=HELLO, format=schema, stream=stream, options={"temperature": 1.5, "num_predict": 60})
    text = "".join(p.message.content for p in joined(r)) if stream else r.message.content
    assert json.loads(text)["ok"] in (True, False)


@pytest.mark.parametrize("stream", [False, True])
def test_calls_have_their_arguments_as_an_object(client, stream):
    """A schema makes a random model write a call."""
    call = {"type": "object", "properties": {"name": {"const": "clock"}, "arguments": {
        "type": "object", "properties": {"zone": {"enum": ["UTC", "CET"]}}, "required": ["zone"]}},
        "required": ["name", "arguments"]}
    r = client.chat(model=MODEL, messages=HELLO, tools=[CLOCK], format=call, stream=stream,
                    options={"temperature": 1.5, "num_predict": 200})
    parts = joined(r) if stream else [r]
    (found,) = [c for p in parts for c in p.message.tool_calls or []]
    assert found.function.name == "clock" and found.function.arguments["zone"] in ("UTC", "CET")
    assert not any(p.message.content for p in parts) and parts[-1].done_reason == "stop"
    back = [*HELLO, {"role": "assistant", "content": "", "tool_calls": [{"function": {
        "name": "clock", "arguments": {"zone": "UTC"}}}]}, {"role": "tool", "tool_name": "clock", "content": "12:00"}]
    more = client.chat(model=MODEL, messages=back, tools=[CLOCK], options=options(num_predict=1)).prompt_eval_count
    assert more > client.chat(model=MODEL, messages=HELLO, tools=[CLOCK], options=options(num_predict=1)).prompt_eval_count


def test_thinking_is_apart(client):
    r = client.chat(model=MODEL, messages=HELLO, think=True, options=options())
    assert r.message.thinking and not r.message.content
    assert client.chat(model=MODEL, messages=HELLO, think=False, options=options()).message.thinking is None


@pytest.mark.parametrize("stream", [False, True])
def test_log_probabilities_are_those_of_v1(client, v1, stream):
    want = v1.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=12, temperature=0, logprobs=True, top_logprobs=2)
    rows = [(t.token, t.logprob, [x.token for x in t.top_logprobs]) for t in want.choices[0].logprobs.content]
    for ask, more in ((client.chat, {"messages": HELLO}), (client.generate, {"prompt": HELLO[0]["content"]}),
                      (client.generate, {"prompt": "the fox", "raw": True})):
        got = ask(model=MODEL, options=options(), logprobs=True, top_logprobs=2, stream=stream, **more)
        parts = list(got) if stream else [got]
        tokens = [(t.token, t.logprob, [x.token for x in t.top_logprobs]) for p in parts for t in p.logprobs or []]
        assert len(tokens) == parts[-1].eval_count and all(len(t) == 2 for _, _, t in tokens)
        if "raw" not in more:
            assert tokens == rows


def test_models_and_version(server, client):
    assert [m.model for m in client.list().models] == [m.model for m in client.ps().models] == ["model"]
    shown, facts = client.show("model"), httpx.get(server.url("/v1/models")).json()["data"][0]
    assert "completion" in shown.capabilities and "tools" in shown.capabilities and "temperature" in shown.parameters
    assert not {"vision", "insert"} & set(shown.capabilities)
    assert shown.modelinfo["general.architecture"] == "llama" and shown.modelinfo["llama.context_length"] == facts["max_model_len"]
    assert shown.modelinfo["general.parameter_count"] == facts["architecture"]["parameters"]
    assert shown.details.family == "llama" and shown.details.parameter_size == f"{facts['architecture']['parameters'] / 1e6:.1f}M"
    assert shown.details.quantization_level == facts["architecture"]["type"].upper()
    assert httpx.get(server.url("/api/version")).json()["version"]
    for path in ("/", "/api/version", "/api/tags"):  # programs ask so whether somebody is there
        there = httpx.head(server.url(path))
        assert (there.status_code, there.content) == (200, b""), path
    with pytest.raises(ollama.ResponseError) as e:
        client.show("nothing")
    assert e.value.status_code == 404 and "does not exist" in e.value.error


def test_vectors_are_those_of_v1(client, v1):
    texts = ["the fox", "a lazy dog"]
    same = v1.embeddings.create(model=MODEL, input=texts, encoding_format="float")
    r = client.embed(model=MODEL, input=texts)
    assert r.model == MODEL and r.prompt_eval_count == same.usage.prompt_tokens
    for a, b in zip(r.embeddings, same.data, strict=True):
        assert list(a) == pytest.approx(b.embedding, abs=1e-5)
    assert client.embeddings(model=MODEL, prompt=texts[0]).embedding == pytest.approx(same.data[0].embedding, abs=1e-5)


def test_orders_are_refused(client):
    for order in (lambda: client.pull("x"), lambda: client.push("x"), lambda: client.delete("x"),
                  lambda: client.copy("x", "y"), lambda: client.create("x", from_="y")):
        with pytest.raises(ollama.ResponseError) as e:
            order()
        assert e.value.status_code == 400 and ("nereid serve" in e.value.error or "/api/pull" in e.value.error)


@pytest.mark.parametrize("path, change, status, part", [
    ("chat", {"model": None}, 400, "model"), ("chat", {"model": "nothing"}, 404, "does not exist"),
    ("chat", {"messages": []}, 400, "messages"), ("chat", {"messages": [{"role": "wizard", "content": "x"}]}, 400, "wizard"),
    ("chat", {"messages": [dict(HELLO[0], images=["aGk="])]}, 400, "messages.0.images"),
    ("chat", {"options": {"temperature": 9}}, 400, "options.temperature: must be"),
    ("chat", {"options": {"num_predict": 0}}, 400, "options.num_predict"), ("chat", {"options": 3}, 400, "options"),
    ("chat", {"options": {"stop": ["x"] * 17}}, 400, "options.stop"), ("chat", {"format": "xml"}, 400, "format"),
    ("chat", {"format": {"type": "magic"}}, 400, "magic"), ("chat", {"think": 3}, 400, "think"),
    ("chat", {"stream": "x"}, 400, "stream"),
    ("generate", {"prompt": 3}, 400, "prompt"), ("generate", {"suffix": "x"}, 400, "suffix"),
    ("generate", {"template": "x"}, 400, "template"), ("generate", {"images": ["aGk="]}, 400, "images"),
    ("embed", {"model": "nothing", "input": "x"}, 404, "does not exist"), ("embed", {"input": 3}, 400, "input"),
    ("embeddings", {"prompt": ["x"]}, 400, "prompt: must be a string"),
])
def test_errors_have_ollamas_form(server, path, change, status, part):
    body = {"model": MODEL, "options": options()} | ({"messages": HELLO} if path == "chat" else {"prompt": "fox"})
    got, answer = server.request(f"/api/{path}", {**body, **change})
    assert got == status and set(answer) == {"error"} and part in answer["error"], answer
    assert server.request(f"/api/{path}", b"{")[0] == 400
