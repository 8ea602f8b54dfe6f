# SPDX-License-Identifier: Apache-2.0
"""A request whose time is over ends with what it has, through every door, and gives its blocks back."""
import json
import time
import urllib.error
import urllib.request

import numpy as np
import pytest

import repositories
from test_repositories import Repository, grpc
from test_features import Prepared
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

LONG = 480  # tokens, of the small model's 512 positions
TEXT = {"text_input": "a", "max_tokens": LONG, "end_id": -1, "bad_words": "", "stop_words": ""}
TEXT_MODELS = ["ensemble", "tensorrt_llm_bls"]


@pytest.fixture(scope="module")
def s(engine, tmp_path_factory):
    s = Repository("v0.18.0", tmp_path_factory.mktemp("deadlines"), engine, max_beam_width="4")
    try:
        yield s.open()
    finally:
        s.close()


@pytest.fixture
def third(s):
    """A third of the microseconds that a whole answer takes, just now."""
    took = []
    for _ in range(2):
        start = time.monotonic()
        assert post(s, "/v2/models/ensemble/generate", TEXT)[0] == 200
        took.append(time.monotonic() - start)
    return int(min(took) * 1e6) // 3


def post(s, path, body, **headers):
    r = urllib.request.Request(s.url(path), data=json.dumps(body).encode(),
                               headers={k.replace("_", "-"): v for k, v in headers.items()})
    try:
        with urllib.request.urlopen(r, timeout=60) as answer:
            text = answer.read().decode()
            if answer.headers["Content-Type"].startswith("text/event-stream"):
                lines = [x[6:] for x in text.splitlines() if x.startswith("data: ")]
                return answer.status, [json.loads(x) for x in lines if x != "[DONE]"]
            return answer.status, json.loads(text)
    except urllib.error.HTTPError as e:
        return e.code, json.loads(e.read())


def wait_until_idle(s):
    until = time.monotonic() + 20
    while s.metric("nv_trt_llm_request_metrics", request_type="active") > 0 or s.metric(
            "nv_trt_llm_kv_cache_block_metrics", kv_cache_block_type="used") > 0:
        assert time.monotonic() < until, "blocks or requests are left"
        time.sleep(0.02)


@pytest.fixture(autouse=True)
def everything_is_given_back(s):
    yield
    wait_until_idle(s)


def inputs_of(values):
    types = {int: np.int32, bool: bool, str: object}
    out = []
    for name, value in values.items():
        array = np.array([[value.encode() if isinstance(value, str) else value]], types[type(value)])
        out.append(grpc.InferInput(name, [1, 1], np_to_triton_dtype(array.dtype)))
        out[-1].set_data_from_numpy(array)
    return out


@pytest.mark.parametrize("model", TEXT_MODELS)
def test_timeout_of_generate(s, third, model):
    status, part = post(s, f"/v2/models/{model}/generate", dict(TEXT, timeout=third))
    assert status == 200 and part["timed_out"] is True, part
    status, whole = post(s, f"/v2/models/{model}/generate", dict(TEXT, timeout=60_000_000))
    assert status == 200 and "timed_out" not in whole
    assert 0 < len(part["text_output"]) < len(whole["text_output"])
    assert whole["text_output"].startswith(part["text_output"].rstrip("\ufffd"))


@pytest.mark.parametrize("model", TEXT_MODELS)
@pytest.mark.parametrize("beams", [1, 3])
def test_timeout_of_a_stream(s, third, model, beams):
    body = dict(TEXT, stream=True, beam_width=beams, parameters={"timeout": third})
    status, pieces = post(s, f"/v2/models/{model}/generate_stream", body)
    assert status == 200 and not any("error" in p for p in pieces), pieces[-1]
    assert 1 < len(pieces) < LONG and pieces[-1]["timed_out"] is True and "timed_out" not in pieces[0]


@pytest.mark.parametrize("beams", [1, 2])
@pytest.mark.parametrize("streaming", [False, True])
def test_timeout_of_a_grpc_stream(s, third, streaming, beams):
    inputs = s.inputs(LONG, streaming=streaming, beam_width=beams, exclude_input_in_output=True)
    answers = stream(s, inputs, timeout=third)
    last = [a for a in answers if a.as_numpy("output_ids") is not None][-1]
    assert last.get_response().parameters["timed_out"].bool_param
    lengths = [a.as_numpy("sequence_length").flatten() for a in answers if a.as_numpy("output_ids") is not None]
    n = sum(int(x[0]) for x in lengths) if beams == 1 else int(lengths[-1].min())
    assert 0 < n < LONG


