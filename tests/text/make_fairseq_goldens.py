#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The codes and dictionary of the small fairseq model, and ids of sentences by the published tools: fairseq_texts.json.

How the committed file was made (sacremoses and subword-nmt of the versions that it names, which it does not need to be read):

    python tests/text/make_fairseq_goldens.py

The codes are learned from CORPUS; the dictionary has what they make of it, by frequency, and unused words up to the size of the model's
vocabulary, as fairseq writes them (madeupword0000)."""
import collections
import importlib.metadata
import io
import json
import os

import sacremoses
from subword_nmt import apply_bpe, learn_bpe

HERE = os.path.dirname(os.path.abspath(__file__))
N_CODES, N_WORDS = 190, 331 - 4
CORPUS = {
    "en": ["The cat doesn't see the dog, and the dog doesn't see the cat.", "Mr. Brown's house was sold in 1990 for 5,300 pounds.",
           "It's a well-known story (at least here): everyone knows it!", "Where are you going? I am going to the market & the harbour.",
           "The children read the books that their teacher had given them.", "She said: \"We'll see the sea tomorrow; then we go home.\"",
           "There was no reason to wait any longer... so they went.", "The rate fell by 3.5% in the first half-year."],
    "fr": ["Le chat ne voit pas le chien, et le chien ne voit pas le chat.", "La maison de l'homme a été vendue en 1990 pour 5 300 livres.",
           "C'est une histoire bien connue (du moins ici) : tout le monde la connaît !", "Où allez-vous ? Je vais au marché et au port.",
           "Les enfants lisent les livres que l'institutrice leur a donnés.", "Elle dit : « Nous verrons la mer demain. »",
           "Il n'y avait aucune raison d'attendre plus longtemps...", "Le taux a baissé de 3,5 % au premier semestre."]}
# none of the corpus
SENTENCES = ["The dog's harbour.", "I don't know the well-known teacher, Mr. Brown!", "What? \"Nothing & nobody\", she said; 5,300 times.",
             "Prices rose 3.5% [see below] in 1990's markets.", "the U.S. was first. We went home...", "a|b <c> (d) e/f #7 g@h",
             "L'homme n'attend pas.", "  Spaces   before,\tand behind.  ", "Zebra\u2019s \u4e2d x"]


def main():
    tools = {language: sacremoses.MosesTokenizer(lang=language) for language in CORPUS}
    cut = {language: [tools[language].tokenize(s, aggressive_dash_splits=True, return_str=True) for s in sentences]
           for language, sentences in CORPUS.items()}
    codes = io.StringIO()
    learn_bpe.learn_bpe(io.StringIO("\n".join(s for sentences in cut.values() for s in sentences)), codes, N_CODES)
    lines = codes.getvalue().splitlines()
    bpe = apply_bpe.BPE(io.StringIO(codes.getvalue()))
    counts = collections.Counter(w for sentences in cut.values() for s in sentences for w in bpe.process_line(s).split())
    words = [w for w, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))][:N_WORDS]
    words += [f"madeupword{i:04d}" for i in range(N_WORDS - len(words))]
    ids = {w: i + 4 for i, w in enumerate(words)}
    texts = {}
    for language, tool in tools.items():
        for s in SENTENCES:
            pieces = bpe.process_line(tool.tokenize(s, aggressive_dash_splits=True, return_str=True)).split()
            texts.setdefault(language, []).append({"text": s, "words": " ".join(pieces), "ids": [*(ids.get(w, 3) for w in pieces), 2]})
    made = ", ".join(f"{p} {importlib.metadata.version(p)}" for p in ("sacremoses", "subword-nmt"))
    with open(os.path.join(HERE, "fairseq_texts.json"), "w", encoding="utf-8") as f:
        json.dump({"made_by": made, "codes": lines, "dictionary": words, "texts": texts}, f, ensure_ascii=False, indent=1)
        f.write("\n")


if __name__ == "__main__":
    main()
