# SPDX-License-Identifier: Apache-2.0
"""Rerankers and classifiers behind /v1/rerank, /v1/score and /classify: numbers as transformers and sentence-transformers
compute them (tests/model/make_classifier_goldens.py), in any batch; the forms of vLLM, Jina, Cohere and
text-embeddings-inference; what is refused."""
import json
import os
import subprocess
import sys

import jsonschema
import numpy as np
import pytest

from llm_server import BIN, ROOT, Server

sys.path.insert(0, str(ROOT / "tests" / "tinymodel"))
import encoders  # noqa: E402

GOLDEN = json.loads((ROOT / "tests/model/classifier_scores.json").read_text())
TEXTS = encoders.TEXTS
TOLERANCE = min(0.03, float(os.environ.get("NEREID_TOLERANCE", 3e-6)))
OF_LOGITS = max(1e-5, TOLERANCE)
PAIRS = [(a, b) for a in TEXTS for b in TEXTS]


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    tmp, running = tmp_path_factory.mktemp("classifiers"), {}

    def get(name):
        if name not in running:
            if name.endswith(".gguf"):
                encoders.write_classifier_gguf(name.removesuffix(".gguf"), tmp / name)
            elif name in encoders.CLASSIFIERS:
                encoders.write_classifier(name, tmp / name)
            else:
                encoders.write_folder(name, tmp / name, "mean_tokens")
            more = ["--set", "decoupled_mode:False"] if name == "distilbert-mood" else []
            running[name] = Server(tmp / name, tmp, "--strict-model-names=true", *more).wait_ready()
        return running[name]
    yield get
    for s in running.values():
        s.stop()


def ask(server, path, **body):
    status, answer = server.request(path, body)
    assert status == 200, answer
    return answer


def refused(server, path, part, status=400, **body):
    got, answer = server.request(path, body)
    assert got == status and part in answer["error"]["message"], answer
    return answer["error"]


