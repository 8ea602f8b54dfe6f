# SPDX-License-Identifier: Apache-2.0
"""The prompt and the table of prompt_goldens.json. An id from VOCABULARY_PLUS on is row id - VOCABULARY_PLUS of
the table, whatever vocabulary the model has."""
import numpy as np

FAMILIES = ["llama", "gpt2", "gemma"]
VOCABULARY_PLUS = 1_000_000
ROWS = 7


def table_rows(hidden):
    """[ROWS, hidden] in FP16, the same on every machine."""
    at = np.arange(ROWS * hidden, dtype=np.uint64)
    bits = (at * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(40)  # 24 bits
    return ((bits.astype(np.float64) / (1 << 24) - 0.5) * 0.25).astype(np.float16).reshape(ROWS, hidden)


def prompt_ids():
    v = VOCABULARY_PLUS
    return [5, 6, v, v + 1, v + 6, 7, 8, v + 2, 9, v + 3, v + 4, v + 5]
