# SPDX-License-Identifier: Apache-2.0
"""What one request names is refused before memory is taken, and the server lives."""
import json
import queue
import re
import subprocess
import time

import numpy as np
import pytest

from llm_server import BIN, Server


def infer(server, model, inputs, **more):
    body = {"inputs": [dict(name=n, datatype=t, shape=s, data=d) for n, t, s, d in inputs], **more}
    return server.request(f"/v2/models/{model}/infer", body)


def text_of(server, ids):
    model = server.request("/v1/models")[1]["data"][0]["id"]
    return server.request("/detokenize", {"model": model, "tokens": ids})[1]["prompt"]


def still_answers(server):
    status, answer = server.generate({"text_input": "the quick", "max_tokens": 2})
    assert status == 200, answer


@pytest.mark.parametrize("n", [1025, 2147483647])
def test_a_stream_of_too_many_sequences_is_refused(server, n):
    status, answer = server.request("/v2/models/ensemble/generate_stream", {
        "text_input": "the", "max_tokens": 2, "stream": True, "num_return_sequences": n})
    assert status == 400 and "num_return_sequences" in answer and "1024" in answer, answer
    still_answers(server)


@pytest.mark.parametrize("shape", [[1, 0, 2**40], [1, 2**40, 0]])
def test_token_ids_whose_shape_has_no_elements_take_no_memory(server, shape):
    """limits: RETURN_SEQUENCES"""
    status, answer = infer(server, "postprocessing", [
        ("TOKENS_BATCH", "INT32", shape, []), ("SEQUENCE_LENGTH", "INT32", shape[:2], [])])
    if shape[1]:
        assert status == 400, answer
    else:
        assert status == 200, answer
    still_answers(server)


def test_each_row_of_a_batch_follows_its_own_guide(server):
    grpc = pytest.importorskip("tritonclient.grpc")
    status, prompt = server.request("/tokenize", {"model": server.request("/v1/models")[1]["data"][0]["id"],
                                                  "prompt": "the quick"})
    assert status == 200, prompt
    patterns = ["the{8}", "q{9}"]
    rows = {"input_ids": np.array([prompt["tokens"]] * 2, np.int32),
            "input_lengths": np.array([[len(prompt["tokens"])]] * 2, np.int32),
            "request_output_len": np.array([[64]] * 2, np.int32),
            "streaming": np.array([[False]] * 2),
            "end_id": np.array([[1]] * 2, np.int32),
            "exclude_input_in_output": np.array([[True]] * 2),
            "guided_decoding_guide_type": np.array([[b"regex"]] * 2, object),
            "guided_decoding_guide": np.array([[p.encode()] for p in patterns], object)}
    types = {"int32": "INT32", "bool": "BOOL", "object": "BYTES"}
    inputs = []
    for name, array in rows.items():
        inputs.append(grpc.InferInput(name, list(array.shape), types[str(array.dtype)]))
        inputs[-1].set_data_from_numpy(array)
    answers = queue.Queue()
    with grpc.InferenceServerClient(f"127.0.0.1:{server.grpc}") as client:
        client.start_stream(lambda result, error: answers.put((result, error)))
        client.async_stream_infer("tensorrt_llm", inputs)
        found = {}
        for _ in patterns:
            result, error = answers.get(timeout=60)
            assert error is None, error
            n = int(result.as_numpy("sequence_length").flat[0])
            ids = [int(i) for i in result.as_numpy("output_ids").flat[:n]]
            row = int(result.as_numpy("batch_index").flat[0])
            found[row] = text_of(server, ids)
    assert found == {0: "theeeeeeee", 1: "qqqqqqqqq"}



def model_of(server):
    return server.request("/v1/models")[1]["data"][0]["id"]


def ask_tokens(server, n=1, **more):
    """A request to the model of tokens itself."""
    return server.generate({"input_ids": [3], "input_lengths": [1], "request_output_len": [n],
                            "exclude_input_in_output": [True], **more}, model="tensorrt_llm")


