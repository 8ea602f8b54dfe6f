#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""States of the small encoders by transformers in float32: encoder_states.json.

How the committed file was made (torch, transformers and numpy of the versions that it names):

    python tests/model/make_encoder_goldens.py
"""
import functools
import json
import os
import sys
import tempfile

import torch
import transformers
from sentence_transformers.models import Dense
from transformers.models.bloom.modeling_bloom import build_alibi_tensor

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "tinymodel"))
import encoders  # noqa: E402


# Keys of nomic's own files, which transformers' class does not read.
KEYS = {"n_embd": "hidden_size", "n_head": "num_attention_heads", "n_layer": "num_hidden_layers", "n_inner": "intermediate_size",
        "n_positions": "max_position_embeddings", "layer_norm_epsilon": "layer_norm_eps", "rotary_emb_base": "rope_theta"}


def rename_keys(folder):
    path = os.path.join(folder, "config.json")
    with open(path, encoding="utf-8") as f:
        config = json.load(f)
    config = {KEYS.get(key, key): value for key, value in config.items() if key != "activation_function"}
    with open(path, "w", encoding="utf-8") as f:
        json.dump(config, f)


def other_class(folder):
    """GTE's own class, which transformers calls by another name."""
    path = os.path.join(folder, "config.json")
    with open(path, encoding="utf-8") as f:
        config = json.load(f)
    with open(path, "w", encoding="utf-8") as f:
        json.dump({**config, "model_type": "gte", "architectures": [config["architectures"][0].replace("New", "Gte")]}, f)


def neobert(ids):
    """The last states of NeoBERT, whose class transformers has not (arXiv:2502.19587 and the model's page)."""
    c = encoders.NEOBERT
    w = {at.removeprefix("model."): torch.from_numpy(x) for at, x in encoders.tensors("neobert").items()}
    heads, width = c["num_attention_heads"], c["hidden_size"] // c["num_attention_heads"]
    angles = torch.outer(torch.arange(len(ids)).float(), 10000.0 ** (-torch.arange(0, width, 2).float() / width))
    turn = torch.polar(torch.ones_like(angles), angles)[:, None]

    def turned(x):
        pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2).contiguous())
        return torch.view_as_real(pairs * turn).flatten(-2)

    def norm(x, at):
        return torch.nn.functional.rms_norm(x, x.shape[-1:], w[f"{at}.weight"], c["norm_eps"])

    x = w["encoder.weight"][torch.tensor(ids)]
    for i in range(c["num_hidden_layers"]):
        at = f"transformer_encoder.{i}"
        q, k, v = (norm(x, f"{at}.attention_norm") @ w[f"{at}.qkv.weight"].T).view(len(ids), heads, 3 * width).split(width, -1)
        p = (torch.einsum("ihd,jhd->hij", turned(q), turned(k)) / width ** 0.5).softmax(-1)
        x = x + torch.einsum("hij,jhd->ihd", p, v).flatten(1) @ w[f"{at}.wo.weight"].T
        gate, up = (norm(x, f"{at}.ffn_norm") @ w[f"{at}.ffn.w12.weight"].T).chunk(2, -1)
        x = x + (torch.nn.functional.silu(gate) * up) @ w[f"{at}.ffn.w3.weight"].T
    return norm(x, "layer_norm").double()


class Gated(torch.nn.Module):
    """The MLP of jina-embeddings-v2 in the place of BERT's: the first half of a product is activated, the second its factor."""

    def __init__(self, w, at, norm):
        super().__init__()
        self.both, self.out, self.bias, self.norm = w[f"{at}.gated_layers.weight"], w[f"{at}.wo.weight"], w[f"{at}.wo.bias"], norm

    def forward(self, x, residual):
        gate, up = (x @ self.both.T).chunk(2, -1)
        return self.norm((torch.nn.functional.gelu(gate) * up) @ self.out.T + self.bias + residual)


def jina_bert(kind, c, w, n_labels=2):
    """transformers' `kind` of BERT as jina-embeddings-v2 is, whose class it has not (arXiv:2310.19923 and the model's page): without positions
    and with the MLP above. w: all its weights, by name."""
    own = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "type_vocab_size", "layer_norm_eps")
    config = transformers.BertConfig(**{key: c[key] for key in own}, num_labels=n_labels, attn_implementation="eager")
    model = kind(config, add_pooling_layer=False).eval() if kind is transformers.BertModel else kind(config).eval()
    bert = getattr(model, "bert", model)
    bert.embeddings.position_embeddings.weight.data.zero_()
    for i, layer in enumerate(bert.encoder.layer):
        layer.intermediate, norm = torch.nn.Identity(), layer.output.LayerNorm
        layer.output = Gated({at.removeprefix("bert."): x for at, x in w.items()}, f"encoder.layer.{i}.mlp", norm)
    named = {at.replace("mlp.layernorm", "output.norm"): x for at, x in w.items() if ".gated_layers" not in at and ".wo." not in at}
    lacks = model.load_state_dict(named, strict=False)
    if lacks.unexpected_keys or [at for at in lacks.missing_keys if not at.endswith("embeddings.position_embeddings.weight")]:
        raise RuntimeError(f"jina-v2: {lacks}")
    return model


def distances(n, heads):
    """Bloom's slopes times the distance of n tokens, as a mask."""
    slopes = build_alibi_tensor(torch.ones(1, 2), heads, torch.float32)[:, 0, 1]
    places = torch.arange(n)
    return (-slopes[:, None, None] * (places[:, None] - places).abs())[None]


