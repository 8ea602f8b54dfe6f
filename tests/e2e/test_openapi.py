# SPDX-License-Identifier: Apache-2.0
"""/openapi.json describes what these endpoints really take and give."""
import json
import urllib.error
import urllib.request

import jsonschema
import pytest

MODEL = "ensemble"
HELLO = [{"role": "user", "content": "the quick brown fox"}]


@pytest.fixture(scope="module")
def description(server):
    status, d = server.request("/openapi.json")
    assert status == 200
    return d


def check(description, name, value):
    jsonschema.Draft202012Validator({"$ref": f"#/components/schemas/{name}", **description}).validate(value)


def schemas(node):
    if isinstance(node, dict):
        yield node
    for v in node.values() if isinstance(node, dict) else node if isinstance(node, list) else []:
        yield from schemas(v)


def test_it_is_well_formed(description):
    assert description["openapi"].startswith("3.1")
    for s in description["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(s)
    for node in schemas(description):
        if "$ref" in node:
            target = description
            for part in node["$ref"].removeprefix("#/").split("/"):
                target = target[part]


def test_every_path_answers(server, description):
    for path, methods in description["paths"].items():
        url = path.format(model=MODEL, response_id="resp_none", file_id="file-none", batch_id="batch_none")
        for method in methods:
            status, answer = server.request(url, b"{" if method == "post" else None, method.upper())
            wanted = 404 if "_id}" in path else 400 if method == "post" or path == "/api/delete" else 200
            assert status == wanted, (path, answer)
            if status != 200:
                error = methods[method]["responses"][str(status)]["$ref"].rsplit("/", 1)[1]
                check(description, error, answer)
        wrong = "GET" if "post" in methods and "get" not in methods else "PUT"
        assert server.request(url, method=wrong)[0] in (400, 404, 405)


FULL = {
    "chat": ("/v1/chat/completions", "ChatRequest", "ChatAnswer", {
        "model": MODEL, "messages": HELLO, "max_tokens": 6, "temperature": 1.2, "top_p": 0.9, "min_p": 0.01,
        "presence_penalty": 0.5, "frequency_penalty": -0.5, "repetition_penalty": 1.1, "top_k": 50, "min_tokens": 1,
        "n": 2, "priority": 0, "return_timings": True, "return_token_ids": True, "include_reasoning": True, "separate_reasoning": True, "reasoning_format": "deepseek", "bad_words": ["zz"], "allowed_token_ids": list(range(90)), "ignore_eos": True, "skip_special_tokens": True,
        "include_stop_str_in_output": False, "seed": 3, "stop": ["zzz"], "stop_token_ids": [5],
        "logit_bias": {"7": -3}, "logprobs": True, "top_logprobs": 2, "user": "me", "metadata": {"a": "b"},
        "add_generation_prompt": True, "chat_template_kwargs": {"x": 1}, "reasoning_effort": "low"}),
    "messages": ("/v1/messages", "MessagesRequest", "MessagesAnswer", {
        "model": MODEL, "messages": HELLO, "max_tokens": 6, "system": "kind", "temperature": 0.7, "top_p": 0.9, "top_k": 9,
        "stop_sequences": ["zzz"], "metadata": {"user_id": "me"}, "service_tier": "auto", "tool_choice": {"type": "auto"},
        "thinking": {"type": "disabled"}, "stream": False}),
    "responses": ("/v1/responses", "ResponsesRequest", "Response", {
        "model": MODEL, "input": [{"role": "user", "content": "fox"}], "max_output_tokens": 6, "instructions": "kind",
        "temperature": 0.7, "top_p": 0.9, "top_logprobs": 1, "metadata": {"a": "b"}, "store": False, "stream": False,
        "text": {"format": {"type": "text"}}, "reasoning": {"effort": "low"}, "include": [], "truncation": "disabled",
        "tool_choice": "auto", "parallel_tool_calls": True, "background": False}),
    "ollama": ("/api/chat", "OllamaChatRequest", "OllamaAnswer", {
        "model": MODEL, "messages": HELLO, "stream": False, "options": {"num_predict": 4, "temperature": 0.7}, "format": "",
        "keep_alive": "5m", "think": False}),
    "prompt": ("/api/generate", "OllamaGenerateRequest", "OllamaAnswer", {
        "model": MODEL, "prompt": "fox", "stream": False, "raw": True, "options": {"num_predict": 4}}),
    "vector": ("/api/embeddings", "OllamaVectorRequest", "OllamaVectorAnswer", {"model": MODEL, "prompt": "fox"}),
    "vectors": ("/api/embed", "OllamaEmbedRequest", "OllamaEmbedAnswer", {"model": MODEL, "input": ["fox"], "truncate": True}),
    "count": ("/v1/messages/count_tokens", "CountRequest", "CountAnswer", {"model": MODEL, "messages": HELLO}),
    "guided": ("/v1/chat/completions", "ChatRequest", "ChatAnswer", {
        "model": MODEL, "messages": HELLO, "max_tokens": 40, "response_format": {
            "type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": {
                "type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"],
                "additionalProperties": False}}}}),
    "completion": ("/v1/completions", "CompletionRequest", "CompletionAnswer", {
        "model": MODEL, "prompt": ["the", "fox"], "max_tokens": 4, "logprobs": 2, "best_of": 2, "n": 1}),
    "echo": ("/v1/completions", "CompletionRequest", "CompletionAnswer", {"model": MODEL, "prompt": "the", "max_tokens": 2, "echo": True, "logprobs": 1,
                                                                        "prompt_logprobs": 1}),
    "embedding": ("/v1/embeddings", "EmbeddingRequest", "EmbeddingAnswer", {
        "model": MODEL, "input": [[1, 2], [3]], "encoding_format": "float", "dimensions": None}),
    "base64": ("/v1/embeddings", "EmbeddingRequest", "EmbeddingAnswer", {
        "model": MODEL, "input": "fox", "encoding_format": "base64"}),
    "rerank": ("/v1/rerank", "RerankRequest", "RerankAnswer", {
        "model": MODEL, "query": "fox", "documents": ["the", {"text": "quick"}], "top_n": 1, "return_documents": True,
        "truncate_prompt_tokens": 9, "max_tokens_per_query": 4, "max_tokens_per_doc": 3, "use_activation": True, "user": "me"}),
    "texts": ("/rerank", "RerankRequest", "TextScores", {
        "query": "fox", "texts": ["the", "quick"], "raw_scores": True, "return_text": True, "truncate": False}),
    "score": ("/v1/score", "ScoreRequest", "ScoreAnswer", {"model": MODEL, "text_1": "fox", "text_2": ["the", "quick"]}),
    "llama": ("/completion", "LlamaRequest", "LlamaAnswer", {
        "prompt": "fox", "n_predict": 4, "temperature": 0.7, "n_probs": 1, "seed": -1, "cache_prompt": True, "id_slot": -1,
        "logit_bias": [[5, False]], "stop": ["zzz"], "return_tokens": True, "samplers": ["top_k"]}),
    "template": ("/apply-template", "TemplateRequest", "DetokenizeAnswer", {"messages": HELLO}),
    "tokens": ("/v1/chat/completions/input_tokens", "ChatRequest", "InputTokens", {"model": MODEL, "messages": HELLO}),
    "content": ("/tokenize", "TokenizeRequest", "TokenizeAnswer", {"content": "fox", "add_special": True}),
    "tokenize": ("/tokenize", "TokenizeRequest", "TokenizeAnswer", {"model": MODEL, "messages": HELLO}),
    "detokenize": ("/detokenize", "DetokenizeRequest", "DetokenizeAnswer", {"model": MODEL, "tokens": [1, 2]}),
}


