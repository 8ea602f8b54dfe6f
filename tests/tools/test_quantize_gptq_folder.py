# SPDX-License-Identifier: Apache-2.0
"""nereid quantize --output_format gptq: the tensors mean, by the format's layout, the numbers that the other layout means.

Layout (AutoGPTQ, GPTQModel; checkpoint_format "gptq"): qweight int32 [in * bits / 32, out] has codes of neighbouring columns from the
lowest bits up, qzeros int32 [groups, out * bits / 32] zero points less one, scales float16 [groups, out], g_idx int32 [in] the group of
each column; w[out, in] = (code - zero) * scale.
"""
import json
import re
import sys

import numpy as np
import pytest
from test_quantize import ROOT, home, meant, quantize, run, safetensors  # noqa: F401

sys.path.insert(0, str(ROOT / "tests/tinymodel"))
import hf_folder  # noqa: E402


def tensors_of(folder):
    out = {}
    for path in folder.glob("model-*.safetensors"):
        data = path.read_bytes()
        n = int.from_bytes(data[:8], "little")
        types = {"F32": np.float32, "I32": np.int32, "F16": np.float16}
        for name, t in json.loads(data[8:8 + n]).items():
            if name != "__metadata__":
                a, b = t["data_offsets"]
                out[name] = np.frombuffer(data[8 + n + a:8 + n + b], types[t["dtype"]]).reshape(t["shape"])
    return out


def along(words, bits, axis):
    """Codes of int32 words, the lowest bits first, in the place of the axis."""
    words = np.moveaxis(words.view(np.uint32), axis, -1)
    codes = (words[..., None] >> np.arange(0, 32, bits, dtype=np.uint32)) & ((1 << bits) - 1)
    return np.moveaxis(codes.reshape(*words.shape[:-1], -1), -1, axis).astype(np.int64)


def weight(t, stem, bits):
    codes, zeros = along(t[stem + ".qweight"], bits, 0), along(t[stem + ".qzeros"], bits, 1) + 1
    assert zeros.max() < 1 << bits  # others' kernels add one without cutting it
    group = t[stem + ".g_idx"]
    return ((codes - zeros[group]) * t[stem + ".scales"].astype(np.float32)[group]).T.astype(np.float32)


@pytest.mark.parametrize("words", ["int4_gptq", "int4_awq --zero_point", "int4_wo --awq_block_size 16", "int8_wo"])
def test_the_tensors_stand_for_what_the_engine_computes(home, tmp_path, words):  # noqa: F811
    name, *more = words.split()
    bits = 8 if name == "int8_wo" else 4
    report = quantize(home / "llama3", tmp_path / "q", name, "--output_format", "gptq", "--exclude", "layers.1.mlp.up_proj", *more)
    config = json.loads((tmp_path / "q/config.json").read_text())["quantization_config"]
    tensors = tensors_of(tmp_path / "q")
    stems = sorted(n[:-8] for n in tensors if n.endswith(".qweight"))
    assert len(stems) == 20 and "model.layers.1.mlp.up_proj.weight" in tensors
    assert config["quant_method"] == "gptq" and config["checkpoint_format"] == "gptq" and config["bits"] == bits
    assert config["sym"] is ("--zero_point" not in more) and config["desc_act"] is False
    (rule,) = config["dynamic"]
    assert rule.startswith("-:") and re.match(rule[2:], "model.layers.1.mlp.up_proj")
    assert not re.match(rule[2:], "model.layers.1.mlp.up_proj_2")
    for stem in stems:
        rows, groups = tensors[stem + ".qweight"].shape[1], len(tensors[stem + ".scales"])
        assert tensors[stem + ".qzeros"].shape == (groups, rows * bits // 32)
        assert config["group_size"] == (-1 if bits == 8 else len(tensors[stem + ".g_idx"]) // groups)
    plain = {n: x for n, x in tensors.items() if not re.search(r"\.(qweight|qzeros|scales|g_idx)$", n)}
    plain |= {stem + ".weight": weight(tensors, stem, bits) for stem in stems}
    (tmp_path / "f").mkdir()
    hf_folder.write_safetensors(str(tmp_path / "f/model.safetensors"), plain, "float32")
    (tmp_path / "f/config.json").write_bytes((home / "llama3/config.json").read_bytes())
    (tmp_path / "in").write_text(json.dumps({"id": 1, "tokens": [2, *range(40, 100)]}) + "\n")
    said = []
    for folder in ("q", "f"):
        run("eval", tmp_path / folder, "--tokens", tmp_path / "in", "--out", tmp_path / "out", "--compute_dtype", "float32")
        said.append(np.array(json.loads((tmp_path / "out").read_text())["logprobs"][1:]))
    assert np.abs(said[0] - said[1]).max() < (2e-2 if "--zero_point" in more else 1e-4)  # Q4_1 keeps scale * zero as halves
    assert report["settings"]["output_format"] == "gptq"


def test_both_layouts_hold_the_same_numbers(home, tmp_path):  # noqa: F811
    """Scales of float16 instead of the model's float32, which is rounded to it as well."""
    quantize(home / "llama3", tmp_path / "g", "int4_wo", "--output_format", "gptq", "--no_eval")
    quantize(home / "llama3", tmp_path / "c", "int4_wo", "--no_eval")
    theirs = {}
    for part in (tmp_path / "c").glob("model-*.safetensors"):
        theirs |= safetensors(part)
    theirs, tensors = meant(theirs, False), tensors_of(tmp_path / "g")
    stems = [n[:-8] for n in tensors if n.endswith(".qweight")]
    assert len(stems) == 21
    for stem in stems:
        assert np.array_equal(weight(tensors, stem, 4), theirs[stem + ".weight"]), stem


def test_rows_that_do_not_fill_words_are_refused_before_anything_is_written(home, tmp_path):  # noqa: F811
    said = run("quantize", "--model_dir", home / "qwen3_moe", "--output_dir", tmp_path / "q", "--qformat", "int4_wo", "--no_eval",
               "--awq_block_size", 18, "--output_format", "gptq", status=1)
    assert "--output_format gptq: the " in said and "do not fill words of 8 codes" in said and not (tmp_path / "q").exists()
