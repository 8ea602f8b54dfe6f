#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the published repositories, clients and scripts of the TensorRT-LLM backend, unmodified, against this
server, and writes a table: script, options, release, pass or fail with the last line of what it said.

    published.py CHECKOUT --python PYTHON --out TABLE.tsv [--tags v0.5.0 …] [--work FOLDER]

CHECKOUT is a git clone of the backend's repository; each release is unpacked from its tag. PYTHON is an
interpreter with numpy, torch, transformers, tritonclient and pandas: their models and clients import them.
The ports 8000, 8001 and 8002 must be free: some scripts know no others; and no other tritonserver may run, or
their launch_triton_server.py starts none (it needs mpirun): `unshare -npf --mount-proc` and `ip link set lo up`.
The model is a small random GPT-2 with the vocabulary's size of the real one, which the scripts check.
"""
import argparse
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(ROOT / "tests/tinymodel")]
BIN = pathlib.Path(os.environ.get("NEREID_BIN", ROOT / "build/bin"))
TAGS = ["v0.5.0", "v0.7.2", "v0.8.0", "v0.9.0", "v0.11.0", "v0.13.0", "v0.16.0", "v0.19.0"]
MODELS = ["preprocessing", "tensorrt_llm", "postprocessing", "ensemble", "tensorrt_llm_bls"]
VOCABULARY = 50257
CLIENT = "inflight_batcher_llm/client/inflight_batcher_llm_client.py"
TEXT_CLIENT = "inflight_batcher_llm/client/end_to_end_grpc_client.py"
TOOLS = "tools/inflight_batcher_llm/"
DRAFT_CLIENT = "inflight_batcher_llm/client/e2e_grpc_speculative_decoding_client.py"
METRICS = "ci/L0_backend_trtllm/base_metrics_verification_tests.py"

# The published images have Python 3.10. 3.11 refuses arrays as defaults of a dataclass, which the models of
# tensorrt_llm_bls from v0.9 on have: this brings back what 3.10 does, around the unchanged files.
AS_PYTHON_3_10 = """import dataclasses, inspect, sys
if sys.version_info >= (3, 11):
    text = inspect.getsource(dataclasses._get_field)
    exec(text.replace("f.default.__class__.__hash__ is None", "isinstance(f.default, (list, dict, set))"),
         dataclasses.__dict__)
