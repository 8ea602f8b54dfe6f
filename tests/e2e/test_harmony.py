# SPDX-License-Identifier: Apache-2.0
"""GPT-OSS's answer format through every API: reasoning, content and calls, whole and streamed.

The model is a GPT-2 whose learned positions say which token comes next, whatever stands before: what it answers is
written into its weights, for prompts of a known length."""
import json
import subprocess
import sys
import urllib.request

import numpy as np
import pytest

from llm_server import ROOT, Server

sys.path.insert(0, str(ROOT / "tests/tinymodel"))
import gguf_file  # noqa: E402
import hf_folder  # noqa: E402
import tokenizer  # noqa: E402
import weights  # noqa: E402

MARKS = ["<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>", "<|call|>", "<|return|>", "<|endoftext|>"]
WORDS = [*tokenizer.byte_letters(), *MARKS]
IDS = {w: 256 + i for i, w in enumerate(MARKS)}
LETTERS = {w: i for i, w in enumerate(tokenizer.byte_letters())}
WIDTH, POSITIONS = 64, 512
# What the template writes of a conversation, to be seen in the answer of /apply-template.
TEMPLATE = ("{% for m in messages %}{{ '<|start|>' + m.role }}{% if m.thinking is defined %}({{ m.thinking }}){% endif %}"
            "{{ '<|message|>' + m.content }}{% for c in m.tool_calls or [] %}[{{ c.function.name }}]{% endfor %}<|end|>"
            "{% endfor %}{% if tools %}{% endif %}{% if add_generation_prompt %}<|start|>assistant{% endif %}")
TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": {
    "type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]}}}

REASONING, CONTENT, ARGUMENTS = "They say hi. ☂", "Hello <|end|>, you!", '{"place":"Rome"}'
ANSWERS = {  # what is asked, which sets the prompt's length: what comes
    "a" * 20: ["<|channel|>", "analysis", "<|message|>", REASONING, "<|end|>", "<|start|>", "assistant", "<|channel|>",
               "final", "<|message|>", ("text", CONTENT), "<|return|>"],
    "b" * 150: ["<|channel|>", "analysis", "<|message|>", "A call.", "<|end|>", "<|start|>", "assistant", "<|channel|>",
                "commentary to=functions.get_weather ", "<|constrain|>", "json", "<|message|>", ARGUMENTS, "<|call|>", "never"],
}
TALK, CALL = ANSWERS
BOUND = "c" * 300


def ids_of(part):
    if part in IDS:
        return [IDS[part]]
    text = part[1] if isinstance(part, tuple) else part  # ("text", …): no marks, whatever it looks like
    letters = tokenizer.byte_letters()
    return [LETTERS[letters[b]] for b in text.encode()]


def prompt_ids(question):
    parts = ["<|start|>", "user", "<|message|>", question, "<|end|>", "<|start|>", "assistant"]
    return [i for p in parts for i in ids_of(p)]


def tensors_of_model():
    rows = weights.normal("harmony/wte", (len(WORDS), WIDTH), 1.0, 0.0)
    rows -= rows.mean(1, keepdims=True)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    positions = np.zeros((POSITIONS, WIDTH), np.float32)
    for question, parts in ANSWERS.items():
        first = len(prompt_ids(question)) - 1
        for k, token in enumerate(i for p in parts for i in ids_of(p)):
            positions[first + k] = 100 * rows[token]
    tensors = {"wte.weight": rows, "wpe.weight": positions, "ln_f.weight": np.ones(WIDTH, np.float32) * 4,
               "ln_f.bias": np.zeros(WIDTH, np.float32)}
    for name, shape in (("attn.c_attn", (WIDTH, 3 * WIDTH)), ("attn.c_proj", (WIDTH, WIDTH)), ("mlp.c_fc", (WIDTH, 4 * WIDTH)),
                        ("mlp.c_proj", (4 * WIDTH, WIDTH))):
        tensors[f"h.0.{name}.weight"] = np.zeros(shape, np.float32)
        tensors[f"h.0.{name}.bias"] = np.zeros(shape[1], np.float32)
    for norm in ("ln_1", "ln_2"):
        tensors[f"h.0.{norm}.weight"], tensors[f"h.0.{norm}.bias"] = np.ones(WIDTH, np.float32), np.zeros(WIDTH, np.float32)
    return tensors


def write_model(folder):
    folder.mkdir()
    hf_folder.write_safetensors(folder / "model.safetensors", tensors_of_model(), "float32")
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    hf_folder.write_json(folder / "config.json", {
        "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "activation_function": "gelu_new", "n_embd": WIDTH, "n_head": 2,
        "n_layer": 1, "n_positions": POSITIONS, "n_ctx": POSITIONS, "layer_norm_epsilon": 1e-5, "vocab_size": len(WORDS),
        "eos_token_id": IDS["<|return|>"], "torch_dtype": "float32"})
    hf_folder.write_json(folder / "tokenizer.json", {
        "version": "1.0", "normalizer": None, "pre_tokenizer": byte_level, "post_processor": byte_level, "decoder": byte_level,
        "added_tokens": [{"id": i, "content": w, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
                          "special": True} for w, i in IDS.items()],
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
                  "fuse_unk": False, "byte_fallback": False, "ignore_merges": False, "merges": [],
                  "vocab": {w: i for i, w in enumerate(WORDS)}}})
    hf_folder.write_json(folder / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|return|>",
                                                            "chat_template": TEMPLATE})


