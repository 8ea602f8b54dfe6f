# SPDX-License-Identifier: Apache-2.0
"""Folders without a tokenizer.json whose vocabulary is a tiktoken file (Qwen 1, Kimi, GLM-4), or none at all (ByT5)."""
import base64
import functools
import json

import pytest

import test_tokenizers as t
from test_tokenizers import corpus, driver  # noqa: F401  fixtures
from tokenizers import Regex, normalizers, pre_tokenizers

# As tokenization_kimi.py has it: classes of letters without Han's
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
CASES = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
KIMI = "|".join([r"[\p{Han}]+", rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+{CASES}", rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*{CASES}",
                 r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])


def ranks_of(ref):
    """The tokens of a trained byte-level vocabulary in the order in which they were made, those of single bytes first."""
    of_char = {c: b for b, c in byte_chars().items()}
    words = [w for w, _ in sorted(ref.get_vocab().items(), key=lambda item: item[1]) if w not in t.SPECIALS]
    words.sort(key=lambda w: len(w) > 1)
    return {bytes(of_char[c] for c in w): i for i, w in enumerate(words)}


@functools.cache
def byte_chars():
    """GPT-2's characters for bytes: themselves where they are seen, else those from 256 on."""
    seen = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [b for b in range(256) if b not in seen]
    return {**{b: chr(b) for b in seen}, **{b: chr(256 + i) for i, b in enumerate(rest)}}


def join(ranks, word):
    """tiktoken's rule: of all neighbours that are a token together those of the lowest rank join, the first of equals."""
    if word in ranks:
        return [ranks[word]]
    parts = [word[i:i + 1] for i in range(len(word))]
    while True:
        pairs = [(ranks.get(a + b, len(ranks)), i) for i, (a, b) in enumerate(zip(parts, parts[1:]))]
        rank, i = min(pairs, default=(len(ranks), 0))
        if rank == len(ranks):
            return [ranks[p] for p in parts]
        parts[i:i + 2] = [parts[i] + parts[i + 1]]


def ids_of(ranks, words, text):
    return [i for word, _ in words.pre_tokenize_str(text) for i in join(ranks, word.encode())]


def write_ranks(path, ranks):
    path.write_bytes(b"".join(base64.b64encode(word) + b" %d\n" % i for word, i in ranks.items()))


CLASSES = {"qwen": ("QWenTokenizer", "qwen.tiktoken", t.QWEN2), "kimi": ("TikTokenTokenizer", "tiktoken.model", KIMI),
           "glm4": ("ChatGLM4Tokenizer", "tokenizer.model", t.LLAMA3)}


def write_folder(name, corpus, folder):
    cls, file, pattern = CLASSES[name]
    ranks = ranks_of(t.byte_level(corpus, t.split(pattern)))
    write_ranks(folder / file, ranks)
    n = len(ranks)
    config = {"tokenizer_class": cls}
    if name == "kimi":
        named = {n: "[BOS]", n + 1: "[EOS]", n + 2: "<|im_end|>", n + 10: "<|im_user|>"}
        config.update(added_tokens_decoder={str(i): {"content": w, "special": True} for i, w in named.items()}, bos_token="[BOS]",
                      eos_token="[EOS]")
    elif name == "glm4":
        named = ["<|endoftext|>", "[MASK]", "[gMASK]", "[sMASK]", "<sop>", "<eop>", "<|user|>"]
        config.update(added_tokens_decoder={str(n + i): {"content": w, "special": True} for i, w in enumerate(named)},
                      eos_token="<|endoftext|>")
    t.write_json(folder / "tokenizer_config.json", config)
    return ranks, pre_tokenizers.Split(Regex(pattern), "isolated")


@pytest.mark.parametrize("name", CLASSES)
def test_a_tiktoken_file_gives_the_ids_of_its_ranks(name, driver, corpus, tmp_path):  # noqa: F811
    ranks, words = write_folder(name, corpus, tmp_path)
    texts = [x for x in t.textgen.texts(t.SEED + 7, min(t.N, 3000)) if "\x00" not in x]
    texts += ["漢字とKana mixed 汉字ABC'S we'LL don't", "1234567 12345678", "Straße ÉCOLE été\n\n  x"]
    read = normalizers.NFC().normalize_str if name == "qwen" else str
    front = [len(ranks) + 2, len(ranks) + 4] if name == "glm4" else []
    theirs = [front + ids_of(ranks, words, read(x)) for x in texts]
    ours = t.encode(driver, tmp_path, texts)
    t.assert_same("encode", texts, ours, theirs)
    plain = [ids[len(front):] for ids in ours]
    t.assert_same("decode", texts, t.decode(driver, "stream", tmp_path, plain), [read(x) for x in texts])


def test_special_tokens_stand_behind_the_ranks(driver, corpus, tmp_path):  # noqa: F811
    ids = {}
    for name in CLASSES:
        (tmp_path / name).mkdir()
        ranks, _ = write_folder(name, corpus, tmp_path / name)
        text = {"qwen": "<|im_start|><|im_end|><|endoftext|><|extra_204|>", "kimi": f"<|im_end|><|im_user|><|reserved_token_{len(ranks) + 5}|>",
                "glm4": "<|user|>"}[name]
        ids[name] = [i - len(ranks) for i in t.encode(driver, tmp_path / name, [text], "--parse-special")[0]]
    assert ids == {"qwen": [1, 2, 0, 207], "kimi": [2, 10, 5], "glm4": [2, 4, 6]}


