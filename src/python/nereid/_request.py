# SPDX-License-Identifier: Apache-2.0
"""What is asked of an executor: the classes, and what the engine gets of them."""
from __future__ import annotations

import datetime
import enum
from typing import Any, Dict, List, Optional, Sequence, Union

from nereid import _arrays, _nereid
from nereid._config import LookaheadDecodingConfig
from nereid._values import RequestType, Value


class SamplingConfig(Value):
    """None: the engine's default, which is the most probable token. `seed` and `min_tokens` are also called
    random_seed and min_length."""
    __slots__ = ("beam_width", "top_k", "top_p", "top_p_min", "top_p_reset_ids", "top_p_decay", "seed", "temperature",
                 "min_tokens", "beam_search_diversity_rate", "repetition_penalty", "presence_penalty",
                 "frequency_penalty", "length_penalty", "early_stopping", "no_repeat_ngram_size",
                 "num_return_sequences", "min_p")

    def __init__(self, beam_width: int = 1, top_k: Optional[int] = None, top_p: Optional[float] = None,
                 top_p_min: Optional[float] = None, top_p_reset_ids: Optional[int] = None,
                 top_p_decay: Optional[float] = None, seed: Optional[int] = None, temperature: Optional[float] = None,
                 min_tokens: Optional[int] = None, beam_search_diversity_rate: Optional[float] = None,
                 repetition_penalty: Optional[float] = None, presence_penalty: Optional[float] = None,
                 frequency_penalty: Optional[float] = None, length_penalty: Optional[float] = None,
                 early_stopping: Optional[int] = None, no_repeat_ngram_size: Optional[int] = None,
                 num_return_sequences: Optional[int] = None, min_p: Optional[float] = None, *,
                 random_seed: Optional[int] = None, min_length: Optional[int] = None) -> None:
        seed = random_seed if seed is None else seed
        min_tokens = min_length if min_tokens is None else min_tokens
        for name in self.__slots__:
            setattr(self, name, locals()[name])

    @property
    def random_seed(self) -> Optional[int]:
        return self.seed

    @random_seed.setter
    def random_seed(self, value: Optional[int]) -> None:
        self.seed = value

    @property
    def min_length(self) -> Optional[int]:
        return self.min_tokens

    @min_length.setter
    def min_length(self, value: Optional[int]) -> None:
        self.min_tokens = value


class OutputConfig(Value):
    __slots__ = ("return_log_probs", "return_context_logits", "return_generation_logits", "exclude_input_from_output",
                 "return_encoder_output", "return_perf_metrics")

    def __init__(self, return_log_probs: bool = False, return_context_logits: bool = False,
                 return_generation_logits: bool = False, exclude_input_from_output: bool = False,
                 return_encoder_output: bool = False, return_perf_metrics: bool = False) -> None:
        for name in self.__slots__:
            setattr(self, name, locals()[name])


class ExternalDraftTokensConfig(Value):
    __slots__ = ("tokens", "logits", "acceptance_threshold", "fast_logits")

    def __init__(self, tokens: Sequence[int], logits: Any = None, acceptance_threshold: Optional[float] = None,
                 fast_logits: Optional[bool] = None) -> None:
        for name in self.__slots__:
            setattr(self, name, locals()[name])


SpeculativeDecodingConfig = ExternalDraftTokensConfig  # its name in v0.10


class PromptTuningConfig(Value):
    """embedding_table: [rows, hidden]; ids from the vocabulary's size on are its rows."""
    __slots__ = ("embedding_table", "input_token_extra_ids")

    def __init__(self, embedding_table: Any, input_token_extra_ids: Optional[Sequence[int]] = None) -> None:
        self.embedding_table, self.input_token_extra_ids = embedding_table, input_token_extra_ids


class MropeConfig(Value):
    __slots__ = ("mrope_rotary_cos_sin", "mrope_position_deltas")

    def __init__(self, mrope_rotary_cos_sin: Any, mrope_position_deltas: Any) -> None:
        self.mrope_rotary_cos_sin, self.mrope_position_deltas = mrope_rotary_cos_sin, mrope_position_deltas


