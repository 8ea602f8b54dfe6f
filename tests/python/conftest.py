# SPDX-License-Identifier: Apache-2.0
"""The module as it was built, and one small model."""
import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("NEREID_BIN", ROOT / "build/bin")).resolve().parent
sys.path.insert(0, str(BUILD / "python"))


@pytest.fixture(scope="session")
def build_folder():
    return BUILD


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    """A Hugging Face folder with random weights; its longest sequence has 512 tokens."""
    folder = tmp_path_factory.mktemp("python") / "llama"
    subprocess.run([sys.executable, ROOT / "tests/tinymodel/make_model.py", "--arch", "llama", "--out", folder],
                   check=True, stdout=subprocess.DEVNULL)
    return folder


@pytest.fixture(scope="session")
def engine(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("python-engine") / "engine"
    subprocess.run([BUILD / "bin/nereid", "build", model, "--output_dir", folder, "--gather_all_token_logits", "--max_draft_len", "4",
                    "--max_beam_width", "4", "--max_prompt_embedding_table_size", "8"], check=True, capture_output=True)
    return folder
