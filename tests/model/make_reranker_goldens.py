#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What decoders say as rerankers, classifiers and embedders, by transformers in float32: reranker_scores.json.

How the committed file was made (torch and transformers of the versions that it names):

    python tests/model/make_reranker_goldens.py
"""
import json
import os
import sys
import tempfile

import torch
import transformers

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "tinymodel"))
import encoders  # noqa: E402
import rerankers  # noqa: E402

PAIRS = [(a, b) for a in encoders.TEXTS[:2] for b in encoders.TEXTS]


def qwen_prompt(tokenizer, query, document):
    """As the card of Qwen3-Reranker puts it together."""
    before = ('<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct '
              'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n')
    behind = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    task = "Given a web search query, retrieve relevant passages that answer the query"
    parts = before, f"<Instruct>: {task}\n<Query>: {query}\n<Document>: {document}", behind
    return [i for p in parts for i in tokenizer.encode(p, add_special_tokens=False)]


def load(folder, kind):
    model, info = kind.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
    wrong = {k: v for k, v in info.items() if v and not all("lm_head" in str(x) for x in v)}
    if wrong:
        raise RuntimeError(f"{folder}: {wrong}")
    return model.eval(), transformers.PreTrainedTokenizerFast.from_pretrained(folder)


def golden(kind):
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        rerankers.write_folder(kind, folder)
        if kind in ("score", "topics"):
            model, tokenizer = load(folder, transformers.AutoModelForSequenceClassification)
            run = lambda ids: model(torch.tensor([ids])).logits[0].double().tolist()  # noqa: E731
            return {"single": [run(tokenizer.encode(t)) for t in encoders.TEXTS],
                    "pairs": [run(tokenizer.encode(a, b)) for a, b in PAIRS]}
        if kind == "embed":
            model, tokenizer = load(folder, transformers.AutoModel)
            return {"mean": [model(torch.tensor([tokenizer.encode(t)])).last_hidden_state[0].mean(0).double().tolist()
                             for t in encoders.TEXTS]}
        model, tokenizer = load(folder, transformers.AutoModelForCausalLM)
        yes, no = (rerankers.token_id(folder, t) for t in (rerankers.YES, rerankers.NO))

        def prompt(a, b):
            if kind == "original":
                return qwen_prompt(tokenizer, a, b)
            return tokenizer.apply_chat_template([{"role": "query", "content": a}, {"role": "document", "content": b}],
                                                 return_dict=False)
        out = []
        for a, b in PAIRS:
            logits = model(torch.tensor([prompt(a, b)])).logits[0, -1].double()
            out.append([float(logits[yes] - logits[no])])
        return {"pairs": out}


def main():
    out = {"made_by": f"torch {torch.__version__}, transformers {transformers.__version__}",
           "rerankers": {kind: golden(kind) for kind in rerankers.KINDS}}
    with open(os.path.join(HERE, "reranker_scores.json"), "w", encoding="utf-8") as f:
        f.write(json.dumps(out, indent=0) + "\n")


if __name__ == "__main__":
    main()
