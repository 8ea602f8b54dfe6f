# SPDX-License-Identifier: Apache-2.0
"""docs/limits.md shows the limits that the programs have."""
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]


def test_the_page_of_limits_is_what_the_table_gives():
    done = subprocess.run([ROOT / "scripts/limits", "--check"], text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stdout
    assert len((ROOT / "docs/limits.md").read_text().split("\n| `")) > 5
