# SPDX-License-Identifier: Apache-2.0
"""A server of a small model, for the programs that ask one."""
import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/e2e"))
from hub_server import BIG, Hub  # noqa: E402
from llm_server import Server  # noqa: E402


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    model = tmp_path_factory.mktemp("tiny") / "llama"
    subprocess.run([sys.executable, ROOT / "tests/tinymodel/make_model.py", "--arch", "llama", "--out", model],
                   check=True, stdout=subprocess.DEVNULL)
    s = Server(model, tmp_path_factory.mktemp("cache"), "--strict-model-names=true")
    s.model = model
    try:
        yield s.wait_ready()
    finally:
        s.stop()


def make(where, *args):
    subprocess.run([sys.executable, ROOT / "tests/tinymodel/make_model.py", "--arch", "llama", "--out", where, *args],
                   check=True, stdout=subprocess.DEVNULL)
    return where


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    folder = make(tmp_path_factory.mktemp("tiny") / "llama")
    return {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file()}


@pytest.fixture
def hub(tiny, tmp_path, monkeypatch):
    gguf = {f"m-{t}.gguf": b"GGUF" + t.encode() * 3000 for t in ("Q4_K_M", "Q8_0", "BF16")}
    parts = {f"UD-Q6_K/m-Q6_K-0000{i}-of-00003.gguf": b"GGUF" + bytes([i]) * 9000 for i in (1, 2, 3)}
    h = Hub({"org/tiny": tiny | {"README.md": b"---\nlicense: mit\n---\n", "onnx/model.onnx": b"x" * 9000,
                                 "flax_model.msgpack": b"y" * 9000, "consolidated.safetensors": b"z" * 9000},
             "org/ggufs": gguf | parts | {"README.md": b"# hello", "mmproj-BF16.gguf": b"GGUFeye"},
             "org/big": {"m-Q8_0.gguf": b"GGUF" + BIG}})
    for name in list(os.environ):
        if name.startswith(("HF_", "HUGGING")) or name.lower().endswith("_proxy") or name == "XDG_CACHE_HOME":
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("NEREID_CACHE", str(tmp_path / "nereid"))
    monkeypatch.setenv("HF_ENDPOINT", h.url)
    monkeypatch.setenv("HF_HUB_DOWNLOAD_TIMEOUT", "5")
    h.cache = tmp_path / "hf/hub"
    yield h
    h.close()
