# SPDX-License-Identifier: Apache-2.0
from nereid import CompletionOutput, RequestOutput
from nereid.executor import KvCacheConfig

from tensorrt_llm.llmapi.drafts import (DraftTargetDecodingConfig, Eagle3DecodingConfig, EagleDecodingConfig, LookaheadDecodingConfig,
                                        MedusaDecodingConfig, MTPDecodingConfig, NGramDecodingConfig)
from tensorrt_llm.llmapi.llm import LLM, BuildConfig, GuidedDecodingParams, RequestResult, SamplingParams

__all__ = ["LLM", "BuildConfig", "CompletionOutput", "DraftTargetDecodingConfig", "Eagle3DecodingConfig", "EagleDecodingConfig",
           "GuidedDecodingParams", "KvCacheConfig", "LookaheadDecodingConfig", "MTPDecodingConfig", "MedusaDecodingConfig", "NGramDecodingConfig",
           "RequestOutput", "RequestResult", "SamplingParams"]
