#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Three texts through the two engines of an encoder-decoder model, with the options and lines of the published run.py.
The module `nereid` does the work."""
import argparse
import difflib
import json
import os
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True  # an installed tree stays as it was installed
sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "..", "scripts"))
import nereid_programs  # noqa: E402

TEXTS = ["translate English to German: The house is wonderful.",
         "summarize: I am a high-performance inference optimizer and runtime.",
         "During its construction, the Eiffel Tower surpassed the Washington Monument to become the tallest man-made structure in "
         "the world"]
RULE = "--------------------------------------"
ALIKE = 0.8  # of the characters, in --compare_hf_fp32


def arguments():
    p = argparse.ArgumentParser(description="Answers to three texts with an encoder-decoder model.", allow_abbrev=False)
    add = p.add_argument
    add("--max_new_tokens", "--max_new_token", "--max-new-tokens", type=int, default=64)
    add("--engine_dir", "--engine-dir", "-i", default="trt_engines", help="folder with encoder/ and decoder/")
    add("--engine_name", "--engine-name", help="no effect: the folder names the engines")
    add("--model_name", "--model-name", default="t5-small", help="the model's folder: its tokenizer, and what is compared")
    add("--num_beams", "--num-beams", type=int, default=1)
    add("--compare_hf_fp32", "--compare-hf-fp32", action="store_true",
        help="the checkpoint of --model_name too, run by Nereid in float32")
    add("--log_level", "--log-level", help="no effect")
    add("--debug_mode", "--debug-mode", action="store_true", help="no effect")
    args = p.parse_args()
    for name in ("log_level", "debug_mode"):
        if getattr(args, name):
            print(f"run.py: --{name} has no effect", file=sys.stderr)
    return args


def answer(nereid, args, engine):
    """(ids of each text, ids and text of each first beam, milliseconds)"""
    with nereid.LLM(engine, tokenizer=args.model_name, max_beam_width=args.num_beams) as llm:
        ids = [llm.tokenizer.encode(text) for text in TEXTS]
        params = nereid.SamplingParams(max_tokens=args.max_new_tokens, temperature=0, beam_width=args.num_beams)
        start = time.monotonic()
        outputs = llm.generate(ids, params)
        took = (time.monotonic() - start) * 1000
        return llm.tokenizer, ids, [o.outputs[0] for o in outputs], took


def show(who, outputs, took):
    print(f"{who} output_ids: ", [o.token_ids for o in outputs])
    print(f"{who} output text: ", [o.text for o in outputs])
    print(f"{who} output generated lengths: ", [len(o.token_ids) for o in outputs])
    print(f"{who} E2E time {took}ms")


def precision(folder):
    with open(os.path.join(folder, "decoder", "config.json"), encoding="utf-8") as f:
        return json.load(f)["pretrained_config"]["dtype"]


def checkpoint(nereid, args, folder):
    """The answers of the model's own folder, as an engine of float32."""
    words = ("build", args.model_name, "--dtype", "float32", "--max_beam_width", str(args.num_beams), "-o", folder)
    if subprocess.run([nereid_programs.need("nereid"), *words], check=False, stdout=subprocess.DEVNULL).returncode != 0:
        sys.exit(1)  # it said why
    _, _, outputs, took = answer(nereid, args, folder)
    print(RULE)
    show("HF", outputs, took)
    print(RULE)
    return outputs


def compare(ours, theirs, dtype):
    if dtype != "float32":
        print(f"\n[CAVEAT] Comparing TRT-LLM {dtype} results with HF float32 results. Close match are not expected!")
    rate = difflib.SequenceMatcher(None, "\n".join(o.text for o in ours), "\n".join(o.text for o in theirs)).ratio()
    if not rate > ALIKE:
        sys.exit(f"run.py: the texts differ: match rate {rate}, expected above {ALIKE}")
    print(f"TRT-LLM results match HF FP32 results with literal match rate {rate}")


def main():
    args = arguments()
    nereid = nereid_programs.module()
    try:
        dtype = precision(args.engine_dir)
        tokenizer, ids, outputs, took = answer(nereid, args, args.engine_dir)
        print(RULE)
        print(f"BOS={tokenizer.bos_token_id}, PAD={tokenizer.pad_token_id}, EOS={tokenizer.eos_token_id}")
        print("input text: ", TEXTS)
        print("input ids: ", ids)
        print("input lengths: ", [len(row) for row in ids])
        print(RULE)
        theirs = None
        if args.compare_hf_fp32:
            with tempfile.TemporaryDirectory() as folder:
                theirs = checkpoint(nereid, args, folder)
        print(RULE)
        show("TRT-LLM", outputs, took)
        print("Precision:", dtype)
        print(RULE)
        if theirs is not None:
            compare(outputs, theirs, dtype)
    except (nereid.Error, OSError, ValueError, KeyError) as e:
        sys.exit(f"run.py: {e}")


if __name__ == "__main__":
    main()
