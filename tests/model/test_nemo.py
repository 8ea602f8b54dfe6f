# SPDX-License-Identifier: Apache-2.0
"""Archives of NeMo: a GPT model gives the log probabilities of its reference in every form in which it was saved, with the tokenizer that
lies in the archive; what is not read is refused by its name."""
import json
import os
import subprocess
import sys

import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../tinymodel"))
sys.path.insert(0, HERE)
import check_goldens as cg  # noqa: E402
import nemo  # noqa: E402

NEREID = os.path.join(cg.ROOT, "build", "bin", "nereid")


def nereid(*words, text=""):
    return subprocess.run([NEREID, *map(str, words)], input=text, capture_output=True, text=True, check=False, timeout=300)


@pytest.mark.parametrize("name", list(nemo.OWN))
@pytest.mark.parametrize("form", [*nemo.RENAMES, "zarr"])
def test_every_saved_form_gives_the_logprobs_of_the_reference(name, form, tmp_path):
    path = tmp_path / "tiny.nemo"
    nemo.write(path, name, form)
    golden = cg.load_golden(name)
    cg.compare(golden, cg.evaluate([NEREID, "eval"], str(path), golden, str(tmp_path)), cg.TOLERANCE)


def test_inspect_says_what_was_opened(tmp_path):
    nemo.write(tmp_path / "tiny.nemo", "nemo_gpt")
    r = nereid("inspect", tmp_path / "tiny.nemo", "--json")
    assert r.returncode == 0 and json.loads(r.stdout)["kind"] == "NeMo archive", r.stderr
    assert f"{tmp_path / 'tiny.nemo'}: NeMo archive\n" in nereid("inspect", tmp_path / "tiny.nemo").stdout


def test_words_of_gpt2_are_ids_with_nothing_around_them(tmp_path):
    nemo.write(tmp_path / "tiny.nemo", "nemo_gpt")
    r = nereid("tokenize", tmp_path / "tiny.nemo", "--json", "--parse-special", text=json.dumps({"text": "the and<|endoftext|>"}) + "\n")
    assert r.returncode == 0, r.stderr
    words = nemo.tokenizer.vocabulary(nemo.VOCAB)
    ids = json.loads(r.stdout)["ids"]
    assert [words[i] for i in ids] == ["t", "he", "\u0120and", "<eos>"]


def test_pieces_of_sentencepiece_are_ids_with_nothing_around_them(tmp_path):
    nemo.write(tmp_path / "tiny.nemo", "nemo_gpt_1p", pieces=nemo.pieces_file())
    (tmp_path / "tokenizer.model").write_bytes(nemo.pieces_file())
    ours, bare = (json.loads(nereid("tokenize", tmp_path / name, "--json", text='{"text": "one two"}\n').stdout)["ids"]
                  for name in ("tiny.nemo", "tokenizer.model"))
    assert ours == bare[:-1] == [30, 31]  # a file by itself ends a text


def test_a_text_is_made_from_the_archive_alone(tmp_path):
    nemo.write(tmp_path / "tiny.nemo", "nemo_gpt")
    r = nereid("run", tmp_path / "tiny.nemo", "the", "--max-tokens", "4", "--json")
    assert r.returncode == 0, r.stderr
    assert json.loads(r.stdout)["prompt_tokens"] == 2 and json.loads(r.stdout)["completion_tokens"] <= 4


@pytest.mark.parametrize("changed, words", [
    (("MegatronGPTModel", "MegatronT5Model"), "'target' is"),
    (("num_layers: 3", "num_layers: 0"), "'num_layers' is another number or none, expected a number from 1 to 1024"),
    (("num_layers: 3\n", ""), "'num_layers' is missing"),
    (("num_layers: 3", "num_moe_experts: 8"), "'num_moe_experts' is not supported"),
    (("activation: gelu", "activation: maxout"), "'activation' is 'maxout'; known: gelu"),
    (("learned_absolute", "kerple"), "'position_embedding_type' is 'kerple'; known: learned_absolute, rope"),
    (("normalization: layernorm", "normalization: scalenorm"), "'normalization' is 'scalenorm'; known: layernorm"),
    (("pre_ln", "normformer"), "'transformer_block_type' is 'normformer'"),
    (("num_layers: 3", "num_layers: &a 3"), "model_config.yaml: line 9: anchors, aliases and tags are not supported")])
def test_other_networks_are_refused_by_the_setting(tmp_path, changed, words):
    nemo.write(tmp_path / "m.nemo", "nemo_gpt", changed=[changed])
    r = nereid("build", tmp_path / "m.nemo", "-o", tmp_path / "e")
    assert r.returncode == 1 and words in r.stderr, r.stderr


@pytest.mark.parametrize("file, words", [
    ("mp_rank_00/model_weights.ckpt", "is the part of one rank"), ("model_weights/__0_0.distcp", "torch_dist"),
    ("README.md", "no weights; expected model_weights.ckpt")])
def test_other_forms_of_weights_are_refused_by_their_name(tmp_path, file, words):
    nemo.write(tmp_path / "m.nemo", "nemo_gpt", more=[(file, b"x")])
    r = nereid("build", tmp_path / "m.nemo", "-o", tmp_path / "e")
    assert r.returncode == 1 and words in r.stderr, r.stderr


def test_another_tokenizer_is_refused_by_its_library(tmp_path):
    nemo.write(tmp_path / "m.nemo", "nemo_gpt", changed=[("library: megatron", "library: huggingface")])
    r = nereid("tokenize", tmp_path / "m.nemo", text="x\n")
    assert r.returncode == 1 and "tokenizer.library is 'huggingface'" in r.stderr, r.stderr