def test_a_bias_of_more_tokens_than_the_limit_is_refused(server):
    body = {"model": model_of(server), "prompt": "the", "max_tokens": 1,
            "logit_bias": {"0" * i: 1 for i in range(1, 4098)}}
    status, answer = server.request("/v1/completions", body)
    assert status == 400 and answer["error"]["param"] == "logit_bias", answer
    assert "4097 entries, at most 4096" in answer["error"]["message"]
    status, answer = ask_tokens(server, logit_bias=json.dumps({str(i): 1 for i in range(4097)}))
    assert status == 400 and "logit_bias has 4097 entries, at most 4096" in str(answer), answer
    still_answers(server)


@pytest.mark.parametrize("text", ["[1]", '{"a": 1}', '{"-1": 1}', '{"1": "x"}', '{"1": NaN}', "{",
                                  '{"999999999": 1}'])
def test_a_wrong_bias_names_itself(server, text):
    """limits: LOGIT_BIAS"""
    status, answer = ask_tokens(server, logit_bias=text)
    assert status == 400 and "logit_bias" in str(answer), answer


@pytest.mark.parametrize("text", ["[]", "{}", "[-1]", '["x"]', "[999999999]", "[", "[" + "1," * 200000 + "1]"], ids=lambda t: t[:12])
def test_a_wrong_list_of_allowed_tokens_names_itself(server, text):
    status, answer = ask_tokens(server, allowed_token_ids=text)
    assert status == 400 and "allowed_token_ids" in str(answer), answer


def test_allowed_tokens_are_a_parameter_too(server):
    for more in ({}, {"embedding_bias": [0.0] * 7 + [50.0]}, {"logit_bias": json.dumps({"7": 50, "9": 100})}):
        status, answer = ask_tokens(server, 4, allowed_token_ids="[7, 8]", **more)
        assert status == 200 and set(answer["output_ids"]) <= ({7} if more else {7, 8}), answer
    status, answer = ask_tokens(server, allowed_token_ids="[7]", logit_bias='{"7": 1}', embedding_bias=[1.0])
    assert status == 400 and "both given" in str(answer), answer


def test_a_bias_given_as_a_parameter_and_as_a_vector_choose_the_same(server):
    token = 7
    for more in ({"logit_bias": json.dumps({str(token): 100})}, {"embedding_bias": [0.0] * token + [100.0]}):
        status, answer = ask_tokens(server, 4, **more)
        assert status == 200, answer
        assert answer["output_ids"] == [token] * 4, answer


def wide_pattern():
    """Thirty letters that can be written, then a state of more places than GUIDE_PLACES: its letters may all be left out."""
    return "[a-m]{30}[n-z]" + "([a-c]?[d-f]?[g-i]?[j-l]?){5000}"


def test_a_guide_that_passes_a_limit_ends_its_request_with_the_limits_name(server):
    body = {"model": model_of(server), "prompt": "the", "max_tokens": 100, "min_tokens": 90, "guided_regex": wide_pattern()}
    status, answer = server.request("/v1/completions", body)
    assert status == 400 and "GUIDE_PLACES" in answer["error"]["message"], answer
    status, answer = server.request("/v1/completions", dict(body, n=2))
    assert status == 400 and "GUIDE_PLACES" in answer["error"]["message"], answer
    status, answer = server.generate({"text_input": "the", "max_tokens": 100, "min_length": 90,
                                      "guided_decoding_guide_type": "regex",
                                      "guided_decoding_guide": wide_pattern()})
    assert status == 400 and "GUIDE_PLACES" in str(answer), answer
    still_answers(server)


def test_a_guide_that_is_wrong_is_an_error_of_its_request(server):
    for pattern in ("(", "a{5,2}"):
        body = {"model": model_of(server), "prompt": "the", "max_tokens": 4, "guided_regex": pattern}
        status, answer = server.request("/v1/completions", body)
        assert status == 400 and answer["error"]["message"].startswith("guided_regex: regex at"), answer
    still_answers(server)


