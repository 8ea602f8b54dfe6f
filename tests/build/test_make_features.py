# SPDX-License-Identifier: Apache-2.0
"""make FEATURES=…: parts by their names. Nothing is linked: make tells what it would do, and one object is compiled."""
import pathlib
import re
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PARTS = "cpu cuda grpc tls hub cloud redis image sound python".split()
OBJECT = "obj/tools/nereid.o"


@pytest.fixture(scope="module")
def build():
    """A build folder of its own."""
    name = "features"
    folder = ROOT / "build" / name
    shutil.rmtree(folder, ignore_errors=True)
    yield lambda *args: subprocess.run(["make", "--no-print-directory", f"BUILD={name}", *args], cwd=ROOT, text=True,
                                       capture_output=True, check=False, timeout=200), folder
    shutil.rmtree(folder, ignore_errors=True)


def test_a_part_that_there_is_not_is_refused_with_the_list(build):
    said = build[0]("-n", "FEATURES=grpc amd")
    assert said.returncode != 0 and "no such part: amd. The parts are: " + " ".join(PARTS) in said.stderr


def test_a_part_without_its_library_is_refused_by_name(build):
    said = build[0]("-n", "FEATURES=redis", "PKG_CONFIG=false")
    assert said.returncode != 0 and "FEATURES: redis needs libhiredis-dev" in said.stderr


def test_parts_that_were_not_named_are_not_built_and_leave(build):
    make, folder = build
    left = [folder / "lib/nereid_cloud.so", folder / "lib/nereid_tls.so", folder / "caches/redis/libtritoncache_redis.so",
            folder / "backends/python/libtriton_python.so"]
    for f in left:
        f.parent.mkdir(parents=True, exist_ok=True)
        f.touch()
    said = make("-n", "FEATURES=hub tls", "all")
    assert said.returncode == 0, said.stderr
    links = set(re.findall(r"LD  build/features/(\S+\.so)", said.stdout))
    assert {"lib/nereid_hub.so", "lib/nereid_tls.so", "backends/tensorrtllm/libtriton_tensorrtllm.so"} <= links
    assert not [name for name in links if re.search("cloud|redis|python|image|sound|grpc|cuda", name)]
    assert "src/frontends/grpc" not in said.stdout
    assert [f.name for f in left if f.exists()] == ["nereid_tls.so"]


def test_the_version_tells_which_parts_there_are(build):
    make, folder = build

    def told(*args):
        said = make(f"build/features/{OBJECT}", *args)
        assert said.returncode == 0, said.stderr
        return set(re.findall(rb"(?<![\w-])(?:no-)?(?:tls|hub|cloud|redis|image|sound|grpc)(?=[ \0])", (folder / OBJECT).read_bytes()))

    assert told("FEATURES=cpu") == {b"no-tls", b"no-hub", b"no-cloud", b"no-redis", b"no-image", b"no-sound", b"no-grpc"}
    assert told("FEATURES=hub cpu") == {b"no-tls", b"hub", b"no-cloud", b"no-redis", b"no-image", b"no-sound", b"no-grpc"}
