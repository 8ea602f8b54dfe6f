# SPDX-License-Identifier: Apache-2.0
"""Each wrong use that docs/troubleshooting.md lists is answered by one line with the words that stand there."""
import os
import pathlib
import re
import shlex
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("NEREID_BIN", ROOT / "build/bin"))
PAGE = (ROOT / "docs/troubleshooting.md").read_text()
ROWS = re.findall(r"^\| `((?:[A-Z_]+=\S+ )?nereid [^`]+)` \| `([^`]+)` \|$", PAGE, re.M)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("wrong")
    (out / "EMPTY").mkdir()
    (out / "POINTER.gguf").write_text(f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 5\n")
    subprocess.run([sys.executable, ROOT / "tests/tinymodel/make_model.py", "--arch", "llama", "--out", out / "MODEL"], check=True,
                   stdout=subprocess.DEVNULL)
    return out


def test_the_page_has_them():
    assert len(ROWS) > 20 and len(set(ROWS)) == len(ROWS)


@pytest.mark.parametrize("typed, answer", ROWS)
def test_a_wrong_use_has_its_line(folder, typed, answer):
    words = shlex.split(typed)
    given = dict(w.split("=", 1) for w in words[:words.index("nereid")])
    env = os.environ | {"HF_HOME": str(folder / "hf"), "HF_HUB_CACHE": "", "NEREID_CACHE": str(folder / "cache")} | given
    done = subprocess.run([BIN / "nereid", *words[words.index("nereid") + 1:]], cwd=folder, env=env, capture_output=True, text=True,
                          stdin=subprocess.DEVNULL, timeout=120)
    assert done.returncode in (1, 2) and not done.stdout, done
    assert answer in done.stderr and done.stderr.count("\n") == 1 and done.stderr.startswith("nereid"), done.stderr
    assert not list((folder / "cache").rglob("rank*.engine"))
