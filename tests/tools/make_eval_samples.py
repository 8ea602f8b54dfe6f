# SPDX-License-Identifier: Apache-2.0
"""Writes eval_samples.jsonl: questions as lm-evaluation-harness 0.4 logs them, for the tiny llama3 model, with the log likelihoods
that transformers gives in float32 by the harness's definition (needs torch and transformers).

    python tests/tools/make_eval_samples.py
"""
import json
import pathlib
import sys
import tempfile

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE.parents[0] / "tinymodel"))
import make_model  # noqa: E402

QUESTIONS = [
    ("The capital of France is", [" Paris", " Rome", " a long river in the north"], 0),
    ("A context with a space at its end ", ["one", "two", "three words here"], 1),
    ("Line one.\nLine two.\n\n", ["first", " second\n"], 1),
    ("Ünïcödé 東京", [" 大阪", " ōsaka", "."], 2),
    ("Question: 2 + 2?\nAnswer:", [" 4", " 5", " 22", " four"], 3),
    ("", [" nothing before", " it"], 0),
    ("words " * 600 + "end", [" so", " long"], 1),  # longer than the model takes
    ("One continuation alone", [" and no other"], None),
]


def log_likelihood(model, tokenizer, context, text, most):
    n_spaces = len(context) - len(context.rstrip())
    if n_spaces:
        context, text = context[:-n_spaces], context[-n_spaces:] + text
    whole = tokenizer(context + text)["input_ids"]
    n = len(tokenizer(context)["input_ids"])
    if n == 0:
        whole, n = [tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.eos_token_id, *whole], 1
    last = whole[n:]
    ids = whole[-most:]
    logits = torch.log_softmax(model(torch.tensor([ids])).logits[0].double(), -1)
    rows = logits[len(ids) - len(last) - 1:-1]
    return rows.gather(1, torch.tensor(last)[:, None]).sum().item(), bool((rows.argmax(-1) == torch.tensor(last)).all())


def main():
    with tempfile.TemporaryDirectory() as folder, torch.no_grad(), (HERE / "eval_samples.jsonl").open("w") as out:
        make_model.write_folder("llama3", folder)
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        tokenizer = AutoTokenizer.from_pretrained(folder)
        for i, (context, answers, target) in enumerate(QUESTIONS):
            told = [log_likelihood(model, tokenizer, context, a, model.config.max_position_embeddings) for a in answers]
            print(json.dumps({
                "doc_id": i, "target": target if target is not None else answers[0],
                "arguments": {f"gen_args_{k}": {"arg_0": context, "arg_1": a} for k, a in enumerate(answers)},
                "resps": [[[round(p, 5), greedy]] for p, greedy in told]}, ensure_ascii=False), file=out)


main()
