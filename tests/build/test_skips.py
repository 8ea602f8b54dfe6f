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


def once(tmp_path, first):
    """A program of C tests that prints `first` and fails at its first run, and passes later."""
    program = tmp_path / "test_once"
    program.write_text(f"#!/bin/sh\nif mkdir {tmp_path}/seen 2>/dev/null; then echo '{first}'; exit 1; fi\n"
                       "echo '[       OK ] test_a'\n")
    program.chmod(0o755)
    return program


def test_a_c_program_that_passes_at_the_second_time_is_named(tmp_path):
    done = subprocess.run([TESTS.parent / "scripts/run_unit", once(tmp_path, "[  FAILED  ] test_a")],
                          text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stdout
    assert f"flaky: {tmp_path}/test_once" in done.stdout and "1 passed, 0 failed" in done.stdout


@pytest.mark.parametrize("report", ["==1==ERROR: AddressSanitizer: heap-use-after-free", "WARNING: ThreadSanitizer: data race",
                                    "x.c:1:2: runtime error: shift exponent 40 is too large"])
def test_what_a_sanitizer_reports_is_not_run_again(tmp_path, report):
    done = subprocess.run([TESTS.parent / "scripts/run_unit", once(tmp_path, report)],
                          text=True, capture_output=True, check=False)
    assert done.returncode == 1 and "flaky" not in done.stdout and "0 passed, 1 failed" in done.stdout


@pytest.mark.parametrize("tests, status, ends", [
    ("def test_a(): pass\ndef test_b(marker): pass\n", 0, "2 passed, 0 failed, 0 skipped"),
    ("def test_a(marker): pass\ndef test_b(): assert False\n", 1, "1 passed, 1 failed, 0 skipped"),
    ("import pytest\n@pytest.mark.parametrize('n', range(6))\ndef test_a(n): assert False\n", 1, "0 passed, 6 failed, 0 skipped"),
])
def test_few_failures_are_run_again(tmp_path, tests, status, ends):
    (tmp_path / "conftest.py").write_text(
        "import pathlib, pytest\n@pytest.fixture\ndef marker():\n"
        f"    seen = pathlib.Path({str(tmp_path)!r}) / 'seen'\n"
        "    new = not seen.exists()\n    seen.touch()\n    assert not new\n")
    (tmp_path / "test_it.py").write_text(tests)
    done = subprocess.run([TESTS.parent / "scripts/run_pytest", sys.executable, "-q", tmp_path],
                          text=True, capture_output=True, check=False, cwd=tmp_path)
    lines = done.stdout.splitlines()
    assert (done.returncode, lines[-1]) == (status, ends), done.stdout
    assert any(line.startswith("flaky: test_it.py") for line in lines) == ("marker" in tests)


@pytest.mark.parametrize("policy, ends, left", [("failed", "pass", []), ("failed", "assert False", ["mine0"]), ("all", "pass", ["mine0"])])
def test_a_fixture_s_folder_goes_with_the_fixture(tmp_path, policy, ends, left):
    done = run(tmp_path, "", "import pathlib, pytest\n@pytest.fixture(scope='module')\ndef folder(tmp_path_factory):\n"
               "    f = tmp_path_factory.mktemp('mine')\n    yield f\n    assert f.exists()\n"
               f"def test_a(folder):\n    {ends}\n",
               PYTEST_ADDOPTS=f"-o tmp_path_retention_policy={policy} --basetemp={tmp_path}/temp")
    assert done.returncode == (ends != "pass"), done.stdout
    assert sorted(p.name for p in (tmp_path / "temp").glob("mine?")) == left
