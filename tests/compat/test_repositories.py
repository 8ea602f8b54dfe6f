# SPDX-License-Identifier: Apache-2.0
"""Repositories with the tensors of each release, as features.tsv lists them: they load, answer, and follow
the rules of their release."""
import queue
import re

import numpy as np
import pytest

import repositories
from llm_server import Server

grpc = pytest.importorskip("tritonclient.grpc")
from tritonclient.utils import np_to_triton_dtype  # noqa: E402

TAGS = repositories.TAGS
PROMPT = {"text_input": "the quick brown fox", "max_tokens": 6, "bad_words": "", "stop_words": ""}
IDS = [5, 6, 7, 8]


def at_least(tag, other):
    return TAGS.index(tag) >= TAGS.index(other)


class Repository(Server):
    def __init__(self, tag, folder, engine, **values):
        repositories.write(tag, folder / tag, *engine, **values)
        self.tag = tag
        super().__init__(folder / tag, folder)
        self.client = None

    def open(self):
        self.wait_ready()
        self.client = grpc.InferenceServerClient(f"127.0.0.1:{self.grpc}")
        return self

    def close(self):
        if self.client:
            self.client.close()
        status = self.stop()
        assert status == 0, self.log_text()[-3000:]

    def tensor(self, name, value, model="tensorrt_llm"):
        """An input in the type that the release declares; one row where `value` is a list."""
        name = repositories.spelled(self.tag, model, name)
        row = repositories.rows_of(self.tag, model, "input")[name]
        dtype = {"INT32": np.int32, "UINT32": np.uint32, "UINT64": np.uint64, "FP32": np.float32, "FP16": np.float16,
                 "BOOL": bool, "STRING": object, "${prompt_embedding_table_data_type}": np.float16}[row["type"]]
        array = np.array([value if isinstance(value, (list, np.ndarray)) else [value]], dtype)
        t = grpc.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
        t.set_data_from_numpy(array)
        return t

    def inputs(self, n_new=6, **more):
        values = {"input_ids": IDS, "input_lengths": len(IDS), "request_output_len": n_new, **more}
        return [self.tensor(name, value) for name, value in values.items()]

    def ask(self, *requests, model="tensorrt_llm"):
        """All answers of some requests on one stream: [(id, result or error)]."""
        got, n_final, out = queue.Queue(), 0, []
        with grpc.InferenceServerClient(f"127.0.0.1:{self.grpc}") as c:
            c.start_stream(lambda result, error: got.put((result, error)))
            for inputs, name in requests:
                c.async_stream_infer(model, inputs, request_id=name, enable_empty_final_response=True)
            while n_final < len(requests):
                result, error = got.get(timeout=60)
                if error:
                    n_final += 1
                    out.append((None, str(error)))
                    continue
                response = result.get_response()
                n_final += response.parameters["triton_final_response"].bool_param
                out.append((response.id, result))
        return out


@pytest.fixture(scope="module", params=TAGS)
def repository(request, engine, tmp_path_factory):
    s = Repository(request.param, tmp_path_factory.mktemp("repository"), engine, max_beam_width="4")
    try:
        yield s.open()
    finally:
        s.close()


def test_the_ensemble_and_the_bls_model_answer_the_same(repository):
    answers = {m: repository.generate(PROMPT, m) for m in ("ensemble", "tensorrt_llm_bls")
               if m in repositories.models_of(repository.tag)}
    texts = {a["text_output"] for status, a in answers.values()}
    assert {status for status, _ in answers.values()} == {200} and len(texts) == 1
    assert texts.pop().startswith(PROMPT["text_input"])


