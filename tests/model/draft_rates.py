#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How many tokens a step gives with each kind of draft, and what a token costs: methods × batch sizes, by turns.

    tests/model/draft_rates.py [MODEL] [--drafts METHOD=FOLDER ...] [--batches 1 4 16 32] [--prompts 32] [--tokens 96] [--turns 1] [--again]

Prompts are questions in the model's chat format that the trainings did not see (other topics), answered greedily unless --temperature.
With --again they ask for pieces of prose, documentation and code once more, word by word or with one name changed. Printed for each method and
batch: tokens of a sequence's step, drafted tokens that held, milliseconds of processor time a token, all threads together, and how many times
fewer that are than without drafts: medians over the groups of prompts, each of which all methods answer one after the other. Processor time is counted,
since other programs on the machine change it least. Drafts of fixed length unless --adaptive. Needs the Python module (make python). MODEL: else SmolLM2 from the cache.

With --llama-server llama.cpp's server answers the same prompts in its turns, as NAME=OPTIONS of --llama say, and is compared with itself without
drafts. MODEL is a GGUF file then. Its processor time is that of its process, with HTTP but without what asks.
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import shlex
import socket
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "build/python"), str(pathlib.Path(__file__).parent)]
import nereid  # noqa: E402
import real_prompts  # noqa: E402

THINGS = ["lighthouses", "a lost key", "fog", "harbors", "pottery", "hiking in autumn", "the piano tuner", "board games"]
ASKS = ["Tell me about {}.", "Write a short story about {}.", "Give me four tips about {}.", "Explain {} in simple words."]


def questions(n):
    asks = [ask.format(thing) for thing in THINGS for ask in ASKS]
    return [asks[i * 7 % len(asks)] for i in range(n)]


def once_more(n):
    """Pieces of a story, of a page of documentation and of a program, by turns."""
    page = pathlib.Path(__file__).with_name("perplexity.txt").read_text(encoding="utf-8")
    texts = [real_prompts.STORY, page[900:], real_prompts.CODE]
    changes = ["the name Clara in the place of Mara", "the name Lynx in the place of Nereid", "the name numbers in the place of values"]
    out = []
    for i in range(n):
        text = texts[i % 3]
        at = i // 3 * 400 % max(1, len(text) - 500)
        ask = "Repeat this text word by word:" if i // 3 % 2 == 0 else f"Write this text again, with {changes[i % 3]}:"
        out.append(f"{ask}\n\n{text[at:at + 500]}")
    return out


class Method:
    """An open model with one kind of drafts, and what it did so far."""

    def __init__(self, args, config, batch):
        more = {"speculative_config": json.dumps(config)} if config else {}
        self.llm = nereid.LLM(args.model, max_batch_size=batch, device=args.device, n_threads=args.threads, iter_stats_max_iterations=1 << 20,
                              max_tokens_in_paged_kv_cache=max(8192, batch * (args.tokens + (400 if args.again else 128))), **more)
        self.params = nereid.SamplingParams(max_tokens=args.tokens, temperature=args.temperature, seed=1, ignore_eos=True)
        self.n = self.drafted = self.held = 0
        self.now = time.perf_counter if args.clock else time.process_time
        self.seconds = []  # a token, of each group

    def run(self, texts):
        started = self.now()
        n = sum(len(o.outputs[0].token_ids) for o in self.llm.generate(texts, self.params))
        self.seconds.append((self.now() - started) / n)
        stats = self.llm._inbox.raw.iter_stats()
        self.n += n
        self.drafted += sum(s["n_draft_tokens"] for s in stats)
        self.held += sum(s["n_accepted_draft_tokens"] for s in stats)

    def close(self):
        self.llm.close()


