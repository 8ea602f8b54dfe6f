"""OpenAI's endpoints, driven by OpenAI's own Python package, over a small random model."""
import asyncio
import http.client
import json
import time

import openai
import pytest

from conftest import Server

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


def test_models(client):
    assert {m.id for m in client.models.list()} == {"ensemble", "tensorrt_llm"}
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


def test_completions_of_several_prompts_with_echo_and_log_probs(client, server):
    prompts = ["the quick", ids_of(server, {"prompt": "brown fox"})]
    r = client.completions.create(model=MODEL, prompt="the quick", max_tokens=6, temperature=0, echo=True, logprobs=1)
    (c,) = r.choices
    assert c.text.startswith("the quick")
    assert len(c.logprobs.tokens) == len(c.logprobs.token_logprobs) == len(c.logprobs.text_offset)
    assert all(p <= 0 for p in c.logprobs.token_logprobs)
    r = client.completions.create(model=MODEL, prompt=[prompts[1], prompts[1]], max_tokens=6, temperature=0)
    assert r.choices[0].text == r.choices[1].text and [c.index for c in r.choices] == [0, 1]
    best = client.completions.create(model=MODEL, prompt="the", max_tokens=6, n=2, best_of=5, seed=1)
    assert len(best.choices) == 2 and best.usage.completion_tokens > 12


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
    ({"top_logprobs": 5}, 400, "top_logprobs"), ({"stream_options": {}}, 400, "stream_options"),
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


def test_suffix_is_refused_and_unknown_fields_give_a_warning(server):
    status, answer = server.request("/v1/completions", {"model": MODEL, "prompt": "a", "suffix": "b"})
    assert status == 400 and answer["error"]["param"] == "suffix"
    c = http.client.HTTPConnection("127.0.0.1", server.http, timeout=30)
    c.request("POST", "/v1/completions", json.dumps({"model": MODEL, "prompt": "a", "max_tokens": 1, "wings": 2,
                                                     "bad\r\nname": 1}))
    r = c.getresponse()
    assert r.status == 200 and r.headers["x-nereid-warning"] == "unknown fields: wings"
    r.read()


def test_tokenize_and_back(server):
    ids = ids_of(server, {"prompt": "the quick brown fox", "add_special_tokens": False})
    status, answer = server.request("/detokenize", {"model": MODEL, "tokens": ids})
    assert status == 200 and answer["prompt"].strip() == "the quick brown fox"
    assert server.request("/detokenize", {"model": MODEL, "tokens": [-1]})[0] == 400


def test_a_client_that_goes_away_stops_the_work(client, server):
    stream = chat(client, max_tokens=100000, stream=True, extra_body={"ignore_eos": True})
    next(iter(stream))
    stream.close()
    assert wait_until(lambda: server.metric("nv_trt_llm_request_metrics", request_type="active") == 0)


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


def test_the_endpoints_can_be_turned_off(tiny_model, cache):
    s = Server(tiny_model, cache, "--allow-openai=false")
    try:
        s.wait_ready()
        assert s.request("/v1/models")[0] == 404
    finally:
        s.stop()