def test_v1_answers_as_the_ensemble(repository):
    """With what a release does not declare as an input: min_p; no prompt in the answer; the blocks' statistics."""
    text = PROMPT["text_input"]
    _, expected = repository.generate(PROMPT, "ensemble")
    ids = input_ids(repository, text)  # releases differ in the special tokens that they add
    for more in ({"temperature": 0}, {"temperature": 1, "min_p": 1.0, "return_timings": True}):
        status, answer = repository.request("/v1/completions", dict(
            model="ensemble", prompt=ids, max_tokens=PROMPT["max_tokens"], **more))
        assert status == 200, answer
        assert expected["text_output"] == text + answer["choices"][0]["text"]
    assert ("timings" in answer["usage"]) == at_least(repository.tag, "v0.19.0")
    assert ("prompt_tokens_details" in answer["usage"]) == at_least(repository.tag, "v0.16.0")
    status, answer = repository.request("/v1/completions", dict(model="ensemble", prompt=text, min_p=1.5))
    assert status == 400 and "min_p" in answer["error"]["message"]


def test_metrics_have_the_names_of_the_release_too(repository):
    """v0.6 called them statistics; what looks at servers of several releases finds the newer names everywhere."""
    text = repository.metrics_text()
    for name in ("request", "kv_cache_block", "runtime_memory", "inflight_batcher", "general"):
        assert f"# TYPE nv_trt_llm_{name}_metrics gauge" in text
        assert (f"# TYPE nv_trt_llm_{name}_statistics gauge" in text) == (repository.tag == "v0.6.1"), name
    if repository.tag == "v0.6.1":
        assert repository.metric("nv_trt_llm_kv_cache_block_statistics", kv_cache_block_type="max") == repository.metric(
            "nv_trt_llm_kv_cache_block_metrics", kv_cache_block_type="max") > 0


def test_streams_have_a_piece_for_each_token(repository):
    for model in answering(repository):
        pieces = repository.stream(dict(PROMPT, stream=True), model)
        assert len(pieces) == PROMPT["max_tokens"], model


def test_streamed_probabilities_are_those_of_all_tokens_so_far(repository):
    if not at_least(repository.tag, "v0.8.0"):
        assert "return_context_logits" not in repositories.rows_of(repository.tag, "tensorrt_llm", "input")
        return
    asked = {"return_log_probs": True, "return_context_logits": True}
    (_, whole), *_ = repository.ask((repository.inputs(**asked), "1"))
    got = [result for _, result in repository.ask((repository.inputs(streaming=True, **asked), "2"))
           if result.as_numpy("output_ids") is not None]
    probs = whole.as_numpy("output_log_probs")[0, 0]
    assert len(got) == len(probs) == 6
    for i, result in enumerate(got):
        assert result.as_numpy("output_ids").shape[-1] == 1
        assert np.array_equal(result.as_numpy("output_log_probs")[0, 0], probs[:i + 1])
    assert np.array_equal(got[-1].as_numpy("context_logits"), whole.as_numpy("context_logits"))


def answering(repository):
    return [m for m in ("ensemble", "tensorrt_llm_bls") if m in repositories.models_of(repository.tag)]


def test_log_probabilities_that_nobody_asked_for(repository):
    """Left out from v0.14 on; zeros before: one for each new token up to v0.9, for each token of the
    prompt from v0.10 on."""
    tag = repository.tag
    for model in answering(repository):
        answer = repository.generate(PROMPT, model)[1]
        zeros = answer.get("output_log_probs")
        if tag == "v0.5.0" or at_least(tag, "v0.14.0"):
            assert zeros is None and "cum_log_probs" not in answer
            continue
        assert answer["cum_log_probs"] == 0 and set(zeros) == {0}
        assert len(zeros) == PROMPT["max_tokens"] or at_least(tag, "v0.10.0")
        assert len(zeros) > PROMPT["max_tokens"] or not at_least(tag, "v0.10.0")
        assert ("context_logits" in answer) == ("generation_logits" in answer) == at_least(tag, "v0.8.0")


def test_log_probabilities_that_were_asked_for(repository):
    if repository.tag == "v0.5.0":
        assert "return_log_probs" not in repositories.rows_of("v0.5.0", "ensemble", "input")
        return
    for model in answering(repository):
        answer = repository.generate(dict(PROMPT, return_log_probs=True, top_k=0, top_p=0.0), model)[1]
        assert len(answer["output_log_probs"]) == PROMPT["max_tokens"]
        assert answer["cum_log_probs"] < 0


