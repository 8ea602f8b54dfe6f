# SPDX-License-Identifier: Apache-2.0
"""docs/limits.md shows the limits that the programs have, and each has a test that exceeds it."""
import pathlib
import re
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
ROWS = dict(re.findall(r"^\| `(\w+)` .*\| ([^|]*) \|$", (ROOT / "docs/limits.md").read_text(), re.M))


def test_the_page_of_limits_is_what_the_table_gives():
    done = subprocess.run([ROOT / "scripts/limits", "--check"], text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stdout
    table = (ROOT / "src/base/limits.h").read_text()
    assert len(ROWS) == len(re.findall(r"^    X\(", table, re.M)) > 50


@pytest.mark.parametrize("name", ROWS)
def test_a_limit_is_exceeded_by_a_test_that_runs(name):
    """The words "limits: NAME" stand in a test, not in a function beside them."""
    said = rf"limits: (?:[A-Z_]+, )*{name}\b"
    paths = re.findall(r"`([^`]+)`", ROWS[name])
    assert paths
    for path in paths:
        text = (ROOT / path).read_text()
        if path.endswith(".py"):
            assert re.search(rf'^def test_\w+\([^)]*\):\n    """[^"]*{said}', text, re.M), path
        else:
            test = re.search(rf"/\* {said}[^*]*\*/\nstatic void (\w+)\(void \*\*state\)", text)
            assert test and re.search(rf"\b{test.group(1)}\b", text.partition("CMUnitTest tests[]")[2]), path
