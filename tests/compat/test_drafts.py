# SPDX-License-Identifier: Apache-2.0
"""Draft tokens at the door of tensorrt_llm: right or wrong, the answer is the one without them, in fewer steps."""
import numpy as np
import pytest

from test_repositories import Repository, grpc
from tritonclient.utils import np_to_triton_dtype

IDS, N = [5, 6, 7, 8], 12
VOCAB = 320


@pytest.fixture(scope="module", params=["v0.10.0", "v0.19.0"])
def s(request, engine, tmp_path_factory):
    s = Repository(request.param, tmp_path_factory.mktemp("drafts"), engine, max_beam_width="4")
    try:
        yield s.open()
    finally:
        s.close()


def tensor(name, array):
    t = grpc.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
    t.set_data_from_numpy(array)
    return t


def ask(s, draft=None, logits=None, n=N, **more):
    """(ids, all answers); an error as its text."""
    inputs = s.inputs(n, exclude_input_in_output=True, **more) if s.tag == "v0.19.0" else s.inputs(n, **more)
    if draft is not None:
        inputs.append(tensor("draft_input_ids", np.array([draft], np.int32)))
    if logits is not None:
        inputs.append(tensor("draft_logits", logits))
    answers = s.ask((inputs, "1"))
    if answers[0][0] is None:
        return answers[0][1]
    answers = [a for _, a in answers if a.as_numpy("output_ids") is not None]
    ids = [int(i) for a in answers for i in a.as_numpy("output_ids").flatten()[:a.as_numpy("sequence_length").flat[0]]]
    return (ids if s.tag == "v0.19.0" or more.get("streaming") else ids[len(IDS):]), answers


def counts(answers):
    return [answers[-1].as_numpy(n).flat[0] for n in ("total_draft_tokens", "total_accepted_draft_tokens", "acceptance_rate")]


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("sampling", [{}, {"runtime_top_k": 40, "random_seed": 5}])
def test_answer_is_the_one_without_a_draft(s, streaming, sampling):
    more = {"return_perf_metrics": True} if s.tag == "v0.19.0" else {}
    plain, pieces = ask(s, streaming=streaming, **sampling)
    assert len(plain) == N
    for right in (0, 2, 5):
        draft = plain[:right] + [(i + 1) % VOCAB for i in plain[right:5]]
        ids, answers = ask(s, draft, streaming=streaming, **sampling, **more)
        assert ids == plain
        if streaming:  # the first piece has all that held, and one token more
            assert answers[0].as_numpy("sequence_length").flat[0] == right + 1
        if more:
            assert counts(answers) == [5, right, pytest.approx(right / 5)]


def test_logits_of_the_draft(s):
    sampling = {"runtime_top_k": 40, "random_seed": 5}
    plain, answers = ask(s, return_generation_logits=True, **sampling)
    logits = answers[-1].as_numpy("generation_logits")[:, 0, :4]
    more = {"return_perf_metrics": True} if s.tag == "v0.19.0" else {}
    # The model's own logits: nothing is ever refused.
    ids, answers = ask(s, plain[:4], np.ascontiguousarray(logits), **sampling, **more)
    assert ids == plain
    if more:
        assert counts(answers)[:2] == [4, 4]
    # A threshold of 0 keeps whatever is proposed, and one of 1 what the model likes better than the draft.
    wrong = [(i + 7) % VOCAB for i in plain[:4]]
    flat = np.zeros_like(logits)
    ids, _ = ask(s, wrong, flat, draft_acceptance_threshold=0.0, **more)
    assert ids[:4] == wrong
    ids, _ = ask(s, wrong, flat, draft_acceptance_threshold=1.0, **more)
    assert len(ids) == N


def test_an_answer_of_one_step(s):
    """As a client with a draft model of its own asks: one token more than it brings."""
    plain, _ = ask(s)
    ids, answers = ask(s, plain[:5], n=6, streaming=True)
    assert ids == plain[:6] and answers[0].as_numpy("sequence_length").flat[0] == 6
    for right in (0, 3):  # what does not hold ends it: the client's next draft comes sooner
        draft = plain[:right] + [(i + 1) % VOCAB for i in plain[right:5]]
        assert ask(s, draft, n=6)[0] == plain[:right + 1]


@pytest.mark.parametrize("draft, logits, more, words", [
    ([1] * 9, None, {}, "draft_input_ids has 9 tokens, the engine was built with max_draft_len 8"),
    ([1, VOCAB], None, {}, f"draft_input_ids[1] is {VOCAB}, expected 0 to {VOCAB - 1}"),
    ([-1], None, {}, "draft_input_ids[0] is -1"),
    ([1, 2], None, {"beam_width": 2}, "draft_input_ids needs beam_width 1, got 2"),
    ([1, 2], np.zeros((1, 2, VOCAB - 1), np.float32), {}, f"'draft_logits' must have the shape [2, {VOCAB}] (draft tokens, vocabulary), got [2, {VOCAB - 1}]"),
    ([1, 2], np.zeros((1, 3, VOCAB), np.float32), {}, f"'draft_logits' must have the shape [2, {VOCAB}] (draft tokens, vocabulary), got [3, {VOCAB}]"),
    ([1], np.full((1, 1, VOCAB), np.nan, np.float32), {}, "draft_logits has NaN for draft token 0"),
    (None, np.zeros((1, 1, VOCAB), np.float32), {}, "draft_logits is given without draft_input_ids"),
    ([1], None, {"draft_acceptance_threshold": 1.5}, "draft_acceptance_threshold must be in [0, 1], got 1.5"),
])
def test_a_wrong_draft_is_refused_by_field_and_limit(s, draft, logits, more, words):
    answer = ask(s, draft, logits, **more)
    assert isinstance(answer, str) and words in answer, answer
    assert len(ask(s)[0]) == N


@pytest.mark.parametrize("more, words", [
    ({"draft_input_ids": [1] * 9}, "draft_input_ids has 9 tokens, the engine was built with max_draft_len 8"),
    ({"draft_input_ids": [VOCAB]}, f"draft_input_ids[0] is {VOCAB}, expected 0 to {VOCAB - 1}"),
    ({"draft_input_ids": [1], "beam_width": 2}, "draft_input_ids needs beam_width 1, got 2"),
    ({"draft_input_ids": [1], "draft_acceptance_threshold": 1.5}, "draft_acceptance_threshold must be in [0, 1], got 1.5"),
    ({"draft_input_ids": [1], "draft_acceptance_threshold": -0.5}, "draft_acceptance_threshold must be in [0, 1], got -0.5"),
])
def test_a_wrong_draft_is_a_bad_request_over_http(s, more, words):
    status, answer = s.generate({"input_ids": IDS, "input_lengths": len(IDS), "request_output_len": N, **more}, "tensorrt_llm")
    assert status == 400 and words in answer["error"], answer


def test_an_engine_without_room_for_drafts_says_so(tmp_path):
    import repositories
    from test_features import Prepared
    folder = tmp_path / "plain"
    folder.mkdir()
    engine = repositories.build(folder, "--max_draft_len", "0")
    repositories.write("v0.19.0", tmp_path / "repo", *engine)
    r = Prepared("v0.19.0", tmp_path / "repo", tmp_path)
    try:
        answer = ask(r.open(), [1, 2])
        assert "draft_input_ids has 2 tokens, the engine was built with max_draft_len 0" in answer, answer
    finally:
        r.close()
