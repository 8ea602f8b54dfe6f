#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What classifiers and rerankers say by transformers and sentence-transformers in float32: classifier_scores.json.

How the committed file was made (torch, transformers and sentence-transformers of the versions that it names):

    python tests/model/make_classifier_goldens.py
"""
import json
import math
import os
import sys
import tempfile

import sentence_transformers
import torch
import transformers

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "tinymodel"))
import encoders  # noqa: E402
from make_encoder_goldens import distances, jina_bert, other_class  # noqa: E402

PAIRS = [(a, b) for a in encoders.TEXTS for b in encoders.TEXTS]
CUT = 24  # tokens of a pair that is cut: longer than some, shorter than others


def load(folder):
    model, info = transformers.AutoModelForSequenceClassification.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
    wrong = {k: v for k, v in info.items() if v}
    if wrong:
        raise RuntimeError(f"{folder}: {wrong}")
    return model.eval(), transformers.PreTrainedTokenizerFast.from_pretrained(folder)


def logits(model, tokenizer, *texts, **more):
    batch = tokenizer(*texts, return_tensors="pt", **more)
    if (getattr(model.config, "type_vocab_size", 0) or 0) < 2:
        batch.pop("token_type_ids", None)
    with torch.no_grad():
        return batch["input_ids"].shape[1], model(**batch).logits[0].double().tolist()


def cross_score(cross, a, b, number):
    """As CrossEncoder brings the number of a pair into its range; it reads the folder by itself."""
    got = float(cross.predict([(a, b)])[0])
    own = number if "Identity" in str(cross.activation_fn) else 1 / (1 + math.exp(-number))
    if abs(got - own) > 1e-5:
        raise RuntimeError(f"CrossEncoder says {got}, the model's logit {number}")
    return got


class JinaBert:
    """The class that transformers has not, as far as a golden needs it."""

    def __init__(self, folder, name):
        with open(os.path.join(folder, "config.json"), encoding="utf-8") as f:
            c = json.load(f)
        w = {at: torch.from_numpy(x) for at, x in encoders.classifier_tensors(name).items()}
        self.model, self.heads = jina_bert(transformers.BertForSequenceClassification, c, w, len(c["id2label"])), c["num_attention_heads"]
        self.config = self.model.config

    def __call__(self, input_ids, token_type_ids, **_):
        return self.model(input_ids, token_type_ids=token_type_ids, attention_mask=distances(input_ids.shape[1], self.heads))


def golden_of_jina(name):
    """One label: a score is its sigmoid."""
    with tempfile.TemporaryDirectory() as folder:
        encoders.write_classifier(name, folder)
        model, tokenizer = JinaBert(folder, name), transformers.PreTrainedTokenizerFast.from_pretrained(folder)
        out = {"single": [], "pairs": [], "cut": []}
        for kind, texts, more in (("single", [(a,) for a in encoders.TEXTS], {}), ("pairs", PAIRS, {}),
                                  ("cut", PAIRS, {"truncation": "longest_first", "max_length": CUT})):
            for of in texts:
                n, numbers = logits(model, tokenizer, *of, **more)
                out[kind].append({"tokens": n, "logits": numbers})
                score = 1 / (1 + math.exp(-numbers[0]))
                out[kind][-1].update({"single": {"probs": [score]}, "pairs": {"score": score}, "cut": {}}[kind])
        return out


def golden(name):
    if name.startswith("jina-v2"):
        return golden_of_jina(name)
    with tempfile.TemporaryDirectory() as folder:
        encoders.write_classifier(name, folder)
        if encoders.CLASSIFIERS[name][0] == "gte":
            other_class(folder)
        model, tokenizer = load(folder)
        cross = sentence_transformers.CrossEncoder(folder, device="cpu", model_kwargs={"dtype": torch.float32})
        out = {"single": [], "pairs": [], "cut": []}
        pipe = transformers.pipeline("text-classification", model=model, tokenizer=tokenizer, top_k=None)
        for text in encoders.TEXTS:
            n, numbers = logits(model, tokenizer, text)
            probs = {p["label"]: p["score"] for p in pipe([text])[0]}
            out["single"].append({"tokens": n, "logits": numbers,
                                  "probs": [probs[model.config.id2label[i]] for i in range(len(numbers))]})
        for a in encoders.TEXTS:
            for b in encoders.TEXTS:
                n, numbers = logits(model, tokenizer, a, b)
                out["pairs"].append({"tokens": n, "logits": numbers})
                if len(numbers) == 1:
                    out["pairs"][-1]["score"] = cross_score(cross, a, b, numbers[0])
                n, numbers = logits(model, tokenizer, a, b, truncation="longest_first", max_length=CUT)
                out["cut"].append({"tokens": n, "logits": numbers})
        return out


def main():
    out = {"made_by": f"torch {torch.__version__}, transformers {transformers.__version__}, "
                      f"sentence-transformers {sentence_transformers.__version__}", "cut": CUT,
           "classifiers": {name: golden(name) for name in encoders.CLASSIFIERS}}
    with open(os.path.join(HERE, "classifier_scores.json"), "w", encoding="utf-8") as f:
        f.write(json.dumps(out, indent=0) + "\n")


if __name__ == "__main__":
    main()
