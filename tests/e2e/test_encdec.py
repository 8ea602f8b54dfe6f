# SPDX-License-Identifier: Apache-2.0
"""Encoder-decoder models behind the server: texts as transformers makes them (tests/model/make_encdec_goldens.py), alone and
beside others, with beams and from a longer beginning; two engines as TensorRT-LLM keeps them; what is refused."""
import concurrent.futures
import json
import os
import shutil
import subprocess
import sys

import pytest

from llm_server import BIN, ROOT, Server

sys.path.insert(0, str(ROOT / "tests" / "tinymodel"))
import encdec  # noqa: E402

GOLDEN = json.loads((ROOT / "tests/model/encdec_texts.json").read_text())["models"]
TOLERANCE = float(os.environ.get("NEREID_TOLERANCE", 3e-4))  # of a log probability
CLEAR = 3 * TOLERANCE  # a margin that no rounding turns
BUILD = ["--build", "--dtype=float32", "--build", "--kv_cache_dtype=float32", "--build", "--max_beam_width=4", "--set",
         "decoupled_mode:False,max_beam_width:4,normalize_log_probs:False,encoder_input_features_data_type:TYPE_FP32"]


def serve(path, tmp, *more):
    return Server(path, tmp, *BUILD, *more)


@pytest.fixture(scope="module", params=[*GOLDEN, "t5.gguf", "flan-t5.gguf", "fsmt.old", "fsmt.new"])
def served(request, tmp_path_factory):
    tmp, (name, _, form) = tmp_path_factory.mktemp("encdec"), request.param.partition(".")
    if not form:
        encdec.write_folder(name, tmp / name)
    elif name == "fsmt":  # as fairseq saves it
        encdec.write_fairseq(tmp / request.param, form == "old")
    else:
        encdec.write_gguf(name, tmp / request.param)
    s = serve(tmp / request.param, tmp)
    try:
        yield s.wait_ready(), name
    finally:
        s.stop()


def ask(server, ids, n, begin=None, mask=None, **more):
    values = {"input_ids": ids, "input_lengths": [len(ids)], "request_output_len": [n], "end_id": [-1], **more}
    if begin:
        values |= {"decoder_input_ids": begin, "decoder_input_lengths": [len(begin)]}
    inputs = [{"name": k, "datatype": "FP32" if isinstance(v[0], float) else "INT32", "shape": [1, len(v)], "data": v}
              for k, v in values.items()]
    inputs += [{"name": k, "datatype": "BOOL", "shape": [1, 1], "data": [True]} for k in
               ("return_log_probs", "exclude_input_in_output")]
    if mask:
        inputs.append({"name": "cross_attention_mask", "datatype": "BOOL", "shape": [1, len(mask), len(mask[0])], "data": sum(mask, [])})
    status, answer = server.request("/v2/models/tensorrt_llm/infer", {"inputs": inputs})
    if status != 200:
        return status, answer["error"]
    return status, {o["name"]: o["data"] for o in answer["outputs"]}


def check(server, name, prompt, kind, begin=None, mask=None):
    want = GOLDEN[name][prompt][kind]
    status, got = ask(server, encdec.prompt(name, prompt), len(want["tokens"]), begin, mask)
    assert status == 200, got
    for i, (token, logprob, margin) in enumerate(zip(want["tokens"], want["logprobs"], want["margins"])):
        assert got["output_ids"][i] == token or margin < CLEAR, (prompt, kind, i)
        if got["output_ids"][i] != token:
            return
        assert abs(got["output_log_probs"][i] - logprob) < TOLERANCE, (prompt, kind, i)


@pytest.mark.parametrize("prompt", list(encdec.PROMPTS))
def test_texts_are_those_of_the_reference(served, prompt):
    check(*served, prompt, "greedy")
    check(*served, prompt, "continued", encdec.DECODER)


def test_texts_are_the_same_beside_others(served):
    """Inputs of several lengths in one pass of the encoder, and steps of several texts."""
    jobs = [(prompt, kind, begin) for kind, begin in (("greedy", None), ("continued", encdec.DECODER))
            for prompt in encdec.PROMPTS] * 3
    with concurrent.futures.ThreadPoolExecutor(len(jobs)) as pool:
        for done in [pool.submit(check, *served, *job) for job in jobs]:
            done.result()


def masks(prompt):
    n = len(encdec.PROMPTS[prompt])
    return encdec.cross_mask(n, len(encdec.DECODER) + 5), 2 * [[i % 3 != 1 for i in range(n)]]


def test_states_of_the_encoder_are_hidden_by_a_mask(served):
    """Rows that see more and more, and states that are never seen; beside texts without a mask."""
    jobs = []
    for prompt in encdec.PROMPTS:
        masked, hidden = masks(prompt)
        jobs += [(prompt, "masked", encdec.DECODER, masked), (prompt, "hidden", None, hidden), (prompt, "greedy")]
    jobs = [job for job in jobs if job[1] in GOLDEN[served[1]][job[0]]]
    for job in jobs:
        check(*served, *job)
    with concurrent.futures.ThreadPoolExecutor(len(jobs)) as pool:
        for done in [pool.submit(check, *served, *job) for job in jobs]:
            done.result()


