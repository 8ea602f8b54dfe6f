# SPDX-License-Identifier: Apache-2.0
"""Logits of generated tokens with beams, and how many beams come back, through the server."""
import math

import pytest

from llm_server import Server

PROMPT = [5, 6, 7, 8]


@pytest.fixture(scope="module")
def server(tiny_model, cache):
    s = Server(tiny_model, cache, "--set", "decoupled_mode:False,max_beam_width:4", "--build", "--max_beam_width=4", "--build",
               "--gather_generation_logits", "--build", "--dtype=float32")
    try:
        yield s.wait_ready()
    finally:
        s.stop()


def ask(server, **more):
    values = {"input_ids": ("INT32", PROMPT), "input_lengths": ("INT32", [len(PROMPT)]), "request_output_len": ("INT32", [6]),
              "beam_width": ("INT32", [4]), "end_id": ("INT32", [-1]), "return_generation_logits": ("BOOL", [True]),
              "return_log_probs": ("BOOL", [True]), "exclude_input_in_output": ("BOOL", [True]), **more}
    body = {"inputs": [{"name": k, "datatype": t, "shape": [1, len(v)], "data": v} for k, (t, v) in values.items()]}
    status, answer = server.request("/v2/models/tensorrt_llm/infer", body)
    if status != 200:
        return status, answer["error"]
    return status, {o["name"]: o for o in answer["outputs"]}


@pytest.mark.parametrize("n, beams", [(1, 4), (2, 2), (4, 4)])
def test_each_beam_has_the_logits_of_its_tokens(server, n, beams):
    status, got = ask(server, num_return_sequences=("INT32", [n]))
    assert status == 200, got
    ids, logits, probs = got["output_ids"], got["generation_logits"], got["output_log_probs"]
    assert ids["shape"][:2] == [1, beams]
    one, n_beams, length, vocab = logits["shape"]
    assert (one, n_beams, length) == (1, beams, 6)
    for b in range(beams):
        for i in range(length):
            row = logits["data"][(b * length + i) * vocab:][:vocab]
            token = ids["data"][b * ids["shape"][2] + i]
            top = max(row)
            log_prob = row[token] - top - math.log(sum(math.exp(v - top) for v in row))
            assert log_prob == pytest.approx(probs["data"][b * probs["shape"][2] + i], abs=1e-3)


def test_more_sequences_than_beams_are_refused(server):
    status, error = ask(server, num_return_sequences=("INT32", [5]))
    assert status == 400 and "num_return_sequences (5) must not exceed beam_width (4)" in error


def test_several_answers_need_a_decoupled_model(server):
    status, error = ask(server, num_return_sequences=("INT32", [3]), beam_width=("INT32", [1]))
    assert status == 400 and "num_return_sequences is 3: more than 1 without beams is only supported" in error