class LoraConfig(Value):
    """weights: [rows, width]; config: [rows, 3], module, layer and rank of each; both only with the first request
    of a task_id."""
    __slots__ = ("task_id", "weights", "config")

    def __init__(self, task_id: int, weights: Any = None, config: Any = None) -> None:
        self.task_id, self.weights, self.config = task_id, weights, config


class KvCacheRetentionConfig(Value):
    class TokenRangeRetentionConfig(Value):
        __slots__ = ("token_start", "token_end", "priority", "duration_ms")

        def __init__(self, token_start: int, token_end: Optional[int] = None, priority: int = 35,
                     duration_ms: Optional[datetime.timedelta] = None) -> None:
            for name in self.__slots__:
                setattr(self, name, locals()[name])

    __slots__ = ("token_range_retention_configs", "decode_retention_priority", "decode_duration_ms")

    def __init__(self, token_range_retention_configs: List[TokenRangeRetentionConfig],
                 decode_retention_priority: int = 35,
                 decode_duration_ms: Union[None, int, datetime.timedelta] = None) -> None:
        for name in self.__slots__:
            setattr(self, name, locals()[name])


class GuidedDecodingParams(Value):
    class GuideType(enum.IntEnum):
        JSON = 0
        JSON_SCHEMA = 1
        REGEX = 2
        EBNF_GRAMMAR = 3
        STRUCTURAL_TAG = 4

    __slots__ = ("guide_type", "guide")

    def __init__(self, guide_type: "GuidedDecodingParams.GuideType", guide: Optional[str] = None) -> None:
        self.guide_type, self.guide = guide_type, guide


class Request(Value):
    """`max_new_tokens`, `num_return_sequences` and `speculative_decoding_config` are the names of earlier releases
    for max_tokens, SamplingConfig.num_return_sequences and external_draft_tokens_config."""
    __slots__ = ("input_token_ids", "max_tokens", "streaming", "sampling_config", "output_config", "end_id", "pad_id",
                 "position_ids", "bad_words", "stop_words", "embedding_bias", "external_draft_tokens_config",
                 "prompt_tuning_config", "mrope_config", "lora_config", "lookahead_config",
                 "kv_cache_retention_config", "logits_post_processor_name", "encoder_input_token_ids", "client_id",
                 "return_all_generated_tokens", "priority", "type", "context_phase_params", "encoder_input_features",
                 "encoder_output_length", "cross_attention_mask", "skip_cross_attn_blocks",
                 "guided_decoding_params", "cache_salt")

    def __init__(self, input_token_ids: Sequence[int], max_tokens: Optional[int] = None, streaming: bool = False,
                 sampling_config: Optional[SamplingConfig] = None, output_config: Optional[OutputConfig] = None,
                 end_id: Optional[int] = None, pad_id: Optional[int] = None,
                 position_ids: Optional[Sequence[int]] = None, bad_words: Optional[Sequence[Sequence[int]]] = None,
                 stop_words: Optional[Sequence[Sequence[int]]] = None, embedding_bias: Any = None,
                 external_draft_tokens_config: Optional[ExternalDraftTokensConfig] = None,
                 prompt_tuning_config: Optional[PromptTuningConfig] = None, mrope_config: Optional[MropeConfig] = None,
                 lora_config: Optional[LoraConfig] = None, lookahead_config: Optional[LookaheadDecodingConfig] = None,
                 kv_cache_retention_config: Optional[KvCacheRetentionConfig] = None,
                 logits_post_processor_name: Optional[str] = None,
                 encoder_input_token_ids: Optional[Sequence[int]] = None, client_id: Optional[int] = None,
                 return_all_generated_tokens: bool = False, priority: float = 0.5,
                 type: RequestType = RequestType.REQUEST_TYPE_CONTEXT_AND_GENERATION, context_phase_params: Any = None,
                 encoder_input_features: Any = None, encoder_output_length: Optional[int] = None,
                 cross_attention_mask: Any = None, skip_cross_attn_blocks: Any = None,
                 guided_decoding_params: Optional[GuidedDecodingParams] = None, cache_salt: Optional[str] = None, *,
                 max_new_tokens: Optional[int] = None, num_return_sequences: Optional[int] = None,
                 speculative_decoding_config: Optional[ExternalDraftTokensConfig] = None) -> None:
        max_tokens = max_new_tokens if max_tokens is None else max_tokens
        if max_tokens is None:
            raise TypeError("Request: max_tokens is missing")
        streaming = bool(streaming)
        sampling_config = sampling_config or SamplingConfig()
        output_config = output_config or OutputConfig()
        external_draft_tokens_config = external_draft_tokens_config or speculative_decoding_config
        if num_return_sequences is not None:
            sampling_config.num_return_sequences = num_return_sequences
        for name in self.__slots__:
            setattr(self, name, locals()[name])

    @property
    def max_new_tokens(self) -> int:
        return self.max_tokens

    @property
    def num_return_sequences(self) -> int:
        return self.sampling_config.num_return_sequences or 1


