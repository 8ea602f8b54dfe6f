# SPDX-License-Identifier: Apache-2.0
"""What editors and agents ask, request by request with their fields, and what they read of the answers: llama.vim
(January 2026), Continue's providers, Codex, Claude Code. The programs themselves are not run; the requests are those of
their public sources, of Claude Code those that its users have published."""
import json

import pytest

from asking import events, lines, server_of, whole

MARKS = {"<fim_prefix>": 312, "<fim_suffix>": 313, "<fim_middle>": 314, "<repo_name>": 315, "<file_sep>": 316}
TEMPLATE = ("{% for t in tools or [] %}{{ t.function.name }} {% endfor %}{% for m in messages %}{{ '<|' ~ m.role ~ '|>' }}"
            "{% if m.content is string %}{{ m.content }}{% else %}{% for c in m.content or [] %}{{ c.text }}{% endfor %}{% endif %}"
            "{% for c in m.tool_calls or [] %}{{ c.function | tojson }}{% endfor %}{% endfor %}"
            "<|assistant|>{% if enable_thinking %}<think>{% endif %}")
PREFIX, SUFFIX = "the quick\n", "\nthe lazy dog"


def with_marks(folder):
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    vocab = {i: t for t, i in tokenizer["model"]["vocab"].items()}
    for name, i in MARKS.items():
        vocab[i] = name
        tokenizer["added_tokens"].append({"id": i, "content": name, "special": True, "normalized": False, "single_word": False,
                                          "lstrip": False, "rstrip": False})
    tokenizer["model"]["vocab"] = {t: i for i, t in vocab.items()}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "chat_template.jinja").write_text(TEMPLATE)


@pytest.fixture(scope="module")
def ask(tmp_path_factory):
    with server_of(tmp_path_factory.mktemp("agents"), with_marks) as request:
        yield request


# ---- llama.vim ----

EXTRA = [{"filename": "a.py", "text": "the fox", "time": [1, 2]}]
TIMINGS = [f"timings/{a}_{b}" for a in ("prompt", "predicted") for b in ("n", "ms", "per_token_ms", "per_second")]


def test_llama_vim_fills_in_the_middle(ask):
    warm = {"id_slot": 0, "input_prefix": "", "input_suffix": "", "input_extra": EXTRA, "prompt": "", "n_predict": 0,
            "temperature": 0.0, "samplers": [], "stream": False, "cache_prompt": True, "t_max_prompt_ms": 1, "t_max_predict_ms": 1,
            "response_fields": [""]}
    assert whole(ask("/infill", warm)) == {}  # it reads nothing of this one
    body = {"id_slot": 0, "input_prefix": PREFIX, "input_suffix": SUFFIX, "input_extra": EXTRA, "prompt": "brown", "n_predict": 8,
            "stop": [], "n_indent": 0, "top_k": 40, "top_p": 0.9, "samplers": ["top_k", "top_p", "infill"], "stream": False,
            "cache_prompt": True, "t_max_prompt_ms": 500, "t_max_predict_ms": 5000,
            "response_fields": ["content", *TIMINGS, "truncated", "tokens_cached"]}
    answer = whole(ask("/infill", body))
    assert isinstance(answer["content"], str) and answer["truncated"] is False and isinstance(answer["tokens_cached"], int)
    assert all(isinstance(answer[name], (int, float)) for name in TIMINGS) and answer["timings/predicted_n"] <= 8
    assert set(answer) == {"content", *TIMINGS, "truncated", "tokens_cached"}


def test_llama_vim_edits_by_instruction(ask):
    messages = [{"role": "system", "content": "You edit code."}, {"role": "user", "content": "the quick brown fox"}]
    warm = {"id_slot": 3, "messages": messages, "samplers": [], "n_predict": 0, "stream": False, "cache_prompt": True,
            "response_fields": [""]}
    assert ask("/v1/chat/completions", dict(warm, model="tiny"))[0] == 200
    body = {"id_slot": 3, "messages": messages, "min_p": 0.1, "temperature": 0.1, "samplers": ["min_p", "temperature"], "stream": True,
            "cache_prompt": True, "max_tokens": 8}
    for more in ({}, {"model": "tiny"}):  # its default names no model
        chunks = events(ask("/v1/chat/completions", dict(body, **more)))
        assert "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks if c["choices"])


# ---- Continue ----

HOLE = f"<fim_prefix>{PREFIX}<fim_suffix>{SUFFIX}<fim_middle>"
STOPS = ["<fim_prefix>", "<fim_suffix>", "<fim_middle>", "\n\n", "```"]