def jina_v2(ids):
    c = encoders.JINA_V2
    model = jina_bert(transformers.BertModel, c, {at: torch.from_numpy(x) for at, x in encoders.tensors("jina-v2").items()})
    with torch.no_grad():
        return model(torch.tensor([ids]), attention_mask=distances(len(ids), c["num_attention_heads"])).last_hidden_state[0].double()


class Experts(torch.nn.Module):
    """Those of nomic-embed-text-v2-moe: not gated, chosen by a softmax over all, and a bias of what they give together."""

    def __init__(self, w, at, c):
        super().__init__()
        n = c["num_experts"]
        self.router, self.top_k = w[f"{at}.router.layer.weight"], c["moe_top_k"]
        self.up, self.down = (w[f"{at}.experts.mlp.{part}"].unflatten(0, (n, -1)) for part in ("w1", "w2"))
        self.bias = w.get(f"{at}.experts.bias", 0)

    def forward(self, x):
        weights = (x @ self.router.T).softmax(-1)
        kept = torch.where(weights >= weights.topk(self.top_k, -1).values[..., -1:], weights, 0)
        mid = torch.nn.functional.gelu(torch.einsum("btd,efd->btef", x, self.up))
        return torch.einsum("bte,btef,efd->btd", kept, mid, self.down) + self.bias


def nomic_moe(name, ids):
    """The last states of nomic-embed-text-v2-moe (arXiv:2502.07972 and the model's page): JinaEmbeddingsV3Model, whose layers are those without
    experts, with the experts above."""
    c = encoders.NOMIC_MOE
    w = {at.replace("encoder.", ""): torch.from_numpy(x) for at, x in encoders.tensors(name).items()}
    model = transformers.JinaEmbeddingsV3Model(transformers.JinaEmbeddingsV3Config(
        vocab_size=c["vocab_size"], hidden_size=c["n_embd"], num_hidden_layers=c["n_layer"], num_attention_heads=c["n_head"],
        intermediate_size=c["n_inner"], max_position_embeddings=c["n_positions"], type_vocab_size=1, layer_norm_eps=c["layer_norm_epsilon"],
        hidden_act="gelu", rope_parameters={"rope_type": "default", "rope_theta": float(c["rotary_emb_base"])},
        attn_implementation="eager"), add_pooling_layer=False).eval()
    for i, layer in enumerate(model.layers):
        if i % c["moe_every_n_layers"] == 1:
            layer.mlp = Experts(w, f"layers.{i}.mlp", c)
    named = {}
    for at, x in w.items():
        if ".attn.Wqkv." in at:
            named |= {at.replace("attn.Wqkv", f"self_attn.{part}_proj"): y for part, y in zip("qkv", x.chunk(3))}
        elif ".router." not in at and ".experts." not in at:
            for old, new in (("emb_ln", "embeddings.LayerNorm"), ("attn.out_proj", "self_attn.o_proj"), ("norm1", "post_attention_layernorm"),
                             ("norm2", "post_mlp_layernorm")):
                at = at.replace(old, new)
            named[at] = x
    model.load_state_dict(named)
    with torch.no_grad():
        return model(torch.tensor([ids])).last_hidden_state[0].double()


OWN = {"neobert": neobert, "jina-v2": jina_v2, "nomic-moe": functools.partial(nomic_moe, "nomic-moe"),
       "nomic-moe-no-bias": functools.partial(nomic_moe, "nomic-moe-no-bias")}


def states_of(name):
    if name in OWN:
        for prompt, ids in encoders.PROMPTS.items():
            x = OWN[name](ids)
            yield prompt, {"first": x[0].tolist(), "mean": x.mean(0).tolist(), "last": x[-1].tolist()}
        return
    with tempfile.TemporaryDirectory() as folder:
        encoders.write_folder(name, folder, "mean_tokens")
        dense = [Dense.load(os.path.join(folder, f"{i + 2}_Dense")).eval() for i in range(len(encoders.DENSE.get(name, [])))]
        if name == "nomic":
            rename_keys(folder)
        if name == "gte":
            other_class(folder)
        own = encoders.ENCODERS[name][0]["architectures"][0]
        kind = getattr(transformers, own) if own.endswith("EncoderModel") else transformers.AutoModel
        model, info = kind.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager",
                                                             output_loading_info=True)
        wrong = {k: v for k, v in info.items() if v and not all("pooler" in str(x) for x in v)}
        if wrong:
            raise RuntimeError(f"{name}: {wrong}")
        model.eval()
        with torch.no_grad():
            for prompt, ids in encoders.PROMPTS.items():
                x = model(torch.tensor([ids])).last_hidden_state[0].double()
                states = {"first": x[0], "mean": x.mean(0), "last": x[-1]}
                if dense:
                    vector = {"sentence_embedding": states["mean"].float()}
                    for module in dense:
                        vector = module(vector)
                    states["vector"] = vector["sentence_embedding"].double()
                yield prompt, {key: state.tolist() for key, state in states.items()}


def main():
    golden = {"made_by": f"torch {torch.__version__}, transformers {transformers.__version__}",
              "encoders": {name: dict(states_of(name)) for name in encoders.ENCODERS}}
    with open(os.path.join(HERE, "encoder_states.json"), "w", encoding="utf-8") as f:
        text = json.dumps(golden, indent=0)
        f.write(text + "\n")


if __name__ == "__main__":
    main()
