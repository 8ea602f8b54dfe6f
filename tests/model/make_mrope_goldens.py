#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a client's own vision model sends for a prompt with pictures of the small Qwen2-VL, by transformers in float32: the
pictures' rows, and where each token is. mrope_inputs.json; the answers are those of vision_answers.json.

How the committed file was made (torch, transformers and Pillow of the versions that it names):

    python tests/model/make_mrope_goldens.py
"""
import base64
import json
import os
import tempfile

import numpy as np
import PIL
import torch
import transformers
from PIL import Image

import make_vision_goldens as goldens

KIND, TALK = "qwen2_vl", 1


def inputs():
    vision = goldens.vision
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        vision.write_folder(folder, KIND)
        model_class, processor_class = goldens.MODELS[KIND]
        model = model_class.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
        tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
        talk, image = vision.talks(KIND)[TALK], vision.image_token(folder)
        made = processor_class.from_pretrained(folder)([Image.fromarray(vision.pixels(*vision.PICTURES[p])) for p in talk
                                                        if isinstance(p, int)])
        grids = torch.tensor(np.asarray(made["image_grid_thw"]))
        content = [{"type": "image"} if isinstance(p, int) else {"type": "text", "text": p} for p in talk]
        text = tokenizer.apply_chat_template([{"role": "user", "content": content}], tokenize=False, add_generation_prompt=True)
        ids = goldens.encode(KIND, tokenizer, text, [int(np.prod(g)) // vision.qwen_vl.MERGE**2 for g in grids.tolist()])
        seen = model.model.visual(torch.tensor(np.asarray(made["pixel_values"])), grid_thw=grids)
        rows = seen if torch.is_tensor(seen) else seen.pooler_output
        types = torch.tensor([[int(t == image) for t in ids]])
        places, delta = model.model.get_rope_index(torch.tensor([ids]), mm_token_type_ids=types, image_grid_thw=grids)
    return {"talk": TALK, "image_token": image, "input_ids": ids, "positions": places[:, 0].T.tolist(), "delta": int(delta),
            "rows": base64.b64encode(rows.numpy().astype("<f4").tobytes()).decode(), "n_rows": len(rows)}


def main():
    out = {"made_by": f"torch {torch.__version__}, transformers {transformers.__version__}, Pillow {PIL.__version__}", **inputs()}
    with open(os.path.join(goldens.HERE, "mrope_inputs.json"), "w", encoding="utf-8") as f:
        f.write(json.dumps(out) + "\n")


if __name__ == "__main__":
    main()
