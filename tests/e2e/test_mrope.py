# SPDX-License-Identifier: Apache-2.0
"""mrope_rotary_cos_sin and mrope_position_deltas: a client's own vision model tells where the tokens of its pictures are. The
answer is the one to the pictures themselves (tests/model/make_mrope_goldens.py)."""
import base64
import json
import queue
import sys

import numpy as np
import pytest
import tritonclient.grpc as grpc
from tritonclient.utils import np_to_triton_dtype

from llm_server import ROOT, Server

sys.path.insert(0, str(ROOT / "tests" / "tinymodel"))
import vision  # noqa: E402

GIVEN = json.loads((ROOT / "tests/model/mrope_inputs.json").read_text())
GOLDEN = json.loads((ROOT / "tests/model/vision_answers.json").read_text())["talks"]["qwen2_vl"][GIVEN["talk"]]["top"]
SECTIONS, BASE = [4, 6, 6], 10000.0
VOCABULARY = 640


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mrope")
    vision.write_folder(folder / "qwen", "qwen2_vl")
    s = Server(folder / "qwen", folder, "--build", "--dtype=float32", "--build", "--kv_cache_dtype=float32", "--build",
               "--max_num_tokens=16", "--build", "--max_prompt_embedding_table_size=64").wait_ready()
    yield s
    s.stop()


def table(positions, n_more=0):
    """[positions, pairs, 2] as the original's multimodal runner flattens it; rows behind the prompt are of place 0."""
    axis = np.repeat(np.arange(3), SECTIONS)
    inv_freq = BASE ** (-np.arange(len(axis)) / len(axis))
    angle = np.vstack([np.asarray(positions)[:, axis] * inv_freq, np.zeros((n_more, len(axis)))])
    return np.stack([np.cos(angle), np.sin(angle)], axis=-1).astype(np.float32).reshape(1, -1)


def ask(server, cos_sin=None, delta=None):
    """(result, None) or (None, error)."""
    seen, ids = 0, []
    for i in GIVEN["input_ids"]:
        ids.append(VOCABULARY + seen if i == GIVEN["image_token"] else i)
        seen += i == GIVEN["image_token"]
    rows = np.frombuffer(base64.b64decode(GIVEN["rows"]), "<f4").reshape(1, GIVEN["n_rows"], -1)
    values = {"input_ids": np.array([ids], np.int32), "input_lengths": np.array([[len(ids)]], np.int32),
              "request_output_len": np.array([[len(GOLDEN)]], np.int32),
              "exclude_input_in_output": np.array([[True]]), "prompt_embedding_table": rows.astype(np.float16)}
    if cos_sin is not None:
        values["mrope_rotary_cos_sin"] = cos_sin
    if delta is not None:
        values["mrope_position_deltas"] = np.array([[delta]], np.int64)
    inputs, answers = [], queue.Queue()
    for name, value in values.items():
        inputs.append(grpc.InferInput(name, value.shape, np_to_triton_dtype(value.dtype)))
        inputs[-1].set_data_from_numpy(value)
    with grpc.InferenceServerClient(f"127.0.0.1:{server.grpc}") as c:
        c.start_stream(lambda result, error: answers.put((result, error)))
        c.async_stream_infer("tensorrt_llm", inputs)
        return answers.get(timeout=120)


def said(answer):
    assert answer[1] is None, answer[1]
    return answer[0].as_numpy("output_ids")[0, 0].tolist()


def is_golden(answer):
    return said(answer) == [row[0][0] for row in GOLDEN]


def test_given_places_answer_as_the_pictures_do(server):
    assert is_golden(ask(server, table(GIVEN["positions"]), GIVEN["delta"]))
    assert is_golden(ask(server, table(GIVEN["positions"], n_more=100), GIVEN["delta"]))


def test_other_places_are_another_prompt(server):
    """Blocks of the cache are not shared between them: asked in turns, each has its own answer."""
    moved = np.array(GIVEN["positions"])
    moved[moved[:, 1] != moved[:, 2], 1] += 5
    first = ask(server, table(moved), GIVEN["delta"])
    plain = ask(server)
    assert is_golden(ask(server, table(GIVEN["positions"]), GIVEN["delta"]))
    other_delta = ask(server, table(GIVEN["positions"]), 40)
    again = ask(server, table(moved), GIVEN["delta"])
    assert not is_golden(first) and not is_golden(plain) and not is_golden(other_delta)
    assert said(first) == said(again)


@pytest.mark.parametrize("cos_sin, delta, text", [
    (table([[0, 0, 0]] * 3), 0, "mrope_rotary_cos_sin has 96 numbers, expected at least 1920"),
    (table(np.array(GIVEN["positions"]) + 0.5), 0, "the 8 cosines and sines of token 0 and axis 0 are of no place"),
    (np.full((1, 1920), np.nan, np.float32), 0, "token 0 and axis 0 are of no place"),
    (table(np.array(GIVEN["positions"]) * 1000), 0, "are of no place from 0 to"),
    (table(GIVEN["positions"]), 1 << 40, "mrope_position_deltas is 1099511627776"),
    (table(GIVEN["positions"]), -61, "mrope_position_deltas is -61"),
    (None, 3, "'mrope_position_deltas' needs the input 'mrope_rotary_cos_sin' beside it"),
])
def test_wrong_tables_are_refused_by_name(server, cos_sin, delta, text):
    _, error = ask(server, cos_sin, delta)
    assert error is not None and text in str(error), error
