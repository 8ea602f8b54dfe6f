# SPDX-License-Identifier: Apache-2.0
"""The tokens of a key, on /v2 as on /v1."""
import httpx
import pytest

from llm_server import Server

TEXT = "the quick brown fox"


@pytest.fixture
def limited(tiny_model, cache):
    made = []

    def start(*options):
        made.append(Server(tiny_model, cache, "--api-key=a", "--api-key=b", *options))
        return made[-1].wait_ready()
    yield start
    for s in made:
        assert s.stop() == 0, s.log_text()[-4000:]


def generate(s, key, model="ensemble", n=4):
    body = {"text_input": TEXT, "max_tokens": n}
    if model == "tensorrt_llm":
        body = {"input_ids": [5, 6, 7], "input_lengths": 3, "request_output_len": n, "end_id": -1}
    return httpx.post(s.url(f"/v2/models/{model}/generate"), json=body, headers={"Authorization": f"Bearer {key}"}, timeout=60)


@pytest.mark.parametrize("model", ["ensemble", "tensorrt_llm", "tensorrt_llm_bls"])
def test_tokens_of_prompt_and_answer_are_counted(limited, model):
    s = limited("--key-token-limit=60")
    n = 300
    before = generate(s, "a", model, n)
    assert before.status_code == 200, before.text
    reply = generate(s, "a", model, 1)
    assert reply.status_code == 429 and "Too many tokens for this key." in reply.json()["error"]
    # 60 a minute: a second for each token that is owed
    assert n - 70 <= int(reply.headers["retry-after"]) <= n + 20
    assert generate(s, "b", model, 1).status_code == 200
    reply = httpx.post(s.url("/v1/completions"), json={"model": "ensemble", "prompt": TEXT, "max_tokens": 1},
                       headers={"Authorization": "Bearer a"}, timeout=60)
    assert reply.status_code == 429  # all APIs have one account
