# SPDX-License-Identifier: Apache-2.0
"""Small random encoders as Hugging Face folders: BERT, XLM-RoBERTa, DistilBERT, MPNet, ModernBERT, and classifiers made of them. The same
bits every time."""
import os

import numpy as np

import encdec
import gguf_file
import hf_folder
import tokenizer
import weights

VOCAB, POSITIONS = 331, 96


def _norm(name, n):
    yield f"{name}.weight", (n,), 0.2, 1.0
    yield f"{name}.bias", (n,), 0.1, 0.0


def _linear(name, n_in, n_out, gain):
    yield f"{name}.weight", (n_out, n_in), gain / n_in ** 0.5, 0.0
    yield f"{name}.bias", (n_out,), 0.1, 0.0


def _embeddings(at, d, n_positions, types):
    yield f"{at}.word_embeddings.weight", (VOCAB, d), 0.7, 0.0
    if n_positions:
        yield f"{at}.position_embeddings.weight", (n_positions, d), 0.4, 0.0
    if types:
        yield f"{at}.token_type_embeddings.weight", (types, d), 0.4, 0.0
    yield from _norm(f"{at}.LayerNorm", d)


def _bert(c, n_positions):
    d, ff, e = c["hidden_size"], c["intermediate_size"], c.get("embedding_size", c["hidden_size"])
    yield from _embeddings("embeddings", e, n_positions, c["type_vocab_size"])
    if e != d:
        yield from _linear("embeddings_project", e, d, 1.2)
    for i in range(c["num_hidden_layers"]):
        at = f"encoder.layer.{i}"
        for part, gain in (("query", 1.6), ("key", 1.6), ("value", 1.0)):
            yield from _linear(f"{at}.attention.self.{part}", d, d, gain)
        yield from _linear(f"{at}.attention.output.dense", d, d, 1.2)
        yield from _norm(f"{at}.attention.output.LayerNorm", d)
        yield from _linear(f"{at}.intermediate.dense", d, ff, 1.4)
        yield from _linear(f"{at}.output.dense", ff, d, 1.4)
        yield from _norm(f"{at}.output.LayerNorm", d)


def _distilbert(c):
    d, ff = c["dim"], c["hidden_dim"]
    yield from _embeddings("embeddings", d, POSITIONS, 0)
    for i in range(c["n_layers"]):
        at = f"transformer.layer.{i}"
        for part, gain in (("q_lin", 1.6), ("k_lin", 1.6), ("v_lin", 1.0), ("out_lin", 1.2)):
            yield from _linear(f"{at}.attention.{part}", d, d, gain)
        yield from _norm(f"{at}.sa_layer_norm", d)
        yield from _linear(f"{at}.ffn.lin1", d, ff, 1.4)
        yield from _linear(f"{at}.ffn.lin2", ff, d, 1.4)
        yield from _norm(f"{at}.output_layer_norm", d)


def _mpnet(c):
    d, ff = c["hidden_size"], c["intermediate_size"]
    yield from _embeddings("embeddings", d, POSITIONS + 2, 0)
    yield "encoder.relative_attention_bias.weight", (32, c["num_attention_heads"]), 1.0, 0.0
    for i in range(c["num_hidden_layers"]):
        at = f"encoder.layer.{i}"
        for part, gain in (("q", 1.6), ("k", 1.6), ("v", 1.0), ("o", 1.2)):
            yield from _linear(f"{at}.attention.attn.{part}", d, d, gain)
        yield from _norm(f"{at}.attention.LayerNorm", d)
        yield from _linear(f"{at}.intermediate.dense", d, ff, 1.4)
        yield from _linear(f"{at}.output.dense", ff, d, 1.4)
        yield from _norm(f"{at}.output.LayerNorm", d)


def _nomic(c):
    """Under the names of the files on the hub."""
    d, ff = c["n_embd"], c["n_inner"]
    yield "embeddings.word_embeddings.weight", (VOCAB, d), 0.7, 0.0
    yield "embeddings.token_type_embeddings.weight", (2, d), 0.4, 0.0
    yield from _norm("emb_ln", d)
    for i in range(c["n_layer"]):
        at = f"encoder.layers.{i}"
        for name, n_in, n_out, gain in (("attn.Wqkv", d, 3 * d, 1.5), ("attn.out_proj", d, d, 1.2), ("mlp.fc11", d, ff, 1.0),
                                        ("mlp.fc12", d, ff, 1.5), ("mlp.fc2", ff, d, 1.5)):
            yield next(_linear(f"{at}.{name}", n_in, n_out, gain))
        yield from _norm(f"{at}.norm1", d)
        yield from _norm(f"{at}.norm2", d)


def _nomic_experts(c):
    """nomic-embed-text-v2-moe: a plain MLP with biases, or experts, one below the other, in the second of each few layers."""
    d, ff, n = c["n_embd"], c["n_inner"], c["num_experts"]
    yield "embeddings.word_embeddings.weight", (VOCAB, d), 0.7, 0.0
    yield "embeddings.token_type_embeddings.weight", (1, d), 0.4, 0.0
    yield from _norm("emb_ln", d)
    for i in range(c["n_layer"]):
        at = f"encoder.layers.{i}"
        yield from _linear(f"{at}.attn.Wqkv", d, 3 * d, 1.2)
        yield from _linear(f"{at}.attn.out_proj", d, d, 1.2)
        if i % c["moe_every_n_layers"] == 1:
            yield next(_linear(f"{at}.mlp.router.layer", d, n, 1.5))
            yield f"{at}.mlp.experts.mlp.w1", (n * ff, d), 1.3 / d ** 0.5, 0.0
            yield f"{at}.mlp.experts.mlp.w2", (n * ff, d), 1.4 / ff ** 0.5, 0.0
            yield f"{at}.mlp.experts.bias", (d,), 0.15, 0.0
        else:
            yield from _linear(f"{at}.mlp.fc1", d, ff, 1.2)
            yield from _linear(f"{at}.mlp.fc2", ff, d, 1.2)
        yield from _norm(f"{at}.norm1", d)
        yield from _norm(f"{at}.norm2", d)


_RENAMED = (("encoder.layers", "layers"), ("emb_ln", "embeddings.LayerNorm"), ("attn.out_proj", "self_attn.o_proj"),
            ("fc11", "up_proj"), ("fc12", "gate_proj"), ("fc2", "down_proj"), ("norm1", "post_attention_layernorm"),
            ("norm2", "post_mlp_layernorm"))


