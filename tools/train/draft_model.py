#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains a small draft model with the vocabulary of a large one: a Llama of few layers, whose embeddings begin as the main directions of the
model's own (Hinton et al., "Distilling the Knowledge in a Neural Network", 2015). The result is a Hugging Face folder."""
import shutil

import torch
from common import Teacher, Text, anchors, cross_entropy, evaluate, options, train, write
from transformers import LlamaConfig, LlamaForCausalLM

DEPTH = 5  # of the drafts that are counted


def make_net(teacher, args):
    c = teacher.config
    config = LlamaConfig(hidden_size=args.hidden, intermediate_size=3 * args.hidden, num_hidden_layers=args.layers, num_attention_heads=args.hidden // 32,
                         num_key_value_heads=args.hidden // 32, head_dim=32, vocab_size=c.vocab_size, max_position_embeddings=c.max_position_embeddings,
                         rms_norm_eps=1e-5, tie_word_embeddings=True, bos_token_id=c.bos_token_id, eos_token_id=c.eos_token_id, pad_token_id=c.pad_token_id)
    net = LlamaForCausalLM(config)
    basis = torch.linalg.svd(teacher.head.float(), full_matrices=False).Vh[:args.hidden]
    with torch.no_grad():
        net.model.embed_tokens.weight.copy_(teacher.head.float() @ basis.T)
    return net.to(teacher.device)


def main():
    args = options(__doc__, rows=64, anchors=6144, lr=2e-3, hidden=128, layers=2)
    teacher, text = Teacher(args.model, args.device), Text(args.text)
    net = make_net(teacher, args)

    def loss_of(ids, first, end, generator):
        states, _ = teacher.states(ids)
        row, pos = anchors(ids, first, end, 1, args.anchors, generator)
        x = net.model(ids, use_cache=False).last_hidden_state[row, pos]
        return cross_entropy(net.lm_head(x), teacher.probabilities(states[row, pos]))

    def guesses(ids, row, pos):
        x, best = net.model(ids, use_cache=False).last_hidden_state, []
        for one in x:
            best.append(net.lm_head(one).argmax(-1))
        best = torch.stack(best)
        return torch.stack([best[row, pos + 1 + i] for i in range(DEPTH)])

    train(net, loss_of, text, args)
    result = evaluate(guesses, DEPTH, text, args)
    config = net.config.to_dict() | {"architectures": ["LlamaForCausalLM"], "trained": result}
    write(args.out, {k: v for k, v in net.state_dict().items() if k != "lm_head.weight"}, config, "float16")
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "special_tokens_map.json", "generation_config.json"):
        if (args.model / name).exists():
            shutil.copy(args.model / name, args.out)


if __name__ == "__main__":
    main()