def _ms(duration: Union[None, int, datetime.timedelta]) -> int:
    if duration is None:
        return -1
    return round(duration / datetime.timedelta(milliseconds=1)) if isinstance(duration, datetime.timedelta) else duration


def _flat(values: Any) -> Any:
    """[1, n] as [n]: early releases of the published model send drafts that way."""
    return values[0] if len(values) and hasattr(values[0], "__len__") else values


def _lora(c: LoraConfig, fields: Dict[str, Any]) -> None:
    fields["lora_task_id"] = c.task_id
    if c.weights is not None:
        data, kind, shape = _arrays.tensor("lora_weights", c.weights, ("float16", "float32", "bfloat16"))
        fields.update(lora_weights=data, lora_weights_dtype=kind, lora_rows=shape[-2], lora_width=shape[-1])
    if c.config is not None:
        data, _, shape = _arrays.tensor("lora_config", c.config, ("int32",))
        fields.update(lora_config=data, lora_config_width=shape[-1], lora_rows=fields.get("lora_rows", shape[-2]))


def _retention(c: KvCacheRetentionConfig, fields: Dict[str, Any]) -> None:
    fields["retention_ranges"] = [
        (int(r.token_start), -1 if r.token_end is None else int(r.token_end), int(r.priority), _ms(r.duration_ms))
        for r in c.token_range_retention_configs]
    fields["retention_decode_priority"] = c.decode_retention_priority
    fields["retention_decode_duration_ms"] = _ms(c.decode_duration_ms)


def _encoder(r: Request, fields: Dict[str, Any]) -> None:
    """What the encoder of an encoder-decoder model reads: tokens, or the features of a sound. The engine calls the tokens of an
    encoder input_ids, and what the text begins with decoder_input_ids."""
    if r.encoder_input_token_ids is not None:
        if not fields["input_ids"]:
            raise _nereid.InvalidArgumentError("input_token_ids: at least one token that the decoder's text begins with is "
                                               "needed beside encoder_input_token_ids")
        fields.update(input_ids=_arrays.int32(r.encoder_input_token_ids), decoder_input_ids=fields["input_ids"])
    if r.encoder_input_features is not None:
        data, kind, shape = _arrays.tensor("encoder_input_features", r.encoder_input_features, ("float32", "float16"))
        if len(shape) == 3 and shape[0] == 1:
            shape = shape[1:]
        if len(shape) != 2:
            raise ValueError(f"encoder_input_features: expected the shape [frames, features], got {list(shape)}")
        fields.update(encoder_input_features=data, encoder_features_dtype=kind, n_encoder_frames=shape[0],
                      encoder_feature_size=shape[1])
    if r.cross_attention_mask is not None:
        data, _, shape = _arrays.tensor("cross_attention_mask", r.cross_attention_mask, ("bool", "uint8"))
        if len(shape) != 2:
            raise ValueError(f"cross_attention_mask has {len(shape)} dimensions, expected 2: positions of the decoder, states of the encoder")
        fields.update(cross_attention_mask=data, n_cross_mask_rows=shape[0], n_cross_mask_cols=shape[1])
    fields["encoder_output_length"] = r.encoder_output_length


