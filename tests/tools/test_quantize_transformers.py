# SPDX-License-Identifier: Apache-2.0
"""What nereid quantize writes is read by transformers with compressed-tensors, and means the same there."""
import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch, transformers and compressed-tensors")
transformers = pytest.importorskip("transformers", reason="needs PyTorch, transformers and compressed-tensors")
pytest.importorskip("compressed_tensors", reason="needs PyTorch, transformers and compressed-tensors")

ROOT = pathlib.Path(__file__).resolve().parents[2]
NEREID = os.environ.get("NEREID", str(ROOT / "build/bin/nereid"))
sys.path.insert(0, str(ROOT / "tests/tinymodel"))
import make_model  # noqa: E402

IDS = [2, *range(40, 100)]


@pytest.mark.parametrize("words", [
    "full_prec", "int8_wo", "int8_sq", "fp8", "int4_wo", "int4_awq", "int4_gptq", "int8_wo --gptq",
    "fp8 --gptq", "int8_wo --quantize_lm_head", "int4_awq --exclude down_proj",
    "int4_gptq --awq_block_size 32 --auto_quantize_bits 5.5", "full_prec --kv_cache_dtype int8", "int8_wo --kv_cache_dtype int8",
    "fp8 --kv_cache_dtype fp8", "w4a8_awq", "fp8_pb_wo", "mxfp8", "mxfp4", "nvfp4", "nvfp4 --gptq", "mxfp4 --gptq",
    "fp8 --per_tensor --static_inputs", "int8_sq --per_tensor --static_inputs", "int8_sq --mixed auto", "fp8 --mixed auto",
    "int4_awq --autoq_format fp8,int4_awq,w4a8_awq --awq_block_size 32 --mixed auto"])
def test_transformers_computes_the_same(tmp_path, monkeypatch, words):
    # The library unpacks small groups to bfloat16, which holds numbers of MX as they are and rounds those of NVFP4.
    linear = torch.nn.functional.linear
    monkeypatch.setattr(torch.nn.functional, "linear", lambda x, w, b=None: linear(x, w.to(x.dtype), b))
    make_model.write_folder("llama3", str(tmp_path / "m"))
    subprocess.run([NEREID, "quantize", "--model_dir", tmp_path / "m", "--output_dir", tmp_path / "q", "--no_eval", "--calib_size", "2",
                    "-t", "1", "--qformat", *words.split()], check=True, capture_output=True)
    (tmp_path / "in").write_text(json.dumps({"id": 1, "tokens": IDS}) + "\n")
    subprocess.run([NEREID, "eval", tmp_path / "q", "--tokens", tmp_path / "in", "--out", tmp_path / "out", "--compute_dtype", "float32",
                    "--kv_dtype", "float32", "--isa", "generic", "-t", "1"], check=True, capture_output=True)
    ours = np.array(json.loads((tmp_path / "out").read_text())["logprobs"][1:])
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "q", dtype=torch.float32).eval()
    for module in model.modules():
        if getattr(module, "quantization_scheme", None):
            module.quantization_scheme.input_activations = None  # a CPU computes with them as they are
    with torch.no_grad():
        rows = torch.log_softmax(model(torch.tensor([IDS]), use_cache=False).logits[0].double(), -1)
    theirs = np.array([rows[i, IDS[i + 1]].item() for i in range(len(IDS) - 1)])
    assert np.abs(theirs - ours).max() < (0.05 if words.startswith("nvfp4") else 2e-5)
