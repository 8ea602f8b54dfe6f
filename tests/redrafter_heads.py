# SPDX-License-Identifier: Apache-2.0
"""A recurrent drafter for a Llama folder, in the published forms, and what it says: the paper's formulas in numpy.

Weights are random but for the LM head, which is fitted so that some of the guesses along one text are right. Source: Cheng et al.,
"Recurrent Drafter for Fast Speculative Decoding in Large Language Models", 2024.
"""
import json
import pathlib
import sys

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import eagle_heads  # noqa: E402
import hf_folder  # noqa: E402


def silu(x):
    return x / (1 + np.exp(-x))


class Drafter:
    """Of an eagle_heads.Llama. exit_dim 2 hidden_size: without a projection."""

    def __init__(self, model, exit_dim, n_layers=2, rnn=True, seed=1):
        rng = np.random.default_rng(seed)
        h = model.c["hidden_size"]

        def matrix(rows, cols, gain=1.0):
            return rng.normal(0, gain / np.sqrt(cols), (rows, cols)).astype(np.float32)
        w = {}
        if exit_dim != 2 * h:
            w |= {"input_proj.weight": matrix(exit_dim, 2 * h, 1.5), "input_proj.bias": rng.normal(0, 2, exit_dim).astype(np.float32)}
        for i in range(n_layers):
            w |= {f"lm_head.{i}.linear.weight": matrix(exit_dim, exit_dim, 2), f"lm_head.{i}.linear.bias": rng.normal(0, 4, exit_dim).astype(np.float32)}
        if rnn:
            w |= {"rnn_u.weight": matrix(h, h, 1.5), "rnn_u.bias": rng.normal(0, 3, h).astype(np.float32), "rnn_w.weight": matrix(h, h, 2)}
        self.model, self.exit_dim, self.n_layers, self.rnn = model, exit_dim, n_layers, rnn
        self.w = {k: v.astype(np.float64) for k, v in w.items()}
        self.head = np.zeros((model.c["vocab_size"], exit_dim))

    def recur(self, state, token):
        embedded = self.model.w["model.embed_tokens.weight"][token]
        if not self.rnn:
            return state + embedded
        return silu(self.w["rnn_w.weight"] @ embedded + self.w["rnn_u.weight"] @ state + self.w["rnn_u.bias"])

    def read(self, context, state):
        """What the LM head reads."""
        w, x = self.w, np.concatenate([context, state])
        if "input_proj.weight" in w:
            x = w["input_proj.weight"] @ x + w["input_proj.bias"]
        for i in range(self.n_layers):
            x = x + silu(w[f"lm_head.{i}.linear.weight"] @ x + w[f"lm_head.{i}.linear.bias"])
        return x

    def context(self, known):
        """The state of which the model chose the last known token."""
        return self.model.states(known)[1][-2]

    def fit(self, text, n_prompt, length):
        """The LM head finds most of the tokens along the text."""
        self.model.states(text)
        rows, tokens = [], []
        for at in range(n_prompt + 1, len(text) - length):
            context, state = self.context(text[:at]), np.zeros(self.model.c["hidden_size"])
            for i in range(length):
                state = self.recur(state, text[at - 1 + i])
                if (at + i) % 4:
                    rows.append(self.read(context, state))
                    tokens.append(text[at + i])
        x, want = np.array(rows), np.zeros((len(rows), len(self.head)))
        want[np.arange(len(rows)), tokens] = 8
        self.head = (np.linalg.solve(x.T @ x + 0.3 * np.eye(x.shape[1]), x.T @ want).T).astype(np.float32).astype(np.float64)

    def tree(self, known, n, n_beams, length):
        """Nodes (token, parent, depth) of a draft: the likeliest of all that a beam search has found."""
        context = self.context(known)
        found = []  # (minus how likely, number, token, number of the parent or -1, depth, state of the beam that named it)

        def add(parent, state):
            logits = self.head @ self.read(context, state)
            scores = logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())
            above, depth = (found[parent][0], found[parent][4]) if parent >= 0 else (0, 0)
            for i in np.argsort(-scores, kind="stable")[:n_beams]:
                found.append((above - scores[i], len(found), int(i), parent, depth + 1, state))
        add(-1, self.recur(np.zeros(len(context)), known[-1]))
        for depth in range(1, min(length, n)):
            for beam in sorted((f for f in found if f[4] == depth), key=lambda f: f[:2])[:min(n_beams, n)]:
                add(beam[1], self.recur(beam[5], beam[2]))
        best = sorted(found, key=lambda f: f[:2])[:n]
        place = {f[1]: i for i, f in enumerate(best)}
        return [(f[2], place.get(f[3], -1), f[4]) for f in best]

    def simulate(self, text, n_prompt, n_draft, n_beams, length):
        """Drafted tokens along a greedy text, and how many of them hold."""
        at, drafted, held = n_prompt + 1, 0, 0
        while at < len(text):
            n = max(min(n_draft, len(text) - at - 1), 0)
            nodes = self.tree(text[:at], n, n_beams, length) if n > 0 else []
            right, node = 0, -1
            while right < n and (node := next((i for i, x in enumerate(nodes) if x[:2] == (text[at + right], node)), None)) is not None:
                right += 1
            drafted, held, at = drafted + n, held + right, at + right + 1
        return drafted, held

    def tensors(self):
        out = {k: v.astype(np.float32) for k, v in self.w.items()}
        return out | {f"lm_head.{self.n_layers}.weight": self.head.astype(np.float32)}

    def write(self, folder, form="safetensors", plural=False):
        folder = pathlib.Path(folder)
        folder.mkdir(exist_ok=True)
        c = self.model.c
        config = {"model_type": "recurrent_drafting_drafter", "vocab_size": c["vocab_size"], "hidden_size": c["hidden_size"],
                  "exit_dim": self.exit_dim, "num_draft_layers": self.n_layers, "rnn": self.rnn}
        (folder / "config.json").write_text(json.dumps(config))
        named = {k.replace("lm_head.", "lm_heads.").replace("input_proj.", "input_projs.") if plural else k: v for k, v in self.tensors().items()}
        hf_folder.write_weights(str(folder), named, "float32", form, 1, [])
        return folder

    def in_checkpoint(self, n_beams, length):
        """Names and fields in a checkpoint of TensorRT-LLM."""
        def name(k):
            if k == f"lm_head.{self.n_layers}.weight":
                return "drafter.lm_head.weight"
            return "drafter." + k.replace("lm_head.", "layers.")
        fields = {"redrafter_num_layers": self.n_layers, "redrafter_hidden_size": self.model.c["hidden_size"], "redrafter_exit_dim": self.exit_dim,
                  "redrafter_is_rnn": self.rnn, "redrafter_num_beams": n_beams, "redrafter_draft_len_per_beam": length,
                  "redrafter_greedy_search": True}
        return {name(k): v for k, v in self.tensors().items()}, fields


__all__ = ["Drafter", "eagle_heads"]
