# SPDX-License-Identifier: Apache-2.0
"""What Open WebUI 0.12.4 asks of an OpenAI and of an Ollama connection, request by request, and what it reads of the
answers. The program itself is too large for a test; the order and the fields are those of its back end."""
import datetime
import json

import pytest

import asking
from asking import lines, server_of, whole
from test_clients import TEMPLATE

KEY = "sk-webui"
TURN = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "the quick brown fox"}]
SEES = [{"role": "user", "content": [{"type": "text", "text": "the quick brown fox"}]}]
TOOL = {"type": "function", "function": {"name": "clock", "description": "The time", "parameters": {
    "type": "object", "properties": {"zone": {"type": "string"}}, "required": ["zone"]}}}
CALLED = [*TURN, {"role": "assistant", "content": "", "tool_calls": [{"index": 0, "id": "call_1", "type": "function", "function": {
    "name": "clock", "arguments": '{"zone": "UTC"}'}}]}, {"role": "tool", "tool_call_id": "call_1", "content": "12:00"}]
# All that its settings of a model can send to Ollama; those of llama.cpp's own machinery must not stop the answer.
OPTIONS = {"temperature": 0.7, "top_p": 0.9, "top_k": 40, "min_p": 0.05, "seed": 1, "num_ctx": 256, "num_batch": 64, "num_keep": 8,
           "num_predict": 8, "repeat_last_n": 64, "repeat_penalty": 1.1, "presence_penalty": 0.1, "frequency_penalty": 0.1,
           "mirostat": 0, "mirostat_eta": 0.1, "mirostat_tau": 5.0, "stop": ["zzz"], "num_gpu": 1, "use_mmap": True,
           "use_mlock": False, "num_thread": 2}


@pytest.fixture(scope="module")
def ask(tmp_path_factory):
    """(path, body) -> (status, content type, text), with the headers that it sends."""
    def with_template(folder):
        (folder / "chat_template.jinja").write_text(TEMPLATE)

    with server_of(tmp_path_factory.mktemp("webui"), with_template, "--api-key", KEY) as request:
        yield lambda path, body=None, key=KEY: request(path, body, {
            "Authorization": f"Bearer {key}", "X-OpenWebUI-User-Name": "Ada", "X-OpenWebUI-User-Role": "admin",
            "X-OpenWebUI-Chat-Id": "1"})


def events(answer):
    assert answer[2].rstrip().endswith("data: [DONE]"), answer
    return asking.events(answer)


def test_a_connection_of_openai_s_kind(ask):
    model = whole(ask("/v1/models"))["data"][0]["id"]
    assert model == "tiny"
    chat = {"model": model, "messages": TURN, "stream": True, "stream_options": {"include_usage": True}, "temperature": 0.7,
            "top_p": 0.9, "min_p": 0.05, "max_tokens": 8, "frequency_penalty": 0.1, "presence_penalty": 0.1, "seed": 1,
            "stop": ["zzz"], "logit_bias": {}}
    chunks = events(ask("/v1/chat/completions", chat))
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant" and chunks[-1]["usage"]["total_tokens"] > 0
    for messages in (SEES, CALLED):  # parts of text; the turn after a tool was run
        assert events(ask("/v1/chat/completions", {**chat, "messages": messages, "tools": [TOOL]}))
    # The title of the chat, its tags and the next questions: requests of their own, not streamed.
    title = whole(ask("/v1/chat/completions", {"model": model, "messages": TURN[1:], "stream": False,
                                               "max_completion_tokens": 8}))
    assert isinstance(title["choices"][0]["message"]["content"], str)


