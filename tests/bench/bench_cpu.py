#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Nereid beside llama.cpp (llama-cpp-python), transformers, OpenVINO GenAI, ONNX Runtime GenAI and ik_llama.cpp on the same
model, threads and minutes.

    bench_cpu.py MODEL.gguf [--rounds 5] [--threads 0] [--formats Q4_0,Q8_0] [--transformers] [--openvino]
                 [--onnxruntime FOLDER] [--ik FOLDER [--ik-files FILE.gguf ...]] [--out FOLDER]

Every engine runs in a process of its own; the engines take turns within a round, so that a change of
the machine's speed meets all of them. A cell is the median over the rounds, with the lowest and the
highest; a ratio is the median of the rounds' ratios. `--formats` also converts the file for llama.cpp,
whose formats differ much in speed. `--transformers` (which needs torch, accelerate and gguf) measures
bfloat16 and float32: which is faster depends on the processor. `--openvino` (openvino-genai) reads the same file.
`--onnxruntime` is what `python -m onnxruntime_genai.models.builder -p int4 -e cpu --extra_options int4_accuracy_level=4` made
of the model. `--ik` is the folder of its llama-bench and llama-batched-bench, which regroup the weights as they load (-rtr); `--ik-files` are the same
model as its llama-quantize packs it. llama-cpp-python is left out where it is not installed; `--llamacpp` and `--llamacpp-files` are
the same programs of llama.cpp's own, built for this machine. Writes cpu-NAME.json and cpu-NAME.svg to FOLDER.
"""
import argparse
import importlib.util
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
SEQUENCES = (1, 4, 8, 32)
PROMPT, DECODE_PROMPT, STEPS = 512, 64, 64
CELLS = ["prefill 512", *[f"decode x{n}" for n in SEQUENCES]]


def finished(command, stderr=subprocess.PIPE, **more):
    """Runs a command; its output, and the largest resident set in MiB."""
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True, **more)
    out = child.stdout.read()
    err = child.stderr.read() if child.stderr else out
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        sys.exit(f"{' '.join(map(str, command))}: {err[-2000:]}")
    return out, usage.ru_maxrss / 1024


# ---- the engines: each answers {cell: tokens per second, "load s": …, "peak MiB": …} ----

def nereid(model, threads, folder):
    cells, peak = {}, 0
    program, report = ROOT / "build/bin/nereid", folder / "report.json"
    for name, size, steps, most in (("prefill", PROMPT, 8, 1), ("decode", DECODE_PROMPT, STEPS, 32)):
        _, used = finished([program, "bench", model, "--threads", str(threads), "--input_len", str(size),
                            "--output_len", str(steps), "--max_sequences", str(most), "--json", report])
        peak = max(peak, used)
        answer = json.loads(report.read_text())
        for row in answer["rows"]:
            if name == "prefill":
                cells["prefill 512"] = row["prefill_tokens_per_s"]
            elif row["sequences"] in SEQUENCES:
                cells[f"decode x{row['sequences']}"] = row["decode_tokens_per_s"]
        cells["load s"] = answer["load_s"]
    return cells | {"peak MiB": peak}


def floors(model, threads, folder):
    """Cell -> the share of the time that reading and arithmetic alone would take, and the limits."""
    program, report, shares = ROOT / "build/bin/nereid", folder / "floors.json", {}
    common = ["--threads", str(threads), "--profile", "--json", report]
    for cell, n, size, more, prompts in [("prefill 512", 1, PROMPT, 2, True)] + [
            (f"decode x{n}", n, DECODE_PROMPT, STEPS, False) for n in SEQUENCES]:
        finished([program, "bench", "throughput", model, *common, "--input_len", str(size), "--output_len", str(more),
                  "--concurrency", str(n), "--num_requests", str(12 if prompts else n),
                  "--profile_every", "5" if prompts else "8", "--max_num_tokens", "2048"])
        step = [r for r in json.loads(report.read_text())["profile"]
                if r["operation"] == "step" and r["prompts"] == prompts]
        shares[cell] = step[0]["floor_s"] / step[0]["seconds"]
    finished([program, "bench", "hw", *common])
    return shares, json.loads(report.read_text())["all_threads"]


def peer(kind, model, threads):
    out, used = finished([sys.executable, __file__, "--child", kind, "--threads", str(threads), model])
    return json.loads(out.splitlines()[-1]) | {"peak MiB": used}


def rate(n, run):
    start = time.monotonic()
    run()
    return n / (time.monotonic() - start)


def child_llama(model, threads):
    import llama_cpp as L
    L.llama_backend_init()
    quiet = L.llama_log_callback(lambda *_: None)
    L.llama_log_set(quiet, None)
    start = time.monotonic()
    handle = L.llama_model_load_from_file(model.encode(), L.llama_model_default_params())
    p = L.llama_context_default_params()
    p.n_ctx, p.n_batch, p.n_ubatch, p.n_seq_max = 32 * 2 * (DECODE_PROMPT + STEPS), 2048, 512, 32
    p.n_threads = p.n_threads_batch = threads
    p.kv_unified, p.flash_attn_type = True, 1
    ctx = L.llama_init_from_model(handle, p)
    cells = {"load s": time.monotonic() - start}
    vocab = L.llama_vocab_n_tokens(L.llama_model_get_vocab(handle))
    memory = L.llama_get_memory(ctx)

    def step(rows):  # (token position, sequence, wants logits)
        batch = L.llama_batch_init(len(rows), 0, 1)
        batch.n_tokens = len(rows)
        for i, (pos, seq, logits) in enumerate(rows):
            batch.token[i] = (pos * 7919 + seq * 104729 + 17) % vocab
            batch.pos[i], batch.n_seq_id[i], batch.seq_id[i][0], batch.logits[i] = pos, 1, seq, logits
        assert L.llama_decode(ctx, batch) == 0
        L.llama_synchronize(ctx)
        L.llama_batch_free(batch)

    def prompt(n, n_seqs):
        L.llama_memory_clear(memory, True)
        for s in range(n_seqs):
            step([(i, s, i == n - 1) for i in range(n)])

    prompt(PROMPT, 1)
    cells["prefill 512"] = max(rate(PROMPT, lambda: prompt(PROMPT, 1)) for _ in range(2))
    for n in SEQUENCES:
        prompt(DECODE_PROMPT, n)
        cells[f"decode x{n}"] = rate(n * STEPS, lambda: [
            step([(DECODE_PROMPT + t, s, True) for s in range(n)]) for t in range(STEPS)])
    return cells


def child_transformers(model, threads, dtype="bfloat16"):
    import torch
    from transformers import AutoModelForCausalLM
    torch.set_num_threads(threads)
    path = pathlib.Path(model)
    start = time.monotonic()
    net = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=getattr(torch, dtype))
    cells = {"load s": time.monotonic() - start}
    with torch.inference_mode():
        ids = torch.randint(5, 40000, (1, PROMPT))
        net(ids, logits_to_keep=1)
        cells["prefill 512"] = max(rate(PROMPT, lambda: net(ids, logits_to_keep=1)) for _ in range(2))
        for n in SEQUENCES:
            count = max(2, 16 // n)  # it is slow
            out = net(torch.randint(5, 40000, (n, DECODE_PROMPT)), use_cache=True, logits_to_keep=1)
            token, cache = out.logits[:, -1:].argmax(-1), out.past_key_values

            def steps(token=token, cache=cache, count=count):
                for _ in range(count):
                    token = net(token, past_key_values=cache, use_cache=True).logits[:, -1:].argmax(-1)
            cells[f"decode x{n}"] = rate(n * count, steps)
    return cells


def child_openvino(model, threads):
    import numpy as np
    import openvino as ov
    import openvino_genai as genai
    start = time.monotonic()
    pipe = genai.LLMPipeline(model, "CPU", INFERENCE_NUM_THREADS=threads)
    cells = {"load s": time.monotonic() - start}

    random = np.random.default_rng(1)

    def generate(n, size, steps):  # new tokens each time: it keeps what it has computed
        ids = random.integers(5, 40000, (n, size))
        how = genai.GenerationConfig(max_new_tokens=steps, min_new_tokens=steps, ignore_eos=True, do_sample=False)
        return pipe.generate(genai.TokenizedInputs(ov.Tensor(ids), ov.Tensor(np.ones_like(ids))), how).perf_metrics

    generate(1, PROMPT, 2)
    cells["prefill 512"] = max(PROMPT / generate(1, PROMPT, 2).get_ttft().mean * 1000 for _ in range(2))
    for n in SEQUENCES:
        cells[f"decode x{n}"] = generate(n, DECODE_PROMPT, STEPS).get_throughput().mean
    return cells


def child_onnxruntime(model, threads):
    import numpy as np
    import onnxruntime_genai as genai
    start = time.monotonic()
    config = genai.Config(model)
    config.overlay(json.dumps({"model": {"decoder": {"session_options": {"intra_op_num_threads": threads}}}}))
    net = genai.Model(config)
    cells = {"load s": time.monotonic() - start}

    def begin(n, size, steps):
        params = genai.GeneratorParams(net)
        params.set_search_options(max_length=size + steps + 1, min_length=size + steps + 1, batch_size=n, do_sample=False)
        generator = genai.Generator(net, params)
        ids = np.random.default_rng(1).integers(5, 40000, (n, size)).astype(np.int32)

        def prompt():
            generator.append_tokens(ids)
            generator.generate_next_token()
        return generator, prompt

    begin(1, PROMPT, 2)[1]()
    cells["prefill 512"] = max(rate(PROMPT, begin(1, PROMPT, 2)[1]) for _ in range(2))
    for n in SEQUENCES:
        generator, prompt = begin(n, DECODE_PROMPT, STEPS + 1)
        prompt()
        cells[f"decode x{n}"] = rate(n * STEPS, lambda g=generator: [g.generate_next_token() for _ in range(STEPS)])
    return cells


def llama_programs(model, threads, programs, folder, regroups):
    """ik_llama.cpp's, which can regroup weights as they load and write a file llama.log where they run, or llama.cpp's."""
    common = ["-m", model, "-t", str(threads), "-fa"]
    out, _ = finished([programs / "llama-bench", *common, "1", *(["-rtr", "1"] if regroups else []), "-p", str(PROMPT), "-n", "0", "-r", "2",
                       "-o", "json"], cwd=folder)
    cells = {"prefill 512": json.loads(out)[0]["avg_ts"], "load s": float("nan")}
    out, peak = finished([programs / "llama-batched-bench", *common, "on", *(["-rtr"] if regroups else []), "-c", str(64 * (DECODE_PROMPT + STEPS)), "-npp",
                          str(DECODE_PROMPT), "-ntg", str(STEPS), "-npl", ",".join(map(str, SEQUENCES))],
                         stderr=subprocess.STDOUT, cwd=folder)  # its table goes to stderr
    for line in out.splitlines():
        words = [w.strip() for w in line.strip("| ").split("|")]
        if len(words) > 7 and words[0] == str(DECODE_PROMPT):
            cells[f"decode x{words[2]}"] = float(words[7])
    return cells | {"peak MiB": peak}


def converted(model, form, folder):
    """The same weights in another format of llama.cpp."""
    import llama_cpp as L
    quiet = L.llama_log_callback(lambda *_: None)
    L.llama_log_set(quiet, None)
    path = folder / f"{form}.gguf"
    p = L.llama_model_quantize_default_params()
    p.ftype, p.allow_requantize = getattr(L, f"LLAMA_FTYPE_MOSTLY_{form}"), True
    if L.llama_model_quantize(str(model).encode(), str(path).encode(), p):
        sys.exit(f"llama.cpp cannot convert {model} to {form}")
    return path


# ---- the report ----

def summary(values):
    return {"median": statistics.median(values), "low": min(values), "high": max(values)}


def svg(title, names, table):
    width, bar, left = 760, 14, 190
    most = {c: max(table[n][c]["median"] for n in names) for c in CELLS}
    height = 60 + len(CELLS) * (len(names) * (bar + 3) + 18)
    colors = ["#2563a8", "#c0762b", "#8a8f98", "#5b9a68", "#9b6bb3", "#b3574f"]
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
           'font-family="sans-serif" font-size="11"><rect width="100%" height="100%" fill="#fff"/>',
           f'<text x="12" y="24" font-size="15">{title}, tokens/s</text>']
    y = 44
    for cell in CELLS:
        out.append(f'<text x="12" y="{y + 12}" font-weight="bold">{cell}</text>')
        y += 18
        for i, n in enumerate(names):
            v = table[n][cell]
            w = (width - left - 70) * v["median"] / most[cell]
            out.append(f'<text x="{left - 8}" y="{y + 11}" text-anchor="end">{n}</text>'
                       f'<rect x="{left}" y="{y}" width="{w:.1f}" height="{bar}" '
                       f'fill="{colors[i % len(colors)]}"/>'
                       f'<text x="{left + w + 5:.1f}" y="{y + 11}">{v["median"]:.0f}</text>')
            y += bar + 3
    return "\n".join(out + ["</svg>\n"])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--formats", default="")
    parser.add_argument("--transformers", action="store_true")
    parser.add_argument("--openvino", action="store_true")
    parser.add_argument("--onnxruntime", help="folder of an ONNX model of the same weights")
    parser.add_argument("--ik", type=pathlib.Path, help="folder of ik_llama.cpp's programs")
    parser.add_argument("--llamacpp", type=pathlib.Path, help="folder of llama.cpp's programs, where llama-cpp-python is not installed")
    parser.add_argument("--llamacpp-files", type=pathlib.Path, nargs="+", default=[], help="the model in other formats, from its llama-quantize")
    parser.add_argument("--ik-files", type=pathlib.Path, nargs="+", default=[], help="the model in formats of its own, from its llama-quantize")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "build/bench")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        kind, *dtype = args.child.split()
        run = {"llama": child_llama, "transformers": child_transformers, "openvino": child_openvino,
               "onnxruntime": child_onnxruntime}[kind]
        print(json.dumps(run(args.model, args.threads, *dtype)))
        return
    with tempfile.TemporaryDirectory() as folder:
        folder, model = pathlib.Path(folder), pathlib.Path(args.model).resolve()
        engines = {"nereid": lambda: nereid(model, args.threads, folder)}
        if importlib.util.find_spec("llama_cpp"):
            engines["llama.cpp"] = lambda: peer("llama", str(model), args.threads)
        for form in filter(None, args.formats.split(",")):
            path = converted(model, form, folder)
            engines[f"llama.cpp {form}"] = lambda p=path: peer("llama", str(p), args.threads)
        if args.transformers:
            for dtype in ("bfloat16", "float32"):
                engines[f"transformers {dtype}"] = lambda d=dtype: peer(f"transformers {d}", str(model), args.threads)
        if args.openvino:
            engines["OpenVINO GenAI"] = lambda: peer("openvino", str(model), args.threads)
        if args.onnxruntime:
            engines["ONNX Runtime GenAI int4"] = lambda: peer("onnxruntime", args.onnxruntime, args.threads)
        if args.ik:
            for name, path in [("-rtr", model), *((f.stem, f.resolve()) for f in args.ik_files)]:
                engines[f"ik_llama.cpp {name}"] = lambda p=path: llama_programs(p, args.threads, args.ik.resolve(), folder, True)
        if args.llamacpp:
            for path in [model, *(f.resolve() for f in args.llamacpp_files)]:
                engines[f"llama.cpp {path.stem}"] = lambda p=path: llama_programs(p, args.threads, args.llamacpp.resolve(), folder, False)
        engines["nereid"]()  # builds the engine where there is none yet
        rounds = [{name: run() for name, run in engines.items()} for _ in range(args.rounds)]
        share, limits = floors(model, args.threads, folder)
    names, cells = list(engines), CELLS + ["load s", "peak MiB"]
    table = {n: {c: summary([r[n][c] for r in rounds]) for c in cells} for n in names}
    ratio = {n: {c: summary([r["nereid"][c] / r[n][c] for r in rounds]) for c in cells}
             for n in names[1:]}
    title = f"{model.stem}, {args.threads} thread{'s' * (args.threads > 1)}, {args.rounds} rounds"
    print(title)
    print(f"| {'':24} | " + " | ".join(f"{c:>16}" for c in cells) + " |")
    print(f"|{'-' * 26}|" + "|".join("-" * 18 for _ in cells) + "|")
    for n in names:
        print(f"| {n:24} | " + " | ".join(
            "{:>16}".format("{median:.4g} ({low:.4g}-{high:.4g})".format(**table[n][c])) for c in cells) + " |")
    for n in names[1:]:
        print(f"| {'nereid / ' + n:24} | " + " | ".join(
            "{:>16}".format("{median:.2f}".format(**ratio[n][c])) for c in cells) + " |")
    print(f"| {'nereid, of its floor':24} | " + " | ".join(
        f"{share[c]:>16.0%}" if c in share else " " * 16 for c in cells) + " |")
    print("limits: {read_bytes_per_s:.3g} B/s, {eight_bit_ops_per_s:.3g} 8-bit and {float_ops_per_s:.3g} float "
          "operations/s".format(**limits))
    args.out.mkdir(parents=True, exist_ok=True)
    stem = args.out / f"cpu-{model.stem}-{args.threads}t"
    pathlib.Path(f"{stem}.json").write_text(json.dumps(
        {"title": title, "table": table, "ratio": ratio, "of_floor": share, "limits": limits}, indent=1))
    pathlib.Path(f"{stem}.svg").write_text(svg(title, names, table))
    print(f"{stem}.json, {stem}.svg")


if __name__ == "__main__":
    main()
