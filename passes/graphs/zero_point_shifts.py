"""Quantized values that were shifted by a constant together with their zero point.

    q′ = q + offset        with the zero point z′ = z + offset, so that (q′ − z′)·s = (q − z)·s

A pass that shifts a quantized value renames it, since its contents differ, and records the shift with the value, so
that the two can still be compared.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from passes.graphs import graphs

SHIFT = "onnx_bridge.shift"
"""The value property with the original name of a value and the offset that was added to it, as JSON."""


@dataclass(frozen=True)
class _Shift:
    value: str
    offset: int


def record_shift(value: ir.Value, before: str, offset: int) -> None:
    """Record that a value is another one plus an offset; successive shifts are added up."""
    earlier = shift_of(value)
    name, offset = (before, offset) if earlier is None else (earlier[0], earlier[1] + offset)
    value.metadata_props[SHIFT] = json.dumps({"value": name, "offset": offset})


def shift_of(value: ir.Value) -> tuple[str, int] | None:
    """The original name of a value and the offset added to it; None if it was not shifted."""
    found = graphs.recorded(value.metadata_props.get(SHIFT), _Shift)
    return None if found is None else (found.value, found.offset)


def shifted(array: np.ndarray, offset: int, dtype: np.dtype) -> np.ndarray:
    """Integers plus an offset, converted to a dtype that can hold them."""
    return (array.astype(np.int64) + offset).astype(dtype)


def unshifted(array: np.ndarray, offset: int) -> np.ndarray:
    """The 8-bit integers of which a value is the shifted one: of the other signedness, where there is an offset."""
    dtype = array.dtype if not offset else np.dtype(np.uint8 if offset < 0 else np.int8)
    return shifted(array, -offset, dtype)
