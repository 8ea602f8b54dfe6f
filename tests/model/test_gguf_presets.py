# SPDX-License-Identifier: Apache-2.0
"""Files with the mixes of types that people download: families by presets of llama.cpp.

A file is written with the `gguf` package and read by `nereid eval`. Its reference is the same model
with the weights that the package's own `dequantize` gives, in float32. Two comparisons: computed
in float32 the results are equal, computed in the blocks' own formats they are near.
"""

import json
import os
import pathlib
import shlex
import subprocess
import sys

import gguf
import numpy as np
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "tinymodel"))
import gguf_file  # noqa: E402
import presets  # noqa: E402
import quant  # noqa: E402
import weights  # noqa: E402
from more_families import FAMILIES as ODD  # noqa: E402
from specs import SPECS  # noqa: E402

PROGRAM = shlex.split(os.environ.get("NEREID_EVAL", f"{ROOT}/build/bin/nereid eval"))
# Those of families.py have sizes that blocks do not divide.
FAMILIES = [name for name, spec in SPECS.items() if spec.gguf_arch and name != "gpt2-plain" and name not in ODD]
N_TOKENS = 40
SAME = 1e-5  # one float32 computation; only how weights are stacked may differ
# In the blocks' own formats activations are integers of 8 bits with one scale for 32 of them.
# Measured: up to 0.09 on average and 0.31 at most; one wrong matrix gives more than 1.
NEAR_MEAN, NEAR_MAX = 0.15, 0.6


def write(path, spec, tensors, type_of):
    """Through the gguf package: what it does not accept or lays out otherwise shows here."""
    keys, rows = gguf_file.to_gguf(spec, tensors, "f32", type_of)
    kinds = {"string": "STRING", "uint32": "UINT32", "float32": "FLOAT32"}
    w = gguf.GGUFWriter(path, spec.gguf_arch)
    for name, kind, value in keys:
        if name != "general.architecture":
            w.add_key_value(name, value, gguf.GGUFValueType[kinds[kind]])
    for name, fmt, shape, data in rows:
        kind = gguf.GGMLQuantizationType(quant.FORMATS[fmt].type_id)
        w.add_tensor(name, data.reshape(*shape[:-1], -1), raw_dtype=kind)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return {name: fmt for name, fmt, _, _ in rows}


def write_dequantized(path, source):
    """The same file with every tensor in float32, by the package's definition of the formats."""
    r = gguf.GGUFReader(source)
    w = gguf.GGUFWriter(path, r.get_field("general.architecture").contents())
    for name, field in r.fields.items():
        if not name.startswith("GGUF.") and name != "general.architecture":
            w.add_key_value(name, field.contents(), field.types[0])
    for t in r.tensors:
        shape = [int(n) for n in reversed(t.shape)]
        x = gguf.dequantize(t.data, t.tensor_type).astype(np.float32).reshape(shape)
        w.add_tensor(t.name, x)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def logprobs(model, tokens, folder, *more):
    asked, answer = folder / "in.jsonl", folder / "out.jsonl"
    asked.write_text(json.dumps({"id": "a", "tokens": tokens}) + "\n")
    done = subprocess.run([*PROGRAM, str(model), "--tokens", str(asked), "--out", str(answer),
                           "--top", "1", *more], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return np.array(json.loads(answer.read_text())["logprobs"][1:], np.float64)


@pytest.mark.parametrize("preset", presets.BASE)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_file_of_mixed_types_gives_the_logprobs_of_its_dequantized_weights(family, preset, tmp_path):
    spec = SPECS[family]
    tokens = weights.tokens(f"{family}/mix", N_TOKENS, spec.config["vocab_size"])
    chosen = write(tmp_path / "m.gguf", spec, weights.build(spec), presets.types(preset, spec))
    assert chosen["token_embd.weight"] != "f32"
    write_dequantized(tmp_path / "f32.gguf", tmp_path / "m.gguf")
    want = logprobs(tmp_path / "f32.gguf", tokens, tmp_path, "--compute-dtype", "float32")
    same = logprobs(tmp_path / "m.gguf", tokens, tmp_path, "--compute-dtype", "float32")
    assert np.abs(same - want).max() < SAME
    near = np.abs(logprobs(tmp_path / "m.gguf", tokens, tmp_path) - want)
    assert near.mean() < NEAR_MEAN and near.max() < NEAR_MAX
