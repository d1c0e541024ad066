"""Decompose cumulative sums and products into few sums and products of shifted tensors.

    y = x;   y[k:] = y[k:] ∘ y[:-k]   for k = 1, 2, 4, … below the length        (Hillis and Steele's scan; ∘ is + or ×)

Each round doubles how many elements each result combines, so that a length of 1024 takes ten rounds. ``reverse`` shifts
in the other direction; ``exclusive`` first shifts by one and inserts the neutral element.

Skips: an axis that is not constant; dynamic shapes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from passes.builders.arithmetic import Arithmetic, wide
from passes.builders.operands import constant_integer, not_constant
from passes.rewriting.base import Exactness, Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import Match, NodeContext, NodeRewrite

_STEPS = {"CumSum": ("Add", 0), "CumProd": ("Mul", 1)}
"""The binary operator, and its neutral element."""


@dataclass(frozen=True)
class _Cumulative(Match):
    shape: tuple[int, ...]
    dtype: ir.DataType
    axis: int


class DecomposeCumulative(NodeRewrite[_Cumulative]):
    """Decompose CumSum and CumProd into sums and products of shifted tensors."""

    name = "decompose-cumulative"
    exactness = Exactness.ROUNDING
    operators = frozenset(("", name) for name in _STEPS)
    needs_shape = (0,)
    needs_dtype = (0,)

    def match(self, node: ir.Node, context: NodeContext) -> _Cumulative | Skip | None:
        """Match a known length and a constant axis."""
        shape, axis = context.shape(node), node.inputs[1]
        assert axis is not None
        along = constant_integer(axis, context.scope)
        if along is None:
            return Skip(not_constant(axis, "axis"))
        if not shape or 0 in shape:
            return None
        return _Cumulative(node, shape, context.dtype(node), along % len(shape))

    def rewrite(self, match: _Cumulative, edit: Edit) -> Sequence[ir.Value | None]:
        """A shift and a binary operator for each bit of the length."""
        node, axis, length = match.node, match.axis, match.shape[match.axis]
        join, neutral = _STEPS[node.op_type]
        reverse = bool(node.attributes.get_int("reverse", 0))
        a = Arithmetic(edit, wide(match.dtype))
        assert node.inputs[0] is not None
        y = a.cast(node.inputs[0], match.dtype)

        def joined(near: ir.Value | None, far: ir.Value) -> ir.Value:
            """Concatenate in the direction of accumulation."""
            parts = [part for part in (near, far) if part is not None]
            return a.concat(parts[::-1] if reverse else parts, axis)

        def part(x: ir.Value, first: int, last: int) -> ir.Value:
            """The elements from ``first`` to ``last`` in the direction of accumulation."""
            start, stop = (length - last, length - first) if reverse else (first, last)
            return a.slice(x, axis, start, stop)

        if node.attributes.get_int("exclusive", 0):
            border = a.value(np.full([1 if each == axis else size for each, size in enumerate(match.shape)], neutral))
            y = joined(border, part(y, 0, length - 1)) if length > 1 else border
        shift = 1
        while shift < length:
            y = joined(part(y, 0, shift), a(join, part(y, shift, length), part(y, 0, length - shift)))
            shift *= 2
        return [a.cast(y, a.dtype, match.dtype)]


RULES: tuple[NodeRewrite[_Cumulative], ...] = (DecomposeCumulative(),)