@pytest.mark.parametrize("case", FULL)
def test_answers_are_as_described(server, description, case):
    path, takes, gives, body = FULL[case]
    check(description, takes, body)
    status, answer = server.request(path, body)
    assert status == 200, answer
    check(description, gives, answer)
    named = set()
    for node in schemas(description["components"]["schemas"][takes]):
        named |= set(node.get("properties", {}))
    named |= set(description["components"]["schemas"]["Sampling"]["properties"])
    named |= set(description["components"]["schemas"]["CountRequest"]["properties"])
    named |= set(description["components"]["schemas"]["OllamaShared"]["properties"])
    named |= set(description["components"]["schemas"]["LlamaOptions"]["properties"])
    assert set(body) <= named


@pytest.mark.parametrize("path, body, schema", [
    ("/v1/chat/completions", {"messages": HELLO, "logprobs": True}, "ChatChunk"),
    ("/v1/completions", {"prompt": "the", "logprobs": 1}, "CompletionAnswer")])
def test_chunks_are_as_described(server, description, path, body, schema):
    body = dict(body, model=MODEL, stream=True, max_tokens=5, stream_options={"include_usage": True})
    req = urllib.request.Request(server.url(path), data=json.dumps(body).encode())
    with urllib.request.urlopen(req, timeout=60) as r:
        assert r.headers["Content-Type"].startswith("text/event-stream")
        lines = [x for x in r.read().decode().split("\n\n") if x]
    assert lines[-1] == "data: [DONE]" and len(lines) > 2
    for line in lines[:-1]:
        check(description, schema, json.loads(line.removeprefix("data: ")))


