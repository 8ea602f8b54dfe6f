# SPDX-License-Identifier: Apache-2.0
"""Qwen3-Next with its MTP layer, in the names of its files (mtp.*), and what the layer guesses: the formulas in numpy.

Three layers of the gated delta rule (Yang et al., "Gated Delta Networks", 2024), one of attention with gated results, experts with a shared one;
the MTP layer is of attention and experts. Norms multiply by 1 + w, but for the delta rule's.
"""
import numpy as np

import mtp_layer
from eagle_heads import rms, softmax
from mtp_layer import heads_see, silu, turned

NORMS = {"enorm": "pre_fc_norm_embedding", "hnorm": "pre_fc_norm_hidden", "shared_head.norm": "norm"}


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def unit(x):
    return x / np.sqrt((x * x).sum(-1, keepdims=True) + 1e-6)


class Net(mtp_layer.Net):
    def __init__(self, config, weights):
        super().__init__(config, weights)
        self.w = {k: 1 + v if k.endswith("norm.weight") and "linear_attn" not in k else v for k, v in self.w.items()}
        self.kinds = config["layer_types"] = config["layer_types"][:self.n]
        own, attention = f"model.layers.{self.n}.", f"model.layers.{self.kinds.index('full_attention')}.self_attn."
        self.w = {k: v for k, v in self.w.items() if not k.startswith(own + "linear_attn.")}
        for name in [k for k in self.w if k.startswith(attention)]:
            self.w[f"{own}self_attn.{name[len(attention):]}"] = np.roll(self.w[name], 1, -1)

    def delta(self, x, p):
        c, w, n = self.c, self.w, len(x)
        keys, values, dk, dv = (c["linear_" + k] for k in ("num_key_heads", "num_value_heads", "key_head_dim", "value_head_dim"))
        times = values // keys
        qkvz = (x @ w[p + "in_proj_qkvz.weight"].T).reshape(n, keys, -1)
        q, k, v, z = np.split(qkvz, [dk, 2 * dk, 2 * dk + times * dv], -1)
        b, a = (part.reshape(n, values) for part in np.split((x @ w[p + "in_proj_ba.weight"].T).reshape(n, keys, -1), 2, -1))
        mixed, taps = np.concatenate([part.reshape(n, -1) for part in (q, k, v)], -1), w[p + "conv1d.weight"][:, 0]
        padded = np.concatenate([np.zeros((taps.shape[1] - 1, mixed.shape[1])), mixed])
        mixed = silu(sum(padded[i:i + n] * taps[:, i] for i in range(taps.shape[1])))
        q, k, v = np.split(mixed, [keys * dk, 2 * keys * dk], -1)
        q, k = (np.repeat(unit(part.reshape(n, keys, dk)), times, 1) for part in (q, k))
        v, z, beta = v.reshape(n, values, dv), z.reshape(n, values, dv), sigmoid(b)
        decay = np.exp(-np.exp(w[p + "A_log"]) * np.log1p(np.exp(a + w[p + "dt_bias"])))
        state, out = np.zeros((values, dk, dv)), []
        for t in range(n):
            state = state * decay[t][:, None, None]
            state = state + k[t][..., None] * ((v[t] - np.einsum("hkv,hk->hv", state, k[t])) * beta[t][:, None])[:, None]
            out.append(np.einsum("hkv,hk->hv", state, q[t] / np.sqrt(dk)))
        out = rms(np.array(out), w[p + "norm.weight"], c["rms_norm_eps"]) * silu(z)
        return out.reshape(n, -1) @ w[p + "out_proj.weight"].T

    def attention(self, x, p, positions, see):
        c, w, hd = self.c, self.w, self.c["head_dim"]
        part = int(hd * c["partial_rotary_factor"])
        q, gate = np.split((x @ w[p + "q_proj.weight"].T).reshape(len(x), -1, 2 * hd), 2, -1)
        k, v = ((x @ w[f"{p}{a}_proj.weight"].T).reshape(len(x), -1, hd) for a in "kv")

        def placed(x, name):
            x = rms(x, w[f"{p}{name}_norm.weight"], c["rms_norm_eps"])
            return np.concatenate([turned(x[..., :part], positions, c["rope_theta"], False), x[..., part:]], -1)
        times = q.shape[1] // k.shape[1]
        k, v = np.repeat(placed(k, "k"), times, 1), np.repeat(v, times, 1)
        out = heads_see(placed(q, "q"), k, v, hd ** -0.5, see) * sigmoid(gate.reshape(len(x), -1))
        return out @ w[p + "o_proj.weight"].T

    def experts(self, x, p):
        c, w = self.c, self.w
        out = sigmoid(x @ w[p + "shared_expert_gate.weight"].T) * self.gated(x, p + "shared_expert.")
        scores = softmax(x @ w[p + "gate.weight"].T)
        for i, row in enumerate(scores):
            chosen = np.argsort(-row)[:c["num_experts_per_tok"]]
            for e in chosen:
                out[i] += row[e] / row[chosen].sum() * self.gated(x[i:i + 1], f"{p}experts.{e}.")[0]
        return out

    def layer(self, x, i, positions, see):
        w, p, eps = self.w, f"model.layers.{i}.", self.c["rms_norm_eps"]
        y = rms(x, w[p + "input_layernorm.weight"], eps)
        x = x + (self.delta(y, p + "linear_attn.") if i < self.n and self.kinds[i] == "linear_attention" else
                 self.attention(y, p + "self_attn.", positions, see))
        return x + self.experts(rms(x, w[p + "post_attention_layernorm.weight"], eps), p + "mlp.")

    def published(self):
        """Weights in the names and forms of the files: those of the MTP layer lie apart."""
        out, p = {}, f"model.layers.{self.n}."
        for name, x in self.w.items():
            x = x - 1 if name.endswith("norm.weight") and "linear_attn" not in name else x
            if name.startswith(p):
                rest = name[len(p):].removesuffix(".weight")
                name = f"mtp.{NORMS.get(rest, 'fc')}.weight" if rest in NORMS or rest == "eh_proj" else f"mtp.layers.0.{name[len(p):]}"
            out[name] = x
        return out
