# SPDX-License-Identifier: Apache-2.0
"""What one request names is refused before memory is taken, and the server lives."""
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
