# SPDX-License-Identifier: Apache-2.0
"""Where the programs are, for the entry points that carry the names of the guides: examples/, tools/, scripts/.

They stand in a checkout, whose programs are in build/bin, or under PREFIX/share/nereid, whose programs are in
PREFIX/bin; else the search path decides. The work is done by the programs: these files need nothing but Python.
"""
import argparse
import os
import shutil
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
PREFIX = os.path.dirname(os.path.dirname(ROOT))


def find(name):
    """The path of a program, or None."""
    for folder in (os.path.join(ROOT, "build", "bin"), os.path.join(PREFIX, "bin")):
        path = os.path.join(folder, name)
        if os.access(path, os.X_OK) and not os.path.isdir(path):
            return path
    return shutil.which(name)


def need(name):
    path = find(name)
    if path is None:
        sys.exit(f"{os.path.basename(sys.argv[0])}: there is no program '{name}' in '{ROOT}/build/bin', in "
                 f"'{PREFIX}/bin' or on the search path; build it with `make`")
    return path


def become(*words):
    """Runs `nereid words…` in this process's place."""
    program = need("nereid")
    sys.stdout.flush()
    os.execv(program, [program, *words])


def run(*words):
    """Runs `nereid words…`; a failure ends this program with the same status."""
    status = subprocess.run([need("nereid"), *words], check=False).returncode
    if status != 0:
        sys.exit(status if status > 0 else 128 - status)


def timed(what, *words):
    """The same, and then the line that the guides show: how long it took."""
    if asks_help(words):
        become(*words)
    start = time.monotonic()
    run(*words)
    say_took(what, start)


def say_took(what, start):
    print(f"Total time of {what}: {time.strftime('%H:%M:%S', time.gmtime(time.monotonic() - start))}", flush=True)


def module():
    """The module `nereid`, beside the programs or on Python's path."""
    for folder in (os.path.join(ROOT, "build", "python"), os.path.join(PREFIX, "python")):
        if os.path.isdir(os.path.join(folder, "nereid")):
            sys.path.insert(0, folder)
            break
    try:
        import nereid
    except ImportError as e:
        sys.exit(f"{os.path.basename(sys.argv[0])}: the Python module 'nereid' is needed ({e}); `make` builds it where "
                 "Python.h is (Debian: python3-dev)")
    return nereid


def asks_help(words):
    return any(w in ("-h", "--help") for w in words)


# --qformat that nereid convert makes, too; with these options, or with scales of an 8-bit cache, it does not
PLAIN = (None, "full_prec", "fp8", "int8_wo", "int4_wo")
ITS_OPTIONS = {"gptq", "per_tensor", "static_inputs", "exclude", "exclude_modules", "output_format", "autoq_format", "auto_quantize_bits", "mixed"}


def take(words, *names):
    """The last value of an option under one of its names, and the words without it; None: it is not there."""
    value, rest, words = None, [], list(words)
    while words:
        word = words.pop(0)
        name, equals, text = word.partition("=")
        if not name.startswith("-") or name.lstrip("-").replace("-", "_") not in names:
            rest.append(word)
        elif equals or words:
            value = text if equals else words.pop(0)
    return value, rest


def ranks(text, name):
    if text is None or (text.isdecimal() and int(text) > 0):
        return int(text or 1)
    sys.exit(f"{os.path.basename(sys.argv[0])}: --{name} must be a number above 0, got '{text}'")


def medusa_words(words):
    """What `nereid convert` takes of the heads, and the other words. Without a folder of heads their numbers mean nothing."""
    folder, words = take(words, "medusa_model_dir")
    taken = []
    for name in ("num_medusa_heads", "num_medusa_layers"):
        value, words = take(words, name)
        taken += [f"--{name}={value}"] if value is not None else []
    return (["--speculative_decoding_mode=medusa", f"--medusa_model_dir={folder}", *taken] if folder else []), words