"""

# What is known to fail: (first, last release, script, option, why).
KNOWN = [
    # It lies in the script or the machine.
    ("v0.7.2", "v0.13.0", CLIENT, "--streaming --beam-width 4",
     "the script compares an array of four lengths with None, which NumPy refuses"),
    ("v0.8.0", "v0.13.0", CLIENT, "--streaming --return-generation-logits",
     "the script keeps logits only when it does not stream, and prints the shape of None"),
    ("v0.8.0", "v0.19.0", TOOLS + "end_to_end_test.py", "--return-context-logits",
     "the script puts the logits on a GPU"),
    ("v0.13.0", "v0.13.0", TOOLS + "end_to_end_test.py", "",
     "the script puts the logits, which are zeros here, on a GPU"),
    ("v0.5.0", "v0.19.0", "tools/gpt/end_to_end_test.py", "",
     "the script sends a batch of eight prompts and `output_log_probs`, which the models of its own release refuse"),
    ("v0.5.0", "v0.5.0", CLIENT, "--beam-width 4", "its repository sets `max_beam_width` to 1"),
    ("v0.8.0", "v0.8.0", TEXT_CLIENT, "tensorrt_llm_bls --streaming --return-generation-logits",
     "its BLS model passes the tensor on with a dimension less than its `tensorrt_llm` wants"),
    ("v0.7.2", "v0.9.0", METRICS, "",
     "the script wants an ensemble's time to be no less than its steps' together, which later releases of it dropped"),
]


def version(tag):
    return tuple(int(p) for p in tag[1:].split("."))


def make_model(folder, words):
    """A GPT-2 folder: random weights, a byte-level tokenizer whose tokens beyond the bytes are fillers."""
    import numpy as np
    hidden, layers = 32, 2
    rng = np.random.default_rng(7)
    shapes = {"wte.weight": (VOCABULARY, hidden), "wpe.weight": (1024, hidden), "ln_f.weight": (hidden,),
              "ln_f.bias": (hidden,)}
    for i in range(layers):
        h = f"h.{i}."
        shapes.update({h + "ln_1.weight": (hidden,), h + "ln_1.bias": (hidden,), h + "ln_2.weight": (hidden,),
                       h + "ln_2.bias": (hidden,), h + "attn.c_attn.weight": (hidden, 3 * hidden),
                       h + "attn.c_attn.bias": (3 * hidden,), h + "attn.c_proj.weight": (hidden, hidden),
                       h + "attn.c_proj.bias": (hidden,), h + "mlp.c_fc.weight": (hidden, 4 * hidden),
                       h + "mlp.c_fc.bias": (4 * hidden,), h + "mlp.c_proj.weight": (4 * hidden, hidden),
                       h + "mlp.c_proj.bias": (hidden,)})
    head, data, at = {}, [], 0
    for name, shape in shapes.items():
        values = (rng.standard_normal(shape) * 0.3).astype(np.float32)
        if name.endswith(("ln_1.weight", "ln_2.weight", "ln_f.weight")):
            values[:] = 1
        head[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [at, at + values.nbytes]}
        data.append(values.tobytes())
        at += values.nbytes
    folder.mkdir(parents=True)
    text = json.dumps(head).encode()
    with open(folder / "model.safetensors", "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text + b"".join(data))
    (folder / "config.json").write_text(json.dumps({
        "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": VOCABULARY, "n_positions": 1024,
        "n_ctx": 1024, "n_embd": hidden, "n_layer": layers, "n_head": 2, "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5, "bos_token_id": VOCABULARY - 1, "eos_token_id": VOCABULARY - 1}))
    write_tokenizer(folder, words)
    return folder


def byte_letters():
    """GPT-2's letters for the 256 bytes."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters, n = {}, 0
    for b in range(256):
        letters[b] = chr(b) if b in plain else chr(256 + n)
        n += b not in plain
    return letters


def write_tokenizer(folder, words):
    """A token for each byte and, letter by letter, for each of `words`, as long prompts need few."""
    letters = byte_letters()
    vocab = {letters[b]: i for i, b in enumerate(sorted(letters))}
    merges = []
    for word in words:
        text = "".join(letters[b] for b in word.encode())
        for n in range(2, len(text) + 1):
            if text[:n] not in vocab and len(vocab) < 40000:
                merges.append(f"{text[:n - 1]} {text[n - 1]}")
                vocab[text[:n]] = len(vocab)
    for i in range(len(vocab), VOCABULARY - 1):
        vocab[f"filler{i}"] = i
    end = "<|endoftext|>"
    vocab[end] = VOCABULARY - 1
    (folder / "vocab.json").write_text(json.dumps(vocab))
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges]) + "\n")
    (folder / "tokenizer_config.json").write_text(json.dumps({
        "tokenizer_class": "GPT2Tokenizer", "model_max_length": 1024, "bos_token": end, "eos_token": end,
        "unk_token": end}))


def end_group(group):
    """mpirun and its servers, which may be gone already."""
    try:
        os.killpg(group, signal.SIGTERM)
        for _ in range(400):
            time.sleep(0.1)
            os.killpg(group, 0)
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        pass


