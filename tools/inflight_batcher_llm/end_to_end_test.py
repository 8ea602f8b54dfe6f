#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every prompt of a data set through the ensemble (and the BLS model), checked, and then all at once, timed. With --test-llmapi
through the one model of all_models/llmapi."""
import ast
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
    add("--test-llmapi", action="store_true", help="text_input, sampling_param_max_tokens: a model of all_models/llmapi")
    add("--model-name", help="the model of --test-llmapi")
    add("--streaming", action="store_true", help="with --test-llmapi over gRPC")
    add("--sampling-params", type=dictionary, default={}, help="with --test-llmapi: {'temperature': 0.5, ...}")
    add("--output-config", type=dictionary, default={}, help="with --test-llmapi: {'return_finish_reason': True, ...}")
    flags = parser.parse_args()
    if flags.test_llmapi and not flags.model_name:
        parser.error("--test-llmapi needs --model-name")
    if flags.streaming and not (flags.test_llmapi and flags.protocol == "grpc"):
        parser.error("--streaming needs --test-llmapi and --protocol grpc")
    return flags


def dictionary(text):
    try:
        value = ast.literal_eval(text)
    except (SyntaxError, ValueError):
        value = None
    if not isinstance(value, dict):
        raise llm.argparse.ArgumentTypeError(f"expected a dictionary, got {text}")
    return value


def llmapi_inputs(prompt, n_out=None, flags=None):
    """One prompt, without a batch. flags: with what --sampling-params and --output-config ask for."""
    inputs = {"text_input": np.array([prompt.encode()], dtype=object)}
    if n_out is not None:
        inputs["sampling_param_max_tokens"] = np.array([n_out], np.int32)
    if flags:
        inputs.update({"sampling_param_" + name: np.array([value]) for name, value in flags.sampling_params.items()})
        inputs.update({name: np.array([value], np.bool_) for name, value in flags.output_config.items()})
        if flags.streaming:
            inputs["streaming"] = np.array([True])
    return inputs


def check_llmapi(flags, prompt, model):
    """The names of --output-config bring outputs; each must be there. While streaming the last answer is the whole one."""
    inputs = llmapi_inputs(prompt, flags=flags)
    result = list(model.stream(inputs))[-1] if flags.streaming else model.infer(inputs)
    for name in ["text_output"] + [k[len("return_"):] for k, wanted in flags.output_config.items() if wanted]:
        value = result.as_numpy(name)
        if value is None or value.size == 0 or value.ravel()[0] == b"":
            sys.exit(f"[ERROR] no {name} of: {prompt}")
        if flags.verbose:
            print(f"{name}: {value.ravel()[0]}")


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


def ask(model, tensors, i, streaming):
    if streaming:  # a decoupled model answers on streams only
        list(model.stream_tensors(tensors, str(i)))
    else:
        model.client.infer(model.name, tensors, request_id=str(i))


def all_at_once(model, requests, streaming):
    answers = queue.Queue()
    if streaming:
        stream = llm.Stream(model.client)
        for i, tensors in enumerate(requests):
            stream.send(model.name, tensors, str(i))
        for _ in requests:
            for _ in stream:
                pass
        stream.close()
        return
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


def test(flags, work, models):
    """Each prompt alone; then the tensors of each request of the benchmark."""
    for prompt, n_out in work:
        if flags.test_llmapi:
            check_llmapi(flags, prompt, models[0])
        else:
            for model in models:
                check(flags, prompt, model.infer(request_inputs(flags, prompt, n_out)))
    print(f"[INFO] Functionality test {'succeeded' if flags.test_llmapi else 'succeed'}.")
    print("[INFO] Warm up for benchmarking.")
    if not flags.test_llmapi:
        return [models[0].tensors(request_inputs(flags, *w)) for w in work]
    print(f"FLAGS.model_name: {flags.model_name}")
    return [models[0].tensors(llmapi_inputs(*w)) for w in work]


def main():
    flags = parse()
    work = [(p, max(1, int(len(answer.split(" ")) * 1.3))) for p, answer in llm.read_prompts(flags.dataset, flags.max_input_len)]
    if not work:
        sys.exit("no prompt is short enough for --max-input-len")
    try:
        client = llm.connect(flags.url, flags.protocol, flags.verbose, flags.concurrency)
        names = [flags.model_name] if flags.test_llmapi else ["ensemble"] + ["tensorrt_llm_bls"] * flags.test_bls
        models = [llm.Model(client, flags.protocol, n) for n in names]
        print(f"[INFO] Start testing on {len(work)} prompts.")
        requests = test(flags, work, models)
        for i in range(min(10, len(work))):
            ask(models[0], requests[0], i, flags.streaming)
        print(f"[INFO] Start benchmarking on {len(work)} prompts.")
        begin = llm.now()
        all_at_once(models[0], requests, flags.streaming)
        print(f"[INFO] Total Latency: {(llm.now() - begin) * 1e3:.3f} ms")
    except Exception as e:  # of the client library
        llm.fail(e)


if __name__ == "__main__":
    main()
