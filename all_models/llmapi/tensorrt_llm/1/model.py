# SPDX-License-Identifier: Apache-2.0
"""Text in, text out: one nereid.LLM, whose engine makes batches of what comes in. Each request has a thread that waits
for its tokens. model.yaml beside this file says which model."""
import concurrent.futures
import json
import os
import threading
import time

import model_yaml
import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
MAX_THREADS = 1024
DEFAULT_MAX_TOKENS = 32
# Inputs of one number: field of nereid.SamplingParams.
SAMPLING = {"temperature": "temperature", "top_k": "top_k", "top_p": "top_p", "frequency_penalty": "frequency_penalty",
            "presence_penalty": "presence_penalty", "max_tokens": "max_tokens", "seed": "seed"}


def settings():
    """(options of nereid.LLM, triton_config, names without effect)"""
    return model_yaml.read(os.path.join(pb_utils.get_model_dir(), os.environ.get("LLM_CONFIG_PATH", "model.yaml")))


def one(request, name, default=None):
    """The value of an input that has one element."""
    tensor = pb_utils.get_input_tensor_by_name(request, name)
    if tensor is None:
        return default
    array = tensor.as_numpy()
    if array.size != 1:
        raise ValueError(f"{name}: expected one value, got shape {list(array.shape)}")
    value = array.item()
    return value.decode() if isinstance(value, bytes) else value


class Asked:
    """What a request wants."""

    def __init__(self, request, nereid):
        array = pb_utils.get_input_tensor_by_name(request, "text_input").as_numpy()
        if array.size != 1:
            raise ValueError(f"text_input: expected one prompt a request, got shape {list(array.shape)}")
        self.prompt = array.item().decode()
        self.streaming = bool(one(request, "streaming", False))
        self.reasons = {name: bool(one(request, "return_" + name, False)) for name in ("finish_reason", "stop_reason")}
        self.logprob = bool(one(request, "return_cumulative_logprob", False))
        self.perf = bool(one(request, "sampling_param_return_perf_metrics", False))
        self.echo = not one(request, "sampling_param_exclude_input_from_output", False)
        fields = {field: one(request, "sampling_param_" + name) for name, field in SAMPLING.items()}
        fields = {name: value for name, value in fields.items() if value is not None}
        # The guide's line has max_tokens, which is no input: it comes as a parameter of the request.
        parameters = json.loads(request.parameters() or "{}")
        fields.setdefault("max_tokens", int(parameters.get("max_tokens", DEFAULT_MAX_TOKENS)))
        best_of = one(request, "sampling_param_best_of", 1)
        if best_of < 1:
            raise ValueError(f"sampling_param_best_of: expected 1 or more, got {best_of}")
        if best_of > 1 and self.streaming:
            raise ValueError("sampling_param_best_of: which answer is the best is not known while streaming")
        stop = pb_utils.get_input_tensor_by_name(request, "sampling_param_stop")
        words = [] if stop is None else [w.decode() for w in stop.as_numpy().ravel()]
        self.params = nereid.SamplingParams(n=best_of, stop=[w for w in words if w],
                                            logprobs=0 if self.logprob or best_of > 1 else None, **fields)

    def response(self, output, is_last):
        """Of a nereid.RequestOutput: the best of its answers."""
        answer = max(output.outputs, key=lambda a: a.cumulative_logprob or 0.0) if output.outputs else None
        text = answer.text if answer else ""
        if self.echo and not self.streaming:
            text = self.prompt + text
        tensors = [pb_utils.Tensor("text_output", np.array([text.encode()], dtype=object))]
        for name, is_asked in self.reasons.items():
            if is_asked:
                tensors.append(pb_utils.Tensor(name, np.array([str(getattr(answer, name, None)).encode()], dtype=object)))
        if self.logprob:
            value = answer.cumulative_logprob if answer else None
            tensors.append(pb_utils.Tensor("cumulative_logprob", np.array([value or 0.0], np.float32)))
        if self.perf and is_last and output.metrics:
            tensors += perf_tensors(output.metrics)
        return pb_utils.InferenceResponse(tensors)


