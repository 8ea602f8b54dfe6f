# SPDX-License-Identifier: Apache-2.0
"""How an executor is opened: the classes, and what the engine gets of them."""
from __future__ import annotations

import enum
from typing import Any, Dict, List, Optional

from nereid import _arrays, _nereid
from nereid._values import (BatchingType, CapacitySchedulerPolicy, CommunicationMode, CommunicationType, DecodingMode,
                            Value)


class SchedulerConfig(Value):
    __slots__ = ("capacity_scheduler_policy", "context_chunking_policy", "dynamic_batch_config")

    def __init__(self, capacity_scheduler_policy: CapacitySchedulerPolicy = CapacitySchedulerPolicy.GUARANTEED_NO_EVICT,
                 context_chunking_policy: Any = None, dynamic_batch_config: Any = None) -> None:
        self.capacity_scheduler_policy = capacity_scheduler_policy
        self.context_chunking_policy = context_chunking_policy
        self.dynamic_batch_config = dynamic_batch_config


class KvCacheConfig(Value):
    __slots__ = ("enable_block_reuse", "max_tokens", "max_attention_window", "sink_token_length",
                 "free_gpu_memory_fraction", "host_cache_size", "onboard_blocks", "cross_kv_cache_fraction",
                 "secondary_offload_min_priority", "event_buffer_max_size")

    def __init__(self, enable_block_reuse: bool = False, max_tokens: Optional[int] = None,
                 max_attention_window: Any = None, sink_token_length: Optional[int] = None,
                 free_gpu_memory_fraction: Optional[float] = None, host_cache_size: Optional[int] = None,
                 onboard_blocks: bool = True, cross_kv_cache_fraction: Optional[float] = None,
                 secondary_offload_min_priority: Optional[int] = None, event_buffer_max_size: int = 0) -> None:
        if isinstance(max_attention_window, int):  # v0.10
            max_attention_window = [max_attention_window]
        for name in self.__slots__:
            setattr(self, name, locals()[name])


class PeftCacheConfig(Value):
    __slots__ = ("num_host_module_layer", "num_device_module_layer", "optimal_adapter_size", "max_adapter_size",
                 "num_put_workers", "num_ensure_workers", "num_copy_streams", "max_pages_per_block_host",
                 "max_pages_per_block_device", "device_cache_percent", "host_cache_size", "lora_prefetch_dir")

    def __init__(self, num_host_module_layer: int = 0, num_device_module_layer: int = 0, optimal_adapter_size: int = 8,
                 max_adapter_size: int = 64, num_put_workers: int = 1, num_ensure_workers: int = 1,
                 num_copy_streams: int = 1, max_pages_per_block_host: int = 24, max_pages_per_block_device: int = 8,
                 device_cache_percent: Optional[float] = None, host_cache_size: Optional[int] = None,
                 lora_prefetch_dir: Optional[str] = None) -> None:
        for name in self.__slots__:
            setattr(self, name, locals()[name])


class OrchestratorConfig(Value):
    __slots__ = ("is_orchestrator", "worker_executable_path", "orch_leader_comm", "spawn_processes")

    def __init__(self, is_orchestrator: bool = True, worker_executable_path: Optional[str] = "",
                 orch_leader_comm: Any = None, spawn_processes: bool = True) -> None:
        for name in self.__slots__:
            setattr(self, name, locals()[name])


class ParallelConfig(Value):
    __slots__ = ("communication_type", "communication_mode", "device_ids", "participant_ids", "orchestrator_config",
                 "num_nodes")

    def __init__(self, communication_type: CommunicationType = CommunicationType.MPI,
                 communication_mode: CommunicationMode = CommunicationMode.LEADER,
                 device_ids: Optional[List[int]] = None, participant_ids: Optional[List[int]] = None,
                 orchestrator_config: Optional[OrchestratorConfig] = None, num_nodes: Optional[int] = None) -> None:
        for name in self.__slots__:
            setattr(self, name, locals()[name])


class LookaheadDecodingConfig(Value):
    __slots__ = ("max_window_size", "max_ngram_size", "max_verification_set_size")

    def __init__(self, max_window_size: int, max_ngram_size: int, max_verification_set_size: int) -> None:
        for name in self.__slots__:
            setattr(self, name, locals()[name])


