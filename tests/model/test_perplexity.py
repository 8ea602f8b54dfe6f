"""The perplexity of a text with the weights computed in their own format is that of float32 arithmetic
over the same dequantized weights, within half a percent."""
import pathlib
import re
import subprocess

import pytest

import check_goldens as cg
from test_goldens import PROGRAM

TEXT = pathlib.Path(__file__).resolve().parents[2] / "docs/architecture.md"
LIMIT = 0.005


def perplexity(model, text, *options):
    out = subprocess.run([*PROGRAM, model, "-f", text, "-c", "256", *options], check=True,
                         capture_output=True, text=True).stdout
    return float(re.search(r"perplexity ([\d.]+)", out)[1])


@pytest.mark.parametrize("name,n_bytes,isas", [("smollm2", 2400, ["avx2", "avx512"]), ("gemma3-270m", 1800, ["avx2"])])
def test_native_formats_keep_the_perplexity(name, n_bytes, isas, tmp_path):
    model = cg.real_path(name)
    if model is None:
        pytest.skip("the model is not in the cache")
    text = tmp_path / "text.txt"
    text.write_bytes(TEXT.read_bytes()[:n_bytes])
    exact = perplexity(model, text, "--compute-dtype", "float32")
    for options in [[], *(["--isa", isa] for isa in isas)]:
        native = perplexity(model, text, *options)
        assert abs(native / exact - 1) < LIMIT, (options, native, exact)