def perf_tensors(metrics):
    kv, times, draft = metrics.kv_cache_metrics, metrics.timing_metrics, metrics.speculative_decoding

    def ns(t):
        return (t.days * 86400 + t.seconds) * 1_000_000_000 + t.microseconds * 1000
    rows = [("kv_cache_reused_block", np.int32, kv.num_reused_blocks), ("kv_cache_missed_block", np.int32, kv.num_missed_blocks),
            ("kv_cache_alloc_new_blocks", np.int32, kv.num_new_allocated_blocks),
            ("kv_cache_alloc_total_blocks", np.int32, kv.num_total_allocated_blocks),
            ("kv_cache_hit_rate", np.float32, kv.kv_cache_hit_rate),
            ("arrival_time_ns", np.int64, ns(times.arrival_time)),
            ("first_scheduled_time_ns", np.int64, ns(times.first_scheduled_time)),
            ("first_token_time_ns", np.int64, ns(times.first_token_time)), ("last_token_time_ns", np.int64, ns(times.last_token_time)),
            ("acceptance_rate", np.float32, draft.acceptance_rate),
            ("total_accepted_draft_tokens", np.int32, draft.total_accepted_draft_tokens),
            ("total_draft_tokens", np.int32, draft.total_draft_tokens)]
    return [pb_utils.Tensor(name, np.array([value], kind)) for name, kind, value in rows]


def error(text, code=pb_utils.TritonError.INVALID_ARG):
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(text, code))


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        _, triton, _ = settings()
        config.set_max_batch_size(int(triton["max_batch_size"]))
        config.set_model_transaction_policy({"decoupled": bool(triton["decoupled"])})
        return config

    def initialize(self, args):
        import nereid.programs  # not where only the configuration is asked for
        self.nereid = nereid
        options, triton, unused = settings()
        self.decoupled = pb_utils.using_decoupled_model_transaction_policy(json.loads(args["model_config"]))
        if bool(triton["decoupled"]) != self.decoupled:
            raise pb_utils.TritonModelException(
                f"model.yaml has decoupled: {triton['decoupled']}, the configuration {self.decoupled}: start tritonserver without "
                "--disable-auto-complete-config, or set model_transaction_policy in config.pbtxt")
        if triton["max_batch_size"]:
            raise pb_utils.TritonModelException(f"model.yaml: triton_config: max_batch_size must be 0, got {triton['max_batch_size']}: "
                                                "a request brings one prompt, and requests run together")
        for name in unused:
            pb_utils.Logger.log_warn(f"model.yaml: {name} has no effect")
        self.check_s = float(triton["cancellation_check_period_ms"]) / 1000
        try:
            path = nereid.programs.fetch(options.pop("model"))
        except ValueError as e:
            raise ValueError(f"model.yaml: model: {e}") from None
        self.llm = nereid.LLM(path, **options)
        # Twice as many as run at a time, so that the engine has a queue to choose from.
        self.pool = concurrent.futures.ThreadPoolExecutor(min(MAX_THREADS, 2 * self.llm.info["max_batch_size"]))
        self.lock = threading.Lock()
        self.stopped = {}  # id of a request: [threading.Event] of those waiting or under way that have it

    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            if one(request, "stop", False):
                sender.send(self.stop(request.request_id()), FINAL)
            else:
                event = threading.Event()
                with self.lock:
                    self.stopped.setdefault(request.request_id(), []).append(event)
                self.pool.submit(self.answer, request, sender, event)

    def finalize(self):
        self.pool.shutdown()
        self.llm.close()

    def stop(self, request_id):
        if not request_id:
            return error("A request id must be provided for request cancellation")
        with self.lock:
            for event in self.stopped.get(request_id, ()):
                event.set()
        return error("Request cancelled by client", pb_utils.TritonError.CANCELLED)

    def answer(self, request, sender, event):
        name = request.request_id()
        try:
            sender.send(self.generate(request, sender, event), FINAL)
        except (ValueError, TypeError) as e:
            sender.send(error(str(e)), FINAL)
        except Exception as e:  # of the engine: the client shall have the reason, and the next request its turn
            sender.send(error(str(e), pb_utils.TritonError.INTERNAL), FINAL)
        finally:
            with self.lock:
                self.stopped[name].remove(event)
                if not self.stopped[name]:
                    del self.stopped[name]

    def generate(self, request, sender, event):
        """The last response. While streaming each has the text so far."""
        asked = Asked(request, self.nereid)
        if asked.streaming and not self.decoupled:
            raise ValueError("Streaming is only supported in decoupled mode.")
        pieces = self.llm.stream(asked.prompt, asked.params)
        looked, before = time.monotonic(), None
        for piece in pieces:
            if asked.streaming and before:  # one is kept back: the last has the final flag
                sender.send(before)
            before = asked.response(piece.output, piece.finish_reason is not None) if asked.streaming else None
            now = time.monotonic()
            if now - looked > self.check_s:
                looked = now
                if sender.is_cancelled():
                    event.set()
            if event.is_set():
                pieces.close()
                return error("Request cancelled by client", pb_utils.TritonError.CANCELLED)
        return before or asked.response(piece.output, True)
