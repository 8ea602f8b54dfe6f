# SPDX-License-Identifier: Apache-2.0
"""llama.cpp's and vLLM's endpoints beside OpenAI's, and filling in the middle, by bare requests over a small
random model whose vocabulary has marks for it."""
import json
import shutil

import httpx
import pytest

from llm_server import Server

MODEL = "ensemble"
FOX = "the quick brown fox"
MARKS = {"<fim_prefix>": 312, "<fim_suffix>": 313, "<fim_middle>": 314, "<repo_name>": 315, "<file_sep>": 316}


@pytest.fixture(scope="module")
def server(tiny_model, cache, tmp_path_factory):
    folder = tmp_path_factory.mktemp("llama") / "model"
    shutil.copytree(tiny_model, folder)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    vocab = {i: t for t, i in tokenizer["model"]["vocab"].items()}
    for name, i in MARKS.items():
        vocab[i] = name
        tokenizer["added_tokens"].append({"id": i, "content": name, "special": True, "normalized": False, "single_word": False,
                                          "lstrip": False, "rstrip": False})
    tokenizer["model"]["vocab"] = {t: i for i, t in vocab.items()}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    s = Server(folder, cache, "--strict-model-names=true")
    try:
        yield s.wait_ready()
    finally:
        assert s.stop() == 0, s.log_text()[-4000:]


@pytest.fixture(scope="module")
def plain(tiny_model, cache):
    """Without such marks, and with a key."""
    s = Server(tiny_model, cache, "--api-key=secret")
    try:
        yield s.wait_ready()
    finally:
        assert s.stop() == 0, s.log_text()[-4000:]


def post(server, path, body, status=200):
    got, answer = server.request(path, body)
    assert got == status, (path, answer)
    return answer


def ids_of(server, text, add=False):
    return post(server, "/tokenize", {"content": text, "add_special": add})["tokens"]


def complete(server, prompt=FOX, path="/completion", **more):
    return post(server, path, {"prompt": prompt, "n_predict": 12, "temperature": 0, **more})


def continued(server, ids):
    """The same, ended by marks as an answer in the middle is."""
    return complete(server, ids, stop_token_ids=list(MARKS.values()))["content"]


def openai_text(server, prompt=FOX, **more):
    body = {"model": MODEL, "prompt": prompt, "max_tokens": 12, "temperature": 0, **more}
    return post(server, "/v1/completions", body)["choices"][0]


def stream_of(server, path, body):
    r = httpx.post(server.url(path), json=dict(body, stream=True), timeout=60)
    assert r.status_code == 200 and r.headers["content-type"].startswith("text/event-stream")
    return [json.loads(e.removeprefix("data: ")) for e in r.text.split("\n\n") if e]


def test_a_completion_is_that_of_the_other_api(server):
    r, same = complete(server, return_tokens=True), openai_text(server)
    assert r["content"] == same["text"] and r["stop"] is True and r["model"] == "model" and r["truncated"] is False
    assert r["stop_type"] == {"length": "limit", "stop": "eos"}[same["finish_reason"]] and r["stopping_word"] == ""
    assert r["tokens_evaluated"] == len(ids_of(server, FOX, add=True)) and r["tokens_predicted"] == 12
    assert post(server, "/detokenize", {"tokens": r["tokens"]})["content"] == r["content"]
    assert r["generation_settings"]["n_predict"] == 12 and r["generation_settings"]["temperature"] == 0
    assert r["timings"]["predicted_n"] == 12 and r["prompt"].endswith(FOX)
    assert complete(server, path="/completions")["content"] == r["content"] and complete(server)["tokens"] == []


@pytest.mark.parametrize("form", ["ids", "mixed", "object"])
def test_prompts_in_all_forms(server, form):
    whole = ids_of(server, FOX, add=True)
    prompt = {"ids": whole, "mixed": [*whole[:-1], whole[-1]] + [""], "object": {"prompt_string": FOX}}[form]
    assert complete(server, prompt)["content"] == complete(server)["content"]


def test_several_prompts_and_answers(server):
    many = complete(server, [FOX, ids_of(server, "the", add=True), {"prompt_string": "a"}])
    assert [r["index"] for r in many] == [0, 1, 2] and many[0]["content"] == complete(server)["content"]
    assert many[1]["content"] == complete(server, "the")["content"]
    assert len(complete(server, n_cmpl=3, temperature=1)) == 3


