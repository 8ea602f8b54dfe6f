# SPDX-License-Identifier: Apache-2.0
"""Log lines of models, through Python's own logging."""
import logging

_log = logging.getLogger("tensorrt_llm")
debug, info, warning, error = _log.debug, _log.info, _log.warning, _log.error
