# SPDX-License-Identifier: Apache-2.0
"""What one request names is refused before memory is taken, and the server lives."""
import json
import queue

import numpy as np
import pytest


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
    status, answer = ask_tokens(server, logit_bias=text)
    assert status == 400 and "logit_bias" in str(answer), answer


def test_a_bias_given_as_a_parameter_and_as_a_vector_choose_the_same(server):
    token = 7
    for more in ({"logit_bias": json.dumps({str(token): 100})}, {"embedding_bias": [0.0] * token + [100.0]}):
        status, answer = ask_tokens(server, 4, **more)
        assert status == 200, answer
        assert answer["output_ids"] == [token] * 4, answer


def slow_pattern(n=600):
    """Few bytes, but the ways on from a place of its automaton grow with every letter."""
    return "(" + "".join(f"[{a}-{b}]?" for a, b in zip("abcdefghijklmnopqrstuvwx", "cdefghijklmnopqrstuvwxyz")) + f"){{{n}}}"


def test_a_guide_that_passes_a_limit_ends_its_request_with_the_limits_name(server):
    body = {"model": model_of(server), "prompt": "the", "max_tokens": 100, "min_tokens": 90, "guided_regex": slow_pattern()}
    status, answer = server.request("/v1/completions", body)
    assert status == 400 and "GUIDE_" in answer["error"]["message"], answer
    status, answer = server.request("/v1/completions", dict(body, n=2))
    assert status == 400 and "GUIDE_" in answer["error"]["message"], answer
    status, answer = server.generate({"text_input": "the", "max_tokens": 100, "min_length": 90,
                                      "guided_decoding_guide_type": "regex",
                                      "guided_decoding_guide": slow_pattern()})
    assert status == 400 and "GUIDE_" in str(answer), answer
    still_answers(server)


def test_a_guide_that_is_wrong_is_an_error_of_its_request(server):
    for pattern in ("(", "a{5,2}"):
        body = {"model": model_of(server), "prompt": "the", "max_tokens": 4, "guided_regex": pattern}
        status, answer = server.request("/v1/completions", body)
        assert status == 400 and "guided_decoding_guide" in answer["error"]["message"], answer
    still_answers(server)
