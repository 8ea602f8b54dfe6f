# SPDX-License-Identifier: Apache-2.0
"""The page's modules by themselves: Markdown, conversations, colours, formulas, words. Each .mjs file is a program."""
import os
import pathlib
import shutil
import subprocess

import pytest

HERE = pathlib.Path(__file__).parent
NODE = shutil.which("node") or shutil.which("nodejs")


@pytest.mark.skipif(NODE is None, reason="no Node.js")
@pytest.mark.parametrize("name", [p.name for p in sorted(HERE.glob("*.mjs")) if p.name != "check.mjs"])
def test_module(name, tmp_path):
    page = shutil.copytree(HERE.parents[1] / "src/frontends/ui/page", tmp_path / "page")
    (page / "package.json").write_text('{"type": "module"}')
    r = subprocess.run([NODE, HERE / name], capture_output=True, text=True, timeout=250, env=os.environ | {"PAGE": str(page)})
    assert r.returncode == 0, r.stdout + r.stderr
