"""Decompose cumulative sums and products into few sums and products of shifted tensors.

    y = x;   y[k:] = y[k:] ∘ y[:-k]   for k = 1, 2, 4, … below the length        (Hillis and Steele's scan; ∘ is + or ×)

Each round doubles how many elements each result combines, so that a length of 1024 takes ten rounds. ``reverse`` shifts
in the other direction; ``exclusive`` first shifts by one and inserts the neutral element.

Skips: an axis that is not constant; dynamic shapes.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from passes.builders.arithmetic import Arithmetic, wide
from passes.rewriting.base import Exactness
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import Replacement, rewrite

_STEPS = {"CumSum": ("Add", 0), "CumProd": ("Mul", 1)}
"""The binary operator, and its neutral element."""


@rewrite("CumSum", "CumProd", exactness=Exactness.ROUNDING, needs_shape=(0,), needs_dtype=(0,))
def decompose_cumulative(node: ir.Node, edit: Edit) -> Replacement:
    """Decompose CumSum and CumProd into sums and products of shifted tensors."""
    shape, dtype = edit.shape(node), edit.dtype(node)
    given_axis = edit.integers(node, 1, "axis")
    if not given_axis or not shape or 0 in shape:
        return None
    axis = given_axis[0] % len(shape)
    length = shape[axis]
    join, neutral = _STEPS[node.op_type]
    reverse = bool(node.attributes.get_int("reverse", 0))
    a = Arithmetic(edit, wide(dtype))
    y = a.cast(edit.input(node))

    def joined(near: ir.Value | None, far: ir.Value) -> ir.Value:
        """Concatenate in the direction of accumulation."""
        parts = [part for part in (near, far) if part is not None]
        return a.concat(parts[::-1] if reverse else parts, axis)

    def part(x: ir.Value, first: int, last: int) -> ir.Value:
        """Take the elements from ``first`` to ``last`` in the direction of accumulation."""
        start, stop = (length - last, length - first) if reverse else (first, last)
        return a.slice(x, axis, start, stop)

    if node.attributes.get_int("exclusive", 0):
        border = a.value(np.full([*shape[:axis], 1, *shape[axis + 1 :]], neutral))
        y = joined(border, part(y, 0, length - 1)) if length > 1 else border
    shift = 1
    while shift < length:
        y = joined(part(y, 0, shift), a(join, part(y, shift, length), part(y, 0, length - shift)))
        shift *= 2
    return a.cast(y, dtype)
