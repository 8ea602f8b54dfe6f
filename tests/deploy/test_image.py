# SPDX-License-Identifier: Apache-2.0
"""The image for CPUs: built from its Dockerfile as it is, run as its user by its entry point, and asked."""
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))
from first_answer import first_answer  # noqa: E402
from ports import free_ports  # noqa: E402

# The same folder that tests/build/test_debian.py takes. It stands for the image debian:12-slim, so that no registry is needed.
CLEAN = os.environ.get("NEREID_CLEAN_DEBIAN")
BASE = "docker.io/library/debian:12-slim"


def test_what_git_ignores_does_not_reach_the_image():
    """Else what this machine has built, for its own libraries, would be taken for the image's."""
    ignored = {line.strip("/") for line in (ROOT / ".gitignore").read_text().splitlines() if line.startswith("/") and line.count("/") <= 2
               and not line.startswith("/debian")}
    kept_out = set((ROOT / ".dockerignore").read_text().splitlines())
    assert {"build", "dist"} <= ignored <= kept_out | {"compile_commands.json.tmp"} and ".git" in kept_out


@pytest.fixture(scope="module")
def buildah(tmp_path_factory):
    """A function that runs buildah with a storage of its own. No daemon, no namespaces: commands of a Dockerfile run in a chroot."""
    store = tmp_path_factory.mktemp("storage")
    env = {**os.environ, "BUILDAH_ISOLATION": "chroot", "STORAGE_DRIVER": "vfs"}
    words = ["buildah", "--root", store / "root", "--runroot", store / "run"]

    def run(*args, start=subprocess.run, **more):
        more = {"check": True, "text": True, **more} if start is subprocess.run else more
        return start([*words, *args], env=env, **more)

    yield run
    run("rm", "--all")
    shutil.rmtree(store)


@pytest.fixture(scope="module")
def image(buildah):
    """The image's configuration. The tree is sent as it lies here, so .dockerignore counts."""
    base = buildah("from", "scratch", stdout=subprocess.PIPE).stdout.strip()
    at = buildah("mount", base, stdout=subprocess.PIPE).stdout.strip()
    subprocess.run(["cp", "-a", f"{CLEAN}/.", at], check=True)
    shutil.rmtree(f"{at}/tmp")
    os.mkdir(f"{at}/tmp")
    os.chmod(f"{at}/tmp", 0o1777)
    buildah("commit", "--rm", base, BASE)
    buildah("build", "--pull-never", "--format", "docker", "-f", ROOT / "deploy/docker/Dockerfile", "-t", "nereid", ROOT)
    said = buildah("inspect", "--type", "image", "nereid", stdout=subprocess.PIPE).stdout
    return json.loads(said)["Docker"]["config"]


@pytest.mark.skipif(not CLEAN, reason="NEREID_CLEAN_DEBIAN names no folder")
def test_the_image_serves_a_model(buildah, image, tmp_path):
    assert image["Entrypoint"] == ["nereid", "serve"] and image["User"] == "nereid" and image["Healthcheck"]
    assert set(image["ExposedPorts"]) == {"8000/tcp", "8001/tcp", "8002/tcp"} and set(image["Volumes"]) == {"/cache"}
    tmp_path.chmod(0o755)
    subprocess.run([sys.executable, ROOT / "tests/tinymodel/make_model.py", "--arch", "llama", "--out", tmp_path / "model"], check=True)
    http, grpc, metrics = free_ports(3)
    container = buildah("from", "--pull-never", "nereid", stdout=subprocess.PIPE).stdout.strip()
    user = buildah("run", container, "--", "id", "-un", stdout=subprocess.PIPE).stdout
    missing = buildah("run", container, "--", "sh", "-c", "find /opt/nereid -name '*.so*' -exec ldd {} + | grep 'not found' || :",
                      stdout=subprocess.PIPE).stdout
    assert (user, missing) == ("nereid\n", "")
    log = tmp_path / "log"
    with open(log, "w") as out:
        server = buildah("run", "--volume", f"{tmp_path}:/models:ro", container, "--", *image["Entrypoint"], "/models/model", "--port", str(http),
                         "--grpc-port", str(grpc), "--metrics-port", str(metrics), start=subprocess.Popen, stdout=out, stderr=subprocess.STDOUT)
    try:
        answer = first_answer(http, server)
    except BaseException:
        print(log.read_text())
        raise
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(60)
    assert answer["choices"][0]["text"]

