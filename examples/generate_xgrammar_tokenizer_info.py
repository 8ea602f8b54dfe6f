#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A folder with tokenizer.json becomes the file that the parameter xgrammar_tokenizer_info_path names. (The parameter tokenizer_dir
does without it.)"""
import argparse
import json
import os
import sys

sys.dont_write_bytecode = True  # an installed tree stays as it was installed
sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "scripts"))
import nereid_programs  # noqa: E402

NAME = "xgrammar_tokenizer_info.json"


def vocabulary(text):
    """The tokens by their ids."""
    tokenizer = json.loads(text)
    words = tokenizer["model"]["vocab"]
    ids = dict(words) if isinstance(words, dict) else {word: i for i, (word, _) in enumerate(words)}
    ids.update((token["content"], token["id"]) for token in tokenizer.get("added_tokens", []))
    return sorted(ids, key=ids.get)


def main():
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--model_dir", "--model-dir", required=True, help="a Hugging Face folder")
    parser.add_argument("--output_dir", "--output-dir", required=True, help=f"where {NAME} goes")
    args = parser.parse_args()
    nereid = nereid_programs.module()
    path = os.path.join(args.model_dir, "tokenizer.json")
    try:
        with open(path, encoding="utf-8") as f:
            text = f.read()
        tokenizer = nereid.Tokenizer(args.model_dir)
        info = {"encoded_vocab": vocabulary(text), "tokenizer_str": text,
                "stop_token_ids": [i for i in [tokenizer.eos_token_id, *tokenizer.stop_token_ids] if i >= 0]}
        os.makedirs(args.output_dir, exist_ok=True)
        with open(os.path.join(args.output_dir, NAME), "w", encoding="utf-8") as f:
            json.dump(info, f)
    except (nereid.Error, OSError) as e:
        sys.exit(f"generate_xgrammar_tokenizer_info.py: {e}; without tokenizer.json, the parameter tokenizer_dir names the folder")
    except (KeyError, TypeError, ValueError, AttributeError) as e:
        sys.exit(f"generate_xgrammar_tokenizer_info.py: {path} is not a tokenizer's file: {e!r}")


if __name__ == "__main__":
    main()