def _nomic_renamed(c):
    """As transformers 5 writes them."""
    for name, shape, deviation, mean in _nomic({"n_embd": c["hidden_size"], "n_inner": c["intermediate_size"],
                                                "n_layer": c["num_hidden_layers"]}):
        for old, new in _RENAMED:
            name = name.replace(old, new)
        for part in ("q", "k", "v") if "Wqkv" in name else ("",):
            rows = shape[0] // 3 if part else shape[0]
            yield name.replace("attn.Wqkv", f"self_attn.{part}_proj"), (rows, *shape[1:]), deviation, mean


def _albert(c):
    d, ff = c["hidden_size"], c["intermediate_size"]
    yield from _embeddings("embeddings", c["embedding_size"], POSITIONS, c["type_vocab_size"])
    yield from _linear("encoder.embedding_hidden_mapping_in", c["embedding_size"], d, 1.2)
    at = "encoder.albert_layer_groups.0.albert_layers.0"
    for part in ("query", "key", "value", "dense"):
        yield from _linear(f"{at}.attention.{part}", d, d, 1.3)
    yield from _norm(f"{at}.attention.LayerNorm", d)
    yield from _linear(f"{at}.ffn", d, ff, 1.3)
    yield from _linear(f"{at}.ffn_output", ff, d, 1.3)
    yield from _norm(f"{at}.full_layer_layer_norm", d)


def _jina_v2(c):
    d, ff = c["hidden_size"], c["intermediate_size"]
    yield from _embeddings("embeddings", d, 0, c["type_vocab_size"])
    for i in range(c["num_hidden_layers"]):
        at = f"encoder.layer.{i}"
        for part in ("attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense"):
            yield from _linear(f"{at}.{part}", d, d, 1.5)
        yield from _norm(f"{at}.attention.output.LayerNorm", d)
        yield next(_linear(f"{at}.mlp.gated_layers", d, 2 * ff, 1.4))
        yield from _linear(f"{at}.mlp.wo", ff, d, 1.4)
        yield from _norm(f"{at}.mlp.layernorm", d)


def _jina(c, fused):
    """`fused`: under the names of the first files on the hub, else as transformers 5 has them."""
    d, ff = c["hidden_size"], c["intermediate_size"]
    yield "embeddings.word_embeddings.weight", (VOCAB, d), 0.7, 0.0
    yield "embeddings.token_type_embeddings.weight", (c["type_vocab_size"], d), 0.4, 0.0
    yield from _norm("emb_ln" if fused else "embeddings.LayerNorm", d)
    for i in range(c["num_hidden_layers"]):
        at = f"encoder.layers.{i}" if fused else f"layers.{i}"
        for part in ("mixer.Wqkv",) if fused else ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"):
            yield from _linear(f"{at}.{part}", d, 3 * d if fused else d, 1.5)
        yield from _linear(f"{at}.mixer.out_proj" if fused else f"{at}.self_attn.o_proj", d, d, 1.2)
        yield from _linear(f"{at}.mlp.fc1", d, ff, 1.4)
        yield from _linear(f"{at}.mlp.fc2", ff, d, 1.4)
        yield from _norm(f"{at}.norm1" if fused else f"{at}.post_attention_layernorm", d)
        yield from _norm(f"{at}.norm2" if fused else f"{at}.post_mlp_layernorm", d)


def _gte(c):
    """Under the names of the files on the hub."""
    d, ff = c["hidden_size"], c["intermediate_size"]
    yield "embeddings.word_embeddings.weight", (VOCAB, d), 0.7, 0.0
    yield "embeddings.token_type_embeddings.weight", (c["type_vocab_size"], d), 0.4, 0.0
    yield from _norm("embeddings.LayerNorm", d)
    for i in range(c["num_hidden_layers"]):
        at = f"encoder.layer.{i}"
        yield from _linear(f"{at}.attention.qkv_proj", d, 3 * d, 1.6)
        yield from _linear(f"{at}.attention.o_proj", d, d, 1.2)
        yield from _norm(f"{at}.attn_ln", d)
        yield next(_linear(f"{at}.mlp.up_gate_proj", d, 2 * ff, 1.4))
        yield from _linear(f"{at}.mlp.down_proj", ff, d, 1.4)
        yield from _norm(f"{at}.mlp_ln", d)


def _eurobert(c):
    d, ff, hd, kv = c["hidden_size"], c["intermediate_size"], c["head_dim"], c["num_key_value_heads"]
    yield "embed_tokens.weight", (VOCAB, d), 0.7, 0.0
    for i in range(c["num_hidden_layers"]):
        at = f"layers.{i}"
        for part, n_in, n_out in (("self_attn.q_proj", d, d), ("self_attn.k_proj", d, kv * hd), ("self_attn.v_proj", d, kv * hd),
                                  ("self_attn.o_proj", d, d), ("mlp.gate_proj", d, ff), ("mlp.up_proj", d, ff), ("mlp.down_proj", ff, d)):
            yield next(_linear(f"{at}.{part}", n_in, n_out, 1.3))
        for part in ("input_layernorm", "post_attention_layernorm"):
            yield next(_norm(f"{at}.{part}", d))
    yield next(_norm("norm", d))


def _neobert(c):
    d, ff = c["hidden_size"], neobert_width(c)
    yield "model.encoder.weight", (VOCAB, d), 0.7, 0.0
    for i in range(c["num_hidden_layers"]):
        at = f"model.transformer_encoder.{i}"
        for part, n_in, n_out in (("qkv", d, 3 * d), ("wo", d, d), ("ffn.w12", d, 2 * ff), ("ffn.w3", ff, d)):
            yield next(_linear(f"{at}.{part}", n_in, n_out, 1.3))
        for part in ("attention_norm", "ffn_norm"):
            yield next(_norm(f"{at}.{part}", d))
    yield next(_norm("model.layer_norm", d))


