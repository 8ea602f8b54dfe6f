# SPDX-License-Identifier: Apache-2.0
"""Generated text for tokenizer tests: words of many scripts, and everything that trips tokenizers."""
import random

SYLLABLES = "ba re ti no lu ke sha mon ing er ation the qu st pre ent ly ou ck ch ph str ight".split()
CHUNKS = [
    "é", "e\u0301", "ñ", "n\u0303", "å", "A\u030a", "ﬁ", "ﬂ", "½", "²", "Ⅷ", "①", "ﾊﾝｶｸ", "Ｆｕｌｌ", "ß", "İ", "ſ", "Σς",
    "👩‍👩‍👧‍👦", "🏳️‍🌈", "😀", "👍🏽", "🇩🇪", "❤️", "©", "™", "\u200d", "\u200b", "\ufeff", "\u00ad", "\u2028", "\u0085", "\u3000",
    "\u00a0", "\x00", "\x01", "\x07", "\x1b", "\x7f", "漢字", "日本語のテキスト", "ひらがな", "カタカナ", "中文，测试。", "한국어", "한글",
    "العربية", "مَرْحَبًا", "עברית", "हिन्दी", "ไทย", "русский", "Ελληνικά", "\U0001d538", "\U00020000", "\u0344", "\u0958",
    "'s", "'S", "'re", "'VE", "'ll", "'D", "don't", "it'ſ", "’s", "1", "12", "123", "1234567", "3.14", "١٢٣", "1,000", "0x1F",
    "▁", "▁▁", "<", ">", "</s", "<0x41>", "Ġ", "Ċ", "...", "!!!", "?!", "-->", "::", "_x_", "$9", "€", "“quote”", "(a)", "[b]",
    "{c}", "\\n", "http://a.b/c?d=e&f", "a@b.co", "#tag", "\r\n", "\n", "\n\n", "\n \n", "\t", "\t\t", " ", "  ", "   ", "     ",
    "CamelCase", "UPPER", "x" * 40, "ab" * 60, "aaaaaaaaaaaaaaaaaaaaa", "\u0e33", "\u0301", "\u0300\u0301", "각", "ᄀ", "힣",
    "Å", "ﷺ", "㎏", "№", "…", "—", "\ufffd", "\ue000", "\u2581a", "a\u2581", "〇", "々",
]


def word(rng):
    s = "".join(rng.choice(SYLLABLES) for _ in range(rng.choice((1, 1, 2, 2, 3))))
    return s.capitalize() if rng.random() < 0.15 else s


def codepoint(rng):
    # ranges whose characters have been assigned for long: the reference libraries differ in age
    lo, hi = rng.choice(((0x20, 0x7F), (0xA0, 0x250), (0x300, 0x363), (0x391, 0x3AA), (0x410, 0x450), (0x5D0, 0x5EB),
                         (0x621, 0x64B), (0x905, 0x93A), (0x1100, 0x1113), (0x1E00, 0x1EFA), (0x2010, 0x2028),
                         (0x2070, 0x2072), (0x2100, 0x214B), (0x2200, 0x22F0), (0x3041, 0x3097), (0x4E00, 0x9FA6),
                         (0xAC00, 0xD7A4), (0xFB00, 0xFB07), (0xFF01, 0xFFBE), (0x1F600, 0x1F641), (0x1D400, 0x1D455)))
    return chr(rng.randrange(lo, hi))


def text(rng, specials=()):
    parts = []
    for _ in range(rng.choice((1, 2, 3, 4, 6, 10))):
        r = rng.random()
        if r < 0.45:
            parts.append(word(rng))
        elif r < 0.75:
            parts.append(rng.choice(CHUNKS))
        elif r < 0.85:
            parts.append("".join(codepoint(rng) for _ in range(rng.randrange(1, 4))))
        elif r < 0.93 or not specials:
            parts.append(rng.choice((" ", "  ", "\n", ", ", ". ", " \n", "\t")))
        else:
            parts.append(rng.choice(specials))
        if rng.random() < 0.6:
            parts.append(" ")
    return "".join(parts)


def prose(rng, n_words):
    out = []
    for i in range(n_words):
        out.append(word(rng) if rng.random() < 0.95 else rng.choice(CHUNKS).strip("\r\n\x00") or "x")
        if i % 11 == 10:
            out[-1] += rng.choice(".,!?;:")
    return " ".join(out)


def texts(seed, n, specials=()):
    rng = random.Random(seed)
    return [text(rng, specials) for _ in range(n)]


def corpus(seed, n_lines):
    rng = random.Random(seed)
    return [prose(rng, rng.randrange(5, 40)) if rng.random() < 0.8 else text(rng) for _ in range(n_lines)]
