#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Load on the model tensorrt_llm: prompts of a data set, of normally distributed lengths, or of a histogram.

    benchmark_core_model.py -i grpc --request-rate 10 --num-requests 200 token-norm-dist \\
        --input-mean 128 --input-stdev 5 --output-mean 20 --output-stdev 2
"""
import csv
import json
import pathlib
import sys
import threading
import time

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from utils import llm_client as llm  # noqa: E402

# Lengths of a service of short questions: (from, to, share) of prompts and of answers.
HISTOGRAMS = {"example": {"input": [(16, 63, 30), (64, 127, 40), (128, 255, 20), (256, 511, 10)],
                          "output": [(8, 31, 25), (32, 127, 50), (128, 255, 25)]}}


class Records:
    """When each request was sent and answered; callbacks of gRPC come from other threads."""

    def __init__(self, n):
        self.start, self.stop = [0.0] * n, [0.0] * n
        self.tokens, self.error = [0] * n, None
        self.left, self.ready = n, threading.Condition()

    def answer(self, i, result, error, is_last=True):
        now = llm.now()
        with self.ready:
            if error:
                self.error = self.error or error
            elif result is not None and result.get_response().outputs:
                shape = result.get_response().outputs[0].shape  # output_ids; a text has one dimension
                self.tokens[i] += int(shape[2]) if len(shape) == 3 else 0
            if is_last or error:
                self.stop[i] = now
                self.left -= 1
                self.ready.notify()

    def wait(self):
        with self.ready:
            self.ready.wait_for(lambda: self.left <= 0 or self.error)
        if self.error:
            raise self.error


def parse(argv):
    common = llm.Parser(add_help=False)
    llm.add_connection(common)
    add = common.add_argument
    add("--decoupled", action="store_true", help="one stream for all requests; grpc only")
    add("-t", "--stream-timeout", type=float, default=None)
    add("--tensorrt-llm-model-name", action="append", default=None, help="further models, asked in turn")
    add("-c", "--concurrency", type=int, default=128, help="connections of http")
    add("--max-input-len", type=int, default=None, help="longer prompts are left out; default: no limit")
    add("--vocab-size", type=int, default=np.iinfo(np.int32).max,
        help="made-up ids are below; servers that check ids need it")
    add("--request-rate", type=float, default=-1, help="a second; -1: no pause")
    add("--time-delay-dist", choices=["constant", "exponential_dist"], default="exponential_dist")
    add("--time-bet-reqs", type=float, default=None, help="seconds between requests, instead of a rate")
    add("--dump-perfetto-trace", action="store_true", help="into prfetto_dump.json")
    add("--op-stats-csv", default=None, help="file to which the figures are added as a line")
    add("--exclude-input-in-output", action="store_true", help="the model leaves the prompt out of output_ids")
    add("--num-requests", type=int, default=30000, help="at most")
    add("--check-perf-json", default=None, help="file of figures that must be met")
    add("--check-perf-key", default=None)
    add("--check-perf-atol", type=float, default=50)
    add("--check-perf-rtol", type=float, default=0.05)
    add("--test-llmapi", action="store_true", help="texts of a data set to a model of all_models/llmapi")
    parser = llm.Parser(description=__doc__, parents=[common], formatter_class=llm.argparse.RawTextHelpFormatter)
    kinds = parser.add_subparsers(dest="workload", required=True, parser_class=llm.Parser)
    p = kinds.add_parser("dataset")
    p.add_argument("--dataset", required=True)
    p.add_argument("--tokenizer-dir", required=True)
    p.add_argument("--tokenizer-type", default="auto")
    p.add_argument("--op-tokens-per-word", type=float, default=1.3)
    p = kinds.add_parser("token-norm-dist")
    for name in ("--input-mean", "--input-stdev", "--output-mean", "--output-stdev"):
        p.add_argument(name, type=int, required=True)
    p = kinds.add_parser("token-from-histogram")
    p.add_argument("--histogram-key", required=True, choices=list(HISTOGRAMS))
    flags, rest = parser.parse_known_args(argv)
    flags = common.parse_args(rest, flags)  # common options may follow the workload's name
    if flags.decoupled and flags.protocol != "grpc":
        parser.error("Protocol must be set to 'grpc' when using '--decoupled'.")
    if flags.time_bet_reqs:
        flags.request_rate = 1 / flags.time_bet_reqs
    if flags.test_llmapi and (flags.workload != "dataset" or flags.decoupled or flags.check_perf_json):
        parser.error("--test-llmapi takes a dataset, without --decoupled and --check-perf-json: answers are texts, of which no "
                     "tokens are counted")
    if (flags.check_perf_json is None) != (flags.check_perf_key is None):
        parser.error("--check-perf-json and --check-perf-key belong together")
    return flags


def from_histogram(rows, n, rng):
    share = np.array([r[2] for r in rows], float)
    picks = rng.choice(len(rows), n, p=share / share.sum())
    return [int(rng.integers(rows[k][0], rows[k][1] + 1)) for k in picks]


def make_work(flags):
    """[(ids, or with --test-llmapi the text, and the output length)], end id, pad id"""
    rng = np.random.default_rng(420)
    limit = flags.max_input_len or 1 << 30
    if flags.workload == "dataset":
        tokenizer = llm.open_tokenizer(flags.tokenizer_dir, flags.tokenizer_type)
        work, ratios = [], []
        for prompt, answer in llm.read_prompts(flags.dataset):
            ids = tokenizer.encode(prompt)
            if len(ids) <= limit and len(work) < flags.num_requests:
                ratios.append(len(ids) / len(prompt.split(" ")))
                work.append((prompt if flags.test_llmapi else ids, max(1, int(len(answer.split(" ")) * flags.op_tokens_per_word))))
        print("Tokenizer: Tokens per word = ", round(float(np.mean(ratios)), 3) if ratios else 0)
        return work, tokenizer.eos_token_id, tokenizer.pad_token_id
    n = flags.num_requests
    if flags.workload == "token-norm-dist":
        ins = llm.normal_lengths(flags.input_mean, flags.input_stdev, n, 420)
        outs = llm.normal_lengths(flags.output_mean, flags.output_stdev, n, 421)
    else:
        h = HISTOGRAMS[flags.histogram_key]
        ins, outs = from_histogram(h["input"], n, rng), from_histogram(h["output"], n, rng)
    work = [(rng.integers(0, flags.vocab_size, k, dtype=np.int32), o) for k, o in zip(ins, outs) if k <= limit]
    return work, 0, 1


def inputs_of(prompt, n_out, end_id, pad_id):
    if isinstance(prompt, str):  # all_models/llmapi: one prompt, no batch
        return {"text_input": np.array([prompt.encode()], dtype=object), "sampling_param_max_tokens": np.array([n_out], np.int32)}
    return llm.core_inputs(prompt, n_out, end_id, pad_id)


def warm_up(model, flags, first):
    print("[INFO] Warm up for benchmarking.")
    n = min(100, flags.max_input_len or 100)
    for i in range(10):
        tensors = model.tensors(inputs_of(*first, 0, 1) if flags.test_llmapi else llm.core_inputs(np.arange(n), 100, 0, 1))
        if flags.decoupled:
            stream = llm.Stream(model.client, flags.stream_timeout)
            stream.send(model.name, tensors, str(i))
            for _ in stream:
                pass
            stream.close()
        else:
            model.client.infer(model.name, tensors, request_id=str(i))


def send_all(models, work, end_id, pad_id, flags):
    """Records of gRPC requests, None over HTTP, and the seconds from the first request to the last answer."""
    client = models[0].client
    requests = [(models[i % len(models)], models[i % len(models)].tensors(inputs_of(prompt, n, end_id, pad_id)))
                for i, (prompt, n) in enumerate(work)]
    waits = llm.pauses(flags.time_delay_dist, flags.request_rate, len(work))
    records, pending = Records(len(work)), []
    if flags.decoupled:
        client.start_stream(lambda result, error: records.answer(
            int(result.get_response().id) if result else 0, result, error, bool(error) or llm.is_final(result)),
            stream_timeout=flags.stream_timeout)
    begin = llm.now()
    for i, (model, tensors) in enumerate(requests):
        time.sleep(waits[i])
        records.start[i] = llm.now()
        if flags.decoupled:
            client.async_stream_infer(model.name, tensors, request_id=str(i), enable_empty_final_response=True)
        elif flags.protocol == "grpc":
            client.async_infer(model.name, tensors, request_id=str(i),
                               callback=lambda result, error, i=i: records.answer(i, result, error))
        else:
            pending.append(client.async_infer(model.name, tensors, request_id=str(i)))
    for p in pending:
        p.get_result()
    if flags.protocol == "grpc":
        records.wait()
    if flags.decoupled:
        client.stop_stream()
    return records if flags.protocol == "grpc" else None, llm.now() - begin


def figures(records, work, flags):
    latencies = [(b - a) * 1e3 for a, b in zip(records.start, records.stop)]
    total = max(records.stop) - min(records.start)
    ins = [len(ids) for ids, _ in work]
    outs = [t if flags.exclude_input_in_output else t - k for t, k in zip(records.tokens, ins)]
    return latencies, outs, {
        "Requests/Sec": len(work) / total, "OP tokens/sec": sum(outs) / total,
        "Avg. latency (ms)": float(np.mean(latencies)), "P99 latency (ms)": llm.percentile(latencies, 0.99),
        "P90 latency (ms)": llm.percentile(latencies, 0.90), "Avg. IP tokens per request": float(np.mean(ins)),
        "Avg. OP tokens per request": float(np.mean(outs)),
        "Avg. InFlight requests": sum(latencies) / 1e3 / total, "Total latency (ms)": total * 1e3,
        "Total requests": len(work)}


def write_files(flags, records, work, outs, stats):
    if flags.op_stats_csv:
        with open(flags.op_stats_csv, "a", newline="", encoding="utf-8") as f:
            w = csv.DictWriter(f, fieldnames=stats)
            if f.tell() == 0:
                w.writeheader()
            w.writerow(stats)
    if flags.dump_perfetto_trace:
        first = min(records.start)
        events = [{"name": f"req_{i}", "cat": "batch", "ph": "X", "ts": (a - first) * 1e6, "dur": (b - a) * 1e6,
                   "pid": "1", "args": {"isl": len(work[i][0]), "osl": int(outs[i])}}
                  for i, (a, b) in enumerate(zip(records.start, records.stop))]
        pathlib.Path("prfetto_dump.json").write_text(json.dumps(events, indent=4))


def check(flags, stats):
    if stats is None:
        sys.exit("[ERROR] --check-perf-json needs the figures of gRPC: -i grpc")
    wanted = json.loads(pathlib.Path(flags.check_perf_json).read_text()).get(flags.check_perf_key)
    if wanted is None:
        print(f"[ERROR] {flags.check_perf_json} has no figures of '{flags.check_perf_key}': not checked.")
        return
    for name, value in wanted.items():
        if name not in stats:
            sys.exit(f"[ERROR] '{name}' of {flags.check_perf_json} is no figure")
        if abs(stats[name] - value) > flags.check_perf_atol + flags.check_perf_rtol * abs(value):
            sys.exit(f"[ERROR] {name}: {stats[name]:.2f}, expected {value:.2f}")


def main(argv=None):
    flags = parse(argv)
    print(flags.workload)
    work, end_id, pad_id = make_work(flags)
    if not work:
        sys.exit("no prompt is short enough for --max-input-len")
    try:
        client = llm.connect(flags.url, flags.protocol, flags.verbose, flags.concurrency)
        names = ["tensorrt_llm", *(flags.tensorrt_llm_model_name or [])]
        models = [llm.Model(client, flags.protocol, n) for n in dict.fromkeys(names)]
        warm_up(models[0], flags, work[0])
        print(f"[INFO] Start benchmarking on {len(work)} prompts.")
        records, seconds = send_all(models, work, end_id, pad_id, flags)
    except Exception as e:  # whatever the client library raises: its message is what helps
        llm.fail(e)
    print(f"[INFO] Total Latency: {seconds * 1e3:.3f} ms")
    stats = None
    if records and not flags.test_llmapi:
        latencies, outs, stats = figures(records, work, flags)
        print(f"[INFO] Total request latencies: {sum(latencies):.3f} ms")
        write_files(flags, records, work, outs, stats)
        print(llm.pretty_table([(k, f"{v:.2f}") for k, v in stats.items()], ("Stat", "Value")))
    if flags.check_perf_json:
        check(flags, stats)


if __name__ == "__main__":
    main()
