#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Two ranks on two GPUs beside one: log probabilities and greedy texts of small models in 16 bits, and what is
heard when a rank is lost.

    ranks_check.py [--nereid build/bin/nereid] [--folder build/gpu] [MODEL ...]

Exit status: 0 all as it should be.
"""
import argparse
import json
import os
import random
import signal
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
PROMPTS = ["A", "Once upon a time", "The quick brown fox jumps over the lazy dog. " * 3, "1 2 3", "Why", "In 1999"]
TOLERANCE = 0.15  # of 16-bit activations, as in engine.sh check
NEAR = 0.05
failures = []
DEVICE = "cuda"


def check(what, good):
    print(f"{'ok  ' if good else 'FAIL'} {what}", flush=True)
    if not good:
        failures.append(what)


def run(*command, timeout=120):
    r = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
    if r.returncode:
        raise SystemExit(f"{' '.join(command)}: status {r.returncode}\n{r.stderr[-3000:]}")
    return r.stdout


def build(nereid, model, folder, ranks, *more):
    out = f"{folder}/ranks-{os.path.basename(model)}-{ranks}{''.join(more)}"
    run(nereid, "build", "--checkpoint_dir", model, "--output_dir", out, "--device", DEVICE, "--dtype", "float16",
        "--tp_size", str(ranks), "--max_batch_size", "16", *more)
    return out


def log_probs(nereid, engine, tokens, out):
    run(nereid, "eval", engine, "--tokens", tokens, "--out", out, "--device", DEVICE,
        "--kv_cache_free_mem_fraction", "0.02")
    with open(out, encoding="utf-8") as f:
        return [json.loads(line)["logprobs"] for line in f]


def text(nereid, engine, model, prompt):
    return run(nereid, "run", engine, "--tokenizer_dir", model, "-p", prompt, "--temperature", "0", "-n", "48",
               "--ignore_eos", "-q", "--device", DEVICE, "--kv_cache_free_mem_fraction", "0.02")


def compare(nereid, arch, folder):
    model = f"{folder}/ranks-{arch}"
    run(sys.executable, f"{HERE}/../tinymodel/make_model.py", "--arch", arch, "--out", model)
    one, two = (build(nereid, model, folder, n) for n in (1, 2))
    divided = build(nereid, model, folder, 2, "--use_parallel_embedding")
    tokens = f"{folder}/ranks-tokens.jsonl"
    rng = random.Random(1)
    with open(tokens, "w", encoding="utf-8") as f:
        for i, n in enumerate((5, 40, 90, 100)):
            f.write(json.dumps({"id": i, "tokens": [rng.randrange(200) for _ in range(n)]}) + "\n")
    a, b, c = (log_probs(nereid, e, tokens, f"{folder}/ranks-out.jsonl") for e in (one, two, divided))
    check(f"{arch}: with a divided embedding the same log probabilities", b == c)
    worst = max(abs(x - y) for p, q in zip(a, b) for x, y in zip(p[1:], q[1:]))
    check(f"{arch}: log probabilities of two ranks within {worst:.4f} of one's", worst < TOLERANCE)
    same = sum(text(nereid, one, model, p) == text(nereid, two, model, p) for p in PROMPTS[:4])
    check(f"{arch}: {same} of 4 greedy texts are equal", same >= 3)
    return two


def worker_of(pid):
    children = []
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/children", encoding="ascii") as f:
            children += [int(c) for c in f.read().split()]
    for c in children:
        with open(f"/proc/{c}/cmdline", encoding="utf-8") as f:
            if f.read().split("\0")[1:2] == ["worker"]:
                return c
    return None


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as f:
            return f.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def lose(nereid, engine, how):
    bench = subprocess.Popen([nereid, "bench", "throughput", engine, "--device", DEVICE, "--num_requests", "1000000",
                              "--concurrency", "8", "--input_mean", "16", "--output_mean", "200", "--warmup", "0",
                              "--max_batch_size", "8", "--kv_cache_free_mem_fraction", "0.02"],
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    time.sleep(6)  # loaded, and in the middle of steps
    worker = worker_of(bench.pid)
    if not worker or bench.poll() is not None:
        bench.kill()
        check(f"{how.name}: the bench runs: {bench.communicate()[0][-500:]}", False)
        return
    start = time.monotonic()
    os.kill(worker, how)
    try:
        out = bench.communicate(timeout=20)[0]
        took = time.monotonic() - start
        check(f"{how.name}: heard after {took:.1f} s: {out.strip().splitlines()[-1][:160] if out.strip() else ''}",
              took < 6 and bench.returncode != 0 and "rank 1 of 2 was lost" in out)
    except subprocess.TimeoutExpired:
        bench.kill()
        bench.communicate()
        check(f"{how.name}: not heard within 20 s", False)
    until = time.monotonic() + 5
    while alive(worker) and time.monotonic() < until:
        time.sleep(0.05)
    check(f"{how.name}: no rank is left behind", not alive(worker))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--nereid", default="build/bin/nereid")
    p.add_argument("--folder", default="build/gpu")
    p.add_argument("models", nargs="*", default=[])
    p.add_argument("--device", default=DEVICE)
    a = p.parse_args()
    globals()["DEVICE"] = a.device
    os.makedirs(a.folder, exist_ok=True)
    for arch in a.models or ["llama", "gpt2", "qwen2", "gemma2"]:
        try:
            engine = compare(a.nereid, arch, a.folder)
        except SystemExit as e:
            check(f"{arch}: {e}", False)
    for how in (signal.SIGKILL, signal.SIGSTOP):
        lose(a.nereid, engine, how)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
