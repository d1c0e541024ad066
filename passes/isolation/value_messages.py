"""Values in messages between processes: strings, sequences and optionals as JSON, arrays of numbers beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from passes.isolation.messages import Array

Value = Array | list[Array] | None
"""A tensor, a sequence of tensors, or an optional without a value."""
Values = Mapping[str, Value]


def pack(samples: Sequence[Values]) -> tuple[list[dict[str, Any]], dict[str, Array]]:
    """Return samples as JSON values, and the arrays that these refer to."""
    arrays: dict[str, Array] = {}

    def entry(value: Value) -> Any:
        if value is None:
            return None
        if isinstance(value, list):
            return [entry(element) for element in value]
        if value.dtype.kind in "OUST":
            strings = [text.decode() if isinstance(text, bytes) else str(text) for text in value.reshape(-1)]
            return {"strings": strings, "shape": list(value.shape)}
        arrays[str(len(arrays))] = value
        return len(arrays) - 1

    return [{name: entry(value) for name, value in sample.items()} for sample in samples], arrays


def unpack(entries: Sequence[Mapping[str, Any]], arrays: Mapping[str, Array]) -> list[dict[str, Value]]:
    """Return the inverse of `pack`."""

    def value(entry: Any) -> Any:
        if entry is None:
            return None
        if isinstance(entry, list):
            return [value(element) for element in entry]
        if isinstance(entry, dict):
            return np.array(entry["strings"], dtype=object).reshape(entry["shape"])
        return arrays[str(entry)]

    return [{name: value(entry) for name, entry in sample.items()} for sample in entries]


def from_bytes(data: bytes) -> Array:
    """Return bytes as an array of a message; `numpy.ndarray.tobytes` is the inverse."""
    return np.frombuffer(data, np.uint8)
