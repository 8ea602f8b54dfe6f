# SPDX-License-Identifier: Apache-2.0
"""nereid.executor with models that have an encoder: texts are those of transformers (tests/model/make_encdec_goldens.py,
make_whisper_goldens.py); what is refused says why."""
import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("NEREID_BIN", ROOT / "build/bin")).resolve().parent
sys.path.insert(0, str(ROOT / "tests" / "tinymodel"))
import encdec  # noqa: E402
import whisper  # noqa: E402

HEARD = json.loads((ROOT / "tests/model/whisper_texts.json").read_text())["texts"]
READ = json.loads((ROOT / "tests/model/encdec_texts.json").read_text())["models"]
BEGIN = [3, 7, 11]  # as the goldens do
CLEAR = 1e-3        # a margin that no rounding turns


@pytest.fixture(scope="module")
def trtllm():
    from nereid import executor
    return executor


def open_engine(trtllm, write, name, folder):
    write(name, folder / "model")
    subprocess.run([BUILD / "bin/nereid", "build", folder / "model", "--output_dir", folder / "engine", "--dtype=float32",
                    "--kv_cache_dtype=float32"], check=True, capture_output=True)
    return trtllm.Executor(str(folder / "engine"), trtllm.ModelType.ENCODER_DECODER, trtllm.ExecutorConfig(1, n_threads=1))


@pytest.fixture(scope="module")
def hearing(trtllm, tmp_path_factory):
    with open_engine(trtllm, whisper.write_folder, "odd", tmp_path_factory.mktemp("whisper")) as x:
        yield x


@pytest.fixture(scope="module")
def reading(trtllm, tmp_path_factory):
    with open_engine(trtllm, encdec.write_folder, "flan-t5", tmp_path_factory.mktemp("flan-t5")) as x:
        yield x


def text(trtllm, executor, ids, n, **more):
    request = trtllm.Request(ids, n, end_id=-1, output_config=trtllm.OutputConfig(exclude_input_from_output=True), **more)
    return executor.await_responses(executor.enqueue_request(request))[0].result.output_token_ids[0]


def is_golden(got, want):
    for token, expected, margin in zip(got, want["tokens"], want["margins"]):
        if token != expected:
            return margin < CLEAR
    return len(got) == len(want["tokens"])


@pytest.mark.parametrize("kind,axis", [("float32", False), ("float32", True), ("float64", False)])
@pytest.mark.parametrize("sound", ["whole", "uneven"])
def test_a_sound_is_heard(trtllm, hearing, sound, kind, axis):
    features, want = np.asarray(whisper.features(sound), kind), HEARD[sound]
    got = text(trtllm, hearing, BEGIN, len(want["tokens"]), encoder_output_length=(len(features) + 1) // 2,
               encoder_input_features=features[None] if axis else features)
    assert is_golden(got, want)


def test_a_sound_in_halves_and_in_a_list(trtllm, hearing):
    features, want = np.asarray(whisper.features("short"), np.float32), HEARD["short"]
    n = len(want["tokens"])
    assert is_golden(text(trtllm, hearing, BEGIN, n, encoder_input_features=features.tolist()), want)
    halves = features.astype(np.float16)
    as_halves = text(trtllm, hearing, BEGIN, n, encoder_input_features=halves)
    assert as_halves == text(trtllm, hearing, BEGIN, n, encoder_input_features=halves.astype(np.float32))


@pytest.mark.parametrize("prompt", list(READ["flan-t5"]))
def test_the_encoder_has_tokens_of_its_own(trtllm, reading, prompt):
    want = READ["flan-t5"][prompt]["continued"]
    ids = encdec.PROMPTS[prompt]
    assert is_golden(text(trtllm, reading, encdec.DECODER, len(want["tokens"]), encoder_input_token_ids=ids), want)
    want = READ["flan-t5"][prompt]["greedy"]  # without them the text begins with the model's start token
    assert is_golden(text(trtllm, reading, ids, len(want["tokens"])), want)


def test_what_is_refused(trtllm, engine, hearing, reading):
    import nereid
    for kind, error, why in [(trtllm.ModelType.ENCODER_DECODER, nereid.InvalidArgumentError, "has no encoder"),
                             (trtllm.ModelType.ENCODER_ONLY, nereid.UnsupportedError, "ENCODER_ONLY is not supported")]:
        with pytest.raises(error, match=why):
            trtllm.Executor(engine, kind)
    sound = np.zeros((20, 8), np.float32)
    for executor, more, error, why in [
            (reading, {"encoder_input_features": sound}, nereid.UnsupportedError, "encoder_input_features"),
            (reading, {"encoder_output_length": 4}, nereid.UnsupportedError, "encoder_output_length"),
            (reading, {"input_token_ids": [], "encoder_input_token_ids": [5]}, nereid.InvalidArgumentError, "input_token_ids"),
            (hearing, {}, nereid.InvalidArgumentError, "encoder_input_features are needed"),
            (hearing, {"encoder_input_features": np.zeros((20, 3), np.float32)}, nereid.InvalidArgumentError, "3 features a frame"),
            (hearing, {"encoder_input_features": np.zeros(20, np.float32)}, ValueError, r"expected the shape \[frames, features\]"),
            (hearing, {"encoder_input_features": whisper.features("whole"), "encoder_output_length": 1},
             nereid.InvalidArgumentError, "encoder_output_lengths is 1"),
            (hearing, {"cross_attention_mask": np.ones(4, bool)}, ValueError, "cross_attention_mask has 1 dimensions"),
            (hearing, {"encoder_input_features": whisper.features("whole"), "cross_attention_mask": np.ones((3, 4), bool)},
             nereid.InvalidArgumentError, r"cross_attention_mask has the shape \[3, 4\]"),
            (hearing, {"skip_cross_attn_blocks": True}, nereid.UnsupportedError, "skip_cross_attn_blocks")]:
        with pytest.raises(error, match=why):
            executor.enqueue_request(trtllm.Request(**{"input_token_ids": BEGIN, "max_tokens": 3, **more}))