class LlamaServer:
    """The same of llama.cpp's server, which listens on a free port of this host."""

    def __init__(self, args, options, batch):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        context = batch * (args.tokens + (600 if args.again else 200))  # a draft model's server wants some room behind the last token
        self.process = subprocess.Popen([args.llama_server, "-m", args.model, "-t", str(args.threads), "-np", str(batch), "-c", str(context), "-kvu", "-fa", "on",
                                         "--no-cache-prompt", "--cache-ram", "0", "--port", str(port), *shlex.split(options)], stdout=subprocess.DEVNULL,
                                        stderr=subprocess.DEVNULL)
        self.asking = {"n_predict": args.tokens, "temperature": args.temperature, "seed": 1, "ignore_eos": True, "cache_prompt": False}
        self.n = self.drafted = self.held = 0
        self.seconds = []
        while True:
            try:
                urllib.request.urlopen(self.url + "/health").close()
                return
            except (urllib.error.URLError, ConnectionError):
                if self.process.poll() is not None:
                    sys.exit(f"{args.llama_server} {options} ended with {self.process.returncode}")
                time.sleep(0.2)

    def used(self):
        """Seconds of processor time, of all threads."""
        user, system = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    def ask(self, text):
        request = urllib.request.Request(self.url + "/completion", json.dumps({"prompt": text, **self.asking}).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)

    def run(self, texts):
        started = self.used()
        with concurrent.futures.ThreadPoolExecutor(len(texts)) as pool:
            answers = list(pool.map(self.ask, texts))
        n = sum(a["tokens_predicted"] for a in answers)
        self.seconds.append((self.used() - started) / n)
        self.n += n
        self.drafted += sum(a["timings"].get("draft_n", 0) for a in answers)
        self.held += sum(a["timings"].get("draft_n_accepted", 0) for a in answers)

    def close(self):
        self.process.terminate()
        self.process.wait()


def measure(args, configs, batch):
    asks = (once_more if args.again else questions)(max(args.prompts, batch))
    texts = [f"<|im_start|>user\n{ask}<|im_end|>\n<|im_start|>assistant\n" for ask in asks]
    methods = {name: Method(args, config, batch) for name, config in configs.items()}
    if args.llama_server:
        methods |= {f"llama.cpp {name}": LlamaServer(args, options, batch) for name, _, options in (x.partition("=") for x in ["none", *args.llama])}
    for m in methods.values():
        m.run(texts[:batch if args.adaptive else 1])  # what steps cost is learned
        m.n = m.drafted = m.held = 0
        m.seconds.clear()
    # On a clock all places stay taken until the prompts end: drafts end some of a group sooner, and the last ones would run alone.
    group = len(texts) if args.clock else batch
    for _ in range(args.turns):
        for first in range(0, len(texts), group):
            for m in methods.values():
                m.run(texts[first:first + group])
    for name, m in methods.items():
        none = methods["llama.cpp none" if isinstance(m, LlamaServer) else "none"]
        ratio = statistics.median(a / b for a, b in zip(none.seconds, m.seconds))
        print(f"| {name} | {batch} | {m.n / (m.n - m.held):.2f} | {m.held} | {m.drafted} | {1000 * statistics.median(m.seconds):.2f} | {ratio:.3f} |", flush=True)
        m.close()


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model", nargs="?", default=pathlib.Path.home() / ".cache/nereid/models/SmolLM2-135M-Instruct.Q4_1.gguf")
    p.add_argument("--drafts", nargs="*", default=[], help="METHOD=FOLDER or METHOD:TOKENS=FOLDER, as eagle3:3=heads; ngram and lookahead need no folder")
    p.add_argument("--llama-server", metavar="PROGRAM")
    p.add_argument("--llama", nargs="*", default=[], metavar="NAME=OPTIONS", help="as 'ngram=--spec-type ngram-cache'")
    p.add_argument("--batches", type=int, nargs="+", default=[1, 4, 16, 32])
    p.add_argument("--prompts", type=int, default=32)
    p.add_argument("--tokens", type=int, default=96)
    p.add_argument("--turns", type=int, default=1)
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--temperature", type=float, default=0)
    p.add_argument("--adaptive", action="store_true")
    p.add_argument("--again", action="store_true", help="texts that repeat their prompt, in the place of questions")
    p.add_argument("--device", default="cpu")
    p.add_argument("--clock", action="store_true", help="the clock's time instead, all prompts at once: of a GPU")
    args = p.parse_args()
    configs = {"none": None}
    for draft in args.drafts:
        name, _, folder = draft.partition("=")
        method, _, n = name.partition(":")
        configs[name] = {"method": method, "adaptive": args.adaptive, **({"model": folder} if folder else {}), **({"num_speculative_tokens": int(n)} if n else {})}
    print("| method | batch | tokens a step | held | of drafted | ms a token | times less |\n|" + "---|" * 7, flush=True)
    for batch in args.batches:
        measure(args, configs, batch)


if __name__ == "__main__":
    sys.exit(main())
