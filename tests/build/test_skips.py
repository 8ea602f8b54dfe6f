# SPDX-License-Identifier: Apache-2.0
"""A skip that nobody allowed fails the run, one that is allowed does not."""
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

TESTS = pathlib.Path(__file__).resolve().parents[1]
SKIPPING = """
import pytest

@pytest.mark.parametrize("x", [1, 2])
def test_one(x):
    if x == 2:
        pytest.skip("no reason")

def test_two():
    pass
"""


def run(folder, listed, text=SKIPPING, **env):
    (folder / "tests").mkdir()
    shutil.copy2(TESTS / "conftest.py", folder / "tests")
    (folder / "tests/allowed_skips.txt").write_text(listed)
    (folder / "tests/test_it.py").write_text(text)
    return subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"],
                          cwd=folder, text=True, capture_output=True, check=False,
                          env={**os.environ, "NEREID_ANY_SKIP": "", **env})


def test_an_unlisted_skip_fails_the_run(tmp_path):
    done = run(tmp_path, "tests/test_other.py::*  elsewhere\n")
    assert done.returncode == 1
    assert "tests/test_it.py::test_one[2]: Skipped: no reason" in done.stdout


@pytest.mark.parametrize("text", [SKIPPING, "import pytest\npytest.importorskip('no_such_module')\n"])
def test_a_listed_skip_does_not(tmp_path, text):
    done = run(tmp_path, "# why\ntests/test_it.py::*  a reason\n", text)
    assert done.returncode in (0, 5), done.stdout  # 5: nothing left to run
    assert "does not name" not in done.stdout


def test_a_module_that_skips_itself_is_seen(tmp_path):
    done = run(tmp_path, "", "import pytest\npytest.importorskip('no_such_module')\n"
               "def test_a(): pass\n")
    assert done.returncode != 0 and "tests/test_it.py: Skipped" in done.stdout


def test_a_c_test_may_be_skipped_by_name_only(tmp_path):
    program = tmp_path / "test_c"
    program.write_text("#!/bin/sh\necho '[  SKIPPED ] test_that_is_not_listed'\n"
                       "echo '[       OK ] test_b'\n")
    program.chmod(0o755)
    script = TESTS.parent / "scripts/run_unit"
    done = subprocess.run([script, program], text=True, capture_output=True, check=False)
    assert done.returncode == 1
    assert "test_that_is_not_listed" in done.stdout and "1 passed, 1 failed" in done.stdout
    program.write_text("#!/bin/sh\necho '[  SKIPPED ] test_decode_steps_allocate_nothing'\n")
    done = subprocess.run([script, program], text=True, capture_output=True, check=False)
    assert done.returncode == 0 and "0 passed, 0 failed, 1 skipped" in done.stdout
