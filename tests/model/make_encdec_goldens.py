#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Texts of the small encoder-decoder models by transformers in float32: encdec_texts.json.

How the committed file was made (torch, transformers and numpy of the versions that it names):

    python tests/model/make_encdec_goldens.py

For each prompt: the greedy continuation with the log probability of each token and the margin to the second best, from
the start token and from a longer beginning, the latter also with states of the encoder that are seen one after the other (masked) and the
former with some that are never seen (hidden), and the beams' best text.
"""
import json
import os
import sys
import tempfile

import torch
import transformers

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "tinymodel"))
import encdec  # noqa: E402

N_GREEDY = 40


def five(x):
    return round(float(x), 5)


@torch.no_grad()
def greedy(model, ids, begin, banned, mask=None):
    """mask: rows of what each position of the text sees of the encoder's states; those behind the last are as it. FSMT hides what
    comes behind a token where it is given the input, too."""
    out = {"tokens": [], "logprobs": [], "margins": []}
    text, encoded = list(begin), model.get_encoder()(torch.tensor([ids]))
    for _ in range(N_GREEDY):
        more = {"input_ids": torch.tensor([ids])} if model.config.model_type == "fsmt" else {}
        if mask:
            seen = torch.tensor([mask[min(i, len(mask) - 1)] for i in range(len(text))])
            more = {"attention_mask": torch.where(seen, 0.0, torch.finfo(torch.float32).min)[None, None]}
        logits = model(encoder_outputs=encoded, decoder_input_ids=torch.tensor([text]), use_cache=False, **more).logits[0, -1].double()
        logits[banned] = -torch.inf
        best = logits.log_softmax(0).topk(2)
        out["tokens"].append(int(best.indices[0]))
        out["logprobs"].append(five(best.values[0]))
        out["margins"].append(five(best.values[0] - best.values[1]))
        text.append(out["tokens"][-1])
    return out


@torch.no_grad()
def beams(model, ids, begin, banned):
    text = model.generate(torch.tensor([ids]), decoder_input_ids=torch.tensor([begin]), num_beams=3, do_sample=False,
                          max_new_tokens=12, min_new_tokens=12, early_stopping=True, length_penalty=0.0, use_cache=False,
                          bad_words_ids=[[i] for i in banned] or None)
    return text[0, len(begin):].tolist()


@torch.no_grad()
def plain_beams(model, ids, begin, banned):
    """The same where generate() would not hide what comes behind a token (FSMT without a cache)."""
    encoded, kept = model.get_encoder()(torch.tensor([ids])), [(0.0, list(begin))]
    for _ in range(12):
        rows = torch.tensor([text for _, text in kept])
        states = transformers.modeling_outputs.BaseModelOutput(encoded[0].expand(len(kept), -1, -1))
        logits = model(input_ids=torch.tensor([ids] * len(kept)), encoder_outputs=states, decoder_input_ids=rows, use_cache=False).logits[:, -1].double()
        logits[:, banned] = -torch.inf
        best = [torch.topk(row.log_softmax(0), 3) for row in logits]
        more = [(score + float(v), [*text, int(t)]) for (score, text), b in zip(kept, best) for v, t in zip(b.values, b.indices)]
        kept = sorted(more, key=lambda x: -x[0])[:3]
    return kept[0][1][len(begin):]


def texts_of(name):
    with tempfile.TemporaryDirectory() as folder:
        encdec.write_folder(name, folder)
        model, info = transformers.AutoModelForSeq2SeqLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
        wrong = {k: v for k, v in info.items() if v and not all("embed_positions" in x for x in v)}  # Pegasus computes these
        if wrong:
            raise RuntimeError(f"{name}: {wrong}")
        model.eval()
        config = encdec.MODELS[name][0]
        start = [config[k] for k in ("decoder_start_token_id", "forced_bos_token_id") if k in config]
        banned = [word[0] for word in config.get("bad_words_ids", [])]
        model.generation_config.forced_bos_token_id = model.generation_config.forced_eos_token_id = None
        for prompt in encdec.PROMPTS:
            ids = encdec.prompt(name, prompt)
            masked = {} if name == "fsmt" else {  # whose class takes no masks of rows
                "masked": greedy(model, ids, encdec.DECODER, banned, encdec.cross_mask(len(ids), len(encdec.DECODER) + 5)),
                "hidden": greedy(model, ids, start, banned, 2 * [[i % 3 != 1 for i in range(len(ids))]])}
            yield prompt, {"greedy": greedy(model, ids, start, banned), "continued": greedy(model, ids, encdec.DECODER, banned), **masked,
                           "beams": (plain_beams if name == "fsmt" else beams)(model, ids, start, banned)}


def main():
    golden = {"made_by": f"torch {torch.__version__}, transformers {transformers.__version__}",
              "models": {name: dict(texts_of(name)) for name in encdec.MODELS}}
    with open(os.path.join(HERE, "encdec_texts.json"), "w", encoding="utf-8") as f:
        f.write(json.dumps(golden, indent=None, separators=(",", ":")).replace('},"', '},\n"') + "\n")


if __name__ == "__main__":
    main()
