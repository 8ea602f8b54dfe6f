# SPDX-License-Identifier: Apache-2.0
"""Prompts for the real models as token ids, from the vocabulary in their GGUF files.

Any valid ids would do for comparing arithmetic; real text makes the logits lifelike. So these
encoders are short and plain: pieces by a simple split for byte-level BPE, whole text for the
sentencepiece kind (best score first). They are not the reference of the tokenizer.
"""

import re

STORY = """The harbour woke before the town did. Ropes creaked, gulls argued over scraps, and the
first boats slid out past the breakwater with their lamps still burning. Mara counted them from the
window of the signal house, as her grandmother had taught her: eleven out, eleven back, and a line
in the book for each. On the third of October she counted twelve. Nobody had built a boat that
year, nobody had bought one, and the fog was too thick to read a name. She wrote the number down,
crossed it out, and wrote it down again. "Twelve," she said to the empty room, and the barometer
on the wall dropped by 3.5 millibars as if it had been waiting for the word.

By noon the wind had turned to the north-east. The baker closed early; the ferry from Sandvik did
not come at 13:40, nor at 15:10. Old Henrik, who had been right about the weather twice in his life
and never let anyone forget it, sat down on the bench beside the signal house and asked how many.
She told him. He nodded slowly. "There was a twelfth in 1953, and again in 1978," he said. "My
father saw the first one. It had no nets aboard, and it sat high in the water like a box of
matches. It went out with the others, and it came back with the others, and in between every boat
found fish where there had been none for weeks. The next morning it was gone, and so was the
lighthouse keeper's debt."
"""

CODE = """def running_mean(values, window):
    total, out = 0.0, []
    for i, v in enumerate(values):
        total += v
        if i >= window:
            total -= values[i - window]
        out.append(total / min(i + 1, window))
    return out


print(running_mean([1, 2, 3, 4, 5], 2))
# ["""

FACTS = "The three largest planets of the solar system are Jupiter, Saturn and"
QUESTION = "What is the capital of France?"
MIXED = "Größe, naïve café, 東京 and Москва: 1,234.50 € — ½ price… 🙂 ok"


def _byte_letters():
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    free = iter(range(0x100, 0x200))
    return [chr(b) if b in printable else chr(next(free)) for b in range(256)]


class ByteBpe:
    def __init__(self, keys):
        self.ids = {w: i for i, w in enumerate(keys["tokenizer.ggml.tokens"])}
        self.rank = {tuple(m.split(" ")): i for i, m in enumerate(keys["tokenizer.ggml.merges"])}
        self.letters = _byte_letters()

    def encode(self, text):
        out = []
        for piece in re.findall(r" ?[^\W\d_]+|\d| ?[^\s\w]+|\s+|_", text):
            parts = [self.letters[b] for b in piece.encode()]
            while len(parts) > 1:
                pairs = [(self.rank.get(p, 1 << 30), i) for i, p in enumerate(zip(parts, parts[1:]))]
                rank, i = min(pairs)
                if rank == 1 << 30:
                    break
                parts[i:i + 2] = [parts[i] + parts[i + 1]]
            out += [self.ids[p] for p in parts]
        return out


class Pieces:
    def __init__(self, keys):
        self.ids = {w: i for i, w in enumerate(keys["tokenizer.ggml.tokens"])}
        self.scores = keys["tokenizer.ggml.scores"]

    def encode(self, text):
        parts = list(text.replace(" ", "\u2581"))
        while True:
            pairs = [
                (-self.scores[self.ids[a + b]], i)
                for i, (a, b) in enumerate(zip(parts, parts[1:])) if a + b in self.ids
            ]
            if not pairs:
                break
            _, i = min(pairs)
            parts[i:i + 2] = [parts[i] + parts[i + 1]]
        out = []
        for p in parts:
            known = p in self.ids
            out += [self.ids[p]] if known else [self.ids[f"<0x{b:02X}>"] for b in p.encode()]
        return out


def prompts_of(f):
    """(id, tokens) for a GGUF file: six prompts, one of more than 600 tokens."""
    keys = f.keys
    if keys["tokenizer.ggml.model"] == "gpt2":
        enc = ByteBpe(keys)
        start = []
    else:
        enc = Pieces(keys)
        start = [keys["tokenizer.ggml.bos_token_id"]]
    if "<|im_start|>" in enc.ids:
        turn, end = [enc.ids["<|im_start|>"]], [enc.ids["<|im_end|>"]]
        chat = (turn + enc.encode("user\n" + QUESTION) + end + enc.encode("\n") + turn
                + enc.encode("assistant\n"))
    else:
        chat = start + enc.encode("Question: " + QUESTION + "\nAnswer:")
    story = enc.encode(STORY.replace("\n\n", "\0").replace("\n", " ").replace("\0", "\n\n"))
    long = story + enc.encode("\nSome years later:\n") + story
    prompts = [
        ("one", [keys["tokenizer.ggml.bos_token_id"]]), ("chat", chat),
        ("facts", start + enc.encode(FACTS)), ("mixed", start + enc.encode(MIXED)),
        ("code", start + enc.encode(CODE)), ("long", start + long),
    ]
    assert len(prompts[-1][1]) > 600
    return prompts
