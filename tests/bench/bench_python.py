#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""nereid.LLM beside `nereid bench throughput`: the same model, lengths and number of requests at once, turn
by turn.

    PYTHONPATH=build/python bench_python.py MODEL [--runs 5] [--requests 32] [--concurrency 8]
"""
import argparse
import json
import pathlib
import random
import statistics
import subprocess
import tempfile
import time

import nereid

ROOT = pathlib.Path(__file__).resolve().parents[2]
parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("model")
parser.add_argument("--runs", type=int, default=5)
parser.add_argument("--requests", type=int, default=32)
parser.add_argument("--concurrency", type=int, default=8)
parser.add_argument("--input-len", type=int, default=64)
parser.add_argument("--output-len", type=int, default=64)
args = parser.parse_args()


def program(streaming):
    with tempfile.TemporaryDirectory() as folder:
        report = pathlib.Path(folder) / "report.json"
        subprocess.run([ROOT / "build/bin/nereid", "bench", "throughput", args.model, "--num_requests",
                        str(args.requests), "--concurrency", str(args.concurrency), "--input_len", str(args.input_len),
                        "--output_len", str(args.output_len), "--json", report, *(["--streaming"] if streaming else [])],
                       check=True, capture_output=True)
        return json.loads(report.read_text())["output_tokens_per_s"]


def module(streaming):
    rng = random.Random(1)
    with nereid.LLM(args.model, max_batch_size=args.concurrency, enable_kv_cache_reuse=False) as llm:
        prompts = [[rng.randrange(llm.info["vocab"]) for _ in range(args.input_len)] for _ in range(args.requests)]
        params = nereid.SamplingParams(max_tokens=args.output_len, temperature=0, repetition_penalty=1.0,
                                       ignore_eos=True)
        llm.generate(prompts[0], nereid.SamplingParams(max_tokens=4, temperature=0))
        start = time.monotonic()
        if streaming:
            n = sum(len(piece.token_ids) for piece in llm.stream(prompts, params))
        else:
            n = sum(len(o.outputs[0].token_ids) for o in llm.generate(prompts, params))
        return n / (time.monotonic() - start)


for streaming in (False, True):
    rates = {"nereid bench": [], "nereid.LLM": []}
    for _ in range(args.runs):
        rates["nereid bench"].append(program(streaming))
        rates["nereid.LLM"].append(module(streaming))
    for name, r in rates.items():
        print(f"{name}{', streaming' if streaming else ''}: median {statistics.median(r):.1f} tokens/s "
              f"({min(r):.1f} to {max(r):.1f})")
