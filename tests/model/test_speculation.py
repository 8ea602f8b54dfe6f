# SPDX-License-Identifier: Apache-2.0
"""Answers of a real model with drafts are those without, in float32: there, near ties do not occur (see lossless.py, which
compares more of them)."""
import pathlib
import sys

import pytest

import check_goldens as cg

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "build/python"))

METHODS = {"ngram": {"method": "ngram", "adaptive": False, "prompt_lookup_min": 1},
           "lookahead": {"method": "lookahead", "adaptive": False}}


def test_answers_are_those_without_drafts():
    pytest.importorskip("nereid", reason="the Python module is not built")
    import lossless
    model = cg.real_path("smollm2")
    if model is None:
        pytest.skip("the model is not in the cache")
    rows, ties = lossless.compare(model, METHODS, [4], lossless.prompts_of(200)[3:200:25], 12, {"compute_dtype": "float32"})
    assert all(row[3] == row[2] for row in rows), ties
    assert all(row[7] > 0 for row in rows[1:])  # some drafted tokens held
