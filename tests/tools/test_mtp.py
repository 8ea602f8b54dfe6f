# SPDX-License-Identifier: Apache-2.0
"""MTP layers: the text is that without them, and as many guesses are right as the formulas in numpy say."""
import json
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import mtp_layer  # noqa: E402
import qwen_next  # noqa: E402
from specs import SPECS  # noqa: E402
from test_convert import NEREID, ROOT, make, nereid  # noqa: E402

N_NEW, PROMPT = 32, "one two three and what comes then"
N_AHEAD = 2


class Model:
    def __init__(self, arch, folder):
        made = make(folder / "source", arch)
        assert made.returncode == 0, made.stderr
        self.arch, self.folder = arch, folder / "hf"
        self.net, self.layer = mtp_layer.make(folder / "source", self.folder, net_of=qwen_next.Net if arch == "qwen3_next" else mtp_layer.Net)
        said = subprocess.run([NEREID, "tokenize", str(folder / "source")], input=PROMPT + "\n", capture_output=True, text=True, check=True)
        prompt = [int(x) for x in said.stdout.split()]
        self.n_prompt, self.text = len(prompt), self.net.greedy(prompt, N_NEW)
        self.net.states(self.text)
        self.layer.fit(self.text, self.n_prompt, N_AHEAD)
        mtp_layer.write(self.net, self.folder)
        self.plain = run(self.folder, self.folder)[0]

    def simulate(self, n, shape=None):
        drafted, held = self.layer.simulate(self.text, self.n_prompt, n, shape)
        assert 0 < held < drafted
        return self.plain, (drafted, held)


def command(path, tokenizer, config):
    words = ["--speculative-config", json.dumps({"method": "mtp", "adaptive": False, **config})] if config is not None else []
    return subprocess.run([NEREID, "run", str(path), "--tokenizer-dir", str(tokenizer), "-p", PROMPT, "--temperature", "0", "--max-tokens",
                           str(N_NEW), "--ignore-eos", "--compute-dtype", "float32", *words], capture_output=True, text=True)


def run(path, tokenizer, config=None):
    """The text, and how many drafted tokens held of how many."""
    done = command(path, tokenizer, config)
    assert done.returncode == 0, done.stderr
    said = re.search(r"(\d+) of (\d+) drafted tokens held", done.stderr)
    return done.stdout, (int(said[2]), int(said[1])) if said else None


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    made = {}

    def of(arch):
        if arch not in made:
            made[arch] = Model(arch, tmp_path_factory.mktemp(arch))
        return made[arch]
    return of


@pytest.mark.parametrize("arch", ["deepseek_v3", "glm4_moe"])
@pytest.mark.parametrize("n, shape", [(1, None), (3, None), (8, {"top_k": 3, "depth": 3})])
def test_guesses_are_those_of_the_formula(models, arch, n, shape):
    m = models(arch)
    config = {"num_speculative_tokens": n}
    if shape:
        config |= {"dynamic_tree_max_topK": shape["top_k"], "max_draft_path_len": shape["depth"]}
    assert run(m.folder, m.folder, config) == m.simulate(n, shape)


def test_a_model_with_a_recurrent_state_has_its_layer_apart(models, tmp_path):
    m = models("qwen3_next")
    for n in (1, 3):
        assert run(m.folder, m.folder, {"num_speculative_tokens": n}) == m.simulate(n)
    nereid("convert", "--model_dir", m.folder, "--output_dir", tmp_path / "ckpt", "--speculative_decoding_mode", "mtp")
    nereid("build", "--checkpoint_dir", tmp_path / "ckpt", "--output_dir", tmp_path / "engine", "--speculative_decoding_mode", "mtp")
    assert run(tmp_path / "engine", m.folder, {"num_speculative_tokens": 2}) == m.simulate(2)
    refused = command(m.folder, m.folder, {"dynamic_tree_max_topK": 3})
    assert refused.returncode != 0 and "a draft cannot be a tree" in refused.stderr


def test_one_token_is_guessed_where_nothing_is_said(models):
    m = models("deepseek_v3")
    assert run(m.folder, m.folder, {}) == m.simulate(1)


def test_a_gguf_file_has_the_layer_as_its_last_block(models, tmp_path):
    m = models("glm4_moe")
    mtp_layer.write_gguf(m.net, SPECS["glm4_moe"], tmp_path / "model.gguf")
    assert run(tmp_path / "model.gguf", m.folder, {"num_speculative_tokens": 3}) == m.simulate(3)


