#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Hold a program's log probabilities against the goldens.

    check_goldens.py [--program "build/bin/nereid eval"] [--tolerance T] [NAME ...]

Writes each tiny model to a temporary folder (numpy) and finds real ones where scripts/fetch_model
puts them, runs

    PROGRAM MODEL --tokens IN.jsonl --out OUT.jsonl --top K --compute-dtype float32

and prints the worst error of each model. IN holds {"id", "tokens"} per line, prompt and greedy
continuation together; OUT must hold {"id", "logprobs", "top"}, entry i about token i given those
before it, null and [] for the first. Exit status: 0 all within tolerance, 1 not, 2 wrong usage.

Compared: every log probability of prompt and continuation; every alternative (one that the program
does not list must have been too small to be listed); the distribution after the prompt; the argmax
of every greedy step, unless best and second are closer than twice the tolerance.
"""

import argparse
import json
import math
import os
import shlex
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
from variants import REAL, SAME, TINY, TOLERANCE, TRTLLM, golden_of, real_path, variant, write_tiny  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(HERE))
DEFAULT_PROGRAM = shlex.quote(os.path.join(ROOT, "build", "bin", "nereid")) + " eval"
TOP_K = 16
RUN_TIMEOUT_S = 900


class Mismatch(Exception):
    """The program's output has the wrong form, or a value is beyond the tolerance."""


def load_golden(name):
    with open(os.path.join(HERE, "goldens", f"{golden_of(name)}.json"), encoding="utf-8") as f:
        return json.load(f)


class ModelAbsent(Exception):
    """A real model that is not on this machine."""


class Worst:
    """The largest error so far and where it is."""

    def __init__(self):
        self.error, self.where, self.n = 0.0, "nothing compared", 0

    def see(self, got, want, where):
        if not isinstance(got, (int, float)) or isinstance(got, bool) or not math.isfinite(got):
            raise Mismatch(f"{where}: expected a finite number, got {got!r}")
        self.n += 1
        error = abs(got - want)
        if error >= self.error:
            self.error, self.where = error, f"{where}: got {got:.6f}, expected {want:.6f}"


def as_pairs(top, where):
    if not isinstance(top, list) or not all(isinstance(p, list) and len(p) == 2 for p in top):
        raise Mismatch(f"{where}: expected a list of [token, logprob], got {top!r:.80}")
    pairs = {token: value for token, value in top}
    if len(pairs) != len(top):
        raise Mismatch(f"{where}: a token is listed twice")
    values = [value for _, value in top]
    if values != sorted(values, reverse=True):
        raise Mismatch(f"{where}: alternatives are not in order")
    return pairs


def compare_top(worst, got, want, where):
    """want: (token, logprob) rows. A token that is not listed must be below all listed."""
    pairs = as_pairs(got, where)
    if not pairs:
        raise Mismatch(f"{where}: no alternatives")
    floor = min(pairs.values())
    for token, value in want:
        if token in pairs:
            worst.see(pairs[token], value, f"{where}, token {token}")
        elif value > floor:
            worst.see(floor, value, f"{where}, token {token} (not listed)")
    return pairs


def compare_last(worst, prompt, got, where):
    ids = prompt.get("last_logit_ids") or range(len(prompt["last_logits"]))
    total = prompt["last_logsumexp"]
    rows = [(token, logit - total) for token, logit in zip(ids, prompt["last_logits"])]
    compare_top(worst, got, rows, where)


def compare_prompt(worst, prompt, got, tolerance):
    """got: the program's line for prompt + continuation."""
    tokens, greedy = prompt["tokens"], prompt["greedy"]
    n, total = len(tokens), len(tokens) + len(greedy["tokens"])
    name = prompt["id"]
    for key in ("logprobs", "top"):
        if not isinstance(got.get(key), list) or len(got[key]) != total:
            raise Mismatch(f"{name}: {key} must be a list of {total} entries")
    if got["logprobs"][0] is not None or got["top"][0] != []:
        raise Mismatch(f"{name}: the first token has nothing before it: null and [] expected")
    for i in range(1, n):
        worst.see(got["logprobs"][i], prompt["logprobs"][i], f"{name}, position {i}")
        compare_top(worst, got["top"][i], prompt["top"][i], f"{name}, position {i}")
    if greedy["tokens"]:
        compare_last(worst, prompt, got["top"][n], f"{name}, after the prompt")
    for step, token in enumerate(greedy["tokens"]):
        where = f"{name}, greedy step {step}"
        worst.see(got["logprobs"][n + step], greedy["logprobs"][step], where)
        pairs = as_pairs(got["top"][n + step], where)
        best = max(pairs, key=pairs.get)
        if best != token and greedy["margins"][step] > 2 * tolerance:
            raise Mismatch(f"{where}: argmax {best}, expected {token} "
                           f"(margin {greedy['margins'][step]})")


