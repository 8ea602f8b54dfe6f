# SPDX-License-Identifier: Apache-2.0
"""A recurrent drafter: the text is that without it, and as many guesses are right as the paper's formulas in numpy say."""
import json
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import medusa_heads  # noqa: E402
import redrafter_heads  # noqa: E402
from test_convert import NEREID, ROOT, make, nereid, tensors  # noqa: E402

N_NEW, PROMPT = 32, "one two three and what comes then"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A folder, the same in numpy, and a greedy text of it with the length of its prompt."""
    folder = tmp_path_factory.mktemp("redrafter")
    made = make(folder / "hf", "llama")
    assert made.returncode == 0, made.stderr
    net = redrafter_heads.eagle_heads.model_of(folder / "hf")
    said = subprocess.run([NEREID, "tokenize", str(folder / "hf")], input=PROMPT + "\n", capture_output=True, text=True, check=True)
    prompt = [int(x) for x in said.stdout.split()]
    return folder, net, net.greedy(prompt, N_NEW), len(prompt)


def drafter_of(model, length, form="safetensors", plural=False, **options):
    folder, net, text, n_prompt = model
    d = redrafter_heads.Drafter(net, **options)
    d.fit(text, n_prompt, length)
    return d, d.write(folder / f"drafter-{length}-{form}-{plural}", form, plural)


def run(model, config=None, *words, engine=None):
    """The text, and how many drafted tokens there were, and how many held."""
    folder = model[0]
    words = ["--speculative-config", json.dumps(config), *words] if config else [*words]
    done = subprocess.run([NEREID, "run", str(engine or folder / "hf"), "--tokenizer-dir", str(folder / "hf"), "-p", PROMPT, "--temperature", "0", "--max-tokens", str(N_NEW),
                           "--ignore-eos", "--compute-dtype", "float32", *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    said = re.search(r"(\d+) of (\d+) drafted tokens held", done.stderr)
    return done.stdout, (int(said[2]), int(said[1])) if said else None


@pytest.mark.parametrize("n_beams, length, n_draft, exit_dim, rnn, form, plural", [
    (1, 4, 4, 96, True, "safetensors", False),
    (4, 3, 12, 96, True, "bin", True),
    (3, 4, 9, None, True, "safetensors", True),
    (2, 3, 5, 80, False, "bin", False)])
def test_trees_are_those_of_the_formula(model, n_beams, length, n_draft, exit_dim, rnn, form, plural):
    hidden = model[1].c["hidden_size"]
    d, folder = drafter_of(model, length, form, plural, exit_dim=exit_dim or 2 * hidden, rnn=rnn)
    want = d.simulate(model[2], model[3], n_draft, n_beams, length)
    assert 0.1 * want[0] / n_beams < want[1] < want[0], "some of them are right"
    plain, _ = run(model)
    config = {"method": "redrafter", "model": str(folder), "adaptive": False, "num_speculative_tokens": n_draft,
              "redrafter_num_beams": n_beams, "redrafter_draft_len_per_beam": length}
    assert run(model, config) == (plain, want)


def test_typical_acceptance_keeps_more_of_drawn_answers_and_nothing_else_of_greedy_ones(model):
    d, folder = drafter_of(model, 3, exit_dim=96)
    config = {"method": "redrafter", "model": str(folder), "adaptive": False, "redrafter_num_beams": 3, "redrafter_draft_len_per_beam": 3}
    typical = {**config, "posterior_threshold": 0.001}
    assert run(model, typical) == run(model, config)
    words = ("--temperature", "1.5", "--top-k", "50", "--seed", "7")
    exact, loose = (run(model, c, *words)[1] for c in (config, typical))
    assert loose[1] / loose[0] > 2 * exact[1] / exact[0] > 0 or (exact[1] == 0 and loose[1] > 4), (exact, loose)


def example(name, *words):
    done = subprocess.run([sys.executable, str(ROOT / "examples" / name), *map(str, words)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_guides_steps_take_the_drafter_along(model, tmp_path):
    d, folder = drafter_of(model, 4, exit_dim=96)
    example("redrafter/convert_checkpoint.py", "--model_dir", model[0] / "hf", "--drafter_model_dir", folder, "--output_dir", tmp_path / "ckpt",
            "--dtype", "float32", "--redrafter_num_beams", 4, "--redrafter_draft_len_per_beam", 3)
    nereid("build", "--checkpoint_dir", tmp_path / "ckpt", "--output_dir", tmp_path / "engine", "--gemm_plugin", "float32",
           "--speculative_decoding_mode", "explicit_draft_tokens", "--max_batch_size", 4)
    want = d.simulate(model[2], model[3], 12, 4, 3)
    plain, _ = run(model)
    assert run(model, {"method": "redrafter", "adaptive": False}, engine=tmp_path / "engine") == (plain, want)
    if (ROOT / "build/python").exists():
        words = ["--tokenizer_dir", model[0] / "hf", "--max_output_len=16", "--input_text", PROMPT]
        with_it = example("run.py", "--engine_dir", tmp_path / "engine", *words)
        shutil.rmtree(tmp_path / "engine/redrafter")
        assert example("run.py", "--engine_dir", tmp_path / "engine", *words) == with_it


def test_a_checkpoint_of_the_other_converter_has_it_inside(model, tmp_path):
    d, folder = drafter_of(model, 3, exit_dim=96)
    nereid("convert", "--model_dir", model[0] / "hf", "--output_dir", tmp_path / "ckpt")
    inside, fields = d.in_checkpoint(3, 2)
    (tmp_path / "inside").mkdir()
    medusa_heads.write(tmp_path / "inside/rank0.safetensors", {**tensors(tmp_path / "ckpt/rank0.safetensors"), **inside})
    config = json.loads((tmp_path / "ckpt/config.json").read_text())
    (tmp_path / "inside/config.json").write_text(json.dumps(config | fields))
    plain, _ = run(model)
    assert run(model, {"method": "redrafter", "model": str(tmp_path / "inside"), "adaptive": False}) == (plain, d.simulate(model[2], model[3], 6, 3, 2))


def changed(folder, to, **config):
    shutil.copytree(folder, to)
    (to / "config.json").write_text(json.dumps({k: v for k, v in (json.loads((to / "config.json").read_text()) | config).items() if v is not None}))
    return str(to)


def test_what_does_not_fit_is_refused_by_name(model, tmp_path):
    _, folder = drafter_of(model, 3, exit_dim=96)
    for i, (config, more, why) in enumerate((
            ({"hidden_size": 32}, {}, "a ReDrafter for hidden_size 32 and vocab_size"),
            ({"exit_dim": 64}, {}, "lm_head.2.weight has 2 dimensions|input_proj.weight has 2 dimensions"),
            ({"exit_dim": -1}, {}, "exit_dim of a ReDrafter must be a number from 1 to 131072"),
            ({"num_draft_layers": 9}, {}, "num_draft_layers of a ReDrafter must be a number from 0 to 8"),
            ({"num_draft_layers": 3}, {}, "has no tensor lm_head.3.weight"),
            ({"exit_dim": None}, {}, "has no ReDrafter"),
            ({}, {"redrafter_num_beams": 21}, "redrafter_num_beams must be a number from 1 to 20"),
            ({}, {"redrafter_draft_len_per_beam": 11}, "redrafter_draft_len_per_beam must be a number from 1 to 10"),
            ({}, {"redrafter_num_beams": 2, "redrafter_draft_len_per_beam": 2, "num_speculative_tokens": 5}, "num_speculative_tokens is 5, .* has at most 4"),
            ({}, {"posterior_alpha": 0.3}, "posterior_alpha needs posterior_threshold"),
            ({}, {"posterior_threshold": 1.5}, "posterior_threshold must be a number from 0 to 1"),
            ({}, {"medusa_choices": [[0]]}, "'medusa_choices' is not known"))):
        words = json.dumps({"method": "redrafter", "model": changed(folder, tmp_path / str(i), **config), **more})
        done = subprocess.run([NEREID, "run", str(model[0] / "hf"), "-p", "a", "--speculative-config", words], capture_output=True, text=True)
        assert done.returncode != 0 and re.search(why, done.stderr), (config, more, done.stderr)


@pytest.mark.parametrize("words, message", [
    (["--speculative_decoding_mode", "explicit_draft_tokens"], "needs --drafter_model_dir"),
    (["--redrafter_num_beams", "2"], "need --drafter_model_dir"),
    (["--drafter_model_dir", "nowhere"], "'nowhere' has no ReDrafter"),
    (["--drafter_model_dir", "nowhere", "--redrafter_num_beams", "21"], "--redrafter_num_beams is 21, expected 1 to 20\n"),
    (["--drafter_model_dir", "nowhere", "--redrafter_draft_len_per_beam", "11"], "convert: --redrafter_draft_len_per_beam is 11, expected 1 to 10")])
def test_what_convert_refuses(model, tmp_path, words, message):
    done = subprocess.run([NEREID, "convert", "--model_dir", model[0] / "hf", "--output_dir", tmp_path / "ckpt", *words],
                          capture_output=True, text=True)
    assert done.returncode != 0 and message in done.stderr, done.stderr