class Release:
    """One tag: its files, a filled repository, a server."""

    def __init__(self, tag, checkout, work, python, engine, tokenizer):
        self.tag, self.python, self.engine, self.tokenizer = tag, python, engine, tokenizer
        self.root = work / tag / "backend"
        self.root.mkdir(parents=True)
        files = subprocess.run(["git", "-C", checkout, "archive", tag], check=True, capture_output=True).stdout
        subprocess.run(["tar", "x", "-C", self.root], input=files, check=True)
        self.work = work / tag
        self.server = None
        self.token_env = {}
        self.data = str(self.root / "ci/L0_backend_trtllm/simple_data.json")
        self.tok = ["--tokenizer-dir", str(tokenizer)]

    def has(self, path):
        return (self.root / path).is_file()

    def text(self, path):
        return (self.root / path).read_text() if self.has(path) else ""

    def repository(self, mode):
        """Their models, copied and filled with their own tool. Their test of counts wants no BLS model."""
        repo = self.work / f"repo-{mode}"
        shutil.copytree(self.root / "all_models/inflight_batcher_llm", repo)
        if mode.startswith("base"):
            shutil.rmtree(repo / "tensorrt_llm_bls", ignore_errors=True)
        engine = self.engine.with_name("engine-tp2") if mode == "launched" else self.engine
        values = {"tokenizer_dir": self.tokenizer, "engine_dir": engine, "tokenizer_type": "auto",
                  "triton_max_batch_size": 64, "decoupled_mode": mode in ("stream", "accumulate", "python-stream", "launched"),
                  "triton_backend": "python" if mode.startswith("python") else "tensorrtllm",
                  "batching_strategy": "V1" if mode == "v1" else "inflight_fused_batching",
                  "max_queue_delay_microseconds": 0, "max_queue_size": 2 if mode == "queue" else 0, "preprocessing_instance_count": 1,
                  "postprocessing_instance_count": 1, "bls_instance_count": 2, "max_beam_width": 4,
                  "logits_datatype": "TYPE_FP32", "encoder_input_features_data_type": "TYPE_FP16",
                  "tensorrt_llm_model_name": "tensorrt_llm", "tensorrt_llm_draft_model_name": "tensorrt_llm", "accumulate_tokens": mode == "accumulate", "enable_kv_cache_reuse": True}
        for model in MODELS:
            config = repo / model / "config.pbtxt"
            if not config.is_file():
                continue
            text = config.read_text()
            given = ",".join(f"{k}:{v}" for k, v in values.items() if "${%s}" % k in text)
            if given:
                self.call([self.python, self.root / "tools/fill_template.py", "-i", config, given])
            if mode == "v1" and "inflight_fused_batching" in config.read_text():
                config.write_text(config.read_text().replace("inflight_fused_batching", "V1"))
        return repo

    def call(self, words, **more):
        return subprocess.run([str(w) for w in words], capture_output=True, text=True, cwd=self.work,
                              timeout=150, **more)

    def start(self, mode):
        repo = self.repository(mode)
        self.log = open(self.work / f"server-{mode}.log", "w")
        path = [str(self.work.parent / "shim")]
        env = dict(os.environ, PATH=f"{pathlib.Path(self.python).parent}:{os.environ['PATH']}",
                   TOKENIZERS_PARALLELISM="false", OMP_NUM_THREADS="1")
        if mode.startswith("python"):  # their model in Python, with what it imports as tensorrt_llm
            module = BIN.resolve().parent / "python"
            path += [str(module), str(module / "nereid/compat")]
            if version(self.tag) < (0, 12):
                env["NEREID_TIMESTAMP_FRACTION"] = "0"
        env["PYTHONPATH"] = ":".join(path)
        words = [BIN / "tritonserver", f"--model-repository={repo}", "--log-verbose=1", "--http-port=8000", "--grpc-port=8001",
                 "--metrics-port=8002"]
        if mode == "launched":  # two ranks, started by their script, which ends at once: mpirun is of its group
            words = [self.python, self.root / "scripts/launch_triton_server.py", "--world_size", "2", "--tritonserver",
                     BIN / "tritonserver", "--model_repo", repo]
            env.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
        self.launched = mode == "launched"
        self.server = subprocess.Popen(words, stdout=self.log, stderr=subprocess.STDOUT, env=env,
                                       start_new_session=self.launched)
        until = time.monotonic() + 300  # their models import torch and transformers
        while time.monotonic() < until:
            try:
                with urllib.request.urlopen("http://localhost:8000/v2/health/ready", timeout=5) as r:
                    if r.status == 200:
                        return True
            except OSError:
                pass
            if self.server.poll() not in (None, 0 if self.launched else None):
                return False
            time.sleep(0.1)
        return False

    def keep_token_metrics(self):
        """What their CI does before its test of metrics: one stream, and the metrics behind it in a file."""
        prompt = "My name is"
        ids = subprocess.run([BIN / "nereid", "tokenize", self.tokenizer], input=prompt + "\n",
                             capture_output=True, text=True).stdout.split()
        self.run(TEXT_CLIENT, ["--prompt=" + prompt, "--streaming", "-o=50"])
        time.sleep(1)
        with urllib.request.urlopen("http://localhost:8002/metrics", timeout=10) as r:
            (self.root / "ci/L0_backend_trtllm/end_to_end_token_metrics.out").write_bytes(r.read())
        self.token_env = {"STREAM_INPUT_SIZE": str(len(ids)), "STREAM_OUTPUT_SIZE": "50"}

    def stop(self):
        if self.server:
            if self.launched:
                end_group(self.server.pid)
            else:
                self.server.send_signal(signal.SIGINT)
            try:
                self.server.wait(40)
            except subprocess.TimeoutExpired:
                self.server.kill()
                self.server.wait()
            self.log.close()
            self.server = None

    def run(self, script, options):
        """(passed, last words)"""
        path = self.root / script
        env = dict(os.environ, PYTHONPATH=str(self.root / "tools/utils" if script.startswith("ci/") else ""),
                   BACKEND_ROOT=str(self.root),
                   TOKENIZERS_PARALLELISM="false", OMP_NUM_THREADS="1")
        env.update(self.token_env)
        try:
            if script.startswith("ci/"):
                done = subprocess.run([self.python, "-m", "unittest", ".".join([path.stem, *options])],
                                      capture_output=True, text=True, cwd=path.parent, env=env, timeout=150)
            else:
                done = self.call([self.python, path, *options], env=env)
        except subprocess.TimeoutExpired:
            return False, "no end after 150 s"
        said = done.stdout + done.stderr
        # The last: what the client's gRPC library says while the interpreter ends, after the answer.
        lines = [x.strip() for x in said.splitlines() if x.strip() and "Warning" not in x and "warnings.warn" not in x and
                 "'NoneType' object has no attribute 'StatusCode'" not in x]
        errors = [x for x in lines if ("rror" in x or "Exception" in x) and not x.startswith("raise ")]
        # Their clients end with 0 although they got an error from the server.
        bad = done.returncode != 0 or any("StatusCode" in x or "Received an error" in x or "[FAILED]" in x
                                          or "Request failed" in x for x in lines)
        return not bad, (errors or lines or [f"status {done.returncode}"])[-1][:300]


