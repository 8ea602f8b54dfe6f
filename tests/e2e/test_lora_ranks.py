# SPDX-License-Identifier: Apache-2.0
"""Adapters of an engine of several ranks: by number, name and folder, mixed in one step and changed all the time in a
small cache, each answers as with one rank; a rank that is lost and comes back has them again."""
import concurrent.futures
import os
import signal
import sys

import numpy as np
import pytest

from llm_server import ROOT, Server
from test_lora import answer, arrays
from test_ranks import wait_until, workers

sys.path.insert(0, str(ROOT / "tests/tinymodel"))
import adapter  # noqa: E402

http = pytest.importorskip("tritonclient.http")

NUMBERS = [*range(1, 9)]
SHAPES = [(2, 1), (1, 2), (2, 2)]
ASK = {"text_input": "the quick brown fox", "max_tokens": 12, "top_k": 1, "return_log_probs": True}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Numbers as folders (lora_prefetch_dir), and one to be named."""
    path = tmp_path_factory.mktemp("adapters")
    for number in NUMBERS:
        w, k = arrays(f"n{number}")
        (path / "all" / str(number)).mkdir(parents=True)
        np.save(path / "all" / str(number) / "model.lora_weights.npy", w)
        np.save(path / "all" / str(number) / "model.lora_config.npy", k)
    adapter.write("llama", path / "named", "float32", seed="named")
    return path


def serve(tiny_model, cache, folder, tp, pp):
    size = arrays("n1")[0].nbytes
    return Server(tiny_model, cache, f"--tp-size={tp}", f"--pp-size={pp}", "--restart-on-failure=false",
                  "--lora", f"named={folder / 'named'}", "--set", f"decoupled_mode:False,lora_prefetch_dir:{folder / 'all'},"
                  f"lora_cache_host_memory_bytes:{7 * size}").wait_ready()


def one(s, number):
    status, a = s.generate(dict(ASK, **({"lora_task_id": number} if number else {})))
    assert status == 200, a
    return a["text_output"], a["cum_log_probs"]


def named(s):
    status, a = s.request("/v1/completions", {"model": "named", "prompt": ASK["text_input"], "max_tokens": 12,
                                              "temperature": 0, "ignore_eos": True, "logprobs": 1})
    assert status == 200, a
    return a["choices"][0]["text"], sum(a["choices"][0]["logprobs"]["token_logprobs"])


def brought(s, number):
    """With the request itself."""
    with http.InferenceServerClient(f"127.0.0.1:{s.http}") as c:
        return str(answer(c, "ensemble", number, arrays("brought"))), 0


def all_answers(s):
    alone = {n: one(s, n) for n in [0, *NUMBERS, *NUMBERS[::-1]]}
    with concurrent.futures.ThreadPoolExecutor(8) as pool:  # other numbers in one step; more than the cache holds
        jobs = [(n, pool.submit(one, s, n)) for n in [0, *NUMBERS[:4]] * 6]
        for n, job in jobs:
            text, score = job.result()
            assert text == alone[n][0] and score == pytest.approx(alone[n][1], abs=1e-3)
    return [*alone.values(), named(s), brought(s, 500)]


@pytest.fixture(scope="module")
def expected(tiny_model, cache, folder):
    s = serve(tiny_model, cache, folder, 1, 1)
    try:
        out = all_answers(s)
    finally:
        assert s.stop() == 0
    assert len({text for text, _ in out}) == len(out), "every adapter answers in its own way"
    return out


@pytest.mark.parametrize(("tp", "pp"), SHAPES)
def test_adapters_answer_as_with_one_rank(tiny_model, cache, folder, expected, tp, pp):
    s = serve(tiny_model, cache, folder, tp, pp)
    try:
        for (text, score), (want, want_score) in zip(all_answers(s), expected):
            assert text == want
            assert score == pytest.approx(want_score, abs=1e-3)
        assert s.metric("nv_llm_lora_events", lora_event="evicted_host") > 0
    finally:
        assert s.stop() == 0


def test_a_lost_rank_comes_back_with_its_adapters(tiny_model, cache, folder, expected):
    s = serve(tiny_model, cache, folder, 2, 1)
    try:
        before = one(s, 3)
        os.kill(workers(s)[0], signal.SIGKILL)
        wait_until(lambda: s.request("/v2/models/tensorrt_llm/ready")[0] != 200)
        wait_until(lambda: s.request("/v2/repository/models/tensorrt_llm/load", b"")[0] == 200)
        wait_until(lambda: s.request("/v2/models/ensemble/ready")[0] == 200)
        assert one(s, 3) == before and before[0] == expected[3][0]
    finally:
        assert s.stop() == 0