# Members that the engine has no field for; each is refused by its name where it is given.
_REFUSED = ("position_ids", "logits_post_processor_name", "return_all_generated_tokens",
            "context_phase_params", "skip_cross_attn_blocks")


def fields_of(r: Request) -> Dict[str, Any]:
    """The request as nereid/executor.h has it."""
    for name in _REFUSED:
        value = getattr(r, name)
        if value is not None and value is not False:
            raise _nereid.UnsupportedError(f"{name} is not supported")
    s, o = r.sampling_config, r.output_config
    if o.return_encoder_output:
        raise _nereid.UnsupportedError("return_encoder_output is not supported")
    fields: Dict[str, Any] = {
        "kind": int(r.type), "input_ids": _arrays.int32(r.input_token_ids), "max_new_tokens": r.max_tokens,
        "streaming": r.streaming, "exclude_input_in_output": o.exclude_input_from_output, "end_id": r.end_id,
        "pad_id": r.pad_id, "stop_words": _arrays.phrases(r.stop_words), "bad_words": _arrays.phrases(r.bad_words),
        "priority": r.priority, "client_id": r.client_id, "cache_salt": r.cache_salt,
        "return_log_probs": o.return_log_probs, "return_context_logits": o.return_context_logits,
        "return_generation_logits": o.return_generation_logits, "return_perf_metrics": o.return_perf_metrics,
        "top_p_reset_id": s.top_p_reset_ids, "random_seed": s.seed, "min_length": s.min_tokens,
        "early_stopping": None if s.early_stopping is None else int(s.early_stopping),
    }
    for name in ("beam_width", "num_return_sequences", "top_k", "top_p", "top_p_min", "top_p_decay", "min_p",
                 "temperature", "repetition_penalty", "presence_penalty", "frequency_penalty", "length_penalty",
                 "beam_search_diversity_rate", "no_repeat_ngram_size"):
        fields[name] = getattr(s, name)
    if r.embedding_bias is not None:
        fields["embedding_bias"] = _arrays.tensor("embedding_bias", r.embedding_bias, ("float32",))[0]
    if r.external_draft_tokens_config:
        draft = r.external_draft_tokens_config
        fields.update(draft_input_ids=_arrays.int32(_flat(draft.tokens)),
                      draft_acceptance_threshold=draft.acceptance_threshold)
        if draft.logits is not None:
            fields["draft_logits"] = _arrays.tensor("draft_logits", draft.logits, ("float32",))[0]
    if r.prompt_tuning_config:
        data, kind, _ = _arrays.tensor("prompt_embedding_table", r.prompt_tuning_config.embedding_table,
                                       ("float16", "float32", "bfloat16"))
        fields.update(prompt_embedding_table=data, prompt_table_dtype=kind)
        if r.prompt_tuning_config.input_token_extra_ids is not None:
            fields["prompt_table_extra_ids"] = _arrays.uint64(r.prompt_tuning_config.input_token_extra_ids)
    if r.mrope_config:
        table = _arrays.tensor("mrope_rotary_cos_sin", r.mrope_config.mrope_rotary_cos_sin, ("float32",))[0]
        fields.update(mrope_rotary_cos_sin=table, mrope_position_delta=int(r.mrope_config.mrope_position_deltas))
    _encoder(r, fields)
    if r.lora_config:
        _lora(r.lora_config, fields)
    if r.lookahead_config:
        fields.update(lookahead_window_size=int(r.lookahead_config.max_window_size),
                      lookahead_ngram_size=int(r.lookahead_config.max_ngram_size),
                      lookahead_verification_set_size=int(r.lookahead_config.max_verification_set_size))
    if r.kv_cache_retention_config:
        _retention(r.kv_cache_retention_config, fields)
    if r.guided_decoding_params:
        guide = r.guided_decoding_params
        fields.update(guide_type=guide.guide_type.name.lower(), guide=guide.guide)
    return fields
