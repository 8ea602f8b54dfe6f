# SPDX-License-Identifier: Apache-2.0
"""Families whose classes transformers has not got, and no other class stands for: their formulas in torch, float32.

Baichuan 2 13B (modeling_baichuan.py of baichuan-inc/Baichuan2-13B-Chat): a Llama whose scores get a bias that falls with
the distance instead of rotated queries and keys, and whose LM head has rows divided by their length.

Grok-1 (modeling_grok1.py of hpcai-tech/grok-1, with the activation of xAI's own model.py: the tanh form of GELU) and Arctic
(modeling_arctic.py of Snowflake/snowflake-arctic-instruct).

NeMo's GPT models (attention.py, mlp.py and rotary_pos_embedding.py of its collections/nlp/modules/common/megatron, 1.x)."""

import math
import types

import torch
from torch.nn import functional

import families


def slopes(n):
    """Of n heads: a geometric series, for n that is no power of two with every other one of the next series."""
    p = 2 ** math.floor(math.log2(n))
    first = [2 ** (-8 * (i + 1) / p) for i in range(p)]
    return first + [2 ** (-8 * (2 * i + 1) / (2 * p)) for i in range(n - p)]


def rotated(x):
    """x [heads, tokens, HD]: pairs of the two halves, by position."""
    angles = torch.arange(x.shape[1])[:, None] / 10000 ** (torch.arange(0, families.HD, 2) / families.HD)
    cos, sin = angles.cos().repeat(1, 2), angles.sin().repeat(1, 2)
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat([-b, a], -1) * sin


