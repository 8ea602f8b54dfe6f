#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a setting costs and gives, measured and drawn: the curves of docs/tune.md.

    tune_curves.py measure ENGINE --tokenizer DIR --out curves.json [--only threads,batch] [--device cuda]
    tune_curves.py draw curves.json --out docs/images

Each point is measured `--rounds` times, by turns with the others of its curve; a point is the median, its line the least and
the most. Needs nothing but Python and a machine that does nothing else; `policy` and `host` start servers on free ports.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/e2e"))
NEREID = ROOT / "build/bin/nereid"


def run(*words):
    """The figures that `nereid bench` writes."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "figures.json")
        done = subprocess.run([NEREID, "bench", *map(str, words), "--json", path], capture_output=True, text=True)
        if done.returncode != 0:
            raise SystemExit(f"nereid bench {' '.join(map(str, words))}: {done.stderr[-500:]}")
        return json.load(open(path, encoding="utf-8"))


def rows(job, points, rounds):
    """{name: {x: [value of each round]}}; points: [(x, function that measures {name: value})]."""
    out = {}
    for _ in range(rounds):
        for x, measure in points:
            for name, value in measure().items():
                out.setdefault(name, {}).setdefault(x, []).append(value)
                print(job, x, name, value, flush=True)
    return out


class Curves:
    def __init__(self, flags):
        self.engine, self.flags, self.device = flags.engine, flags, ["--device", flags.device]

    def many(self, at_a_time, n_in, n_out, *words):
        return run("throughput", self.engine, *self.device, "--concurrency", at_a_time, "--num-requests", 3 * at_a_time,
                   "--max-batch-size", at_a_time, "--input-len", n_in, "--output-len", n_out, *words)

    def threads(self):
        def one(n):
            return {"one answer alone, ms a token": self.many(1, 32, 64, "--threads", n)["time_per_output_token_ms_p50"],
                    "16 at a time, ms a token": self.many(16, 32, 64, "--threads", n)["time_per_output_token_ms_p50"],
                    "first token of 512, ms": self.many(1, 512, 2, "--threads", n)["time_to_first_token_ms_p50"]}

        return [(n, lambda n=n: one(n)) for n in (1, 2, 4, 6, 8, 12, 16, 24, 32) if n <= (os.cpu_count() or 1)]

    def batch(self):
        def one(n):
            found = self.many(n, 32, 64)
            return {"output tokens/s": found["output_tokens_per_s"], "ms a token of each": found["time_per_output_token_ms_p50"]}

        return [(n, lambda n=n: one(n)) for n in (1, 2, 4, 8, 16, 32, 64)]

    def mixed(self):
        """Long prompts of different lengths keep coming beside running answers of different lengths."""
        def one(n):
            found = self.many(8, 800, 48, "--num-requests", 48, "--input-stdev", 500, "--output-stdev", 16, "--streaming",
                              "--mixed-context-tokens", n)
            return {"longest gap of an answer, 95 % below, ms": found["longest_gap_ms_p95"],
                    "first token, mean, ms": found["time_to_first_token_ms_mean"]}

        return [(n, lambda n=n: one(n)) for n in (32, 64, 128, 256, 512, 1024)]

    def policy(self):
        """64 answers of 256 tokens at a time, which need 24,576 tokens of cache; x: thousands of tokens that it has."""
        def one(n):
            out = {}
            for policy in ("guaranteed_no_evict", "max_utilization"):
                found = self.served([f"batch_scheduler_policy:{policy}", f"max_tokens_in_paged_kv_cache:{n * 1024}"],
                                    "--num_requests", 128, "--concurrency", 64, "--input_len", 128, "--output_len", 256)
                out[f"{policy}: output tokens/s"] = found["output_tokens_per_s"]
                out[f"{policy}: first token, ms"] = found["ttft_ms_p50"]
            return out

        return [(n, lambda n=n: one(n)) for n in (4, 6, 12, 24)]

    def host(self):
        """Prompts of 2,100 tokens that share their first 2,048 in groups; the device's cache holds 16 groups; x: groups."""
        def one(n):
            out = {}
            for gb in (0, 4):
                found = self.served(["enable_kv_cache_reuse:True", "max_tokens_in_paged_kv_cache:40960",
                                     f"kv_cache_host_memory_bytes:{gb << 30}"],
                                    "--num_requests", 4 * n, "--concurrency", 1, "--input_len", 2100, "--output_len", 2,
                                    "--prefix_len", 2048, "--num_prefixes", n)
                out[f"{gb} GB of host memory: first token, ms"] = found["ttft_ms_p50"]
            return out

        return [(n, lambda n=n: one(n)) for n in (8, 16, 32)]

    def served(self, settings, *words):
        from llm_server import Server
        with tempfile.TemporaryDirectory() as cache:
            server = Server(self.engine, cache, "--tokenizer_dir", self.flags.tokenizer, "--set", ",".join(settings))
            try:
                server.wait_ready()
                found = run("serve", f"localhost:{server.grpc}", "--protocol", "grpc", "--api", "infer_stream", "--model",
                            "tensorrt_llm", "--ids", "--ignore-eos", "--vocab", 40000, "--no-progress", *words)
            finally:
                server.stop()
        return flat(found)


