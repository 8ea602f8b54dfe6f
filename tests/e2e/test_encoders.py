# SPDX-License-Identifier: Apache-2.0
"""Encoders behind /v1/embeddings: states as transformers computes them (tests/model/make_encoder_goldens.py), pooled as
the folder says, in any batch; and what an encoder cannot do."""
import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

from llm_server import BIN, ROOT, Server

sys.path.insert(0, str(ROOT / "tests" / "tinymodel"))
import encoders  # noqa: E402

GOLDEN = json.loads((ROOT / "tests/model/encoder_states.json").read_text())["encoders"]
TOLERANCE = min(0.03, float(os.environ.get("NEREID_TOLERANCE", 2e-6)))  # of a vector of length 1, whose numbers are about 0.1


def unit(x):
    return np.array(x) / np.linalg.norm(x)


@pytest.fixture(scope="module", params=[("bert", None), ("bert", "mean_tokens"), ("xlm-roberta", "mean_tokens"),
                                        ("xlm-roberta", "lasttoken"), ("distilbert", "cls_token"),
                                        ("mpnet", "mean_tokens"), ("modernbert", "cls_token"), ("modernbert-biases", "mean_tokens"),
                                        ("nomic", "mean_tokens"), ("nomic-renamed", "mean_tokens"), ("embeddinggemma", "mean_tokens"),
                                        ("bert.gguf", "mean_tokens"), ("nomic.gguf", "cls_token"), ("embeddinggemma.gguf", "mean_tokens"),
                                        ("modernbert.gguf", "cls_token"), ("eurobert.gguf", "lasttoken"), ("jina", "mean_tokens"),
                                        ("jina-renamed", "cls_token"), ("jina.gguf", "mean_tokens"), ("neobert", "cls_token"),
                                        ("electra-small", "mean_tokens"), ("albert", "mean_tokens"), ("albert-wide", None), ("nomic-moe", "mean_tokens"), ("nomic-moe-no-bias.gguf", "mean_tokens"), ("jina-v2", None), ("jina-v2", "lasttoken"), ("jina-v2.gguf", "mean_tokens"), ("jina-v2-fused.gguf", "cls_token"), ("t5", None), ("t5.gguf", "mean_tokens")],
                ids=lambda p: "-".join(filter(None, p)))
def served(request, tmp_path_factory):
    name, pooling = request.param
    tmp = tmp_path_factory.mktemp("encoder")
    if name.endswith(".gguf"):
        encoders.write_small_gguf(name.removesuffix(".gguf"), tmp / name, pooling)
    else:
        encoders.write_folder(name, tmp / name, pooling)
    s = Server(tmp / name, tmp)
    is_gguf, name = name.endswith(".gguf"), name.removesuffix(".gguf").removesuffix("-fused")
    try:
        s.wait_ready()
        yield s, name, "dense" if is_gguf and name in encoders.DENSE else "vector" if name in encoders.DENSE else {None: "mean" if name in ("t5", "jina-v2") else "first", "cls_token": "first", "mean_tokens": "mean", "lasttoken": "last"}[pooling]
    finally:
        s.stop()


def expected(name, prompt, pooling):
    if pooling == "dense":
        first, second = encoders.dense_of_gguf()
        return unit(second @ (first @ np.array(GOLDEN[name][prompt]["mean"])))
    return unit(GOLDEN[name][prompt][pooling])


def vectors(server, inputs):
    status, answer = server.request("/v1/embeddings", {"model": "ensemble", "input": inputs})
    assert status == 200, answer
    return [np.array(d["embedding"]) for d in answer["data"]]


def test_vectors_are_those_of_the_reference(served):
    server, name, pooling = served
    for prompt, ids in encoders.PROMPTS.items():
        got = vectors(server, ids)[0]
        assert np.abs(got - expected(name, prompt, pooling)).max() < TOLERANCE, prompt


def test_a_vector_is_the_same_beside_others(served):
    server, name, pooling = served
    ids = list(encoders.PROMPTS.values()) * 12
    for got, prompt in zip(vectors(server, ids), list(encoders.PROMPTS) * 12):
        assert np.abs(got - expected(name, prompt, pooling)).max() < TOLERANCE, prompt