class Decoder:
    """Takes what make_goldens.py gives a model of transformers; what it keeps between steps are the tokens."""

    norm_weight, last = "weight", "model.norm"

    def __init__(self, tensors, n_layers):
        self.w = {name: torch.from_numpy(x) for name, x in tensors.items()}
        self.n_layers = n_layers
        self.config = types.SimpleNamespace(model_type="")

    def norm(self, name, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * self.w[f"{name}.{self.norm_weight}"]

    def linear(self, name, x):
        return x @ self.w[f"{name}.weight"].T

    def qkv(self, at, x):
        return (self.linear(f"{at}.{p}_proj", x).view(len(x), -1, families.HD).transpose(0, 1) for p in "qkv")

    def attend(self, at, scores, v):
        """scores [heads, tokens, tokens] as they are before the mask."""
        n = scores.shape[1]
        seen = scores.masked_fill(torch.ones(n, n).triu(1) > 0, -math.inf).softmax(-1) @ v
        return self.linear(f"{at}.o_proj", seen.transpose(0, 1).reshape(n, -1))

    def gated(self, at, names, act, x):
        gate, up, down = (f"{at}.{n}" for n in names)
        return self.linear(down, act(self.linear(gate, x)) * self.linear(up, x))

    def experts(self, at, names, act, x, weights):
        """weights [tokens, experts], 0 of those that are not chosen."""
        return sum(weights[:, e, None] * self.gated(f"{at}.{e}", names, act, x) for e in range(weights.shape[1]))

    def chosen(self, router, x, k):
        p = self.linear(router, x).softmax(-1)
        best = p.topk(k, -1)
        return torch.zeros_like(p).scatter(-1, best.indices, best.values)

    def embed(self, ids):
        return self.w["model.embed_tokens.weight"][ids]

    def head(self, h):
        return self.linear("lm_head", h)

    def forward(self, ids, past_key_values=None, use_cache=False, logits_to_keep=0):
        ids = ids if past_key_values is None else torch.cat([past_key_values, ids], 1)
        h = self.embed(ids[0])
        for i in range(self.n_layers):
            h = self.layer(f"model.layers.{i}", h)
        logits = self.head(self.norm(self.last, h))
        return types.SimpleNamespace(logits=logits[-logits_to_keep:][None], past_key_values=ids)

    __call__ = forward


class Baichuan13B(Decoder):
    def layer(self, at, h):
        n = len(h)
        q, k, v = self.qkv(f"{at}.self_attn", self.norm(f"{at}.input_layernorm", h))
        far = torch.arange(n)[None, :] - torch.arange(n)[:, None]
        scores = q @ k.transpose(1, 2) / math.sqrt(families.HD) + torch.tensor(slopes(len(q)))[:, None, None] * far
        h = h + self.attend(f"{at}.self_attn", scores, v)
        return h + self.gated(f"{at}.mlp", ("gate_proj", "up_proj", "down_proj"), functional.silu,
                              self.norm(f"{at}.post_attention_layernorm", h))

    def head(self, h):
        return h @ functional.normalize(self.w["lm_head.weight"]).T


class Grok(Decoder):
    norm_weight = "scale"

    def layer(self, at, h):
        q, k, v = self.qkv(f"{at}.attn", self.norm(f"{at}.pre_attn_norm", h))
        scores = 3 * torch.tanh(rotated(q) @ rotated(k).transpose(1, 2) * 0.21 / 3)
        h = h + self.norm(f"{at}.post_attn_norm", self.attend(f"{at}.attn", scores, v))
        x = self.norm(f"{at}.pre_moe_norm", h)
        made = self.experts(f"{at}.moe_block.experts", ("linear", "linear_v", "linear_1"),
                            lambda y: functional.gelu(y, approximate="tanh"), x, self.chosen(f"{at}.moe_block.gate", x, 3))
        return h + self.norm(f"{at}.post_moe_norm", made)

    def embed(self, ids):
        return super().embed(ids) * 8.4

    def head(self, h):
        return h @ self.w["model.embed_tokens.weight"].T * 0.6


class Arctic(Decoder):
    def layer(self, at, h):
        q, k, v = self.qkv(f"{at}.self_attn", self.norm(f"{at}.input_layernorm", h))
        scores = rotated(q) @ rotated(k).transpose(1, 2) / math.sqrt(families.HD)
        x = self.norm(f"{at}.post_attention_layernorm", h)  # of the layer's input
        weights = self.chosen(f"{at}.block_sparse_moe.gate", x, 2)
        made = self.experts(f"{at}.block_sparse_moe.experts", ("w1", "w3", "w2"), functional.silu, x,
                            weights / weights.sum(-1, keepdim=True))
        h = h + self.attend(f"{at}.self_attn", scores, v)
        return h + self.gated(f"{at}.residual_mlp", ("w1", "w3", "w2"), functional.silu, self.norm(f"{at}.residual_layernorm", h)) + made


class NemoGPT(Decoder):
    """Positions are learned, or turn the first `part` of a head, as if they were divided by `far`."""

    last, part, far, plus = "decoder.final_layernorm", 0, 1, 0
    act = staticmethod(lambda x: functional.gelu(x, approximate="tanh"))

    def linear(self, name, x):
        return super().linear(name, x) + self.w.get(f"{name}.bias", 0)

    def norm(self, name, x):
        if f"{name}.bias" not in self.w:
            return super().norm(name, x)
        return functional.layer_norm(x, x.shape[-1:], self.w[f"{name}.weight"] + self.plus, self.w[f"{name}.bias"], 1e-5)

    def turned(self, x):
        n = int(self.part * families.HD)
        angles = torch.arange(x.shape[1])[:, None] / self.far / 10000 ** (torch.arange(0, n, 2) / max(n, 1))
        cos, sin = angles.cos().repeat(1, 2), angles.sin().repeat(1, 2)
        turning, rest = x[..., :n], x[..., n:]
        a, b = turning.chunk(2, -1)
        return torch.cat([turning * cos + torch.cat([-b, a], -1) * sin, rest], -1)

    def layer(self, at, h):
        at = at.replace("model.", "decoder.")
        mixed = self.linear(f"{at}.self_attention.linear_qkv", self.norm(f"{at}.input_layernorm", h))
        mixed = mixed.view(len(h), 1, -1, families.HD)  # one group: its queries, its key, its value
        q, k, v = (x.flatten(1, 2).transpose(0, 1) for x in (mixed[:, :, :-2], mixed[:, :, -2:-1], mixed[:, :, -1:]))
        scores = self.turned(q) @ self.turned(k).transpose(1, 2) / math.sqrt(families.HD)
        n = len(h)
        seen = scores.masked_fill(torch.ones(n, n).triu(1) > 0, -math.inf).softmax(-1) @ v
        h = h + self.linear(f"{at}.self_attention.linear_proj", seen.transpose(0, 1).reshape(n, -1))
        x = self.norm(f"{at}.pre_mlp_layernorm", h)
        made = self.act(self.linear(f"{at}.mlp.linear_fc1", x))
        if f"{at}.mlp.linear_fc1_up.weight" in self.w:
            made = made * self.linear(f"{at}.mlp.linear_fc1_up", x)
        return h + self.linear(f"{at}.mlp.linear_fc2", made)

    def embed(self, ids):
        h, places = self.w["embedding.word_embeddings.weight"][ids], self.w.get("embedding.position_embeddings.weight")
        return h if places is None else h + places[:len(ids)]

    def head(self, h):
        return h @ self.w.get("output_layer.weight", self.w["embedding.word_embeddings.weight"]).T


class NemoGPTRms(NemoGPT):
    part, far, act = 1, 2, staticmethod(functional.silu)


class NemoGPT1p(NemoGPT):
    part, plus, act = 0.5, 1, staticmethod(lambda x: functional.relu(x).square())


REFERENCES = {"nemo_gpt": NemoGPT, "nemo_gpt-rms": NemoGPTRms, "nemo_gpt_1p": NemoGPT1p,
              "baichuan2-13b": Baichuan13B, "grok": Grok, "arctic": Arctic}
