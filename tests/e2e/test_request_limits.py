"""What one request names is refused before memory is taken, and the server lives."""
import pytest


def infer(server, model, inputs, **more):
    body = {"inputs": [dict(name=n, datatype=t, shape=s, data=d) for n, t, s, d in inputs], **more}
    return server.request(f"/v2/models/{model}/infer", body)


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
