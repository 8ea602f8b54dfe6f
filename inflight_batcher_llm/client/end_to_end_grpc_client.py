#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Text to text over a gRPC stream: the models ensemble and tensorrt_llm_bls."""
import json
import os
import pathlib
import sys

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools"))
from utils import llm_client as llm  # noqa: E402

STATS = ["kv_cache_alloc_new_blocks", "kv_cache_reused_blocks", "kv_cache_alloc_total_blocks"]
PERF = ["arrival_time_ns", "first_scheduled_time_ns", "first_token_time_ns", "last_token_time_ns", "acceptance_rate",
        "total_accepted_draft_tokens", "total_draft_tokens"]


def parse():
    parser = llm.Parser(description=__doc__)
    llm.add_connection(parser, protocol=None)
    add = parser.add_argument
    add("-i", "--protocol", default="grpc", choices=["grpc"], help="only grpc")
    add("-p", "--prompt", required=True, help="text; with --batch-inputs a JSON list of texts")
    add("--model-name", default="ensemble", choices=["ensemble", "tensorrt_llm_bls"])
    add("-S", "--streaming", action="store_true")
    add("-b", "--beam-width", type=int, default=1)
    add("-n", "--num-return-sequences", type=int, default=None)
    add("--temperature", type=float, default=1.0)
    for name in ("--repetition-penalty", "--presence-penalty", "--frequency-penalty"):
        add(name, type=float, default=None)
    add("-o", "--output-len", type=int, default=100)
    add("--request-id", default="")
    add("--stop-words", nargs="+", default=[])
    add("--bad-words", nargs="+", default=[])
    add("--embedding-bias-words", nargs="+", default=[])
    add("--embedding-bias-weights", nargs="+", type=float, default=[])
    add("--overwrite-output-text", action="store_true", help="each answer holds all text so far (accumulate_tokens)")
    for name in ("--return-context-logits", "--return-generation-logits", "--return-log-probs",
                 "--return-kv-cache-reuse-stats", "--return-perf-metrics"):
        add(name, action="store_true")
    add("--guided-decoding-guide-type", default=None)
    add("--guided-decoding-guide", default=None)
    add("--batch-inputs", action="store_true")
    add("--end-id", type=int, default=None)
    add("--pad-id", type=int, default=None)
    add("--lora-path", default="")
    add("--lora-task-id", type=int, default=None)
    add("--exclude-input-in-output", action="store_true")
    add("--expected-outputs", default=None, help="a text, or a JSON list of texts")
    add("--check-outputs", action="store_true")
    flags = parser.parse_args()
    if len(flags.embedding_bias_words) != len(flags.embedding_bias_weights):
        parser.error("--embedding-bias-words and --embedding-bias-weights must have the same number of values")
    if flags.lora_path and flags.lora_task_id is None:
        parser.error("--lora-path needs --lora-task-id")
    if flags.check_outputs and flags.expected_outputs is None:
        parser.error("--check-outputs needs --expected-outputs")
    return flags


def text_list(text, is_list, option):
    if not is_list:
        return [text]
    try:
        texts = json.loads(text)
    except ValueError as e:
        sys.exit(f"{option}: expected a JSON list of texts: {e}")
    if not isinstance(texts, list) or not all(isinstance(t, str) for t in texts) or not texts:
        sys.exit(f"{option}: expected a JSON list of texts")
    return texts


