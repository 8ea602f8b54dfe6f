# SPDX-License-Identifier: Apache-2.0
"""What an executor answers, and what it counts."""
from __future__ import annotations

import datetime
import json
from typing import Any, Dict, List, Optional

from nereid import _arrays
from nereid._values import FinishReason, Value

_FINISH = {0: FinishReason.NOT_FINISHED, 1: FinishReason.END_ID, 2: FinishReason.STOP_WORDS, 3: FinishReason.LENGTH,
           4: FinishReason.CANCELLED, 5: FinishReason.NOT_FINISHED}


class _Record(Value):
    """Members by name, all of which must be given."""

    def __init__(self, **members: Any) -> None:
        for name in self.__slots__:
            setattr(self, name, members[name])


class KvCacheMetrics(_Record):
    __slots__ = ("num_total_allocated_blocks", "num_new_allocated_blocks", "num_reused_blocks", "num_missed_blocks",
                 "kv_cache_hit_rate")


class TimingMetrics(_Record):
    """Since the start of a steady clock."""
    __slots__ = ("arrival_time", "first_scheduled_time", "first_token_time", "last_token_time")


class SpeculativeDecodingMetrics(_Record):
    __slots__ = ("acceptance_rate", "total_accepted_draft_tokens", "total_draft_tokens")


class RequestPerfMetrics(_Record):
    __slots__ = ("timing_metrics", "kv_cache_metrics", "speculative_decoding")


def _perf(p: Any) -> RequestPerfMetrics:
    arrival, scheduled, first, last, new, reused, total, drafted, accepted, _ = p

    def time(ns: int) -> datetime.timedelta:
        return datetime.timedelta(microseconds=ns / 1000)
    return RequestPerfMetrics(
        timing_metrics=TimingMetrics(arrival_time=time(arrival), first_scheduled_time=time(scheduled),
                                     first_token_time=time(first), last_token_time=time(last)),
        kv_cache_metrics=KvCacheMetrics(num_total_allocated_blocks=total, num_new_allocated_blocks=new,
                                        num_reused_blocks=reused, num_missed_blocks=new,
                                        kv_cache_hit_rate=reused / (reused + new) if reused + new else 0.0),
        speculative_decoding=SpeculativeDecodingMetrics(acceptance_rate=accepted / drafted if drafted else 0.0,
                                                        total_accepted_draft_tokens=accepted,
                                                        total_draft_tokens=drafted))


class Result(Value):
    """output_token_ids: [beam][token]; while streaming one beam, those since the last response. Logits are torch
    tensors where torch is in use, else NumPy arrays: context_logits [prompt, vocabulary], generation_logits [beams,
    tokens, vocabulary]."""
    __slots__ = ("is_final", "output_token_ids", "cum_log_probs", "log_probs", "context_logits", "generation_logits",
                 "spec_dec_fast_logits_info", "encoder_output", "finish_reasons", "is_sequence_final",
                 "sequence_index", "decoding_iter", "context_phase_params", "request_perf_metrics",
                 "additional_outputs")

    def __init__(self, **members: Any) -> None:
        for name in self.__slots__:
            setattr(self, name, members.get(name))


class Response(Value):
    """An answer, or a part of it, to one request."""
    __slots__ = ("request_id", "client_id", "_error", "_result")

    def __init__(self, request_id: int, result: Any, client_id: Optional[int] = None) -> None:
        """`result`: a Result, or the text of an error."""
        self.request_id, self.client_id = request_id, client_id
        self._error = result if isinstance(result, str) else None
        self._result = None if isinstance(result, str) else result

    def has_error(self) -> bool:
        return self._error is not None

    @property
    def error_msg(self) -> str:
        if self._error is None:
            raise RuntimeError("the response has no error")
        return self._error

    @property
    def result(self) -> Result:
        if self._result is None:
            raise RuntimeError(f"the response has an error and no result: {self._error}")
        return self._result


def make(raw: Any, log_probs: bool, perf: bool) -> Response:
    """A response of the engine; what nobody asked for is None."""
    (request_id, client_id, is_final, sequence_final, sequence, error, beams, n_input, context, generation,
     n_generation, vocab, metrics, _, _) = raw
    if error:
        return Response(request_id, error[1], client_id)
    return Response(request_id, Result(
        is_final=is_final, is_sequence_final=sequence_final, sequence_index=sequence,
        output_token_ids=[b[0] for b in beams], finish_reasons=[_FINISH[b[3]] for b in beams],
        cum_log_probs=[b[1] for b in beams] if log_probs else None,
        log_probs=[b[2] or [] for b in beams] if log_probs else None,
        context_logits=_arrays.logits(context, (n_input, vocab)),
        generation_logits=_arrays.logits(generation, (len(beams), n_generation, vocab)), decoding_iter=0,
        request_perf_metrics=_perf(metrics) if perf and metrics else None), client_id)