def stream(s, inputs, model="tensorrt_llm", headers=None, **more):
    import queue
    got, out = queue.Queue(), []
    with grpc.InferenceServerClient(f"127.0.0.1:{s.grpc}") as c:
        c.start_stream(lambda result, error: got.put((result, error)), headers=headers)
        c.async_stream_infer(model, inputs, enable_empty_final_response=True, **more)
        while True:
            result, error = got.get(timeout=60)
            assert error is None, error
            out.append(result)
            if result.get_response().parameters["triton_final_response"].bool_param:
                return out


def in_us(us):
    return f"{time.time() + us / 1e6:.6f}"


@pytest.mark.parametrize("model", TEXT_MODELS)
def test_deadline_header(s, third, model):
    status, part = post(s, f"/v2/models/{model}/generate", TEXT, x_request_deadline=in_us(third))
    assert status == 200 and part["timed_out"] is True and part["text_output"], part
    # The shorter time of two holds.
    status, part = post(s, f"/v2/models/{model}/generate", dict(TEXT, timeout=third), x_request_deadline=in_us(60e6))
    assert status == 200 and part["timed_out"] is True, part
    status, none = post(s, f"/v2/models/{model}/generate", TEXT, x_request_deadline=in_us(-1e6))
    assert status == 200 and none["timed_out"] is True and none["text_output"] == "a", none  # the prompt
    for wrong in ("soon", "1e300", "-5", "nan", "12:30", "1" * 40):
        status, answer = post(s, f"/v2/models/{model}/generate", TEXT, x_request_deadline=wrong)
        assert status == 400 and "x-request-deadline" in answer["error"], (wrong, answer)


def test_deadline_metadata_of_grpc(s, third):
    answers = stream(s, s.inputs(LONG), headers={"x-request-deadline": in_us(third)})
    assert any(a.get_response().parameters["timed_out"].bool_param for a in answers)


@pytest.fixture(scope="module")
def whole(engine, tmp_path_factory):
    """A repository that is not decoupled: one answer for each request."""
    folder = tmp_path_factory.mktemp("whole")
    r = Repository("v0.18.0", folder, engine, decoupled_mode="false")
    try:
        yield r.open()
    finally:
        r.close()


@pytest.mark.parametrize("model", TEXT_MODELS)
def test_timeout_of_infer(whole, third, model):
    values = [("text_input", "BYTES", "a"), ("max_tokens", "INT32", LONG), ("end_id", "INT32", -1)]
    inputs = [{"name": n, "datatype": t, "shape": [1, 1], "data": [v]} for n, t, v in values]
    status, answer = post(whole, f"/v2/models/{model}/infer", {"inputs": inputs, "parameters": {"timeout": third}})
    assert status == 200 and answer["parameters"]["timed_out"] is True, answer
    with grpc.InferenceServerClient(f"127.0.0.1:{whole.grpc}") as c:
        r = c.infer(model, inputs_of(TEXT), timeout=third)
        assert r.get_response().parameters["timed_out"].bool_param


def test_deadline_of_the_grpc_call(whole, third):
    with grpc.InferenceServerClient(f"127.0.0.1:{whole.grpc}") as c:
        try:  # the server ends the work at the same moment, and its answer may be the quicker one
            r = c.infer("ensemble", inputs_of(TEXT), client_timeout=third / 1e6)
            assert r.get_response().parameters["timed_out"].bool_param
        except InferenceServerException as e:
            assert "DEADLINE_EXCEEDED" in e.status(), e
    wait_until_idle(whole)


def test_a_queue_policy_goes_on_in_the_engine(tmp_path):
    """One sequence at a time: who waits longer than the policy allows is refused, who runs is not."""
    engine = repositories.build(tmp_path, "--max_batch_size", "1")
    repositories.write("v0.18.0", tmp_path / "repo", *engine)
    path = tmp_path / "repo/tensorrt_llm/config.pbtxt"
    path.write_text(path.read_text() + "dynamic_batching { default_queue_policy { timeout_action: REJECT "
                    "default_timeout_microseconds: 250000 allow_timeout_override: true } }\n")
    r = Prepared("v0.18.0", tmp_path / "repo", tmp_path)
    try:
        r.open()
        answers = r.ask((r.inputs(LONG, num_return_sequences=8, runtime_top_k=50), "0"), (r.inputs(4), "1"))
        errors = [a for name, a in answers if name is None]
        assert len(errors) == 1 and "Request timeout expired" in errors[0], errors
        assert not any(a.get_response().parameters["timed_out"].bool_param for name, a in answers if name)
        assert sum(a.as_numpy("output_ids") is not None for name, a in answers if name == "0") == 8
    finally:
        r.close()