def neobert_width(c):
    """Two thirds of what the key says, in whole eights."""
    return -(-int(2 * c["intermediate_size"] / 3) // 8) * 8


def _embeddinggemma(c):
    """Norms multiply by 1 + w."""
    d, ff, hd, heads, kv = c["hidden_size"], c["intermediate_size"], c["head_dim"], c["num_attention_heads"], c["num_key_value_heads"]

    def norm(name, n):
        return f"{name}.weight", (n,), 0.2, 0.0

    yield "embed_tokens.weight", (VOCAB, d), 0.7 / d ** 0.5, 0.0
    for i in range(c["num_hidden_layers"]):
        at = f"layers.{i}"
        for part in ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"):
            yield norm(f"{at}.{part}", d)
        for part, n_in, n_out in (("self_attn.q_proj", d, heads * hd), ("self_attn.k_proj", d, kv * hd), ("self_attn.v_proj", d, kv * hd),
                                  ("self_attn.o_proj", heads * hd, d), ("mlp.gate_proj", d, ff), ("mlp.up_proj", d, ff),
                                  ("mlp.down_proj", ff, d)):
            yield next(_linear(f"{at}.{part}", n_in, n_out, 1.3))
        yield norm(f"{at}.self_attn.q_norm", hd)
        yield norm(f"{at}.self_attn.k_norm", hd)
    yield norm("norm", d)


def _without_biases(c, parts):
    for name, *rest in parts:
        if not name.endswith(".bias") or ("norm" in name and c["norm_bias"]) or ("norm" not in name and c["attention_bias"]):
            yield name, *rest


def _modernbert(c):
    d, ff = c["hidden_size"], c["intermediate_size"]
    yield "embeddings.tok_embeddings.weight", (VOCAB, d), 0.7, 0.0
    yield from _norm("embeddings.norm", d)
    for i in range(c["num_hidden_layers"]):
        at = f"layers.{i}"
        if i > 0:
            yield from _norm(f"{at}.attn_norm", d)
        yield from _linear(f"{at}.attn.Wqkv", d, 3 * d, 1.6)
        yield from _linear(f"{at}.attn.Wo", d, d, 1.2)
        yield from _norm(f"{at}.mlp_norm", d)
        yield from _linear(f"{at}.mlp.Wi", d, 2 * ff, 1.4)
        yield from _linear(f"{at}.mlp.Wo", ff, d, 1.6)
    yield from _norm("final_norm", d)


def _sizes(kind, name, d, heads, ff, positions, **more):
    return {"architectures": [name], "model_type": kind, "hidden_size": d, "num_attention_heads": heads,
            "num_hidden_layers": 3, "intermediate_size": ff, "vocab_size": VOCAB, "max_position_embeddings": positions,
            "type_vocab_size": 2, "hidden_act": "gelu", "layer_norm_eps": 1e-12, "torch_dtype": "float32", **more}


BERT = _sizes("bert", "BertModel", 96, 3, 150, POSITIONS, pad_token_id=0)
# positions begin behind two rows of filling; heads of 24: no whole vectors
ROBERTA = _sizes("xlm-roberta", "XLMRobertaModel", 72, 3, 90, POSITIONS + 2, pad_token_id=1, type_vocab_size=1,
                 layer_norm_eps=1e-5)
DISTILBERT = {"architectures": ["DistilBertModel"], "model_type": "distilbert", "dim": 64, "n_heads": 4, "n_layers": 2,
              "hidden_dim": 100, "vocab_size": VOCAB, "max_position_embeddings": POSITIONS, "activation": "gelu",
              "pad_token_id": 0, "torch_dtype": "float32"}
MPNET = _sizes("mpnet", "MPNetModel", 72, 6, 111, POSITIONS + 2, pad_token_id=1, layer_norm_eps=1e-5,
               relative_attention_num_buckets=32)
del MPNET["type_vocab_size"]
# as folders on the hub have it, and as transformers 5 writes it; windows are shorter than most prompts
MODERNBERT = {"architectures": ["ModernBertModel"], "model_type": "modernbert", "hidden_size": 72, "num_attention_heads": 3,
              "num_hidden_layers": 5, "intermediate_size": 99, "vocab_size": VOCAB, "max_position_embeddings": POSITIONS,
              "hidden_activation": "gelu", "norm_eps": 1e-5, "norm_bias": False, "attention_bias": False, "mlp_bias": False,
              "local_attention": 16, "global_attn_every_n_layers": 3, "global_rope_theta": 700.0, "local_rope_theta": 50.0,
              "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3, "torch_dtype": "float32"}
MODERNBERT_BIASES = {
    **{k: v for k, v in MODERNBERT.items() if not k.startswith("global") and k != "local_rope_theta"}, "norm_bias": True,
    "attention_bias": True, "mlp_bias": True, "local_attention": 10,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "sliding_attention", "full_attention"],
    "rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 900.0},
                        "sliding_attention": {"rope_type": "default", "rope_theta": 40.0}}}
NOMIC = {"architectures": ["NomicBertModel"], "model_type": "nomic_bert", "n_embd": 72, "n_head": 3, "n_layer": 3, "n_inner": 100,
         "n_positions": POSITIONS, "vocab_size": VOCAB, "type_vocab_size": 2, "activation_function": "swiglu",
         "layer_norm_epsilon": 1e-12, "rotary_emb_base": 300, "rotary_emb_fraction": 1.0, "rotary_emb_interleaved": False,
         "rotary_emb_scale_base": None, "rotary_scaling_factor": None, "prenorm": False, "parallel_block": False,
         "qkv_proj_bias": False, "mlp_fc1_bias": False, "mlp_fc2_bias": False, "use_rms_norm": False, "pad_token_id": 0,
         "torch_dtype": "float32"}
NOMIC_MOE = {**NOMIC, "n_layer": 4, "n_inner": 90, "type_vocab_size": 1, "activation_function": "gelu", "layer_norm_epsilon": 1e-5,
             "rotary_emb_base": 500, "qkv_proj_bias": True, "mlp_fc1_bias": True, "mlp_fc2_bias": True, "moe_every_n_layers": 2,
             "moe_top_k": 2, "num_experts": 5, "num_shared_experts": 0, "moe_normalize_expert_weights": False,
             "expert_choice_router": False, "moe_impl": "megablocks", "ffn_div": 1.0}
NOMIC_RENAMED = {"architectures": ["NomicBertModel"], "model_type": "nomic_bert", "hidden_size": 72, "num_attention_heads": 3,
                 "num_hidden_layers": 2, "intermediate_size": 90, "max_position_embeddings": POSITIONS, "vocab_size": VOCAB,
                 "type_vocab_size": 2, "hidden_act": "silu", "layer_norm_eps": 1e-12, "pad_token_id": 0, "torch_dtype": "float32",
                 "rope_parameters": {"rope_type": "default", "rope_theta": 400.0}}
