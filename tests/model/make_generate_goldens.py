#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Answers of transformers' generate() with the small encoder-decoder models and their generation_config.json: generate_texts.json.

How the committed file was made (torch, transformers and numpy of the versions that it names):

    python tests/model/make_generate_goldens.py

An answer is kept where it is the same in float32 and in float64: else two hypotheses are a near-tie, and it is listed instead.
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


@torch.no_grad()
def answers(folder, dtype):
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager").eval()
    return {prompt: model.generate(torch.tensor([ids]), use_cache=False)[0].tolist() for prompt, ids in encdec.PROMPTS.items()}


def cut(tokens, config):
    """Without what the text begins with, and the end."""
    begin = 1 + ("forced_bos_token_id" in config)
    text = tokens[begin:]
    return text[:text.index(config["eos_token_id"])] if config["eos_token_id"] in text else text


def main():
    golden = {"made_by": f"torch {torch.__version__}, transformers {transformers.__version__}", "near_ties": [], "models": {}}
    for name, kinds in encdec.GENERATION.items():
        for kind, config in kinds.items():
            with tempfile.TemporaryDirectory() as folder:
                encdec.write_folder(name, folder, config)
                text = transformers.PreTrainedTokenizerFast(tokenizer_file=os.path.join(folder, "tokenizer.json"))
                single, double = answers(folder, torch.float32), answers(folder, torch.float64)
            for prompt, tokens in single.items():
                if tokens != double[prompt]:
                    golden["near_ties"].append([name, kind, prompt])
                    continue
                ids = cut(tokens, config)
                golden["models"].setdefault(name, {}).setdefault(kind, {})[prompt] = {
                    "tokens": ids, "text": text.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)}
                print(name, kind, prompt, len(tokens), tokens[:30])
    print("near-ties:", golden["near_ties"])
    with open(os.path.join(HERE, "generate_texts.json"), "w", encoding="utf-8") as f:
        f.write(json.dumps(golden, indent=None, separators=(",", ":")).replace('},"', '},\n"') + "\n")


if __name__ == "__main__":
    main()