def test_a_prompt_that_no_engine_can_take_is_refused_before_it_is_tokenized(server):
    """40 MB: tokenizing them took 30 s. Of a chat 8 MB, which its template can take. limits: PROMPT_TEXT"""
    model = server.request("/v1/models")[1]["data"][0]["id"]
    text = "word " * 8_000_000
    asks = [("/v1/completions", {"model": model, "prompt": text, "max_tokens": 1}),
            ("/v1/chat/completions", {"model": model, "messages": [{"role": "user", "content": text[:8 << 20]}]}),
            ("/v2/models/ensemble/generate", {"text_input": text, "max_tokens": 1}),
            ("/v2/models/preprocessing/generate", {"QUERY": text, "REQUEST_OUTPUT_LEN": 1})]
    for path, body in asks:
        began = time.monotonic()
        status, answer = server.request(path, body)
        took = time.monotonic() - began
        assert status == 400 and "bytes) exceeds maximum input length" in json.dumps(answer), (path, answer)
        if path.startswith("/v1"):
            assert answer["error"]["code"] == "context_length_exceeded", answer
        assert took < 5, (path, took)
    still_answers(server)


@pytest.mark.parametrize("fields, told", [
    ({"prompt": ["a"] * 129}, "at most 128 prompts"), ({"n": 129}, "128"), ({"prompt": ["a"] * 3, "n": 43}, "128"),
    ({"stop": ["x"] * 17}, "at most 16 strings"), ({"bad_words": ["a"] * 257}, "at most 256 strings"),
    ({"bad_words": ["a b c d e f g h " * 40] * 250}, "more than 32768 tokens")])
def test_lists_of_a_completion_have_limits(server, fields, told):
    """limits: PROMPTS, CHOICES, STOPS, BAD_WORDS, BAD_WORD_TOKENS"""
    status, answer = server.request("/v1/completions", {"model": model_of(server), "prompt": "a", "max_tokens": 1, **fields})
    assert status == 400 and told in answer["error"]["message"], answer
    still_answers(server)


def test_a_prompt_a_little_too_long_is_counted_in_tokens(server):
    """Short texts are tokenized, so that the message tells the tokens."""
    model = server.request("/v1/models")[1]["data"][0]["id"]
    status, answer = server.request("/v1/completions", {"model": model, "prompt": "the quick " * 5000,
                                                        "max_tokens": 1})
    assert status == 400 and answer["error"]["code"] == "context_length_exceeded", answer
    assert re.fullmatch(r"The prompt has \d{5} tokens; the model takes at most \d+\.", answer["error"]["message"]), answer


def test_logits_that_one_request_may_not_have_are_refused(tiny_model, cache, tmp_path):
    engine, repo = tmp_path / "engine", tmp_path / "repo"
    for words in (["build", tiny_model, "--output_dir", engine, "--gather_context_logits",
                   "--gather_generation_logits"],
                  ["repo", "--engine_dir", engine, "--tokenizer_dir", tiny_model, "--output_dir", repo]):
        subprocess.run([BIN / "nereid", *map(str, words)], check=True, capture_output=True)
    s = Server(repo, cache, "--max-request-memory-mb=1", "--max-inflight-memory-mb=2")
    try:
        s.wait_ready()

        def ask(n_prompt, n_new, n=1, **more):
            return s.request("/v2/models/tensorrt_llm/generate_stream", {
                "input_ids": [5] * n_prompt, "input_lengths": [n_prompt], "request_output_len": [n_new],
                "num_return_sequences": [n], "streaming": [True], **more})

        def event(answer):
            return answer if isinstance(answer, str) else json.dumps(answer)

        status, answer = ask(4, 4, return_context_logits=[True], return_generation_logits=[True])
        assert status == 200 and "context_logits" in event(answer), answer
        for more in ({"n": 1024, "return_generation_logits": [True]}, {"n": 1024, "return_log_probs": [True]}):
            status, answer = ask(4, 200, **more)
            assert status == 400 and "--max-request-memory-mb" in event(answer), (more, answer)
        assert ask(4, 4)[0] == 200
    finally:
        assert s.stop() == 0
    assert "were not given back" not in s.log_text()


def test_the_choices_of_one_request_are_one_account(tiny_model, cache):
    """The engine's memory of each is below what one request may have."""
    s = Server(tiny_model, cache, "--max-request-memory-mb=1", "--max-inflight-memory-mb=64")
    try:
        s.wait_ready()

        def ask(n, **more):
            return s.request("/v1/completions", {"model": model_of(s), "prompt": "the quick", "max_tokens": 200, "n": n,
                                                 "logprobs": 5, **more})

        assert ask(2)[0] == 200
        for more in ({}, {"stream": True}):
            status, answer = ask(64, **more)
            assert "--max-request-memory-mb" in str(answer) and (more or status == 400), answer
        assert ask(2)[0] == 200
    finally:
        assert s.stop() == 0
    assert "were not given back" not in s.log_text()