EMBEDDINGGEMMA = {"architectures": ["Gemma3TextModel"], "model_type": "gemma3_text", "hidden_size": 72, "intermediate_size": 96,
                  "num_hidden_layers": 6, "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 24, "vocab_size": VOCAB,
                  "max_position_embeddings": POSITIONS, "hidden_activation": "gelu_pytorch_tanh", "rms_norm_eps": 1e-6,
                  "query_pre_attn_scalar": 20, "sliding_window": 12, "layer_types": 5 * ["sliding_attention"] + ["full_attention"],
                  "rope_theta": 900.0, "rope_local_base_freq": 50.0, "use_bidirectional_attention": True, "pad_token_id": 0,
                  "bos_token_id": 2, "eos_token_id": 1, "torch_dtype": "float32"}
GTE = _sizes("new", "NewModel", 72, 3, 90, POSITIONS, pad_token_id=0, type_vocab_size=1, position_embedding_type="rope",
             layer_norm_type="layer_norm", rope_theta=700.0, pack_qkv=True, logn_attention_scale=False, logn_attention_clip1=False)
# as folders on the hub have it; six heads: the slopes are of two series
JINA_V2 = _sizes("bert", "JinaBertForMaskedLM", 72, 6, 90, POSITIONS, pad_token_id=0, position_embedding_type="alibi",
                 feed_forward_type="geglu", emb_pooler="mean", attn_implementation="torch",
                 auto_map={"AutoModel": "jinaai/jina-bert-implementation--modeling_bert.JinaBertModel"})
JINA = _sizes("jina_embeddings_v3", "JinaEmbeddingsV3Model", 72, 3, 90, POSITIONS, pad_token_id=1, type_vocab_size=1, layer_norm_eps=1e-5,
              rope_parameters={"rope_type": "default", "rope_theta": 500.0})
ELECTRA = _sizes("electra", "ElectraModel", 72, 3, 90, POSITIONS, pad_token_id=0, embedding_size=72)
ELECTRA_SMALL = _sizes("electra", "ElectraModel", 72, 3, 90, POSITIONS, pad_token_id=0, embedding_size=40)
ALBERT = _sizes("albert", "AlbertModel", 72, 3, 90, POSITIONS, pad_token_id=0, embedding_size=40, num_hidden_groups=1, inner_group_num=1) | {
    "hidden_act": "gelu_new"}
# both are as wide: the product is there all the same
ALBERT_WIDE = {**ALBERT, "embedding_size": 72, "num_hidden_layers": 2, "hidden_act": "gelu"}
EUROBERT = {"architectures": ["EuroBertModel"], "model_type": "eurobert", "hidden_size": 72, "num_attention_heads": 3,
            "num_key_value_heads": 1, "head_dim": 24, "num_hidden_layers": 3, "intermediate_size": 96, "vocab_size": VOCAB,
            "max_position_embeddings": POSITIONS, "hidden_act": "silu", "rms_norm_eps": 1e-5, "rope_theta": 900.0, "pad_token_id": 0,
            "bos_token_id": 2, "eos_token_id": 3, "torch_dtype": "float32"}
NEOBERT = {"architectures": ["NeoBERTLMHead"], "model_type": "neobert", "hidden_size": 72, "num_attention_heads": 3, "num_hidden_layers": 3,
           "intermediate_size": 130, "vocab_size": VOCAB, "max_length": POSITIONS, "norm_eps": 1e-6, "pad_token_id": 0, "torch_dtype": "float32"}
T5_ENCODER = {**encdec.FLAN, "architectures": ["T5EncoderModel"]}
# products behind the pooled state: numbers that each gives, a bias or not, torch's class of the activation
DENSE = {"embeddinggemma": [(80, False, "linear.Identity"), (40, True, "activation.Tanh")]}
ENCODERS = {"embeddinggemma": (EMBEDDINGGEMMA, list(_embeddinggemma(EMBEDDINGGEMMA))),
            "nomic": (NOMIC, list(_nomic(NOMIC))), "nomic-renamed": (NOMIC_RENAMED, list(_nomic_renamed(NOMIC_RENAMED))),
            "mpnet": (MPNET, list(_mpnet(MPNET))), "gte": (GTE, list(_gte(GTE))), "electra": (ELECTRA, list(_bert(ELECTRA, POSITIONS))),
            "electra-small": (ELECTRA_SMALL, list(_bert(ELECTRA_SMALL, POSITIONS))), "albert": (ALBERT, list(_albert(ALBERT))),
            "albert-wide": (ALBERT_WIDE, list(_albert(ALBERT_WIDE))),
            "jina": (JINA, list(_jina(JINA, True))), "jina-renamed": (JINA, list(_jina(JINA, False))),
            "jina-v2": (JINA_V2, list(_jina_v2(JINA_V2))), "nomic-moe": (NOMIC_MOE, list(_nomic_experts(NOMIC_MOE))),
            "nomic-moe-no-bias": (NOMIC_MOE, [row for row in _nomic_experts(NOMIC_MOE) if not row[0].endswith("experts.bias")]),
            "neobert": (NEOBERT, list(_neobert(NEOBERT))),
            "eurobert": (EUROBERT, list(_eurobert(EUROBERT))),
            "t5": (T5_ENCODER, [row for row in encdec.MODELS["flan-t5"][1] if not row[0].startswith(("decoder.", "lm_head"))]),
            **{name: (c, list(_without_biases(c, _modernbert(c)))) for name, c in
               (("modernbert", MODERNBERT), ("modernbert-biases", MODERNBERT_BIASES))},
            "bert": (BERT, list(_bert(BERT, POSITIONS))), "xlm-roberta": (ROBERTA, list(_bert(ROBERTA, POSITIONS + 2))),
            "distilbert": (DISTILBERT, list(_distilbert(DISTILBERT)))}
# one that ends within a vector, one block and more, one token
PROMPTS = {name: [2, *weights.tokens(f"encoder {name}", n, VOCAB), 3] for name, n in
           (("short", 5), ("long", 61), ("middle", 30))} | {"one": [7]}


def tensors(name):
    return {at: weights.normal(f"encoder {name.removesuffix('-no-bias')} {at}", shape, deviation, mean)
            for at, shape, deviation, mean in ENCODERS[name][1]}