def quantize_calibrated(words, out, layout, medusa):
    """A Hugging Face folder of quantized weights; of several ranks, or with heads, a checkpoint that is made from it."""
    tp, words = take(words, "tp_size")
    pp, words = take(words, "pp_size")
    tp, pp = ranks(tp, "tp_size"), ranks(pp, "pp_size")
    if layout == "hf" and (tp * pp > 1 or medusa):
        sys.exit("quantize.py: --export_format hf is a folder of no ranks and without heads; leave it out, or --tp_size, --pp_size and "
                 "--medusa_model_dir")
    if tp * pp == 1 and not medusa:
        run("quantize", f"--output_dir={out}", *words)
        return
    model, _ = take(words, "model_dir", "m")
    divided = [f"--tp_size={tp}", f"--pp_size={pp}"]
    whole = os.path.abspath(out) + ".quantized"  # of a name that an interrupted run's next one finds
    if model:  # what cannot be divided is told before the work, not behind it
        run("build", f"--checkpoint_dir={model}", f"--output_dir={whole}", "--dry_run", *divided)
    run("quantize", f"--output_dir={whole}", *words)
    try:
        run("convert", f"--model_dir={whole}", f"--output_dir={out}", *divided, *medusa)
    except SystemExit:
        print(f"quantize.py: the quantized model is in '{whole}'; nereid convert or build divides it", file=sys.stderr)
        raise
    shutil.rmtree(whole)


def quantize(words):
    """examples/quantization/quantize.py: what needs texts or small groups is `nereid quantize`, the rest `nereid convert`.
    --export_format says which where both can; without --qformat nothing but the cache gets scales, as there."""
    name, _ = take(words, "qformat")
    cache, _ = take(words, "kv_cache_dtype")
    given = {w.partition("=")[0].lstrip("-").replace("-", "_") for w in words if w.startswith("-")}
    layout, words = take(words, "export_format")
    if layout not in (None, "tensorrt_llm", "hf"):
        sys.exit(f"quantize.py: --export_format is tensorrt_llm or hf, not '{layout}'")
    context, words = take(words, "cp_size")
    if ranks(context, "cp_size") > 1:
        sys.exit(f"quantize.py: --cp_size {context}: there is no context parallelism; use --tp_size or --pp_size")
    medusa, words = medusa_words(words)
    calibrated = name not in PLAIN or ITS_OPTIONS & given or cache in ("int8", "fp8") or layout == "hf"
    if asks_help(words):
        become("quantize" if calibrated or name is None else "convert", "--help")
    if calibrated and name is None and not given & {"autoq_format"}:
        words = [*words, "--qformat=full_prec"]
    start = time.monotonic()
    out, words = take(words, "output_dir", "export_path", "o")
    out = out or "exported_model"
    if calibrated:
        quantize_calibrated(words, out, layout, medusa)
    else:
        run("convert", f"--output_dir={out}", *words, *medusa)
    print(f"Quantized model exported to {out}\nTotal time used {time.monotonic() - start:.2f} s.", flush=True)


def drop(words, *names):
    """The words without these switches, and whether one was there."""
    rest = [w for w in words if not w.startswith("-") or w.lstrip("-").replace("-", "_") not in names]
    return len(rest) < len(words), rest


def convert_checkpoint(words):
    """examples/FAMILY/convert_checkpoint.py. What needs texts, SmoothQuant and scales of an int8 cache, `nereid quantize` does."""
    alpha, rest = take(words, "smoothquant", "sq")
    cache, rest = drop(rest, "int8_kv_cache", "calibrate_kv_cache", "kv")
    if asks_help(words) or (alpha is None and not cache):
        timed("converting checkpoints", "convert", *words)
        return
    start = time.monotonic()
    by_row, rest = drop(rest, "per_channel")
    by_token, rest = drop(rest, "per_token")
    rounded, rest = drop(rest, "use_weight_only")
    bits, rest = take(rest, "weight_only_precision")
    out, rest = take(rest, "output_dir", "output_model_dir", "o")
    for name in ("workers", "log_level"):
        value, rest = take(rest, name)
        if value is not None:
            print(f"convert_checkpoint.py: --{name} has no effect", file=sys.stderr)
    _, rest = drop(rest, "load_model_on_cpu", "convert_model_on_cpu", "load_by_shard")
    how = [f"--qformat={bits or 'int8'}_wo" if rounded else "--qformat=full_prec"]
    if alpha is not None:
        how = ["--qformat=int8_sq", f"--alpha={alpha}", *([] if by_row else ["--per_tensor"]), *([] if by_token else ["--static_inputs"])]
    quantize_calibrated([*rest, *how, "--no-eval", *(["--kv_cache_dtype=int8"] if cache else [])], out or "tllm_checkpoint", None, [])
    say_took("converting checkpoints", start)


