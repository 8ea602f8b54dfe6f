# SPDX-License-Identifier: Apache-2.0
from tensorrt_llm.executor.request import LoRARequest

__all__ = ["LoRARequest"]