def test_fields_described_are_the_fields_known(server, description):
    """No described field is reported as unknown, and each that is checked refuses a wrong type."""
    spec = description["components"]["schemas"]
    for field in spec["CountRequest"]["properties"] | spec["MessagesRequest"]["allOf"][1]["properties"]:
        body = {"model": MODEL, "messages": HELLO, "max_tokens": 2}
        req = urllib.request.Request(server.url("/v1/messages"), data=json.dumps({field: None, **body}).encode())
        with urllib.request.urlopen(req, timeout=60) as r:
            assert r.headers.get("x-nereid-warning") is None, field
    for field in spec["ResponsesRequest"]["properties"]:
        body = {field: None, "model": MODEL, "input": "fox", "max_output_tokens": 2}
        req = urllib.request.Request(server.url("/v1/responses"), data=json.dumps(body).encode())
        with urllib.request.urlopen(req, timeout=60) as r:
            assert r.headers.get("x-nereid-warning") is None, field
    for path, name in (("/v1/chat/completions", "ChatRequest"), ("/v1/completions", "CompletionRequest"),
                       ("/v1/embeddings", "EmbeddingRequest")):
        spec = description["components"]["schemas"]
        parts = [spec[name]] + [spec[p["$ref"].rsplit("/", 1)[1]] if "$ref" in p else p
                                for p in spec[name].get("allOf", [])]
        fields = {k: v for p in parts for k, v in p.get("properties", {}).items()}
        base = {"model": MODEL, "max_tokens": 2} | ({"messages": HELLO} if "chat" in path else
                                                    {"prompt": "fox"} if "Comp" in name else {"input": "fox"})
        if name == "EmbeddingRequest":
            del base["max_tokens"]
        for field, schema in fields.items():
            if field in ("model", "messages", "prompt", "input"):
                continue
            body = json.dumps(dict(base, **{field: None})).encode()
            req = urllib.request.Request(server.url(path), data=body)
            try:
                with urllib.request.urlopen(req, timeout=60) as r:
                    assert r.headers.get("x-nereid-warning") is None, field
            except urllib.error.HTTPError as e:
                raise AssertionError((path, field, e.read())) from e
            kinds = schema.get("type", [])
            if "number" in kinds or "integer" in kinds or "boolean" in kinds and len(kinds) == 2:
                status, answer = server.request(path, dict(base, **{field: "x"}))
                assert status == 400 and answer["error"]["param"] == field, (path, field, answer)


FORMS = {"POST /v1/files", "POST /v1/audio/transcriptions", "POST /v1/audio/translations"}


@pytest.mark.timeout(900)  # some two thousand requests, drawn and checked in Python
def test_random_requests_are_answered_as_described(server, description):
    schemathesis = pytest.importorskip("schemathesis")
    import hypothesis

    d = json.loads(json.dumps(description))
    spec = d["components"]["schemas"]
    for s in (spec["Sampling"], spec["EmbeddingRequest"], spec["TokenizeRequest"], spec["DetokenizeRequest"],
              spec["CountRequest"], spec["ResponsesRequest"], spec["LlamaOptions"], spec["TemplateRequest"], spec["OllamaShared"], spec["OllamaEmbedRequest"], spec["OllamaShowRequest"], spec["OllamaPullRequest"]):
        s["properties"]["model"] = {"enum": [MODEL]}
    for name in ("max_tokens", "min_tokens"):  # short, since the model is random and seldom ends
        spec["Sampling"]["properties"][name] = {"type": "integer", "minimum": 1, "maximum": 3}
    spec["MessagesRequest"]["allOf"][1]["properties"]["max_tokens"]["maximum"] = 3
    spec["ResponsesRequest"]["properties"]["max_output_tokens"] = {"type": "integer", "minimum": 1, "maximum": 3}
    spec["ResponsesRequest"]["required"] += ["max_output_tokens"]
    spec["LlamaOptions"]["properties"]["n_predict"] = {"type": "integer", "minimum": 0, "maximum": 3}
    spec["LlamaOptions"]["required"] = ["n_predict"]
    spec["LlamaRequest"]["allOf"][1]["properties"]["n_cmpl"]["maximum"] = 3
    spec["OllamaOptions"]["properties"]["num_predict"] = {"type": "integer", "minimum": 1, "maximum": 3}
    spec["OllamaOptions"]["required"] = ["num_predict"]
    spec["OllamaShared"]["properties"]["options"] = {"$ref": "#/components/schemas/OllamaOptions"}
    spec["OllamaShared"]["required"] += ["options"]
    spec["Sampling"]["required"] += ["max_tokens"]
    spec["Sampling"]["properties"]["n"]["maximum"] = 3
    schema = schemathesis.openapi.from_dict(d)
    seen = []

    for operation in schema.get_all_operations():
        if operation.ok().label in FORMS:
            continue  # their parts are drawn anew each time (test_batches.py, test_speech.py, the fuzz target multipart)
        @hypothesis.given(case=operation.ok().as_strategy())
        @hypothesis.settings(max_examples=40, deadline=None, derandomize=True, database=None,
                             suppress_health_check=list(hypothesis.HealthCheck))
        def run(case):
            response = case.call(base_url=server.url(""), timeout=60)
            seen.append((case.path, response.status_code))
            case.validate_response(response, checks=[
                schemathesis.checks.not_a_server_error,
                schemathesis.specs.openapi.checks.status_code_conformance,
                schemathesis.specs.openapi.checks.content_type_conformance,
                schemathesis.specs.openapi.checks.response_schema_conformance])
        run()
    for path, methods in d["paths"].items():
        assert any(p == path for p, _ in seen) or {f"{m.upper()} {path}" for m in methods} <= FORMS, path
    assert {p for p, s in seen if s == 200} >= {"/v1/models", "/v1/completions", "/v1/embeddings", "/detokenize"}
