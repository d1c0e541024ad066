"""Integers that a runtime computes as signed, or as floats that do not hold them.

    Abs(x)     →  x                                           for unsigned integers
    Pow(x, y)  →  Cast<T>(Pow(Cast<double>(x), Cast<double>(y)))    for integers x of type T

ONNX Runtime computes powers of integers in float64, too. Float32 holds integers up to 2²⁴ only.

Skips: unknown dtypes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx_ir as ir

from passes.rewriting.base import Exactness
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import Match, NodeContext, NodeRewrite


class UnsignedAbs(NodeRewrite[Match]):
    """Remove Abs of unsigned integers."""

    name = "unsigned-abs"
    exactness = Exactness.BITWISE
    operators = frozenset({("", "Abs")})
    needs_dtype = (0,)

    def match(self, node: ir.Node, context: NodeContext) -> Match | None:
        dtype = context.dtype(node)
        return Match(node) if dtype.is_integer() and not dtype.is_signed() else None

    def rewrite(self, match: Match, edit: Edit) -> Sequence[ir.Value]:
        """An Identity of the input."""
        return [edit.op("Identity", [match.node.inputs[0]])]


class IntegerPower(NodeRewrite[Match]):
    """Compute powers of integers in float64."""

    name = "integer-power"
    exactness = Exactness.BITWISE
    operators = frozenset({("", "Pow")})
    needs_dtype = (0, 1)

    def match(self, node: ir.Node, context: NodeContext) -> Match | None:
        return Match(node) if context.dtype(node).is_integer() else None

    def rewrite(self, match: Match, edit: Edit) -> Sequence[ir.Value]:
        """Casts around the operator."""
        x, y = match.node.inputs
        wide = [edit.op("Cast", [value], {"to": int(ir.DataType.DOUBLE)}) for value in (x, y)]
        dtype = edit.scope.dtype(x)
        assert dtype is not None
        return [edit.op("Cast", [edit.op("Pow", wide)], {"to": int(dtype)})]


RULES: tuple[NodeRewrite[Any], ...] = (UnsignedAbs(), IntegerPower())