def test_convert_and_build_keep_the_layer_when_asked(models, tmp_path):
    m = models("deepseek_v3")
    mode = ["--speculative_decoding_mode", "mtp"]
    nereid("convert", "--model_dir", m.folder, "--output_dir", tmp_path / "with", *mode)
    nereid("convert", "--model_dir", m.folder, "--output_dir", tmp_path / "without")
    assert (tmp_path / "with/mtp/config.json").exists() and not (tmp_path / "without/mtp").exists()
    nereid("build", "--checkpoint_dir", tmp_path / "with", "--output_dir", tmp_path / "engine", *mode)
    assert run(tmp_path / "engine", m.folder, {"num_speculative_tokens": 2}) == m.simulate(2)
    nereid("build", "--checkpoint_dir", tmp_path / "with", "--output_dir", tmp_path / "bare")
    refused = command(tmp_path / "bare", m.folder, {})
    assert refused.returncode != 0 and "has no MTP layer" in refused.stderr
    nereid("convert", "--model_dir", m.folder, "--output_dir", tmp_path / "ranks", "--tp_size", 3, "--moe_ep_size", 3, *mode)
    assert json.loads((tmp_path / "ranks/mtp/config.json").read_text())["mapping"]["world_size"] == 1
    nereid("build", "--checkpoint_dir", tmp_path / "ranks", "--output_dir", tmp_path / "of_three", *mode)
    assert run(tmp_path / "of_three", m.folder, {"num_speculative_tokens": 2}) == m.simulate(2), "rank 0 guesses for all"
    nereid("convert", "--model_dir", m.folder, "--output_dir", tmp_path / "with")
    assert not (tmp_path / "with/mtp/config.json").exists(), "what was there before is another model's"
    for verb, path in (("build", "--checkpoint_dir"), ("convert", "--model_dir")):
        done = subprocess.run([NEREID, verb, path, str(tmp_path / "without" if verb == "build" else models("glm4_moe").folder.parent / "source"),
                               "--output_dir", str(tmp_path / "none"), *mode], capture_output=True, text=True)
        assert done.returncode != 0 and "MTP layer" in done.stderr and not (tmp_path / "none").exists()


@pytest.mark.parametrize("name, shape", [("hnorm", None), ("shared_head.norm", (3,)), ("eh_proj", (72, 72)), ("mlp.experts.4.up_proj", (2, 2))])
def test_a_layer_that_is_not_whole_is_refused_by_name(models, tmp_path, name, shape):
    m = models("deepseek_v3")
    tensor, kept = f"{m.layer.p}{name}.weight", dict(m.net.w)
    for file in m.folder.iterdir():
        if file.suffix == ".json":
            (tmp_path / file.name).write_bytes(file.read_bytes())
    try:
        m.net.w.pop(tensor)
        if shape:
            m.net.w[tensor] = np.ones(shape)
        mtp_layer.write(m.net, tmp_path)
    finally:
        m.net.w.clear()
        m.net.w.update(kept)
    done = subprocess.run([NEREID, "convert", "--model_dir", str(tmp_path), "--output_dir", str(tmp_path / "out"),
                           "--speculative_decoding_mode", "mtp"], capture_output=True, text=True)
    assert done.returncode != 0 and tensor in done.stderr
    text, _ = run(tmp_path, m.folder)
    assert text == m.plain, "the model says what it says without it"
    refused = command(tmp_path, m.folder, {})
    assert refused.returncode != 0 and tensor in refused.stderr and "has no MTP layer" in refused.stderr


@pytest.mark.skipif(not (ROOT / "build/python").exists(), reason="make python builds the module")
@pytest.mark.parametrize("arch, tp_size", [("deepseek_v3", 1), ("glm4_moe", 3), ("qwen3_next", 1)])
def test_many_at_a_time_say_what_each_says_alone(models, arch, tp_size):
    """Greedy and drawn, with prompts in pieces and beginnings that are shared: token for token."""
    m, script = models(arch), """
import json, sys
sys.path.insert(0, sys.argv[1])
import nereid
path, text = sys.argv[2], json.loads(sys.argv[3])
prompts = [text[:17 + i] if i % 2 else text[i:i + 40] for i in range(8)]
draws = [nereid.SamplingParams(max_tokens=20, temperature=0.7 * (i % 3 > 0), top_p=0.9, top_k=0, seed=i, ignore_eos=True) for i in range(8)]
def answers(config, batch, at_once):
    more = {"speculative_config": json.dumps(config), "tensor_parallel_size": int(sys.argv[4])} if config else {}
    with nereid.LLM(path, max_batch_size=batch, max_num_tokens=24, compute_dtype="float32", **more) as llm:
        out = [llm.generate(p, d) for p, d in zip(prompts, draws)] if not at_once else llm.generate(prompts, draws)
    return [o.outputs[0].token_ids for o in out]
plain = answers(None, 1, False)
for config in ({"num_speculative_tokens": 3}, {"num_speculative_tokens": 8, "dynamic_tree_max_topK": 3, "max_draft_path_len": 3})[:1 if "qwen" in path else 2]:
    config |= {"method": "mtp", "adaptive": False}
    got = answers(config, 4, True)
    assert got == plain, (config, got, plain)
print("fine")
"""
    done = subprocess.run([sys.executable, "-c", script, str(ROOT / "build/python"), str(m.folder), json.dumps([int(x) for x in m.text]), str(tp_size)],
                          capture_output=True, text=True)
    assert done.stdout == "fine\n", done.stderr