def hf_gpt_convert(words):
    """examples/gpt/hf_gpt_convert.py of v0.5 to v0.8. What needs texts is a folder of `nereid quantize`, which build.py takes as well, whole in N-gpu."""
    alpha, rest = take(words, "smoothquant", "sq")
    cache, rest = drop(rest, "calibrate_kv_cache", "kv")
    if asks_help(words) or (alpha is None and not cache):
        become("hf_gpt_convert", *words)
    given = {}
    for name, short, default in (("out_dir", "o", None), ("in_file", "i", None), ("tensor_parallelism", "tp", "1"), ("processes", "p", "4"),
                                 ("model", "model", "gpt2"), ("storage_type", "t", "float32")):
        value, rest = take(rest, name, short)
        given[name] = default if value is None else value
        if given[name] is None:
            sys.exit(f"hf_gpt_convert.py: --{name} is missing")
    _, rest = drop(rest, "load_model_on_cpu", "convert_model_on_cpu")
    ranks(given["tensor_parallelism"], "tensor_parallelism")
    given.update(calibrate_kv_cache=cache, smoothquant=alpha)
    print("\n=============== Arguments ===============", *(f"{name}: {value}" for name, value in given.items()), "=" * 40, sep="\n", flush=True)
    how = ["--qformat=full_prec"] if alpha is None else ["--qformat=int8_sq", f"--alpha={alpha}"]
    run("quantize", f"--model_dir={given['in_file']}", f"--output_dir={os.path.join(given['out_dir'], given['tensor_parallelism'] + '-gpu')}", *how,
        "--no-eval", *(["--kv_cache_dtype=int8"] if cache else []), *rest)


def build_multimodal(folder, words):
    """examples/multimodal/build_*_engine.py; without --output_dir into tmp/trt_engines/NAME/`folder`."""
    out, _ = take(words, "output_dir")
    path, _ = take(words, "model_path")
    if out is None and path:
        words = [*words, f"--output_dir=tmp/trt_engines/{os.path.basename(path.rstrip('/'))}/{folder}"]
    timed("building the multimodal engine", "build_multimodal_engine", *words)


def build(family, words):
    """examples/FAMILY/build.py of v0.5 to v0.8: --model_dir is what the converter left, or a Hugging Face folder; one
    engine for each of --world_size ranks. Defaults are theirs."""
    if asks_help(words):
        become("build", "--help")
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--world_size", "--world-size", type=int, default=1)
    parser.add_argument("--tp_size", "--tp-size", type=int)
    parser.add_argument("--timing_cache", "--timing-cache", default="model.cache")
    args, rest = parser.parse_known_args(words)
    defaults = {"max_batch_size": 256 if family == "gpt" else 8, "max_input_len": 200 if family == "gpt" else 2048,
                "max_output_len": 200 if family == "gpt" else 512, "tokens_per_block": 64,
                "output_dir": f"{family}_outputs"}
    given = {w.partition("=")[0].lstrip("-").replace("-", "_") for w in rest}
    first = [f"--{name}={value}" for name, value in defaults.items() if name not in given]
    if os.path.exists(args.timing_cache):  # the published program takes none for none
        first.append(f"--timing_cache={args.timing_cache}")
    timed(f"building all {args.world_size} engines", "build", "--old_layout", f"--tp_size={args.tp_size or args.world_size}",
          *first, *rest)
