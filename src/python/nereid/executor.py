# SPDX-License-Identifier: Apache-2.0
"""The engine, tokens in and tokens out, with the names of `tensorrt_llm.bindings.executor`.

    from nereid import executor as trtllm
    with trtllm.Executor("engine", trtllm.ModelType.DECODER_ONLY, trtllm.ExecutorConfig()) as x:
        request = x.enqueue_request(trtllm.Request([1, 2, 3], max_tokens=8))
        print(x.await_responses(request)[-1].result.output_token_ids)

What the engine has not got is refused by its name (nereid.UnsupportedError). Threads and fork: see `nereid`.
"""
from __future__ import annotations

import datetime
import os
import weakref
from typing import Any, Dict, List, Optional, Sequence, Tuple, Union

from nereid import _config, _nereid, _request, _response
from nereid._config import (DecodingConfig, EagleConfig, ExecutorConfig, ExtendedRuntimePerfKnobConfig,
                            GuidedDecodingConfig, KvCacheConfig, LookaheadDecodingConfig, OrchestratorConfig,
                            ParallelConfig, PeftCacheConfig, SchedulerConfig)
from nereid._inbox import Inbox
from nereid._request import (ExternalDraftTokensConfig, GuidedDecodingParams, KvCacheRetentionConfig, LoraConfig,
                             MropeConfig, OutputConfig, PromptTuningConfig, Request, SamplingConfig,
                             SpeculativeDecodingConfig)
from nereid._response import (InflightBatchingStats, IterationStats, KvCacheMetrics, KvCacheStats,
                              RequestPerfMetrics, Response, Result, SpeculativeDecodingMetrics, StaticBatchingStats,
                              TimingMetrics)
from nereid._values import (BatchingType, CapacitySchedulerPolicy, CommunicationMode, CommunicationType,
                            ContextChunkingPolicy, DecodingMode, FinishReason, ModelType, RequestType)

Timeout = Union[None, float, datetime.timedelta]

# Releases up to v0.11 have timestamps without a fraction; who runs a model of theirs sets this to False.
timestamp_fraction = os.environ.get("NEREID_TIMESTAMP_FRACTION", "1") != "0"


class Executor:
    """An engine that runs. `model_path`: an engine folder, or anything that `nereid.LLM` opens."""

    def __init__(self, model_path: Union[str, "os.PathLike[str]"], model_type: ModelType = ModelType.DECODER_ONLY,
                 executor_config: Optional[ExecutorConfig] = None) -> None:
        config = executor_config or ExecutorConfig()
        if model_type == ModelType.ENCODER_ONLY:
            raise _nereid.UnsupportedError(f"model_type {ModelType(model_type).name} is not supported")
        fields = _config.fields_of(config)
        path = _nereid.ModelPath(os.fspath(model_path), config.device or "auto", 0, 0, 0)
        if model_type == ModelType.ENCODER_DECODER and not os.path.isdir(os.path.join(path.engine, "encoder")):
            raise _nereid.InvalidArgumentError(f"model_type ENCODER_DECODER: the engine of '{os.fspath(model_path)}' has no encoder")
        raw = _nereid.Executor(path.engine, fields)
        self._inbox = Inbox(raw)
        self._static = config.batching_type == BatchingType.STATIC
        self._accepts = True
        self._asked: Dict[int, Tuple[bool, bool]] = {}
        self._close = weakref.finalize(self, _close, self._inbox, path)

    def can_enqueue_requests(self) -> bool:
        return self._accepts and not self._inbox.closed

    def enqueue_request(self, request: Request) -> int:
        """The request's id. A bad field raises, and names itself and its limit."""
        if not self.can_enqueue_requests():
            raise _nereid.UnavailableError("the executor was shut down")
        output = request.output_config
        wanted = (bool(output.return_log_probs), bool(output.return_perf_metrics))
        fields = _request.fields_of(request)
        return self._inbox.enqueue(fields, lambda i: self._asked.__setitem__(i, wanted))

    def enqueue_requests(self, requests: Sequence[Request]) -> List[int]:
        """Their ids. Where one is refused, those before it are cancelled."""
        ids: List[int] = []
        try:
            for request in requests:
                ids.append(self.enqueue_request(request))
        except BaseException:
            self._inbox.drop(ids)
            raise
        return ids

    def await_responses(self, id: Union[None, int, Sequence[int], Timeout] = None, timeout: Timeout = None) -> Any:
        """Responses of all requests, a list; of one request, a list; of several, a list for each. Waits until there
        is one (for each of several), up to `timeout`: a timedelta, seconds, or None for as long as it takes."""
        if isinstance(id, datetime.timedelta):  # await_responses(timeout)
            id, timeout = None, id
        seconds = timeout.total_seconds() if isinstance(timeout, datetime.timedelta) else timeout
        if id is None or isinstance(id, int):
            return _response.many(self._inbox.take(None if id is None else [id], seconds), self._asked)
        return [_response.many(self._inbox.take([i], seconds), self._asked) for i in id]

    def get_num_responses_ready(self, id: Optional[int] = None) -> int:
        return self._inbox.count(id)

    def cancel_request(self, id: int) -> None:
        """Asks a request to end early; it gets its final response. An unknown id: nothing."""
        self._inbox.raw.cancel(id)

    def get_latest_iteration_stats(self) -> List[IterationStats]:
        """The steps since the last call."""
        return [_response.stats(s, self._static, timestamp_fraction) for s in self._inbox.raw.iter_stats()]

    def get_latest_request_stats(self) -> List[Any]:
        """None are kept."""
        return []

    def shutdown(self) -> None:
        """Takes no more requests, waits until those under way are over, and closes; their responses can still be
        taken."""
        if self._accepts:
            self._accepts = False
            if not self._inbox.closed:
                self._inbox.drain()
            self._close()

    def __enter__(self) -> "Executor":
        return self

    def __exit__(self, *exc: Any) -> None:
        self.shutdown()


def _close(inbox: Inbox, path: _nereid.ModelPath) -> None:
    inbox.close()
    path.close()
