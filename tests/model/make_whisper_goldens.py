#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Texts of the small Whisper models by transformers in float32: whisper_texts.json.

How the committed file was made (torch, transformers and numpy of the versions that it names):

    python tests/model/make_whisper_goldens.py

"heard": what generate() says of the sound, whose features transformers' extractor makes; "suppressed": the same where some
tokens may not come, or not first. "texts": of features of any number
of frames the greedy tokens, the log probability of each and the margin to the second best.
"""
import json
import os
import sys
import tempfile

import numpy as np
import torch
import transformers

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "tinymodel"))
import whisper  # noqa: E402

N_GREEDY = 30


def five(x):
    return round(float(x), 5)


def load(name):
    with tempfile.TemporaryDirectory() as folder:
        whisper.write_folder(name, folder)
        model, info = transformers.WhisperForConditionalGeneration.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
    wrong = {k: v for k, v in info.items() if v}
    if wrong:
        raise RuntimeError(f"{name}: {wrong}")
    return model.eval()


@torch.no_grad()
def greedy(model, features, begin, n, never=(), not_first=()):
    """The encoder is told that its positions are as many as the input needs: transformers knows whole windows only."""
    encoder, frames = model.get_encoder(), features.shape[0]
    positions = encoder.embed_positions
    encoder.embed_positions = torch.nn.Embedding.from_pretrained(positions.weight[:(frames + 1) // 2])
    object.__setattr__(encoder.config, "max_source_positions", frames / 2)  # half a number, too
    encoded = encoder(torch.tensor(features.T[None]))
    encoder.embed_positions, encoder.config.max_source_positions = positions, positions.num_embeddings
    out, text = {"tokens": [], "logprobs": [], "margins": []}, list(begin)
    for _ in range(n):
        logits = model(encoder_outputs=encoded, decoder_input_ids=torch.tensor([text]), use_cache=False).logits[0, -1].double()
        logits[list(never)] = logits[list(not_first) if len(text) == len(begin) else []] = -torch.inf
        best = logits.log_softmax(0).topk(2)
        out["tokens"].append(int(best.indices[0]))
        out["logprobs"].append(five(best.values[0]))
        out["margins"].append(five(best.values[0] - best.values[1]))
        text.append(out["tokens"][-1])
    return out


@torch.no_grad()
def heard(model, never=(), not_first=()):
    sound = np.frombuffer(whisper.wav()[44:], "<i2").astype(np.float32) / 32768
    features = transformers.WhisperFeatureExtractor()(sound, sampling_rate=16000, return_tensors="np").input_features[0]
    rules = transformers.LogitsProcessorList([
        transformers.SuppressTokensLogitsProcessor(list(never)),
        transformers.SuppressTokensAtBeginLogitsProcessor(list(not_first), len(whisper.PROMPT))])
    ids = transformers.GenerationMixin.generate(
        model, input_features=torch.tensor(features[None]), decoder_input_ids=torch.tensor([whisper.PROMPT]), do_sample=False,
        logits_processor=rules, max_new_tokens=12, use_cache=False)[0, len(whisper.PROMPT):].tolist()
    out = greedy(model, np.ascontiguousarray(features.T), whisper.PROMPT, len(ids), never, not_first)
    if ids != out["tokens"]:
        raise RuntimeError(f"{ids} is not {out['tokens']}")
    return {**out, "text": " ".join(whisper.WORDS[i] for i in ids if i < len(whisper.WORDS))}


def main():
    odd, model = load("odd"), load("whisper")
    golden = {"made_by": f"torch {torch.__version__}, transformers {transformers.__version__}",
              "heard": heard(model), "suppressed": heard(model, whisper.SUPPRESSED, whisper.FIRST_SUPPRESSED),
              "texts": {name: greedy(odd, whisper.features(name), [3, 7, 11], N_GREEDY) for name in whisper.INPUTS}}
    with open(os.path.join(HERE, "whisper_texts.json"), "w", encoding="utf-8") as f:
        f.write(json.dumps(golden, indent=None, separators=(",", ":")).replace('},"', '},\n"') + "\n")


if __name__ == "__main__":
    main()