def test_continue_completes_over_each_of_its_providers(ask):
    key = {"Authorization": "Bearer none", "api-key": "none"}
    assert [m["id"] for m in whole(ask("/v1/models", headers=key))["data"]] == ["tiny"]
    legacy = {"model": "tiny", "prompt": HOLE, "max_tokens": 8, "temperature": 0.01, "top_p": 1, "frequency_penalty": 0,
              "presence_penalty": 0, "stop": STOPS[:4], "stream": True}
    texts = [c["choices"][0]["text"] for c in events(ask("/v1/completions", legacy, key)) if c["choices"]]
    native = {"prompt": HOLE, "stream": True, "n_predict": 8, "min_p": 0, "mirostat": 0, "stop": STOPS, "top_k": 40, "top_p": 1,
              "temperature": 0.01}
    assert "".join(texts) and any(c["content"] for c in events(ask("/completion", native, key)))

    assert whole(ask("/api/show", {"name": "tiny"}))["model_info"]
    options = {"temperature": 0.01, "num_predict": 8, "stop": STOPS, "num_ctx": 256, "num_thread": 2, "use_mmap": True}
    raw = {"model": "tiny", "prompt": HOLE, "raw": True, "options": options, "keep_alive": 1800, "stream": True}
    assert lines(ask("/api/generate", raw))[-1]["done"] is True
    filled = dict(raw, prompt=PREFIX, suffix=SUFFIX)
    del filled["raw"]
    assert "".join(x["response"] for x in lines(ask("/api/generate", filled)))
    chat = {"model": "tiny", "messages": [{"role": "user", "content": "the quick brown fox"}], "options": options, "keep_alive": 1800,
            "stream": False, "tools": [{"type": "function", "function": {"name": "read_file", "parameters": {"type": "object"}}}]}
    assert whole(ask("/api/chat", chat))["message"]["role"] == "assistant"


# ---- Codex ----

SHELL = {"type": "function", "name": "shell", "description": "Runs a shell command", "strict": False, "parameters": {
    "type": "object", "properties": {"command": {"type": "array", "items": {"type": "string"}}, "timeout_ms": {"type": "number"}},
    "required": ["command"], "additionalProperties": False}}
PLAN = {"type": "function", "name": "update_plan", "description": "The plan", "strict": False, "parameters": {
    "type": "object", "properties": {"plan": {"type": "array", "items": {"type": "object", "properties": {
        "step": {"type": "string"}, "status": {"type": "string"}}, "required": ["step", "status"], "additionalProperties": False}}},
    "required": ["plan"], "additionalProperties": False}}
TURN = [{"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "the rules"}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "<environment_context>x</environment_context>"}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "the quick brown fox"}]}]
CODEX = {"model": "tiny", "instructions": "You are a coding agent.", "input": TURN, "tools": [SHELL, PLAN], "tool_choice": "auto",
         "parallel_tool_calls": False, "reasoning": {"effort": "medium", "summary": "auto"}, "store": False, "stream": True,
         "include": ["reasoning.encrypted_content"], "prompt_cache_key": "0190-1", "text": {"verbosity": "medium"}}
HEADERS = {"originator": "codex_cli_rs", "session_id": "0190-1", "conversation_id": "0190-1", "Accept": "text/event-stream"}


def turn(ask, **more):
    """The items that are done, as Codex takes them from the events, and the usage at the end."""
    found = events(ask("/v1/responses", dict(CODEX, max_output_tokens=24, **more), HEADERS))
    kinds = [e["type"] for e in found]
    assert kinds[0] == "response.created" and kinds[-1] in ("response.completed", "response.incomplete")
    items = [e["item"] for e in found if e["type"] == "response.output_item.done"]
    assert len(items) == kinds.count("response.output_item.added") > 0
    for e in found:
        if e["type"] == "response.output_text.delta":
            assert isinstance(e["delta"], str)
        elif e["type"] == "response.reasoning_summary_text.delta":
            assert isinstance(e["summary_index"], int)
    usage = found[-1]["response"]["usage"]
    assert usage["input_tokens_details"]["cached_tokens"] >= 0 and usage["output_tokens_details"]["reasoning_tokens"] >= 0
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"] and found[-1]["response"]["id"]
    return items, usage


def test_codex_has_a_turn_and_sends_it_back(ask):
    items, first = turn(ask)
    called = [*TURN, *items, {"type": "function_call", "name": "shell", "arguments": '{"command": ["ls"]}', "call_id": "call_1"},
              {"type": "function_call_output", "call_id": "call_1", "output": '{"output":"a.py","metadata":{"exit_code":0}}'}]
    again, second = turn(ask, input=called)
    assert second["input_tokens"] > first["input_tokens"] and again
    patch = [*called, {"type": "reasoning", "summary": [{"type": "summary_text", "text": "so"}], "content": None,
                       "encrypted_content": None}]
    assert turn(ask, input=patch)[0]


def test_codex_calls_its_shell(ask):
    found = events(ask("/v1/responses", dict(CODEX, tool_choice="required", tools=[PLAN | {"parameters": {
        "type": "object", "properties": {"step": {"enum": ["one", "two"]}}, "required": ["step"], "additionalProperties": False}}],
        max_output_tokens=60), HEADERS))
    calls = [e["item"] for e in found if e["type"] == "response.output_item.done" and e["item"]["type"] == "function_call"]
    assert len(calls) == 1 and calls[0]["name"] == "update_plan" and json.loads(calls[0]["arguments"])["step"] in ("one", "two")
    assert calls[0]["call_id"]


def test_codex_is_told_when_its_conversation_is_too_long(ask):
    long = [*TURN, {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "the quick brown fox " * 3000}]}]
    status, _, text = ask("/v1/responses", dict(CODEX, input=long), HEADERS)
    assert status == 400 and json.loads(text)["error"]["code"] == "context_length_exceeded"


