"""Elementwise operators whose older or rarer forms the runtime reads otherwise.

    Clip<min>(x)            →  Max(x, min)       and so on; both: Min(Max(x, min), max), whose max wins where min > max
    Mod(a, b), integers     →  r = a − (a / b) · b, the division cutting off
    Mod(a, b), floats       →  r = Mod<fmod=1>(a, b)
      without fmod             r + b where r ≠ 0 and the signs of r and b differ, else r

Dividing and multiplying are exact in integers, where a remainder by way of floats loses the last bits of int64.

Skips: Clip before opset 8, where nothing is broadcast, if the shape is not static.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from passes.build.arithmetic import Arithmetic, wide
from passes.build.operands import UNKNOWN_DTYPE, UNKNOWN_SHAPE, given, sizes_of
from passes.core.base import Skip
from passes.core.edit import Edit
from passes.core.matching import is_plain
from passes.core.rewrite import Match, NodeContext, NodeRewrite


@dataclass(frozen=True)
class _Found(Match):
    dtype: ir.DataType


def _typed(node: ir.Node, context: NodeContext) -> _Found | Skip | None:
    if not is_plain(node, context.scope):
        return None
    dtype = context.scope.dtype(node.inputs[0])
    return Skip(UNKNOWN_DTYPE) if dtype is None else _Found(node, dtype)


@dataclass(frozen=True)
class DecomposeClip(NodeRewrite[_Found]):
    """Write Clip as Max and Min."""

    name = "decompose-clip"
    operators = frozenset({("", "Clip")})

    def match(self, node: ir.Node, context: NodeContext) -> _Found | Skip | None:
        """Any node of known dtype."""
        return _typed(node, context)

    def rewrite(self, match: _Found, edit: Edit) -> Sequence[ir.Value | None] | Skip:
        """Limits are inputs, or attributes before opset 11."""
        node = match.node
        a, y, shape = Arithmetic(edit, match.dtype), node.inputs[0], sizes_of(node.inputs[0], edit.scope)
        assert y is not None
        for index, (name, operator) in enumerate((("min", "Max"), ("max", "Min")), start=1):
            limit: ir.Value | float | None = given(node, index)
            if isinstance(limit, ir.Value) and shape == () and edit.scope.shape(limit):
                limit = a.reshape(limit, [])  # a limit of one element must not lend the result its shape
            if limit is None and name in node.attributes:
                limit = node.attributes[name].as_float()
            if isinstance(limit, float) and edit.scope.opset() < 8:  # Max and Min broadcast since
                if shape is None:
                    return Skip(UNKNOWN_SHAPE)
                limit = a.value(np.full(shape, limit))
            if limit is not None:
                y = a(operator, y, limit)
        return [y]


@dataclass(frozen=True)
class DecomposeMod(NodeRewrite[_Found]):
    """Write Mod by division in integers, and by the C remainder in floats."""

    name = "decompose-mod"
    operators = frozenset({("", "Mod")})

    def match(self, node: ir.Node, context: NodeContext) -> _Found | Skip | None:
        """All but the C remainder of floats."""
        found = _typed(node, context)
        truncates = node.attributes.get_int("fmod", 0)
        return None if isinstance(found, _Found) and found.dtype.is_floating_point() and truncates else found

    def rewrite(self, match: _Found, edit: Edit) -> Sequence[ir.Value | None]:
        """The remainder takes the sign of the dividend, and is then moved to that of the divisor."""
        node, dtype = match.node, match.dtype
        a = Arithmetic(edit, dtype if dtype.is_floating_point() else wide(dtype))
        x, y = (a.cast(value, dtype) for value in node.inputs if value is not None)
        rest = a("Mod", x, y, fmod=1) if dtype.is_floating_point() else a("Sub", x, a("Mul", a("Div", x, y), y))
        if dtype.is_signed() and not node.attributes.get_int("fmod", 0):
            apart = a("Xor", a("Less", rest, 0), a("Less", y, 0))
            moved = a("And", apart, a("Not", a("Equal", rest, 0)))
            rest = a("Where", moved, a("Add", rest, y), rest)
        return [a.cast(rest, a.dtype, dtype)]


RULES: tuple[NodeRewrite[Any], ...] = (DecomposeClip(), DecomposeMod())
