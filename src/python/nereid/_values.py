# SPDX-License-Identifier: Apache-2.0
"""What the executor's classes have in common: plain values with named members."""
from __future__ import annotations

import enum
from typing import Any


class Value:
    """Members are those of __slots__; equal where all of them are."""
    __slots__ = ()

    def __repr__(self) -> str:
        given = [(n, getattr(self, n)) for n in self.__slots__]
        return f"{type(self).__name__}({', '.join(f'{n}={v!r}' for n, v in given if v is not None)})"

    def __eq__(self, other: Any) -> bool:
        return type(self) is type(other) and all(getattr(self, n) == getattr(other, n) for n in self.__slots__)

    __hash__ = None  # type: ignore[assignment]


class ModelType(enum.IntEnum):
    DECODER_ONLY = 0
    ENCODER_ONLY = 1
    ENCODER_DECODER = 2


class BatchingType(enum.IntEnum):
    STATIC = 0
    INFLIGHT = 1


class CapacitySchedulerPolicy(enum.IntEnum):
    MAX_UTILIZATION = 0
    GUARANTEED_NO_EVICT = 1
    STATIC_BATCH = 2


class ContextChunkingPolicy(enum.IntEnum):
    FIRST_COME_FIRST_SERVED = 0
    EQUAL_PROGRESS = 1


class CommunicationType(enum.IntEnum):
    MPI = 0


class CommunicationMode(enum.IntEnum):
    LEADER = 0
    ORCHESTRATOR = 1


class RequestType(enum.IntEnum):
    REQUEST_TYPE_CONTEXT_AND_GENERATION = 0
    REQUEST_TYPE_CONTEXT_ONLY = 1
    REQUEST_TYPE_GENERATION_ONLY = 2


class FinishReason(enum.IntEnum):
    NOT_FINISHED = 0
    END_ID = 1
    STOP_WORDS = 2
    LENGTH = 3
    TIMED_OUT = 4
    CANCELLED = 5


class DecodingMode:
    """How the next token is found: DecodingMode.TopK() and its like; those of v0.10 are constants."""
    __slots__ = ("name", "number")

    def __init__(self, name: str, number: int) -> None:
        self.name, self.number = name, number

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, DecodingMode) and self.number == other.number

    def __hash__(self) -> int:
        return hash(self.number)

    def __repr__(self) -> str:
        return f"DecodingMode.{self.name}()"

    @staticmethod
    def Auto() -> "DecodingMode":
        return DecodingMode("Auto", 0)

    @staticmethod
    def TopK() -> "DecodingMode":
        return DecodingMode("TopK", 1)

    @staticmethod
    def TopP() -> "DecodingMode":
        return DecodingMode("TopP", 2)

    @staticmethod
    def TopKTopP() -> "DecodingMode":
        return DecodingMode("TopKTopP", 3)

    @staticmethod
    def BeamSearch() -> "DecodingMode":
        return DecodingMode("BeamSearch", 4)

    @staticmethod
    def Medusa() -> "DecodingMode":
        return DecodingMode("Medusa", 5)

    @staticmethod
    def Lookahead() -> "DecodingMode":
        return DecodingMode("Lookahead", 6)

    @staticmethod
    def ExplicitDraftTokens() -> "DecodingMode":
        return DecodingMode("ExplicitDraftTokens", 7)

    @staticmethod
    def Eagle() -> "DecodingMode":
        return DecodingMode("Eagle", 8)


for _old, _new in (("NONE", "Auto"), ("TOP_K", "TopK"), ("TOP_P", "TopP"), ("TOP_K_TOP_P", "TopKTopP"),
                   ("BEAM_SEARCH", "BeamSearch"), ("MEDUSA", "Medusa")):
    setattr(DecodingMode, _old, getattr(DecodingMode, _new)())
