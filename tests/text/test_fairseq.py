# SPDX-License-Identifier: Apache-2.0
"""Folders of fairseq's translation models: words, codes and dictionary give the ids that Moses' tokenizer and subword-nmt give
(make_fairseq_goldens.py), and back; what is refused."""
import json
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/tinymodel"))
import encdec  # noqa: E402

GOLDEN = json.loads((ROOT / "tests/text/fairseq_texts.json").read_text(encoding="utf-8"))


def nereid(*words, text=""):
    return subprocess.run([ROOT / "build/bin/nereid", *map(str, words)], input=text, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    tmp = tmp_path_factory.mktemp("fairseq")
    for source, target in (("en", "fr"), ("fr", "en")):
        encdec.write_fairseq(tmp / source, source == "en", source_lang=source, target_lang=target)
    return tmp


@pytest.mark.parametrize("source", list(GOLDEN["texts"]))
def test_texts_become_the_ids_of_the_published_tools(folders, source):
    rows = GOLDEN["texts"][source]
    r = nereid("tokenize", folders / source, "--json", text="".join(json.dumps({"text": row["text"]}) + "\n" for row in rows))
    assert r.returncode == 0, r.stderr
    assert [json.loads(line)["ids"] for line in r.stdout.splitlines()] == [row["ids"] for row in rows]


@pytest.mark.parametrize("source, words, text", [
    ("en", "the @-@ the ? l@@ &apos; hom@@ m@@ e , &quot; ha@@ r@@ b@@ ou@@ r &quot; .", "the-the ? l'homme, \" harbour \"."),
    ("fr", "I d@@ o@@ n &apos;t kn@@ o@@ w ! ( see )", "I don't know! (see)")])
def test_ids_become_text(folders, source, words, text):
    """Spaces before marks stay in French, apostrophes belong to the word before or behind."""
    table = {w: i + 4 for i, w in enumerate(GOLDEN["dictionary"])}
    ids = [table[w] for w in words.split() if w in table]
    known = all(w in table for w in words.split())
    r = nereid("detokenize", folders / source, text=" ".join(map(str, ids)) + "\n")
    assert r.returncode == 0 and known and r.stdout == text + "\n", (r.stdout, r.stderr, [w for w in words.split() if w not in table])


@pytest.mark.parametrize("change, words", [
    ({"source_lang": None}, "no 'args/source_lang'"), ({"encoder_learned_pos": True}, "'args/encoder_learned_pos' is not supported"),
    ({"activation_fn": "tanh"}, "args/activation_fn 'tanh' is not supported; known: relu, gelu, swish"),
    ({"adaptive_softmax_cutoff": "4000"}, "'args/adaptive_softmax_cutoff' is not supported"),
    ({"decoder_normalize_before": True}, "args/encoder_normalize_before and args/decoder_normalize_before differ"),
    ({"encoder_layers": 0}, "args/encoder_layers is 0, expected 1 to 1024"),
    ({"decoder_embed_dim": 48}, "args/decoder_embed_dim is 48, expected that of the encoder, 72")])
def test_other_networks_are_refused_by_the_argument(tmp_path, change, words):
    encdec.write_fairseq(tmp_path / "m", **change)
    r = nereid("tokenize" if "source_lang" in change else "build", tmp_path / "m", *([] if "source_lang" in change else ["-o", tmp_path / "e"]))
    assert r.returncode == 1 and words in r.stderr, r.stderr


def test_two_dictionaries_are_refused(tmp_path):
    encdec.write_fairseq(tmp_path)
    with open(tmp_path / "dict.fr.txt", "a", encoding="utf-8") as f:
        f.write("chat 1\n")
    r = nereid("tokenize", tmp_path)
    assert r.returncode == 1 and "dict.en.txt and dict.fr.txt differ: a dictionary for each language is not supported" in r.stderr


def test_lines_that_are_none_are_named(tmp_path):
    encdec.write_fairseq(tmp_path)
    codes = (tmp_path / "bpecodes").read_text(encoding="utf-8")
    (tmp_path / "bpecodes").write_text(codes.replace("\n", "\nalone\n", 1), encoding="utf-8")
    r = nereid("tokenize", tmp_path)
    assert r.returncode == 1 and "bpecodes line 2: expected two symbols" in r.stderr
    (tmp_path / "bpecodes").write_text(codes, encoding="utf-8")
    for language in ("en", "fr"):
        (tmp_path / f"dict.{language}.txt").write_text("word\n", encoding="utf-8")
    r = nereid("tokenize", tmp_path)
    assert r.returncode == 1 and "dict.en.txt: line 1: expected a token and how often it was seen" in r.stderr


def test_codes_of_fastbpe_are_read(tmp_path):
    """A number behind each pair, and no line of a version."""
    encdec.write_fairseq(tmp_path)
    lines = (tmp_path / "bpecodes").read_text(encoding="utf-8").splitlines()[1:]
    (tmp_path / "bpecodes").write_text("".join(f"{line} {900 - i}\n" for i, line in enumerate(lines)), encoding="utf-8")
    row = GOLDEN["texts"]["en"][0]
    assert nereid("tokenize", tmp_path, text=row["text"] + "\n").stdout.replace(",", " ").split() == [str(i) for i in row["ids"]]
