#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How many tokens a step gives with each kind of draft, and what a token costs: methods × batch sizes, by turns.

    tests/model/draft_rates.py [MODEL] [--drafts METHOD=FOLDER ...] [--batches 1 4 16 32] [--prompts 32] [--tokens 96] [--turns 2]

Prompts are questions in the model's chat format that the trainings did not see (other topics), answered greedily. Printed for each method and
batch: tokens of a sequence's step, drafted tokens that held, milliseconds of processor time a token, all threads together, and how many times
fewer that are than without drafts (medians of the turns). Processor time is counted, since other programs on the machine change it least. Drafts of fixed
length unless --adaptive. Needs the Python module (make python). MODEL: else SmolLM2 from the cache.
"""
import argparse
import json
import pathlib
import statistics
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "build/python")]
import nereid  # noqa: E402

THINGS = ["lighthouses", "a lost key", "fog", "harbors", "pottery", "hiking in autumn", "the piano tuner", "board games"]
ASKS = ["Tell me about {}.", "Write a short story about {}.", "Give me four tips about {}.", "Explain {} in simple words."]


def prompts(n):
    asks = [ask.format(thing) for thing in THINGS for ask in ASKS]
    return [f"<|im_start|>user\n{asks[i * 7 % len(asks)]}<|im_end|>\n<|im_start|>assistant\n" for i in range(n)]


def measure(args, config, batch):
    """Tokens of a sequence's step, drafted, held, processor seconds of a token."""
    params = nereid.SamplingParams(max_tokens=args.tokens, temperature=0, ignore_eos=True)
    texts = prompts(max(args.prompts, batch))
    more = {"speculative_config": json.dumps(config)} if config else {}
    with nereid.LLM(args.model, max_batch_size=batch, n_threads=args.threads, iter_stats_max_iterations=1 << 20, **more) as llm:
        llm.generate(texts[:batch], params)
        llm._inbox.raw.iter_stats()
        started, n = time.process_time(), 0
        for first in range(0, len(texts), batch):
            n += sum(len(o.outputs[0].token_ids) for o in llm.generate(texts[first:first + batch], params))
        seconds = (time.process_time() - started) / n
        stats = llm._inbox.raw.iter_stats()
    drafted, held = (sum(s[k] for s in stats) for k in ("n_draft_tokens", "n_accepted_draft_tokens"))
    return n / max(n - held, 1), drafted, held, seconds


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model", nargs="?", default=pathlib.Path.home() / ".cache/nereid/models/SmolLM2-135M-Instruct.Q4_1.gguf")
    p.add_argument("--drafts", nargs="*", default=[], help="METHOD=FOLDER or METHOD:TOKENS=FOLDER, as eagle3:3=heads; ngram and lookahead need no folder")
    p.add_argument("--batches", type=int, nargs="+", default=[1, 4, 16, 32])
    p.add_argument("--prompts", type=int, default=32)
    p.add_argument("--tokens", type=int, default=96)
    p.add_argument("--turns", type=int, default=2)
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--adaptive", action="store_true")
    args = p.parse_args()
    configs = {"none": None}
    for draft in args.drafts:
        name, _, folder = draft.partition("=")
        method, _, n = name.partition(":")
        configs[name] = {"method": method, "adaptive": args.adaptive, **({"model": folder} if folder else {}), **({"num_speculative_tokens": int(n)} if n else {})}
    print("| method | batch | tokens a step | held | of drafted | ms a token | times less |\n|" + "---|" * 7, flush=True)
    for batch in args.batches:
        got = {name: [] for name in configs}
        for _ in range(args.turns):
            for name, config in configs.items():
                got[name].append(measure(args, config, batch))
        plain = statistics.median(x[3] for x in got["none"])
        for name, x in got.items():
            cost = statistics.median(one[3] for one in x)
            print(f"| {name} | {batch} | {x[0][0]:.2f} | {x[0][2]} | {x[0][1]} | {1000 * cost:.2f} | {plain / cost:.2f} |", flush=True)


if __name__ == "__main__":
    sys.exit(main())
