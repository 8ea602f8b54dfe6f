# SPDX-License-Identifier: Apache-2.0
"""Prompt tables: ids past the vocabulary are rows of a table that the request brings along."""
import json
import pathlib
import re

import numpy as np
import pytest

import prompt_rows
import repositories
from test_repositories import Repository, grpc

N_NEW = 4
DIVIDED = ["--use_parallel_embedding"]
CHUNK = {"enable_chunked_context": "true"}


def start(folder, arch, *build, **values):
    engine = repositories.build(folder, "--max_prompt_embedding_table_size", "8", "--tokens_per_block", "4",
                                "--dtype", "float32", "--kv_cache_dtype", "float32", *build, arch=arch)
    s = Repository("v0.19.0", folder, engine, **values)
    config = json.loads((engine[1] / "config.json").read_text())
    s.vocabulary, s.hidden = config["vocab_size"], config.get("hidden_size") or config["n_embd"]
    return s.open()


@pytest.fixture(scope="module", params=prompt_rows.FAMILIES)
def family(request, tmp_path_factory):
    s = start(tmp_path_factory.mktemp("family"), request.param)
    s.arch = request.param
    try:
        yield s
    finally:
        s.close()


@pytest.fixture(scope="module", params=[("llama", 1, 2), ("gpt2", 2, 2), ("gpt2", 2, 2, *DIVIDED), ("gpt2", 2, 1, *DIVIDED, "--embedding_sharding_dim", "1")],
                ids=str)
def ranks(request, tmp_path_factory):
    arch, tp, pp, *more = request.param
    s = start(tmp_path_factory.mktemp("ranks"), arch, "--tp_size", str(tp), "--pp_size", str(pp), *more)
    s.arch = arch
    try:
        yield s
    finally:
        s.close()


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    s = start(tmp_path_factory.mktemp("llama"), "llama")
    try:
        yield s
    finally:
        s.close()


def ids_of(s):
    return [i - prompt_rows.VOCABULARY_PLUS + s.vocabulary if i >= prompt_rows.VOCABULARY_PLUS else i
            for i in prompt_rows.prompt_ids()]


def request(s, table=None, ids=None, **more):
    ids = ids or ids_of(s)
    values = {"input_ids": ids, "input_lengths": len(ids), "request_output_len": N_NEW, **more}
    if table is None:
        table = prompt_rows.table_rows(s.hidden)
    values["prompt_embedding_table"] = table
    return [s.tensor(name, value) for name, value in values.items()]


def only(answers):
    """The one answer with content."""
    assert not any(name is None for name, _ in answers), answers
    found = [r for _, r in answers if r.as_numpy("output_ids") is not None]
    assert len(found) == 1
    return found[0]


def context(s, *args, **more):
    result = only(s.ask((request(s, *args, return_context_logits=True, **more), "1")))
    return result.as_numpy("context_logits")[0]


def refused(s, inputs):
    (name, text), = s.ask((inputs, "1"))
    assert name is None, "was not refused"
    return text


def embeddings(folder):
    """The embedding matrix of a llama folder in float16."""
    data = (folder / "model.safetensors").read_bytes()
    n = int.from_bytes(data[:8], "little")
    entry = json.loads(data[8:8 + n])["model.embed_tokens.weight"]
    a, b = entry["data_offsets"]
    assert entry["dtype"] == "F16"
    return np.frombuffer(data[8 + n + a:8 + n + b], np.float16).reshape(entry["shape"])


def check_logits(family):
    golden = np.array(json.loads((pathlib.Path(prompt_rows.__file__).parent / "prompt_goldens.json").read_text())[family.arch])
    got = context(family)[:, :golden.shape[1]]
    assert got.shape == golden.shape
    assert np.abs(got - golden).max() < 1e-5 * np.abs(golden).max()


def test_logits_are_those_of_inputs_embeds(family):
    """Against Hugging Face in float32; prompt_goldens.json holds the first 64 logits of each position."""
    check_logits(family)


def test_logits_of_several_ranks_are_those_of_inputs_embeds(ranks):
    check_logits(ranks)


def test_rows_that_are_the_models_own_embeddings(tmp_path):
    """Then nothing differs from the prompt of ordinary ids, not even in the last bit."""
    folder = tmp_path / "own"
    folder.mkdir()
    s = start(folder, "llama-f16", "--dtype", "float16")
    try:
        plain = [11, 12, 13, 14, 15, 16, 17, 18]
        own = embeddings(folder / "model")[[12, 13, 17]]
        virtual = [11, s.vocabulary, s.vocabulary + 1, 14, 15, 16, s.vocabulary + 2, 18]
        want = only(s.ask((s.inputs(input_ids=plain, input_lengths=8, return_context_logits=True), "1")))
        got = only(s.ask((request(s, own, virtual, return_context_logits=True, request_output_len=6), "1")))
        assert np.array_equal(want.as_numpy("context_logits"), got.as_numpy("context_logits"))
        assert np.array_equal(want.as_numpy("output_ids")[0, 0, 8:], got.as_numpy("output_ids")[0, 0, 8:])
    finally:
        s.close()


