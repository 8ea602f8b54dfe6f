#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a model that sees says, by transformers in float32, from pixels to log probabilities: vision_answers.json.

How the committed file was made (torch, transformers and Pillow of the versions that it names):

    python tests/model/make_vision_goldens.py
"""
import json
import os
import sys
import tempfile

import numpy as np
import PIL
import torch
import transformers
from PIL import Image
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "tinymodel"))
import vision  # noqa: E402

N_NEW, TOP = 6, 5


def same_order(p):
    """Pillow takes rows first for this picture: then results are the same to the bit."""
    image = Image.fromarray(p)
    short = min(image.size)
    size = tuple(vision.SIZE if s == short else int(vision.SIZE * s / short) for s in image.size)
    steps = image.resize((size[0], image.size[1]), Image.Resampling.BICUBIC).resize(size, Image.Resampling.BICUBIC)
    return steps.tobytes() == image.resize(size, Image.Resampling.BICUBIC).tobytes()


def answer(model, tokenizer, processor, image_token, talk):
    content = [{"type": "image"} if isinstance(p, int) else {"type": "text", "text": p} for p in talk]
    text = tokenizer.apply_chat_template([{"role": "user", "content": content}], tokenize=False, add_generation_prompt=True)
    ids = [i for t in tokenizer.encode(text, add_special_tokens=False) for i in [t] * (vision.ROWS if t == image_token else 1)]
    pictures = [vision.pixels(*vision.PICTURES[p]) for p in talk if isinstance(p, int)]
    assert all(same_order(p) for p in pictures)
    values = processor([Image.fromarray(p) for p in pictures], return_tensors="pt")["pixel_values"]
    out = []
    n_prompt = len(ids)
    for _ in range(N_NEW):
        logits = model(input_ids=torch.tensor([ids]), pixel_values=values, use_cache=False).logits[0, -1].double()
        best = logits.log_softmax(0).topk(TOP)
        out.append([[int(t), round(float(v), 6)] for t, v in zip(best.indices, best.values)])
        ids.append(int(best.indices[0]))
    return {"n_prompt": n_prompt, "top": out}


def main():
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        vision.write_folder(folder)
        model, info = transformers.LlavaForConditionalGeneration.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
        wrong = {k: v for k, v in info.items() if v and not all("post_layernorm" in str(x) for x in v)}
        if wrong:
            raise RuntimeError(str(wrong))
        model.eval()
        tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
        processor = CLIPImageProcessorPil.from_pretrained(folder)
        token = vision.image_token(folder)
        out = {"made_by": f"torch {torch.__version__}, transformers {transformers.__version__}, Pillow {PIL.__version__}",
               "talks": [answer(model, tokenizer, processor, token, talk) for talk in vision.TALKS]}
    assert np.isfinite([v for t in out["talks"] for row in t["top"] for _, v in row]).all()
    with open(os.path.join(HERE, "vision_answers.json"), "w", encoding="utf-8") as f:
        f.write(json.dumps(out, indent=0) + "\n")


if __name__ == "__main__":
    main()
