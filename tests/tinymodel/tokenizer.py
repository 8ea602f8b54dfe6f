# SPDX-License-Identifier: Apache-2.0
"""A byte-level BPE tokenizer small enough for a tiny model, as tokenizer.json and as GGUF keys.

Ids: 0..3 specials, 4..259 the bytes, then the merges, then two chat markers, then unused entries
up to the size of the model's vocabulary.
"""

SPECIALS = ["<pad>", "<eos>", "<bos>", "<unk>"]
CHAT = ["<|user|>", "<|assistant|>"]
PAD, EOS, BOS, UNK = range(4)

# Ġ stands for the byte of a space (see byte_letters).
_MERGES = """
Ġ t|h e|Ġ a|i n|r e|o n|Ġt he|e r|Ġ s|a t|Ġ w|o u|n d|Ġ o|i s|Ġ c|in g|Ġa nd|e n|Ġ b
Ġ f|Ġ p|o r|e s|Ġ in|Ġo f|a l|Ġt o|l l|Ġ h|a r|i t|Ġ m|a n|e d|l e|Ġ is|Ġ d|Ġ y|Ġy ou
r o|i c|l o|Ġ n|s t|v e|he r|o m|Ġw h|l d
"""

CHAT_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}"
    "{{ '<|' + m['role'] + '|>' + m['content'] + '\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def byte_letters():
    """The printable letter that stands for each byte in byte-level vocabularies: itself where it
    prints, else the next free one from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    free = iter(range(0x100, 0x200))
    return [chr(b) if b in printable else chr(next(free)) for b in range(256)]


def merges():
    return [m for line in _MERGES.strip().split("\n") for m in line.split("|")]


def vocabulary(n_vocab):
    """Every entry by id, exactly n_vocab of them."""
    words = SPECIALS + byte_letters() + [m.replace(" ", "") for m in merges()] + CHAT
    assert len(set(words)) == len(words) <= n_vocab
    return words + [f"<unused{i}>" for i in range(n_vocab - len(words))]


def is_special(word):
    return word in SPECIALS or word in CHAT


def tokenizer_json(n_vocab, add_bos):
    words = vocabulary(n_vocab)
    bos = {"SpecialToken": {"id": "<bos>", "type_id": 0}}
    a, b = ({"Sequence": {"id": s, "type_id": i}} for i, s in enumerate("AB"))
    template = {
        "type": "TemplateProcessing",
        "single": [bos, a],
        "pair": [bos, a, {"SpecialToken": {"id": "<bos>", "type_id": 1}}, b],
        "special_tokens": {"<bos>": {"id": "<bos>", "ids": [BOS], "tokens": ["<bos>"]}},
    }
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
                  "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": i, "content": w, "single_word": False, "lstrip": False, "rstrip": False,
             "normalized": False, "special": True}
            for i, w in enumerate(words) if is_special(w)
        ],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": template if add_bos else byte_level,
        "decoder": byte_level,
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
            "ignore_merges": False, "vocab": {w: i for i, w in enumerate(words)},
            "merges": merges(),
        },
    }


def tokenizer_config(add_bos):
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": add_bos,
        "bos_token": "<bos>",
        "eos_token": "<eos>",
        "pad_token": "<pad>",
        "unk_token": "<unk>",
        "clean_up_tokenization_spaces": False,
        "model_max_length": 512,
        "chat_template": CHAT_TEMPLATE,
    }


def name_unused(text, words, first):
    """Gives the unused tokens of a tokenizer.json these names: marks that have the ids `first` and on."""
    for i, word in enumerate(words):
        del text["model"]["vocab"][f"<unused{i}>"]
        text["model"]["vocab"][word] = first + i
        text["added_tokens"].append({**text["added_tokens"][0], "id": first + i, "content": word})


def gguf_keys(n_vocab, add_bos):
    """(key, type, value) rows; types as in gguf_file."""
    words = vocabulary(n_vocab)
    kinds = [3 if is_special(w) else 5 if w.startswith("<unused") else 1 for w in words]
    return [
        ("tokenizer.ggml.model", "string", "gpt2"),
        ("tokenizer.ggml.pre", "string", "gpt-2"),
        ("tokenizer.ggml.tokens", "strings", words),
        ("tokenizer.ggml.token_type", "int32s", kinds),
        ("tokenizer.ggml.merges", "strings", merges()),
        ("tokenizer.ggml.bos_token_id", "uint32", BOS),
        ("tokenizer.ggml.eos_token_id", "uint32", EOS),
        ("tokenizer.ggml.unknown_token_id", "uint32", UNK),
        ("tokenizer.ggml.padding_token_id", "uint32", PAD),
        ("tokenizer.ggml.add_bos_token", "bool", add_bos),
        ("tokenizer.ggml.add_eos_token", "bool", False),
        ("tokenizer.chat_template", "string", CHAT_TEMPLATE),
    ]
