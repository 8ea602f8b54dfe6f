# SPDX-License-Identifier: Apache-2.0
"""The Debian packages: made from what is built here, unpacked, and run from where they lie."""
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))
from first_answer import first_answer  # noqa: E402
from ports import free_ports  # noqa: E402

# A folder with a Debian that has nothing but its base: debootstrap --variant=minbase bookworm FOLDER
CLEAN = os.environ.get("NEREID_CLEAN_DEBIAN")
# /proc, by which programs find what lies beside them, for the time of a command
INSIDE = ["unshare", "-m", "sh", "-c", 'mount --bind /proc "$0/proc" && exec chroot "$0" "$@"', str(CLEAN)]
APT = [*INSIDE, "env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-y", "-q", "--no-install-recommends"]
VERSION = re.search(r"^NRD_VERSION := (\S+)", (ROOT / "Makefile").read_text(), re.M)[1]
LIBRARY = f"libnereid{VERSION.rpartition('.')[0]}"
# Where the plug-in for GPUs was built (make CUDA=1), its package too; no GPU is needed.
CUDA = (ROOT / "build/lib/nereid_cuda.so").exists()
PARTS = ["bin", "lib", "obj", "cuda", "gen", "backends", "caches", "repoagents", "python", "share"]


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
    if CUDA:
        env["DEB_BUILD_PROFILES"] = "pkg.nereid.cuda"
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
    assert set(packages) == {"nereid", LIBRARY, "libnereid-dev"} | ({"nereid-cuda"} if CUDA else set())
    seen = set()
    for tree in packages.values():
        own = {f for f in files(tree) if not f.startswith(("DEBIAN/", "usr/share/doc/"))}
        assert own and not own & seen
        seen |= own
    assert {"usr/bin/nereid", "usr/bin/tritonserver", "usr/bin/trtllm-build", "usr/bin/trtllm-serve", "usr/bin/trtllm-bench", "usr/lib/nereid/include/nereid/executor.h",
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
    for library in ("ca-certificates", "libevent", "libpcre2-8-0", "libprotobuf-c1"):
        assert library in depends
    unit = next(f for f in packages["nereid"].rglob("nereid.service") if f.parent.name == "system").read_text()
    assert "ExecStart=/usr/lib/nereid/bin/nereid serve" in unit


@pytest.mark.skipif(not CLEAN, reason="NEREID_CLEAN_DEBIAN names no folder")
def test_a_clean_debian_serves_a_model_with_one_command(packages):
    """Installed by apt, which brings what the packages depend on, and taken away again."""
    debs = pathlib.Path(CLEAN) / "tmp/debs"
    debs.mkdir(exist_ok=True)
    names = []
    for name in packages:
        deb = next(packages[name].parent.glob(f"{name}_*.deb"))
        shutil.copy(deb, debs)
        names.append(f"/tmp/debs/{deb.name}")
    subprocess.run([*APT, "update"], check=True)
    subprocess.run([*APT, "install", *names], check=True)
    said = serve("nereid")
    if CUDA:  # no driver is there: the log says so, and the CPU computes; who asks for a GPU gets the same words
        why = "no NVIDIA driver (libcuda.so.1) on this machine"
        assert re.search(rf"the CPU is used: .*{re.escape(why)}", said), said
        asked = subprocess.run([*INSIDE, "nereid", "serve", "/tmp/model", "--set", "device:cuda"], capture_output=True, text=True)
        assert asked.returncode == 1 and why in asked.stderr, asked.stderr
    subprocess.run([*APT, "purge", "--autoremove", *packages], check=True)
    assert not list(pathlib.Path(CLEAN).glob("usr/lib/nereid/*"))


@pytest.mark.skipif(not CLEAN, reason="NEREID_CLEAN_DEBIAN names no folder")
def test_a_clean_debian_serves_a_model_from_the_wheel():
    """With the packages that docs/python-api.md names, and no others."""
    installs = re.search(r"^sudo apt-get install (python3-venv .*)", (ROOT / "docs/python-api.md").read_text(), re.M)[1].split()
    folder = pathlib.Path(CLEAN) / "tmp/wheel"
    wheel = subprocess.run([sys.executable, ROOT / "scripts/wheel.py", ROOT / "build", VERSION, folder], check=True,
                           capture_output=True, text=True).stdout.strip()
    base = subprocess.run([*INSIDE, "dpkg-query", "-W", "-f", "${Package} "], check=True, capture_output=True, text=True).stdout.split()
    subprocess.run([*APT, "update"], check=True)
    subprocess.run([*APT, "install", *installs], check=True)
    try:
        subprocess.run([*INSIDE, "python3", "-m", "venv", "/tmp/wheel/venv"], check=True)
        subprocess.run([*INSIDE, "/tmp/wheel/venv/bin/pip", "install", f"/tmp/wheel/{pathlib.Path(wheel).name}"], check=True)
        serve("/tmp/wheel/venv/bin/nereid")
    finally:
        shutil.rmtree(folder)
        subprocess.run([*APT, "purge", "--autoremove", *(set(installs) - set(base))], check=True)


def serve(program):
    """`nereid serve MODEL` inside answers. What it says."""
    subprocess.run([sys.executable, ROOT / "tests/tinymodel/make_model.py", "--arch", "llama", "--out",
                    pathlib.Path(CLEAN) / "tmp/model"], check=True)
    http, grpc, metrics = free_ports(3)
    log = pathlib.Path(CLEAN) / "tmp/serve.log"
    with open(log, "w") as out, subprocess.Popen([*INSIDE, program, "serve", "/tmp/model", "--port", str(http), "--grpc-port", str(grpc),
                                                  "--metrics-port", str(metrics)], stdout=out, stderr=subprocess.STDOUT) as server:
        try:
            answer = first_answer(http, server)
        except BaseException:
            print(log.read_text())
            raise
        finally:
            server.send_signal(signal.SIGTERM)
    assert answer["choices"][0]["text"]
    return log.read_text()
