"""Rounding to floats of fewer bits, and to floats that share an exponent within a block, as arithmetic on float32.

    plain floats    round(x / u)·u           u = 2^(⌊log₂|x|⌋ − m), m bits of mantissa
    block floats    round(x / u)·u           u = 2^(e − (m − 1)), e = ⌊log₂ max|x|⌋ over the block
    their primes    round(x / u)·u           likewise, but up to 2^d − 1 less for sub-blocks whose numbers are smaller
    MX              s·f(x / s)               s = 2^(e − e_max), f rounding to a small float, or to 1/64

Powers of two are found by comparison (`passes.build.grids.floor_power`), so that every step is exact but for the one
that rounds. The definitions are those of the kernels that come with AMD Quark (custom operators of its ONNX part).
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from passes.build.arithmetic import Arithmetic
from passes.build.grids import floor_power, round_away
from passes.core.edit import Edit

_NUMBER = ir.DataType.FLOAT
_LOW, _HIGH = -126, 127
"""The exponents of normal numbers of float32."""


class Rounding(enum.IntEnum):
    """What becomes of halves, by the numbers that the operators' attributes have for it."""

    AWAY = 0
    UP = 1
    EVEN = 2


@dataclass(frozen=True)
class SmallFloat:
    """A float of few bits.

    Attributes:
        low: the exponent of its smallest normal number.
        high: that of its largest number.
        mantissa: bits after the leading one.
        largest: its largest number.
    """

    low: int
    high: int
    mantissa: int
    largest: float


BFLOAT16 = SmallFloat(-126, 127, 7, float.fromhex("0x1.fep127"))
FLOAT16 = SmallFloat(-14, 15, 10, 65504.0)
ELEMENTS = {
    "fp8_e5m2": SmallFloat(-14, 15, 2, 57344.0),
    "fp8_e4m3": SmallFloat(-6, 8, 3, 448.0),
    "fp6_e3m2": SmallFloat(-2, 4, 2, 28.0),
    "fp6_e2m3": SmallFloat(0, 2, 3, 7.5),
    "fp4_e2m1": SmallFloat(0, 2, 1, 6.0),
}
"""The floats that MX blocks are made of."""
_IMPLICIT = 64.0
"""MX's int8 counts in units of 1/64."""


def round_to_float(edit: Edit, x: ir.Value, kind: SmallFloat) -> ir.Value:
    """float32 numbers rounded to a smaller float, half to even; what is too large becomes its largest number."""
    a = Arithmetic(edit, _NUMBER)
    x = a("Min", a("Max", x, -kind.largest), kind.largest)
    power, _ = floor_power(edit, a("Abs", x), kind.low, kind.high)
    unit = a("Mul", power, 2.0**-kind.mantissa)
    rounded = a("Mul", a("Round", a("Div", x, unit)), unit)
    return a("Min", a("Max", rounded, -kind.largest), kind.largest)


def round_halves(edit: Edit, x: ir.Value, mode: Rounding) -> ir.Value:
    """The nearest integers of float32 numbers."""
    a = Arithmetic(edit, _NUMBER)
    if mode is Rounding.EVEN:
        return a("Round", x)
    if mode is Rounding.AWAY:
        return round_away(edit, x, _NUMBER)
    whole = a("Floor", x)
    return a("Where", a("Less", a("Sub", x, whole), 0.5), whole, a("Add", whole, 1.0))