def dense_tensors(name):
    """For each product its tensors."""
    n_in = ENCODERS[name][0]["hidden_size"]
    for i, (n_out, bias, _) in enumerate(DENSE[name]):
        parts = list(_linear("linear", n_in, n_out, 1.5))[:2 if bias else 1]
        yield {at: weights.normal(f"dense {name} {i} {at}", shape, deviation, mean) for at, shape, deviation, mean in parts}
        n_in = n_out


def write_dense(name, out):
    """Their folders; gives these with what sentence-transformers calls them."""
    n_in = ENCODERS[name][0]["hidden_size"]
    for i, ((n_out, bias, act), tensors_of) in enumerate(zip(DENSE[name], dense_tensors(name))):
        folder = os.path.join(out, f"{i + 2}_Dense")
        os.makedirs(folder, exist_ok=True)
        hf_folder.write_safetensors(os.path.join(folder, "model.safetensors"), tensors_of, "float32")
        hf_folder.write_json(os.path.join(folder, "config.json"), {
            "in_features": n_in, "out_features": n_out, "bias": bias, "activation_function": f"torch.nn.modules.{act}"})
        n_in = n_out
        yield "Dense", f"{i + 2}_Dense"


def write_tokenizer(out, template=None):
    text = tokenizer.tokenizer_json(VOCAB, False)
    text["post_processor"] = template or text["post_processor"]
    hf_folder.write_json(os.path.join(out, "tokenizer.json"), text)
    config = {**tokenizer.tokenizer_config(False), "model_input_names": ["input_ids", "token_type_ids", "attention_mask"]}
    config.pop("chat_template")
    hf_folder.write_json(os.path.join(out, "tokenizer_config.json"), config)