def test_wrong_masks_are_refused_by_name(served):
    server, ids = served[0], encdec.PROMPTS["short"]
    ones, n = [True] * len(ids), len(encdec.DECODER)
    for mask, part in (((n - 1) * [ones], f"cross_attention_mask has the shape [{n - 1}, {len(ids)}], expected [{n} to "),
                       (n * [ones[1:]], f"has the shape [{n}, {len(ids) - 1}], expected"),
                       (n * [[False] * len(ids)], "row 0 sees no state"),
                       ([ones] + (n - 1) * [[*ones[1:], False]], f"row 1 hides state {len(ids) - 1}, which row 0 sees")):
        status, error = ask(server, ids, 3, encdec.DECODER, mask)
        assert status in (400, 501) and part in error, (status, error)
    inputs = [{"name": k, "datatype": "INT32", "shape": [1, len(v)], "data": v} for k, v in
              (("input_ids", ids), ("input_lengths", [len(ids)]), ("request_output_len", [3]))]
    status, answer = server.request("/v2/models/tensorrt_llm/infer", {"inputs": [
        *inputs, {"name": "cross_attention_mask", "datatype": "BOOL", "shape": [1, len(ids)], "data": ones}]})
    assert status == 400 and "cross_attention_mask" in answer["error"], answer


@pytest.mark.parametrize("prompt", list(encdec.PROMPTS))
def test_beams_are_those_of_the_reference(served, prompt):
    server, name = served
    want = GOLDEN[name][prompt]["beams"]
    status, got = ask(server, encdec.prompt(name, prompt), len(want), beam_width=[3])
    assert status == 200, got
    assert got["output_ids"][:len(want)] == want


def test_an_answer_echoes_what_the_text_began_with(served):
    server, _ = served
    inputs = {"input_ids": encdec.PROMPTS["short"], "input_lengths": [6], "request_output_len": [3], "end_id": [-1],
              "decoder_input_ids": encdec.DECODER, "decoder_input_lengths": [len(encdec.DECODER)]}
    status, answer = server.request("/v2/models/tensorrt_llm/infer", {"inputs": [
        {"name": k, "datatype": "INT32", "shape": [1, len(v)], "data": v} for k, v in inputs.items()]})
    assert status == 200, answer
    out = {o["name"]: o["data"] for o in answer["outputs"]}
    assert out["output_ids"][:len(encdec.DECODER)] == encdec.DECODER
    assert out["sequence_length"] == [len(encdec.DECODER) + 3]


def test_a_model_of_text_hears_nothing(served):
    server, _ = served
    features = {"name": "encoder_input_features", "datatype": "FP32", "shape": [1, 2, 4], "data": [0.5] * 8}
    inputs = {"input_ids": [5, 1], "input_lengths": [2], "request_output_len": [3], "encoder_output_lengths": [1]}
    tensors = [{"name": k, "datatype": "INT32", "shape": [1, len(v)], "data": v} for k, v in inputs.items()]
    for sent, name in ((tensors[:3] + [features], "encoder_input_features"), (tensors, "encoder_output_lengths")):
        status, answer = server.request("/v2/models/tensorrt_llm/infer", {"inputs": sent})
        assert status != 200 and f"{name} is not supported by this model" in answer["error"], answer


def test_a_penalty_counts_the_text_alone(served):
    """A token of the encoder's input is no repetition."""
    server, _ = served
    ids, best = encdec.PROMPTS["short"], None
    for _ in range(12):
        best = ask(server, ids, 1, encdec.DECODER)[1]["output_ids"][0]
        if best in ids:
            break
        ids = [best, *ids]
    assert best in ids and best not in encdec.DECODER
    status, got = ask(server, ids, 1, encdec.DECODER, repetition_penalty=[50.0])
    assert status == 200 and got["output_ids"][0] == best, got


def test_text_in_and_text_out(served):
    server, _ = served
    status, answer = server.request("/v1/completions", {"model": "ensemble", "prompt": "fox", "max_tokens": 6, "temperature": 0})
    assert status == 200, answer
    text = answer["choices"][0]["text"]
    status, answer = server.request("/v2/models/ensemble/generate", {"text_input": "fox", "max_tokens": 6})
    assert status == 200 and text.strip() in answer["text_output"], (text, answer)


@pytest.mark.parametrize("begin, more, part", [
    ([encdec.VOCAB], {}, "decoder_input_ids[0]"), ([-1], {}, "decoder_input_ids[0]"),
    ([5] * 3000, {}, "decoder_input_ids has 3000 tokens"),
    (None, {"input_ids": [5] * 3000, "input_lengths": [3000]}, "maximum encoder input length (MOST)"),
])
def test_what_does_not_fit_is_refused_by_field_and_limit(served, begin, more, part):
    server, name = served
    most = encdec.MODELS[name][0].get("max_position_embeddings", 2048)
    status, error = ask(server, [5, 6], 2, begin, **more)
    assert status == 400 and part.replace("MOST", str(most)) in error, error