class EagleConfig(Value):
    """Without greedy_sampling a guess of a drawn answer stays where it is likely enough: posterior_threshold, 0.09 if it is not given."""
    __slots__ = ("eagle_choices", "greedy_sampling", "posterior_threshold", "use_dynamic_tree",
                 "dynamic_tree_max_topK")

    def __init__(self, eagle_choices: Any = None, greedy_sampling: bool = True,
                 posterior_threshold: Optional[float] = None, use_dynamic_tree: bool = False,
                 dynamic_tree_max_topK: Optional[int] = None) -> None:
        if posterior_threshold is not None and not 0 <= posterior_threshold <= 1:
            raise ValueError(f"posterior_threshold must be between 0 and 1, got {posterior_threshold}")
        if use_dynamic_tree and eagle_choices:
            raise ValueError("eagle_choices say all of a tree; leave out use_dynamic_tree")
        for name in self.__slots__:
            setattr(self, name, locals()[name])


class DecodingConfig(Value):
    __slots__ = ("decoding_mode", "lookahead_decoding_config", "medusa_choices", "eagle_config")

    def __init__(self, decoding_mode: Optional[DecodingMode] = None,
                 lookahead_decoding_config: Optional[LookaheadDecodingConfig] = None, medusa_choices: Any = None,
                 eagle_config: Optional[EagleConfig] = None) -> None:
        for name in self.__slots__:
            setattr(self, name, locals()[name])


class ExtendedRuntimePerfKnobConfig(Value):
    __slots__ = ("multi_block_mode", "enable_context_fmha_fp32_acc", "cuda_graph_mode", "cuda_graph_cache_size")

    def __init__(self, multi_block_mode: bool = True, enable_context_fmha_fp32_acc: bool = False,
                 cuda_graph_mode: bool = False, cuda_graph_cache_size: int = 0) -> None:
        for name in self.__slots__:
            setattr(self, name, locals()[name])


class GuidedDecodingConfig(Value):
    """tokenizer_dir is ours: the engine reads the vocabulary there, not from encoded_vocab."""

    class GuidedDecodingBackend(enum.IntEnum):
        XGRAMMAR = 0
        LLGUIDANCE = 1

    __slots__ = ("backend", "encoded_vocab", "tokenizer_str", "stop_token_ids", "tokenizer_dir")

    def __init__(self, backend: "GuidedDecodingConfig.GuidedDecodingBackend", encoded_vocab: Optional[List[str]] = None,
                 tokenizer_str: Optional[str] = None, stop_token_ids: Optional[List[int]] = None,
                 tokenizer_dir: Optional[str] = None) -> None:
        for name in self.__slots__:
            setattr(self, name, locals()[name])


class ExecutorConfig(Value):
    """`medusa_choices` and `decoding_mode`: as v0.10 has them; later ones are in decoding_config. `device` and
    `n_threads` are ours."""
    __slots__ = ("max_beam_width", "scheduler_config", "kv_cache_config", "enable_chunked_context",
                 "normalize_log_probs", "iter_stats_max_iterations", "request_stats_max_iterations", "batching_type",
                 "max_batch_size", "max_num_tokens", "parallel_config", "peft_cache_config",
                 "logits_post_processor_config", "decoding_config", "use_gpu_direct_storage", "gpu_weights_percent",
                 "max_queue_size", "extended_runtime_perf_knob_config", "debug_config", "recv_poll_period_ms",
                 "max_seq_idle_microseconds", "spec_dec_config", "guided_decoding_config", "device", "n_threads")

    def __init__(self, max_beam_width: int = 1, scheduler_config: Optional[SchedulerConfig] = None,
                 kv_cache_config: Optional[KvCacheConfig] = None, enable_chunked_context: bool = False,
                 normalize_log_probs: bool = True, iter_stats_max_iterations: int = 1000,
                 request_stats_max_iterations: int = 0, batching_type: BatchingType = BatchingType.INFLIGHT,
                 max_batch_size: Optional[int] = None, max_num_tokens: Optional[int] = None,
                 parallel_config: Optional[ParallelConfig] = None, peft_cache_config: Optional[PeftCacheConfig] = None,
                 logits_post_processor_config: Any = None, decoding_config: Optional[DecodingConfig] = None,
                 use_gpu_direct_storage: bool = False, gpu_weights_percent: float = 1.0,
                 max_queue_size: Optional[int] = None,
                 extended_runtime_perf_knob_config: Optional[ExtendedRuntimePerfKnobConfig] = None,
                 debug_config: Any = None, recv_poll_period_ms: int = 0, max_seq_idle_microseconds: int = 180000000,
                 spec_dec_config: Any = None, guided_decoding_config: Optional[GuidedDecodingConfig] = None, *,
                 medusa_choices: Any = None, decoding_mode: Optional[DecodingMode] = None,
                 device: Optional[str] = None, n_threads: Optional[int] = None) -> None:
        scheduler_config = scheduler_config or SchedulerConfig()
        kv_cache_config = kv_cache_config or KvCacheConfig()
        if medusa_choices is not None or decoding_mode is not None:
            decoding_config = DecodingConfig(decoding_mode, None, medusa_choices)
        for name in self.__slots__:
            setattr(self, name, locals()[name])


