# SPDX-License-Identifier: Apache-2.0
"""Encoding speed, one thread, against `tokenizers`, on the same text in the same run.

usage: bench_tokenizers.py [MEGABYTES]     (reference first, then ours, three passes each, best taken)
"""
import os
import pathlib
import subprocess
import sys
import tempfile
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
sys.path.insert(0, str(pathlib.Path(__file__).parent))
import test_tokenizers as tt  # noqa: E402
import textgen  # noqa: E402


def documents(megabytes):
    """English-like prose from real words where a word list is at hand, else generated words."""
    import random
    rng = random.Random(1)
    docs, size = [], 0
    files = sorted(pathlib.Path("/usr/share/doc").rglob("copyright"))[:400]
    files += sorted(pathlib.Path("/usr/lib/python3/dist-packages").rglob("*.py"))[:200]
    for f in files:
        text = " ".join(f.read_text("utf-8", "replace").split())
        docs += [text[i:i + 3000] for i in range(0, len(text), 3000)]
    rng.shuffle(docs)
    docs = docs or textgen.corpus(2, 2000)
    out = []
    for i in range(1 << 30):
        d = docs[i % len(docs)] if i % 10 < 9 else textgen.prose(rng, 300).replace("\n", " ").replace("\r", " ")
        out.append(d)
        size += len(d.encode()) + 1
        if size > megabytes * 1e6:
            return out


def best_reference(ref, docs):
    best = 1e9
    for _ in range(3):
        start = time.perf_counter()
        for d in docs:
            ref.encode(d)
        best = min(best, time.perf_counter() - start)
    return best


def main():
    megabytes = float(sys.argv[1]) if len(sys.argv) > 1 else 4
    docs = documents(megabytes)
    data = "\n".join(docs).encode()
    tmp = pathlib.Path(tempfile.mkdtemp())
    driver = tmp / "tok_driver"
    tt.build_driver(driver)
    corpus = textgen.corpus(tt.SEED, 6000) + docs[:1500]
    rows = [("SmolLM2 (published)", *tt.smollm2_reference(tt.CACHE / tt.PUBLISHED[0][0])[:1], tt.CACHE / tt.PUBLISHED[0][0]),
            ("Gemma 3 (published)", *tt.gemma_reference(tt.CACHE / tt.PUBLISHED[1][0])[:1], tt.CACHE / tt.PUBLISHED[1][0])]
    for f in (tt.gpt2, tt.llama3, tt.qwen2, tt.deepseek, tt.tekken, tt.llama2, tt.mistral, tt.t5):
        ref = f(corpus)
        path = tmp / f"{f.__name__}.json"
        ref.save(str(path))
        rows.append((f.__name__ + " (trained here)", ref, path))
    print(f"{len(data) / 1e6:.1f} MB in {len(docs)} documents, one thread")
    print(f"{'tokenizer':28} {'tokenizers MB/s':>16} {'nereid MB/s':>12} {'ratio':>6}")
    for name, ref, path in rows:
        theirs = best_reference(ref, docs)
        out = subprocess.run([driver, "bench", path, "--parse-special"], input=data, stdout=subprocess.PIPE, check=True).stdout
        ours = min(eval(line)["seconds"] for line in out.splitlines())
        print(f"{name:28} {len(data) / 1e6 / theirs:16.2f} {len(data) / 1e6 / ours:12.2f} {theirs / ours:6.1f}", flush=True)


if __name__ == "__main__":
    main()