def test_a_connection_of_openai_s_kind_by_responses(ask):
    items = [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "the quick brown fox"}]},
             {"type": "function_call", "call_id": "call_1", "name": "clock", "arguments": '{"zone": "UTC"}'},
             {"type": "function_call_output", "call_id": "call_1", "output": "12:00"},
             {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "the"}]},
             {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "fox"}]}]
    tool = {"type": "function", "strict": False, **TOOL["function"]}
    status, kind, text = ask("/v1/responses", {"model": "tiny", "input": items, "instructions": "Be short.", "stream": True,
                                               "max_output_tokens": 8, "tools": [tool], "temperature": 0.7, "top_p": 0.9})
    assert status == 200 and "text/event-stream" in kind, text
    last = json.loads([line for line in text.splitlines() if line.startswith("data: {")][-1][len("data: "):])
    assert last["response"]["usage"]["output_tokens"] <= 8
    assert all(item["type"] in ("message", "function_call", "reasoning") for item in last["response"]["output"])


def test_documents_are_embedded(ask):
    texts = ["the quick brown fox", "the lazy dog"]
    v1 = whole(ask("/v1/embeddings", {"input": texts, "model": "tiny"}))["data"]
    own = whole(ask("/api/embed", {"input": texts, "model": "tiny", "truncate": True}))["embeddings"]
    assert len(v1) == len(own) == 2
    assert v1[1]["embedding"] == pytest.approx(own[1], abs=1e-5)


def test_a_connection_of_ollama_s_kind(ask):
    assert whole(ask("/api/version"))["version"]
    (listed,) = [m for m in whole(ask("/api/tags"))["models"] if m["model"].startswith("tiny")]
    assert listed["name"] and listed["details"] is not None and listed["size"] >= 0
    model = listed["model"]  # asked for as it is listed, with its tag where it has one
    assert whole(ask("/api/show", {"model": model}))["capabilities"]
    pieces = lines(ask("/api/chat", {"model": model, "messages": TURN, "stream": True, "options": OPTIONS, "keep_alive": "5m"}))
    assert pieces[-1]["done"] and pieces[-1]["eval_count"] <= 8 and not pieces[0]["done"]
    for loaded in whole(ask("/api/ps"))["models"]:
        assert datetime.datetime.fromisoformat(loaded["expires_at"]) and loaded["model"]
    called = [*TURN, {"role": "assistant", "tool_calls": [{"index": 0, "id": "call_1", "function": {
        "name": "clock", "arguments": {"zone": "UTC"}}}]}, {"role": "tool", "tool_call_id": "call_1", "content": "12:00"}]
    assert lines(ask("/api/chat", {"model": model, "messages": called, "stream": True, "tools": [TOOL],
                                   "options": {"num_predict": 8}}))[-1]["done"]
    # It asks for a title in the same way, not streamed, and in the form of a schema where one is set.
    title = whole(ask("/api/chat", {"model": model, "messages": TURN[1:], "stream": False, "options": {"num_predict": 64},
                                    "format": {"type": "object", "properties": {"title": {"enum": ["Fox", "Dog"]}},
                                               "required": ["title"]}, "metadata": {"task": "title_generation"}}))
    assert json.loads(title["message"]["content"])["title"] in ("Fox", "Dog")


def test_a_model_is_asked_to_leave_memory(ask):
    answer = whole(ask("/api/generate", {"model": "tiny", "keep_alive": 0, "prompt": "", "stream": False}))
    assert answer["done"]


def test_its_messages_of_errors_say_what_is_wrong(ask):
    for path, body, part in (("/v1/chat/completions", {"model": "tiny", "messages": TURN, "temperature": 9}, "0 to 2"),
                             ("/v1/chat/completions", {"model": "tiny", "messages": []}, "messages"),
                             ("/api/chat", {"model": "tiny", "messages": TURN, "options": {"temperature": -1}}, "temperature")):
        status, _, text = ask(path, body)
        error = json.loads(text)["error"]
        assert status == 400 and part in (error if path.startswith("/api") else error["message"]), text
    for path in ("/v1/models", "/api/tags"):
        status, _, text = ask(path, key="wrong")
        assert status == 401 and "error" in json.loads(text), text
    for path in ("/api/create", "/api/copy", "/api/push"):  # what its administration offers besides
        status, _, text = ask(path, {"model": "tiny"})
        assert status >= 400 and isinstance(json.loads(text)["error"], str), (path, text)
