"""Write cumulative sums and products as few sums and products of shifted tensors.

    y = x;   y[k:] = y[k:] ∘ y[:-k]   for k = 1, 2, 4, … below the length        (Hillis and Steele's scan; ∘ is + or ×)

Each round doubles how many elements have gone into each, so that a length of 1024 takes ten. ``reverse`` shifts the
other way; ``exclusive`` shifts by one first, the neutral element coming in.

Skips: an axis that is not constant; shapes that are not static.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from passes.build.arithmetic import Arithmetic, wide
from passes.build.operands import UNKNOWN_DTYPE, UNKNOWN_SHAPE, not_constant, scalar, sizes_of
from passes.core.base import Exactness, Skip
from passes.core.edit import Edit
from passes.core.matching import is_plain
from passes.core.rewrite import Match, NodeContext, NodeRewrite

_STEPS = {"CumSum": ("Add", 0), "CumProd": ("Mul", 1)}
"""What joins two elements, and its neutral element."""


@dataclass(frozen=True)
class _Found(Match):
    shape: tuple[int, ...]
    dtype: ir.DataType
    axis: int


@dataclass(frozen=True)
class DecomposeCumulative(NodeRewrite[_Found]):
    """Write CumSum and CumProd as sums and products of shifted tensors."""

    name = "decompose-cumulative"
    exactness = Exactness.ROUNDING
    operators = frozenset(("", name) for name in _STEPS)

    def match(self, node: ir.Node, context: NodeContext) -> _Found | Skip | None:
        """Whether the length and the axis are known."""
        scope = context.scope
        if not is_plain(node, scope):
            return None
        x, axis = node.inputs
        assert axis is not None
        shape, dtype = sizes_of(x, scope), scope.dtype(x)
        along = scalar(axis, scope)
        if shape is None:
            return Skip(UNKNOWN_SHAPE)
        if dtype is None:
            return Skip(UNKNOWN_DTYPE)
        if along is None:
            return Skip(not_constant(axis, "axis"))
        return _Found(node, shape, dtype, along % len(shape)) if shape and 0 not in shape else None

    def rewrite(self, match: _Found, edit: Edit) -> Sequence[ir.Value | None]:
        """A shift and a join for each bit of the length."""
        node, axis, length = match.node, match.axis, match.shape[match.axis]
        join, neutral = _STEPS[node.op_type]
        reverse = bool(node.attributes.get_int("reverse", 0))
        a = Arithmetic(edit, wide(match.dtype))
        assert node.inputs[0] is not None
        y = a.cast(node.inputs[0], match.dtype)

        def joined(near: ir.Value | None, far: ir.Value) -> ir.Value:
            """What is reached first along the axis, and what is reached after it."""
            parts = [part for part in (near, far) if part is not None]
            return a.concat(parts[::-1] if reverse else parts, axis)

        def part(x: ir.Value, first: int, last: int) -> ir.Value:
            """Elements by how early they are reached."""
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


RULES: tuple[NodeRewrite[_Found], ...] = (DecomposeCumulative(),)