def known(tag, script, options):
    """Why it fails, or None."""
    for first, last, name, option, why in KNOWN:
        if version(first) <= version(tag) <= version(last) and name == script and option in options:
            return why
    return None


def spelled(text, options):
    """`options` as a script with this text spells them: older ones have underscores. None where it lacks one of them."""
    out = []
    for word in options:
        name = word.split("=")[0]
        if name.startswith("--") and f"'{name}'" not in text and f'"{name}"' not in text:
            old = "--" + name[2:].replace("-", "_")
            if f"'{old}'" not in text and f'"{old}"' not in text:
                return None
            word = old + word[len(name):]
        out.append(word)
    return out


def python_steps(r, client, long):
    """Their model `tensorrt_llm` in Python. Up to v0.15 it takes the decoupled mode alone."""
    v, data = version(r.tag), r.data
    if v < (0, 10):
        return []
    out = [("python-stream", TEXT_CLIENT, ["-p", "My name is", "--streaming", "-o", "12"]),
           ("python-stream", CLIENT, [*client, "--streaming"]),
           ("python-stream", CLIENT, [*client, "--streaming", "--return-log-probs"]),
           ("python-stream", CLIENT, [*long, "--stop-after-ms", "100"])]
    if v >= (0, 16):
        out += [("python", TOOLS + "end_to_end_test.py", ["--max-input-len=500", "--dataset", data]),
                ("python", TOOLS + "benchmark_core_model.py",
                 ["--max-input-len=500", "--num-requests", "24", "dataset", "--dataset", data, *r.tok]),
                ("python", CLIENT, client), ("python", CLIENT, [*client, "--beam-width", "4"]),
                ("python", CLIENT, [*client, "--return-log-probs", "--top-k", "0", "--top-p", "0.5"]),
                ("python", CLIENT, [*client, "--return-context-logits", "--return-generation-logits"])]
    return out


