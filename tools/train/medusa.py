#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains Medusa heads: small layers on the model's last state, one for each token behind the next, with one LM head for all of them that knows the
most frequent tokens (Cai et al., "Medusa", 2024). The folder has the names of vLLM: blocks, lm_heads.0, token_map."""
import torch
from common import Teacher, Text, anchors, cross_entropy, evaluate, options, train, write


class Heads(torch.nn.Module):
    def __init__(self, teacher, n, tokens):
        super().__init__()
        hidden = teacher.config.hidden_size
        self.linear = torch.nn.ModuleList(torch.nn.Linear(hidden, hidden) for _ in range(n))
        for layer in self.linear:
            torch.nn.init.zeros_(layer.weight)
            torch.nn.init.zeros_(layer.bias)
        self.lm_head = torch.nn.Parameter(teacher.head[tokens].float().clone())

    def forward(self, x, head):
        return (x + torch.nn.functional.silu(self.linear[head](x))) @ self.lm_head.T


def main():
    args = options(__doc__, rows=64, anchors=16384, lr=2e-3, heads=4, vocab=4096)
    teacher, text = Teacher(args.model, args.device), Text(args.text)
    tokens = text.common_tokens(args.vocab).to(args.device)
    net = Heads(teacher, args.heads, tokens).to(args.device)

    def loss_of(ids, first, end, generator):
        states, _ = teacher.states(ids)
        row, pos = anchors(ids, first, end, args.heads + 1, args.anchors, generator)
        x = states[row, pos].float()
        return sum(0.8 ** h * cross_entropy(net(x, h), teacher.probabilities(states[row, pos + h + 1], tokens)) for h in range(args.heads))

    def guesses(ids, row, pos):
        x = teacher.states(ids)[0][row, pos].float()
        return torch.stack([tokens[net(x, h).argmax(-1)] for h in range(args.heads)])

    train(net, loss_of, text, args)
    result = evaluate(guesses, args.heads, text, args)
    out = {"lm_heads.0.weight": net.lm_head, "token_map": tokens.to(torch.int64)}
    for h, layer in enumerate(net.linear):
        out[f"blocks.{h}.layers.0.weight"], out[f"blocks.{h}.layers.0.bias"] = layer.weight, layer.bias
    write(args.out, out, {"architectures": ["MedusaModel"], "model_type": "medusa", "hidden_size": teacher.config.hidden_size,
                          "vocab_size": teacher.config.vocab_size, "truncated_vocab_size": len(tokens), "num_heads": args.heads, "num_hidden_layers": 1,
                          "medusa_fc_bias": True, "original_lm_head": True, "trained": result}, args.dtype)


if __name__ == "__main__":
    main()
