# SPDX-License-Identifier: Apache-2.0
"""Decoders as rerankers, classifiers and embedders: a `score` head, two tokens of the LM head (as vLLM's and as
sentence-transformers' folders name them), pooling of a folder. Numbers are those of transformers
(tests/model/make_reranker_goldens.py)."""
import json
import subprocess
import sys

import numpy as np
import pytest

from llm_server import BIN, ROOT, Server

sys.path.insert(0, str(ROOT / "tests" / "tinymodel"))
import encoders  # noqa: E402
import rerankers  # noqa: E402

GOLDEN = json.loads((ROOT / "tests/model/reranker_scores.json").read_text())["rerankers"]
TEXTS = encoders.TEXTS
PAIRS = [(a, b) for a in TEXTS[:2] for b in TEXTS]


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    tmp, running = tmp_path_factory.mktemp("rerankers"), {}

    def get(kind):
        if kind not in running:
            rerankers.write_folder(kind, tmp / kind)
            running[kind] = Server(tmp / kind, tmp, "--build", "--dtype=float32", "--build",
                                   "--kv_cache_dtype=float32").wait_ready()
        return running[kind]
    yield get
    for s in running.values():
        s.stop()


def ask(server, path, **body):
    status, answer = server.request(path, body)
    assert status == 200, answer
    return answer


@pytest.mark.parametrize("kind", ["score", "original", "logit-score"])
def test_pairs(servers, kind):
    server, golden = servers(kind), GOLDEN[kind]
    a, b = zip(*PAIRS)
    for _ in range(2):  # the second time from the prefix cache
        got = ask(server, "/v1/score", text_1=a, text_2=b, use_activation=False)["data"]
        assert np.allclose([d["score"] for d in got], [g[0] for g in golden["pairs"]], rtol=0, atol=2e-4)
    got = ask(server, "/v1/rerank", query=TEXTS[0], documents=TEXTS)["results"]
    want = [1 / (1 + np.exp(-g[0])) for g in golden["pairs"][:len(TEXTS)]]
    assert [r["index"] for r in got] == sorted(range(len(TEXTS)), key=lambda i: -want[i])
    assert np.allclose([r["relevance_score"] for r in got], sorted(want, reverse=True), atol=1e-4)


@pytest.mark.parametrize("kind", ["score", "topics"])
def test_labels(servers, kind):
    server, golden = servers(kind), GOLDEN[kind]
    got = ask(server, "/classify", input=TEXTS * 4, use_activation=False)["data"]
    for i, d in enumerate(got):
        assert np.allclose(d["probs"], golden["single"][i % len(TEXTS)], rtol=0, atol=2e-4)
    status, answer = server.request("/v1/completions", {"model": "ensemble", "prompt": "fox", "max_tokens": 2})
    assert status == 400 and "classifier" in json.dumps(answer), answer


def test_vectors_are_pooled_as_the_folder_says(servers):
    got = ask(servers("embed"), "/v1/embeddings", model="ensemble", input=TEXTS)["data"]
    for d, g in zip(got, GOLDEN["embed"]["mean"]):
        assert np.abs(np.array(d["embedding"]) - np.array(g) / np.linalg.norm(g)).max() < 1e-5


@pytest.mark.parametrize("kind", ["original", "logit-score"])
def test_a_reranker_of_tokens_still_writes(servers, kind):
    assert ask(servers(kind), "/v1/completions", model="ensemble", prompt="fox", max_tokens=2)["choices"]


def test_the_prompt_may_be_written_by_the_client_and_cut(servers):
    server = servers("original")
    own = ask(server, "/v1/score", text_1="fox", text_2="the wind", instruction="find it")
    ready = ask(server, "/v1/score", text_1='<|im_start|>system\nJudge whether the Document meets the requirements based on '
                'the Query and the Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n'
                "<|im_start|>user\n<Instruct>: find it\n<Query>: fox\n",
                text_2="<Document>: the wind<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n")
    assert abs(own["data"][0]["score"] - ready["data"][0]["score"]) < 1e-3
    n = own["usage"]["prompt_tokens"]
    cut = ask(server, "/v1/score", text_1="fox", text_2="the wind" * 40, instruction="find it", truncate_prompt_tokens=n)
    assert cut["usage"]["prompt_tokens"] == n
    status, answer = server.request("/v1/score", {"text_1": "fox", "text_2": "you", "truncate_prompt_tokens": 5})
    assert status == 400 and "leave room" in answer["error"]["message"], answer


@pytest.mark.parametrize("change, part", [
    ({"classifier_from_token": ["in", "nowhere"], "is_original_qwen3_reranker": True}, "names a token"),
    ({"classifier_from_token": ["in"], "is_original_qwen3_reranker": True}, "must be two tokens"),
    ({"classifier_from_token": ["in", "on"]}, "is_original_qwen3_reranker")])
def test_tokens_that_cannot_be_are_refused(change, part, tmp_path):
    rerankers.write_folder("original", tmp_path / "model")
    config = tmp_path / "model" / "config.json"
    values = {k: v for k, v in json.loads(config.read_text()).items() if k != "is_original_qwen3_reranker"}
    config.write_text(json.dumps({**values, **change}))
    done = subprocess.run([BIN / "nereid", "build", tmp_path / "model", "-o", tmp_path / "engine"], capture_output=True,
                          text=True, check=False)
    assert done.returncode == 1 and part in done.stderr, done.stderr
