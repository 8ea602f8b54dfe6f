# SPDX-License-Identifier: Apache-2.0
"""Whisper behind the server: what it hears is what transformers hears (tests/model/make_whisper_goldens.py), through the endpoint
for speech and through tensors, alone and beside others; what is refused."""
import concurrent.futures
import json
import os
import shutil
import subprocess
import sys

import httpx
import numpy as np
import pytest

from llm_server import BIN, ROOT, Server

sys.path.insert(0, str(ROOT / "tests" / "tinymodel"))
import hf_folder  # noqa: E402
import whisper  # noqa: E402

GOLDEN = json.loads((ROOT / "tests/model/whisper_texts.json").read_text())
TOLERANCE = float(os.environ.get("NEREID_TOLERANCE", 3e-4))  # of a log probability
CLEAR = 3 * TOLERANCE  # a margin that no rounding turns
BEGIN = [3, 7, 11]
BUILD = ["--build", "--dtype=float32", "--build", "--kv_cache_dtype=float32", "--set",
         "decoupled_mode:False,normalize_log_probs:False,encoder_input_features_data_type:TYPE_FP32"]


def serve(name, tmp, *more, **generation):
    whisper.write_folder(name, tmp / "model", **generation)
    return Server(tmp / "model", tmp, *BUILD, *more)


@pytest.fixture(scope="module")
def hearing(tmp_path_factory):
    s = serve("whisper", tmp_path_factory.mktemp("whisper"))
    try:
        yield s.wait_ready()
    finally:
        s.stop()


@pytest.fixture(scope="module")
def odd(tmp_path_factory):
    s = serve("odd", tmp_path_factory.mktemp("odd"))
    try:
        yield s.wait_ready()
    finally:
        s.stop()


def tensor(name, kind, values):
    a = np.asarray(values)
    return {"name": name, "datatype": kind, "shape": [1, *a.shape], "data": a.ravel().tolist()}


def ask(server, features, n, begin=BEGIN, **more):
    inputs = [tensor("input_ids", "INT32", begin), tensor("input_lengths", "INT32", [len(begin)]),
              tensor("request_output_len", "INT32", [n]), tensor("end_id", "INT32", [-1])]
    inputs += [tensor(k, "INT32", v) for k, v in more.items()]
    inputs += [tensor(k, "BOOL", [True]) for k in ("return_log_probs", "exclude_input_in_output")]
    if features is not None:
        inputs.append(tensor("encoder_input_features", "FP32", features))
    status, answer = server.request("/v2/models/tensorrt_llm/infer", {"inputs": inputs})
    return status, answer["error"] if status != 200 else {o["name"]: o["data"] for o in answer["outputs"]}


def same(got, want):
    for i, (token, logprob, margin) in enumerate(zip(want["tokens"], want["logprobs"], want["margins"])):
        assert got["output_ids"][i] == token or margin < CLEAR, i
        if got["output_ids"][i] != token:
            return
        assert abs(got["output_log_probs"][i] - logprob) < TOLERANCE, i


def check(server, name):
    want = GOLDEN["texts"][name]
    status, got = ask(server, whisper.features(name), len(want["tokens"]))
    assert status == 200, got
    same(got, want)


def test_it_is_asked_with_sound(odd):
    status, answer = odd.request("/v1/chat/completions", {"model": "ensemble", "messages": [{"role": "user", "content": "fox"}]})
    assert status == 400 and "is a speech model; ask /v1/audio/transcriptions" in answer["error"]["message"], answer


@pytest.mark.parametrize("name", list(whisper.INPUTS))
def test_texts_are_those_of_the_reference(odd, name):
    check(odd, name)


def test_texts_are_the_same_beside_others(odd):
    """Inputs of several lengths in one pass of the encoder, and steps of several texts."""
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        for done in [pool.submit(check, odd, name) for name in list(whisper.INPUTS) * 4]:
            done.result()


def test_the_beginning_may_come_as_the_decoders(odd):
    want = GOLDEN["texts"]["short"]
    status, got = ask(odd, whisper.features("short"), len(want["tokens"]), [5], decoder_input_ids=BEGIN,
                      decoder_input_lengths=[len(BEGIN)], encoder_output_lengths=[26])
    assert status == 200, got
    same(got, want)


def transcribe(server, sound=None, **fields):
    return httpx.post(f"http://127.0.0.1:{server.http}/v1/audio/transcriptions", timeout=120,
                      files={"file": ("a.wav", sound or whisper.wav())}, data={"language": "en", **fields})


def test_a_sound_is_heard_as_by_transformers(hearing):
    r = transcribe(hearing)
    assert r.status_code == 200, r.text
    assert r.json()["text"] == GOLDEN["heard"]["text"]


def test_several_listen_at_once(hearing):
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(transcribe, hearing) for _ in range(4)]:
            assert done.result().json().get("text") == GOLDEN["heard"]["text"], done.result().text


def test_the_language_is_found_out(hearing):
    r = transcribe(hearing, language="")
    assert r.status_code == 200 and r.json()["text"], r.text


@pytest.mark.parametrize("features, more, text", [
    (None, {}, "encoder_input_features are needed"),
    (np.zeros((10, 8), np.float32), {}, "have 8 features a frame, this model reads 7"),
    (np.zeros((92, 7), np.float32), {}, "have 92 frames, expected 1 to 90"),
    (np.zeros((10, 7), np.float32), {"encoder_output_lengths": [6]}, "encoder_output_lengths is 6, expected 5"),
    (np.zeros((10, 7), np.float32), {"begin": [1] * 60}, "exceeds maximum input length"),
])
def test_wrong_sizes_are_refused_by_name(odd, features, more, text):
    status, message = ask(odd, features, 3, **more)
    assert status == 400 and text in message, message