def write_gguf(path):
    """<|end|> is named as what ends a turn, which it is in other families."""
    keys = [("general.architecture", "string", "gpt2"), ("gpt2.block_count", "uint32", 1), ("gpt2.context_length", "uint32", POSITIONS),
            ("gpt2.embedding_length", "uint32", WIDTH), ("gpt2.feed_forward_length", "uint32", 4 * WIDTH),
            ("gpt2.attention.head_count", "uint32", 2), ("gpt2.attention.layer_norm_epsilon", "float32", 1e-5),
            ("tokenizer.ggml.model", "string", "gpt2"), ("tokenizer.ggml.pre", "string", "gpt-4o"),
            ("tokenizer.ggml.tokens", "strings", WORDS), ("tokenizer.ggml.token_type", "int32s", 256 * [1] + len(MARKS) * [3]),
            ("tokenizer.ggml.merges", "strings", []), ("tokenizer.ggml.eos_token_id", "uint32", IDS["<|return|>"]),
            ("tokenizer.ggml.eot_token_id", "uint32", IDS["<|end|>"]), ("tokenizer.ggml.add_bos_token", "bool", False),
            ("tokenizer.chat_template", "string", TEMPLATE)]
    named = {}
    for ours, theirs in gguf_file.name_pairs("gpt2", 1):
        for end in (".weight", ".bias"):
            x = tensors_of_model().get(ours.removeprefix("transformer.") + end)
            if x is not None:
                named[theirs + end] = x.T if x.ndim == 2 and ".h." in ours else x
    gguf_file.write(path, keys, [(name, "f32", x.shape, np.ascontiguousarray(x).view(np.uint8).reshape(-1))
                                 for name, x in named.items()])


@pytest.fixture(scope="module")
def server(cache, tmp_path_factory):
    folder = tmp_path_factory.mktemp("harmony") / "model"
    write_model(folder)
    s = Server(folder, cache)
    try:
        yield s.wait_ready()
    finally:
        assert s.stop() == 0, s.log_text()[-4000:]


def ask(server, path, body):
    status, answer = server.request(path, {"model": "ensemble", "temperature": 0, **body})
    assert status == 200, answer
    return answer


def events(server, path, body):
    data = json.dumps({"model": "ensemble", "temperature": 0, "stream": True, **body}).encode()
    with urllib.request.urlopen(urllib.request.Request(server.url(path), data=data), timeout=60) as r:
        lines = [line.decode().strip() for line in r]
    lines = [line.removeprefix("data: ") for line in lines if line.startswith(("data: ", "{"))]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def user(text):
    return [{"role": "user", "content": text}]


def chat(**more):
    return {"max_tokens": 200, **more}


def test_reasoning_and_content(server):
    choice = ask(server, "/v1/chat/completions", chat(messages=user(TALK)))["choices"][0]
    assert choice["message"] == {"role": "assistant", "content": CONTENT, "refusal": None, "reasoning_content": REASONING}
    assert choice["finish_reason"] == "stop"


def test_a_call_ends_the_answer(server):
    choice = ask(server, "/v1/chat/completions", chat(messages=user(CALL), tools=[TOOL]))["choices"][0]
    call = choice["message"]["tool_calls"][0]
    assert call["function"] == {"name": "get_weather", "arguments": ARGUMENTS} and choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None and choice["message"]["reasoning_content"] == "A call."


def test_without_tools_a_call_is_content(server):
    choice = ask(server, "/v1/chat/completions", chat(messages=user(CALL)))["choices"][0]
    assert choice["message"]["content"] == ARGUMENTS and choice["finish_reason"] == "stop"


@pytest.mark.parametrize("question, tools", [(TALK, None), (CALL, [TOOL])])
def test_pieces_of_a_stream_are_the_whole(server, question, tools):
    body = chat(messages=user(question), **({"tools": tools} if tools else {}))
    whole = ask(server, "/v1/chat/completions", body)["choices"][0]
    deltas = [e["choices"][0] for e in events(server, "/v1/chat/completions", body) if e["choices"]]
    joined = {k: "".join(d["delta"].get(k) or "" for d in deltas) for k in ("content", "reasoning_content")}
    assert joined == {"content": whole["message"]["content"] or "", "reasoning_content": whole["message"]["reasoning_content"]}
    calls = [c for d in deltas for c in d["delta"].get("tool_calls", [])]
    assert [c["function"] for c in calls] == [c["function"] for c in whole["message"].get("tool_calls", [])]
    assert deltas[-1]["finish_reason"] == whole["finish_reason"]
    assert not any("<|" in (d["delta"].get("reasoning_content") or "") for d in deltas)


def test_stop_strings_are_looked_for_in_the_content(server):
    body = chat(messages=user(TALK), stop=["hi", ", you"])
    message = ask(server, "/v1/chat/completions", body)["choices"][0]["message"]
    assert message["content"] == "Hello <|end|>" and message["reasoning_content"] == REASONING


