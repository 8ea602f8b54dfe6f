# SPDX-License-Identifier: Apache-2.0
"""EAGLE heads for a Llama folder, in the published forms, and what they say: the papers' formulas in numpy.

Weights are random but for the LM head, which is fitted so that some of the guesses along one text are right. Sources: Li et
al., "EAGLE", ICML 2024; Li et al., "EAGLE-3", 2025.
"""
import json
import pathlib
import struct
import sys

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests/tinymodel"), str(ROOT / "tests")]
import hf_folder  # noqa: E402


def rms(x, w, eps):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * w


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def attention(x_q, x_k, x_v, positions, c, see):
    """Heads of rotary q and k; see [n, n]: which of the tokens each one sees."""
    heads, kv, hd = c["num_attention_heads"], c["num_key_value_heads"], head_dim(c)
    freq = c.get("rope_theta", 10000.0) ** (-np.arange(0, hd, 2) / hd)
    angle = np.asarray(positions)[:, None] * freq[None]
    cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]

    def turned(x, n):
        a, b = np.split(x.reshape(len(x), n, hd), 2, -1)
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)
    q, k = turned(x_q, heads), np.repeat(turned(x_k, kv), heads // kv, 1)
    v = np.repeat(x_v.reshape(len(x_v), kv, hd), heads // kv, 1)
    scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(hd)
    p = softmax(np.where(see[None], scores, -np.inf))
    return np.einsum("hqk,khd->qhd", p, v).reshape(len(x_q), heads * hd)


def head_dim(c):
    return c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]


def mlp(x, w, p):
    gate = x @ w[p + "mlp.gate_proj.weight"].T
    return (gate / (1 + np.exp(-gate)) * (x @ w[p + "mlp.up_proj.weight"].T)) @ w[p + "mlp.down_proj.weight"].T


def _under(found, a, b):
    """Whether number a is b, or hangs below it."""
    while a >= 0 and a != b:
        a = found[a][3]
    return a == b


def causal(n):
    return np.tril(np.ones((n, n), bool))


def model_of(folder):
    """A Llama of one file in float32."""
    data = (pathlib.Path(folder) / "model.safetensors").read_bytes()
    (n,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + n])
    header.pop("__metadata__", None)
    weights = {name: np.frombuffer(data[8 + n + t["data_offsets"][0]:8 + n + t["data_offsets"][1]], np.float32).reshape(t["shape"])
               for name, t in header.items()}
    return Llama(json.loads((pathlib.Path(folder) / "config.json").read_text()), weights)


class Llama:
    def __init__(self, config, weights):
        self.c, self.w = config, {k: v.astype(np.float64) for k, v in weights.items()}
        self.head = self.w.get("lm_head.weight", self.w["model.embed_tokens.weight"])
        self.longest, self.kept = [], None

    def states(self, ids):
        """What goes into each layer, and the final norm's output; of the beginnings of a text kept from the longest."""
        n = len(ids)
        if self.kept is None or list(self.longest[:n]) != list(ids):
            self.longest, self.kept = list(ids), self.compute(ids)
        return [x[:n] for x in self.kept[0]], self.kept[1][:n]

    def compute(self, ids):
        w, eps = self.w, self.c["rms_norm_eps"]
        x, into = w["model.embed_tokens.weight"][ids], []
        for i in range(self.c["num_hidden_layers"]):
            p = f"model.layers.{i}."
            into.append(x)
            y = rms(x, w[p + "input_layernorm.weight"], eps)
            q, k, v = (y @ w[f"{p}self_attn.{n}_proj.weight"].T for n in "qkv")
            x = x + attention(q, k, v, np.arange(len(ids)), self.c, causal(len(ids))) @ w[p + "self_attn.o_proj.weight"].T
            x = x + mlp(rms(x, w[p + "post_attention_layernorm.weight"], eps), w, p)
        return into, rms(x, w["model.norm.weight"], eps)

    def greedy(self, ids, n):
        ids = list(ids)
        for _ in range(n):
            ids.append(int((self.compute(ids)[1][-1] @ self.head.T).argmax()))
        return ids