class KvCacheStats(_Record):
    __slots__ = ("max_num_blocks", "free_num_blocks", "used_num_blocks", "tokens_per_block", "alloc_total_blocks",
                 "alloc_new_blocks", "reused_blocks", "missed_blocks", "cache_hit_rate")


class InflightBatchingStats(_Record):
    __slots__ = ("num_scheduled_requests", "num_context_requests", "num_gen_requests", "num_paused_requests",
                 "num_ctx_tokens", "micro_batch_id", "avg_num_decoded_tokens_per_iter")


class StaticBatchingStats(_Record):
    __slots__ = ("num_scheduled_requests", "num_context_requests", "num_ctx_tokens", "num_gen_tokens",
                 "empty_gen_slots")


class IterationStats(_Record):
    """One step of the engine."""
    __slots__ = ("timestamp", "iter", "iter_latency_ms", "num_active_requests", "num_queued_requests",
                 "num_completed_requests", "max_num_active_requests", "gpu_mem_usage", "cpu_mem_usage",
                 "pinned_mem_usage", "kv_cache_stats", "cross_kv_cache_stats", "static_batching_stats",
                 "inflight_batching_stats")

    def to_json_str(self) -> str:
        def plain(value: Any) -> Any:
            return {n: plain(getattr(value, n)) for n in value.__slots__} if isinstance(value, Value) else value
        return json.dumps(plain(self))


def stats(s: Dict[str, Any], static: bool, fraction: bool) -> IterationStats:
    """`fraction`: timestamps have microseconds, as those of v0.12 and later."""
    when = datetime.datetime.fromtimestamp(s["timestamp_us"] / 1e6)
    decoded = 1.0 + s["n_accepted_draft_tokens"] / s["n_generation"] if s["n_generation"] else 1.0
    looked = s["kv_reused_blocks"] + s["kv_missed_blocks"]
    common = {"num_scheduled_requests": s["n_scheduled"], "num_context_requests": s["n_context"],
              "num_ctx_tokens": s["n_context_tokens"]}
    return IterationStats(
        timestamp=when.strftime("%m-%d-%Y %H:%M:%S.%f" if fraction else "%m-%d-%Y %H:%M:%S"), iter=s["iteration"],
        iter_latency_ms=s["iteration_ms"], num_active_requests=s["n_active"], num_queued_requests=s["n_waiting"],
        num_completed_requests=s["n_terminated"], max_num_active_requests=s["max_active"],
        gpu_mem_usage=s["mem_gpu_bytes"], cpu_mem_usage=s["mem_cpu_bytes"], pinned_mem_usage=s["mem_pinned_bytes"],
        kv_cache_stats=KvCacheStats(
            max_num_blocks=s["kv_max_blocks"], free_num_blocks=s["kv_free_blocks"],
            used_num_blocks=s["kv_used_blocks"], tokens_per_block=s["kv_tokens_per_block"],
            alloc_total_blocks=s["kv_used_blocks"], alloc_new_blocks=s["kv_missed_blocks"],
            reused_blocks=s["kv_reused_blocks"], missed_blocks=s["kv_missed_blocks"],
            cache_hit_rate=s["kv_reused_blocks"] / looked if looked else 0.0),
        cross_kv_cache_stats=None,
        static_batching_stats=StaticBatchingStats(
            num_gen_tokens=s["n_generated_tokens"], empty_gen_slots=s["n_empty_generation_slots"], **common)
        if static else None,
        inflight_batching_stats=None if static else InflightBatchingStats(
            num_gen_requests=s["n_generation"], num_paused_requests=s["n_paused"],
            micro_batch_id=s["micro_batch_id"], avg_num_decoded_tokens_per_iter=decoded, **common))


def many(raws: List[Any], asked: Dict[int, Any]) -> List[Response]:
    """`asked`: (log probabilities, measurements) by request; of those that are over the entry goes."""
    out = []
    for raw in raws:
        log_probs, perf = asked.get(raw[0], (False, False))
        if raw[2]:
            asked.pop(raw[0], None)
        out.append(make(raw, log_probs, perf))
    return out
