#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A Whisper model becomes a checkpoint: `nereid convert`. --model_dir is a Hugging Face folder, or one with OpenAI's files, of
which --model_name names one: assets/large-v3.pt."""
import os
import sys

sys.dont_write_bytecode = True  # an installed tree stays as it was installed
sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "..", "scripts"))
import nereid_programs  # noqa: E402

words = sys.argv[1:]
if not nereid_programs.asks_help(words):
    folder, words = nereid_programs.take(words, "model_dir")
    name, words = nereid_programs.take(words, "model_name")
    folder = "assets" if folder is None else folder
    file = os.path.join(folder, f"{name or 'large-v3'}.pt")
    words.append("--model_dir=" + (file if os.path.exists(file) else folder))
nereid_programs.timed("converting checkpoints", "convert", *words)
