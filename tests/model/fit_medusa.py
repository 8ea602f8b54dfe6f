#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes Medusa heads for a model without training: to compare answers with heads that are right now and then.

    tests/model/fit_medusa.py OUT [MODEL] [--heads 3] [--prompts 32] [--tokens 72]

The model answers prompts, and its states behind every token are read. For each head a ridge regression (Hoerl and Kennard, 1970)
maps a state to the one h + 1 places further; the head is that map before the LM head's matrix, with layers of zeros. Such heads
are right less often than trained ones. MODEL: else SmolLM2 from the cache. Needs numpy, nereid and the Python module.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import numpy as np

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT / "build/python"), str(HERE), str(HERE.parent), str(HERE.parent / "tools")]

import nereid  # noqa: E402
import lossless  # noqa: E402
import medusa_heads  # noqa: E402
from test_convert import tensors  # noqa: E402

RIDGE = 3.0
LAST = 1  # NRD_POOLING_LAST


def answers(llm, n_prompts, n_tokens):
    params = nereid.SamplingParams(max_tokens=n_tokens, temperature=0, ignore_eos=True)
    outputs = llm.generate(lossless.prompts_of(400)[200:200 + n_prompts], params)
    return [(o.prompt_token_ids, o.outputs[0].token_ids) for o in outputs]


def states(llm, prompt, answer):
    """The last layer's normed state behind each token of the answer's beginnings: [tokens, hidden]."""
    inbox, live, out = llm._inbox, {}, {}
    for i in range(len(answer)):
        ids = np.array([*prompt, *answer[:i]], np.int32)
        live[inbox.enqueue({"input_ids": ids.tobytes(), "pooling": LAST, "max_new_tokens": 1})] = i
    while live:
        for r in inbox.take(live, None):
            if r[5]:
                raise RuntimeError(r[5])
            out[live.pop(r[0])] = np.frombuffer(r[-1], np.float32)
    return np.stack([out[i] for i in range(len(answer))])


def lm_head(model):
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([ROOT / "build/bin/nereid", "convert", "--model_dir", model, "--output_dir", folder, "--quantize", "bfloat16",
                        "--quantize_lm_head"], check=True, capture_output=True)
        all_of_it = tensors(pathlib.Path(folder) / "rank0.safetensors")
        t = all_of_it.get("lm_head.weight", all_of_it["transformer.vocab_embedding.weight"])
        return (t.astype(np.uint32) << 16).view(np.float32) if t.dtype == np.uint16 else t.astype(np.float32)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("out", type=pathlib.Path)
    p.add_argument("model", nargs="?", default=pathlib.Path.home() / ".cache/nereid/models/SmolLM2-135M-Instruct.Q4_1.gguf")
    p.add_argument("--heads", type=int, default=3)
    p.add_argument("--prompts", type=int, default=32)
    p.add_argument("--tokens", type=int, default=72)
    args = p.parse_args()
    with nereid.LLM(args.model, max_batch_size=64) as llm:
        said = answers(llm, args.prompts, args.tokens)
        texts = [states(llm, prompt, ids) for prompt, ids in said]
    head, hidden = lm_head(args.model), texts[0].shape[1]
    out = {}
    for h in range(args.heads):
        x = np.concatenate([t[:-h - 1] for t in texts]).astype(np.float64)
        y = np.concatenate([t[h + 1:] for t in texts]).astype(np.float64)
        scale = RIDGE * np.trace(x.T @ x) / hidden / 10
        a = np.linalg.solve(x.T @ x + scale * np.eye(hidden), x.T @ y).astype(np.float32)
        out[f"{h}.0.linear.weight"] = np.zeros((hidden, hidden), np.float16)
        out[f"{h}.0.linear.bias"] = np.zeros(hidden, np.float16)
        out[f"{h}.1.weight"] = (head @ a.T).astype(np.float16)
        right = np.mean(np.argmax(x.astype(np.float32) @ a @ head.T, 1) == np.argmax(y.astype(np.float32) @ head.T, 1))
        print(f"head {h}: right on {right:.0%} of what it was fitted to, {len(x)} tokens", flush=True)
    args.out.mkdir(parents=True, exist_ok=True)
    medusa_heads.write(args.out / "medusa_lm_head.safetensors", out)
    (args.out / "config.json").write_text(json.dumps({"medusa_num_heads": args.heads, "medusa_num_layers": 1}))


if __name__ == "__main__":
    main()
