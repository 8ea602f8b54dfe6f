# SPDX-License-Identifier: Apache-2.0
"""GGUF files in parts, written with the `gguf` package: the same model as the whole file, or an error that names the
part."""
import os
import pathlib
import shutil
import subprocess
import sys

import gguf
import numpy as np
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
NEREID = os.environ.get("NEREID", f"{ROOT}/build/bin/nereid")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("whole") / "m.gguf"
    subprocess.run([sys.executable, ROOT / "tests/tinymodel/make_model.py", "--arch", "llama3", "--format", "gguf", "--quant",
                    "q8_0", "--out", path], check=True, stdout=subprocess.DEVNULL)
    return path


def split(source, path, **how):
    r = gguf.GGUFReader(source)
    w = gguf.GGUFWriter(path, r.get_field("general.architecture").contents(), **how)
    for name, field in r.fields.items():
        if not name.startswith("GGUF.") and name != "general.architecture":
            if field.types[0] == gguf.GGUFValueType.ARRAY:
                w.add_array(name, field.contents())
            else:
                w.add_key_value(name, field.contents(), field.types[0])
    for t in r.tensors:
        w.add_tensor(t.name, np.array(t.data), raw_dtype=t.tensor_type)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return sorted(path.parent.glob("*.gguf"))


def run(path, code=0):
    r = subprocess.run([NEREID, "run", path, "-p", "ab", "-n", "12", "--temperature", "0", "-q"], capture_output=True, text=True)
    assert r.returncode == code, r.stderr
    return r.stdout if code == 0 else r.stderr


@pytest.mark.parametrize("first", [False, True])
def test_parts_are_the_model_that_the_whole_file_is(whole, tmp_path, first):
    parts = split(whole, tmp_path / "p.gguf", split_max_tensors=5, small_first_shard=first)
    assert len(parts) > 3 and parts[0].name == f"p-00001-of-{len(parts):05d}.gguf"
    assert run(parts[0]) == run(whole)


def test_parts_that_are_missing_or_wrong_are_named(whole, tmp_path):
    parts = split(whole, tmp_path / "p.gguf", split_max_tensors=5)
    assert "give the first, NAME-00001-of-" in run(parts[1], 1)
    shutil.copy(parts[0], tmp_path / "renamed.gguf")
    assert "give the first, NAME-00001-of-" in run(tmp_path / "renamed.gguf", 1)
    shutil.copy(parts[1], parts[2])
    assert f"{parts[2].name}: split.no is 1, expected 2" in run(parts[0], 1)
    parts[2].unlink()
    assert parts[2].name in run(parts[0], 1)
