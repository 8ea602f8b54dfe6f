# SPDX-License-Identifier: Apache-2.0
"""What the Makefile promises, tried in a copy of the tree: nothing stale, the user's flags, hardening."""

import pathlib
import re
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
OBJECT = "build/obj/executor/version.o"


def make(folder, *args, check=True):
    return subprocess.run(["make", "--no-print-directory", *args], cwd=folder, text=True,
                          capture_output=True, check=check)


def git(folder, *args):
    identity = ["-c", "user.name=test", "-c", "user.email=test@localhost"]
    return subprocess.run(["git", *identity, *args], cwd=folder, text=True, capture_output=True,
                          check=True).stdout


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """The working tree's files under a git of their own, with nothing built."""
    folder = tmp_path_factory.mktemp("tree")
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, text=True,
                            capture_output=True, check=False)
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    for name in listed.stdout.split("\n"):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    git(folder, "init", "-q")
    git(folder, "commit", "-q", "--allow-empty", "-m", "one")
    return folder


def commits_in(tree, name=OBJECT):
    return set(re.findall(rb"\d+\.\d+\.\d+ \(([0-9a-f]{10})\)", (tree / name).read_bytes()))


def test_the_version_names_the_commit_that_was_built(tree):
    make(tree, OBJECT)
    first = git(tree, "rev-parse", "--short=10", "HEAD").strip().encode()
    assert commits_in(tree) == {first}
    git(tree, "commit", "-q", "--allow-empty", "-m", "two")
    make(tree, OBJECT)
    second = git(tree, "rev-parse", "--short=10", "HEAD").strip().encode()
    assert second != first and commits_in(tree) == {second}


def test_warnings_as_errors_looks_at_what_was_built_without(tree):
    source = tree / "src/base/warns.c"
    source.write_text("int nrd_warns(void);\nint nrd_warns(void)\n{\n    int unused;\n    return 1;\n}\n")
    try:
        make(tree, "build/obj/base/warns.o")
        again = make(tree, "WERROR=1", "build/obj/base/warns.o", check=False)
        assert again.returncode != 0 and "unused" in again.stderr
    finally:
        source.unlink()


def test_the_same_flags_again_make_nothing_again(tree):
    make(tree, "WERROR=1", OBJECT)
    for flags in (["WERROR=1"], [], ["WERROR=1"]):
        assert "CC" not in make(tree, *flags, OBJECT).stdout


def test_the_users_flags_are_added_to_ours(tree):
    line = make(tree, "-n", "V=1", "CFLAGS=-O3 -DUSER", OBJECT).stdout
    assert re.search(r"-std=c11 .*-Isrc .*-O3 -DUSER .*-c src/executor/version.c", line), line
    link = make(tree, "-n", "V=1", "LDFLAGS=-Wl,-z,text", "build/bin/nereid").stdout
    assert re.search(r"-pthread .*-Wl,-z,text .*-lm", link)


def test_a_test_is_made_again_when_its_header_or_the_flags_change(tree):
    name = "build/tests/unit/formats/test_gguf.o"
    make(tree, name)
    header = tree / "tests/unit/formats/damage.h"
    header.write_text(header.read_text() + "\n")
    assert "CC" in make(tree, name).stdout
    assert "CC" not in make(tree, name).stdout
    assert "CC" in make(tree, "CFLAGS=-DUSER", name).stdout


def test_make_builds_what_there_are_libraries_for(tree):
    # No pkg-config: as on a machine that has a compiler and nothing else.
    done = make(tree, "-n", "PKG_CONFIG=false", "all")
    assert "build/bin/nereid" in done.stdout and "build/bin/tritonserver" not in done.stdout
    warned = make(tree, "PKG_CONFIG=false", "no-server")
    assert "make deps" in warned.stderr
    refused = make(tree, "PKG_CONFIG=false", "server", check=False)
    assert refused.returncode != 0 and "make deps" in refused.stderr
    units = make(tree, "-n", "PKG_CONFIG=false", "unit").stdout
    assert "tests/unit/base/" in units and "tests/unit/core/" not in units


@pytest.mark.parametrize("program", ["bin/tritonserver", "bin/nereid", "lib/libtritonserver.so",
                                     "lib/libnereid.so"])
def test_what_is_built_is_hardened(program):
    def readelf(*args):
        return subprocess.run(["readelf", "-W", *args, ROOT / "build" / program], text=True,
                              capture_output=True, check=True).stdout

    assert "Type:" in readelf("-h") and re.search(r"Type:\s+DYN", readelf("-h"))
    assert re.search(r"NOW", readelf("-d"))
    segments = readelf("-l")
    assert "GNU_RELRO" in segments
    assert re.search(r"GNU_STACK.* RW ", segments)
    symbols = readelf("--dyn-syms")
    assert "__stack_chk_fail" in symbols and re.search(r"_chk@", symbols)
