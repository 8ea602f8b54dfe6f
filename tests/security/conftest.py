# SPDX-License-Identifier: Apache-2.0
"""Two servers to attack: small models with orders allowed, and a language model."""
import importlib.util
import pathlib
import subprocess
import sys

import pytest

TESTS = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS / "e2e"))
_spec = importlib.util.spec_from_file_location("server_lab", TESTS / "server/conftest.py")
server_lab = importlib.util.module_from_spec(_spec)
sys.modules["server_lab"] = server_lab
_spec.loader.exec_module(server_lab)

import llm_server  # noqa: E402


@pytest.fixture(scope="session")
def lab(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lab")
    server_lab.write_model(folder / "models", "echo")
    server_lab.write_model(folder / "models", "text", "TYPE_STRING")
    server_lab.write_model(folder / "models", "slow", extra=server_lab.delay(300))
    s = server_lab.Server(folder, folder / "models", "--model-control-mode=explicit", "--load-model=*", "--log-verbose=1")
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
    s = llm_server.Server(folder, cache, "--served-model-name=tiny")
    s.folders = (str(folder), str(cache), str(TESTS.parent))
    try:
        yield s.wait_ready()
    finally:
        status = s.stop()
    assert status == 0, s.log_text()[-4000:]
