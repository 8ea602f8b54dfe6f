#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The server on a device beside the server on a CPU: same engine, same requests. Standard library only.

    server_check.py ENGINE TOKENIZER [--device cuda] [--fault FAULT.so] [--folder DIR] [--bin build/bin]

ENGINE is a small model's engine folder of at least 448 tokens (tests/gpu/engine.sh serve makes one).
FAULT.so is made of tests/gpu/fault.cu; without it, and with a device that reads NEREID_TEST_FAULT itself
(build/tests/devices/nereid_faulty.so with NEREID_DEVICE_DIR), the fault is the device's own affair.
Prints a line for each check; exit status 1 if one fails.
"""
import argparse
import concurrent.futures
import http.client
import json
import math
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from ports import free_ports  # noqa: E402

TIE = 0.05  # candidates whose log probabilities differ by less may change places
N_OUT = 40


class Server:
    """tritonserver on a repository of its own."""

    def __init__(self, args, name, device, *sets, env=None, options=()):
        self.name, folder = name, pathlib.Path(args.folder)
        self.http, grpc, self.metrics = free_ports(3)
        repo, self.log_path = folder / f"repo-{name}", folder / f"{name}.log"
        shutil.rmtree(repo, ignore_errors=True)
        subprocess.run([f"{args.bin}/nereid", "repo", "--engine_dir", args.engine, "--tokenizer_dir", args.tokenizer,
                        "--output_dir", repo, "--set", ",".join([f"device:{device}", *sets])],
                       check=True, stdout=subprocess.DEVNULL)
        self.log = open(self.log_path, "w")
        self.started = time.monotonic()
        self.process = subprocess.Popen(
            [f"{args.bin}/tritonserver", f"--model-repository={repo}", f"--http-port={self.http}",
             f"--grpc-port={grpc}", f"--metrics-port={self.metrics}", "--http-address=127.0.0.1",
             "--grpc-address=127.0.0.1", "--metrics-address=127.0.0.1", "--metrics-interval-ms=200", *options],
            stdout=self.log, stderr=subprocess.STDOUT, env=dict(os.environ, **(env or {})))

    def wait_ready(self, seconds=120):
        while True:
            if self.process.poll() is not None or time.monotonic() - self.started > seconds:
                raise RuntimeError(f"{self.name} did not start:\n{self.text()[-2000:]}")
            try:
                if self.ask("/v2/health/ready")[0] == 200:
                    return self
            except OSError:
                pass
            time.sleep(0.02)

    def text(self):
        return self.log_path.read_text(errors="replace")

    def connect(self, port=None):
        return http.client.HTTPConnection("127.0.0.1", port or self.http, timeout=120)

    def ask(self, path, body=None):
        c = self.connect()
        c.request("GET" if body is None else "POST", path, None if body is None else json.dumps(body))
        r = c.getresponse()
        text = r.read()
        c.close()
        try:
            return r.status, json.loads(text)
        except ValueError:
            return r.status, text.decode(errors="replace")

    def must(self, path, body=None):
        status, answer = self.ask(path, body)
        if status != 200:
            raise RuntimeError(f"{self.name} {path}: {status} {answer}")
        return answer

    def stream(self, path, body):
        """The answers of a stream of events, parsed."""
        c = self.connect()
        c.request("POST", path, json.dumps(body))
        r = c.getresponse()
        out = [json.loads(line[6:]) for line in r if line.startswith(b"data: ") and line != b"data: [DONE]\n"]
        c.close()
        return out

    def tokens(self, ids, n=N_OUT, **more):
        """Greedy, with the best five candidates of every step."""
        a = self.must("/v2/models/tensorrt_llm/generate", question(ids, n, **more))
        k = 5
        a["top"] = [dict(zip(a["top_log_prob_ids"][i * k:i * k + k], a["top_log_probs"][i * k:i * k + k]))
                    for i in range(len(a["output_ids"]))]
        return a

    def gpu_bytes(self):
        c = self.connect(self.metrics)
        c.request("GET", "/metrics")
        text = c.getresponse().read().decode()
        c.close()
        found = re.findall(r"^nv_gpu_memory_used_bytes\{.*\} (\S+)$", text, re.M)
        return float(found[0]) if found else None

    def index(self):
        return {m["name"]: (m.get("state"), m.get("reason", "")) for m in self.must("/v2/repository/index", {})}

    def ready(self, model):
        return self.ask(f"/v2/models/{model}/ready")[0] == 200

    def stop(self):
        """None, or what was not as it should be."""
        self.process.send_signal(signal.SIGTERM)
        start = time.monotonic()
        try:
            code = self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return f"{self.name} did not end within 60 s"
        took = time.monotonic() - start
        bad = [line for line in self.text().splitlines() if re.search(r"Exit timeout|broken invariant|leak", line)]
        if code != 0 or bad or took > 20:
            return f"{self.name} ended with {code} after {took:.1f} s {bad[:2]}"
        return None


def question(ids, n, **more):
    return {"input_ids": ids, "input_lengths": len(ids), "request_output_len": n, "end_id": -1,
            "exclude_input_in_output": True, "return_log_probs": True, "top_logprobs": 5, **more}


def part(a, b, top):
    """Where two answers part, and by how much in the judge's log probability; (None, 0): nowhere."""
    for i, (x, y) in enumerate(zip(a, b)):
        if x != y:
            return i, abs(top[i].get(x, -math.inf) - top[i].get(y, -math.inf))
    return (None, 0.0) if len(a) == len(b) else (min(len(a), len(b)), math.inf)


