# SPDX-License-Identifier: Apache-2.0
from tensorrt_llm.bindings import executor

__all__ = ["executor"]