@pytest.mark.parametrize("model", ["ensemble", "tensorrt_llm_bls"])
def test_a_body_and_the_engines_part_of_its_request_are_one_account(tiny_model, cache, model):
    """Each alone is below the limit; the engine is reached over the steps of a model."""
    s = Server(tiny_model, cache, "--max-request-memory-mb=1", "--max-inflight-memory-mb=64")
    try:
        s.wait_ready()

        def ask(n_blanks, n_sequences):
            body = {"text_input": "the quick", "max_tokens": 200, "stream": True, "return_log_probs": True,
                    "num_return_sequences": n_sequences}
            return s.request(f"/v2/models/{model}/generate_stream", json.dumps(body).encode() + b" " * n_blanks)[1]

        long_body, many = 300_000, 110
        for blanks, n in ((long_body, 1), (0, many)):
            answer = ask(blanks, n)
            assert "text_output" in str(answer) and "error" not in str(answer), str(answer)[:300]
        assert "--max-request-memory-mb" in str(ask(long_body, many))
        assert "error" not in str(ask(long_body, 1))
    finally:
        assert s.stop() == 0
    assert "were not given back" not in s.log_text()


@pytest.fixture(scope="module")
def wide(tiny_model, cache):
    """Models that take large batches."""
    s = Server(tiny_model, cache, "--set=triton_max_batch_size:70000").wait_ready()
    yield s
    assert s.stop() == 0


def first_answer(server, n, until_error=False, **more):
    """The error of the first answer to a stream of n rows, or of the first answer that is one; None: it has none."""
    grpc = pytest.importorskip("tritonclient.grpc")
    answers, inputs = queue.Queue(), []
    for name, value in {"input_ids": 5, "input_lengths": 1, "request_output_len": 1, **more}.items():
        inputs.append(grpc.InferInput(name, [n, 1], "INT32"))
        inputs[-1].set_data_from_numpy(np.full((n, 1), value, np.int32))
    with grpc.InferenceServerClient(f"127.0.0.1:{server.grpc}") as client:
        client.start_stream(lambda result, error: answers.put(error))
        client.async_stream_infer("tensorrt_llm", inputs)
        error = answers.get(timeout=120)
        while until_error and not error:
            error = answers.get(timeout=120)
    return error and error.message()


def test_a_batch_of_too_many_rows_is_refused(wide):
    """limits: REQUEST_ROWS"""
    assert "the batch is 4097, expected 1 to 4096" in first_answer(wide, 4097)
    assert first_answer(wide, 3) is None


def test_rows_do_not_ask_for_more_sequences_together_than_a_request_may(wide):
    """limits: REQUEST_SEQUENCES"""
    assert "a request may have 4096" in first_answer(wide, 5, until_error=True, num_return_sequences=1024)
    assert first_answer(wide, 3, num_return_sequences=2) is None


def test_a_batch_of_too_many_texts_is_refused(wide):
    """limits: TEXT_ROWS"""
    n = 65537
    status, answer = infer(wide, "preprocessing", [("QUERY", "BYTES", [n, 1], ["a"] * n),
                                                   ("REQUEST_OUTPUT_LEN", "INT32", [n, 1], [1] * n)])
    assert status == 400 and "expected 1 to 65536" in str(answer), answer
    status, answer = infer(wide, "postprocessing", [("TOKENS_BATCH", "INT32", [1, n, 1], [5] * n), ("SEQUENCE_LENGTH", "INT32", [1, n], [1] * n)])
    assert status == 400 and "at most 65536" in str(answer), answer
    still_answers(wide)


def test_texts_of_very_unlike_length_do_not_fill_memory_with_padding(wide):
    """limits: TEXT_ELEMENTS"""
    n = 60000
    status, answer = infer(wide, "preprocessing", [("QUERY", "BYTES", [n, 1], ["a b c d " * 400] + ["a"] * (n - 1)),
                                                   ("REQUEST_OUTPUT_LEN", "INT32", [n, 1], [1] * n)])
    assert status == 400 and "more than 67108864 in all" in str(answer), answer
    still_answers(wide)
