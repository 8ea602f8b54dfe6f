#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Whether answers with drafts are those without: greedy, token for token, prompts × methods × batch sizes.

    tests/model/lossless.py [MODEL] [--prompts 200] [--tokens 32] [--batches 1 8 32] [--methods ngram lookahead …]
                            [--heads METHOD=FOLDER …] [--draft MODEL] [--compute-dtype float32]
    tests/model/lossless.py --tiny

Prints a table, and each difference with the distance of the two tokens in the log probabilities of the model alone.
A distance below TIE is a near tie: sums over a token tree are added in another order, and the last bits of a sum decide whether
an activation is rounded up or down to eight bits, as a CPU does before it multiplies quantized weights; behind all layers that
is some tenths of a logit. --compute-dtype float32 rounds nothing: there no two tokens should differ. Any other difference ends the
program with 1. MODEL: else SmolLM2 from the cache. FOLDER: of fit_medusa.py, or trained heads. --tiny: small models of random
weights in float32, with heads of every method; guesses that hold are those along one text that the heads were fitted to. Needs the
Python module (make python).
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "build/python"), str(pathlib.Path(__file__).parent)]

import nereid  # noqa: E402
import real_prompts  # noqa: E402

TIE = 0.5
TEXT = (pathlib.Path(__file__).with_name("perplexity.txt").read_text(encoding="utf-8") + real_prompts.STORY).split()


