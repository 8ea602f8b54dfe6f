#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What each way of quantizing a model costs in accuracy and gives in speed: one table, of one machine.

Each recipe is a line of options of `nereid quantize`. It is quantized into a folder of its own below --output_dir, its answers are
held against the float model's. Then `nereid bench` times the models by turns, so that what else the machine does meets all of
them, and medians are printed. Folders that are there from before are taken as they are.
"""
import argparse
import json
import os
import re
import shlex
import statistics
import subprocess
import sys

sys.dont_write_bytecode = True  # an installed tree stays as it was installed
sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "..", "scripts"))
import nereid_programs  # noqa: E402

RECIPES = ["full_prec --kv_cache_dtype int8", "int8_sq", "int8_sq --mixed auto", "int8_sq --mixed auto --kv_cache_dtype int8", "int8_wo",
           "fp8 --mixed auto", "int4_awq --zero_point --auto_quantize_bits 5", "int4_gptq --zero_point", "int4_awq --zero_point",
           "int4_awq --zero_point --awq_block_size 32", "int4_wo"]


def options():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    p.add_argument("--model_dir", required=True, help="a Hugging Face folder of floats")
    p.add_argument("--output_dir", required=True, help="where the quantized folders go")
    p.add_argument("--recipe", action="append", metavar="WORDS", help="--qformat and further options; may be repeated "
                   "(default: eleven of them)")
    p.add_argument("--calib_dataset", metavar="FILE", help="text to calibrate with (one that is built in)")
    p.add_argument("--calib_size", default="512", metavar="N", help="windows of it at most (512)")
    p.add_argument("--eval_dataset", metavar="FILE", help="text to measure on (one that is built in)")
    p.add_argument("--device", default="cpu", help="to calibrate, measure and time on: cpu or cuda (cpu)")
    p.add_argument("--threads", metavar="N", help="CPU threads (one a core)")
    p.add_argument("--input_len", default="512", metavar="N", help="tokens of the prompt that is timed (512)")
    p.add_argument("--output_len", default="64", metavar="N", help="tokens of its answer (64)")
    p.add_argument("--sequences", default="1", metavar="N", help="also the tokens a second of N answers at a time, a power of two (1)")
    p.add_argument("--runs", type=int, default=3, metavar="N", help="each model so many times, by turns; the median counts (3)")
    p.add_argument("--json", metavar="FILE", help="the figures, for programs")
    args = p.parse_args()
    if args.runs < 1:
        p.error(f"--runs is {args.runs}; at least 1")
    return args


def nereid(*words):
    done = subprocess.run([nereid_programs.need("nereid"), *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"compare.py: nereid {shlex.join(words)}\n{done.stderr.strip().splitlines()[-1]}")


def timed(args, folder, words):
    """Tokens a second of one request: its prompt, and its answer behind the first token; and of --sequences answers at a time."""
    file = os.path.join(args.output_dir, "bench.json")
    cache = [w for w in re.findall(r"--kv_cache_dtype (\w+)", words) if w == "int8" or args.device != "cpu"]  # a CPU has no cache of E4M3
    floats = ["--compute_dtype", "float32"] if words.startswith("fp8") and args.device == "cpu" else []
    nereid("bench", folder, "--device", args.device, "--max-sequences", args.sequences, "--input_len", args.input_len, "--output_len",
           args.output_len, "--runs", "2", "--json", file, *(["--kv_cache_dtype", *cache] if cache else []), *floats, *(["-t", args.threads] if args.threads else []))
    with open(file, encoding="utf-8") as f:
        figures = json.load(f)
    os.remove(file)
    rows = figures["rows"]  # of the second run
    return figures["device"], (rows[0]["prefill_tokens_per_s"], rows[0]["decode_tokens_per_s"], rows[-1]["decode_tokens_per_s"])


def report_of(args, folder, words):
    """What `nereid quantize` measured; quantizes where that is not there yet."""
    file = os.path.join(folder, "report.json")
    given = ["--device", args.device, *(["--calib_dataset", args.calib_dataset] if args.calib_dataset else []), "--calib_size", args.calib_size,
             *(["--eval_dataset", args.eval_dataset] if args.eval_dataset else []), *(["-t", args.threads] if args.threads else [])]
    for once_more in (True, False):
        if os.path.exists(file):
            with open(file, encoding="utf-8") as f:
                report = json.load(f)
            if "perplexity_after" in report:
                return report
        if once_more:
            print(f"{words} …", file=sys.stderr, flush=True)
            nereid("quantize", "--model_dir", args.model_dir, "--output_dir", folder, "--qformat", *shlex.split(words), *given)
    sys.exit(f"compare.py: '{file}' has no perplexity; leave --no_eval out of the recipe '{words}'")


def table(device, rows, sequences):
    many = int(sequences) > 1
    print(f"{device}\n\n| recipe | MB | perplexity | | divergence | same best token | prefill tokens/s | decode tokens/s |"
          + many * f" of {sequences} sequences |" + "\n|---|---|---|---|---|---|---|---|" + many * "---|")
    for r in rows:
        off = f"{100 * (r['perplexity'] / rows[0]['perplexity'] - 1):+.2f} %" if r["recipe"] else ""
        apart = (f"{r['kl_divergence']:.4f}", f"{100 * r['same_best_token']:.1f} %") if r["recipe"] else ("", "")
        print(f"| {r['recipe'] and '`' + r['recipe'] + '`' or 'as it is'} | {r['bytes'] / 1e6:.1f} | {r['perplexity']:.3f} | {off} | "
              f"{apart[0]} | {apart[1]} | {r['prefill_tokens_per_s']:.0f} | {r['decode_tokens_per_s']:.1f} |" + many * f" {r['many_tokens_per_s']:.0f} |")


def time_all(args, rows, folders):
    """Adds the speeds to the rows; gives the device's name."""
    times = [[] for _ in rows]
    for _ in range(args.runs):
        for row, folder, seen in zip(rows, folders, times):
            device, speed = timed(args, folder, row["recipe"])
            seen.append(speed)
    for row, seen in zip(rows, times):
        row["prefill_tokens_per_s"], row["decode_tokens_per_s"], row["many_tokens_per_s"] = map(statistics.median, zip(*seen))
    return device


def main():
    args = options()
    os.makedirs(args.output_dir, exist_ok=True)
    rows, folders = [], [args.model_dir]
    for words in args.recipe or RECIPES:
        folder = os.path.join(args.output_dir, "-".join(words.replace("--", "").split()))
        report = report_of(args, folder, words)
        if not rows:
            rows.append({"recipe": "", "bytes": report["bytes_before"], "perplexity": report["perplexity_before"]})
        folders.append(folder)
        rows.append({"recipe": words, "bytes": report["bytes_after"], "perplexity": report["perplexity_after"],
                     "kl_divergence": report["kl_divergence"], "same_best_token": report["same_best_token"]})
    device = time_all(args, rows, folders)
    table(device, rows, args.sequences)
    if args.json:
        with open(args.json, "w", encoding="utf-8") as f:
            json.dump({"device": device, "model": args.model_dir, "rows": rows}, f, indent=1)


main()
