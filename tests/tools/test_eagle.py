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
import medusa_heads  # noqa: E402
from test_convert import NEREID, ROOT, make, nereid  # noqa: E402

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


@pytest.mark.parametrize("kind, shape", [(1, None), (3, {"top_k": 4, "depth": 4})])
def test_rank_0_guesses_for_all_ranks(model, kind, shape):
    """The same guesses, also where the LM head that the heads share lies in other ranks; several stages are refused."""
    heads, folder = heads_of(model, kind, 3)
    want = heads.simulate(model[2], model[3], 12 if shape else 3, shape)
    config = {"method": "eagle3" if kind == 3 else "eagle", "model": str(folder), "adaptive": False, "num_speculative_tokens": 12 if shape else 3}
    config |= {"dynamic_tree_max_topK": 4, "max_draft_path_len": 4} if shape else {}
    assert run(model, config, "--tp-size", "2") == (run(model)[0], want)
    refused = subprocess.run([NEREID, "run", str(model[0] / "hf"), "--pp-size", "2", "-p", PROMPT, "--speculative-config", json.dumps(config)],
                             capture_output=True, text=True)
    assert refused.returncode != 0 and "EAGLE heads need all layers on rank 0: pp_size is 2" in refused.stderr


@pytest.mark.parametrize("method", ["eagle", "eagle3"])
def test_other_heads_are_no_heads_of_eagle(model, tmp_path, method):
    folder, net = model[0], model[1]
    medusa_heads.write_folder(tmp_path / "heads", 2, 1, net.c["hidden_size"], net.c["vocab_size"])
    (tmp_path / "heads/medusa_lm_head.safetensors").rename(tmp_path / "heads/model.safetensors")
    done = subprocess.run([NEREID, "run", str(folder / "hf"), "-p", PROMPT, "--speculative-config",
                           json.dumps({"method": method, "model": str(tmp_path / "heads")})], capture_output=True, text=True)
    assert done.returncode != 0 and "model.safetensors has no EAGLE heads: no tensor fc.weight" in done.stderr, done.stderr


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


def example(name, *words, status=0):
    done = subprocess.run([sys.executable, str(ROOT / "examples" / name), *map(str, words)], capture_output=True, text=True)
    assert done.returncode == status, done.stderr
    return done.stdout if status == 0 else done.stderr


@pytest.fixture(scope="module")
def guide_engine(model, tmp_path_factory):
    """Made as the guide to EAGLE says."""
    folder = tmp_path_factory.mktemp("guide")
    _, heads = heads_of(model, 1, 2)
    said = example("eagle/convert_checkpoint.py", "--model_dir", model[0] / "hf", "--eagle_model_dir", heads, "--output_dir", folder / "ckpt",
                   "--dtype", "float32", "--max_draft_len", 63, "--num_eagle_layers", 4, "--max_non_leaves_per_layer", 10)
    assert "Total time of converting checkpoints: 00:00:" in said
    nereid("build", "--checkpoint_dir", folder / "ckpt", "--output_dir", folder / "engine", "--gemm_plugin", "float16",
           "--use_paged_context_fmha", "enable", "--speculative_decoding_mode", "eagle", "--max_batch_size", 4)
    return folder / "engine"


@pytest.mark.skipif(not (ROOT / "build/python").exists(), reason="make python builds the module")
def test_the_guides_command_for_a_text_takes_choices(model, guide_engine):
    words = ["--engine_dir", guide_engine, "--tokenizer_dir", model[0] / "hf", "--max_output_len=16", "--input_text", PROMPT]
    plain = example("run.py", *words)
    assert 'Output [Text 0 Beam 0]: "' in plain
    for more in (["--eagle_choices=[[0], [0, 0], [1], [0, 1]]"], ["--eagle_use_dynamic_tree", "--eagle_dynamic_tree_max_top_k=3"],
                 ["--prompt_lookup_config=[10, 2, [0]]"], ["--lookahead_config=[3, 3, 2]"]):
        assert example("run.py", *words, *more) == plain
    for more, why in ((["--eagle_choices=[[1, 0]]"], "eagle_choices are no tree"), (["--eagle_dynamic_tree_max_top_k=21"], "eagle_top_k is 21"),
                      (["--lookahead_config=7"], "--lookahead_config must be a list"), (["--medusa_choices=[[0]]"], "medusa_lm_head")):
        assert why in example("run.py", *words, *more, status=1)


@pytest.mark.skipif(not (ROOT / "build/python").exists(), reason="make python builds the module")
def test_the_modules_configuration_chooses_the_tree(guide_engine):
    script = """
import sys
sys.path.insert(0, sys.argv[1])
import nereid.executor as t
def answer(eagle, mode=t.DecodingMode.Eagle()):
    c = t.ExecutorConfig(1, decoding_config=t.DecodingConfig(mode, eagle_config=eagle))
    with t.Executor(sys.argv[2], t.ModelType.DECODER_ONLY, c) as e:
        i = e.enqueue_request(t.Request([5, 6, 7, 8], max_tokens=16))
        return e.await_responses(i)[-1].result.output_token_ids[0]
plain = answer(None, None)
assert len(plain) >= 16
for eagle in (None, t.EagleConfig([[0], [0, 0], [1]]), t.EagleConfig(use_dynamic_tree=True, dynamic_tree_max_topK=2),
              t.EagleConfig(greedy_sampling=False, posterior_threshold=0.1)):
    assert answer(eagle) == plain, eagle
for make, why in ((lambda: answer(t.EagleConfig([[1, 0]])), "are no tree"), (lambda: t.EagleConfig(posterior_threshold=2), "between 0 and 1"),
                  (lambda: answer(t.EagleConfig(use_dynamic_tree=True, dynamic_tree_max_topK=21)), "eagle_top_k")):
    try:
        make()
    except Exception as e:
        assert why in str(e), e
    else:
        raise AssertionError(why)
print("fine")
"""
    done = subprocess.run([sys.executable, "-c", script, str(ROOT / "build/python"), str(guide_engine)], capture_output=True, text=True)
    assert done.stdout == "fine\n", done.stderr