def test_it_makes_no_text(served):
    server, name, _ = served
    kind = {"xlm-roberta": "roberta", "modernbert-biases": "modernbert", "nomic": "nomic_bert",
            "nomic-renamed": "nomic_bert", "electra-small": "electra", "albert-wide": "albert", "nomic-moe": "nomic_bert", "nomic-moe-no-bias": "nomic_bert", "jina-v2": "jina_bert_v2", "jina": "jina_embeddings_v3", "jina-renamed": "jina_embeddings_v3", "embeddinggemma": "gemma3_text", "t5": "t5_vectors"}.get(name, name)
    for path, body in (("/v1/completions", {"model": "ensemble", "prompt": [5, 6], "max_tokens": 2}),
                       ("/v2/models/ensemble/generate", {"text_input": "fox", "max_tokens": 2})):
        status, answer = server.request(path, body)
        assert status == 400 and f"is an encoder ({kind})" in json.dumps(answer), answer
    status, answer = server.request("/v1/chat/completions", {"model": "ensemble", "messages": [{"role": "user", "content": "fox"}]})
    assert status == 400 and "is an encoder" in json.dumps(answer) and "template" not in json.dumps(answer), answer
    assert len(vectors(server, [5, 6])[0]) == len(GOLDEN[name]["one"]["vector" if name in encoders.DENSE else "first"])


def test_the_longest_text_and_one_more(served):
    server, name, _ = served
    most = 2048 if name == "t5" else encoders.POSITIONS  # a bias by distance has no end
    assert abs(np.linalg.norm(vectors(server, [5] * most)[0]) - 1) < 1e-5
    status, answer = server.request("/v1/embeddings", {"model": "ensemble", "input": [5] * (most + 1)})
    assert status == 400 and str(most) in answer["error"]["message"], answer


def test_marks_of_a_gguf_file_stand_around_a_text(tmp_path):
    encoders.write_small_gguf("modernbert", tmp_path / "m.gguf", "cls_token")

    def ids(*more):
        done = subprocess.run([BIN / "nereid", "tokenize", tmp_path / "m.gguf", "--json", *more], input='{"text": "the wind"}\n', capture_output=True,
                              text=True, check=True)
        return json.loads(done.stdout)["ids"]
    assert ids() == [encoders.tokenizer.BOS, *ids("--no-bos"), encoders.tokenizer.EOS]


def build(folder, out, *more):
    return subprocess.run([BIN / "nereid", "build", folder, "-o", out, *more], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("change, part", [
    ({"position_embedding_type": "relative_key"}, "position_embedding_type 'relative_key'"),
    ({"is_decoder": True}, "'is_decoder'"), ({"type_vocab_size": 100000}, "type_vocab_size"),
    ({"type_vocab_size": 3}, "token_type_embeddings"), ({"hidden_act": "mish"}, "activation 'mish'"),
])
def test_a_configuration_that_cannot_be_computed_is_refused(change, part, tmp_path):
    encoders.write_folder("bert", tmp_path / "bert")
    config = tmp_path / "bert" / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), **change}))
    done = build(tmp_path / "bert", tmp_path / "engine")
    assert done.returncode == 1 and part in done.stderr, done.stderr


@pytest.mark.parametrize("change, part", [({"rope": False}, "'rope' false"), ({"ngpt": True}, "'ngpt'"), ({"intermediate_size": 99}, "ffn.w12")])
def test_another_neobert_is_refused(change, part, tmp_path):
    encoders.write_folder("neobert", tmp_path / "neobert")
    config = tmp_path / "neobert" / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), **change}))
    done = build(tmp_path / "neobert", tmp_path / "engine")
    assert done.returncode == 1 and part in done.stderr, done.stderr


@pytest.mark.parametrize("change, part", [
    ({"lora_adaptations": ["retrieval.query"]}, "'lora_adaptations'"), ({"type_vocab_size": 2}, "token_type_embeddings"),
    ({"model_type": "xlm-roberta", "architectures": ["XLMRobertaModel"], "position_embedding_type": "rotary"}, "position_embedding_type 'rotary'"),
])
def test_what_jina_models_have_beside_is_refused(change, part, tmp_path):
    """Adapters within the weights, as the first files on the hub have them."""
    encoders.write_folder("jina", tmp_path / "jina")
    config = tmp_path / "jina" / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), **change}))
    done = build(tmp_path / "jina", tmp_path / "engine")
    assert done.returncode == 1 and part in done.stderr, done.stderr


@pytest.mark.parametrize("change, part", [
    ({"position_embedding_type": "absolute"}, "position_embedding_type 'absolute'"), ({"feed_forward_type": "original"}, "feed_forward_type 'original'"),
    ({"emb_pooler": "max"}, "emb_pooler 'max'"), ({"is_decoder": True}, "'is_decoder'"), ({"intermediate_size": 91}, "gated_layers"),
    ({"auto_map": {"AutoModel": "jinaai/jina-bert-v2-qk-post-norm--modeling_bert.JinaBertModel"}}, "norms of q and k"),
    ({"architectures": ["BertModel"]}, "position_embedding_type 'alibi'"),
])
def test_another_jina_v2_is_refused(change, part, tmp_path):
    encoders.write_folder("jina-v2", tmp_path / "jina")
    config = tmp_path / "jina" / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), **change}))
    done = build(tmp_path / "jina", tmp_path / "engine")
    assert done.returncode == 1 and part in done.stderr, done.stderr


