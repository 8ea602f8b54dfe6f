# SPDX-License-Identifier: Apache-2.0
"""The parameter deterministic, of a model and of a request: tokens and log probabilities are the same in every batch."""
import pathlib
import random

import pytest

import repositories
from test_features import Prepared
from test_repositories import grpc

N = 24
# A matrix unit takes many rows otherwise than few; without one a CPU needs no switch.
SWITCHES = [True] if "amx_bf16" in pathlib.Path("/proc/cpuinfo").read_text() else [False, True]


@pytest.fixture(scope="module", params=SWITCHES)
def s(request, engine, tmp_path_factory):
    folder = tmp_path_factory.mktemp("deterministic")
    repositories.write("v0.19.0", folder / "repo", *engine, max_beam_width="4")
    path = folder / "repo/tensorrt_llm/config.pbtxt"
    if request.param:
        path.write_text(path.read_text() + 'parameters { key: "deterministic" value { string_value: "true" } }\n')
    s = Prepared("v0.19.0", folder / "repo", folder)
    try:
        yield s.open()
    finally:
        s.close()


def inputs_of(s, i):
    rng = random.Random(i)
    ids = [rng.randrange(3, 300) for _ in range(rng.randrange(2, 40))]
    more = {"runtime_top_k": 30, "random_seed": i} if i % 2 else {}
    more.update({"beam_width": 3} if i % 5 == 2 else {})
    return s.inputs(4 + i, input_ids=ids, input_lengths=len(ids), end_id=-1, return_log_probs=True, **more)


def run(s, numbers):
    """number -> (ids, log probabilities), of requests that run together."""
    answers = s.ask(*((inputs_of(s, i), str(i)) for i in numbers))
    assert all(name is not None for name, _ in answers), answers
    return {int(name): (a.as_numpy("output_ids").tolist(), a.as_numpy("output_log_probs").tobytes())
            for name, a in answers if a.as_numpy("output_ids") is not None}


def test_answers_do_not_depend_on_the_batch(s):
    alone = {}
    for i in range(N):
        alone.update(run(s, [i]))
    for seed in range(3):
        numbers = random.Random(seed).sample(range(N), N - 6 * seed)
        assert run(s, numbers) == {i: alone[i] for i in numbers}


def test_a_request_asks_for_it(s):
    answers = queue_of(s, True)
    assert answers[0].as_numpy("output_ids") is not None
    error = queue_of(s, "yes")
    assert "deterministic must be true or false" in error


def queue_of(s, value):
    import queue
    got, out = queue.Queue(), []
    with grpc.InferenceServerClient(f"127.0.0.1:{s.grpc}") as c:
        c.start_stream(lambda result, error: got.put((result, error)))
        c.async_stream_infer("tensorrt_llm", s.inputs(4), parameters={"deterministic": value},
                             enable_empty_final_response=True)
        while True:
            result, error = got.get(timeout=60)
            if error:
                return str(error)
            out.append(result)
            if result.get_response().parameters["triton_final_response"].bool_param:
                return out
