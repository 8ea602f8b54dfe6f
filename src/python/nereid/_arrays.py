# SPDX-License-Identifier: Apache-2.0
"""Lists, NumPy arrays and torch tensors into bytes, and logits back. Neither library is needed."""
from __future__ import annotations

import array
import sys
from typing import Any, Iterable, List, Optional, Sequence, Tuple, Union

_FORMATS = {"?": "bool", "B": "uint8", "e": "float16", "f": "float32", "d": "float64", "i": "int32", "l": "int64", "q": "int64"}


def int32(values: Iterable[int]) -> bytes:
    """Ids as the engine reads them."""
    values = values.tolist() if hasattr(values, "tolist") else values
    return array.array("i", values).tobytes()


def uint64(values: Iterable[int]) -> bytes:
    values = values.tolist() if hasattr(values, "tolist") else values
    return array.array("Q", values).tobytes()


def phrases(words: Optional[Iterable[Sequence[int]]]) -> Optional[Tuple[bytes, bytes]]:
    """Phrases as the ids of all of them, and where each ends."""
    if not words:
        return None
    ids: List[int] = []
    ends: List[int] = []
    for word in words:
        ids.extend(word)
        ends.append(len(ids))
    return int32(ids), int32(ends)


def tensor(name: str, value: Any, want: Sequence[str]) -> Tuple[bytes, str, Tuple[int, ...]]:
    """(bytes, element type, shape). An array of a type that is not in `want` becomes one of want[0]."""
    if hasattr(value, "detach"):  # torch
        value = value.detach().cpu().contiguous()
        kind = str(value.dtype).rpartition(".")[2]
        if kind not in want:
            value, kind = value.to(getattr(sys.modules["torch"], want[0])), want[0]
        if kind == "bfloat16":  # NumPy has none
            return value.view(sys.modules["torch"].int16).numpy().tobytes(), kind, tuple(value.shape)
        return value.numpy().tobytes(), kind, tuple(value.shape)
    if isinstance(value, (list, tuple)):
        value = _from_list(value, want[0])
    try:
        view = memoryview(value)
    except TypeError:
        raise TypeError(f"{name}: expected an array, a tensor or a list, got {type(value).__name__}") from None
    kind = _FORMATS.get(view.format, view.format)
    if kind not in want:
        if not hasattr(value, "astype"):
            raise TypeError(f"{name}: expected elements of {' or '.join(want)}, got {kind}")
        value, kind = value.astype(want[0]), want[0]
        view = memoryview(value)
    return view.tobytes(), kind, tuple(view.shape)


def _from_list(value: Sequence[Any], kind: str) -> memoryview:
    rows = value if value and isinstance(value[0], (list, tuple)) else [value]
    if len({len(row) for row in rows}) > 1:
        raise ValueError("the rows of a list of lists must be of one length")
    flat = array.array({"int32": "i", "bool": "B"}.get(kind, "f"), [x for row in rows for x in row])
    code = flat.typecode
    shape = (len(rows), len(rows[0])) if rows is value else (len(value),)
    return memoryview(flat).cast("B").cast(code, shape)


def logits(data: Union[None, bytes, bytearray], shape: Sequence[int]) -> Any:
    """A torch tensor where torch is in use, else a NumPy array where that is installed, else a memoryview."""
    if data is None:
        return None
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "frombuffer"):
        return torch.frombuffer(bytearray(data), dtype=torch.float32).reshape(tuple(shape))
    try:
        import numpy
    except ImportError:
        return memoryview(data).cast("B").cast("f", tuple(shape))
    return numpy.frombuffer(data, numpy.float32).reshape(tuple(shape))