def test_logits_through_every_model(repository):
    if not at_least(repository.tag, "v0.8.0"):
        assert "return_context_logits" not in repositories.rows_of(repository.tag, "ensemble", "input")
        return
    for model in answering(repository):
        status, answer = repository.generate(
            dict(PROMPT, return_context_logits=True, return_generation_logits=True), model)
        assert status == 200, answer
        vocabulary = len(answer["generation_logits"]) // PROMPT["max_tokens"]
        assert vocabulary > 100 and len(answer["context_logits"]) % vocabulary == 0
        last = answer["context_logits"][-vocabulary:]  # what chose the first new token
        assert np.allclose(last, answer["generation_logits"][:vocabulary], atol=1e-4)


def test_beams_while_streaming(repository):
    """Each answer holds every beam so far. The configuration of v0.5 says that there is one beam."""
    answers = repository.ask((repository.inputs(streaming=True, beam_width=4, end_id=2), "1"))
    if repository.tag == "v0.5.0":
        assert "beam_width (4) exceeds max_beam_width (1)" in answers[0][1]
        return
    answers = [r for _, r in answers if r.as_numpy("output_ids") is not None]
    shapes = [r.as_numpy("output_ids").shape for r in answers]
    assert shapes[-1] == (1, 4, 6) and all(a[1] == 4 and a[2] <= b[2] for a, b in zip(shapes, shapes[1:]))


def test_an_id_that_is_in_flight(repository):
    """Refused up to v0.9, allowed later."""
    long = repository.inputs(n_new=200, streaming=True)
    allowed = at_least(repository.tag, "v0.10.0")
    for _ in range(1 if allowed else 20):  # the first may have ended before the second has come
        refused = [text for name, text in repository.ask((long, "7"), (long, "7")) if name is None]
        if refused:
            break
    assert len(refused) == (0 if allowed else 1)
    assert all("requestId 7 is already in progress, request is ignored." in text for text in refused)


def test_a_stop_of_an_id_that_nobody_has(repository):
    (name, result), = repository.ask((repository.inputs(stop=True), "9"))
    if at_least(repository.tag, "v0.10.0"):
        assert name == "9" and result.as_numpy("output_ids") is None
    else:
        assert "Received stop request for requestId 9 but it's not active" in result


def test_a_stop_without_an_id_ends_nothing(repository):
    answers = repository.ask((repository.inputs(n_new=60, streaming=True), ""), (repository.inputs(stop=True), ""))
    errors = [text for name, text in answers if name is None]
    text = ("request ID is not provided" if at_least(repository.tag, "v0.10.0")
            else "without specifying a request_id")
    assert len(errors) == 1 and text in errors[0]
    assert sum(r.as_numpy("output_ids").shape[2] for _, r in answers
               if not isinstance(r, str) and r.as_numpy("output_ids") is not None) == 60


def test_an_id_is_free_again_when_its_request_has_ended(repository):
    for _ in range(2):
        assert all(name == "8" for name, _ in repository.ask((repository.inputs(), "8")))


def test_ids_past_the_vocabulary_are_taken(repository):
    """As random prompts of the published benchmark are; warned of once."""
    for _ in range(2):
        answers = repository.ask((repository.inputs(input_ids=[2**31 - 1, 5, 6, 7]), "1"))
        assert all(name == "1" for name, _ in answers), answers
    assert repository.log_text().count("input_ids past the vocabulary") == 1


def test_every_parameter_left_open_is_named(repository):
    """In the words that the release uses, once a load."""
    filled = {"gpt_model_path", "gpt_model_type", "max_beam_width", "tokenizer_dir"}
    told_otherwise = {"batch_scheduler_policy": "was", "decoding_mode": "is"}
    log = repository.log_text()
    for name, row in repositories.rows_of(repository.tag, "tensorrt_llm", "parameter").items():
        if row["type"].startswith("${") and name not in filled:
            pattern = (rf"\[TensorRT-LLM\]\[WARNING\] {name} "
                       rf"(parameter )?(is not specified|not set|{told_otherwise.get(name, 'is not')})")
            assert len(re.findall(pattern, log)) == 1, (name, pattern)