def write_folder(name, out, pooling=None):
    """`pooling`: what sentence-transformers would name, such as "mean_tokens"."""
    os.makedirs(out, exist_ok=True)
    hf_folder.write_safetensors(os.path.join(out, "model.safetensors"), tensors(name), "float32")
    hf_folder.write_json(os.path.join(out, "config.json"), ENCODERS[name][0])
    write_tokenizer(out)
    if pooling:
        dense = list(write_dense(name, out)) if name in DENSE else []
        hf_folder.write_json(os.path.join(out, "modules.json"), [
            {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
            for i, (kind, path) in enumerate([("Transformer", ""), ("Pooling", ""), *dense, ("Normalize", "")])])
        os.makedirs(os.path.join(out, "1_Pooling"), exist_ok=True)
        hf_folder.write_json(os.path.join(out, "1_Pooling", "config.json"), {
            "word_embedding_dimension": 0, **{f"pooling_mode_{m}": m == pooling for m in
                                              ("cls_token", "mean_tokens", "max_tokens", "lasttoken")}})


# ---- classifiers and rerankers ----

def _item(kind, name, i):
    return {kind: {"id": name, "type_id": i}}


_NAMED = {name: {"id": name, "ids": [i], "tokens": [name]} for name, i in
          (("<bos>", tokenizer.BOS), ("<eos>", tokenizer.EOS))}
# [CLS] A [SEP] B [SEP], the second text of type 1
BERT_TEMPLATE = {
    "type": "TemplateProcessing", "special_tokens": _NAMED,
    "single": [_item("SpecialToken", "<bos>", 0), _item("Sequence", "A", 0), _item("SpecialToken", "<eos>", 0)],
    "pair": [_item("SpecialToken", "<bos>", 0), _item("Sequence", "A", 0), _item("SpecialToken", "<eos>", 0),
             _item("Sequence", "B", 1), _item("SpecialToken", "<eos>", 1)]}
# <s> A </s></s> B </s>; positions of the token that fills batches up (1) are not counted, so that </s> is another one
ROBERTA_TEMPLATE = {"type": "RobertaProcessing", "sep": ["<unk>", tokenizer.UNK], "cls": ["<bos>", tokenizer.BOS],
                    "trim_offsets": True, "add_prefix_space": False}
_HEADS = {"bert": ("pooler.dense", "classifier"), "xlm-roberta": ("classifier.dense", "classifier.out_proj"),
          "distilbert": ("pre_classifier", "classifier"), "mpnet": ("classifier.dense", "classifier.out_proj"),
          "electra": ("classifier.dense", "classifier.out_proj"), "gte": ("pooler.dense", "classifier"), "jina-v2": ("pooler.dense", "classifier"),
          "albert": ("pooler", "classifier"),
          "modernbert": ("head.dense", "classifier"), "modernbert-biases": ("head.dense", "classifier")}
_CLASSES = {"bert": "BertForSequenceClassification", "xlm-roberta": "XLMRobertaForSequenceClassification",
            "distilbert": "DistilBertForSequenceClassification", "mpnet": "MPNetForSequenceClassification",
            "electra": "ElectraForSequenceClassification", "gte": "NewForSequenceClassification", "jina-v2": "JinaBertForSequenceClassification", "albert": "AlbertForSequenceClassification",
            "modernbert": "ModernBertForSequenceClassification", "modernbert-biases": "ModernBertForSequenceClassification"}


def _labels(*names):
    return {"id2label": {str(i): n for i, n in enumerate(names)}, "label2id": {n: i for i, n in enumerate(names)}}


# the encoder, the tokenizer's template, what config.json says of labels
CLASSIFIERS = {
    "bert-rerank": ("bert", BERT_TEMPLATE, _labels("LABEL_0")),
    "bert-topics": ("bert", BERT_TEMPLATE, {**_labels("sport", "war \u00e9", "art", "law"),
                                            "problem_type": "multi_label_classification"}),
    "xlm-roberta-rerank": ("xlm-roberta", ROBERTA_TEMPLATE, {
        **_labels("LABEL_0"), "sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}}),
    "distilbert-mood": ("distilbert", BERT_TEMPLATE, _labels("bad", "good", "odd")),
    "mpnet-mood": ("mpnet", ROBERTA_TEMPLATE, _labels("bad", "good", "odd")),
    "electra-mood": ("electra", BERT_TEMPLATE, _labels("bad", "good", "odd")),
    "albert-mood": ("albert", BERT_TEMPLATE, _labels("bad", "good", "odd")),
    "gte-rerank": ("gte", ROBERTA_TEMPLATE, _labels("LABEL_0")),
    "jina-v2-rerank": ("jina-v2", BERT_TEMPLATE, _labels("LABEL_0")),
    "modernbert-rerank": ("modernbert", BERT_TEMPLATE, {**_labels("LABEL_0"), "classifier_pooling": "mean"}),
    "modernbert-mood": ("modernbert-biases", BERT_TEMPLATE, {**_labels("bad", "good"), "classifier_bias": True}),
}
TEXTS = ["the quick brown fox", "In the end, there is nothing but the wind", "you", "who is the king of the world and why? " * 2]


def classifier_tensors(name):
    encoder, _, config = CLASSIFIERS[name]
    prefix = {"bert": "bert.", "xlm-roberta": "roberta.", "distilbert": "distilbert.", "mpnet": "mpnet.",
              "electra": "electra.", "gte": "new.", "jina-v2": "bert.", "albert": "albert."}.get(encoder, "model.")
    d, n = ENCODERS[encoder][0].get("hidden_size") or ENCODERS[encoder][0]["dim"], len(config["id2label"])
    out = {(prefix if not at.startswith("pooler") else "") + at: t for at, t in tensors(encoder).items()}
    dense, last = _HEADS[encoder]
    dense = prefix + dense if dense.startswith("pooler") else dense
    head = [*_linear(dense, d, d, 1.0), *_linear(last, d, n, 2.0)]
    if encoder.startswith("modernbert"):
        c = {**ENCODERS[encoder][0], "attention_bias": config.get("classifier_bias", False)}
        head = [*_without_biases(c, [*_linear(dense, d, d, 1.0), *_norm("head.norm", d)]), *_linear(last, d, n, 2.0)]
    for at, shape, deviation, mean in head:
        out[at] = weights.normal(f"classifier {name} {at}", shape, deviation, mean)
    return out


def write_classifier(name, out):
    encoder, template, config = CLASSIFIERS[name]
    os.makedirs(out, exist_ok=True)
    hf_folder.write_safetensors(os.path.join(out, "model.safetensors"), classifier_tensors(name), "float32")
    hf_folder.write_json(os.path.join(out, "config.json"), {
        **ENCODERS[encoder][0], "architectures": [_CLASSES[encoder]], **config})
    write_tokenizer(out, template)


# ---- GGUF, under the names of llama.cpp ----

_GGUF = (("embeddings.word_embeddings", "token_embd"), ("embeddings.position_embeddings", "position_embd"),
         ("embeddings.token_type_embeddings", "token_types"), ("embeddings.LayerNorm", "token_embd_norm"), ("emb_ln", "token_embd_norm"),
         ("encoder.layer.", "blk."), ("encoder.layers.", "blk."), ("attention.self.query", "attn_q"), ("attention.self.key", "attn_k"),
         ("attention.self.value", "attn_v"), ("attention.output.dense", "attn_output"), ("attention.output.LayerNorm", "attn_output_norm"),
         ("intermediate.dense", "ffn_up"), ("output.dense", "ffn_down"), ("output.LayerNorm", "layer_output_norm"), ("attn.Wqkv", "attn_qkv"),
         ("attn.out_proj", "attn_output"), ("mlp.fc11", "ffn_up"), ("mlp.fc12", "ffn_gate"), ("mlp.fc2", "ffn_down"),
         ("norm1", "attn_output_norm"), ("norm2", "layer_output_norm"))
POOLINGS = {None: 0, "mean_tokens": 1, "cls_token": 2, "lasttoken": 3}


def gguf_keys(arch, c, pooling, vocab):
    """Metadata of a BERT model. vocab: tokens as WordPiece has them; those in brackets are marks."""
    marks = [t.startswith("[") and t.endswith("]") for t in vocab]
    keys = [("general.architecture", "string", arch), ("general.name", "string", "a small encoder")]
    for name, kind, value in (
            ("block_count", "uint32", c["num_hidden_layers"]), ("context_length", "uint32", c["max_position_embeddings"]),
            ("embedding_length", "uint32", c["hidden_size"]), ("feed_forward_length", "uint32", c["intermediate_size"]),
            ("attention.head_count", "uint32", c["num_attention_heads"]), ("attention.causal", "bool", False),
            ("attention.layer_norm_epsilon", "float32", c["layer_norm_eps"]), ("pooling_type", "uint32", POOLINGS[pooling])):
        keys.append((f"{arch}.{name}", kind, value))
    if "rope_theta" in c:
        keys.append((f"{arch}.rope.freq_base", "float32", c["rope_theta"]))
    return keys + [
        ("tokenizer.ggml.model", "string", "bert"), ("tokenizer.ggml.pre", "string", "default"),
        ("tokenizer.ggml.token_type_count", "uint32", 2),
        ("tokenizer.ggml.tokens", "strings", [t if mark else t[2:] if t.startswith("##") else "\u2581" + t
                                              for t, mark in zip(vocab, marks)]),
        ("tokenizer.ggml.token_type", "int32s", [3 if mark else 1 for mark in marks]),
        *((f"tokenizer.ggml.{key}_token_id", "uint32", vocab.index(mark)) for key, mark in (
            ("unknown", "[UNK]"), ("padding", "[PAD]"), ("cls", "[CLS]"), ("seperator", "[SEP]")))]


def write_gguf(path, arch, config, named, pooling, vocab):
    """named: tensors under the names of the Hugging Face folder; float32."""
    out = []
    for at, x in named.items():
        if "position_ids" in at or at.startswith("pooler."):
            continue
        for hf, theirs in _GGUF:
            at = at.replace(hf, theirs)
        x = np.ascontiguousarray(x, np.float32)
        out.append((at, "f32", x.shape, x.reshape(-1).view(np.uint8)))
    gguf_file.write(path, gguf_keys(arch, config, pooling, vocab), out)


_GGUF_GEMMA = (("embed_tokens", "token_embd"), ("layers.", "blk."), ("input_layernorm", "attn_norm"), ("self_attn.q_proj", "attn_q"),
               ("self_attn.k_proj", "attn_k"), ("self_attn.v_proj", "attn_v"), ("self_attn.o_proj", "attn_output"),
               ("self_attn.q_norm", "attn_q_norm"), ("self_attn.k_norm", "attn_k_norm"), ("post_attention_layernorm", "post_attention_norm"),
               ("pre_feedforward_layernorm", "ffn_norm"), ("post_feedforward_layernorm", "post_ffw_norm"), ("mlp.gate_proj", "ffn_gate"),
               ("mlp.up_proj", "ffn_up"), ("mlp.down_proj", "ffn_down"), ("norm.weight", "output_norm.weight"))
_GGUF_MODERNBERT = (("embeddings.tok_embeddings", "token_embd"), ("embeddings.norm", "token_embd_norm"), ("layers.", "blk."),
                    ("attn.Wqkv", "attn_qkv"), ("attn.Wo", "attn_output"), ("mlp_norm", "ffn_norm"), ("mlp.Wi", "ffn_up"), ("mlp.Wo", "ffn_down"),
                    ("final_norm", "output_norm"))


def dense_of_gguf():
    """EmbeddingGemma's two products as its files have them: without biases and activations."""
    return [parts["linear.weight"] for parts in dense_tensors("embeddinggemma")]


def _common_keys(arch, c, more):
    keys = [("general.architecture", "string", arch), ("general.name", "string", "a small encoder")]
    for name, kind, value in (
            ("block_count", "uint32", c["num_hidden_layers"]), ("context_length", "uint32", POSITIONS),
            ("embedding_length", "uint32", c["hidden_size"]), ("feed_forward_length", "uint32", c["intermediate_size"]),
            ("attention.head_count", "uint32", c["num_attention_heads"]), ("attention.causal", "bool", False), *more):
        keys.append((f"{arch}.{name}", kind, value))
    return keys + tokenizer.gguf_keys(VOCAB, False)


def _write_renamed(path, keys, named, names):
    out = []
    for at, x in named.items():
        for hf, theirs in names:
            at = theirs + at[len(hf):] if at.startswith(hf) else at.replace("." + hf, "." + theirs)
        x = np.ascontiguousarray(x, np.float32)
        out.append((at, "f32", x.shape, x.reshape(-1).view(np.uint8)))
    gguf_file.write(path, keys, out)


def gemma_gguf_keys(pooling):
    c = EMBEDDINGGEMMA
    return _common_keys("gemma-embedding", c, (
        ("attention.head_count_kv", "uint32", c["num_key_value_heads"]), ("attention.key_length", "uint32", c["head_dim"]),
        ("attention.value_length", "uint32", c["head_dim"]), ("attention.scale", "float32", c["query_pre_attn_scalar"] ** -0.5),
        ("attention.layer_norm_rms_epsilon", "float32", c["rms_norm_eps"]), ("attention.sliding_window", "uint32", c["sliding_window"]),
        ("rope.freq_base", "float32", c["rope_theta"]), ("rope.freq_base_swa", "float32", c["rope_local_base_freq"]),
        ("pooling_type", "uint32", POOLINGS[pooling])))


_GGUF_LLAMA = (("embed_tokens", "token_embd"), ("layers.", "blk."), ("input_layernorm", "attn_norm"), ("self_attn.q_proj", "attn_q"),
               ("self_attn.k_proj", "attn_k"), ("self_attn.v_proj", "attn_v"), ("self_attn.o_proj", "attn_output"),
               ("post_attention_layernorm", "ffn_norm"), ("mlp.gate_proj", "ffn_gate"), ("mlp.up_proj", "ffn_up"), ("mlp.down_proj", "ffn_down"),
               ("norm.weight", "output_norm.weight"))


_GGUF_JINA = (("embeddings.word_embeddings", "token_embd"), ("embeddings.token_type_embeddings", "token_types"), ("emb_ln", "token_embd_norm"),
              ("layers.", "blk."), ("mixer.Wqkv", "attn_qkv"), ("mixer.out_proj", "attn_output"), ("mlp.fc1", "ffn_up"),
              ("mlp.fc2", "ffn_down"), ("norm1", "attn_output_norm"), ("norm2", "layer_output_norm"))


_GGUF_NOMIC_MOE = (("embeddings.word_embeddings", "token_embd"), ("embeddings.token_type_embeddings", "token_types"),
                   ("emb_ln", "token_embd_norm"), ("encoder.layers.", "blk."), ("attn.Wqkv", "attn_qkv"), ("attn.out_proj", "attn_output"),
                   ("mlp.router.layer", "ffn_gate_inp"), ("mlp.fc1", "ffn_up"), ("mlp.fc2", "ffn_down"), ("norm1", "attn_output_norm"),
                   ("norm2", "layer_output_norm"))
_GGUF_JINA_V2 = (("embeddings.word_embeddings", "token_embd"), ("embeddings.token_type_embeddings", "token_types"),
                 ("embeddings.LayerNorm", "token_embd_norm"), ("encoder.layer.", "blk."), ("attention.self.query", "attn_q"),
                 ("attention.self.key", "attn_k"), ("attention.self.value", "attn_v"), ("attention.output.dense", "attn_output"),
                 ("attention.output.LayerNorm", "attn_output_norm"), ("mlp.gated_layers", "ffn_up"), ("mlp.gate", "ffn_gate"),
                 ("mlp.up", "ffn_up"), ("mlp.wo", "ffn_down"), ("mlp.layernorm", "layer_output_norm"))


def write_gguf_eurobert(path, pooling):
    c = EUROBERT
    keys = _common_keys("eurobert", c, (
        ("attention.head_count_kv", "uint32", c["num_key_value_heads"]), ("attention.layer_norm_rms_epsilon", "float32", c["rms_norm_eps"]),
        ("rope.freq_base", "float32", c["rope_theta"]), ("pooling_type", "uint32", POOLINGS[pooling])))
    _write_renamed(path, keys, tensors("eurobert"), _GGUF_LLAMA)


def write_gguf_jina(path, pooling):
    c = JINA
    keys = _common_keys("jina-bert-v3", c, (
        ("attention.layer_norm_epsilon", "float32", c["layer_norm_eps"]), ("rope.freq_base", "float32", c["rope_parameters"]["rope_theta"]),
        ("pooling_type", "uint32", POOLINGS[pooling])))
    named = {at.replace("encoder.", ""): x for at, x in tensors("jina").items()}
    _write_renamed(path, keys, named, _GGUF_JINA)


def write_gguf_jina_v2(path, pooling, fused):
    """`fused`: as newer converters write gate and up."""
    c = JINA_V2
    keys = _common_keys("jina-bert-v2", c, (
        ("attention.layer_norm_epsilon", "float32", c["layer_norm_eps"]), ("pooling_type", "uint32", POOLINGS[pooling])))
    named = {}
    for at, x in tensors("jina-v2").items():
        if at.endswith("gated_layers.weight") and not fused:
            stem, ff = at.removesuffix("gated_layers.weight"), c["intermediate_size"]
            named |= {f"{stem}gate.weight": x[:ff], f"{stem}up.weight": x[ff:]}
        else:
            named[at] = x
    _write_renamed(path, keys, named, _GGUF_JINA_V2)


def write_gguf_nomic_moe(path, pooling):
    """As llama.cpp's writer has them: without the bias of what experts give together."""
    c = {"num_hidden_layers": NOMIC_MOE["n_layer"], "hidden_size": NOMIC_MOE["n_embd"], "intermediate_size": NOMIC_MOE["n_inner"],
         "num_attention_heads": NOMIC_MOE["n_head"]}
    keys = _common_keys("nomic-bert-moe", c, (
        ("attention.layer_norm_epsilon", "float32", NOMIC_MOE["layer_norm_epsilon"]), ("pooling_type", "uint32", POOLINGS[pooling]),
        ("rope.freq_base", "float32", float(NOMIC_MOE["rotary_emb_base"])), ("expert_count", "uint32", NOMIC_MOE["num_experts"]),
        ("expert_used_count", "uint32", NOMIC_MOE["moe_top_k"]), ("moe_every_n_layers", "uint32", NOMIC_MOE["moe_every_n_layers"])))
    n, named = NOMIC_MOE["num_experts"], {}
    for at, x in tensors("nomic-moe-no-bias").items():
        if at.endswith(".w1"):
            named[at.replace(".mlp.experts.mlp.w1", ".ffn_up_exps.weight")] = x.reshape(n, -1, x.shape[1])
        elif at.endswith(".w2"):
            named[at.replace(".mlp.experts.mlp.w2", ".ffn_down_exps.weight")] = x.reshape(n, -1, x.shape[1]).transpose(0, 2, 1)
        else:
            named[at] = x
    _write_renamed(path, keys, named, _GGUF_NOMIC_MOE)


def write_gguf_t5(path, pooling):
    """No file of llama.cpp's writer says how states are pooled."""
    assert pooling == "mean_tokens"
    keys = [(key.replace("t5.", "t5encoder."), kind, "t5encoder" if value == "t5" else value) for key, kind, value in encdec.gguf_keys("flan-t5")
            if "decoder" not in key.replace("t5.", "")]
    out = [(encdec.gguf_name(at), "f32", x.shape, np.ascontiguousarray(x, np.float32).reshape(-1).view(np.uint8)) for at, x in tensors("t5").items()]
    gguf_file.write(path, [*keys, *tokenizer.gguf_keys(VOCAB, False)], out)


def write_gguf_gemma(path, pooling):
    named = {at: x + 1 if "norm" in at else x for at, x in tensors("embeddinggemma").items()}  # what norms multiply by
    _write_renamed(path, gemma_gguf_keys(pooling), named | {f"dense_{i + 2}.weight": x for i, x in enumerate(dense_of_gguf())}, _GGUF_GEMMA)


def write_gguf_modernbert(path, pooling):
    c = MODERNBERT
    keys = _common_keys("modern-bert", c, (
        ("attention.layer_norm_epsilon", "float32", c["norm_eps"]), ("attention.sliding_window", "uint32", c["local_attention"]),
        ("rope.freq_base", "float32", c["global_rope_theta"]), ("rope.freq_base_swa", "float32", c["local_rope_theta"]),
        ("pooling_type", "uint32", POOLINGS[pooling])))
    marks = {"bos_token_id": "cls_token_id", "eos_token_id": "seperator_token_id"}  # names as BERT has them
    keys = [(head + "." + marks.get(last, last), kind, True if last in ("add_bos_token", "add_eos_token") else value)
            for (head, _, last), kind, value in ((key.rpartition("."), kind, value) for key, kind, value in keys)]
    _write_renamed(path, keys, tensors("modernbert"), _GGUF_MODERNBERT)


def classifier_gguf_keys(name):
    encoder, _, config = CLASSIFIERS[name]
    c = ENCODERS[encoder][0]
    keys = _common_keys("bert", c, (("attention.layer_norm_epsilon", "float32", c["layer_norm_eps"]), ("pooling_type", "uint32", 4),
                                    ("classifier.output_labels", "strings", list(config["id2label"].values()))))
    marks = {"eos_token_id": tokenizer.UNK, "add_bos_token": True, "add_eos_token": True}
    return [(key, kind, marks.get(key.rpartition(".")[2], value)) for key, kind, value in keys]


def write_classifier_gguf(name, path):
    """RoBERTa's head under llama.cpp's names; rows of positions begin at the first."""
    out = []
    for at, x in classifier_tensors(name).items():
        at = at.removeprefix("roberta.").replace("classifier.dense", "cls").replace("classifier.out_proj", "cls.output")
        for hf, theirs in _GGUF:
            at = at.replace(hf, theirs)
        x = np.ascontiguousarray(x[2:] if at.startswith("position_embd") else x, np.float32)
        if not at.startswith("pooler."):
            out.append((at, "f32", x.shape, x.reshape(-1).view(np.uint8)))
    gguf_file.write(path, classifier_gguf_keys(name), out)


def small_vocab():
    """As many tokens as the models have: marks, beginnings of words and what goes on with them."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "wind", "##s", "fox", "qu", "##ick", "##ly", "!", "\u4e2d", "caf", "##e"]
    return words + [f"w{i}" for i in range(len(words), VOCAB)]


def write_small_gguf(name, path, pooling):
    if name.startswith("jina-v2"):
        write_gguf_jina_v2(path, pooling, name == "jina-v2-fused")
        return
    own = {"embeddinggemma": write_gguf_gemma, "modernbert": write_gguf_modernbert, "eurobert": write_gguf_eurobert, "jina": write_gguf_jina, "nomic-moe-no-bias": write_gguf_nomic_moe, "t5": write_gguf_t5}.get(name)
    if own:
        own(path, pooling)
        return
    c = ENCODERS[name][0]
    if name == "nomic":
        c = {"num_hidden_layers": c["n_layer"], "max_position_embeddings": POSITIONS, "hidden_size": c["n_embd"],
             "intermediate_size": c["n_inner"], "num_attention_heads": c["n_head"], "layer_norm_eps": c["layer_norm_epsilon"],
             "rope_theta": float(c["rotary_emb_base"])}
    write_gguf(path, {"bert": "bert", "nomic": "nomic-bert"}[name], c, tensors(name), pooling, small_vocab())
