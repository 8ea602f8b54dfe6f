# SPDX-License-Identifier: Apache-2.0
"""Every key of config.json that families read as a boolean or a number is among those whose kind is checked (src/model/arch_types.c)."""
import pathlib
import re

MODEL = pathlib.Path(__file__).resolve().parents[2] / "src/model"
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
