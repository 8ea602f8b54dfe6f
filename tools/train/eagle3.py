#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains EAGLE-3 heads: one decoder layer that goes on from the states of three layers of the model, with the most frequent tokens as its
vocabulary (Li et al., "EAGLE-3", 2025). In training it reads its own states as it will when it guesses several tokens."""
import torch
from common import Teacher, Text, anchors, cross_entropy, evaluate, options, train, write
from torch.nn.functional import silu


def rotate(x, position, theta):
    """x: [rows, tokens, heads, head_dim]; position: [tokens]."""
    half = x.shape[-1] // 2
    angle = position.float()[:, None] / theta ** (torch.arange(half, device=x.device) / half)
    cos, sin = angle.cos()[None, :, None].to(x.dtype), angle.sin()[None, :, None].to(x.dtype)
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class Layer(torch.nn.Module):
    def __init__(self, teacher, tokens, inter):
        super().__init__()
        c = teacher.config
        self.hidden, self.n_heads, self.n_kv = c.hidden_size, c.num_attention_heads, c.num_key_value_heads
        self.head_dim = getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads
        self.theta, self.eps = c.rope_parameters["rope_theta"], c.rms_norm_eps

        def linear(rows, cols):
            layer = torch.nn.Linear(cols, rows, bias=False)
            torch.nn.init.normal_(layer.weight, std=0.3 / cols ** 0.5)
            return layer

        def norm():
            return torch.nn.RMSNorm(self.hidden, eps=self.eps)
        q, kv = self.n_heads * self.head_dim, self.n_kv * self.head_dim
        self.fc = linear(self.hidden, 3 * self.hidden)
        self.q, self.k, self.v, self.o = linear(q, 2 * self.hidden), linear(kv, 2 * self.hidden), linear(kv, 2 * self.hidden), linear(self.hidden, q)
        self.gate, self.up, self.down = linear(inter, self.hidden), linear(inter, self.hidden), linear(self.hidden, inter)
        self.embed_norm, self.state_norm, self.mlp_norm, self.final_norm = norm(), norm(), norm(), norm()
        self.lm_head = torch.nn.Parameter(teacher.head[tokens].float().clone())
        self.final_norm.weight.data.copy_(teacher.net.model.norm.weight.float())

    @torch.no_grad()
    def begin(self, taps):
        """The fused state begins as the highest layer's, of which the model's LM head knows much, in numbers of size 1."""
        self.fc.weight[:, 2 * self.hidden:] += torch.eye(self.hidden, device=self.fc.weight.device)
        for i, tap in enumerate(taps):
            self.fc.weight[:, i * self.hidden:(i + 1) * self.hidden] /= tap[:, 1:].float().std()

    def attention(self, x, depth, past):
        """A draft that begins at place p has at depth d the place p + d: it sees the text up to p and its own places. past: keys and values
        of each depth."""
        rows, n = x.shape[:2]
        at = torch.arange(n, device=x.device) + depth
        q = rotate(self.q(x).view(rows, n, self.n_heads, self.head_dim), at, self.theta)
        k = rotate(self.k(x).view(rows, n, self.n_kv, self.head_dim), at, self.theta)
        group = self.n_heads // self.n_kv
        past.append((k.repeat_interleave(group, 2), self.v(x).view(rows, n, self.n_kv, self.head_dim).repeat_interleave(group, 2)))
        mask = torch.ones(n, n, dtype=torch.bool, device=x.device).tril()
        scores = torch.einsum("rthd,rshd->rhts", q, past[0][0]).float().masked_fill(~mask, float("-inf"))
        own = [(q * k).sum(-1).float().transpose(1, 2)[..., None] for k, _ in past[1:]]
        p = (torch.cat([scores, *own], -1) / self.head_dim ** 0.5).softmax(-1).to(x.dtype)
        out = torch.einsum("rhts,rshd->rthd", p[..., :n], past[0][1])
        for i, (_, v) in enumerate(past[1:]):
            out = out + p[..., n + i].transpose(1, 2)[..., None] * v
        return self.o(out.reshape(rows, n, -1))

    def forward(self, state, embedding, depth, past):
        """The state behind one token more, [rows, tokens, hidden]."""
        x = state + self.attention(torch.cat([self.embed_norm(embedding), self.state_norm(state)], -1), depth, past)
        y = self.mlp_norm(x)
        return x + self.down(silu(self.gate(y)) * self.up(y))

    def logits(self, state):
        return self.final_norm(state) @ self.lm_head.T


def main():
    args = options(__doc__, rows=24, anchors=8192, lr=1e-3, vocab=3072, inter=768, depth=4)
    teacher, text = Teacher(args.model, args.device), Text(args.text)
    n_layers = teacher.config.num_hidden_layers
    layers = [min(2, n_layers - 1), n_layers // 2, max(n_layers - 3, 0)]
    tokens = text.common_tokens(args.vocab).to(args.device)
    net = Layer(teacher, tokens, args.inter).to(args.device)
    net.begin(teacher.states(text.rows(slice(0, 8), args.device)[0], layers)[1])

    def unroll(taps, ids):
        """Place p reads the state at p and token p + 1: states of which token p + 2 is guessed, then p + 3, ..."""
        state, past = net.fc(torch.cat(taps, -1).float()), []
        for depth in range(args.depth):
            following = torch.nn.functional.pad(ids[:, 1 + depth:], (0, 1 + depth))
            state = net(state, teacher.embed[following].float(), depth, past)
            yield state

    def loss_of(ids, first, end, generator):
        states, taps = teacher.states(ids, layers)
        row, pos = anchors(ids, first, end, args.depth + 1, args.anchors, generator)
        return sum(0.8 ** d * cross_entropy(net.logits(state[row, pos]), teacher.probabilities(states[row, pos + 1 + d], tokens))
                   for d, state in enumerate(unroll(taps, ids)))

    def guesses(ids, row, pos):
        _, taps = teacher.states(ids, layers)
        return torch.stack([tokens[net.logits(state[row, pos]).argmax(-1)] for state in unroll(taps, ids)])

    train(net, loss_of, text, args)
    result = evaluate(guesses, args.depth, text, args)
    c = teacher.config
    names = {"fc": "fc", "q": "midlayer.self_attn.q_proj", "k": "midlayer.self_attn.k_proj", "v": "midlayer.self_attn.v_proj",
             "o": "midlayer.self_attn.o_proj", "gate": "midlayer.mlp.gate_proj", "up": "midlayer.mlp.up_proj", "down": "midlayer.mlp.down_proj",
             "embed_norm": "midlayer.input_layernorm", "state_norm": "midlayer.hidden_norm", "mlp_norm": "midlayer.post_attention_layernorm",
             "final_norm": "norm"}
    out = {f"{name}.weight": getattr(net, part).weight for part, name in names.items()}
    out["lm_head.weight"] = net.lm_head
    out["d2t"] = (tokens - torch.arange(len(tokens), device=tokens.device)).to(torch.int64)
    write(args.out, out, {"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "hidden_size": net.hidden, "intermediate_size": args.inter,
                          "num_hidden_layers": 1, "num_attention_heads": net.n_heads, "num_key_value_heads": net.n_kv, "head_dim": net.head_dim,
                          "hidden_act": "silu", "rms_norm_eps": net.eps, "rope_theta": net.theta, "max_position_embeddings": c.max_position_embeddings,
                          "vocab_size": c.vocab_size, "draft_vocab_size": len(tokens),
                          "eagle_config": {"eagle_aux_hidden_state_layer_ids": layers, "use_aux_hidden_state": True}, "trained": result}, args.dtype)


if __name__ == "__main__":
    main()
