#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One request to the model tensorrt_llm over gRPC: text or token ids in, token ids and text out."""
import csv
import os
import pathlib
import random
import sys
import threading

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools"))
from utils import llm_client as llm  # noqa: E402

MAX_SHOWN = 256
DEFAULT_TEXT = "Born in north-east France, Soyer trained as a"
DEFAULT_IDS = [28524, 287, 5093, 12, 23316, 4881, 11, 30022, 263, 8776, 355, 257]  # of gpt2
DTYPES = {"float16": np.float16, "float32": np.float32, "bfloat16": np.float32}  # numpy has no bfloat16
STATS = ["kv_cache_alloc_new_blocks", "kv_cache_reused_blocks", "kv_cache_alloc_total_blocks"]
PERF = ["arrival_time_ns", "first_scheduled_time_ns", "first_token_time_ns", "last_token_time_ns",
        "acceptance_rate", "total_accepted_draft_tokens", "total_draft_tokens"]
LOOKAHEAD = ["lookahead_window_size", "lookahead_ngram_size", "lookahead_verification_set_size"]


def parse(argv):
    parser = llm.Parser(description=__doc__)
    llm.add_connection(parser, protocol=None)
    add = parser.add_argument
    add("-s", "--ssl", action="store_true", help="encrypted")
    add("-t", "--stream-timeout", type=float, default=None)
    add("-r", "--root-certificates")
    add("-p", "--private-key")
    add("-x", "--certificate-chain")
    add("-C", "--grpc-compression-algorithm", choices=["gzip", "deflate"])
    add("--text", default=DEFAULT_TEXT)
    add("--input-tokens-csv", default="", help="token ids, commas between")
    add("--output-tokens-csv", default="", help="with --check-output: what must come")
    add("--draft-tokens-csv", default="", help="ids that the model is to verify")
    add("--end-id", type=int, default=50256)
    add("--pad-id", type=int, default=50256)
    add("-S", "--streaming", action="store_true")
    add("-c", "--check-output", action="store_true")
    add("--correctness-threshold", type=float, default=1.0, help="share of ids that must be as expected")
    add("-b", "--beam-width", type=int, default=1)
    add("-n", "--num-return-sequences", type=int, default=None)
    add("--temperature", type=float, default=1.0)
    for name in ("--repetition-penalty", "--presence-penalty", "--frequency-penalty"):
        add(name, type=float, default=None)
    add("--top-k", type=int, default=1)
    add("--top-p", type=float, default=0.0)
    add("--request-output-len", type=int, default=16)
    add("--stop-after-ms", type=int, default=0)
    add("--stop-via-request-cancel", action="store_true")
    add("--tokenizer-dir", default="")
    add("--tokenizer-type", default="auto")
    add("--request-id", default="", help="with --stop-after-ms a number is made up")
    add("--prompt-embedding-table-path", default="")
    add("--prompt-task-id", type=int, default=0)
    add("--prompt_table_extra_id", type=int, default=None)
    add("--vocab_size", type=int, default=None, help="ids from here on are of the prompt table")
    add("--lora-path", default="")
    add("--lora-task-id", type=int, default=None)
    add("--exclude-input-in-output", action="store_true")
    add("--dtype", default="float16", choices=list(DTYPES))
    for name in ("--return-log-probs", "--return-context-logits", "--return-generation-logits",
                 "--return-kv-cache-reuse-stats", "--return-perf-metrics"):
        add(name, action="store_true")
    add("--lookahead_config", default=None, help="[7, 7, 7]: window, n-gram, verification set; at most the model's")
    add("--requested-outputs", nargs="+", default=[])
    add("--model-name", default="tensorrt_llm")
    flags = parser.parse_args(argv)
    if flags.requested_outputs and "output_ids" not in flags.requested_outputs:
        parser.error("--requested-outputs must contain output_ids")
    if flags.stop_after_ms > 0 and not flags.request_id:  # a stop names its request, and the guides' lines have no id
        flags.request_id = str(random.getrandbits(62) + 1)
    flags.lookahead = lookahead_sizes(parser, flags.lookahead_config)
    return flags


def lookahead_sizes(parser, text):
    """Inputs of tensorrt_llm; none without the option."""
    if text is None:
        return {}
    sizes = [int(x) if x.strip().isdecimal() else 0 for x in text.strip(" []()").split(",")]
    if len(sizes) != len(LOOKAHEAD) or 0 in sizes:
        parser.error(f"--lookahead_config must be three whole numbers, as in [7, 7, 7], got '{text}'")
    return {name: llm.column(size) for name, size in zip(LOOKAHEAD, sizes)}


def read_ids(path):
    with open(path, newline="", encoding="utf-8") as f:
        return [int(cell) for row in csv.reader(f) for cell in row if cell.strip()]


def show_ids(what, ids):
    if len(ids) > MAX_SHOWN:
        print(f"{what} sequence starts with: ", list(ids[:MAX_SHOWN]))
    else:
        print(f"{what} sequence: ", list(ids))


