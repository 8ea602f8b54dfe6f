# SPDX-License-Identifier: Apache-2.0
"""GGUF models that see: the tower comes from a file of its own (mmproj), which lies beside the model or is named. Answers are those of the
reference (tests/model/make_vision_goldens.py) from pixels to log probabilities."""
import json
import subprocess
import sys

import numpy as np
import pytest

from llm_server import BIN, ROOT, Server
from test_vision import GOLDENS, check

sys.path.insert(0, str(ROOT / "tests" / "tinymodel"))
import gguf_file  # noqa: E402
import mmproj  # noqa: E402
import vision  # noqa: E402

FLOAT32 = ("--build", "--dtype=float32", "--build", "--kv_cache_dtype=float32")


@pytest.mark.parametrize("kind", mmproj.KINDS)
def test_the_tower_of_another_file_sees(tmp_path, kind):
    """Beside the model, or in a folder of its own."""
    mmproj.write(tmp_path / "m", kind)
    tower, named = tmp_path / "m" / mmproj.TOWER, []
    if kind in mmproj.LEGACY:
        (tmp_path / "other").mkdir()
        named = ["--mmproj", str(tower.rename(tmp_path / "other" / "tower.gguf"))]
    s = Server(tmp_path / "m" / "model.gguf", tmp_path, *FLOAT32, *named).wait_ready()
    try:
        check(s, GOLDENS[kind][1], vision.talks(kind)[1], "ppm")
    finally:
        s.stop()


def build(model, out, *more):
    return subprocess.run([BIN / "nereid", "build", model, "--output_dir", out, *more], capture_output=True, text=True, timeout=300, check=False)


def test_which_file_is_taken(tmp_path):
    mmproj.write(tmp_path / "m", "siglip")
    model = tmp_path / "m" / "model.gguf"
    right = (tmp_path / "m" / mmproj.TOWER).rename(tmp_path / "m" / "MMPROJ-Model-F16.gguf")
    (tmp_path / "m" / "mmproj-another-f16.gguf").write_bytes(model.read_bytes())  # no tower, but its name does not fit
    assert build(model, tmp_path / "found").returncode == 0
    assert build(model, tmp_path / "named", "--mmproj", right).returncode == 0
    with open(tmp_path / "found/vision.safetensors", "rb") as a, open(tmp_path / "named/vision.safetensors", "rb") as b:
        assert a.read() == b.read()
    assert build(model, tmp_path / "named", "--mmproj", "none").returncode == 0
    assert not (tmp_path / "named/vision_config.json").exists() and not (tmp_path / "named/vision.safetensors").exists()
    right.unlink()
    r = build(model, tmp_path / "text")
    assert r.returncode == 0 and "without its vision tower" in r.stderr and not (tmp_path / "text/vision.safetensors").exists(), r
    for wrong, part in ((model, "this is no vision tower"), (tmp_path, "is no file")):
        r = build(model, tmp_path / "x", "--mmproj", wrong)
        assert r.returncode and part in r.stderr, r
    r = build(tmp_path / "found", tmp_path / "x", "--mmproj", model)
    assert r.returncode, r
    mmproj.write(tmp_path / "other", "gemma3")
    r = build(model, tmp_path / "x", "--mmproj", tmp_path / "other" / mmproj.TOWER)
    assert r.returncode and "vocabulary has no '<image_soft_token>'" in r.stderr, r
    r = build(tmp_path / "other" / mmproj.TOWER, tmp_path / "x")
    assert r.returncode and "give the model's file, and this one with --mmproj" in r.stderr, r


def test_a_file_without_the_length_of_pictures_has_four_tiles_on_a_side(tmp_path, monkeypatch):
    """As the converter wrote them for SmolVLM at first."""
    keys_of = mmproj._tower_keys

    def older(*args):
        keys, layers = keys_of(*args)
        return [k for k in keys if k[0] != "clip.vision.preproc_image_size"], layers

    monkeypatch.setattr(mmproj, "_tower_keys", older)
    mmproj.write(tmp_path / "m", "smolvlm")
    done = build(tmp_path / "m/model.gguf", tmp_path / "e")
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "e/vision_preprocessor.json").read_text())["size"] == {"longest_edge": 4 * 32}
    assert len(json.loads((tmp_path / "e/vision_config.json").read_text())["image_words"]["tiles"]) == 16


def test_blocks_of_a_tower_become_16_bits(tmp_path):
    mmproj.write(tmp_path / "m", "qwen2_5_vl", "q8_0")
    tower = gguf_file.File(tmp_path / "m" / mmproj.TOWER)
    assert tower.table["mm.0.weight"][0] == "q8_0" and tower.table["v.blk.0.attn_q.weight"][0] == "f16"  # rows of 288, and of 72
    assert build(tmp_path / "m/model.gguf", tmp_path / "e").returncode == 0
    with open(tmp_path / "e/vision.safetensors", "rb") as f:
        head = json.loads(f.read(int.from_bytes(f.read(8), "little")))
        start = f.tell()
        entry = head["merger.mlp.0.weight"]
        f.seek(start + entry["data_offsets"][0])
        got = np.frombuffer(f.read(entry["data_offsets"][1] - entry["data_offsets"][0]), np.float16)
    assert entry["dtype"] == "F16"
    assert np.array_equal(got, tower.tensor("mm.0.weight").astype(np.float16).reshape(-1))
