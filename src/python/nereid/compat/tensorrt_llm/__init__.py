# SPDX-License-Identifier: Apache-2.0
"""The names under which programs for TensorRT-LLM import the engine. Only on the path of those who put it there:
PYTHONPATH="$(python -m nereid compat)". It is `nereid.executor` and `nereid.LLM` under other names, and no TensorRT-LLM."""
from nereid import __version__

from tensorrt_llm.llmapi import LLM, BuildConfig, SamplingParams

__all__ = ["BuildConfig", "LLM", "SamplingParams", "__version__"]
