# SPDX-License-Identifier: Apache-2.0
"""Every key of config.json that families read as a boolean or a number is among those whose kind is checked (src/model/arch_types.c),
and a value out of range is told by its key."""
import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
NEREID = os.environ.get("NEREID", str(ROOT / "build" / "bin" / "nereid"))
MODEL = ROOT / "src/model"
# Mixed in published files, or no key of a decoder's configuration.
ELSEWHERE = {"BOOLEAN": {"attn_temperature_tuning", "use_bidirectional_attention", "rope"}, "NUMBER": {"logit_scale"}}


def test_no_key_is_missing():
    text = " ".join(p.read_text() for p in [MODEL / "arch_hf.c", MODEL / "arch_rope.c", MODEL / "hf_keys.c", *(MODEL / "families").glob("*.c")])
    table = (MODEL / "arch_types.c").read_text()
    for kind, name in (("BOOLEAN", "bool"), ("NUMBER", "num")):
        read = re.findall(rf'json_(?:get_{name}|{name})\(\s*(?:nrd_hf_get\(|nrd_json_get\()?\w+,\s*"([^"]+)"', text)
        read = {k for keys in read for k in keys.split("|")} - ELSEWHERE[kind] - {"rope_parameters", "rope_scaling"}
        known = "".join(re.findall(r'"([^"]*)"', re.search(rf"\[{kind}\] = (.*?),\n", table, re.S).group(1))).strip("|").split("|")
        assert len(known) == len(set(known)) and len(read) > 30
        assert not read - set(known), (kind, sorted(read - set(known)))


@pytest.mark.parametrize("arch, key, value, said", [
    ("llama", "rms_norm_eps", 5, "rms_norm_eps must be between 0 and 1, got 5"),
    ("gpt2", "layer_norm_epsilon", -1, "layer_norm_epsilon must be between 0 and 1, got -1"),
    ("gpt2", "n_layer", 5000, "'n_layer' must be between 1 and"),
    ("llama", "rope_theta", 0.5, "rope_theta must be above 1, got 0.5"),
    ("mamba2", "n_groups", 99, "n_groups must be between 1 and"),
    ("nemotron_h", "mamba_num_heads", 0, "mamba_num_heads must be between 1 and"),
    ("qwen3_next", "linear_num_key_heads", 3, "must be a multiple of linear_num_key_heads (3)"),
])
def test_numbers_out_of_range_have_the_name_of_their_key(tmp_path, arch, key, value, said):
    model = tmp_path / arch
    subprocess.run([sys.executable, ROOT / "tests/tinymodel/make_model.py", "--arch", arch, "--out", model], check=True, stdout=subprocess.DEVNULL)
    config = json.loads((model / "config.json").read_text())
    holder = config if key in config else config.get("rope_parameters", config)
    holder[key] = value
    (model / "config.json").write_text(json.dumps(config))
    done = subprocess.run([NEREID, "build", model, "--output_dir", tmp_path / "engine"], capture_output=True, text=True)
    assert done.returncode == 1 and said in done.stderr, done.stderr