# ---- one release is enough ----


@pytest.fixture(scope="module")
def newest(engine, tmp_path_factory):
    s = Repository(TAGS[-1], tmp_path_factory.mktemp("newest"), engine, max_beam_width="4")
    try:
        yield s.open()
    finally:
        s.close()


@pytest.mark.parametrize("inputs, output", [
    ({"return_log_probs": True}, "cum_log_probs"), ({"return_context_logits": True}, "context_logits"),
    ({"return_generation_logits": True}, "generation_logits"),
    ({"return_perf_metrics": True}, "kv_cache_alloc_new_blocks")])
def test_the_bls_model_passes_on_what_its_configuration_reshapes(newest, inputs, output):
    for model in ("ensemble", "tensorrt_llm_bls"):
        status, answer = newest.generate(dict(PROMPT, **inputs), model)
        assert status == 200 and output in answer, answer


def test_several_sequences_through_the_bls_model(newest):
    answers = newest.stream(dict(PROMPT, num_return_sequences=3, top_k=5), "tensorrt_llm_bls")
    assert sorted(a["sequence_index"] for a in answers if a["text_output"]) == [0, 1, 2]


def test_reuse_is_on_by_default_in_the_newest_release(newest):
    text = dict(PROMPT, text_input="one two three four five six seven eight nine ten " * 6, return_perf_metrics=True)
    first, second = (newest.generate(text)[1] for _ in range(2))
    assert first["kv_cache_reused_blocks"] == 0 < second["kv_cache_reused_blocks"]


@pytest.mark.parametrize("declared, sent", [("TYPE_FP16", np.float16), ("TYPE_FP32", np.float32)])
def test_logits_are_sent_in_the_declared_type(engine, tmp_path, declared, sent):
    s = Repository("v0.17.0", tmp_path, engine, logits_datatype=declared)
    try:
        s.open()
        (_, result), *_ = s.ask((s.inputs(return_context_logits=True, return_generation_logits=True), "1"))
        assert {result.as_numpy(n).dtype.type for n in ("context_logits", "generation_logits")} == {sent}
    finally:
        s.close()


# ---- tokenizer_type ----


def input_ids(server, text):
    with grpc.InferenceServerClient(f"127.0.0.1:{server.grpc}") as c:
        result = c.infer("preprocessing", [server.tensor("QUERY", text.encode(), "preprocessing"),
                                           server.tensor("REQUEST_OUTPUT_LEN", 4, "preprocessing"),
                                           server.tensor("BAD_WORDS_DICT", b"", "preprocessing"),
                                           server.tensor("STOP_WORDS_DICT", b"", "preprocessing")])
    return result.as_numpy("INPUT_ID")[0].tolist()


@pytest.fixture(scope="module")
def plain_engine(tmp_path_factory):
    """Its tokenizer adds nothing by itself."""
    return repositories.build(tmp_path_factory.mktemp("plain"), arch="gpt2")


@pytest.mark.parametrize("kind, in_front, behind", [("auto", 0, 0), ("llama", 1, 0), ("t5", 0, 1)])
def test_tokenizer_type_has_its_effect(plain_engine, tmp_path, kind, in_front, behind):
    s = Repository("v0.5.0", tmp_path, plain_engine, tokenizer_type=kind)
    try:
        s.open()
        ids = input_ids(s, "the quick brown fox")
    finally:
        s.close()
    u = Repository("v0.7.2", tmp_path, plain_engine, tokenizer_type=kind)  # adds no special tokens
    try:
        u.open()
        bare = input_ids(u, "the quick brown fox")
    finally:
        u.close()
    assert ids[in_front:len(ids) - behind] == bare and len(ids) == len(bare) + in_front + behind


def test_an_unknown_tokenizer_type_does_not_load(plain_engine, tmp_path):
    s = Repository("v0.7.2", tmp_path, plain_engine, tokenizer_type="word")
    assert s.process.wait(30) != 0
    assert "Unexpected tokenizer type: word" in s.log_text()
    s.stop()
