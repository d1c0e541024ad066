"""Integers that stand for what those of another name stood for, but are more or less by a constant.

    q′ = q + offset        with the zero point z′ = z + offset, so that (q′ − z′)·s = (q − z)·s

A pass that shifts a quantized value gives it another name, since it means something else, and records the relation with
the value, so that the two can still be compared.
"""

from __future__ import annotations

import json

import numpy as np
import onnx_ir as ir

SHIFT = "onnx_bridge.shift"
"""The value property with the name that a value had, and what was added to it, as JSON."""


def record(value: ir.Value, before: str, offset: int) -> None:
    """Write down that a value is what another was, plus an offset; shifts of shifts add up."""
    earlier = relation(value)
    name, offset = (before, offset) if earlier is None else (earlier[0], earlier[1] + offset)
    value.metadata_props[SHIFT] = json.dumps({"value": name, "offset": offset})


def relation(value: ir.Value) -> tuple[str, int] | None:
    """The name of the value that this one was, and what was added to it; None where nothing was."""
    text = value.metadata_props.get(SHIFT)
    if text is None:
        return None
    found = json.loads(text)
    return str(found["value"]), int(found["offset"])


def shifted(array: np.ndarray, offset: int, dtype: np.dtype) -> np.ndarray:
    """Integers plus an offset, in another dtype that holds them."""
    return (array.astype(np.int64) + offset).astype(dtype)
