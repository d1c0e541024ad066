"""Rounding of float32 numbers to narrower floats and to block floats, as float32 arithmetic.

    narrow floats   round(x / u)·u           u = 2^(⌊log₂|x|⌋ − m), m bits of mantissa
    block floats    round(x / u)·u           u = 2^(e − (m − 1)), e = ⌊log₂ max|x|⌋ over the block
    BFP prime       round(x / u)·u           as block floats; e is up to 2^d − 1 less for sub-blocks of small numbers
    MX              s·f(x / s)               s = 2^(e − e_max), f rounds to a narrow float, or to 1/64

Powers of two are found by comparison (`passes.builders.small_dtypes.floor_power`), so that every step except the
rounding is exact. The formats are defined by the custom ONNX operators of AMD Quark.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from passes.builders.arithmetic import Arithmetic
from passes.builders.small_dtypes import floor_power, round_away
from passes.rewriting.edit import Edit

_NUMBER = ir.DataType.FLOAT
_LOW, _HIGH = -126, 127
"""The exponents of normal float32 numbers."""


class Rounding(enum.IntEnum):
    """The ways to round halves, with the values that the operators' attributes use."""

    AWAY = 0
    UP = 1
    EVEN = 2


@dataclass(frozen=True)
class NarrowFloat:
    """A narrow float dtype.

    Attributes:
        low: exponent of the smallest normal number.
        high: exponent of the largest number.
        mantissa: number of explicit bits.
        largest: the largest finite number.
    """

    low: int
    high: int
    mantissa: int
    largest: float


BFLOAT16 = NarrowFloat(-126, 127, 7, float.fromhex("0x1.fep127"))
FLOAT16 = NarrowFloat(-14, 15, 10, 65504.0)
ELEMENTS = {
    "fp8_e5m2": NarrowFloat(-14, 15, 2, 57344.0),
    "fp8_e4m3": NarrowFloat(-6, 8, 3, 448.0),
    "fp6_e3m2": NarrowFloat(-2, 4, 2, 28.0),
    "fp6_e2m3": NarrowFloat(0, 2, 3, 7.5),
    "fp4_e2m1": NarrowFloat(0, 2, 1, 6.0),
}
"""The element dtypes of MX blocks."""
_MX_INT8_SCALE = 64.0
"""The elements of MX int8 are multiples of 1/64."""


def round_to_float(edit: Edit, x: ir.Value, kind: NarrowFloat) -> ir.Value:
    """Round float32 numbers to a narrower float, half to even, saturating."""
    a = Arithmetic(edit, _NUMBER)
    x = a("Min", a("Max", x, -kind.largest), kind.largest)
    power, _ = floor_power(edit, a("Abs", x), kind.low, kind.high)
    unit = a("Mul", power, 2.0**-kind.mantissa)
    rounded = a("Mul", a("Round", a("Div", x, unit)), unit)
    return a("Min", a("Max", rounded, -kind.largest), kind.largest)


def round_halves(edit: Edit, x: ir.Value, rounding: Rounding) -> ir.Value:
    """Round float32 numbers to integers."""
    a = Arithmetic(edit, _NUMBER)
    if rounding is Rounding.EVEN:
        return a("Round", x)
    if rounding is Rounding.AWAY:
        return round_away(edit, x, _NUMBER)
    block_power = a("Floor", x)
    return a("Where", a("Less", a("Sub", x, block_power), 0.5), block_power, a("Add", block_power, 1.0))


