# SPDX-License-Identifier: Apache-2.0
"""The rules of scripts/rooms.txt are checked: a tree that breaks one is refused by name."""
import pathlib
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture
def tree(tmp_path):
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts")
    shutil.rmtree(tmp_path / "scripts/layers")
    (tmp_path / "scripts/layers").mkdir()
    (tmp_path / "scripts/check_layers").write_text("#!/bin/sh\n")
    (tmp_path / "docs").mkdir()
    shutil.copy2(ROOT / "docs/architecture.md", tmp_path / "docs")
    return tmp_path


def check(tree, path, line):
    file = tree / "src" / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(line + "\n")
    return subprocess.run([tree / "scripts/check_includes"], text=True, capture_output=True,
                          check=False)


@pytest.mark.parametrize("path,line,word", [
    ("core/x.c", '#include "text/tokenizer.h"', 'may not include "text/tokenizer.h"'),
    ("frontends/http/x.c", '#include "text/shared.h"', "room frontends/http may not"),
    ("backends/tokenizer/x.c", '#include "nereid/executor.h"', "room backends/tokenizer may not"),
    ("backends/bls/x.c", '#include "backends/tokenizer/x.h"', "room backends/bls may not"),
    ("engine/x.c", "#include <sys/socket.h>", "may not use <sys/socket.h>"),
    ("tools/x.c", "#include <grpc/grpc.h>", "may not use <grpc/grpc.h>"),
    ("backends/new/x.c", '#include "base/str.h"', "no row of scripts/rooms.txt"),
])
def test_an_include_against_the_table_is_named(tree, path, line, word):
    done = check(tree, path, line)
    assert done.returncode == 1
    assert f"src/{path}:1: " in done.stdout and word in done.stdout


@pytest.mark.parametrize("path,line", [
    ("frontends/openai/x.c", '#include "text/shared.h"'),
    ("frontends/http/x.c", "#include <event2/event.h>"),
    ("guided/deep/x.c", '#include "guided/other.h"'),
    ("core/x.c", "#include <string.h>"),
])
def test_what_the_table_allows_is_fine(tree, path, line):
    done = check(tree, path, line)
    assert done.returncode == 0, done.stdout


def test_the_page_shows_the_table(tree):
    table = tree / "scripts/rooms.txt"
    table.write_text(table.read_text() + "new | a duty | text/ |\n")
    assert "run scripts/check_includes --write" in check(tree, "new/x.c", "").stdout
    subprocess.run([tree / "scripts/check_includes", "--write"], check=True, capture_output=True)
    assert "| `new` | a duty | `text/` |" in (tree / "docs/architecture.md").read_text()
    assert check(tree, "new/x.c", "").returncode == 0
