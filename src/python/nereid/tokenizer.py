# SPDX-License-Identifier: Apache-2.0
"""Text to token ids and back."""
from __future__ import annotations

import array
import json
import os
from typing import Any, Dict, Iterable, List, Sequence, Union

from nereid import _arrays, _nereid


class Tokenizer:
    """The tokenizer of a Hugging Face folder, tokenizer.json, tokenizer.model or GGUF file."""

    def __init__(self, path: Union[str, "os.PathLike[str]"]) -> None:
        self._raw = _nereid.Tokenizer(os.fspath(path))
        self._facts: Dict[str, Any] = self._raw.facts()

    def encode(self, text: str, *, add_special_tokens: bool = True, parse_special_tokens: bool = True) -> List[int]:
        """The ids of a text. parse_special_tokens: text like "<|im_start|>" becomes the special token."""
        return list(array.array("i", self._raw.encode(text, add_special_tokens, parse_special_tokens)))

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        return self._raw.decode(_arrays.int32(ids), skip_special_tokens)

    def apply_chat_template(self, messages: Sequence[Dict[str, Any]], *, add_generation_prompt: bool = True) -> str:
        """The prompt of a conversation, by the model's own template."""
        return self._raw.chat(json.dumps(list(messages)), add_generation_prompt)

    @property
    def vocab_size(self) -> int:
        return self._facts["vocab_size"]

    @property
    def bos_token_id(self) -> int:
        """-1: none."""
        return self._facts["bos_id"]

    @property
    def eos_token_id(self) -> int:
        """-1: none."""
        return self._facts["eos_id"]

    @property
    def pad_token_id(self) -> int:
        """-1: none."""
        return self._facts["pad_id"]

    @property
    def stop_token_ids(self) -> List[int]:
        """Ids that end an answer beyond eos_token_id."""
        return list(array.array("i", self._facts["stop_ids"]))

    @property
    def has_chat_template(self) -> bool:
        return self._facts["has_chat_template"]

    @property
    def sampling(self) -> Dict[str, Any]:
        """How the model's makers want its tokens to be chosen."""
        return {name: self._facts[name] for name in ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")}
