"""Rewrite BitCast as Casts between integers of one width, and as arithmetic between floats and integers.

    float → bits    e = ⌊log₂|x|⌋ − least,  m = |x| / 2^(e + least − p),  bits = e·2ᵖ + m
    bits → float    e = bits / 2ᵖ,  m = bits mod 2ᵖ + 2ᵖ,  |x| = m·2^(e − 1 + least − p)

where p is the number of fraction bits, and ``least`` the exponent of the smallest normal number.

Subnormal numbers have that exponent and no leading one. The sign of a zero is that of 1 / x. All steps are exact.
Infinities and NaN have the largest exponent; every NaN becomes the positive quiet NaN.

16-bit numbers are computed in float32, which represents all of them. A runtime that flushes subnormal numbers to zero
does so here as well.

Skips: complex numbers; integers narrower than a byte; floats of at most a byte.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from passes.builders.small_dtypes import float_info, floor_power
from passes.rewriting.base import Exactness, Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import Match, NodeContext, NodeRewrite

_FLOATS = {ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.FLOAT, ir.DataType.DOUBLE}
_INTEGERS = {
    8: (ir.DataType.INT8, ir.DataType.UINT8, ir.DataType.BOOL),
    16: (ir.DataType.INT16, ir.DataType.UINT16),
    32: (ir.DataType.INT32, ir.DataType.UINT32),
    64: (ir.DataType.INT64, ir.DataType.UINT64),
}


@dataclass(frozen=True)
class _BitCastMatch(Match):
    source: ir.DataType
    target: ir.DataType


class BitCastByArithmetic(NodeRewrite[_BitCastMatch]):
    """Compute the number that the same bits represent in another dtype."""

    name = "bit-cast-by-arithmetic"
    exactness = Exactness.BITWISE
    operators = frozenset({("", "BitCast")})
    needs_dtype = (0,)

    def match(self, node: ir.Node, context: NodeContext) -> _BitCastMatch | Skip | None:
        source, target = context.dtype(node), ir.DataType(node.attributes.get_int("to", 0))
        known = {*_FLOATS, *(dtype for each in _INTEGERS.values() for dtype in each)}
        if source != target and not {source, target} <= known:
            return Skip(f"a BitCast from {source.name.lower()} to {target.name.lower()} is not supported")
        return _BitCastMatch(node, source, target)

    def rewrite(self, match: _BitCastMatch, edit: Edit) -> Sequence[ir.Value]:
        """Float to signed integer, to another integer, to float, as far as needed."""
        value, source, target = match.node.inputs[0], match.source, match.target
        assert value is not None
        if source == target:
            return [edit.op("Identity", [value])]
        signed = _INTEGERS[source.bitwidth][0]
        if source in _FLOATS:
            value, source = _bits_of(edit, value, source), signed
        if target in _FLOATS:
            value, source = _float_of(edit, edit.cast(value, signed), target), target
        if target == ir.DataType.BOOL:  # true if any bit is set
            return [edit.op("Not", [edit.op("Equal", [value, edit.scalar(0, source)])])]
        return [edit.cast(value, target)]


@dataclass(frozen=True)
class _Layout:
    """The bit layout of a float dtype, and the dtypes that its parts are computed in."""

    fraction: int
    least: int
    """The exponent of the smallest normal number: 1 − bias."""
    most: int
    """The exponent of the largest number."""
    number: ir.DataType
    whole: ir.DataType

    @classmethod
    def of(cls, dtype: ir.DataType) -> _Layout:
        """The layout of a float dtype."""
        info = float_info(dtype)
        large = dtype == ir.DataType.DOUBLE
        number, whole = (ir.DataType.DOUBLE, ir.DataType.INT64) if large else (ir.DataType.FLOAT, ir.DataType.INT32)
        return cls(int(info.nmant), int(info.minexp), int(info.maxexp) - 1, number, whole)

    @property
    def infinity(self) -> int:
        return (self.most - self.least + 2) << self.fraction


def _bits_of(edit: Edit, x: ir.Value, dtype: ir.DataType) -> ir.Value:
    """The bits of floats as signed integers of the same width."""
    layout = _Layout.of(dtype)
    number, whole = layout.number, layout.whole
    signed = _INTEGERS[dtype.bitwidth][0]
    infinite, nan = edit.op("IsInf", [x]), edit.op("IsNaN", [x])
    x = edit.cast(x, number)
    zero = edit.scalar(0, number)
    negative = edit.op("Less", [edit.op("Where", [edit.op("Equal", [x, zero]), edit.op("Reciprocal", [x]), x]), zero])
    size = edit.op("Where", [edit.op("Or", [infinite, nan]), edit.scalar(1, number), edit.op("Abs", [x])])
    power, count = floor_power(edit, size, layout.least, layout.most, number)
    scaled = edit.op("Mul", [edit.op("Div", [size, power]), edit.scalar(2.0**layout.fraction, number)])
    mantissa = edit.op("Cast", [scaled], {"to": whole.value})
    exponent = edit.op("Mul", [edit.cast(count, whole), edit.scalar(1 << layout.fraction, whole)])
    bits = edit.op("Add", [exponent, mantissa])
    bits = edit.op("Where", [infinite, edit.scalar(layout.infinity, whole), bits])
    top = edit.scalar(-(1 << (dtype.bitwidth - 1)), whole)
    bits = edit.op("Where", [negative, edit.op("Add", [bits, top]), bits])
    bits = edit.op("Where", [nan, edit.scalar(layout.infinity | 1 << (layout.fraction - 1), whole), bits])
    return edit.cast(bits, signed)


def _float_of(edit: Edit, bits: ir.Value, dtype: ir.DataType) -> ir.Value:
    """The floats whose bits are given as signed integers of the same width."""
    layout = _Layout.of(dtype)
    number, whole = layout.number, layout.whole
    bits = edit.cast(bits, whole)
    zero, one = edit.scalar(0, whole), edit.scalar(1 << layout.fraction, whole)
    positive = edit.op("Not", [edit.op("Less", [bits, zero])])
    top = edit.scalar(-(1 << (dtype.bitwidth - 1)), whole)
    bits = edit.op("Where", [positive, bits, edit.op("Sub", [bits, top])])
    exponent = edit.op("Div", [bits, one])
    fraction = edit.op("Sub", [bits, edit.op("Mul", [exponent, one])])
    subnormal = edit.op("Equal", [exponent, zero])
    mantissa = edit.op("Where", [subnormal, fraction, edit.op("Add", [fraction, one])])
    last = layout.most - layout.least + 2
    powers = [2.0 ** (layout.least - layout.fraction + max(each - 1, 0)) for each in range(last)] + [1.0]
    power = edit.op("Gather", [edit.constant(np.array(powers, number.numpy())), exponent])
    y = edit.cast(edit.op("Mul", [edit.op("Cast", [mantissa], {"to": number.value}), power]), dtype)
    infinite = edit.op("Equal", [fraction, zero])
    special = edit.op("Where", [infinite, edit.scalar(np.inf, dtype), edit.scalar(np.nan, dtype)])
    y = edit.op("Where", [edit.op("Equal", [exponent, edit.scalar(last, whole)]), special, y])
    return edit.op(
        "Where", [positive, y, edit.op("Neg", [y])]
    )  # applied last: ONNX Runtime drops the sign of a zero otherwise


RULES: tuple[NodeRewrite[Any], ...] = (BitCastByArithmetic(),)