def test_two_engines_as_the_converter_leaves_them(tmp_path):
    """encoder/ and decoder/ are found side by side, and by encoder_model_path."""
    encdec.write_folder("flan-t5", tmp_path / "model")

    def nereid(*words):
        done = subprocess.run([BIN / "nereid", *map(str, words)], capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    nereid("convert", tmp_path / "model", "--output_dir", tmp_path / "checkpoint")
    for part, more in (("encoder", ["--max_input_len", "512", "--max_seq_len", "512"]), ("decoder", [])):
        nereid("build", tmp_path / "checkpoint" / part, "--output_dir", tmp_path / "engine" / part, "--kv_cache_dtype", "float32",
               *more)
    shutil.copy(tmp_path / "model" / "tokenizer.json", tmp_path / "engine" / "decoder")
    shutil.copy(tmp_path / "model" / "tokenizer_config.json", tmp_path / "engine" / "decoder")
    values = "decoupled_mode:False,normalize_log_probs:False"
    for name, more in (("beside", ""), ("named", f",encoder_engine_dir:{tmp_path / 'elsewhere'}")):
        (tmp_path / name).mkdir()
        s = Server(tmp_path / "engine" / "decoder", tmp_path / name, "--set", values + more)
        try:
            check(s.wait_ready(), "flan-t5", "middle", "greedy")
            status, error = ask(s, [5] * 600, 2)
            assert status == 400 and "maximum encoder input length (512)" in error, error
        finally:
            s.stop()
        if name == "beside":
            shutil.move(tmp_path / "engine" / "encoder", tmp_path / "elsewhere")
    s = Server(tmp_path / "engine" / "decoder", tmp_path)
    try:
        assert s.process.wait(30) != 0
        assert "there is no engine of its encoder" in s.log_text()
    finally:
        s.stop()


def test_the_target_language_begins_the_answer(tmp_path):
    """nereid run with languages, as NLLB names them: the same text as where config.json forces the target's token."""
    encdec.write_folder("m2m_100", tmp_path / "model")
    tokenizer, config = (tmp_path / "model" / name for name in ("tokenizer.json", "tokenizer_config.json"))
    text = json.loads(tokenizer.read_text())
    words = text["model"]["vocab"]
    for i, lang in enumerate(("eng_Latn", "fra_Latn", "deu_Latn")):
        del words[next(w for w, at in words.items() if at == 328 + i)]
        words[lang] = 328 + i
        text["added_tokens"].append({"id": 328 + i, "content": lang, "single_word": False, "lstrip": False, "rstrip": False,
                                     "normalized": False, "special": True})
    tokenizer.write_text(json.dumps(text))
    config.write_text(json.dumps({**json.loads(config.read_text()), "tokenizer_class": "NllbTokenizer"}))

    def answer(*words, forced=11):
        path = tmp_path / "model" / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "forced_bos_token_id": forced}))
        done = subprocess.run([BIN / "nereid", "run", tmp_path / "model", "-p", "fox", "-n", "8", "-q", *words],
                              capture_output=True, text=True, timeout=300, check=False)
        return done.stdout if done.returncode == 0 else done.stderr.splitlines()[-1]

    french = answer(forced=329)
    assert answer("--target_lang", "fra_Latn") == french
    assert len({french, answer("--target_lang", "deu_Latn"), answer("--target_lang", "fra_Latn", "--source_lang", "deu_Latn")}) == 3
    assert "target_lang 'fr' is none of the 3 languages of this model: eng_Latn, fra_Latn, deu_Latn" in answer("--target_lang", "fr")


@pytest.mark.parametrize("name, change, part", [
    ("t5", {"feed_forward_proj": "gated-mish"}, "feed_forward_proj 'gated-mish'"),
    ("t5", {"relative_attention_num_buckets": 200}, "relative_attention_num_buckets"),
    ("t5", {"decoder_start_token_id": 100000}, "decoder_start_token_id"),
    ("marian", {"share_encoder_decoder_embeddings": False}, "share_encoder_decoder_embeddings"),
    ("marian", {"bad_words_ids": [[1, 2]]}, "bad_words_ids"),
    ("marian", {"bad_words_ids": [[331]]}, "bad_words_ids"),
])
def test_a_configuration_that_cannot_be_computed_is_refused(name, change, part, tmp_path):
    encdec.write_folder(name, tmp_path / "model")
    config = tmp_path / "model" / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), **change}))
    done = subprocess.run([BIN / "nereid", "build", tmp_path / "model", "-o", tmp_path / "out"], capture_output=True, text=True,
                          check=False)
    assert done.returncode != 0 and part in done.stderr, done.stderr
