#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes prompt_goldens.json: logits of Hugging Face's models in float32 for `inputs_embeds` in which some
rows come from a table. Needs torch and transformers (made with 1.13.0 and 4.38.2):

    make_prompt_goldens.py --out prompt_goldens.json
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import numpy as np

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
from prompt_rows import FAMILIES, VOCABULARY_PLUS, prompt_ids, table_rows  # noqa: E402


def logits_of(arch, folder):
    import torch
    from transformers import AutoModelForCausalLM
    subprocess.run([sys.executable, HERE.parent / "tinymodel/make_model.py", "--arch", arch, "--out", folder,
                    "--dtype", "float32"], check=True, stdout=subprocess.DEVNULL)
    # 4.38 took the exact GELU for Gemma, later ones the one that it was trained with.
    more = {"hidden_act": "gelu_pytorch_tanh"} if arch == "gemma" else {}
    model = AutoModelForCausalLM.from_pretrained(folder, torch_dtype=torch.float32, **more).eval()
    vocabulary, hidden = model.get_input_embeddings().weight.shape
    table = torch.from_numpy(table_rows(hidden).astype(np.float32))
    rows = [table[i - VOCABULARY_PLUS] if i >= VOCABULARY_PLUS else model.get_input_embeddings().weight[i]
            for i in prompt_ids()]
    with torch.no_grad():
        return model(inputs_embeds=torch.stack(rows)[None]).logits[0].numpy()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", required=True)
    out = {}
    args = parser.parse_args()
    for arch in FAMILIES:
        with tempfile.TemporaryDirectory() as folder:
            logits = logits_of(arch, pathlib.Path(folder) / "model")
        out[arch] = [[round(float(x), 5) for x in row[:64]] for row in logits]
    pathlib.Path(args.out).write_text(json.dumps(out, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
