# SPDX-License-Identifier: Apache-2.0
"""The perplexity of a text with the weights computed in their own format is that of float32 arithmetic
over the same dequantized weights, within half a percent."""
import pathlib
import re
import subprocess

import pytest

import check_goldens as cg
from test_goldens import PROGRAM, instruction_sets

TEXT = pathlib.Path(__file__).with_name("perplexity.txt")  # of its own: a short text differs by chance
LIMIT = 0.005


def perplexity(model, text, *options):
    out = subprocess.run([*PROGRAM, model, "-f", text, "-c", "256", *options], check=True,
                         capture_output=True, text=True).stdout
    return float(re.search(r"perplexity ([\d.]+)", out)[1])


@pytest.mark.parametrize("name,isas", [("smollm2", ["avx2", "avx512"]), ("gemma3-270m", ["avx2"])])
def test_native_formats_keep_the_perplexity(name, isas):
    model = cg.real_path(name)
    if model is None:
        pytest.skip("the model is not in the cache")
    exact = perplexity(model, TEXT, "--compute-dtype", "float32")
    for options in [[], *(["--isa", isa] for isa in isas if isa in instruction_sets())]:
        native = perplexity(model, TEXT, *options)
        assert abs(native / exact - 1) < LIMIT, (options, native, exact)
