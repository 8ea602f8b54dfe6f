# SPDX-License-Identifier: Apache-2.0
"""The published repositories, clients and scripts, unmodified, where a checkout of them is: NEREID_PUBLISHED
names it, NEREID_PUBLISHED_PYTHON an interpreter with torch, transformers, tritonclient and pandas."""
import os
import subprocess
import sys

import pytest

import repositories

CHECKOUT = os.environ.get("NEREID_PUBLISHED")
PYTHON = os.environ.get("NEREID_PUBLISHED_PYTHON", sys.executable)


@pytest.mark.skipif(not CHECKOUT, reason="needs a checkout of the published backend (NEREID_PUBLISHED)")
@pytest.mark.timeout(3600)
def test_published_scripts_fail_for_known_reasons_only(tmp_path):
    done = subprocess.run([sys.executable, repositories.HERE / "published.py", CHECKOUT, "--python", PYTHON, "--out",
                           tmp_path / "table.tsv", "--work", tmp_path / "work"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