def compare(golden, lines, tolerance):
    """lines: {id: output}. The Worst, or Mismatch."""
    worst = Worst()
    for prompt in golden["prompts"]:
        if prompt["id"] not in lines:
            raise Mismatch(f"no line with id {prompt['id']}")
        compare_prompt(worst, prompt, lines[prompt["id"]], tolerance)
    if worst.error > tolerance:
        raise Mismatch(f"error {worst.error:.2e} beyond {tolerance:.1e} at {worst.where}")
    return worst


def build(program, model, engine, options):
    """An engine with other limits than a model is given by itself, for the program's device."""
    device = program[program.index("--device"):][:2] if "--device" in program else []
    command = [program[0], "build", model, "-o", engine, *device, *options]
    subprocess.run(command, capture_output=True, text=True, timeout=RUN_TIMEOUT_S, check=True)
    return engine


def evaluate(program, model_path, golden, folder, more=("--compute-dtype", "float32")):
    """Runs the program on every prompt + continuation; {id: output line}."""
    asked, answer = os.path.join(folder, "in.jsonl"), os.path.join(folder, "out.jsonl")
    with open(asked, "w", encoding="utf-8") as f:
        for p in golden["prompts"]:
            row = {"id": p["id"], "tokens": p["tokens"] + p["greedy"]["tokens"]}
            f.write(json.dumps(row) + "\n")
    command = [*program, model_path, "--tokens", asked, "--out", answer, "--top", str(TOP_K), *more]
    done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_TIMEOUT_S,
                          check=False)
    if done.returncode != 0:
        last = (done.stderr.strip() or done.stdout.strip() or "no message").splitlines()[-1]
        raise Mismatch(f"exit status {done.returncode}: {last}")
    unused = [line for line in done.stderr.splitlines() if "not used: " in line]
    if unused:  # what a model's files have and nobody reads is known by name
        raise Mismatch(unused[0])
    with open(answer, encoding="utf-8") as f:
        rows = [json.loads(line) for line in f if line.strip()]
    return {row["id"]: row for row in rows}


def check(name, program, tolerance, folder):
    """Worst of one model. Raises Mismatch or ModelAbsent."""
    golden = load_golden(name)
    path = real_path(name) if name in REAL else write_tiny(name, folder)
    if name in TINY and "build" in TINY[name]:
        path = build(program, path, os.path.join(folder, "engine"), TINY[name]["build"])
    if path is None:
        raise ModelAbsent(f"{REAL[name]['file']} is not there (scripts/fetch_model)")
    own = 0 if name in REAL else variant(name).get("tolerance", 0)
    return compare(golden, evaluate(program, path, golden, folder), max(tolerance, own))


def main():
    parser = argparse.ArgumentParser(description="Compare a program with the goldens.")
    parser.add_argument("names", nargs="*", help="models; all if none is named")
    parser.add_argument("--program", default=DEFAULT_PROGRAM)
    parser.add_argument("--tolerance", type=float, default=TOLERANCE)
    args = parser.parse_args()
    known = [*TINY, *SAME, *REAL]
    unknown = [n for n in args.names if n not in known]
    if unknown:
        parser.error(f"no golden for {', '.join(unknown)}; there are: {', '.join(known)}")
    failed = 0
    for name in args.names or known:
        start = time.monotonic()
        try:
            with tempfile.TemporaryDirectory() as folder:
                worst = check(name, shlex.split(args.program), args.tolerance, folder)
            verdict = f"ok    {worst.error:.2e} over {worst.n} values, worst at {worst.where}"
        except ModelAbsent as err:
            verdict = f"absent {err}"
            failed += bool(os.environ.get("NEREID_REQUIRE_MODELS"))
        except (Mismatch, OSError, ValueError, KeyError, subprocess.TimeoutExpired) as err:
            verdict, failed = f"WRONG {err}", failed + 1
        print(f"{name:24} {time.monotonic() - start:6.1f} s  {verdict}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
