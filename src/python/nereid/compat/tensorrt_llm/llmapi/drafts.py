# SPDX-License-Identifier: Apache-2.0
"""How several tokens a step are guessed, under the names of TensorRT-LLM's LLM API."""
import json
import os
from dataclasses import dataclass, fields
from typing import Any, List, Optional, Union

from nereid.programs import fetch

Path = Union[None, str, "os.PathLike[str]"]


def _given(**more: Any) -> Any:
    """The members that are not None."""
    return {name: value for name, value in more.items() if value is not None}


@dataclass
class NGramDecodingConfig:
    """Of the text so far. What is kept of it is the engine's choice, whatever the last three say."""
    max_draft_len: Optional[int] = None
    max_matching_ngram_size: Optional[int] = None
    is_keep_all: bool = True
    is_use_oldest: bool = True
    is_public_pool: bool = True

    def ours(self) -> Any:
        return _given(method="ngram", num_speculative_tokens=self.max_draft_len, prompt_lookup_max=self.max_matching_ngram_size)


@dataclass
class LookaheadDecodingConfig:
    max_window_size: int = 4
    max_ngram_size: int = 3
    max_verification_set_size: int = 4

    def ours(self) -> Any:
        return _given(method="lookahead", lookahead_window_size=self.max_window_size, lookahead_ngram_size=self.max_ngram_size,
                       lookahead_verification_set_size=self.max_verification_set_size)


@dataclass
class _OfModel:
    """With a network of its own: a path, or a name in the hub. The second name is that of some releases."""
    max_draft_len: Optional[int] = None
    speculative_model: Path = None
    speculative_model_dir: Path = None

    def model(self) -> str:
        path = self.speculative_model or self.speculative_model_dir
        if path is None:
            raise ValueError(f"{type(self).__name__} needs speculative_model")
        return fetch(os.fspath(path))


@dataclass
class DraftTargetDecodingConfig(_OfModel):
    def ours(self) -> Any:
        return _given(method="draft_model", model=self.model(), num_speculative_tokens=self.max_draft_len)


@dataclass
class MedusaDecodingConfig(_OfModel):
    """max_draft_len and num_medusa_heads are the heads' own."""
    medusa_choices: Optional[List[List[int]]] = None
    num_medusa_heads: Optional[int] = None

    def ours(self) -> Any:
        return _given(method="medusa", model=self.model(), medusa_choices=self.medusa_choices)


@dataclass
class EagleDecodingConfig(_OfModel):
    """Heads of EAGLE-3, as in the releases that run PyTorch; those of EAGLE-1 are told by name."""
    eagle_choices: Optional[List[List[int]]] = None
    posterior_threshold: Optional[float] = None
    use_dynamic_tree: bool = False
    dynamic_tree_max_topK: Optional[int] = None
    eagle3_one_model: bool = True

    def ours(self) -> Any:
        return _given(method="eagle3", model=self.model(), num_speculative_tokens=self.max_draft_len, eagle_choices=self.eagle_choices,
                       posterior_threshold=self.posterior_threshold, dynamic_tree_max_topK=self.dynamic_tree_max_topK)


Eagle3DecodingConfig = EagleDecodingConfig


@dataclass
class MTPDecodingConfig:
    """Of the model's own layers behind its last."""
    num_nextn_predict_layers: Optional[int] = None
    max_draft_len: Optional[int] = None

    def ours(self) -> Any:
        return _given(method="mtp", num_speculative_tokens=self.max_draft_len or self.num_nextn_predict_layers)


_TYPES = {"ngram": NGramDecodingConfig, "lookahead": LookaheadDecodingConfig, "drafttarget": DraftTargetDecodingConfig, "draft_target": DraftTargetDecodingConfig,
          "medusa": MedusaDecodingConfig, "eagle": EagleDecodingConfig, "eagle3": EagleDecodingConfig, "mtp": MTPDecodingConfig}


def text_of(config: Any) -> str:
    """speculative_config as nereid.LLM takes it. A dictionary has decoding_type, as in the files of trtllm-serve; a text is one already."""
    if isinstance(config, str):
        return config
    if isinstance(config, dict):
        given = dict(config)
        kind = _TYPES.get(str(given.pop("decoding_type", "")).lower())
        if kind is None:
            raise ValueError(f"speculative_config: decoding_type is one of {', '.join(sorted(_TYPES))}")
        unknown = sorted(set(given) - {f.name for f in fields(kind)})
        if unknown:
            raise TypeError(f"speculative_config: '{unknown[0]}' is not known")
        config = kind(**given)
    if not hasattr(config, "ours"):
        raise TypeError(f"speculative_config: expected a decoding config, got {type(config).__name__}")
    return json.dumps(config.ours())
