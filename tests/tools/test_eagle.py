# SPDX-License-Identifier: Apache-2.0
"""EAGLE heads: the text is that without them, and as many guesses are right as the papers' formulas in numpy say."""
import json
import pathlib
import re
import subprocess
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import eagle_heads  # noqa: E402
from test_convert import NEREID, make, nereid  # noqa: E402

N_NEW, PROMPT = 32, "one two three and what comes then"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A folder, the same in numpy, and a greedy text of it with the length of its prompt."""
    folder = tmp_path_factory.mktemp("eagle")
    made = make(folder / "hf", "llama")
    assert made.returncode == 0, made.stderr
    net = eagle_heads.model_of(folder / "hf")
    said = subprocess.run([NEREID, "tokenize", str(folder / "hf")], input=PROMPT + "\n", capture_output=True, text=True, check=True)
    prompt = [int(x) for x in said.stdout.split()]
    return folder, net, net.greedy(prompt, N_NEW), len(prompt)


def heads_of(model, kind, n_draft, layer="layers.0.", form="safetensors", **options):
    folder, net, text, n_prompt = model
    if kind == 3:
        rest = [t for t in range(net.c["vocab_size"]) if t not in text]
        options["tokens"] = sorted(set(text) - set(text[n_prompt::6]) | set(rest[::3]))  # some tokens cannot be guessed
        options["layers"] = [0, 1, net.c["num_hidden_layers"] - 1]
    heads = eagle_heads.Heads(net, kind, **options)
    net.states(text)
    heads.fit(text, n_prompt, n_draft - 1)
    return heads, heads.write(folder / f"eagle{kind}-{form}-{layer}", form, layer)


def run(model, config=None, *words, engine=None):
    """The text, and how many drafted tokens held of how many."""
    folder = model[0]
    words = ["--speculative-config", json.dumps(config), *words] if config else [*words]
    done = subprocess.run([NEREID, "run", str(engine or folder / "hf"), "--tokenizer-dir", str(folder / "hf"), "-p", PROMPT, "--temperature", "0", "--max-tokens", str(N_NEW),
                           "--ignore-eos", "--compute-dtype", "float32", *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    said = re.search(r"(\d+) of (\d+) drafted tokens held", done.stderr)
    return done.stdout, (int(said[2]), int(said[1])) if said else None


CHOICES = [[0], [1], [2], [0, 0], [0, 1], [1, 0], [0, 0, 0], [0, 0, 1], [0, 1, 0]]


@pytest.mark.parametrize("kind, n_draft, shape", [
    (1, 12, {"top_k": 3, "depth": 3}), (3, 20, {"top_k": 4, "depth": 4}), (1, 3, {"top_k": 2, "depth": 3}), (3, 9, {"choices": CHOICES})])
def test_trees_are_those_of_the_formula(model, kind, n_draft, shape):
    heads, folder = heads_of(model, kind, 3)
    want = heads.simulate(model[2], model[3], n_draft, shape)
    assert 0 < want[1] < want[0]
    plain, _ = run(model)
    config = {"method": "eagle3" if kind == 3 else "eagle", "model": str(folder), "adaptive": False}
    config |= ({"eagle_choices": CHOICES} if "choices" in shape else
               {"num_speculative_tokens": n_draft, "dynamic_tree_max_topK": shape["top_k"], "max_draft_path_len": shape["depth"]})
    assert run(model, config) == (plain, want)


@pytest.mark.parametrize("kind, n_draft, layer, form", [
    (1, 1, "layers.0.", "safetensors"), (1, 3, "layers.0.", "bin"), (3, 1, "midlayer.", "bin"), (3, 4, "model.layers.0.", "safetensors")])
def test_guesses_are_those_of_the_formula(model, kind, n_draft, layer, form):
    heads, folder = heads_of(model, kind, n_draft, layer, form)
    want = heads.simulate(model[2], model[3], n_draft)
    assert 0.1 < want[1] / want[0] < 1, "some of them are right"
    plain, _ = run(model)
    got = run(model, {"method": "eagle3" if kind == 3 else "eagle", "model": str(folder), "num_speculative_tokens": n_draft,
                      "adaptive": False})
    assert got == (plain, want)


def test_convert_and_build_take_the_heads_along(model, tmp_path):
    heads, folder = heads_of(model, 3, 2, "midlayer.", "bin")
    nereid("convert", "--model_dir", model[0] / "hf", "--output_dir", tmp_path / "ckpt", "--speculative_decoding_mode", "eagle",
           "--eagle_model_dir", folder)
    nereid("build", "--checkpoint_dir", tmp_path / "ckpt", "--output_dir", tmp_path / "engine", "--speculative_decoding_mode", "eagle",
           "--max_draft_len", 60)
    for name in ("config.json", "pytorch_model.bin"):
        assert (tmp_path / "engine/eagle" / name).read_bytes() == (folder / name).read_bytes()
    config = {"method": "eagle3", "num_speculative_tokens": 2, "adaptive": False}
    got = run(model, {**config, "model": str(tmp_path / "engine/eagle")}, engine=tmp_path / "engine")
    assert got[1] == heads.simulate(model[2], model[3], 2) and got[0] == run(model)[0]