def in_blocks(
    edit: Edit, x: ir.Value, dims: tuple[int, ...], axis: int, size: int, compute: Callable[[ir.Value, int], ir.Value]
) -> ir.Value:
    """Apply ``compute`` to blocks along an axis; the last block is padded with zeros.

    ``compute`` maps x, reshaped so that ``axis`` is split in two, and the index of the inner axis to a result of the
    same shape.
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


def round_block(edit: Edit, x: ir.Value, axis: int, *, bits: int, rounding: Rounding, widen: bool = False) -> ir.Value:
    """Round finite numbers to block floats: all numbers along an axis share an 8-bit exponent.

    A number has ``bits`` including the exponent: 16 means 7 bits of mantissa. With ``widen``, blocks whose numbers
    round beyond 8-bit integers use the next larger exponent, instead of clamping.
    """
    a = Arithmetic(edit, _NUMBER)
    mantissa = bits - 9
    power, _ = floor_power(edit, a.reduce("Max", a("Abs", x), [axis]), _LOW, _HIGH)
    unit = a("Mul", power, 2.0 ** (1 - mantissa))
    if widen:
        scaled = round_halves(edit, a("Div", x, unit), rounding)
        most, least = a.reduce("Max", scaled, [axis]), a.reduce("Min", scaled, [axis])
        over = a("Or", a("Not", a("Less", most, 128.0)), a("Less", least, -128.0))
        unit = a("Where", over, a("Mul", unit, 2.0), unit)
        return a("Mul", round_halves(edit, a("Div", x, unit), rounding), unit)
    y = a("Mul", round_halves(edit, a("Div", x, unit), rounding), unit)
    most = a("Sub", a("Mul", power, 2.0), unit)
    return a("Max", a("Min", y, most), a("Neg", most))


def round_prime_block(
    edit: Edit,
    x: ir.Value,
    shape: tuple[int, ...],
    axis: int,
    *,
    bits: int,
    rounding: Rounding,
    sub_block: int,
    shift: int,
) -> ir.Value:
    """Round as `round_block`, but sub-blocks of small numbers have an exponent that is up to 2^shift − 1 less."""
    a = Arithmetic(edit, _NUMBER)
    mantissa = bits - 9
    split_shape = [*shape[:axis], shape[axis] // sub_block, sub_block, *shape[axis + 1 :]]
    split = a.reshape(x, split_shape)
    size = a("Abs", split)
    tiny = a("Less", size, 2.0**_LOW)  # subnormal numbers are flushed to zero
    split, size = a("Where", tiny, 0.0, split), a("Where", tiny, 0.0, size)
    largest = a.reduce("Max", size, [axis + 1])
    block_power, _ = floor_power(edit, a.reduce("Max", largest, [axis]), _LOW, _HIGH)
    sub_block_power, _ = floor_power(edit, largest, _LOW, _HIGH)
    power = a("Max", sub_block_power, a("Mul", block_power, 2.0 ** -(2**shift - 1)))
    unit = a("Mul", power, 2.0 ** (1 - mantissa))
    most = 2.0**mantissa - 1
    y = a("Max", a("Min", round_halves(edit, a("Div", split, unit), rounding), most), -most)
    return a.reshape(a("Mul", y, unit), shape)


def round_mx(edit: Edit, x: ir.Value, axis: int, *, element: str, rounding: Rounding) -> ir.Value:
    """Round finite numbers to MX blocks: a power-of-two scale, and an ``element`` of `ELEMENTS`, or int8.

    Halves are rounded by ``rounding`` for int8 only; narrow floats round half to even.
    """
    a = Arithmetic(edit, _NUMBER)
    power, _ = floor_power(edit, a.reduce("Max", a("Abs", x), [axis]), _LOW, _HIGH)
    if element == "int8":
        scaled = round_halves(edit, a("Mul", a("Div", x, power), _MX_INT8_SCALE), rounding)
        return a("Mul", a("Div", a("Max", a("Min", scaled, 127.0), -128.0), _MX_INT8_SCALE), power)
    kind = ELEMENTS[element]
    scale = a("Mul", power, 2.0**-kind.high)
    return a("Mul", round_to_float(edit, a("Div", x, scale), kind), scale)


def apply_to_finite(edit: Edit, x: ir.Value, compute: Callable[[ir.Value], ir.Value]) -> ir.Value:
    """Apply ``compute`` to the finite numbers of a float32 tensor; infinities and NaN are kept."""
    a = Arithmetic(edit, _NUMBER)
    finite = a("LessOrEqual" if edit.scope.opset() >= 12 else "Less", a("Abs", x), float(np.finfo(np.float32).max))
    return a("Where", finite, compute(a("Where", finite, x, 0.0)), x)