def test_a_file_between_the_tokens_of_a_picture_is_its_place(driver, corpus, tmp_path):  # noqa: F811
    """Qwen-VL, whose class has nine tokens more: whatever the file's name is, and whatever else it has."""
    ranks, words = write_folder("qwen", corpus, tmp_path)
    t.write_json(tmp_path / "config.json", {"model_type": "qwen", "visual": {}})
    first, plain = len(ranks) + 3 + 205 + 6, ids_of(ranks, words, "what is ")
    for text, want in (("what is <img>a b/ä.png</img>", plain + [first, first + 2, first + 1]),
                       ("<img><imgpad></img><img></img>", [first, first + 2, first + 1] * 2),
                       ("<img><img><|im_end|></img>", [first, first + 2, first + 1]),
                       ("<img>what is ", [first] + plain), ("<ref></ref><box></box><quad></quad>", [first + i for i in range(-6, 0)])):
        assert t.encode(driver, tmp_path, [text], "--parse-special")[0] == want, text
    assert first not in t.encode(driver, tmp_path, ["<img>a</img>"])[0]


def test_a_tiktoken_file_that_is_none_is_refused_by_name(driver, corpus, tmp_path):  # noqa: F811
    write_folder("qwen", corpus, tmp_path)
    good = (tmp_path / "qwen.tiktoken").read_bytes()
    for text, config, words in ((good.replace(b" 7\n", b" 9\n", 1), {}, "line 8: the number is '9', expected 7"),
                                (b"!!!! 0\n", {}, "line 1: expected a token in base64"),
                                (good, {"tokenizer_class": "OtherTokenizer"}, "'OtherTokenizer' of a tiktoken file is not implemented")):
        (tmp_path / "qwen.tiktoken").write_bytes(text)
        t.write_json(tmp_path / "tokenizer_config.json", {"tokenizer_class": "QWenTokenizer", **config})
        done = t.subprocess.run([driver, "tokenize", tmp_path], input="", capture_output=True, text=True, check=False)
        assert done.returncode != 0 and words in done.stderr, done.stderr
    (tmp_path / "qwen.tiktoken").write_bytes(good)
    write_folder("glm4", corpus, tmp_path)
    (tmp_path / "qwen.tiktoken").unlink()
    t.write_json(tmp_path / "tokenizer_config.json", {"tokenizer_class": "ChatGLM4Tokenizer"})
    done = t.subprocess.run([driver, "tokenize", tmp_path], input="", capture_output=True, text=True, check=False)
    assert "'added_tokens_decoder' has no [gMASK]" in done.stderr


def test_byt5_has_a_token_for_each_byte(driver, tmp_path):  # noqa: F811
    """As transformers' ByT5Tokenizer: the byte plus 3, and the end."""
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "ByT5Tokenizer", "extra_ids": 125}))
    texts = [x for x in t.textgen.texts(t.SEED + 8, min(t.N, 2000))] + ["", "a b", "ä漢"]
    ours = t.encode(driver, tmp_path, texts)
    t.assert_same("encode", texts, ours, [[b + 3 for b in x.encode()] + [1] for x in texts])
    t.assert_same("decode", texts, t.decode(driver, "stream", tmp_path, [ids[:-1] for ids in ours]), texts)
    assert t.encode(driver, tmp_path, ["x <extra_id_0>y"], "--parse-special")[0] == [123, 35, 259, 124, 1]
    assert t.encode(driver, tmp_path, ["x </s> <extra_id_124>"], "--parse-special")[0] == [123, 1, 383, 1]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "ByT5Tokenizer", "extra_ids": -1}))
    done = t.subprocess.run([driver, "tokenize", tmp_path], input="", capture_output=True, text=True, check=False)
    assert "'extra_ids' must be between 0 and 4096, got -1" in done.stderr


@pytest.mark.parametrize("name", [*CLASSES, "byt5"])
def test_a_saved_folder_is_the_same_tokenizer(name, driver, corpus, tmp_path):  # noqa: F811
    """Also to the `tokenizers` library, which reads the tokenizer.json that is written."""
    (tmp_path / "in").mkdir()
    if name == "byt5":
        t.write_json(tmp_path / "in" / "tokenizer_config.json", {"tokenizer_class": "ByT5Tokenizer"})
    else:
        write_folder(name, corpus, tmp_path / "in")
    t.subprocess.run([driver, "save", tmp_path / "in", tmp_path / "out"], check=True)
    texts = [x for x in t.textgen.texts(t.SEED + 9, min(t.N, 1500)) if "\x00" not in x]
    want = t.encode(driver, tmp_path / "in", texts)
    t.assert_same("ours", texts, t.encode(driver, tmp_path / "out", texts), want)
    again = t.Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json"))
    t.assert_same("reference", texts, [e.ids for e in again.encode_batch(texts)], want)