@pytest.mark.parametrize("config, weight, text", [
    ({"num_mel_bins": 0}, None, "'num_mel_bins' must be above 0"),
    ({"num_mel_bins": 5000}, None, "num_mel_bins must be between 0 and 1024"),
    ({"max_source_positions": 44}, None, "embed_positions"),
    ({}, (36, 7, 5), "'model.encoder.conv1.weight' has shape"),
])
def test_folders_that_do_not_fit_are_refused(config, weight, text, tmp_path):
    whisper.write_folder("odd", tmp_path / "model")
    (tmp_path / "model/config.json").write_text(json.dumps(whisper.MODELS["odd"] | config))
    if weight:
        hf_folder.write_safetensors(tmp_path / "model/model.safetensors", whisper.tensors("odd") |
                                    {"model.encoder.conv1.weight": np.zeros(weight, np.float32)}, "float32")
    r = subprocess.run([BIN / "nereid", "build", tmp_path / "model", "--output_dir", tmp_path / "engine"], capture_output=True, text=True)
    assert r.returncode != 0 and text in r.stderr, r.stderr


def test_two_engines_as_the_converter_leaves_them(tmp_path):
    whisper.write_folder("odd", tmp_path / "model")
    for words in (["convert", tmp_path / "model", "--output_dir", tmp_path / "checkpoint"],
                  ["build", tmp_path / "checkpoint/encoder", "--output_dir", tmp_path / "engine/encoder", "--max_input_len", "30",
                   "--max_seq_len", "30"],
                  ["build", tmp_path / "checkpoint/decoder", "--output_dir", tmp_path / "engine/decoder", "--kv_cache_dtype", "float32"]):
        done = subprocess.run([BIN / "nereid", *map(str, words)], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tmp_path / "model" / name, tmp_path / "engine/decoder")
    server = Server(tmp_path / "engine/decoder", tmp_path, *BUILD[-2:])
    try:
        check(server.wait_ready(), "uneven")
        status, message = ask(server, whisper.features("whole"), 3)
        assert status == 400 and "have 90 frames, expected 1 to 60" in message, message
    finally:
        server.stop()


def test_tokens_of_the_configuration_are_not_said(tmp_path):
    server = serve("whisper", tmp_path, suppress_tokens=whisper.SUPPRESSED, begin_suppress_tokens=whisper.FIRST_SUPPRESSED)
    try:
        r = transcribe(server.wait_ready())
        assert r.status_code == 200 and r.json()["text"] == GOLDEN["suppressed"]["text"] != GOLDEN["heard"]["text"], r.text
    finally:
        server.stop()


def test_times_follow_the_rules_of_the_reference(tmp_path):
    """A sound of several windows: which times are told, where windows begin, what stands before them, and how sure the model is."""
    server = serve("whisper", tmp_path, max_length=whisper.TIMED_CONTEXT, max_initial_timestamp_index=whisper.MAX_FIRST_TIME)
    try:
        server.wait_ready()
        r = transcribe(server, sound=whisper.wav(whisper.TIMED_SECONDS), response_format="verbose_json", temperature="0,0",
                       compression_ratio_threshold="1000", logprob_threshold="-1000")
        assert r.status_code == 200, r.text
        windows = {}
        for s in r.json()["segments"]:
            windows.setdefault(s["seek"], []).append(s)
        assert list(windows) == [w["seek"] for w in GOLDEN["timed"]]
        for want in GOLDEN["timed"]:
            got = windows[want["seek"]]
            assert [t for s in got for t in s["tokens"]] == want["kept"]
            assert got[0]["avg_logprob"] == pytest.approx(want["avg_logprob"], abs=TOLERANCE)
            assert got[0]["no_speech_prob"] == pytest.approx(want["no_speech_prob"], rel=max(1e-3, TOLERANCE))
    finally:
        server.stop()


@pytest.mark.parametrize("parameters, text", [
    ({"no_timestamps_token_id": 331}, "no_timestamps_token_id is 331, expected 0 to 329"),
    ({"no_timestamps_token_id": "3"}, "no_timestamps_token_id must be a whole number"),
    ({"no_speech_token_id": 331}, "no_speech_token_id is 331, expected 0 to 330"),
    ({"no_speech_token_id": 4, "no_speech_position": 3}, "no_speech_position is 3, expected a place"),
])
def test_rules_of_speech_are_checked(odd, parameters, text):
    inputs = [tensor("input_ids", "INT32", BEGIN), tensor("input_lengths", "INT32", [3]), tensor("request_output_len", "INT32", [2]),
              tensor("encoder_input_features", "FP32", whisper.features("short"))]
    status, answer = odd.request("/v2/models/tensorrt_llm/infer", {"inputs": inputs, "parameters": parameters})
    assert status == 400 and text in answer["error"], answer


def test_half_precision_hears_nearly_the_same(tmp_path):
    """The type that `nereid serve` declares by itself."""
    whisper.write_folder("whisper", tmp_path / "model")
    server = Server(tmp_path / "model", tmp_path)
    try:
        r = transcribe(server.wait_ready())
        assert r.status_code == 200 and r.json()["text"], r.text
    finally:
        server.stop()
