# SPDX-License-Identifier: Apache-2.0
from nereid import CompletionOutput, RequestOutput
from nereid.executor import KvCacheConfig

from tensorrt_llm.llmapi.llm import LLM, GuidedDecodingParams, RequestResult, SamplingParams

__all__ = ["LLM", "CompletionOutput", "GuidedDecodingParams", "KvCacheConfig", "RequestOutput", "RequestResult", "SamplingParams"]
