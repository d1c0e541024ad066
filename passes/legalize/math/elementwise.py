"""Decompose elementwise operators whose forms the runtime misinterprets.

    Clip<min>(x)            →  Max(x, min)       likewise max; both: Min(Max(x, min), max), where max takes precedence
    Mod(a, b), integers     →  r = a − (a / b) · b, with truncating division
    Mod(a, b), floats       →  r = Mod<fmod=1>(a, b)
      without fmod             r + b if r ≠ 0 and the signs of r and b differ, else r

Integer division and multiplication are exact; a remainder computed in floats loses the low bits of int64.

Skips: Clip with a dynamic shape before opset 8, which has no broadcasting for Max and Min.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from passes.builders.arithmetic import Arithmetic, wide
from passes.builders.operands import UNKNOWN_SHAPE, given
from passes.rewriting.base import Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import Match, NodeContext, NodeRewrite


@dataclass(frozen=True)
class _TypedMatch(Match):
    dtype: ir.DataType


class DecomposeClip(NodeRewrite[_TypedMatch]):
    """Decompose Clip into Max and Min."""

    name = "decompose-clip"
    operators = frozenset({("", "Clip")})
    needs_dtype = (0,)

    def match(self, node: ir.Node, context: NodeContext) -> _TypedMatch | Skip | None:
        return _TypedMatch(node, context.dtype(node))

    def rewrite(self, match: _TypedMatch, edit: Edit) -> Sequence[ir.Value | None] | Skip:
        """Limits are inputs, or attributes before opset 11."""
        node = match.node
        a, y, shape = Arithmetic(edit, match.dtype), node.inputs[0], edit.scope.static_shape(node.inputs[0])
        assert y is not None
        for index, (name, operator) in enumerate((("min", "Max"), ("max", "Min")), start=1):
            limit: ir.Value | float | None = given(node, index)
            if isinstance(limit, ir.Value) and shape == () and edit.scope.shape(limit):
                limit = a.reshape(limit, [])  # a limit of shape (1,) must not broadcast the result
            if limit is None and name in node.attributes:
                limit = node.attributes[name].as_float()
            if isinstance(limit, float) and edit.scope.opset() < 8:  # the first with broadcasting
                if shape is None:
                    return Skip(UNKNOWN_SHAPE)
                limit = a.value(np.full(shape, limit))
            if limit is not None:
                y = a(operator, y, limit)
        return [y]


class DecomposeMod(NodeRewrite[_TypedMatch]):
    """Decompose Mod into divisions of integers or truncated remainders of floats."""

    name = "decompose-mod"
    operators = frozenset({("", "Mod")})
    needs_dtype = (0,)

    def match(self, node: ir.Node, context: NodeContext) -> _TypedMatch | Skip | None:
        """Match all but truncated remainders of floats."""
        dtype = context.dtype(node)
        truncates = node.attributes.get_int("fmod", 0)
        return None if dtype.is_floating_point() and truncates else _TypedMatch(node, dtype)

    def rewrite(self, match: _TypedMatch, edit: Edit) -> Sequence[ir.Value | None]:
        """The truncated remainder, moved to the sign of the divisor."""
        node, dtype = match.node, match.dtype
        a = Arithmetic(edit, dtype if dtype.is_floating_point() else wide(dtype))
        x, y = (a.cast(value, dtype) for value in node.inputs if value is not None)
        rest = a("Mod", x, y, fmod=1) if dtype.is_floating_point() else a("Sub", x, a("Mul", a("Div", x, y), y))
        if dtype.is_signed() and not node.attributes.get_int("fmod", 0):
            signs_differ = a("Xor", a("Less", rest, 0), a("Less", y, 0))
            must_move = a("And", signs_differ, a("Not", a("Equal", rest, 0)))
            rest = a("Where", must_move, a("Add", rest, y), rest)
        return [a.cast(rest, a.dtype, dtype)]


RULES: tuple[NodeRewrite[Any], ...] = (DecomposeClip(), DecomposeMod())
