#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Texts of the small Whisper models by transformers in float32: whisper_texts.json.

How the committed file was made (torch, transformers and numpy of the versions that it names):

    python tests/model/make_whisper_goldens.py

"heard": what generate() says of the sound, whose features transformers' extractor makes; "suppressed": the same where some
tokens may not come, or not first; "timed": the windows of a longer sound with times, chosen by the rule of transformers' processor,
each behind the text of those before it, with the mean log probability and the probability that nothing is said. "texts": of features of any number
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


def mels(seconds):
    sound = np.frombuffer(whisper.wav(seconds)[44:], "<i2").astype(np.float32) / 32768
    return transformers.WhisperFeatureExtractor()(sound, sampling_rate=16000, return_tensors="np", truncation=False,
                                                  padding="do_not_pad").input_features[0]


@torch.no_grad()
def window(model, features, begin):
    """As many tokens as the context leaves, up to a half of it; the end token among them."""
    config = transformers.GenerationConfig(no_timestamps_token_id=whisper.NO_TIMES, eos_token_id=whisper.END,
                                           max_initial_timestamp_index=whisper.MAX_FIRST_TIME)
    rule = transformers.WhisperTimeStampLogitsProcessor(config, begin_index=len(begin))
    encoded, text, total, margin = model.get_encoder()(torch.tensor(features[None])), list(begin), 0.0, 9.0
    for i in range(min(whisper.TIMED_CONTEXT - len(begin), whisper.TIMED_CONTEXT // 2)):
        logits = model(encoder_outputs=encoded, decoder_input_ids=torch.tensor([text]), use_cache=False).logits[0]
        if i == 0:
            silent = logits[begin.index(whisper.START)].softmax(0)[whisper.NO_TIMES - 1]
        best = rule(torch.tensor([text]), logits[None, -1])[0].double().log_softmax(0).topk(2)
        total, margin = total + float(best.values[0]), min(margin, float(best.values[0] - best.values[1]))
        text.append(int(best.indices[0]))
        if text[-1] == whisper.END:
            break
    tokens = text[len(begin):]
    return {"tokens": tokens, "avg_logprob": five(total / len(tokens)), "no_speech_prob": float(silent), "margin": five(margin)}


def timed(model):
    """Windows begin where the pair of times lies that ends the one before (openai/whisper)."""
    mel, first, seek, before, out = mels(whisper.TIMED_SECONDS), whisper.NO_TIMES + 1, 0, [], []
    frames = whisper.TIMED_SECONDS * 100
    while seek < frames:
        features = np.zeros((80, 3000), np.float32)
        part = mel[:, seek:seek + 3000]
        features[:, :part.shape[1]] = part
        begin = ([whisper.PREVIOUS, *before[1 - whisper.TIMED_CONTEXT // 2:]] if before else []) + whisper.PROMPT[:3]
        out.append({"seek": seek, "begin": begin, **window(model, features, begin)})
        tokens = [t for t in out[-1]["tokens"] if t != whisper.END]
        pairs = [i for i in range(1, len(tokens)) if tokens[i - 1] >= first and tokens[i] >= first]
        over = len(tokens) > 1 and tokens[-1] >= first > tokens[-2]
        kept = tokens if over or not pairs else tokens[:pairs[-1]]
        out[-1]["kept"] = kept
        before += kept
        seek += min(3000, frames - seek) if over or not pairs else 2 * (kept[-1] - first)
    return out


def main():
    odd, model = load("odd"), load("whisper")
    golden = {"made_by": f"torch {torch.__version__}, transformers {transformers.__version__}",
              "timed": timed(model), "heard": heard(model), "suppressed": heard(model, whisper.SUPPRESSED, whisper.FIRST_SUPPRESSED),
              "texts": {name: greedy(odd, whisper.features(name), [3, 7, 11], N_GREEDY) for name in whisper.INPUTS}}
    with open(os.path.join(HERE, "whisper_texts.json"), "w", encoding="utf-8") as f:
        f.write(json.dumps(golden, indent=None, separators=(",", ":")).replace('},"', '},\n"') + "\n")


if __name__ == "__main__":
    main()
