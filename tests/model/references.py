# SPDX-License-Identifier: Apache-2.0
"""Families whose classes transformers has not got, and no other class stands for: their formulas in torch, float32.

Baichuan 2 13B (modeling_baichuan.py of baichuan-inc/Baichuan2-13B-Chat): a Llama whose scores get a bias that falls with
the distance instead of rotated queries and keys, and whose LM head has rows divided by their length."""

import math
import types

import torch

import families


def slopes(n):
    """Of n heads: a geometric series, for n that is no power of two with every other one of the next series."""
    p = 2 ** math.floor(math.log2(n))
    first = [2 ** (-8 * (i + 1) / p) for i in range(p)]
    return first + [2 ** (-8 * (2 * i + 1) / (2 * p)) for i in range(n - p)]


class Baichuan13B:
    """Takes what make_goldens.py gives a model of transformers; what it keeps between steps are the tokens."""

    def __init__(self, tensors, n_layers):
        self.w = {name: torch.from_numpy(x) for name, x in tensors.items()}
        self.n_layers = n_layers

    def norm(self, name, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * self.w[f"{name}.weight"]

    def linear(self, name, x):
        return x @ self.w[f"{name}.weight"].T

    def attention(self, at, x):
        n = len(x)
        q, k, v = (self.linear(f"{at}.{p}_proj", x).view(n, -1, families.HD).transpose(0, 1) for p in "qkv")
        far = torch.arange(n)[None, :] - torch.arange(n)[:, None]
        scores = q @ k.transpose(1, 2) / math.sqrt(families.HD) + torch.tensor(slopes(len(q)))[:, None, None] * far
        seen = scores.masked_fill(far > 0, -math.inf).softmax(-1) @ v
        return self.linear(f"{at}.o_proj", seen.transpose(0, 1).reshape(n, -1))

    def __call__(self, ids, past_key_values=None, use_cache=False, logits_to_keep=0):
        ids = ids if past_key_values is None else torch.cat([past_key_values, ids], 1)
        h = self.w["model.embed_tokens.weight"][ids[0]]
        for i in range(self.n_layers):
            at = f"model.layers.{i}"
            h = h + self.attention(f"{at}.self_attn", self.norm(f"{at}.input_layernorm", h))
            x = self.norm(f"{at}.post_attention_layernorm", h)
            gate = torch.nn.functional.silu(self.linear(f"{at}.mlp.gate_proj", x))
            h = h + self.linear(f"{at}.mlp.down_proj", gate * self.linear(f"{at}.mlp.up_proj", x))
        head = torch.nn.functional.normalize(self.w["lm_head.weight"])
        logits = self.norm("model.norm", h) @ head.T
        return types.SimpleNamespace(logits=logits[-logits_to_keep:][None], past_key_values=ids)


REFERENCES = {"baichuan2-13b": Baichuan13B}