def test_bound_text_is_a_final_message(server):
    answer = ask(server, "/v1/chat/completions", chat(messages=user(BOUND), response_format={
        "type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": [7]}}}))
    assert answer["choices"][0]["message"]["content"] == "7"
    bare = len(prompt_ids(BOUND))
    assert answer["usage"]["prompt_tokens"] == bare + len("final") + 2


def test_a_text_that_goes_on_is_a_final_message(server):
    answer = ask(server, "/apply-template", {"messages": [*user("x"), {"role": "assistant", "content": "Once"}],
                                             "continue_final_message": True, "add_generation_prompt": False})
    assert answer["prompt"].endswith("<|start|>assistant<|channel|>final<|message|>Once")


def test_reasoning_comes_back_to_the_template_but_not_beside_a_text_and_a_call(server):
    call = {"type": "function", "id": "1", "function": {"name": "get_weather", "arguments": "{}"}}
    said = {"role": "assistant", "reasoning_content": "hm"}
    tool = {"role": "tool", "tool_call_id": "1", "content": "31"}

    def prompt(message):
        return ask(server, "/apply-template", {"messages": [*user("x"), {**said, **message}, tool]})["prompt"]

    assert "<|start|>assistant(hm)<|message|>[get_weather]" in prompt({"content": None, "tool_calls": [call]})
    assert "<|start|>assistant(hm)<|message|>so<|end|>" in prompt({"content": "so"})
    assert "<|start|>assistant<|message|>so[get_weather]" in prompt({"content": "so", "tool_calls": [call]})


def test_responses(server):
    body = {"input": TALK, "max_output_tokens": 200}
    whole = ask(server, "/v1/responses", body)
    assert [i["type"] for i in whole["output"]] == ["reasoning", "message"]
    assert whole["output"][0]["content"][0]["text"] == REASONING and whole["output"][1]["content"][0]["text"] == CONTENT
    assert whole["usage"]["output_tokens_details"]["reasoning_tokens"] == len(REASONING.encode()) + 1  # its end
    streamed = events(server, "/v1/responses", body)
    for kind, text in (("reasoning_text", REASONING), ("output_text", CONTENT)):
        assert "".join(e["delta"] for e in streamed if e["type"] == f"response.{kind}.delta") == text
    assert streamed[-1]["response"]["output"][1]["content"] == whole["output"][1]["content"]


def test_messages(server):
    body = {"messages": user(CALL), "max_tokens": 200, "tools": [
        {"name": "get_weather", "input_schema": TOOL["function"]["parameters"]}]}
    whole = ask(server, "/v1/messages", body)
    assert [b["type"] for b in whole["content"]] == ["thinking", "tool_use"]
    assert whole["content"][0]["thinking"] == "A call." and whole["content"][1]["input"] == {"place": "Rome"}
    assert whole["stop_reason"] == "tool_use"
    deltas = [e["delta"] for e in events(server, "/v1/messages", body) if e["type"] == "content_block_delta"]
    assert "".join(d.get("thinking", "") for d in deltas) == "A call."
    assert json.loads("".join(d.get("partial_json", "") for d in deltas)) == {"place": "Rome"}


def test_ollama(server):
    body = {"messages": user(TALK), "options": {"num_predict": 200, "temperature": 0}}
    whole = ask(server, "/api/chat", {**body, "stream": False})
    assert whole["message"] == {"role": "assistant", "content": CONTENT, "thinking": REASONING}
    pieces = [e["message"] for e in events(server, "/api/chat", body)]
    assert "".join(p["content"] for p in pieces) == CONTENT and "".join(p.get("thinking", "") for p in pieces) == REASONING


def test_special_tokens_that_are_asked_for_leave_the_text_as_it_is(server):
    choice = ask(server, "/v1/chat/completions", chat(messages=user(TALK), skip_special_tokens=False))["choices"][0]
    assert choice["message"]["content"].startswith("<|channel|>analysis<|message|>")


def test_a_gguf_file_ends_answers_where_they_end(cache, tmp_path):
    write_gguf(tmp_path / "model.gguf")
    s = Server(tmp_path / "model.gguf", cache)
    try:
        s.wait_ready()
        message = ask(s, "/v1/chat/completions", chat(messages=user(TALK)))["choices"][0]["message"]
        assert (message["reasoning_content"], message["content"]) == (REASONING, CONTENT)
        call = ask(s, "/v1/chat/completions", chat(messages=user(CALL), tools=[TOOL]))["choices"][0]
        assert call["message"]["tool_calls"][0]["function"]["arguments"] == ARGUMENTS
    finally:
        assert s.stop() == 0, s.log_text()[-4000:]


def test_the_terminal_shows_the_content(tmp_path):
    write_model(tmp_path / "model")
    done = subprocess.run([ROOT / "build/bin/nereid", "chat", tmp_path / "model", "--quiet", "--temperature", "0"], input=TALK + "\n",
                          capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert CONTENT in done.stdout and REASONING not in done.stdout and "analysis" not in done.stdout
