# SPDX-License-Identifier: Apache-2.0
"""The Debian packages: made from what is built here, unpacked, and run from where they lie."""
import os
import pathlib
import re
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
VERSION = re.search(r"^NRD_VERSION := (\S+)", (ROOT / "Makefile").read_text(), re.M)[1]
LIBRARY = f"libnereid{VERSION.rpartition('.')[0]}"
PARTS = ["bin", "lib", "obj", "gen", "backends", "caches", "repoagents", "python", "share"]


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    """{name: its tree}. The build runs in a copy: dpkg writes beside the tree and the version beside the objects."""
    top = tmp_path_factory.mktemp("debian")
    source = top / "nereid"
    for name in subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n"):
        if name and (ROOT / name).exists():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, source / name, follow_symlinks=False)
    (source / "build").mkdir()
    for part in PARTS:
        if (ROOT / "build" / part).exists():
            subprocess.run(["cp", "-a", ROOT / "build" / part, source / "build/"], check=True)
    for f in (ROOT / "build").glob(".*"):
        if f.is_file():
            shutil.copy2(f, source / "build")
    env = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
    env["DEB_BUILD_OPTIONS"] = "nostrip"
    r = subprocess.run(["dpkg-buildpackage", "-b", "-uc", "-us", "-d"], cwd=source, env=env, capture_output=True, text=True)
    assert r.returncode == 0, r.stdout[-4000:] + r.stderr[-4000:]
    trees = {}
    for deb in top.glob("*.deb"):
        name = deb.name.split("_")[0]
        trees[name] = top / f"tree-{name}"
        subprocess.run(["dpkg-deb", "-x", deb, trees[name]], check=True)
        subprocess.run(["dpkg-deb", "-e", deb, trees[name] / "DEBIAN"], check=True)
    return trees


def files(tree):
    return {str(f.relative_to(tree)) for f in tree.rglob("*") if not f.is_dir()}


def test_every_file_is_in_one_package(packages):
    assert set(packages) == {"nereid", LIBRARY, "libnereid-dev"}
    seen = set()
    for tree in packages.values():
        own = {f for f in files(tree) if not f.startswith(("DEBIAN/", "usr/share/doc/"))}
        assert own and not own & seen
        seen |= own
    assert {"usr/bin/nereid", "usr/bin/tritonserver", "usr/bin/trtllm-build", "usr/lib/nereid/include/nereid/executor.h",
            "usr/lib/nereid/share/nereid/tools/fill_template.py", "usr/share/man/man1/nereid-serve.1.gz", "etc/nereid/nereid.conf"} <= seen
    assert any(f.endswith("systemd/system/nereid.service") for f in seen)


def test_programs_run_from_the_unpacked_packages(packages, tmp_path):
    whole = tmp_path / "root"
    whole.mkdir()
    for tree in packages.values():
        subprocess.run(["cp", "-a", f"{tree}/.", whole], check=True)
    r = subprocess.run([whole / "usr/bin/nereid", "--version"], capture_output=True, text=True)
    assert r.returncode == 0 and r.stdout.startswith(f"nereid {VERSION}"), r.stderr
    assert subprocess.run([whole / "usr/bin/tritonserver", "--help"], capture_output=True).returncode == 0


def test_versions_and_dependencies(packages):
    control = (packages["nereid"] / "DEBIAN/control").read_text()
    assert f"Version: {VERSION}\n" in control
    depends = re.search(r"^Depends: (.*)", control, re.M)[1]
    assert f"{LIBRARY} (= {VERSION})" in depends
    for library in ("libevent", "libpcre2-8-0", "libprotobuf-c1"):
        assert library in depends
    unit = next(f for f in packages["nereid"].rglob("nereid.service") if f.parent.name == "system").read_text()
    assert "ExecStart=/usr/lib/nereid/bin/nereid serve" in unit