@pytest.mark.parametrize("name, change, part", [
    ("albert", {"num_hidden_groups": 2}, "'num_hidden_groups'"), ("albert", {"inner_group_num": 2}, "'inner_group_num'"),
    ("albert", {"embedding_size": 0}, "'embedding_size'"), ("albert", {"embedding_size": 73}, "embedding_size"),
    ("albert", {"embedding_size": 72}, "word_embeddings"), ("electra-small", {"embedding_size": 41}, "word_embeddings"),
    ("electra", {"embedding_size": None}, "embedding_size"),
])
def test_embeddings_of_another_width_are_refused(name, change, part, tmp_path):
    encoders.write_folder(name, tmp_path / "m")
    config = tmp_path / "m" / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), **change}))
    done = build(tmp_path / "m", tmp_path / "engine")
    assert done.returncode == 1 and part in done.stderr, done.stderr


@pytest.mark.parametrize("change, part", [
    ({"moe_every_n_layers": 1}, "'moe_every_n_layers'"), ({"activation_function": "swiglu"}, "'qkv_proj_bias'"), ({"num_experts": None}, "'num_experts'"),
    ({"activation_function": "swiglu", "qkv_proj_bias": False, "mlp_fc1_bias": False, "mlp_fc2_bias": False}, "beside an MLP that is not gated"),
    ({"mlp_fc2_bias": False}, "must be alike"), ({"moe_top_k": 6}, "moe_top_k must be between 1 and 5"), ({"num_experts": 4}, "mlp.router.layer"),
    ({"num_shared_experts": 1}, "'num_shared_experts'"), ({"moe_normalize_expert_weights": True}, "'moe_normalize_expert_weights'"),
])
def test_another_mixture_of_nomic_is_refused(change, part, tmp_path):
    encoders.write_folder("nomic-moe", tmp_path / "nomic")
    config = tmp_path / "nomic" / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), **change}))
    done = build(tmp_path / "nomic", tmp_path / "engine")
    assert done.returncode == 1 and part in done.stderr, done.stderr


@pytest.mark.parametrize("name, text, part", [
    ("1_Pooling/config.json", {"pooling_mode_cls_token": False, "pooling_mode_max_tokens": True}, "a pooling other than"),
    ("1_Pooling/config.json", {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True}, "a pooling other than"),
    ("modules.json", [{"type": "sentence_transformers.models.CNN"}], "sentence_transformers.models.CNN"),
    ("modules.json", [{"type": "sentence_transformers.models.Dense", "path": "../x"}], "the path '../x' of a module"),
    ("modules.json", [{"type": "sentence_transformers.models.Dense", "path": "2_Dense"}], "no file 2_Dense/config.json"),
])
def test_modules_that_are_not_computed_are_refused(name, text, part, tmp_path):
    encoders.write_folder("bert", tmp_path / "bert", "cls_token")
    pathlib.Path(tmp_path / "bert" / name).write_text(json.dumps(text))
    done = build(tmp_path / "bert", tmp_path / "engine")
    assert done.returncode == 1 and part in done.stderr, done.stderr


@pytest.mark.parametrize("change, part", [
    ({"layer_types": ["full_attention"]}, "'layer_types' has 1 entries"), ({"local_attention": 1}, "local_attention (1)"),
    ({"global_attn_every_n_layers": 0}, "global_attn_every_n_layers (0)"), ({"norm_bias": True}, "embeddings.norm.bias"),
])
def test_a_window_that_cannot_be_is_refused(change, part, tmp_path):
    encoders.write_folder("modernbert", tmp_path / "m")
    config = tmp_path / "m" / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), **change}))
    done = build(tmp_path / "m", tmp_path / "engine")
    assert done.returncode == 1 and part in done.stderr, done.stderr


def test_stages_are_refused(tmp_path):
    encoders.write_folder("bert", tmp_path / "bert")
    done = build(tmp_path / "bert", tmp_path / "engine", "--pp-size", "3")
    assert done.returncode == 1 and "an encoder cannot be divided into stages" in done.stderr, done.stderr


@pytest.mark.parametrize("name", ["bert", "mpnet", "modernbert-biases", "jina-v2", "nomic-moe", "albert"])
def test_several_ranks_give_the_vectors_of_one(name, tmp_path):
    encoders.write_folder(name, tmp_path / name, "mean_tokens")
    s = Server(tmp_path / name, tmp_path, "--tp-size", "3")
    try:
        s.wait_ready()
        for prompt, ids in encoders.PROMPTS.items():
            assert np.abs(vectors(s, ids)[0] - unit(GOLDEN[name][prompt]["mean"])).max() < TOLERANCE
    finally:
        s.stop()
