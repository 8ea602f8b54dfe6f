# SPDX-License-Identifier: Apache-2.0
"""The names under which programs for TensorRT-LLM import the engine. Only on the path of those who put it there:
PYTHONPATH="$(python -m nereid compat)". It is `nereid.executor` under another name, and no TensorRT-LLM."""
from nereid import __version__

__all__ = ["__version__"]
