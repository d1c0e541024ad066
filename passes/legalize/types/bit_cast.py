"""Rewrite BitCast as Casts between integers of one width, and as arithmetic between floats and integers.

    float → bits    e = ⌊log₂|x|⌋ − least,  m = |x| / 2^(e + least − p),  bits = e·2ᵖ + m
    bits → float    e = bits / 2ᵖ,  m = bits mod 2ᵖ + 2ᵖ,  |x| = m·2^(e − 1 + least − p)

where p is the number of fraction bits, and ``least`` the exponent of the smallest normal number: 1 − bias.

Subnormal numbers have that exponent and no leading one. The sign of a zero is that of 1 / x. All steps are exact.
Infinities and NaN have the largest exponent; every NaN becomes the positive quiet NaN.

16-bit numbers are computed in float32, which represents all of them. A runtime that flushes subnormal numbers to zero
does so here as well.

Skips: complex numbers; integers narrower than a byte; floats of at most a byte.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from passes.builders.arithmetic import Arithmetic
from passes.builders.small_dtypes import float_info, floor_power
from passes.rewriting.base import Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import Replacement, rewrite

_FLOATS = {ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.FLOAT, ir.DataType.DOUBLE}
_INTEGERS = {
    8: (ir.DataType.INT8, ir.DataType.UINT8, ir.DataType.BOOL),
    16: (ir.DataType.INT16, ir.DataType.UINT16),
    32: (ir.DataType.INT32, ir.DataType.UINT32),
    64: (ir.DataType.INT64, ir.DataType.UINT64),
}


@rewrite("BitCast", needs_dtype=(0,))
def bit_cast_by_arithmetic(node: ir.Node, edit: Edit) -> Replacement:
    """Compute the number that the same bits represent in another dtype."""
    value, source, target = edit.input(node), edit.dtype(node), ir.DataType(node.attributes.get_int("to", 0))
    if source == target:
        return edit.op("Identity", [value])
    if not {source, target} <= {*_FLOATS, *(dtype for dtypes in _INTEGERS.values() for dtype in dtypes)}:
        return Skip(f"a BitCast from {source.name.lower()} to {target.name.lower()} is not supported")
    signed = _INTEGERS[source.bitwidth][0]
    if source in _FLOATS:
        value, source = _bits_of(edit, value, source), signed
    if target in _FLOATS:
        return _float_of(edit, edit.cast(value, signed), target)
    if target == ir.DataType.BOOL:  # true if any bit is set
        return edit.op("Not", [edit.op("Equal", [value, edit.scalar(0, source)])])
    return edit.cast(value, target)


@dataclass(frozen=True)
class _Layout:
    """The bit layout of a float dtype, as above, and the dtypes that floats and their bits are computed in."""

    fraction: int
    least: int
    most: int
    number: ir.DataType
    whole: ir.DataType

    @classmethod
    def of(cls, dtype: ir.DataType) -> _Layout:
        """Return the layout of a float dtype."""
        info = float_info(dtype)
        is_large = dtype == ir.DataType.DOUBLE
        number, whole = (ir.DataType.DOUBLE, ir.DataType.INT64) if is_large else (ir.DataType.FLOAT, ir.DataType.INT32)
        return cls(int(info.nmant), int(info.minexp), int(info.maxexp) - 1, number, whole)

    @property
    def infinity(self) -> int:
        return (self.most - self.least + 2) << self.fraction


def _bits_of(edit: Edit, x: ir.Value, dtype: ir.DataType) -> ir.Value:
    """Return the bits of floats as signed integers of the same width."""
    layout = _Layout.of(dtype)
    a, whole = Arithmetic(edit, layout.number), Arithmetic(edit, layout.whole)
    is_infinite, is_nan = a("IsInf", x), a("IsNaN", x)
    x = a.cast(x)
    is_negative = a("Less", a("Where", a("Equal", x, 0), a("Reciprocal", x), x), 0)
    size = a("Where", a("Or", is_infinite, is_nan), 1, a("Abs", x))
    power, count = floor_power(edit, size, layout.least, layout.most, layout.number)
    mantissa = whole.cast(a("Mul", a("Div", size, power), 2.0**layout.fraction))
    bits = whole("Add", whole("Mul", whole.cast(count), 1 << layout.fraction), mantissa)
    bits = whole("Where", is_infinite, layout.infinity, bits)
    bits = whole("Where", is_negative, whole("Add", bits, -(1 << (dtype.bitwidth - 1))), bits)
    bits = whole("Where", is_nan, layout.infinity | 1 << (layout.fraction - 1), bits)
    return edit.cast(bits, _INTEGERS[dtype.bitwidth][0])


def _float_of(edit: Edit, bits: ir.Value, dtype: ir.DataType) -> ir.Value:
    """Return the floats whose bits are given as signed integers of the same width."""
    layout = _Layout.of(dtype)
    a, whole = Arithmetic(edit, layout.number), Arithmetic(edit, layout.whole)
    bits, one = whole.cast(bits), whole.value(1 << layout.fraction)
    is_positive = whole("Not", whole("Less", bits, 0))
    bits = whole("Where", is_positive, bits, whole("Sub", bits, -(1 << (dtype.bitwidth - 1))))
    exponent = whole("Div", bits, one)
    fraction = whole("Sub", bits, whole("Mul", exponent, one))
    mantissa = whole("Where", whole("Equal", exponent, 0), fraction, whole("Add", fraction, one))
    last = layout.most - layout.least + 2
    powers = [2.0 ** (layout.least - layout.fraction + max(index - 1, 0)) for index in range(last)] + [1.0]
    y = a.cast(a("Mul", a.cast(mantissa), a("Gather", np.array(powers), exponent)), dtype)
    special = a("Where", whole("Equal", fraction, 0), edit.scalar(np.inf, dtype), edit.scalar(np.nan, dtype))
    y = a("Where", whole("Equal", exponent, last), special, y)
    return a("Where", is_positive, y, a("Neg", y))  # last: ONNX Runtime drops the sign of a zero otherwise