def test_a_gguf_head_without_its_first_product_is_refused(tmp_path, monkeypatch):
    tensors = encoders.classifier_tensors
    monkeypatch.setattr(encoders, "classifier_tensors", lambda name: {at: x for at, x in tensors(name).items() if "classifier.dense" not in at})
    encoders.write_classifier_gguf("xlm-roberta-rerank", tmp_path / "m.gguf")
    done = subprocess.run([BIN / "nereid", "build", tmp_path / "m.gguf", "-o", tmp_path / "e"], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "the file has not both of 'cls.weight' and 'cls.output.weight'" in done.stderr, done.stderr


RERANKERS = ["bert-rerank", "jina-v2-rerank", "xlm-roberta-rerank", "modernbert-rerank", "xlm-roberta-rerank.gguf"]


@pytest.mark.parametrize("name", RERANKERS)
def test_scores_are_those_of_the_reference(servers, name):
    golden = GOLDEN["classifiers"][name.removesuffix(".gguf")]["pairs"]
    a, b = zip(*PAIRS)
    answer = ask(servers(name), "/v1/score", model="ensemble", text_1=a, text_2=b)
    assert [d["index"] for d in answer["data"]] == list(range(len(PAIRS)))
    for d, g in zip(answer["data"], golden):
        # what the folder says of scores is not in the file: one label is a sigmoid
        want = 1 / (1 + np.exp(-g["logits"][0])) if name.endswith(".gguf") else g["score"]
        assert abs(d["score"] - want) < TOLERANCE, (d, g)
    n = sum(g["tokens"] for g in golden)
    assert answer["usage"] == {"prompt_tokens": n, "total_tokens": n}
    plain = ask(servers(name), "/score", text_1=a, text_2=b, use_activation=False)
    assert np.allclose([d["score"] for d in plain["data"]], [g["logits"][0] for g in golden], rtol=0, atol=OF_LOGITS)


@pytest.mark.parametrize("name", RERANKERS)
def test_a_pair_that_is_cut(servers, name):
    golden = GOLDEN["classifiers"][name.removesuffix(".gguf")]["cut"]
    a, b = zip(*PAIRS)
    answer = ask(servers(name), "/v1/score", text_1=a, text_2=b, use_activation=False, truncate_prompt_tokens=GOLDEN["cut"])
    assert np.allclose([d["score"] for d in answer["data"]], [g["logits"][0] for g in golden], rtol=0, atol=OF_LOGITS)
    assert answer["usage"]["prompt_tokens"] == sum(g["tokens"] for g in golden)


@pytest.mark.parametrize("name", encoders.CLASSIFIERS)
def test_labels_are_those_of_the_reference(servers, name):
    golden, labels = GOLDEN["classifiers"][name], list(encoders.CLASSIFIERS[name][2]["id2label"].values())
    answer = ask(servers(name), "/classify", model="ensemble", input=TEXTS * 8)
    assert answer["object"] == "list" and answer["id"].startswith("classify-")
    for i, d in enumerate(answer["data"]):
        g = golden["single"][i % len(TEXTS)]
        assert d["index"] == i and d["num_classes"] == len(labels)
        assert np.allclose(d["probs"], g["probs"], rtol=0, atol=TOLERANCE)
        assert d["label"] == labels[int(np.argmax(g["probs"]))]
    pairs = ask(servers(name), "/classify", use_activation=False, input=[{"text": a, "text_pair": b} for a, b in PAIRS])
    for d, g in zip(pairs["data"], golden["pairs"]):
        assert np.allclose(d["probs"], g["logits"], rtol=3e-6, atol=OF_LOGITS)


def test_documents_in_the_order_of_their_scores(servers):
    s, golden = servers("bert-rerank"), GOLDEN["classifiers"]["bert-rerank"]["pairs"]
    scores = [g["score"] for g in golden[:len(TEXTS)]]
    order = sorted(range(len(TEXTS)), key=lambda i: -scores[i])
    for path, documents in (("/v1/rerank", TEXTS), ("/rerank", [{"text": t} for t in TEXTS]), ("/v2/rerank", TEXTS)):
        answer = ask(s, path, model="ensemble", query=TEXTS[0], documents=documents)
        assert [r["index"] for r in answer["results"]] == order
        assert all(r["document"] == {"text": TEXTS[r["index"]]} for r in answer["results"])
        assert np.allclose([r["relevance_score"] for r in answer["results"]], [scores[i] for i in order], rtol=0,
                           atol=TOLERANCE)
        assert answer["usage"]["total_tokens"] == sum(g["tokens"] for g in golden[:len(TEXTS)])
    short = ask(s, "/rerank", query=TEXTS[0], documents=TEXTS, top_n=2, return_documents=False)
    assert [r["index"] for r in short["results"]] == order[:2] and "document" not in short["results"][0]
    assert len(ask(s, "/rerank", query=TEXTS[0], documents=TEXTS, top_n=99)["results"]) == len(TEXTS)
    many = ask(s, "/rerank", query=TEXTS[0], documents=TEXTS * 64, top_n=3)["results"]
    assert {r["index"] % len(TEXTS) for r in many} == {order[0]}


def test_the_form_of_text_embeddings_inference(servers):
    s, golden = servers("bert-rerank"), GOLDEN["classifiers"]["bert-rerank"]["pairs"][:len(TEXTS)]
    answer = ask(s, "/rerank", query=TEXTS[0], texts=TEXTS)
    order = sorted(range(len(TEXTS)), key=lambda i: -golden[i]["score"])
    assert [set(r) for r in answer] == [{"index", "score"}] * len(TEXTS) and [r["index"] for r in answer] == order
    raw = ask(s, "/rerank", query=TEXTS[0], texts=TEXTS, raw_scores=True, return_text=True)
    for r in raw:
        assert r["text"] == TEXTS[r["index"]] and abs(r["score"] - golden[r["index"]]["logits"][0]) < OF_LOGITS
    long = "the fox " * 300
    refused(s, "/rerank", str(encoders.POSITIONS), query="you", texts=[long])
    assert len(ask(s, "/rerank", query="you", texts=[long], truncate=True)) == 1


def test_what_is_cut(servers):
    s, long = servers("bert-rerank"), "the fox " * 300
    refused(s, "/v1/rerank", str(encoders.POSITIONS), query="you", documents=[long])
    answer = ask(s, "/v1/rerank", query="you", documents=[long], truncate_prompt_tokens=-1)
    assert answer["usage"]["prompt_tokens"] == encoders.POSITIONS
    answer = ask(s, "/v1/rerank", query="you", documents=[long, "you"], max_tokens_per_doc=5)
    by_index = sorted(answer["results"], key=lambda r: r["index"])
    cut = ask(s, "/v1/score", text_1="you", text_2="you")["data"][0]["score"]
    assert abs(by_index[1]["relevance_score"] - cut) < TOLERANCE  # it was not longer
    refused(s, "/v1/rerank", "special tokens", query="you", documents=["fox"], truncate_prompt_tokens=3)


def test_an_embedding_model_scores_by_the_cosine(servers):
    s = servers("bert")
    vectors = [np.array(d["embedding"]) for d in
               ask(s, "/v1/embeddings", model="ensemble", input=[TEXTS[0], *TEXTS])["data"]]
    want = [float(vectors[0] @ v) for v in vectors[1:]]
    got = ask(s, "/v1/score", text_1=TEXTS[0], text_2=TEXTS)["data"]
    assert np.allclose([d["score"] for d in got], want, rtol=0, atol=1e-6)
    ranked = ask(s, "/v1/rerank", query=TEXTS[0], documents=TEXTS)["results"]
    assert [r["index"] for r in ranked] == sorted(range(len(TEXTS)), key=lambda i: -want[i])
    refused(s, "/classify", "no labels", input="fox")


@pytest.mark.parametrize("path, body, part, param", [
    ("/v1/rerank", {"documents": ["a"]}, "query", "query"), ("/v1/rerank", {"query": "a"}, "documents", "documents"),
    ("/v1/rerank", {"query": ["a"], "documents": ["a"]}, "must be a text", "query"),
    ("/v1/rerank", {"query": "a", "documents": []}, "1 to 2048", "documents"),
    ("/v1/rerank", {"query": "a", "documents": ["a"] * 2049}, "2048", "documents"),
    ("/v1/rerank", {"query": "a", "documents": ["a", {"title": "x"}]}, "element 1", "documents"),
    ("/v1/rerank", {"query": "a", "documents": ["a"], "top_n": -1}, "top_n", "top_n"),
    ("/v1/rerank", {"query": "a", "documents": ["a"], "return_documents": 1}, "true or false", "return_documents"),
    ("/v1/rerank", {"query": "a", "documents": ["a"], "truncate_prompt_tokens": 0}, "-1", "truncate_prompt_tokens"),
    ("/v1/rerank", {"query": "a", "documents": ["a"], "max_tokens_per_doc": -2}, "from 0", "max_tokens_per_doc"),
    ("/v1/score", {"text_1": ["a", "b"], "text_2": ["a", "b", "c"]}, "as many", "text_1"),
    ("/v1/score", {"text_1": "a"}, "text_2", "text_2"), ("/v1/score", {"text_2": "a"}, "text_1", "text_1"),
    ("/classify", {}, "input", "input"), ("/classify", {"input": []}, "input", "input"),
    ("/classify", {"input": [{"text": 1}]}, "input", "input"), ("/classify", {"input": [[9999999]]}, "token id", "input"),
    ("/v1/rerank", {"query": "a", "documents": ["a"], "model": "nobody"}, "does not exist", "model"),
])
def test_a_wrong_field_is_named(servers, path, body, part, param):
    status = 404 if body.get("model") else 400
    assert refused(servers("bert-rerank"), path, part, status, **body)["param"] in (param, None if status == 404 else param)


@pytest.mark.parametrize("path, takes, gives, body", [
    ("/classify", "ClassifyRequest", "ClassifyAnswer", {"input": ["fox", [5, 6], "you"][:1], "use_activation": True}),
    ("/classify", "ClassifyRequest", "ClassifyAnswer", {"input": {"text": "fox", "text_pair": "you"}}),
    ("/v2/rerank", "RerankRequest", "RerankAnswer", {"query": "fox", "documents": ["you"], "top_n": 1}),
    ("/score", "ScoreRequest", "ScoreAnswer", {"queries": ["fox"], "items": "you"})])
def test_answers_are_as_openapi_describes_them(servers, path, takes, gives, body):
    s = servers("bert-rerank")
    description = s.request("/openapi.json")[1]
    for name, value in ((takes, body), (gives, ask(s, path, **body))):
        jsonschema.Draft202012Validator({"$ref": f"#/components/schemas/{name}", **description}).validate(value)


def test_a_classifier_of_several_labels_does_not_score(servers):
    refused(servers("distilbert-mood"), "/v1/rerank", "3 labels", query="a", documents=["b"])


def test_other_names_of_the_two_sides(servers):
    s = servers("bert-rerank")
    want = ask(s, "/v1/score", text_1="fox", text_2=["the wind", "you"])["data"]
    for a, b in (("queries", "documents"), ("queries", "items"), ("data_1", "data_2")):
        assert ask(s, "/score", **{a: "fox", b: ["the wind", "you"]})["data"] == want


def test_a_classifier_makes_no_text_but_vectors(servers):
    s = servers("bert-rerank")
    status, answer = s.request("/v1/completions", {"model": "ensemble", "prompt": [5, 6], "max_tokens": 2})
    assert status == 400 and "is an encoder" in json.dumps(answer), answer
    assert len(ask(s, "/v1/embeddings", model="ensemble", input="fox")["data"][0]["embedding"]) == 96


def test_the_numbers_through_the_inference_protocol(servers):
    ids, s = [2, 7, 8, 1], servers("distilbert-mood")
    body = {"inputs": [{"name": "input_ids", "shape": [1, 4], "datatype": "INT32", "data": ids},
                       {"name": "input_lengths", "shape": [1, 1], "datatype": "INT32", "data": [4]},
                       {"name": "request_output_len", "shape": [1, 1], "datatype": "INT32", "data": [1]}],
            "parameters": {"pooling": "labels"}}
    status, answer = s.request("/v2/models/tensorrt_llm/infer", body)
    assert status == 200, answer
    out = {o["name"]: o for o in answer["outputs"]}["label_logits"]
    want = ask(s, "/classify", input=[ids], use_activation=False)["data"][0]["probs"]
    assert out["shape"] == [1, 3] and np.allclose(out["data"], want, atol=1e-6)


def test_a_checkpoint_and_ranks_keep_the_labels(tmp_path):
    encoders.write_classifier("bert-topics", tmp_path / "model")
    s = Server(tmp_path / "model", tmp_path, "--tp-size", "3")
    try:
        s.wait_ready()
        got = ask(s, "/classify", input=TEXTS)["data"]
        for d, g in zip(got, GOLDEN["classifiers"]["bert-topics"]["single"]):
            assert np.allclose(d["probs"], g["probs"], rtol=0, atol=TOLERANCE)
        pairs = ask(s, "/classify", use_activation=False, input=[{"text": a, "text_pair": b} for a, b in PAIRS])
        for d, g in zip(pairs["data"], GOLDEN["classifiers"]["bert-topics"]["pairs"]):
            assert np.allclose(d["probs"], g["logits"], rtol=3e-6, atol=OF_LOGITS)
    finally:
        s.stop()