# ---- Claude Code ----

READ = {"name": "Read", "description": "Reads a file", "input_schema": {"type": "object", "properties": {
    "file_path": {"type": "string"}, "limit": {"type": "number"}}, "required": ["file_path"], "additionalProperties": False,
    "$schema": "http://json-schema.org/draft-07/schema#"}}
MARK = {"cache_control": {"type": "ephemeral"}}
ASKED = [{"role": "user", "content": [{"type": "text", "text": "<system-reminder>x</system-reminder>"},
                                      {"type": "text", "text": "the quick brown fox", **MARK}]}]
CLAUDE = {"model": "claude-sonnet-4-5-20250929", "messages": ASKED, "system": [
    {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.0"}, {"type": "text", "text": "You are an agent.", **MARK}],
          "tools": [READ], "metadata": {"user_id": "user_1_account__session_2"}, "max_tokens": 32, "stream": True}
BETA = {"anthropic-version": "2023-06-01", "x-app": "cli", "Authorization": "Bearer none",
        "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14,context-management-2025-06-27"}


def message(ask, **more):
    """The blocks, put together from the events as the SDK does it."""
    found = events(ask("/v1/messages?beta=true", CLAUDE | more, BETA))
    assert found[0]["type"] == "message_start" and found[-1]["type"] == "message_stop" and found[0]["message"]["usage"]["input_tokens"] > 0
    blocks = {}
    for e in found:
        if e["type"] == "content_block_start":
            blocks[e["index"]] = dict(e["content_block"], text="")
        elif e["type"] == "content_block_delta":
            d = e["delta"]
            blocks[e["index"]]["text"] += d.get("text") or d.get("thinking") or d.get("partial_json") or ""
    delta = [e for e in found if e["type"] == "message_delta"][-1]
    assert delta["usage"]["output_tokens"] > 0 and delta["delta"]["stop_reason"]
    return list(blocks.values()), delta["delta"]["stop_reason"]


def test_claude_code_looks_whether_there_is_room(ask):
    body = {"model": "claude-haiku-4-5-20251001", "max_tokens": 1, "messages": [{"role": "user", "content": "quota"}],
            "metadata": CLAUDE["metadata"]}
    assert whole(ask("/v1/messages?beta=true", body, BETA))["content"]
    count = {k: CLAUDE[k] for k in ("model", "messages", "system", "tools")}
    assert whole(ask("/v1/messages/count_tokens?beta=true", count, BETA))["input_tokens"] > 10


def test_claude_code_has_turns_with_a_tool(ask):
    blocks, reason = message(ask)
    assert blocks and blocks[0]["type"] == "text" and reason in ("end_turn", "max_tokens")
    called = [*ASKED, {"role": "assistant", "content": [{"type": "text", "text": "so"}, {
        "type": "tool_use", "id": "toolu_1", "name": "Read", "input": {"file_path": "/a"}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "1 the fox", "is_error": False, **MARK}]}]
    assert message(ask, messages=called)[0]
    forced, reason = message(ask, tools=[READ | {"input_schema": {"type": "object", "properties": {"file_path": {"enum": ["/a", "/b"]}},
                             "required": ["file_path"]}}], tool_choice={"type": "tool", "name": "Read"}, max_tokens=60)
    assert reason == "tool_use" and json.loads(forced[-1]["text"])["file_path"] in ("/a", "/b") and forced[-1]["id"]


@pytest.mark.parametrize("thinking", [{"type": "enabled", "budget_tokens": 1024}, {"type": "adaptive"}])
def test_claude_code_thinks(ask, thinking):
    blocks, _ = message(ask, thinking=thinking, temperature=1, context_management={"edits": [
        {"type": "clear_thinking_20251015", "keep": "all"}]}, output_config={"effort": "high"})
    assert blocks[0]["type"] == "thinking" and blocks[0]["text"]
