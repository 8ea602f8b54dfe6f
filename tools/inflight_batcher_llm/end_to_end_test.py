#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every prompt of a data set through the ensemble (and the BLS model), checked, and then all at once, timed."""
import pathlib
import queue
import sys

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from utils import llm_client as llm  # noqa: E402


def parse():
    parser = llm.Parser(description=__doc__)
    llm.add_connection(parser)
    add = parser.add_argument
    add("-c", "--concurrency", type=int, default=128, help="connections of http")
    add("--max-input-len", type=int, required=True, help="longer prompts are left out (words / 1.3)")
    add("--dataset", required=True, help="JSON list of {input, instruction, output}")
    add("--return-context-logits", action="store_true")
    add("--return-generation-logits", action="store_true")
    add("--return-log-probs", action="store_true")
    add("--test-bls", action="store_true")
    return parser.parse_args()


def request_inputs(flags, prompt, n_out):
    def given(flag):
        return llm.column(True, np.bool_) if flag else None

    return {"text_input": np.array([[prompt.encode()]], dtype=object), "max_tokens": llm.column(n_out),
            "bad_words": np.array([[b""]], dtype=object), "stop_words": np.array([[b""]], dtype=object),
            "return_context_logits": given(flags.return_context_logits),
            "return_generation_logits": given(flags.return_generation_logits),
            "return_log_probs": given(flags.return_log_probs)}


def check(flags, prompt, result):
    text = result.as_numpy("text_output")
    if text is None or text.size == 0 or not text.ravel()[0]:
        sys.exit(f"[ERROR] no answer to: {prompt}")
    for name in ("context_logits", "generation_logits"):
        if getattr(flags, "return_" + name):
            logits = result.as_numpy(name)
            if logits is None or logits.ndim < 3 or logits.shape[-1] < 2:
                sys.exit(f"[ERROR] {name}: got shape {None if logits is None else logits.shape}")
            print(f"{name}.shape: {logits.shape}")


def all_at_once(model, requests):
    answers = queue.Queue()
    if model.protocol == "http":
        for p in [model.client.async_infer(model.name, t, request_id=str(i)) for i, t in enumerate(requests)]:
            p.get_result()
        return
    for i, tensors in enumerate(requests):
        model.client.async_infer(model.name, tensors, lambda result, error: answers.put(error), request_id=str(i))
    for _ in requests:
        error = answers.get()
        if error:
            raise error


def main():
    flags = parse()
    work = [(p, max(1, int(len(answer.split(" ")) * 1.3))) for p, answer in llm.read_prompts(flags.dataset, flags.max_input_len)]
    if not work:
        sys.exit("no prompt is short enough for --max-input-len")
    try:
        client = llm.connect(flags.url, flags.protocol, flags.verbose, flags.concurrency)
        models = [llm.Model(client, flags.protocol, n) for n in ["ensemble"] + ["tensorrt_llm_bls"] * flags.test_bls]
        print(f"[INFO] Start testing on {len(work)} prompts.")
        for prompt, n_out in work:
            for model in models:
                check(flags, prompt, model.infer(request_inputs(flags, prompt, n_out)))
        print("[INFO] Functionality test succeed.")
        print("[INFO] Warm up for benchmarking.")
        requests = [models[0].tensors(request_inputs(flags, *w)) for w in work]
        for i in range(min(10, len(work))):
            client.infer(models[0].name, requests[0], request_id=str(i))
        print(f"[INFO] Start benchmarking on {len(work)} prompts.")
        begin = llm.now()
        all_at_once(models[0], requests)
        print(f"[INFO] Total Latency: {(llm.now() - begin) * 1e3:.3f} ms")
    except Exception as e:  # of the client library
        llm.fail(e)


if __name__ == "__main__":
    main()
