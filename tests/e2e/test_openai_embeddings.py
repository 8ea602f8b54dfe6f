# SPDX-License-Identifier: Apache-2.0
"""/v1/embeddings: the states of the model, in both encodings, beside chats."""
import concurrent.futures
import json

import openai
import pytest

from llm_server import Server
from openai_client import MODEL, chat, client, ids_of  # noqa: F401 (client is a fixture)


def states_of(tiny_model, ids, pooling):
    """What the model's float32 arithmetic gives, by numpy: the last layer's normed states, pooled."""
    import numpy as np
    config = json.loads((tiny_model / "config.json").read_text())
    w = read_safetensors(tiny_model / "model.safetensors")
    heads, kv = config["num_attention_heads"], config["num_key_value_heads"]
    dim = config.get("head_dim") or config["hidden_size"] // heads
    theta = config.get("rope_theta") or config["rope_parameters"]["rope_theta"]
    n = len(ids)
    turn = np.arange(n)[:, None] * theta ** (-np.arange(0, dim, 2) / dim)[None]
    cos, sin = np.cos(turn)[:, None], np.sin(turn)[:, None]

    def norm(x, name):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + config["rms_norm_eps"]) * w[name]

    def rotate(x):
        a, b = x[..., :dim // 2], x[..., dim // 2:]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)

    x = w["model.embed_tokens.weight"][ids]
    for i in range(config["num_hidden_layers"]):
        p = f"model.layers.{i}."
        h = norm(x, p + "input_layernorm.weight")
        q, k, v = ((h @ w[f"{p}self_attn.{c}_proj.weight"].T).reshape(n, -1, dim) for c in "qkv")
        q, k = rotate(q), np.repeat(rotate(k), heads // kv, 1)
        score = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(dim) + np.triu(np.full((n, n), -1e30), 1)
        score = np.exp(score - score.max(-1, keepdims=True))
        score /= score.sum(-1, keepdims=True)
        x = x + np.einsum("hqk,khd->qhd", score, np.repeat(v, heads // kv, 1)).reshape(n, -1) \
            @ w[p + "self_attn.o_proj.weight"].T
        h = norm(x, p + "post_attention_layernorm.weight")
        gate, up = (h @ w[f"{p}mlp.{c}_proj.weight"].T for c in ("gate", "up"))
        x = x + (gate / (1 + np.exp(-gate)) * up) @ w[p + "mlp.down_proj.weight"].T
    x = norm(x, "model.norm.weight")
    v = x[-1] if pooling == "last" else x.mean(0)
    return v / np.linalg.norm(v)


def read_safetensors(path):
    import numpy as np
    raw = path.read_bytes()
    n = int.from_bytes(raw[:8], "little")
    out = {}
    for name, t in json.loads(raw[8:8 + n]).items():
        if name != "__metadata__":
            a, b = t["data_offsets"]
            part = raw[8 + n + a:8 + n + b]
            if t["dtype"] == "BF16":
                v = (np.frombuffer(part, "<u2").astype("<u4") << 16).view("<f4")
            else:
                v = np.frombuffer(part, {"F32": "<f4", "F16": "<f2"}[t["dtype"]])
            out[name] = v.astype(float).reshape(t["shape"])
    return out


@pytest.fixture(scope="module")
def mean_server(tiny_model, cache):
    s = Server(tiny_model, cache, "--set", "embedding_pooling:mean", "--build", "--dtype=float32",
               "--build", "--kv_cache_dtype=float32")
    try:
        yield s.wait_ready()
    finally:
        s.stop()


def embed(client, text, **more):
    return client.embeddings.create(model=MODEL, input=text, **more)


def test_embeddings_are_the_models_states(server, mean_server, tiny_model):
    import numpy as np
    texts = ["the quick brown fox", "jumps", "over the lazy dog " * 20]
    for s, pooling, tolerance in ((server, "last", 2e-2), (mean_server, "mean", 1e-4)):
        c = openai.OpenAI(base_url=s.url("/v1"), api_key="none", max_retries=0)
        ids = [ids_of(s, {"prompt": t}) for t in texts]
        r = embed(c, texts)
        assert [d.index for d in r.data] == [0, 1, 2] and r.model == MODEL
        assert r.usage.prompt_tokens == r.usage.total_tokens == sum(map(len, ids))
        for d, i in zip(r.data, ids):
            want = states_of(tiny_model, i, pooling)
            got = np.array(d.embedding, dtype=float)
            assert abs(np.linalg.norm(got) - 1) < 1e-5
            assert np.abs(got - want).max() < tolerance and got @ want > 0.999


def test_embeddings_of_ids_and_in_both_encodings(client, server):
    import numpy as np
    text = "the quick brown fox"
    ids = ids_of(server, {"prompt": text})
    ways = [embed(client, text), embed(client, text, encoding_format="float"), embed(client, ids),
            embed(client, [text]), embed(client, [ids, ids])]
    first = np.array(ways[0].data[0].embedding)
    for r in ways:
        for d in r.data:
            assert np.abs(np.array(d.embedding) - first).max() < 1e-3
    same = embed(client, text, dimensions=len(first))
    assert len(same.data[0].embedding) == len(first)
    many = embed(client, ["the quick", "brown"] * 100)
    assert [d.index for d in many.data] == list(range(200))
    assert np.abs(np.array(many.data[0].embedding) - np.array(many.data[198].embedding)).max() < 1e-3


def test_embeddings_beside_chats(client, server):
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        chats = [pool.submit(chat, client, seed=5) for _ in range(8)]
        vectors = [pool.submit(embed, client, "the quick brown fox") for _ in range(16)]
        assert len({c.result().choices[0].message.content for c in chats}) == 1
        assert all(v.result().usage.total_tokens > 0 for v in vectors)


@pytest.mark.parametrize("change, part", [
    ({"input": None}, "input"), ({"input": []}, "input: is an empty list"), ({"input": [[]]}, "input"),
    ({"input": [1, "a"]}, "input"), ({"input": {"a": 1}}, "input"), ({"input": [-1]}, "input"),
    ({"input": ["a"] * 2049}, "2048"), ({"dimensions": 3}, "dimensions"), ({"dimensions": 0}, "dimensions"),
    ({"encoding_format": "hex"}, "encoding_format"), ({"model": 3}, "model"),
    ({"input": "fox " * 5000}, "tokens; the model takes at most"),
])
def test_embeddings_refused(server, change, part):
    body = dict({"model": MODEL, "input": "fox"}, **change)
    status, answer = server.request("/v1/embeddings", {k: v for k, v in body.items() if v is not None})
    assert status == 400 and part in answer["error"]["message"], answer
    assert server.request("/v1/embeddings", {"model": MODEL, "input": "fox"})[0] == 200


def test_the_one_model_answers_without_a_name(server):
    named, nameless = (server.request("/v1/embeddings", {**field, "input": "fox"}) for field in ({"model": MODEL}, {}))
    assert named[0] == nameless[0] == 200
    assert nameless[1]["data"] == named[1]["data"]


def test_a_model_may_give_no_embeddings(tiny_model, tmp_path):
    s = Server(tiny_model, tmp_path, "--set", "embedding_pooling:none")
    try:
        s.wait_ready()
        status, answer = s.request("/v1/embeddings", {"model": MODEL, "input": "fox"})
        assert status == 400 and "gives no embeddings" in answer["error"]["message"]
        assert s.request("/v1/completions", {"model": MODEL, "prompt": "fox", "max_tokens": 2})[0] == 200
    finally:
        s.stop()