class Heads:
    """Of a model: kind 1 or 3. vocab: of kind 3's LM head, with the tokens it stands for."""

    def __init__(self, model, kind, tokens=None, layers=None, seed=1):
        rng = np.random.default_rng(seed)
        c, h = model.c, model.c["hidden_size"]
        nq, nkv = c["num_attention_heads"] * head_dim(c), c["num_key_value_heads"] * head_dim(c)
        ffn, n_in = c["intermediate_size"], h * (2 if kind == 3 else 1)

        def matrix(rows, cols, gain=1.0):
            return (rng.normal(0, gain / np.sqrt(cols), (rows, cols))).astype(np.float32)

        def vector():
            return rng.normal(1, 0.2, h).astype(np.float32)
        self.model, self.kind, self.layers = model, kind, layers
        self.tokens = np.arange(c["vocab_size"]) if tokens is None else np.asarray(tokens)
        w = {"fc.weight": matrix(h, h * (3 if kind == 3 else 2)), "self_attn.q_proj.weight": matrix(nq, n_in, 1.5),
             "self_attn.k_proj.weight": matrix(nkv, n_in, 1.5), "self_attn.v_proj.weight": matrix(nkv, n_in),
             "self_attn.o_proj.weight": matrix(h, nq), "mlp.gate_proj.weight": matrix(ffn, h), "mlp.up_proj.weight": matrix(ffn, h),
             "mlp.down_proj.weight": matrix(h, ffn), "post_attention_layernorm.weight": vector()}
        if kind == 1:
            w["fc.bias"] = rng.normal(0, 0.3, h).astype(np.float32)
        else:
            w.update({"input_layernorm.weight": vector(), "hidden_norm.weight": vector(), "norm.weight": vector()})
        self.w = {k: v.astype(np.float64) for k, v in w.items()}
        self.head = np.zeros((len(self.tokens), h))

    def states(self, ids):
        """Of the model, as the layer takes them."""
        into, last = self.model.states(ids)
        return last if self.kind == 1 else np.concatenate([into[i] for i in self.layers], -1) @ self.w["fc.weight"].T

    def layer(self, ids, states, positions=None, see=None):
        """ids [n]: of the tokens behind the states. What goes on, and what the LM head reads."""
        w, eps, n = self.w, self.model.c["rms_norm_eps"], len(ids)
        positions = np.arange(n) if positions is None else positions
        embed = self.model.w["model.embed_tokens.weight"][ids]
        if self.kind == 1:
            x = np.concatenate([embed, states], -1) @ w["fc.weight"].T + w["fc.bias"]
            y = x
        else:
            x = states
            y = np.concatenate([rms(embed, w["input_layernorm.weight"], eps), rms(states, w["hidden_norm.weight"], eps)], -1)
        q, k, v = (y @ w[f"self_attn.{a}_proj.weight"].T for a in "qkv")
        x = x + attention(q, k, v, positions, self.model.c, causal(n) if see is None else see) @ w["self_attn.o_proj.weight"].T
        x = x + mlp(rms(x, w["post_attention_layernorm.weight"], eps), w, "")
        return x, x if self.kind == 1 else rms(x, w["norm.weight"], eps)

    def outputs(self, text, n_ahead):
        """What the LM head reads for the guess of a token behind `text`, and of those behind it where all before are right."""
        known, out = text[:len(text) - n_ahead], []
        states = self.states(known[:-1])
        for i in range(n_ahead + 1):
            x, y = self.layer(text[1:len(known) + i], states)
            states = np.concatenate([states, x[-1:]])
            out.append(y[-1])
        return out

    def fit(self, text, n_prompt, n_ahead):
        """The LM head's rows point to where most of the guesses along the text are."""
        place = {int(t): i for i, t in enumerate(self.tokens)}
        for at in range(n_prompt + 1, len(text) - n_ahead):
            for i, y in enumerate(self.outputs(text[:at + n_ahead], n_ahead)):
                if int(text[at + i]) in place and (at + i) % 5:
                    self.head[place[int(text[at + i])]] += y / np.linalg.norm(y)
        self.head = self.head.astype(np.float32).astype(np.float64)

    def draft(self, known, n):
        """A chain of the best tokens."""
        ids, states = list(known), self.states(known[:-1])
        for _ in range(n):
            x, y = self.layer(ids[1:], states)
            states = np.concatenate([states, x[-1:]])
            ids.append(int(self.tokens[(y[-1] @ self.head.T).argmax()]))
        return ids[len(known):]

    def tree(self, known, n, shape):
        """Nodes (token, parent, depth) of a draft; shape: {"top_k", "depth"}, or {"choices"}, paths of ranks, shorter ones first."""
        choices = [tuple(c) for c in shape["choices"]][:n] if "choices" in shape else None
        n_best = shape.get("top_k") or max(max(c) for c in shape["choices"]) + 1
        depth = shape.get("depth") or max(len(c) for c in shape["choices"])
        ids, states = list(known[1:]), self.states(known[:-1])
        first, y = self.layer(ids, states)
        found = []  # (minus how likely, number, token, number of the parent or -1, path of ranks)

        def add(parent, row):
            logits = row @ self.head.T
            scores = logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())
            for rank, i in enumerate(np.argsort(-scores, kind="stable")[:n_best]):
                above, path = (found[parent][0], found[parent][4]) if parent >= 0 else (0, ())
                found.append((above - scores[i], len(found), int(self.tokens[i]), parent, (*path, rank)))
        add(-1, y[-1])
        given, outputs = [], None
        for level in range(1, depth):
            if choices:
                new = [f for c in choices for f in found if f[4] == c and len(c) == level and any(d[:-1] == c for d in choices)]
            else:
                left = n - len(given)
                k = min(left, max(left // (depth - level), 1), n_best)
                new = sorted(f for f in found if len(f[4]) == level)[:k]
            if not new or n < 2:
                break
            below = [outputs[[g[1] for g in given].index(f[3])] if f[3] >= 0 else first[-1] for f in [*given, *new]]
            given += new
            numbers, m = [g[1] for g in given], len(ids)
            see = causal(m + len(given))
            see[m:, m:] = [[_under(found, a, b) for b in numbers] for a in numbers]
            x, y = self.layer(ids + [g[2] for g in given], np.concatenate([states, below]),
                              np.concatenate([np.arange(m), [m - 1 + len(g[4]) for g in given]]), see)
            outputs = x[m:]
            for i in range(len(given) - len(new), len(given)):
                add(numbers[i], y[m + i])
        best = [next(f for f in found if f[4] == c) for c in choices] if choices else sorted(found)[:n]
        place = {f[1]: i for i, f in enumerate(best)}
        return [(f[2], place.get(f[3], -1), len(f[4])) for f in best]

    def simulate(self, text, n_prompt, n_draft, shape=None):
        """Drafted tokens along a greedy text, and how many of them hold. shape: of a tree, or None."""
        at, drafted, held = n_prompt + 1, 0, 0
        while at < len(text):
            n = max(min(n_draft, len(text) - at - 1), 0)
            if shape and n > 0:
                nodes = self.tree(text[:at], n, shape)
            else:
                nodes = [(g, i - 1, i + 1) for i, g in enumerate(self.draft(text[:at], n))]
            right, node = 0, -1
            while right < n and (node := next((i for i, x in enumerate(nodes) if x[:2] == (text[at + right], node)), None)) is not None:
                right += 1
            drafted, held, at = drafted + n, held + right, at + right + 1
        return drafted, held

    def write(self, folder, form="safetensors", layer="layers.0."):
        folder = pathlib.Path(folder)
        folder.mkdir(exist_ok=True)
        own = ("self_attn", "mlp", "post_attention", "input_layernorm", "hidden_norm")
        out = {(layer if k.startswith(own) else "") + k: v.astype(np.float32) for k, v in self.w.items()}
        out["lm_head.weight"] = self.head.astype(np.float32)
        config = {k: v for k, v in self.model.c.items() if k not in ("num_hidden_layers", "quantization_config")}
        config.update(num_hidden_layers=1, architectures=["LlamaForCausalLM" + ("Eagle3" if self.kind == 3 else "")])
        if self.kind == 3:
            config["draft_vocab_size"] = len(self.tokens)
            config["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": list(self.layers), "use_aux_hidden_state": True}
            out["d2t"] = (self.tokens - np.arange(len(self.tokens))).astype(np.int64)
        (folder / "config.json").write_text(json.dumps(config))
        hf_folder.write_weights(str(folder), out, "float32", form, 1, [])
        return folder