def test_a_stream_adds_up(server):
    whole = complete(server, n_probs=2, return_tokens=True)
    events = stream_of(server, "/completion", {"prompt": FOX, "n_predict": 12, "temperature": 0, "n_probs": 2})
    assert [e["stop"] for e in events] == [False] * (len(events) - 1) + [True] and len(events) > 5
    assert "".join(e["content"] for e in events) == whole["content"]
    assert sum((e["tokens"] for e in events), []) == whole["tokens"]
    probs = sum((e["completion_probabilities"] for e in events), [])
    assert probs == whole["completion_probabilities"] and [p["id"] for p in probs] == whole["tokens"]
    assert all(len(p["top_logprobs"]) == 2 and "id" in p["top_logprobs"][0] for p in probs)
    last = {k: v for k, v in events[-1].items() if k not in ("content", "tokens", "timings", "completion_probabilities", "generation_settings", "tokens_cached")}
    assert last == {k: whole[k] for k in last}


def test_stop_words(server):
    text = complete(server, n_predict=24)["content"]
    stop = text[len(text) // 2:][:3]
    r = complete(server, n_predict=24, stop=["@@", stop])
    assert r["content"] == text[:text.index(stop)] and (r["stop_type"], r["stopping_word"]) == ("word", stop)


def test_fields_with_other_names(server):
    assert complete(server, json_schema={"enum": ["yes"]}, n_predict=30)["content"] == '"yes"'
    assert complete(server, grammar='root ::= "ab" | "cd"', n_predict=30)["content"] in ("ab", "cd")
    assert complete(server, repeat_penalty=1.9)["content"] == openai_text(server, repetition_penalty=1.9)["text"]
    first = complete(server, n_predict=1, return_tokens=True)["tokens"][0]
    for bias in ([[first, False]], {str(first): -100}, [[first, -100.0]]):
        assert complete(server, n_predict=1, return_tokens=True, logit_bias=bias)["tokens"][0] != first
    a, b = (complete(server, temperature=1.5, seed=s)["content"] for s in (-1, -1))
    assert complete(server, temperature=1.5, seed=7)["content"] == complete(server, temperature=1.5, seed=7)["content"]
    assert a != b or complete(server, temperature=1.5)["content"] != a
    r = httpx.post(server.url("/completion"), json={"prompt": "a", "n_predict": 1, "wings": 1, "cache_prompt": True, "typical_p": 1.0})
    assert r.headers["x-nereid-warning"] == "unknown fields: wings"


def test_only_the_members_that_are_asked_for(server):
    r = complete(server, response_fields=["content", "timings/prompt_n", "generation_settings/n_predict", "none", "timings/none"])
    assert set(r) == {"content", "timings/prompt_n", "generation_settings/n_predict"} and r["generation_settings/n_predict"] == 12
    assert complete(server, n_predict=0, response_fields=[""]) == {}  # as llama.vim warms the cache
    silent = complete(server, n_predict=0, return_tokens=True)
    assert (silent["content"], silent["tokens"], silent["tokens_predicted"]) == ("", [], 0)


# ---- filling in the middle ----

def test_infill_is_the_prompt_with_marks(server):
    bos = ids_of(server, "", add=True)
    def part(mark, text):
        return [MARKS[mark], *ids_of(server, text)]
    middle = [*bos, *part("<fim_prefix>", "the quick"), *part("<fim_suffix>", " fox"), *part("<fim_middle>", "")]
    body = {"input_prefix": "the quick", "input_suffix": " fox", "n_predict": 12, "temperature": 0}
    alone = continued(server, middle)
    r = post(server, "/infill", body)
    assert r["content"] == alone and r["tokens_evaluated"] == len(middle)
    assert openai_text(server, "the quick", suffix=" fox")["text"] == r["content"]
    ollama = post(server, "/api/generate", {"model": MODEL, "prompt": "the quick", "suffix": " fox", "stream": False,
                                            "options": {"num_predict": 12, "temperature": 0}})
    assert ollama["response"] == r["content"]
    assert "".join(e["content"] for e in stream_of(server, "/infill", body)) == r["content"]
    begun = post(server, "/infill", dict(body, prompt=" br"))
    assert begun["content"] == continued(server, middle + ids_of(server, " br"))
    extra = post(server, "/infill", dict(body, input_extra=[{"filename": "a.c", "text": "the dog\n"}]))
    files = [*bos, *part("<repo_name>", "myproject\n"), *part("<file_sep>", "a.c\n"), *ids_of(server, "the dog\n"),
             *part("<file_sep>", "filename\n"), *middle[len(bos):]]
    assert extra["tokens_evaluated"] == len(files) and extra["content"] == continued(server, files)


def test_marks_in_a_text_are_text_and_marks_end_an_answer(server):
    body = {"input_prefix": "a<fim_middle>", "input_suffix": "b", "n_predict": 4}
    written = len(post(server, "/tokenize", {"content": "a<fim_middle>", "parse_special": False})["tokens"])
    assert post(server, "/infill", body)["tokens_evaluated"] == len(ids_of(server, "", add=True)) + 3 + written + 1 > 6
    bias = [[MARKS["<file_sep>"], 100]]
    r = post(server, "/infill", dict(body, n_predict=30, logit_bias=bias))
    assert r["stop_type"] == "eos" and r["content"] == "" and r["tokens_predicted"] == 1
    assert complete(server, n_predict=5, logit_bias=bias)["stop_type"] == "limit"


def test_a_model_without_marks_says_so(plain):
    key = {"Authorization": "Bearer secret"}
    r = httpx.post(plain.url("/infill"), json={"input_prefix": "a", "input_suffix": "b"}, headers=key)
    assert r.status_code == 400 and r.json()["error"]["message"].startswith("input_suffix: the model has no tokens")
    r = httpx.post(plain.url("/v1/completions"), json={"model": MODEL, "prompt": "a", "suffix": "b"}, headers=key)
    assert r.status_code == 400 and r.json()["error"]["param"] == "suffix"


# ---- questions ----

def test_tokens_in_both_forms(server):
    for text in (FOX, "ünïcödé 🦊"):
        ids = ids_of(server, text)
        pieces = post(server, "/tokenize", {"content": text, "with_pieces": True})["tokens"]
        assert [p["id"] for p in pieces] == ids
        as_bytes = b"".join(bytes(p["piece"]) if isinstance(p["piece"], list) else p["piece"].encode() for p in pieces)
        assert as_bytes.decode() == text
        back = post(server, "/detokenize", {"tokens": ids})
        assert back["content"] == back["prompt"] == text
        vllm = post(server, "/tokenize", {"model": MODEL, "prompt": text, "return_token_strs": True})
        assert vllm["tokens"] == ids_of(server, text, add=True) and len(vllm["token_strs"]) == vllm["count"]
    mixed = post(server, "/tokenize", {"content": ["the", 5, " fox"]})["tokens"]
    assert mixed == [*ids_of(server, "the"), 5, *ids_of(server, " fox")]


def test_what_is_served_and_how_busy_it_is(server):
    status, props = server.request("/props")
    model = server.request("/v1/models")[1]["data"][0]
    sequence = server.request("/ui/stats")[1]["engines"][0]["max_seq_len"]
    assert model["max_model_len"] == props["default_generation_settings"]["n_ctx"] == sequence
    assert model["architecture"]["family"] == "llama" and model["architecture"]["parameters"] > 0
    assert model["architecture"]["input_modalities"] == model["architecture"]["output_modalities"] == ["text"]
    assert status == 200 and props["model_alias"] == "model" and "<|" in props["chat_template"]
    assert props["default_generation_settings"]["params"]["temperature"] == 0.8 and props["bos_token"] == "<bos>"
    status, slots = server.request("/slots")
    assert status == 200 and len(slots) == props["total_slots"] > 0 and slots[0] == {"id": 0, "is_processing": False}
    assert server.request("/load") == (200, {"server_load": 0})
    with httpx.stream("POST", server.url("/completion"), json={"prompt": FOX, "n_predict": 400, "ignore_eos": True, "stream": True}) as r:
        next(r.iter_bytes())
        assert server.request("/load") == (200, {"server_load": 1})
        assert server.request("/slots")[1][0]["is_processing"] is True
    assert server.request("/version")[1]["version"]


def test_templates_are_applied(server):
    messages = [{"role": "user", "content": FOX}]
    prompt = post(server, "/apply-template", {"messages": messages})["prompt"]
    assert FOX in prompt and prompt.endswith("<|assistant|>")
    assert ids_of(server, prompt) == post(server, "/tokenize", {"model": MODEL, "messages": messages})["tokens"]
    assert not post(server, "/apply-template", {"messages": messages, "add_generation_prompt": False})["prompt"].endswith("<|assistant|>")


def test_messages_are_tokenized_as_a_chat_reads_them(server):
    """Parts of text, calls of tools; and what is wrong with them names the field."""
    messages = [{"role": "developer", "content": "be short"}, {"role": "user", "content": [{"type": "text", "text": "the quick"}, {"type": "text", "text": "brown"}]},
                {"role": "assistant", "content": None, "tool_calls": [{"type": "function", "id": "a", "function": {"name": "f", "arguments": '{"a": 1}'}}]},
                {"role": "user", "content": "fox"}]
    ids = post(server, "/tokenize", {"model": MODEL, "messages": messages})["tokens"]
    assert ids == ids_of(server, post(server, "/apply-template", {"messages": messages})["prompt"])
    used = post(server, "/v1/chat/completions", {"model": MODEL, "messages": messages, "max_tokens": 1})["usage"]["prompt_tokens"]
    assert len(ids) == used
    for wrong, field in (({"messages": [{"role": "user", "content": 5}]}, "messages"), ({"messages": 5}, "messages"),
                         ({"messages": messages, "tools": 5}, "tools"), ({"content": "a", "with_pieces": "yes"}, "with_pieces"),
                         ({"prompt": "a", "add_special_tokens": 5}, "add_special_tokens")):
        status, answer = server.request("/tokenize", {"model": MODEL, **wrong})
        assert status == 400 and answer["error"]["param"] == field, answer


def test_health_needs_no_key(plain):
    for path in ("/health", "/v1/health", "/ping"):
        assert plain.request(path) == (200, {"status": "ok"})
    assert plain.request("/ping", b"")[0] == 200
    for path, body in (("/completion", {}), ("/infill", {}), ("/props", None), ("/slots", None), ("/apply-template", {}),
                       ("/load", None), ("/version", None), ("/tokenize", {}), ("/reset_prefix_cache", {})):
        assert plain.request(path, body)[0] == 401, path


@pytest.mark.parametrize("path, body, part", [
    ("/completion", {}, "prompt: is missing"), ("/completion", {"prompt": 1e9}, "prompt"), ("/completion", {"prompt": [1, True]}, "prompt"),
    ("/completion", {"prompt": {"prompt_string": "a", "multimodal_data": ["x"]}}, "multimodal_data"),
    ("/completion", {"prompt": "a", "n_predict": -3}, "n_predict:"), ("/completion", {"prompt": "a", "temperature": 9}, "temperature:"),
    ("/completion", {"prompt": "a", "repeat_penalty": 0}, "repeat_penalty:"), ("/completion", {"prompt": "a", "n_probs": 99}, "n_probs:"),
    ("/completion", {"prompt": "a", "mirostat": 2}, "mirostat:"), ("/completion", {"prompt": "a", "typical_p": "x"}, "typical_p:"),
    ("/completion", {"prompt": "a", "logit_bias": [1]}, "logit_bias:"), ("/completion", {"prompt": "a", "logit_bias": [[999999, 1]]}, "logit_bias:"),
    ("/completion", {"prompt": "a", "response_fields": "x"}, "response_fields:"), ("/completion", {"prompt": "a", "lora": [{"id": 0}]}, "lora:"),
    ("/completion", {"prompt": "a", "grammar": "root ::= ("}, ""), ("/completion", {"prompt": "a", "stream": 1}, "stream:"),
    ("/completion", {"prompt": "a", "return_tokens": 1}, "return_tokens:"), ("/completion", {"prompt": "a", "model": 3}, "model:"),
    ("/infill", {"input_suffix": "a"}, "input_prefix:"), ("/infill", {"input_prefix": "a"}, "input_suffix:"),
    ("/infill", {"input_prefix": "a", "input_suffix": "b", "prompt": 3}, "prompt:"),
    ("/infill", {"input_prefix": "a", "input_suffix": "b", "input_extra": [{"filename": "x"}]}, "input_extra:"),
    ("/infill", {"input_prefix": "a", "input_suffix": "b", "input_extra": 3}, "input_extra:"),
    ("/apply-template", {}, "messages:"), ("/apply-template", {"messages": []}, "messages:"), ("/completion", b"[", "body"),
])
def test_errors_have_llamas_form(server, path, body, part):
    error = post(server, path, body, 400)["error"]
    assert set(error) == {"code", "type", "message"} and error["code"] == 400 and error["type"] == "invalid_request_error"
    assert part in error["message"] and "\n" not in error["message"]


def test_what_is_refused_by_name(server):
    assert post(server, "/completion", {"prompt": "a", "model": "none"}, 404)["error"]["type"] == "not_found_error"
    assert "prefix cache" in post(server, "/reset_prefix_cache", b"", 400)["error"]["message"]
    assert "content" in post(server, "/tokenize", {}, 400)["error"]["message"]
    assert post(server, "/v1/completions", {"model": MODEL, "prompt": ["a", "b"], "suffix": "c"}, 400)["error"]["param"] == "prompt"
    assert post(server, "/v1/completions", {"model": MODEL, "prompt": "a", "suffix": 3}, 400)["error"]["param"] == "suffix"
