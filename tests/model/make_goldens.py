#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Expected results of the models, by transformers in float32: goldens/<name>.json.

How the committed files were made (torch, transformers, gguf, numpy and, for lora-*, peft of the versions
that each file names; two real models fetched with scripts/fetch_model):

    python tests/model/make_goldens.py              # all
    python tests/model/make_goldens.py llama q8     # those whose name contains a word

Each golden holds, for a few prompts: the log probability of every token and the best alternatives
(entry i is about token i given those before it), the logits after the last token, and a greedy
continuation with the margin between best and second. Weights go into the Hugging Face model as
float32 of what the file stores: for half types the rounded, for block formats the dequantized
values, Q/K rows and norms turned back into the form of the Hugging Face class.
"""

import argparse
import importlib.metadata
import inspect
import json
import os
import sys
import tempfile
import time

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "tinymodel"))
import adapter  # noqa: E402
import gguf_file  # noqa: E402
import hf_folder  # noqa: E402
import make_model  # noqa: E402
import quant  # noqa: E402
import quantized  # noqa: E402
import quantized_libraries  # noqa: E402
import trtllm_checkpoint  # noqa: E402
import weights  # noqa: E402
from real_prompts import prompts_of  # noqa: E402
from references import REFERENCES  # noqa: E402
from specs import SPECS  # noqa: E402
from variants import LENGTHS, REAL, TINY, TRTLLM, real_path, write_tiny  # noqa: E402

N_GREEDY = 32
DATE = "2026-11-23"


# ---- models ----


def model_from_gguf(path, config=None):
    """transformers' class with the tensors of the file; refuses anything missing or left over."""
    f = gguf_file.File(path)
    config = dict(config or gguf_file.config_from_gguf(f))
    kind = config.pop("model_type")
    model = AutoModelForCausalLM.from_config(
        AutoConfig.for_model(kind, **config), attn_implementation="eager", dtype=torch.float32)
    state = {name: torch.from_numpy(x) for name, x in gguf_file.from_gguf(f).items()}
    missing, unexpected = model.load_state_dict(state, strict=False)
    tied = {"lm_head.weight"} if model.config.tie_word_embeddings else set()
    if set(missing) - tied or unexpected:
        raise RuntimeError(f"{path}: missing {missing}, unexpected {unexpected}")
    model.tie_weights()
    return model.eval()


def model_from_folder(path, attention="eager"):
    model, info = AutoModelForCausalLM.from_pretrained(
        path, dtype=torch.float32, attn_implementation=attention, experts_implementation="eager",
        output_loading_info=True)
    wrong = {key: value for key, value in info.items() if value}
    if wrong:
        raise RuntimeError(f"{path}: {wrong}")
    return model.eval()


def model_of_quantized(v, path):
    """The weights that the parts of a quantized folder stand for, the others rounded as it has them."""
    spec = SPECS[v["arch"]]
    _, _, meant = quantized.quantized(weights.build(spec), v["quantized"])
    meant = {name: x if quantized.is_linear(name, x) else hf_folder.rounded(x, v["dtype"]) for name, x in meant.items()}
    return model_of_floats(spec, meant, path)


def model_of_floats(spec, meant, path):
    os.makedirs(path)
    hf_folder.write_safetensors(os.path.join(path, "model.safetensors"), make_model.stored_tensors(spec, meant), "float32")
    hf_folder.write_json(os.path.join(path, "config.json"), make_model.config_json(spec, "float32"))
    return model_from_folder(path)


def check_quant_against_gguf(path):
    """Our dequantizer and the `gguf` package agree bit for bit on every tensor of the file."""
    import gguf  # reference only

    ours = gguf_file.File(path)
    for t in gguf.GGUFReader(path).tensors:
        theirs = gguf.quants.dequantize(t.data, t.tensor_type).reshape(ours.table[t.name][1])
        if not np.array_equal(theirs, ours.tensor(t.name)):
            raise RuntimeError(f"{path}: {t.name} ({ours.table[t.name][0]}) differs")


