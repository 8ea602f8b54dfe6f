#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains a ReDrafter: a recurrent network that goes on from the model's last state (Cheng et al., "Recurrent Drafter", 2024). Its LM head is narrow
(--exit numbers), so that the file stays small."""
import torch
from common import Teacher, Text, anchors, cross_entropy, evaluate, options, train, write


class Drafter(torch.nn.Module):
    """s = silu(W E + U s + b); x = P [c ; s] + p; x = x + silu(L x + l) for each layer; logits = H x."""

    def __init__(self, teacher, exit_dim, n_layers):
        super().__init__()
        hidden = teacher.config.hidden_size
        self.rnn_u = torch.nn.Linear(hidden, hidden)
        self.rnn_w = torch.nn.Linear(hidden, hidden, bias=False)
        self.proj = torch.nn.Linear(2 * hidden, exit_dim)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(exit_dim, exit_dim) for _ in range(n_layers))
        basis = torch.linalg.svd(teacher.head.float(), full_matrices=False).Vh[:exit_dim]  # the model's LM head in so many numbers
        self.lm_head = torch.nn.Parameter(teacher.head.float() @ basis.T)
        with torch.no_grad():
            torch.nn.init.zeros_(self.proj.bias)
            self.proj.weight[:, :hidden] = basis
        # embeddings are small numbers
        self.scale = 1 / float(teacher.embed.float().std())

    def start(self, row_count, device):
        return torch.zeros(row_count, self.rnn_u.in_features, device=device)

    def step(self, state, embedding):
        return torch.nn.functional.silu(self.rnn_w(embedding * self.scale) + self.rnn_u(state))

    def forward(self, c, state):
        x = self.proj(torch.cat([c, state], -1))
        for layer in self.layers:
            x = x + torch.nn.functional.silu(layer(x))
        return x @ self.lm_head.T


def main():
    args = options(__doc__, rows=32, anchors=1536, lr=1e-3, exit=64, layers=2, depth=5)
    teacher, text = Teacher(args.model, args.device), Text(args.text)
    net = Drafter(teacher, args.exit, args.layers).to(args.device)

    def unroll(states, ids, row, pos):
        """Logits of positions pos + 2, pos + 3, ..."""
        c, s = states[row, pos].float(), net.start(len(row), ids.device)
        for i in range(args.depth):
            s = net.step(s, teacher.embed[ids[row, pos + 1 + i]].float())
            yield net(c, s)

    def loss_of(ids, first, end, generator):
        states, _ = teacher.states(ids)
        row, pos = anchors(ids, first, end, args.depth + 1, args.anchors, generator)
        return sum(0.9 ** i * cross_entropy(logits, teacher.probabilities(states[row, pos + 1 + i]))
                   for i, logits in enumerate(unroll(states, ids, row, pos)))

    def guesses(ids, row, pos):
        states, parts = teacher.states(ids)[0], []
        for at in range(0, len(row), args.anchors):
            some = slice(at, at + args.anchors)
            parts.append(torch.stack([x.argmax(-1) for x in unroll(states, ids, row[some], pos[some])]))
        return torch.cat(parts, 1)

    train(net, loss_of, text, args)
    result = evaluate(guesses, args.depth, text, args)
    out = {"input_proj.weight": net.proj.weight, "input_proj.bias": net.proj.bias, "rnn_u.weight": net.rnn_u.weight, "rnn_u.bias": net.rnn_u.bias,
           "rnn_w.weight": net.rnn_w.weight * net.scale, f"lm_head.{args.layers}.weight": net.lm_head}
    for i, layer in enumerate(net.layers):
        out[f"lm_head.{i}.linear.weight"], out[f"lm_head.{i}.linear.bias"] = layer.weight, layer.bias
    write(args.out, out, {"model_type": "recurrent_drafting_drafter", "hidden_size": teacher.config.hidden_size, "vocab_size": teacher.config.vocab_size,
                          "exit_dim": args.exit, "num_draft_layers": args.layers, "rnn": True, "trained": result}, args.dtype)


if __name__ == "__main__":
    main()