def gpt_steps(r):
    """The tools of the first guide. gen_input_data.py asks no server."""
    size = ["-b", "1", "-s", "24", "-o", "20", "-topp", "0.6"]
    bench = [name for name in ("benchmark_core_model.py", "identity_test.py") if r.has("tools/gpt/" + name)]
    out = [("plain", "tools/gpt/" + name, [*size, *more]) for name in bench
           for more in ([], ["-i", "grpc", "-m", "async", "-w"])]
    return out + [("plain", "tools/gpt/client.py", [*r.tok, "-i", "grpc"]), ("plain", "tools/gpt/client_async.py", r.tok),
                  ("plain", "tools/gpt/end_to_end_test.py", r.tok),
                  ("plain", "tools/gpt/gen_input_data.py", ["-s", "24", "-o", "20", "--num_samples", "10"])]


def steps(r):
    """(mode, script, options) of one release, as its documents and its CI script use them, as far as it has them."""
    data, tok = r.data, r.tok
    out = []
    for mode in ("v1", "plain"):
        out.append((mode, TOOLS + "identity_test.py", ["--max-input-len=500", "--dataset", data, *tok]))
        for more in (["dataset", "--dataset", data, *tok],
                     ["token-norm-dist", "--input-mean", "20", "--input-stdev", "4", "--output-mean", "12",
                      "--output-stdev", "2"]):
            out.append((mode, TOOLS + "benchmark_core_model.py", ["--max-input-len=500", "--num-requests", "24", *more]))
        out.append((mode, TOOLS + "end_to_end_test.py", ["--max-input-len=500", "--dataset", data]))
    out += [("plain", TOOLS + "benchmark_core_model.py",
             ["--max-input-len=500", "--num-requests", "24", "token-from-histogram", "--histogram-key", "example"]),
            ("plain", TOOLS + "end_to_end_test.py", ["--max-input-len=500", "--dataset", data, "--test-bls"]),
            ("plain", TOOLS + "end_to_end_test.py", ["--max-input-len=500", "--dataset", data, "--return-context-logits",
                                                     "--return-generation-logits"])]
    client = ["--request-output-len", "16", *tok]
    long = ["--request-output-len", "900", *tok, "--request-id", "1", "--streaming"]
    text, bls = ["-p", "My name is", "-o", "12"], ["-p", "My name is", "-o", "12", "--model-name", "tensorrt_llm_bls"]
    out += [("plain", CLIENT, client), ("plain", TEXT_CLIENT, text),
            ("plain", CLIENT, [*client, "--return-log-probs", "--top-k", "0", "--top-p", "0.5"]),
            ("plain", CLIENT, [*client, "--beam-width", "4"]),
            ("plain", CLIENT, [*client, "--return-context-logits", "--return-generation-logits"]),
            ("plain", CLIENT, [*tok, "--request-output-len", "6", "--input-tokens-csv", str(r.work.parent / "csv/prompt.csv"),
                               "--draft-tokens-csv", str(r.work.parent / "csv/draft.csv")])]
    servers = ["--url-target", "localhost:8001", "--url-draft", "localhost:8001"]
    control = ["--url-control", "localhost:8001"]
    two = TOOLS + "speculative_decoding_test.py"
    out += [("plain", two, ["--max-input-len", "200", "--dataset", data, *servers,
                            *(control if spelled(r.text(two), control) else [])]),
            ("plain", DRAFT_CLIENT, ["-p", "My name is", "-o", "12", *servers, "--num-draft-tokens", "4"])]
    if r.has(METRICS):
        out += [(f"base-{t}", METRICS, ["TRTLLMBaseMetricsTest", t])
                for t in ("test_end_to_end", "test_end_to_end_beam_width") if f"def {t}(" in r.text(METRICS)]
    out += [("stream", TOOLS + "end_to_end_streaming_client.py", ["--prompt=My name is"]),
            ("stream", TEXT_CLIENT, [*text, "--streaming"]),
            ("stream", CLIENT, [*client, "--streaming"]),
            ("stream", CLIENT, [*long, "--stop-after-ms", "100"]),
            ("stream", CLIENT, [*long, "--stop-after-ms", "100", "--stop-via-request-cancel"])]
    out += [("stream", CLIENT, [*client, "--streaming", *more])
            for more in (["--beam-width", "4"], ["--return-log-probs"], ["--return-generation-logits"],
                         ["--return-kv-cache-reuse-stats"], ["--return-perf-metrics"])]
    out += [("stream", TEXT_CLIENT, [*text, "--streaming", "--beam-width", "2"]),
            ("stream", TEXT_CLIENT, [*bls, "--streaming"]),
            ("stream", TEXT_CLIENT, [*bls, "--streaming", "--return-generation-logits"]),
            ("accumulate", TEXT_CLIENT, [*bls, "--streaming", "--overwrite-output-text"]),
            ("queue", TOOLS + "test_max_queue_size.py", [*tok, "--request-output-len", "900", "--num-requests", "300"]),
            ("launched", CLIENT, [*client, "--streaming"]), ("launched", TEXT_CLIENT, [*text, "--streaming"])]
    out += gpt_steps(r) + python_steps(r, client, long)
    out = [(mode, script, spelled(r.text(script), options)) for mode, script, options in out if r.has(script)]
    return [s for s in out if s[2] is not None]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--out", required=True)
    parser.add_argument("--work", default="published")
    parser.add_argument("--tags", nargs="*", default=TAGS)
    parser.add_argument("--only", default="", help="scripts with this in their path")
    parser.add_argument("--mode", default="", help="modes that begin so")
    args = parser.parse_args()
    work = pathlib.Path(args.work).resolve()
    shutil.rmtree(work, ignore_errors=True)
    (work / "csv").mkdir(parents=True)
    (work / "shim").mkdir()
    (work / "shim/sitecustomize.py").write_text(AS_PYTHON_3_10)
    (work / "csv/prompt.csv").write_text("5,6,7,8\n")
    (work / "csv/draft.csv").write_text("9,10,11\n")
    texts = subprocess.run(["git", "-C", args.checkout, "show", "v0.16.0:ci/L0_backend_trtllm/simple_data.json"], check=True,
                           capture_output=True, text=True).stdout
    words = re.findall(r" ?[A-Za-z]+", " ".join(x["input"] for x in json.loads(texts)))
    model = make_model(work / "model", words)
    subprocess.run([BIN / "nereid", "build", model, "--output_dir", work / "engine", "--gather_all_token_logits",
                    "--max_beam_width", "4", "--max_batch_size", "64", "--max_draft_len", "16"], check=True, capture_output=True)
    subprocess.run([BIN / "nereid", "convert", "--model_dir", model, "--output_dir", work / "checkpoint-tp2", "--tp_size", "2"],
                   check=True, capture_output=True)
    subprocess.run([BIN / "nereid", "build", "--checkpoint_dir", work / "checkpoint-tp2", "--output_dir", work / "engine-tp2",
                    "--max_batch_size", "64"], check=True, capture_output=True)
    rows = []
    for tag in args.tags:
        r = Release(tag, args.checkout, work, args.python, work / "engine", model)
        todo = [s for s in steps(r) if args.only in s[1] and s[0].startswith(args.mode)]
        if version(tag) >= (0, 15) and any(s[0].startswith("base") for s in todo) and r.start("stream"):
            r.keep_token_metrics()
        r.stop()
        shutil.rmtree(r.work / "repo-stream", ignore_errors=True)
        for mode in dict.fromkeys(s[0] for s in todo):
            ready = r.start(mode)
            for _, script, options in [s for s in todo if s[0] == mode]:
                passed, words = r.run(script, options) if ready else (False, "the server did not start")
                shown = " ".join(pathlib.Path(o).name if o.startswith("/") else o for o in options)
                why = "" if passed else known(tag, script, shown) or words
                rows.append((tag, "base" if mode.startswith("base") else mode, script, shown, "pass" if passed else "fail", why))
                print("\t".join(rows[-1]), flush=True)
            r.stop()
    with open(args.out, "w") as f:
        f.write("release\tmode\tscript\toptions\tresult\treason\n")
        f.writelines("\t".join(row) + "\n" for row in rows)
    failed = [row for row in rows if row[4] == "fail"]
    unknown = [row for row in failed if not known(row[0], row[2], row[3])]
    print(f"{len(rows) - len(failed)} passed, {len(failed)} failed, {len(unknown)} of them for no known reason")
    sys.exit(bool(unknown))


if __name__ == "__main__":
    main()