class Checks:
    def __init__(self, args):
        self.args, self.failed = args, 0
        self.random = random.Random(1)
        config = json.loads((pathlib.Path(args.engine) / "config.json").read_text())
        self.vocab = config["pretrained_config"]["vocab_size"]
        self.max_len = config["build_config"]["max_seq_len"]
        self.block = config["build_config"]["plugin_config"]["tokens_per_block"]

    def say(self, ok, text):
        self.failed += not ok
        print(("ok    " if ok else "WRONG ") + text, flush=True)

    def prompt(self, n):
        return [self.random.randrange(3, self.vocab) for _ in range(n)]

    def same(self, what, pairs):
        """pairs of (ids, ids, the judge's candidates): equal but for near-ties."""
        ties, worst = 0, 0.0
        for a, b, top in pairs:
            at, gap = part(a, b, top)
            ties += at is not None
            worst = max(worst, gap)
        self.say(worst < TIE, f"{what}: {len(pairs)} answers, {len(pairs) - ties} equal, {ties} part at a near-tie "
                              f"(at most {worst:.4f})")

    def against_reference(self, dev, ref):
        prompts = [self.prompt(n) for n in (1, 2, 7, 31, 32, 33, 64, 65, 100, 129, 200, 256, 300, 383, 400)]
        pairs, worst = [], 0.0
        for p in prompts:
            a, b = dev.tokens(p), ref.tokens(p)
            pairs.append((a["output_ids"], b["output_ids"], b["top"]))
            at = part(a["output_ids"], b["output_ids"], b["top"])[0]
            n = N_OUT if at is None else at
            worst = max([worst] + [abs(x - y) for x, y in zip(a["output_log_probs"][:n], b["output_log_probs"])])
        self.same("tokens of the device and of the CPU", pairs)
        self.say(worst < 0.1, f"log probabilities of those tokens differ by at most {worst:.4f}")

    def streams(self, dev):
        """Each prompt is asked once before, so that the two to compare find the same in the cache."""
        n_bad = 0
        for text in ("The quick brown fox", "A", "Once upon a time there was"):
            body = {"text_input": text, "max_tokens": 30, "top_k": 1, "end_id": -1}
            dev.must("/v2/models/ensemble/generate", body)
            whole = dev.must("/v2/models/ensemble/generate", body)["text_output"]
            pieces = dev.stream("/v2/models/ensemble/generate_stream", {**body, "stream": True})
            joined = "".join(p["text_output"] for p in pieces)
            n_bad += len(pieces) < 2 or not (whole == joined or whole == text + joined)
        ids = self.prompt(20)
        dev.tokens(ids)
        whole = dev.tokens(ids)["output_ids"]
        pieces = dev.stream("/v2/models/tensorrt_llm/generate_stream", question(ids, N_OUT, streaming=True))
        joined = [t for p in pieces for t in as_list(p["output_ids"])]
        self.say(n_bad == 0 and whole == joined, "streams give what answers in one piece give")

    def embeddings(self, dev, ref):
        worst = 1.0
        texts = ["The quick brown fox", "a", " ".join(["jumps over the lazy dog"] * 6)]
        vectors = [[d["embedding"] for d in s.must("/v1/embeddings", {"model": "ensemble", "input": texts})["data"]]
                   for s in (dev, ref)]
        for x, y in zip(*vectors):
            worst = min(worst, cosine(x, y))
        for n in (3, 70, 300):
            p = self.prompt(n)
            for pooling in ("last", "mean"):
                body = {"input_ids": p, "input_lengths": n, "request_output_len": 1, "pooling": pooling}
                worst = min(worst, cosine(*(s.must("/v2/models/tensorrt_llm/generate", body)["embedding"]
                                            for s in (dev, ref))))
        self.say(worst > 0.999, f"embeddings of the device and of the CPU: cosine at least {worst:.6f}")

    def many(self, dev):
        prompts = [self.prompt(5 + i % 60) for i in range(64)]
        alone = [dev.tokens(p) for p in prompts]
        with concurrent.futures.ThreadPoolExecutor(64) as pool:
            beside = list(pool.map(lambda p: dev.stream("/v2/models/tensorrt_llm/generate_stream",
                                                        question(p, N_OUT, streaming=True)), prompts))
        ids = [[t for p in s for t in as_list(p.get("output_ids", []))] for s in beside]
        n_lost = sum(len(i) != N_OUT for i in ids)
        self.say(n_lost == 0, f"64 streams at a time: {n_lost} lost")
        self.same("each as if alone", [(i, a["output_ids"], a["top"]) for i, a in zip(ids, alone)])

    def offload(self, ref):
        """A prompt that others have pushed out of the cache comes back from host memory, or is computed anew."""
        a = self.args
        tokens = 2 * (self.max_len + 2 * self.block)
        long = self.prompt(400)
        others = [self.prompt(400) for _ in range(12)]
        want = ref.tokens(long)
        full = 400 // self.block
        for name, host in (("offload", 1 << 30), ("no-offload", 0)):
            s = Server(a, name, a.device, f"max_tokens_in_paged_kv_cache:{tokens}",
                       f"kv_cache_host_memory_bytes:{host}").wait_ready()
            try:
                first = s.tokens(long, return_perf_metrics=True)
                for p in others:
                    s.tokens(p, 4)
                again = s.tokens(long, return_perf_metrics=True)
                n = again["kv_cache_reused_blocks"]
                ok = first["kv_cache_reused_blocks"] == 0 and (n >= full - 1 if host else n < full - 1)
                self.say(ok, f"{host >> 20} MB of host memory for blocks: {n} of {full} came back")
                self.same("tokens before and after", [(again["output_ids"], first["output_ids"], first["top"]),
                                                      (again["output_ids"], want["output_ids"], want["top"])])
            finally:
                bad = s.stop()
            self.say(bad is None, bad or f"{name}: ends with status 0")

    def unload(self, dev):
        def settled():
            time.sleep(1)  # the figures are looked up five times a second
            return dev.gpu_bytes()

        used = [settled()]
        ids = self.prompt(50)
        want = dev.tokens(ids)
        for _ in range(2):
            dev.must("/v2/repository/models/tensorrt_llm/unload", {})
            wait_until(lambda: dev.index()["tensorrt_llm"][0] == "UNAVAILABLE")
            used.append(settled())
            dev.must("/v2/repository/models/tensorrt_llm/load", {})
            wait_until(lambda: dev.ready("ensemble"))
            used.append(settled())
        got = dev.tokens(ids)
        self.same("unloaded and loaded twice", [(got["output_ids"], want["output_ids"], want["top"])])
        if self.args.device != "cuda" or used[0] is None:
            print("skip  memory of the GPU: there are no figures")
            return
        mb = [u / 1e6 for u in used]
        ok = mb[1] < mb[0] - 100 and abs(mb[3] - mb[1]) < 32 and abs(mb[4] - mb[2]) < 32
        self.say(ok, "MB of the GPU in use, loaded and unloaded: " + ", ".join(f"{m:.0f}" for m in mb))

    def fault(self, restart):
        a = self.args
        file = pathlib.Path(a.folder) / "fault"
        file.unlink(missing_ok=True)
        env = {"NEREID_TEST_FAULT": str(file)}
        if a.fault:
            env["LD_PRELOAD"] = str(pathlib.Path(a.fault).resolve())
        name = "fault-restart" if restart else "fault"
        s = Server(a, name, a.device, env=env,
                   options=["--restart-on-failure=true"] if restart else []).wait_ready()
        ids = self.prompt(30)
        want = s.tokens(ids)
        n = self.max_len - 40

        def ask(_):
            try:
                return json.dumps(s.stream("/v2/models/tensorrt_llm/generate_stream", question(ids, n, streaming=True)))
            except (OSError, http.client.HTTPException) as e:
                return f"cut: {e}"

        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            running = [pool.submit(ask, i) for i in range(8)]
            time.sleep(0.1)
            file.write_text("")
            ends = [f.result(60) for f in running]
        heard = sum("the engine was lost" in e for e in ends)
        whole = sum("the engine was lost" not in e and not e.startswith("cut") for e in ends)
        wait_until(lambda: refused(s, question(ids, 4)))
        self.say(heard + whole == len(ends), f"{name}: {heard} of {len(ends)} streams heard why, {whole} had ended, "
                                             f"{len(ends) - heard - whole} were cut")
        file.unlink()
        if restart:
            s.started = time.monotonic()
            wait_until(lambda: "Starting again" in s.text(), 60)
            s.wait_ready()
            self.say(s.process.poll() is None, f"ready again after {time.monotonic() - s.started:.1f} s, same process")
            got = s.tokens(ids)
            self.same("before and after", [(got["output_ids"], want["output_ids"], want["top"])])
        else:
            state, reason = s.index()["tensorrt_llm"]
            self.say(state == "UNAVAILABLE" and "the engine was lost" in reason, f"index: {state}: {reason}")
            wait_until(lambda: s.index()["ensemble"][0] == "UNAVAILABLE")
            self.say(not s.ready("tensorrt_llm") and not s.ready("ensemble") and s.ask("/v2/health/ready")[0] != 200 and
                     s.ask("/v2/health/live")[0] == 200, "neither model nor server is ready; it is live")
            status, answer = s.ask("/v2/models/ensemble/generate", {"text_input": "A", "max_tokens": 4})
            self.say(status == 503 and "the engine was lost" in str(answer), f"a request gets {status}")
            status, answer = s.ask("/v2/repository/models/tensorrt_llm/load", {})
            if status == 200:
                got = s.tokens(ids)
                self.same("loaded again", [(got["output_ids"], want["output_ids"], want["top"])])
            else:
                self.say("start it again" in str(answer), f"loading again: {status} {answer}")
                self.say("start it again" in s.index()["tensorrt_llm"][1], "the index says the same")
        bad = s.stop()
        self.say(bad is None, bad or f"{name}: ends with status 0")

    def all(self):
        a = self.args
        if self.max_len < 448:
            raise SystemExit(f"the engine's max_seq_len is {self.max_len}, 448 are needed")
        explicit = ["--model-control-mode=explicit", "--load-model=*"]
        ref = Server(a, "cpu", "cpu").wait_ready()
        dev = Server(a, "device", a.device, options=explicit).wait_ready()
        try:
            self.against_reference(dev, ref)
            self.streams(dev)
            self.embeddings(dev, ref)
            self.many(dev)
            self.unload(dev)
            self.say((bad := dev.stop()) is None, bad or "device: ends with status 0")
            self.offload(ref)
        finally:
            for s in (ref, dev):
                if s.process.poll() is None:
                    s.stop()
        if a.fault or os.environ.get("NEREID_DEVICE_DIR"):
            self.fault(False)
            self.fault(True)
        else:
            print("skip  faults: no --fault")
        print(f"{self.failed} failed")
        return 1 if self.failed else 0


def refused(s, body):
    try:
        return s.ask("/v2/models/tensorrt_llm/generate", body)[0] != 200
    except (OSError, http.client.HTTPException):
        return True


def as_list(x):
    return x if isinstance(x, list) else [x]


def cosine(x, y):
    dot = sum(a * b for a, b in zip(x, y))
    return dot / math.sqrt(sum(a * a for a in x) * sum(b * b for b in y))


def wait_until(condition, seconds=30):
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            raise RuntimeError("waited in vain")
        time.sleep(0.02)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("engine")
    p.add_argument("tokenizer")
    p.add_argument("--device", default="cuda")
    p.add_argument("--fault")
    p.add_argument("--folder", default="build/gpu")
    p.add_argument("--bin", default="build/bin")
    args = p.parse_args()
    args.engine, args.tokenizer = (str(pathlib.Path(x).resolve()) for x in (args.engine, args.tokenizer))
    pathlib.Path(args.folder).mkdir(parents=True, exist_ok=True)
    return Checks(args).all()


if __name__ == "__main__":
    sys.exit(main())