def _refuse(given: Any, name: str) -> None:
    if given:
        raise _nereid.UnsupportedError(f"{name} is not supported")


def fields_of(c: ExecutorConfig) -> Dict[str, Any]:
    """The configuration as nereid/executor.h has it. What the engine has no field for is refused by name."""
    kv, decoding = c.kv_cache_config, c.decoding_config or DecodingConfig()
    policy = c.scheduler_config.capacity_scheduler_policy
    _refuse(policy == CapacitySchedulerPolicy.STATIC_BATCH, "capacity_scheduler_policy STATIC_BATCH")
    _refuse(c.logits_post_processor_config, "logits_post_processor_config")
    _refuse(c.spec_dec_config, "spec_dec_config")
    fields: Dict[str, Any] = {
        "batching": 1 if c.batching_type == BatchingType.STATIC else 0,
        "policy": 1 if policy == CapacitySchedulerPolicy.MAX_UTILIZATION else 0,
        "decoding_mode": decoding.decoding_mode.number if decoding.decoding_mode else None,
        "max_beam_width": c.max_beam_width, "max_batch_size": c.max_batch_size, "max_num_tokens": c.max_num_tokens,
        "max_queue_size": c.max_queue_size, "enable_chunked_context": c.enable_chunked_context,
        "normalize_log_probs": c.normalize_log_probs, "iter_stats_max_iterations": c.iter_stats_max_iterations,
        "gpu_weights_percent": c.gpu_weights_percent, "device": c.device, "n_threads": c.n_threads,
        "enable_kv_cache_reuse": kv.enable_block_reuse, "max_tokens_in_paged_kv_cache": kv.max_tokens,
        "sink_token_length": kv.sink_token_length, "kv_cache_free_mem_fraction": kv.free_gpu_memory_fraction,
        "kv_cache_host_memory_bytes": kv.host_cache_size,
    }
    if kv.max_attention_window is not None:
        fields["max_attention_window"] = _arrays.int32(kv.max_attention_window)
    if c.parallel_config and c.parallel_config.device_ids:
        fields["device_ids"] = _arrays.int32(c.parallel_config.device_ids)
    if decoding.medusa_choices:
        fields["medusa_choices"] = str([list(choice) for choice in decoding.medusa_choices])
    if decoding.eagle_config and decoding.eagle_config.eagle_choices:
        fields["eagle_choices"] = str([list(choice) for choice in decoding.eagle_config.eagle_choices])
    elif decoding.eagle_config and decoding.eagle_config.use_dynamic_tree:
        fields["eagle_top_k"] = decoding.eagle_config.dynamic_tree_max_topK
    if decoding.eagle_config and not decoding.eagle_config.greedy_sampling:
        given = decoding.eagle_config.posterior_threshold
        fields["eagle_posterior_threshold"] = 0.09 if given is None else given
    if decoding.lookahead_decoding_config:
        look = decoding.lookahead_decoding_config
        fields.update(lookahead_window_size=look.max_window_size, lookahead_ngram_size=look.max_ngram_size,
                      lookahead_verification_set_size=look.max_verification_set_size)
    if c.peft_cache_config:
        peft = c.peft_cache_config
        fields.update(lora_cache_max_adapter_size=peft.max_adapter_size,
                      lora_cache_optimal_adapter_size=peft.optimal_adapter_size,
                      lora_cache_gpu_memory_fraction=peft.device_cache_percent,
                      lora_cache_host_memory_bytes=peft.host_cache_size, lora_prefetch_dir=peft.lora_prefetch_dir)
    if c.extended_runtime_perf_knob_config:
        knobs = c.extended_runtime_perf_knob_config
        fields.update(cuda_graph_mode=knobs.cuda_graph_mode, cuda_graph_cache_size=knobs.cuda_graph_cache_size)
    if c.guided_decoding_config:
        if c.guided_decoding_config.tokenizer_dir is None:
            raise _nereid.UnsupportedError("guided_decoding_config without tokenizer_dir: the vocabulary is read "
                                           "from the tokenizer's folder")
        fields.update(guided_decoding_backend="xgrammar", tokenizer_dir=c.guided_decoding_config.tokenizer_dir)
    return fields