# ---- results ----


def six(x):
    return float(f"{x:.6g}")


@torch.no_grad()
def greedy(model, tokens, n):
    out = {"tokens": [], "margins": [], "logprobs": []}
    step, cache = torch.tensor([tokens]), None
    kept = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
    whole = model.config.model_type == "recurrent_gemma"  # gives no cache back: each token is computed with all before it
    for _ in range(n):
        r = model(step, **{kept: cache}, use_cache=not whole, logits_to_keep=1)
        logits, cache = r.logits[0, -1].double(), getattr(r, kept, None)
        best = logits.topk(2)
        out["tokens"].append(int(best.indices[0]))
        out["margins"].append(six(best.values[0] - best.values[1]))
        out["logprobs"].append(round(float(logits.log_softmax(0)[best.indices[0]]), 5))
        step = torch.cat([step, best.indices[:1][None]], 1) if whole else best.indices[:1][None]
    return out


@torch.no_grad()
def results(model, name, tokens, top_k, n_logits, n_greedy=N_GREEDY):
    """n_logits: how many of the last logits to keep, None for all."""
    logits = model(torch.tensor([tokens]), use_cache=False).logits[0]
    logprobs, top = [None], [[]]
    for i, row in enumerate(logits[:-1], 1):
        row = row.double().log_softmax(0)
        best = row.topk(top_k)
        logprobs.append(round(float(row[tokens[i]]), 5))
        top.append([[int(t), round(float(v), 5)] for t, v in zip(best.indices, best.values)])
    last = logits[-1].double()
    entry = {"id": name, "tokens": tokens, "logprobs": logprobs, "top": top,
             "last_logsumexp": six(torch.logsumexp(last, 0))}
    if n_logits is None:
        entry["last_logits"] = [six(v) for v in last]
    else:
        ids = set(last.topk(64).indices.tolist())
        ids |= set(range(0, len(last), max(len(last) // (n_logits - 64), 1)))
        entry["last_logit_ids"] = sorted(ids)
        entry["last_logits"] = [six(last[i]) for i in entry["last_logit_ids"]]
    entry["greedy"] = greedy(model, tokens, n_greedy)
    return entry


def provenance(source, *more):
    packages = ("torch", "transformers", "numpy", "gguf", *more)
    return {
        "made_with": "tests/model/make_goldens.py",
        "date": DATE,
        "versions": {p: importlib.metadata.version(p) for p in packages},
        "how": "Hugging Face class, float32, eager attention, CPU",
        "source": source,
    }


def write(name, golden):
    path = os.path.join(HERE, "goldens", f"{name}.json")
    lines = [f' "{k}": {json.dumps(v)}' for k, v in golden.items() if k != "prompts"]
    rows = ",\n".join("  " + json.dumps(p, separators=(",", ":")) for p in golden["prompts"])
    lines.append(' "prompts": [\n' + rows + "\n ]")
    with open(path, "w", encoding="utf-8") as f:
        f.write("{\n" + ",\n".join(lines) + "\n}\n")
    return os.path.getsize(path)


def make_tiny(name, folder):
    v = TINY[name]
    path = write_tiny(name, folder)
    spec = SPECS[v["arch"]]
    if v["format"] == "gguf":
        check_quant_against_gguf(path)
        # The config comes from the spec, so that wrong metadata cannot agree with itself.
        kept = {k: x for k, x in spec.config.items() if k != "architectures"}
        model = model_from_gguf(path, kept)
    elif v["arch"] in REFERENCES:
        model = REFERENCES[v["arch"]](weights.build(spec), spec.n_layers)
    elif "quantized" in v:
        quantized_libraries.check(v["arch"], v["quantized"])
        model = model_of_quantized(v, os.path.join(folder, "meant"))
    else:  # Falcon's eager attention adds position biases twice, in the mask and again
        model = model_from_folder(path, "sdpa" if spec.config.get("alibi") else "eager")
    vocab = spec.config["vocab_size"]
    prompts = [
        results(model, f"n{n}", weights.tokens(f"{spec.seed}/prompt{n}", n, vocab), v["top"], None,
                v.get("n_greedy", N_GREEDY))
        for n in v["lengths"]
    ]
    return {"model": {"kind": "tiny", **v}, "n_vocab": vocab,
            "provenance": provenance("tests/tinymodel/make_model.py"), "prompts": prompts}


def make_real(name):
    path = real_path(name)
    if path is None:
        raise RuntimeError(f"{name}: run scripts/fetch_model {name} first")
    check_quant_against_gguf(path)
    model = model_from_gguf(path)
    texts = prompts_of(gguf_file.File(path))
    prompts = []
    for prompt_id, tokens in texts:
        prompts.append(results(model, prompt_id, tokens, 4, 160))
    return {"model": {"kind": "real", "name": name, "file": os.path.basename(path),
                      "sha256": REAL[name]["sha256"]},
            "n_vocab": model.config.vocab_size,
            "provenance": provenance(f"scripts/fetch_model {name}, dequantized"),
            "prompts": prompts}


def make_adapted(name, folder):
    """A tiny model with a LoRA adapter, which PEFT reads from the folder and applies without merging."""
    import peft

    arch = adapter.ADAPTERS[name]["arch"]
    path = os.path.join(folder, "base")
    make_model.write_folder(arch, path)
    model = peft.PeftModel.from_pretrained(
        model_from_folder(path), adapter.write(name, os.path.join(folder, "adapter"))).eval()
    vocab = SPECS[arch].config["vocab_size"]
    prompts = [results(model, f"n{n}", weights.tokens(f"{name}/lora{n}", n, vocab), 8, None) for n in (7, 33)]
    return {"model": {"kind": "lora", "name": name, **adapter.ADAPTERS[name]}, "n_vocab": vocab,
            "provenance": provenance("tests/tinymodel/adapter.py", "peft"), "prompts": prompts}


def make_trtllm(name, folder):
    spec = SPECS["llama"]
    model = model_of_floats(spec, trtllm_checkpoint.meant(weights.build(spec), TRTLLM[name]), os.path.join(folder, "meant"))
    prompts = [results(model, f"n{n}", weights.tokens(f"{spec.seed}/prompt{n}", n, spec.config["vocab_size"]), 8, None)
               for n in LENGTHS[1:3]]
    return {"model": {"kind": "trtllm", "arch": "llama", "recipe": TRTLLM[name], "dtype": "float32"}, "n_vocab": spec.config["vocab_size"],
            "provenance": provenance("tests/tinymodel/trtllm_checkpoint.py"), "prompts": prompts}


def make(name, folder):
    if name in TRTLLM:
        return make_trtllm(name, folder)
    if name in TINY:
        return make_tiny(name, folder)
    if name.startswith("lora-"):
        return make_adapted(name.removeprefix("lora-"), folder)
    return make_real(name)


def main():
    parser = argparse.ArgumentParser(description="Make the expected results of the models.")
    parser.add_argument("words", nargs="*", help="only goldens whose name contains one of these")
    args = parser.parse_args()
    torch.set_num_threads(2)
    torch.manual_seed(0)
    for name in [*TINY, *TRTLLM, *(f"lora-{a}" for a in adapter.ADAPTERS), *REAL]:
        if args.words and not any(w in name for w in args.words):
            continue
        start = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            golden = make(name, folder)
        size = write(name, golden)
        margins = sorted(m for p in golden["prompts"] for m in p["greedy"]["margins"])
        worst = f", margins from {margins[0]:.4f}" if margins else ""
        print(f"{name}: {size / 1000:.0f} kB, {time.monotonic() - start:.1f} s{worst}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
