# SPDX-License-Identifier: Apache-2.0
"""What a model says of its tokenizer for guided decoding."""


def _xgrammar_tokenizer_info(tokenizer):
    """Members of GuidedDecodingConfig: the engine reads the tokenizer's own files."""
    return {"tokenizer_dir": tokenizer.name_or_path}
