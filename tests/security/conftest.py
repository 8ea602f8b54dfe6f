# SPDX-License-Identifier: Apache-2.0
"""Two servers to attack: small models with orders allowed, and a language model."""
import pathlib
import subprocess
import sys

import pytest

TESTS = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS / "e2e"))
sys.path.insert(0, str(TESTS / "server"))

import llm_server  # noqa: E402
import triton_server  # noqa: E402


@pytest.fixture(scope="session")
def lab(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lab")
    triton_server.write_model(folder / "models", "echo")
    triton_server.write_model(folder / "models", "text", "TYPE_STRING")
    triton_server.write_model(folder / "models", "slow", extra=triton_server.delay(300))
    s = triton_server.Server(folder, folder / "models", "--model-control-mode=explicit", "--load-model=*", "--log-verbose=1")
    s.models = folder / "models"
    try:
        yield s.wait_ready()
    finally:
        code = s.stop()
    assert code == 0, s.log()[-4000:]


@pytest.fixture(scope="session")
def llm(tmp_path_factory):
    folder, cache = tmp_path_factory.mktemp("tiny") / "llama", tmp_path_factory.mktemp("cache")
    subprocess.run([sys.executable, TESTS / "tinymodel/make_model.py", "--arch", "llama", "--out", folder], check=True,
                   stdout=subprocess.DEVNULL)
    s = llm_server.Server(folder, cache, "--served-model-name=tiny", "--strict-model-names=true")
    s.folders = (str(folder), str(cache), str(TESTS.parent))
    try:
        yield s.wait_ready()
    finally:
        status = s.stop()
    assert status == 0, s.log_text()[-4000:]