def in_blocks(
    edit: Edit, x: ir.Value, dims: tuple[int, ...], axis: int, size: int, compute: Callable[[ir.Value, int], ir.Value]
) -> ir.Value:
    """Apply ``compute`` to blocks along an axis; the last one is filled up with zeros.

    Args:
        edit: where to build it.
        x: float32.
        dims: its shape.
        axis: from 0 on.
        size: of a block.
        compute: takes x with the axis taken apart in two, and the index of the inner one; keeps that shape.
    """
    a = Arithmetic(edit, _NUMBER)
    length = dims[axis]
    count = -(-length // size)
    if fill := count * size - length:
        pads = [0] * (2 * len(dims))
        pads[len(dims) + axis] = fill
        x = a("Pad", x, a.index(pads), 0.0)
    y = compute(a.reshape(x, [*dims[:axis], count, size, *dims[axis + 1 :]]), axis + 1)
    y = a.reshape(y, [*dims[:axis], count * size, *dims[axis + 1 :]])
    return a.slice(y, axis, 0, length) if fill else y


def round_block(edit: Edit, x: ir.Value, axis: int, *, bits: int, mode: Rounding, widen: bool = False) -> ir.Value:
    """Block floats: one exponent for all numbers along an axis, of 8 bits.

    Args:
        edit: where to build it.
        x: float32; finite numbers.
        axis: along which a block lies.
        bits: of a number with the exponent: 16 has 7 of mantissa.
        mode: of rounding.
        widen: the next larger exponent is taken where a number would round beyond 8 bits of integer, instead of
            clamping.
    """
    a = Arithmetic(edit, _NUMBER)
    mantissa = bits - 9
    power, _ = floor_power(edit, a.reduce("Max", a("Abs", x), [axis]), _LOW, _HIGH)
    unit = a("Mul", power, 2.0 ** (1 - mantissa))
    if widen:
        scaled = round_halves(edit, a("Div", x, unit), mode)
        most, least = a.reduce("Max", scaled, [axis]), a.reduce("Min", scaled, [axis])
        over = a("Or", a("Not", a("Less", most, 128.0)), a("Less", least, -128.0))
        unit = a("Where", over, a("Mul", unit, 2.0), unit)
        return a("Mul", round_halves(edit, a("Div", x, unit), mode), unit)
    y = a("Mul", round_halves(edit, a("Div", x, unit), mode), unit)
    most = a("Sub", a("Mul", power, 2.0), unit)
    return a("Max", a("Min", y, most), a("Neg", most))


def round_prime_block(
    edit: Edit, x: ir.Value, shape: tuple[int, ...], axis: int, *, bits: int, mode: Rounding, part: int, shift: int
) -> ir.Value:
    """Block floats whose sub-blocks of smaller numbers have a smaller exponent.

    Args:
        edit: where to build it.
        x: float32; finite numbers.
        shape: of x.
        axis: along which a block lies.
        bits: of a number with the exponent.
        mode: of rounding.
        part: how many numbers a sub-block has.
        shift: bits of the difference between the exponents of a sub-block and its block.
    """
    a = Arithmetic(edit, _NUMBER)
    mantissa = bits - 9
    parts = [*shape[:axis], shape[axis] // part, part, *shape[axis + 1 :]]
    split = a.reshape(x, parts)
    size = a("Abs", split)
    tiny = a("Less", size, 2.0**_LOW)  # subnormal numbers count as zero
    split, size = a("Where", tiny, 0.0, split), a("Where", tiny, 0.0, size)
    largest = a.reduce("Max", size, [axis + 1])
    whole, _ = floor_power(edit, a.reduce("Max", largest, [axis]), _LOW, _HIGH)
    own, _ = floor_power(edit, largest, _LOW, _HIGH)
    power = a("Max", own, a("Mul", whole, 2.0 ** -(2**shift - 1)))
    unit = a("Mul", power, 2.0 ** (1 - mantissa))
    most = 2.0**mantissa - 1
    y = a("Max", a("Min", round_halves(edit, a("Div", split, unit), mode), most), -most)
    return a.reshape(a("Mul", y, unit), shape)


def round_mx(edit: Edit, x: ir.Value, axis: int, *, element: str, mode: Rounding) -> ir.Value:
    """MX blocks: a scale that is a power of two, and elements that are small floats, or int8.

    Args:
        edit: where to build it.
        x: float32; finite numbers.
        axis: along which a block lies.
        element: the name of a small float in `ELEMENTS`, or int8.
        mode: of rounding; for int8 only, others round half to even.
    """
    a = Arithmetic(edit, _NUMBER)
    power, _ = floor_power(edit, a.reduce("Max", a("Abs", x), [axis]), _LOW, _HIGH)
    if element == "int8":
        scaled = round_halves(edit, a("Mul", a("Div", x, power), _IMPLICIT), mode)
        return a("Mul", a("Div", a("Max", a("Min", scaled, 127.0), -128.0), _IMPLICIT), power)
    kind = ELEMENTS[element]
    scale = a("Mul", power, 2.0**-kind.high)
    return a("Mul", round_to_float(edit, a("Div", x, scale), kind), scale)


def finite_or_itself(edit: Edit, x: ir.Value, compute: Callable[[ir.Value], ir.Value]) -> ir.Value:
    """Apply ``compute`` to float32 numbers, with zeros for infinities and NaN, which stay themselves."""
    a = Arithmetic(edit, _NUMBER)
    finite = a("LessOrEqual" if edit.scope.opset() >= 12 else "Less", a("Abs", x), float(np.finfo(np.float32).max))
    return a("Where", finite, compute(a("Where", finite, x, 0.0)), x)