def flat(found):
    """Of one level: names as ttft_ms_p50."""
    level = found["levels"][0] if "levels" in found else found
    out = {}
    for name, value in level.items():
        if isinstance(value, dict):
            out.update({f"{name}_{k}": v for k, v in value.items()})
        else:
            out[name] = value
    return out


# ---- drawing ----

COLOURS = ("#2563eb", "#dc2626", "#059669", "#d97706", "#7c3aed", "#0891b2")
WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 640, 300, 64, 40, 16


def ticks(low, high):
    """1, 2, 5 times powers of ten between low and high."""
    return [m * 10 ** e for e in range(-3, 7) for m in (1, 2, 5) if low <= m * 10 ** e <= high]


def draw(curves, x_name):
    """One SVG, both axes logarithmic; curves: {name: {x: [values]}}."""
    import math
    xs = sorted({float(x) for points in curves.values() for x in points})
    ys = [v for points in curves.values() for values in points.values() for v in values]
    x0, x1, y0, y1 = xs[0], xs[-1], min(ys) / 1.2, max(ys) * 1.2
    height = HEIGHT + 18 * len(curves)

    def at_x(x):
        return LEFT + (WIDTH - LEFT - 20) * math.log(x / x0) / math.log(x1 / x0)

    def at_y(y):
        return TOP + (HEIGHT - TOP - BOTTOM) * (1 - math.log(y / y0) / math.log(y1 / y0))

    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" font-family="sans-serif" font-size="12">',
           f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>']
    for y in ticks(y0, y1):
        out.append(f'<path d="M{LEFT} {at_y(y):.1f}H{WIDTH - 20}" stroke="#e5e7eb"/>'
                   f'<text x="{LEFT - 6}" y="{at_y(y) + 4:.1f}" text-anchor="end">{y:g}</text>')
    for x in xs:
        out.append(f'<text x="{at_x(x):.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{x:g}</text>')
    out.append(f'<text x="{(LEFT + WIDTH) / 2}" y="{HEIGHT - 6}" text-anchor="middle">{x_name}</text>')
    for i, (name, points) in enumerate(curves.items()):
        colour, middle = COLOURS[i % len(COLOURS)], []
        for x, values in sorted(points.items(), key=lambda p: float(p[0])):
            px, py = at_x(float(x)), at_y(statistics.median(values))
            middle.append(f"{px:.1f},{py:.1f}")
            out.append(f'<path d="M{px:.1f} {at_y(min(values)):.1f}V{at_y(max(values)):.1f}" stroke="{colour}"/>'
                       f'<circle cx="{px:.1f}" cy="{py:.1f}" r="3" fill="{colour}"/>')
        out.append(f'<polyline points="{" ".join(middle)}" fill="none" stroke="{colour}" stroke-width="2"/>')
        out.append(f'<text x="{LEFT}" y="{HEIGHT + 12 + 18 * i}" fill="{colour}">{name}</text>')
    return "\n".join(out) + "\n</svg>\n"


X_NAMES = {"threads": "threads", "batch": "answers at a time", "mixed": "mixed_context_tokens",
           "policy": "thousands of tokens in the cache", "host": "groups of prompts"}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    p = verbs.add_parser("measure")
    p.add_argument("engine")
    p.add_argument("--tokenizer", help="for the curves with a server")
    p.add_argument("--out", required=True)
    p.add_argument("--only", default="threads,batch,mixed,policy", help=", ".join(X_NAMES))
    p.add_argument("--device", default="cpu")
    p.add_argument("--rounds", type=int, default=3)
    p = verbs.add_parser("draw")
    p.add_argument("curves")
    p.add_argument("--out", required=True, help="folder, made where it is not there; tune-NAME.svg of each")
    flags = parser.parse_args()
    if flags.verb == "draw":
        pathlib.Path(flags.out).mkdir(parents=True, exist_ok=True)
        for name, curves in json.load(open(flags.curves, encoding="utf-8")).items():
            path = pathlib.Path(flags.out) / f"tune-{name}.svg"
            if len({x for points in curves.values() for x in points}) < 2:
                raise SystemExit(f"{flags.curves}: '{name}' has one point; a curve needs two at least")
            path.write_text(draw(curves, X_NAMES[name]), encoding="utf-8")
        return
    found = {}
    for name in flags.only.split(","):
        if name not in X_NAMES:
            parser.error(f"--only: expected some of {', '.join(X_NAMES)}, got '{name}'")
        found[name] = rows(name, getattr(Curves(flags), name)(), flags.rounds)
        with open(flags.out, "w", encoding="utf-8") as f:
            json.dump(found, f, indent=1)


if __name__ == "__main__":
    main()
