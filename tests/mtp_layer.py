# SPDX-License-Identifier: Apache-2.0
"""DeepSeek-V3 and GLM-4.5 with an MTP layer behind their last, and what it guesses: the formulas in numpy.

Weights are random but for the product of embedding and state, which is fitted so that some of the guesses along one text are right.
Source: DeepSeek-AI, "DeepSeek-V3 Technical Report", 2024, section 2.2.
"""
import json
import pathlib

import numpy as np

import eagle_heads
import gguf_file
import hf_folder
import tokenizer
from eagle_heads import causal, rms, softmax


def silu(x):
    return x / (1 + np.exp(-x))


def turned(x, positions, base, pairs):
    """x [n, heads, dim] rotated, by pairs of neighbours or of halves."""
    dim = x.shape[-1]
    angle = np.asarray(positions)[:, None] * (base ** (-np.arange(0, dim, 2) / dim))[None]
    cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
    a, b = (x[..., ::2], x[..., 1::2]) if pairs else np.split(x, 2, -1)
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


def heads_see(q, k, v, scale, see):
    p = softmax(np.where(see[None], np.einsum("qhd,khd->hqk", q, k) * scale, -np.inf))
    return np.einsum("hqk,khd->qhd", p, v).reshape(len(q), -1)


class Net(eagle_heads.Llama):
    """A model of either family; the layer behind its last is the MTP layer."""

    def __init__(self, config, weights):
        super().__init__(config, weights)
        self.is_latent = config["model_type"] == "deepseek_v3"
        self.n = config["num_hidden_layers"]

    def latent(self, x, p, positions, see):
        c, w = self.c, self.w
        heads, nope, rope, v_dim = c["num_attention_heads"], c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["v_head_dim"]
        q = rms(x @ w[p + "q_a_proj.weight"].T, w[p + "q_a_layernorm.weight"], 1e-6) @ w[p + "q_b_proj.weight"].T
        q = q.reshape(len(x), heads, nope + rope)
        kv = x @ w[p + "kv_a_proj_with_mqa.weight"].T
        k_rope = turned(kv[:, None, c["kv_lora_rank"]:], positions, c["rope_theta"], True)
        kv = rms(kv[:, :c["kv_lora_rank"]], w[p + "kv_a_layernorm.weight"], 1e-6) @ w[p + "kv_b_proj.weight"].T
        kv = kv.reshape(len(x), heads, nope + v_dim)
        q = np.concatenate([q[..., :nope], turned(q[..., nope:], positions, c["rope_theta"], True)], -1)
        k = np.concatenate([kv[..., :nope], np.repeat(k_rope, heads, 1)], -1)
        return heads_see(q, k, kv[..., nope:], (nope + rope) ** -0.5, see) @ w[p + "o_proj.weight"].T

    def grouped(self, x, p, positions, see):
        c, w, hd = self.c, self.w, self.c["head_dim"]
        part = int(hd * c["partial_rotary_factor"])
        q, k, v = ((x @ w[f"{p}{a}_proj.weight"].T + w[f"{p}{a}_proj.bias"]).reshape(len(x), -1, hd) for a in "qkv")

        def placed(x, name):
            x = rms(x, w[f"{p}{name}_norm.weight"], c["rms_norm_eps"])
            return np.concatenate([turned(x[..., :part], positions, c["rope_theta"], False), x[..., part:]], -1)
        times = q.shape[1] // k.shape[1]
        k, v = np.repeat(placed(k, "k"), times, 1), np.repeat(v, times, 1)
        return heads_see(placed(q, "q"), k, v, hd ** -0.5, see) @ w[p + "o_proj.weight"].T

    def gated(self, x, p):
        w = self.w
        return (silu(x @ w[p + "gate_proj.weight"].T) * (x @ w[p + "up_proj.weight"].T)) @ w[p + "down_proj.weight"].T

    def experts(self, x, p):
        c, w, out = self.c, self.w, self.gated(x, p + "shared_experts.")
        scores = 1 / (1 + np.exp(-(x @ w[p + "gate.weight"].T)))
        ranked = scores + w[p + "gate.e_score_correction_bias"]
        for i, row in enumerate(ranked):
            groups = row.reshape(c["n_group"], -1)
            best = np.argsort(-np.sort(groups, 1)[:, -2:].sum(1))[:c["topk_group"]]
            row = np.where(np.isin(np.arange(len(row)) // groups.shape[1], best), row, -np.inf)
            chosen = np.argsort(-row)[:c["num_experts_per_tok"]]
            share = scores[i, chosen] / scores[i, chosen].sum() * c["routed_scaling_factor"]
            for e, s in zip(chosen, share):
                out[i] += s * self.gated(x[i:i + 1], f"{p}experts.{e}.")[0]
        return out

    def layer(self, x, i, positions, see):
        w, p, eps = self.w, f"model.layers.{i}.", self.c["rms_norm_eps"]
        attention = self.latent if self.is_latent else self.grouped
        x = x + attention(rms(x, w[p + "input_layernorm.weight"], eps), p + "self_attn.", positions, see)
        mlp = self.gated if i < self.c["first_k_dense_replace"] else self.experts
        return x + mlp(rms(x, w[p + "post_attention_layernorm.weight"], eps), p + "mlp.")

    def published(self):
        """With the embedding and the head that published files repeat for the layer."""
        p = f"model.layers.{self.n}."
        return {**self.w, p + "embed_tokens.weight": self.w["model.embed_tokens.weight"], p + "shared_head.head.weight": self.w["lm_head.weight"]}

    def compute(self, ids):
        x = self.w["model.embed_tokens.weight"][ids]
        for i in range(self.n):
            x = self.layer(x, i, np.arange(len(ids)), causal(len(ids)))
        return [], rms(x, self.w["model.norm.weight"], self.c["rms_norm_eps"])


class Layer(eagle_heads.Heads):
    """The MTP layer of a Net."""

    def __init__(self, model):
        self.model, self.kind, self.head = model, 1, model.head
        self.tokens, self.p = np.arange(model.c["vocab_size"]), f"model.layers.{model.n}."

    def inputs(self, ids, states):
        w, eps = self.model.w, self.model.c["rms_norm_eps"]
        return np.concatenate([rms(w["model.embed_tokens.weight"][ids], w[self.p + "enorm.weight"], eps),
                               rms(states, w[self.p + "hnorm.weight"], eps)], -1)

    def layer(self, ids, states, positions=None, see=None):
        w, n = self.model.w, len(ids)
        x = self.inputs(ids, states) @ w[self.p + "eh_proj.weight"].T
        x = self.model.layer(x, self.model.n, np.arange(n) if positions is None else positions, causal(n) if see is None else see)
        return x, rms(x, w[self.p + "shared_head.norm.weight"], self.model.c["rms_norm_eps"])

    def fit(self, text, n_prompt, n_ahead, gain=1.5):
        """The product of most places points to the token that follows, strongly enough to be seen behind the layer."""
        w, name = self.model.w, self.p + "eh_proj.weight"
        aim = self.head / np.linalg.norm(self.head, axis=1, keepdims=True) * np.sqrt(self.head.shape[1]) * gain
        for _ in range(3):
            rows, goals = [], []
            for at in range(n_prompt + 1, len(text) - n_ahead):
                states = self.states(text[:at - 1])
                for i in range(n_ahead + 1):
                    ids = text[1:at + i]
                    if (at + i) % 4:
                        rows.append(self.inputs(ids[-1:], states[-1:])[0])
                        goals.append(aim[text[at + i]])
                    states = np.concatenate([states, self.layer(ids, states)[0][-1:]])
            a, b = np.array(rows), np.array(goals)
            w[name] = np.linalg.solve(a.T @ a + 0.5 * np.eye(a.shape[1]), a.T @ b).T.astype(np.float32).astype(np.float64)


def make(source, folder, seed=5, net_of=Net):
    """A folder of a tiny model (tinymodel) becomes one whose last layer is an MTP layer; the model, and that layer."""
    source, folder = pathlib.Path(source), pathlib.Path(folder)
    config = json.loads((source / "config.json").read_text())
    config["num_hidden_layers"] -= 1
    config["num_nextn_predict_layers"] = 1
    config.setdefault("rope_theta", 10000.0)
    config.pop("rope_scaling", None)
    config.pop("rope_parameters", None)
    net, rng, h = net_of(config, eagle_heads.model_of(source).w), np.random.default_rng(seed), config["hidden_size"]
    p = f"model.layers.{net.n}."
    for name in ("enorm", "hnorm", "shared_head.norm"):
        net.w[p + name + ".weight"] = rng.normal(1.2, 0.4, h).astype(np.float32).astype(np.float64)
    net.w[p + "eh_proj.weight"] = rng.normal(0, 0.5 / np.sqrt(h), (h, 2 * h)).astype(np.float32).astype(np.float64)
    folder.mkdir()
    for file in source.iterdir():
        if file.suffix == ".json" and file.name != "config.json":
            (folder / file.name).write_bytes(file.read_bytes())
    (folder / "config.json").write_text(json.dumps(config))
    return net, Layer(net)


def write(net, folder):
    hf_folder.write_weights(str(folder), {k: v.astype(np.float32) for k, v in net.published().items()}, "float32", "safetensors", 1, [])


def write_gguf(net, spec, path):
    """As llama.cpp's writer: the layer is the last block."""
    p, at = f"model.layers.{net.n}.", f"blk.{net.n}.nextn."
    names = {"eh_proj": "eh_proj", "enorm": "enorm", "hnorm": "hnorm", "shared_head.norm": "shared_head_norm"}
    own = {f"{p}{k}.weight": f"{at}{v}.weight" for k, v in names.items()}
    keys, tensors = gguf_file.to_gguf(spec, {k: v.astype(np.float32) for k, v in net.w.items() if k not in own}, "f32")
    keys += [*tokenizer.gguf_keys(spec.config["vocab_size"], False), (f"{spec.gguf_arch}.nextn_predict_layers", "uint32", 1)]
    for name, gguf in own.items():
        x = np.ascontiguousarray(net.w[name], np.float32)
        tensors.append((gguf, "f32", x.shape, x.view(np.uint8).reshape(-1)))
    gguf_file.write(str(path), keys, tensors)
