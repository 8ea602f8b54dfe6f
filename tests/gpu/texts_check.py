#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Texts of small models that log probabilities of one prompt do not reach, on a GPU beside the CPU, both in float32:
encoder-decoder models (alone and with beams), pictures in prompts, and prompts that go on from a kept state.

    texts_check.py [--nereid build/bin/nereid] [--devices cuda cpu] [KIND/NAME ...]

Needs numpy. Exit status: 0 all texts equal, 1 not."""
import argparse
import concurrent.futures
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "tinymodel"))
import encdec  # noqa: E402
import make_model  # noqa: E402
import vision  # noqa: E402

STATES = ("mamba", "mamba2", "falcon_mamba", "nemotron_h", "bamba", "falcon_h1", "granitemoehybrid", "lfm2", "qwen3_next", "qwen3_5")
WORDS = "the quick fox sees what is in the wind and so on "
PROMPTS = (WORDS, WORDS * 8, "one")
# the second and third go on behind a block that the first has filled
SHARED = "".join(line + "\n" for line in (WORDS * 8 + "one", WORDS * 8 + "two and what comes then", WORDS * 8 + "one more"))


def run(nereid, device, folder, model, *words, **more):
    done = subprocess.run([nereid, "run", model, "--device", device, "--temperature", "0", "--ignore-eos", "-q", "-n", "40",
                           "--compute-dtype", "float32", "--kv-dtype", "float32", "--kv-cache-free-mem-fraction", "0.02", *words],
                          capture_output=True, text=True, timeout=300, env=dict(os.environ, NEREID_CACHE=str(folder / device)), **more)
    if done.returncode:
        raise RuntimeError(f"{device}: {done.stderr.strip()[-300:]}")
    return done.stdout


def of_encdec(ask, name, folder):
    encdec.write_folder(name, folder / "model")
    for prompt in PROMPTS:
        yield ask("-p", prompt)
    yield ask("-p", WORDS, "--beam-width", "3")


def of_vision(ask, name, folder):
    vision.write_folder(folder / "model", name)
    for number in (0, 4, 5):
        (folder / "p.ppm").write_bytes(vision.ppm(vision.pixels(*vision.PICTURES[number])))
        yield ask("--chat", "-p", "the quick fox", "--image", folder / "p.ppm")


def of_state(ask, name, folder):
    make_model.write_folder(name, folder / "model")
    yield ask(input=SHARED)


KINDS = {"encdec": (of_encdec, encdec.MODELS), "vision": (of_vision, vision.KINDS), "state": (of_state, STATES)}


def check(nereid, devices, kind, name):
    """How many pairs of texts are not equal, and what to say."""
    with tempfile.TemporaryDirectory() as tmp:
        folder = pathlib.Path(tmp)

        def ask(*words, **more):
            return [run(nereid, device, folder, folder / "model", *words, **more) for device in devices]
        try:
            texts = list(KINDS[kind][0](ask, name, folder))
        except RuntimeError as e:
            return 1, f"{kind}/{name}: {e}"
    wrong = [i for i, (a, b) in enumerate(texts) if a != b or not a.strip()]
    return len(wrong), f"{kind}/{name}: {len(texts) - len(wrong)} of {len(texts)} texts equal" + "".join(
        f"\n  {device}: {text.strip()[:400]!r}" for i in wrong for device, text in zip(devices, texts[i]))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("names", nargs="*")
    p.add_argument("--nereid", default=str(ROOT / "build/bin/nereid"))
    p.add_argument("--devices", nargs=2, default=["cuda", "cpu"])
    p.add_argument("--jobs", type=int, default=8)
    args = p.parse_args()
    all_ = [(kind, name) for kind, (_, names) in KINDS.items() for name in names]
    chosen = [(kind, name) for kind, name in all_ if not args.names or f"{kind}/{name}" in args.names]
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        jobs = [pool.submit(check, args.nereid, args.devices, *one) for one in chosen]
        results = [job.result() for job in jobs]
    for _, said in results:
        print(said)
    wrong = sum(n for n, _ in results)
    print(f"{len(results)} models, {wrong} texts differ")
    return wrong > 0 or not results


if __name__ == "__main__":
    sys.exit(main())
