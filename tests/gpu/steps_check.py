#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Log probabilities of long prompts computed in large steps beside those computed in small ones, where other kernels multiply.

    steps_check.py NEREID FOLDER

Six layers of the 8B shape with random weights, in fp8 and in bf16. Rounding makes them differ: by 0.08 nats a token in the mean in
fp8 (NVIDIA H200), where an operation that is wrong makes another model of it (1.4)."""
import json
import pathlib
import random
import subprocess
import sys

LIMITS = {"fp8": 0.2, "bf16": 0.05}
CONFIG = pathlib.Path(__file__).parent / "llama-3.1-8b.json"


def run(*args):
    subprocess.run([str(a) for a in args], check=True, stdout=subprocess.DEVNULL)


def log_probs(path):
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [x for row in sorted(rows, key=lambda row: row["id"]) for x in row["logprobs"] if x is not None]


def main():
    nereid, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    config = json.loads(CONFIG.read_text()) | {"num_hidden_layers": 6}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "six-layers.json").write_text(json.dumps(config))
    chance = random.Random(5)
    prompts = [{"id": str(i), "tokens": [chance.randrange(10, 128000) for _ in range(n)]} for i, n in enumerate((1200, 700, 640, 300))]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(p) + "\n" for p in prompts))
    wrong = 0
    for kind, options in (("fp8", ["--quantize", "fp8", "--fp8_kv_cache"]), ("bf16", ["--dtype", "bfloat16"])):
        engine = folder / f"six-layers-{kind}"
        run(nereid, "build", "--load_format", "dummy", "--model_config", folder / "six-layers.json", "--output_dir", engine,
            "--device", "cuda", "--max_batch_size", 64, "--max_seq_len", 4096, *options)
        found = []
        for tokens in (8192, 256):
            out = folder / f"{kind}.{tokens}.jsonl"
            run(nereid, "eval", engine, "--device", "cuda", "--tokens", folder / "prompts.jsonl", "--out", out,
                "--max-num-tokens", tokens, "--kv_cache_free_mem_fraction", 0.05)
            found.append(log_probs(out))
        differences = [abs(a - b) for a, b in zip(*found)]
        mean = sum(differences) / len(differences)
        wrong += mean > LIMITS[kind] or len(found[0]) != len(found[1])
        print(f"{kind}: {len(differences)} tokens in steps of 8,192 and of 256: mean difference {mean:.4f}, worst {max(differences):.3f}, "
              f"at most {LIMITS[kind]} in the mean")
    return wrong > 0


if __name__ == "__main__":
    sys.exit(main())
