"""Rewrite bitwise operators as arithmetic and BitwiseAnd.

    BitwiseNot(x)      →  −1 − x
    BitwiseOr(x, y)    →  (x − (x & y)) + y
    BitwiseXor(x, y)   →  (x − (x & y)) + (y − (x & y))
    BitShift(x, n)     →  x · 2ⁿ, or x / 2ⁿ rounded down; 0 if n is at least the number of bits

The bits of ``x & y`` are set in both operands, so no difference borrows and no sum carries. The results stay in range,
signed or not, and unsigned integers may be computed as signed ones of at least their width and cast back.

Shifts are computed in uint64. A shift of 64-bit integers takes two steps, each by half the amount.

Skips: unknown dtypes; shifts of signed integers, which the standard does not define.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from passes.builders.operators import cast, scalar
from passes.rewriting.base import Exactness, Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import Match, NodeContext, NodeRewrite


@dataclass(frozen=True)
class _IntegerMatch(Match):
    dtype: ir.DataType


class _Bits(NodeRewrite[_IntegerMatch]):
    exactness = Exactness.BITWISE

    def match(self, node: ir.Node, context: NodeContext) -> _IntegerMatch | Skip | None:
        """Match integers of known dtype."""
        dtype = next(filter(None, map(context.scope.dtype, (*node.inputs, *node.outputs))), None)
        if dtype is None or not dtype.is_integer():
            return Skip("its integer dtype is unknown")
        return _IntegerMatch(node, dtype)


class BitwiseByArithmetic(_Bits):
    """Rewrite bitwise Or, Xor and Not as And, sums and differences."""

    name = "bitwise-by-arithmetic"
    operators = frozenset(("", f"Bitwise{name}") for name in ("Not", "Or", "Xor"))

    def rewrite(self, match: _IntegerMatch, edit: Edit) -> Sequence[ir.Value]:
        """The arithmetic in int32 or int64."""
        node, dtype = match.node, match.dtype
        number = ir.DataType.INT64 if dtype.bitwidth == 64 else ir.DataType.INT32
        x, *others = (cast(edit, value, number, dtype) for value in node.inputs if value is not None)
        if node.op_type == "BitwiseNot":
            return [cast(edit, edit.op("Sub", [scalar(edit, -1, number), x]), dtype, number)]
        (y,) = others
        both = edit.op("BitwiseAnd", [x, y])
        only = edit.op("Sub", [x, both])
        rest = edit.op("Sub", [y, both]) if node.op_type == "BitwiseXor" else y
        return [cast(edit, edit.op("Add", [only, rest]), dtype, number)]


class ShiftByArithmetic(_Bits):
    """Multiply or divide by powers of two instead of shifting."""

    name = "shift-by-arithmetic"
    operators = frozenset({("", "BitShift")})

    def match(self, node: ir.Node, context: NodeContext) -> _IntegerMatch | Skip | None:
        found = super().match(node, context)
        if isinstance(found, _IntegerMatch) and found.dtype.is_signed():
            return Skip("BitShift is defined for unsigned integers only")
        return found

    def rewrite(self, match: _IntegerMatch, edit: Edit) -> Sequence[ir.Value]:
        """The arithmetic in uint64, which overflows like a shift."""
        node, dtype = match.node, match.dtype
        bits, wide = dtype.bitwidth, ir.DataType.UINT64
        x, amount = node.inputs
        assert x is not None and amount is not None
        # double represents amounts up to the number of bits exactly, and larger ones stay larger
        count = edit.op("Cast", [amount], {"to": ir.DataType.DOUBLE.value})
        count = edit.op("Min", [count, scalar(edit, bits, ir.DataType.DOUBLE)])
        index = edit.op("Cast", [count], {"to": ir.DataType.INT64.value})
        amounts = range(bits + 1)
        steps = [amounts] if bits < 64 else [[each // 2 for each in amounts], [each - each // 2 for each in amounts]]
        y = cast(edit, x, wide, dtype)
        for step in steps:  # 2⁶⁴ is out of range for uint64, but is a product of two factors in range
            powers = edit.constant(np.array([2**each for each in step], np.uint64))
            operator = "Mul" if node.attributes.get_string("direction", "") == "LEFT" else "Div"
            y = edit.op(operator, [y, edit.op("Gather", [powers, index])])
        return [cast(edit, y, dtype, wide)]


RULES: tuple[NodeRewrite[Any], ...] = (BitwiseByArithmetic(), ShiftByArithmetic())