def request_inputs(flags, prompts):
    n = len(prompts)

    def col(value, dtype=np.int32):
        return llm.column(value, dtype, n)

    def rows(values):
        return np.repeat(llm.strings(values), n, axis=0) if values else None

    inputs = {"text_input": np.array([[p.encode()] for p in prompts], dtype=object), "max_tokens": col(flags.output_len),
              "stream": col(flags.streaming, np.bool_), "beam_width": col(flags.beam_width),
              "temperature": col(flags.temperature, np.float32), "num_return_sequences": col(flags.num_return_sequences),
              "repetition_penalty": col(flags.repetition_penalty, np.float32),
              "presence_penalty": col(flags.presence_penalty, np.float32),
              "frequency_penalty": col(flags.frequency_penalty, np.float32),
              "stop_words": rows(flags.stop_words), "bad_words": rows(flags.bad_words),
              "embedding_bias_words": rows(flags.embedding_bias_words),
              "embedding_bias_weights": np.array([flags.embedding_bias_weights] * n, np.float32)
              if flags.embedding_bias_weights else None,
              "end_id": col(flags.end_id), "pad_id": col(flags.pad_id),
              "exclude_input_in_output": col(flags.exclude_input_in_output, np.bool_),
              "lora_task_id": col(flags.lora_task_id or None, np.uint64)}
    for name in ("log_probs", "context_logits", "generation_logits", "kv_cache_reuse_stats", "perf_metrics"):
        inputs["return_" + name] = col(True, np.bool_) if getattr(flags, "return_" + name) else None
    for name in ("guided_decoding_guide_type", "guided_decoding_guide"):
        text = getattr(flags, name)
        inputs[name] = rows([text]) if text is not None else None
    if flags.lora_path:
        config = os.path.join(flags.lora_path, "model.lora_config.npy")
        inputs["lora_weights"] = np.load(os.path.join(flags.lora_path, "model.lora_weights.npy"))
        inputs["lora_config"] = np.load(config if os.path.exists(config)
                                        else os.path.join(flags.lora_path, "model.lora_keys.npy"))
    return inputs


def wanted_outputs(flags, model, n_rows):
    names = ["text_output"]
    names += ["cum_log_probs", "output_log_probs"] if flags.return_log_probs else []
    names += ["context_logits"] if flags.return_context_logits else []
    names += ["generation_logits"] if flags.return_generation_logits else []
    names += STATS if flags.return_kv_cache_reuse_stats else []
    names += PERF if flags.return_perf_metrics else []
    names += ["batch_index"] if n_rows > 1 else []
    names += ["sequence_index"] if (flags.num_return_sequences or 1) > 1 else []
    return [n for n in names if n in model.outputs or n not in ("batch_index", "sequence_index")]


def show_extras(result, names):
    for name in names:
        value = result.as_numpy(name)
        if name in ("text_output", "batch_index", "sequence_index") or value is None or value.size == 0:
            continue
        if name.endswith("_logits"):
            print(f"{name}.shape: {value.shape}")
        print(f"{name}: {value.flat[0] if name in STATS + PERF else value}")


def number_of(result, name):
    value = result.as_numpy(name)
    return int(value.flat[0]) if value is not None and value.size else 0


def run(flags, prompts):
    """Texts by (row, sequence)."""
    client = llm.connect(flags.url, "grpc", flags.verbose)
    model = llm.Model(client, "grpc", flags.model_name)
    names = wanted_outputs(flags, model, len(prompts))
    stream = llm.Stream(client)
    tensors = model.tensors(request_inputs(flags, prompts), where_known=("exclude_input_in_output",))
    stream.send(flags.model_name, tensors, flags.request_id, model.requested(names))
    texts = {}
    for result in stream:
        output = result.as_numpy("text_output")
        if output is None or output.size == 0:
            continue
        row, seq = number_of(result, "batch_index"), number_of(result, "sequence_index")
        pieces = [t.decode("utf-8", "replace") if isinstance(t, bytes) else str(t) for t in output.ravel()]
        for i, piece in enumerate(pieces):
            key = (row, i) if len(pieces) > 1 else (row, seq)
            keeps = flags.streaming and flags.beam_width == 1 and not flags.overwrite_output_text
            texts[key] = texts.get(key, "") + piece if keeps else piece
            if flags.streaming and flags.overwrite_output_text and sys.stdout.isatty():
                print("\x1b[H\x1b[2J" + piece, flush=True)
            elif flags.streaming:
                print(f"{row}: {piece}" if len(prompts) > 1 else piece, flush=True)
        show_extras(result, names)
    stream.close()
    return texts


def main():
    flags = parse()
    prompts = text_list(flags.prompt, flags.batch_inputs, "--prompt")
    try:
        texts = run(flags, prompts)
    except Exception as e:  # of the client library
        print("Received an error from server:")
        llm.fail(e)
    has_several = len({seq for _, seq in texts}) > 1
    for (row, seq), text in sorted(texts.items()):
        print(f"{row} [{seq}]: {text}" if has_several else f"{row}: {text}")
    if flags.check_outputs:
        expected = text_list(flags.expected_outputs, flags.batch_inputs, "--expected-outputs")
        got = [texts.get((row, 0)) for row in range(len(prompts))]
        if got != expected:
            sys.exit(f"the outputs differ: expected {expected}, got {got}")


if __name__ == "__main__":
    main()
