# SPDX-License-Identifier: Apache-2.0
"""Decoders as rerankers, classifiers and embedders: the small random Qwen3 with what folders of these kinds have. The same
bits every time."""
import json
import os

import hf_folder
import make_model
import weights
from specs import SPECS

ARCH = "qwen3"
YES, NO = "on", "in"  # words of the small vocabulary
KINDS = ("score", "topics", "original", "logit-score", "embed")


def _edit(path, **more):
    with open(path, encoding="utf-8") as f:
        value = json.load(f)
    hf_folder.write_json(path, {**value, **more})


def _modules(out, *types):
    hf_folder.write_json(os.path.join(out, "modules.json"), [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.{kind}"}
        for i, (kind, path) in enumerate(types)])


def token_id(out, text):
    with open(os.path.join(out, "tokenizer.json"), encoding="utf-8") as f:
        return json.load(f)["model"]["vocab"][text]


def write_folder(kind, out):
    make_model.write_folder(ARCH, out)
    config = os.path.join(out, "config.json")
    if kind in ("score", "topics"):  # converted: a product of its own, no LM head
        spec, n = SPECS[ARCH], 1 if kind == "score" else 3
        tensors = {k: v for k, v in weights.build(spec).items() if k != "lm_head.weight"}
        tensors["score.weight"] = weights.normal(f"reranker {kind}", (n, spec.config["hidden_size"]), 0.3, 0.0)
        hf_folder.write_safetensors(os.path.join(out, "model.safetensors"), tensors, "float32")
        _edit(config, architectures=["Qwen3ForSequenceClassification"], id2label={str(i): f"L{i}" for i in range(n)},
              label2id={f"L{i}": i for i in range(n)})
    elif kind == "original":  # as vLLM's hf_overrides say it
        _edit(config, classifier_from_token=[NO, YES], is_original_qwen3_reranker=True)
    elif kind == "logit-score":  # as sentence-transformers saves it
        _modules(out, ("base.modules.transformer.Transformer", ""), ("cross_encoder.modules.logit_score.LogitScore", "1_LogitScore"))
        os.makedirs(os.path.join(out, "1_LogitScore"), exist_ok=True)
        hf_folder.write_json(os.path.join(out, "1_LogitScore", "config.json"), {
            "true_token_id": token_id(out, YES), "false_token_id": token_id(out, NO)})
        hf_folder.write_json(os.path.join(out, "sentence_bert_config.json"), {"transformer_task": "text-generation"})
    else:
        _modules(out, ("models.Transformer", ""), ("models.Pooling", "1_Pooling"), ("models.Normalize", "2_Normalize"))
        os.makedirs(os.path.join(out, "1_Pooling"), exist_ok=True)
        hf_folder.write_json(os.path.join(out, "1_Pooling", "config.json"), {
            "word_embedding_dimension": 128, "pooling_mode_mean_tokens": True})