def prompts_of(n, most_bytes=1 << 20):
    """Stories to go on with, code, questions, and texts that repeat themselves, by turns; no longer than that many bytes."""
    things = ["the moon", "a bicycle", "bread", "the sea", "a clock", "winter", "a library", "copper", "a bridge", "rain"]
    asks = ["Explain {} to a child.", "List five facts about {}.", "Write a short poem about {}.", "What is {} made of?",
            "Repeat three times: I like {}."]
    out = []
    for i in range(n):
        at = i * 37 % (len(TEXT) - 60)
        if i % 4 == 0:
            out.append(" ".join(TEXT[at:at + 20 + i % 30]))
        elif i % 4 == 1:
            out.append(real_prompts.CODE[:60 + i % 160])
        elif i % 4 == 2:
            ask = asks[i // 4 % len(asks)].format(things[i // 4 // len(asks) % len(things)])
            out.append(f"<|im_start|>user\n{ask}<|im_end|>\n<|im_start|>assistant\n")
        else:
            words = " ".join(TEXT[at:at + 6])
            out.append(f"{words}. {words}. {words}")
    return [p.encode()[:most_bytes].decode(errors="ignore") for p in out]


def open_model(model, config, batch, options):
    return nereid.LLM(model, deterministic=True, max_batch_size=batch, iter_stats_max_iterations=1 << 20,
                      speculative_config=json.dumps(config) if config else None, **options)


def answers(model, config, batch, prompts, n_tokens, options):
    """Token ids of each answer, tokens per second, and how many drafted tokens held."""
    params = nereid.SamplingParams(max_tokens=n_tokens, temperature=0, ignore_eos=True)
    with open_model(model, config, batch, options) as llm:
        started = time.monotonic()
        ids = []
        for first in range(0, len(prompts), batch):
            ids += [o.outputs[0].token_ids for o in llm.generate(prompts[first:first + batch], params)]
        seconds = time.monotonic() - started
        steps = llm._inbox.raw.iter_stats()
    drafted, held = (sum(s[k] for s in steps) for k in ("n_draft_tokens", "n_accepted_draft_tokens"))
    return ids, sum(map(len, ids)) / seconds, drafted, held


def distance(model, prompt, alone, other, options):
    """Of the first tokens that differ, in log probabilities behind what both say."""
    at = next(i for i, (a, b) in enumerate(zip(alone, other)) if a != b)
    params = nereid.SamplingParams(max_tokens=at + 1, temperature=0, ignore_eos=True, logprobs=8)
    with open_model(model, None, 1, options) as llm:
        top = dict(llm.generate([prompt], params)[0].outputs[0].top_logprobs[at])
    return at, abs(top.get(alone[at], 0) - top.get(other[at], -99))


def methods_of(args, model):
    """Drafts of fixed length: what a step computes does not depend on the machine's load."""
    known = {"ngram": {"method": "ngram"}, "draft_model": {"method": "draft_model", "model": args.draft or str(model)},
             "lookahead": {"method": "lookahead"}, "mtp": {"method": "mtp", "num_speculative_tokens": 2}}
    for name, folder in (h.split("=", 1) for h in args.heads):
        known[name] = {"method": name, "model": folder, **({} if name == "redrafter" else {"num_speculative_tokens": 20 if name == "medusa" else 4})}
    return {name: {**known[name], "adaptive": False} for name in args.methods or known if name in known and (name != "mtp" or "mtp" in args.methods)}


def tiny(folder):
    """Models and heads of tests/: (name, model, heads, methods, draft model, bytes of a prompt at most)."""
    short = 200  # these models take 256 tokens, of which a prompt has at most one a byte
    sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests/tinymodel")]
    import eagle_heads
    import medusa_heads
    import mtp_layer
    import redrafter_heads

    def make(name, *words):
        subprocess.run([sys.executable, ROOT / "tests/tinymodel/make_model.py", "--out", folder / name, *words], check=True, stdout=subprocess.DEVNULL)
        return folder / name
    llama = make("llama", "--arch", "llama")
    net = eagle_heads.model_of(llama)
    said = subprocess.run([ROOT / "build/bin/nereid", "tokenize", str(llama)], input=prompts_of(1)[0] + "\n", capture_output=True, text=True, check=True)
    prompt = [int(x) for x in said.stdout.split()]
    text, n = net.greedy(prompt, 32), len(prompt)
    heads = {"eagle": eagle_heads.Heads(net, 1), "eagle3": eagle_heads.Heads(net, 3, layers=[0, 1, 1]), "redrafter": redrafter_heads.Drafter(net, 96)}
    for name, h in heads.items():
        h.fit(text, n, 3)
        heads[name] = h.write(folder / name)
    heads["medusa"] = medusa_heads.write_folder(folder / "medusa", 4, 1, net.c["hidden_size"], net.c["vocab_size"])
    yield "Llama", llama, [f"{name}={at}" for name, at in heads.items()], [], None, 1 << 20
    glm, _ = mtp_layer.make(make("glm", "--arch", "glm4_moe"), folder / "mtp")
    mtp_layer.write(glm, folder / "mtp")
    yield "GLM-4.5", folder / "mtp", [], ["mtp"], None, short
    small = make("gptj", "--arch", "gptj")  # has Bamba's vocabulary
    yield "Bamba, with a recurrent state", make("bamba", "--arch", "bamba"), [], ["ngram", "draft_model"], str(small), short


def compare(model, methods, batches, prompts, n_tokens, options=None):
    """Rows (method, batch, answers, same, near ties, others, drafted, held, tokens/s); others: what must not be."""
    options = options or {}
    alone, speed, _, _ = answers(model, None, max(batches), prompts, n_tokens, options)
    rows, ties = [("none", max(batches), len(prompts), len(prompts), 0, 0, 0, 0, speed)], []
    for name, config in methods.items():
        for batch in batches:
            got, speed, drafted, held = answers(model, config, batch, prompts, n_tokens, options)
            wrong = 0
            differing = [i for i in range(len(prompts)) if got[i] != alone[i]]
            for i in differing:
                at, far = distance(model, prompts[i], alone[i], got[i], options)
                ties.append((name, batch, i, at, far))
                wrong += far >= TIE
            rows.append((name, batch, len(prompts), len(prompts) - len(differing), len(differing) - wrong, wrong, drafted,
                         held, speed))
            print("| {} | {} | {} | {} | {} | {} | {} | {} | {:.0f} |".format(*rows[-1]), flush=True)
    return rows, ties


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model", nargs="?")
    p.add_argument("--prompts", type=int, default=200)
    p.add_argument("--tokens", type=int, default=32)
    p.add_argument("--batches", type=int, nargs="+", default=[1, 8, 32])
    p.add_argument("--methods", nargs="+", default=[], help="else all that need no heads, and those of --heads")
    p.add_argument("--heads", nargs="+", default=[], help="METHOD=FOLDER: medusa, eagle, eagle3, redrafter")
    p.add_argument("--tiny", action="store_true")
    p.add_argument("--draft", help="draft model; else MODEL is its own")
    p.add_argument("--compute-dtype")
    args = p.parse_args()
    if args.tiny:
        with tempfile.TemporaryDirectory() as folder:
            wrong = [name for name, *of in tiny(pathlib.Path(folder)) if one(args, *of, name=name, options={"compute_dtype": "float32", "n_threads": 1})]
        return bool(wrong)
    model = args.model or pathlib.Path.home() / ".cache/nereid/models/SmolLM2-135M-Instruct.Q4_1.gguf"
    return one(args, model, args.heads, args.methods, args.draft, options={"compute_dtype": args.compute_dtype} if args.compute_dtype else None)


def one(args, model, heads, methods, draft, most_bytes=1 << 20, name="", options=None):
    """Whether tokens of a model differ where they must not."""
    args.heads, args.methods, args.draft = heads, methods, draft
    print(name, flush=True)
    print("| method | batch | answers | same | near ties | others | drafted | held | tokens/s |\n|" + "---|" * 9, flush=True)
    rows, ties = compare(model, methods_of(args, model), args.batches, prompts_of(args.prompts, most_bytes), args.tokens, options)
    for name, batch, i, at, far in ties:
        print(f"{name}, batch {batch}: prompt {i} differs from token {at} on, {far:.5f} apart")
    return any(row[5] for row in rows)


if __name__ == "__main__":
    sys.exit(main())