def adapter(flags):
    if not flags.lora_path:
        return {}
    names = ("model.lora_config.npy", "model.lora_keys.npy")
    config = next((n for n in names if os.path.exists(os.path.join(flags.lora_path, n))), names[0])
    return {"lora_weights": np.load(os.path.join(flags.lora_path, "model.lora_weights.npy")),
            "lora_config": np.load(os.path.join(flags.lora_path, config))}


def prompt_table(flags, ids):
    if not flags.prompt_embedding_table_path:
        return {}
    table = np.load(flags.prompt_embedding_table_path).astype(DTYPES[flags.dtype])
    out = {"prompt_embedding_table": table[flags.prompt_task_id][None], "prompt_vocab_size": llm.column(table.shape[1])}
    if flags.prompt_table_extra_id is not None:
        if flags.vocab_size is None:
            raise SystemExit("--prompt_table_extra_id needs --vocab_size")
        extra = [[flags.prompt_table_extra_id if i >= flags.vocab_size else 0 for i in ids]]
        out["prompt_table_extra_ids"] = np.array(extra, np.uint64)
    return out


def request_inputs(flags, ids, end_id, pad_id):
    def given(flag):
        return llm.column(True, np.bool_) if flag else None

    draft = read_ids(flags.draft_tokens_csv) if flags.draft_tokens_csv else None
    return {**llm.core_inputs(ids, flags.request_output_len, end_id, pad_id),
            "beam_width": llm.column(flags.beam_width), "temperature": llm.column(flags.temperature, np.float32),
            "runtime_top_k": llm.column(flags.top_k), "runtime_top_p": llm.column(flags.top_p, np.float32),
            "num_return_sequences": llm.column(flags.num_return_sequences),
            "repetition_penalty": llm.column(flags.repetition_penalty, np.float32),
            "presence_penalty": llm.column(flags.presence_penalty, np.float32),
            "frequency_penalty": llm.column(flags.frequency_penalty, np.float32),
            "streaming": llm.column(flags.streaming, np.bool_),
            "draft_input_ids": np.array([draft], np.int32) if draft else None,
            "lora_task_id": llm.column(flags.lora_task_id or None, np.uint64),
            "exclude_input_in_output": given(flags.exclude_input_in_output),
            "return_log_probs": given(flags.return_log_probs),
            "return_context_logits": given(flags.return_context_logits),
            "return_generation_logits": given(flags.return_generation_logits),
            "return_kv_cache_reuse_stats": given(flags.return_kv_cache_reuse_stats),
            "return_perf_metrics": given(flags.return_perf_metrics), **flags.lookahead, **adapter(flags),
            **prompt_table(flags, ids)}


class Answer:
    """What came so far: ids of each beam, and the newest of every other output."""

    def __init__(self, flags):
        self.flags, self.beams, self.others = flags, {}, {}

    def add(self, result):
        ids = result.as_numpy("output_ids")
        if ids is None or ids.size == 0 and not result.get_response().outputs:
            return
        self.check_names(result)
        lengths = result.as_numpy("sequence_length")
        row = result.as_numpy("sequence_index")
        first = int(row.flat[0]) if row is not None and row.size else 0
        for b in range(ids.shape[1]):
            n = int(lengths[0][b]) if lengths is not None and lengths.size else ids.shape[2]
            new = ids[0][b][:n].tolist()
            if self.flags.streaming and self.flags.beam_width == 1:
                print(new, flush=True)
                new = self.beams.get(first + b, []) + new
            self.beams[first + b] = new
        for name in ("cum_log_probs", "output_log_probs", "context_logits", "generation_logits", *STATS, *PERF):
            value = result.as_numpy(name)
            if value is not None and value.size:
                joins = name == "generation_logits" and self.flags.streaming and name in self.others
                self.others[name] = np.concatenate((self.others[name], value), axis=2) if joins else value

    def check_names(self, result):
        wanted = set(self.flags.requested_outputs)
        missing = wanted - {o.name for o in result.get_response().outputs}
        if missing:
            raise SystemExit(f"the answer lacks {', '.join(sorted(missing))}")


def stop_request(flags, model, stream):
    """The same id with the input stop: ends the first request with what it has."""
    inputs = {**llm.core_inputs([0], 0), "stop": llm.column(True, np.bool_)}
    print("Sending stop request", flush=True)
    stream.send(flags.model_name, model.tensors(inputs), flags.request_id, parameters={"Streaming": flags.streaming})


def run_stream(flags, client, model, tensors, answer):
    stream = llm.Stream(client, flags.stream_timeout, compression_algorithm=flags.grpc_compression_algorithm)
    stream.send(flags.model_name, tensors, flags.request_id, model.requested(flags.requested_outputs),
                parameters={"Streaming": flags.streaming})
    timer = None
    if flags.stop_after_ms > 0:
        act = (lambda: stream.close(cancel=True)) if flags.stop_via_request_cancel else \
            (lambda: stop_request(flags, model, stream))
        timer = threading.Timer(flags.stop_after_ms / 1e3, act)
        timer.start()
    try:
        for result in stream:
            answer.add(result)
        print("Got completed request", flush=True)
    except Exception as e:  # of the client library
        if not cancelled(flags, e):
            raise
        print("Request is cancelled")
    if timer:
        timer.cancel()
    if not (timer and flags.stop_via_request_cancel):
        stream.close()


