#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Latency of batches of one length: runs of several requests, one after the other or at once.

    benchmark_core_model.py -b 1 -s 24 -o 200 -topp 0.6
"""
import gpt_request
from gpt_request import llm


def parse():
    parser = llm.Parser(description=__doc__, formatter_class=llm.argparse.RawTextHelpFormatter)
    gpt_request.add_options(parser)
    add = parser.add_argument
    add("-w", "--warm_up", action="store_true", help="ten requests before measuring")
    add("-c", "--concurrency", type=int, default=1, help="connections of http")
    add("-p", "--request_parallelism", type=int, default=10, help="requests of a run")
    add("-m", "--mode", choices=["sync", "async"], default="sync")
    add("-s", "--start_len", type=int, default=8)
    add("-n", "--num_runs", type=int, default=1)
    add("--vocab_size", type=int, default=gpt_request.HIGHEST_ID, help="made-up ids are below")
    flags = parser.parse_args()
    if min(flags.batch_size, flags.start_len, flags.output_len, flags.num_runs, flags.request_parallelism) < 1:
        parser.error("sizes, lengths and numbers of runs and requests must be at least 1")
    return flags


def run(model, batch, flags):
    """Seconds of one run of batches, one after the other or at once."""
    begin = llm.now()
    if flags.mode == "async":
        gpt_request.send_async(model, batch * flags.request_parallelism)
    else:
        for _ in range(flags.request_parallelism):
            gpt_request.send(model, batch)
    return llm.now() - begin


def main():
    flags = parse()
    try:
        client = llm.connect(flags.url, flags.protocol, flags.verbose, max(flags.concurrency, flags.batch_size))
        model = llm.Model(client, flags.protocol, "tensorrt_llm")
        ids = gpt_request.prompts(flags.batch_size, flags.start_len, highest=flags.vocab_size)
        batch = gpt_request.requests(model, flags, ids)
        if flags.warm_up:
            print("[INFO] sending requests to warm up")
            for _ in range(10):
                gpt_request.send(model, batch)
        seconds = [run(model, batch, flags) for _ in range(flags.num_runs)]
    except Exception as e:  # of the client library
        llm.fail(e)
    latency = round(sum(seconds) / flags.num_runs / flags.request_parallelism * 1e3, 3)
    print(f"[INFO] Batch size: {flags.batch_size}, Start len: {flags.start_len}, Output len: {flags.output_len}")
    print(f"[INFO] Latency: {latency} ms")
    print(f"[INFO] Throughput: {round(flags.batch_size * 1e3 / latency, 3)} sentences / sec")


if __name__ == "__main__":
    main()
