#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Write a small random model: a Hugging Face folder or a GGUF file, the same bits every time.

    make_model.py --arch llama3 --out /tmp/tiny                       folder, safetensors, float32
    make_model.py --arch qwen2 --out /tmp/tiny --dtype bfloat16 --shards 3
    make_model.py --arch gpt2 --out /tmp/tiny --format bin            pytorch_model.bin
    make_model.py --arch llama --out /tmp/tiny.gguf --format gguf --quant q4_k
    make_model.py --arch qwen2 --out /tmp/tiny.gguf --format gguf --quant Q4_K_M
    make_model.py --arch llama --out /tmp/tiny --dtype float16 --quantized awq
    make_model.py --list                                              the architectures

The folder has config.json, weights and a small tokenizer, so that it can be served. Needs numpy.
"""

import argparse
import os
import sys

import numpy as np

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import gguf_file  # noqa: E402
import hf_folder  # noqa: E402
import presets  # noqa: E402
import quant  # noqa: E402
import quantized  # noqa: E402
import tokenizer  # noqa: E402
import weights  # noqa: E402
from specs import SPECS  # noqa: E402


def starts_with_bos(spec):
    return spec.config["model_type"].startswith(("llama", "mistral", "gemma"))


def config_json(spec, dtype):
    ids = {"bos_token_id": tokenizer.BOS, "eos_token_id": tokenizer.EOS,
           "pad_token_id": tokenizer.PAD}
    config = {**spec.config, **ids, "torch_dtype": dtype, "use_cache": True}
    return spec.published(config) if hasattr(spec, "published") else config


def stored_tensors(spec, tensors):
    """The names that published folders of the family use."""
    if hasattr(spec, "stored"):
        return spec.stored(tensors)
    if spec.prefix is None or spec.prefix == "transformer.":
        return tensors
    out = {name.replace("transformer.", spec.prefix): x for name, x in tensors.items()}
    n = spec.config["n_positions"]
    mask = np.tril(np.ones((n, n), np.uint8)).reshape(1, 1, n, n)
    for i in range(spec.config["n_layer"]):
        out[f"{spec.prefix}h.{i}.attn.bias"] = mask
    return out


def write_folder(arch, out, dtype="float32", form="safetensors", n_shards=1, recipe=None):
    """`recipe`: one of quantized.RECIPES."""
    spec = SPECS[arch]
    os.makedirs(out, exist_ok=True)
    config, tensors = config_json(spec, dtype), weights.build(spec)
    if recipe:
        tensors, config["quantization_config"], _ = quantized.quantized(tensors, recipe)
    aliases = []
    if spec.config.get("tie_word_embeddings"):
        aliases = [("lm_head.weight", "model.embed_tokens.weight")]
    hf_folder.write_weights(out, stored_tensors(spec, tensors), dtype, form, n_shards, aliases)
    add_bos = starts_with_bos(spec)
    files = {
        "config.json": config,
        "generation_config.json": {"bos_token_id": tokenizer.BOS, "eos_token_id": tokenizer.EOS},
        "tokenizer.json": tokenizer.tokenizer_json(spec.config["vocab_size"], add_bos),
        "tokenizer_config.json": tokenizer.tokenizer_config(add_bos),
    }
    for name, value in files.items():
        hf_folder.write_json(os.path.join(out, name), value)


def sampling_keys(text):
    """"temp=0.7,top_k=20" as the keys general.sampling.*."""
    pairs = [word.split("=") for word in text.split(",") if word]
    return [(f"general.sampling.{name}", *(("int32", int(v)) if name == "top_k" else ("float32", float(v))))
            for name, v in pairs]


def write_gguf(arch, out, fmt="f32", version=3, sampling=""):
    spec = SPECS[arch]
    if spec.gguf_arch is None:
        raise ValueError(f"{arch}: {spec.no_gguf}")
    mix = presets.types(fmt, spec) if fmt in presets.BASE else None
    keys, tensors = gguf_file.to_gguf(spec, weights.build(spec), fmt, mix)
    keys += tokenizer.gguf_keys(spec.config["vocab_size"], starts_with_bos(spec))
    keys += sampling_keys(sampling)
    folder = os.path.dirname(os.path.abspath(out))
    os.makedirs(folder, exist_ok=True)
    gguf_file.write(out, keys, tensors, version)


def main():
    parser = argparse.ArgumentParser(description="Write a small random model.")
    parser.add_argument("--list", action="store_true", help="print the architectures and end")
    parser.add_argument("--arch", choices=list(SPECS))
    parser.add_argument("--out", help="folder, or file for --format gguf")
    parser.add_argument("--dtype", choices=["float32", "float16", "bfloat16"], default="float32")
    parser.add_argument("--format", choices=["safetensors", "bin", "gguf"], default="safetensors")
    parser.add_argument("--shards", type=int, default=1)
    parser.add_argument("--quant", choices=[*quant.FORMATS, *presets.BASE], default="f32",
                        help="GGUF only: one type, or a mix that llama.cpp's quantizer makes")
    parser.add_argument("--quantized", choices=list(quantized.RECIPES), help="Hugging Face folders only: a format")
    parser.add_argument("--gguf-version", type=int, choices=[2, 3], default=3)
    parser.add_argument("--vocab", type=int, help="tokens, instead of the architecture's number")
    parser.add_argument("--sampling", default="", help="GGUF only: how to sample, as temp=0.7,top_k=20")
    args = parser.parse_args()
    if args.list:
        print("\n".join(SPECS))
        return 0
    if not args.arch or not args.out:
        parser.error("--arch and --out are needed")
    if args.shards < 1 or (args.format == "gguf" and (args.shards != 1 or args.dtype != "float32")):
        parser.error("--shards is at least 1; --format gguf takes --quant, not --shards or --dtype")
    if args.vocab:
        SPECS[args.arch].config["vocab_size"] = args.vocab
    try:
        if args.format == "gguf":
            write_gguf(args.arch, args.out, args.quant, args.gguf_version, args.sampling)
        else:
            write_folder(args.arch, args.out, args.dtype, args.format, args.shards, args.quantized)
    except (ValueError, OSError) as err:
        print(f"make_model: {err}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