def test_prompts_in_chunks(llama, tmp_path):
    want = context(llama)
    s = start(tmp_path, "llama", "--max_num_tokens", "5", **CHUNK)
    try:
        got = context(s)
    finally:
        s.close()
    assert np.allclose(got, want, atol=1e-4)


def test_tables_beside_each_other_and_beside_none(llama):
    tables = [np.roll(prompt_rows.table_rows(llama.hidden), 31 * k) for k in range(3)]
    alone = [only(llama.ask((request(llama, t), "1"))).as_numpy("output_ids") for t in tables]
    plain = only(llama.ask((llama.inputs(n_new=N_NEW), "1"))).as_numpy("output_ids")
    together = llama.ask(*[(request(llama, t), str(i)) for i, t in enumerate(tables)], (llama.inputs(n_new=N_NEW), "3"))
    got = {name: r.as_numpy("output_ids") for name, r in together if r.as_numpy("output_ids") is not None}
    assert len({a.tobytes() for a in alone}) == 3
    assert all(np.array_equal(got[str(i)], want) for i, want in enumerate([*alone, plain]))


def reused(s, table, **more):
    result = only(s.ask((request(s, table, return_perf_metrics=True, **more), "1")))
    return int(result.as_numpy("kv_cache_reused_blocks")[0, 0]), result.as_numpy("output_ids").tolist()


def test_blocks_are_shared_only_where_the_rows_are_the_same(llama):
    table = prompt_rows.table_rows(llama.hidden) * np.float16(0.5)
    other = table.copy()
    other[0, 0] += np.float16(0.25)  # a row of the first block
    n, answer = reused(llama, table)
    assert n == 0
    n, again = reused(llama, table)
    assert n > 0 and again == answer
    n, _ = reused(llama, other)
    assert n == 0


def test_extra_ids_keep_blocks_apart(llama):
    table = prompt_rows.table_rows(llama.hidden) * np.float16(0.75)
    ids = ids_of(llama)

    def extra(k):
        return [k if i >= llama.vocabulary else 0 for i in ids]

    assert reused(llama, table, prompt_table_extra_ids=extra(7))[0] == 0
    assert reused(llama, table, prompt_table_extra_ids=extra(8))[0] == 0
    assert reused(llama, table, prompt_table_extra_ids=extra(7))[0] > 0


@pytest.mark.parametrize("change, text", [
    ({"table": np.zeros((9, 256), np.float16)}, "prompt_embedding_table has 9 rows, expected 1 to 8"),
    ({"table": np.zeros((2, 255), np.float16)}, "'prompt_embedding_table' must have the shape [rows, 256]"),
    ({"table": np.full((7, 256), np.nan, np.float16)}, "prompt_embedding_table[0][0] is not a finite number"),
    ({"table": np.full((7, 256), np.inf, np.float16)}, "prompt_embedding_table[0][0] is not a finite number"),
    ({"prompt_vocab_size": 8}, "'prompt_vocab_size' is 8, expected 1 to 7"),
    ({"prompt_vocab_size": 0}, "'prompt_vocab_size' is 0, expected 1 to 7"),
    ({"prompt_vocab_size": 3}, "expected at most"),
])
def test_a_wrong_table_is_refused_by_field_and_limit(llama, change, text):
    assert llama.hidden == 256
    assert text in refused(llama, request(llama, **change))
    only(llama.ask((llama.inputs(), "1")))  # others go on


def test_an_id_past_the_table(llama):
    ids = [5, llama.vocabulary + 7, 6]
    assert re.search(rf"input_ids\[1\] is {ids[1]}, expected at most {ids[1] - 1}", refused(llama, request(llama, ids=ids)))


def test_a_table_of_another_type(llama):
    table = grpc.InferInput("prompt_embedding_table", [1, 7, 256], "INT32")
    table.set_data_from_numpy(np.zeros((1, 7, 256), np.int32))
    assert "prompt_embedding_table" in refused(llama, [*llama.inputs(), table])


def test_an_engine_without_room_for_a_table(engine, tmp_path):
    s = Repository("v0.19.0", tmp_path, engine)
    s.open()
    try:
        s.hidden, s.vocabulary = 256, 300
        text = refused(s, request(s, ids=[5, 6, 7]))
        assert "prompt_embedding_table needs an engine built with max_prompt_embedding_table_size" in text
    finally:
        s.close()


def test_beams_and_sequences_share_a_table(llama):
    answers = llama.ask((request(llama, num_return_sequences=2, runtime_top_k=1), "1"))
    texts = [r.as_numpy("output_ids").tolist() for _, r in answers if r.as_numpy("output_ids") is not None]
    assert len(texts) == 2 and texts[0] == texts[1]