def cancelled(flags, error):
    return flags.stop_via_request_cancel and "CANCEL" in str(error).upper()


def run_once(flags, model, tensors, answer):
    done = threading.Event()
    kept = []

    def on_answer(result, error):
        kept.append((result, error))
        done.set()

    call = model.client.async_infer(flags.model_name, tensors, on_answer, request_id=flags.request_id,
                                    outputs=model.requested(flags.requested_outputs),
                                    compression_algorithm=flags.grpc_compression_algorithm,
                                    parameters={"Streaming": flags.streaming})
    if flags.stop_after_ms > 0:
        if not done.wait(flags.stop_after_ms / 1e3) and flags.stop_via_request_cancel:
            call.cancel()
        elif not done.is_set():
            stop = {**llm.core_inputs([0], 0), "stop": llm.column(True, np.bool_)}
            print("Sending stop request", flush=True)
            model.client.async_infer(flags.model_name, model.tensors(stop), lambda result, error: None,
                                     request_id=flags.request_id)
    done.wait()
    result, error = kept[0]
    if error and cancelled(flags, error):
        print("Request is cancelled")
    elif error:
        raise error
    else:
        answer.add(result)
        print("Got completed request", flush=True)


def report(flags, answer, ids, tokenizer):
    """Prints what came; gives the ids of the first sequence without the prompt."""
    first = []
    for beam, got in sorted(answer.beams.items()):
        has_prompt = not flags.streaming and not flags.exclude_input_in_output
        new = got[len(ids):] if has_prompt else got
        if tokenizer:
            print(f"Input: {flags.text}")
            print(f"Output beam {beam}: {tokenizer.decode(new)}")
        show_ids("Output", got)
        first = first or new
    for name in ("cum_log_probs", "output_log_probs") if flags.return_log_probs else ():
        print(f"{name}: {answer.others.get(name)}")
    for name, on in (("context_logits", flags.return_context_logits),
                     ("generation_logits", flags.return_generation_logits)):
        if on and name in answer.others:
            print(f"{name}.shape: {answer.others[name].shape}")
            print(f"{name}: {answer.others[name]}")
    for name in (STATS if flags.return_kv_cache_reuse_stats else []) + (PERF if flags.return_perf_metrics else []):
        if name in answer.others:
            print(f"{name}: {answer.others[name].flat[0]}")
    return first


def passes(flags, new, expected):
    if flags.stop_after_ms > 0:
        return len(new) < flags.request_output_len
    if not flags.check_output:
        return True
    rate = sum(a == b for a, b in zip(new, expected)) / max(len(expected), 1)
    print(f"Output token matching rate: {rate}")
    print("expected_output_ids = ", expected)
    ok = rate >= flags.correctness_threshold
    print("\n=====")
    print("PASS!" if ok else "FAIL!")
    print("=====")
    return ok


def read_prompt(flags):
    """(tokenizer or None, ids, end_id, pad_id), of which the ids are shown."""
    tokenizer, end_id, pad_id = None, flags.end_id, flags.pad_id
    print("=========")
    if flags.tokenizer_dir:
        tokenizer = llm.open_tokenizer(flags.tokenizer_dir, flags.tokenizer_type)
        pad_id, end_id = tokenizer.pad_token_id, tokenizer.eos_token_id
        print("Using pad_id: ", pad_id)
        print("Using end_id: ", end_id)
    if flags.input_tokens_csv:
        ids = read_ids(flags.input_tokens_csv)
    else:
        ids = tokenizer.encode(flags.text) if tokenizer else DEFAULT_IDS
    show_ids("Input", ids)
    return tokenizer, ids, end_id, pad_id


def main():
    flags = parse(None)
    tokenizer, ids, end_id, pad_id = read_prompt(flags)
    expected = read_ids(flags.output_tokens_csv) if flags.output_tokens_csv else []
    answer = Answer(flags)
    try:
        client = llm.connect(flags.url, "grpc", flags.verbose, ssl=flags.ssl, root_certificates=flags.root_certificates,
                             private_key=flags.private_key, certificate_chain=flags.certificate_chain)
        model = llm.Model(client, "grpc", flags.model_name)
        tensors = model.tensors(request_inputs(flags, ids, end_id, pad_id))
        if flags.streaming:
            run_stream(flags, client, model, tensors, answer)
        else:
            run_once(flags, model, tensors, answer)
    except Exception as e:  # of the client library
        print("Received an error from server:")
        llm.fail(e)
    sys.exit(0 if passes(flags, report(flags, answer, ids, tokenizer), expected) else 1)


if __name__ == "__main__":
    main()
