"""Arithmetic on dtypes that a runtime does not support, on values that are held by a wider supported dtype.

The *carrier* of a small dtype holds the same numbers: int8 or uint8 for 2- and 4-bit integers, float32 for 4- to 8-bit
floats. A Cast to the small dtype is then arithmetic:

    to a b-bit integer      x mod 2ᵇ, in two's complement if signed
    to m bits of mantissa   round(x / u)·u with u = 2^(⌊log₂|x|⌋ − m), half to even, clamped to the dtype's range

``⌊log₂|x|⌋`` is found by bisection over the powers of two. Comparisons and products with powers of two are exact
under any reordering or contraction; the shorter methods that add large constants are not.
"""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir

from passes.graphs import lineage
from passes.rewriting.edit import Edit

SMALL_INTEGERS = {ir.DataType.INT2, ir.DataType.UINT2, ir.DataType.INT4, ir.DataType.UINT4}
"""The integers narrower than a byte."""
SMALL_FLOATS = {
    ir.DataType[name]
    for name in ("FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT8E5M2FNUZ", "FLOAT4E2M1", "FLOAT8E8M0")
}
"""The floats of at most a byte."""
SMALL = SMALL_INTEGERS | SMALL_FLOATS


def carrier(dtype: ir.DataType) -> ir.DataType:
    """Return the dtype that holds all values of ``dtype``; ``dtype`` if it is not a small one."""
    if dtype in SMALL_FLOATS:
        return ir.DataType.FLOAT
    if dtype in SMALL_INTEGERS:
        return ir.DataType.INT8 if dtype.is_signed() else ir.DataType.UINT8
    return dtype


def float_info(dtype: ir.DataType) -> Any:
    """Return the finfo of a float dtype of numpy or ml_dtypes."""
    return ml_dtypes.finfo(dtype.numpy())  # type: ignore[no-untyped-call]


def limits(dtype: ir.DataType) -> tuple[float, float]:
    """Return the lowest and the highest finite value of a dtype."""
    if dtype.is_integer():
        bits = dtype.bitwidth
        return (-(2.0 ** (bits - 1)), 2.0 ** (bits - 1) - 1) if dtype.is_signed() else (0.0, 2.0**bits - 1)
    info = float_info(dtype)
    return float(info.min), float(info.max)


def is_already_corrected(node: ir.Node, name: str) -> bool:
    """Return whether legalization or the rule ``name`` made a node, so that its surroundings correct it already."""
    maker = node.metadata_props.get(lineage.PASS, "")
    return maker == name or maker.startswith("legalize/")


def round_to_small_float(edit: Edit, x: ir.Value, dtype: ir.DataType, *, saturate: bool = True) -> ir.Value:
    """Round float32 numbers to a small float except float8e8m0; the result is float32.

    Without ``saturate``, numbers beyond the largest one overflow to NaN or infinity; see Cast.
    """
    number = ir.DataType.FLOAT
    info = float_info(dtype)
    largest, low = float(info.max), int(math.log2(float(info.smallest_normal)))
    high = math.floor(math.log2(largest))
    saturate = saturate or dtype == ir.DataType.FLOAT4E2M1
    bound = largest if saturate else 2.0 ** (high + 1)
    clipped = edit.op("Min", [edit.op("Max", [x, edit.scalar(-bound, number)]), edit.scalar(bound, number)])
    power, _ = floor_power(edit, edit.op("Abs", [clipped]), low, high)
    unit = edit.op("Mul", [power, edit.scalar(2.0**-info.nmant, number)])
    y = edit.op("Mul", [edit.op("Round", [edit.op("Div", [clipped, unit])]), unit])
    if "FNUZ" in dtype.name:  # FNUZ dtypes have no −0
        zero = edit.scalar(0.0, number)
        y = edit.op("Where", [edit.op("Equal", [y, zero]), zero, y])
    if not saturate:
        infinite = dtype == ir.DataType.FLOAT8E5M2
        for operator, sign in (("Greater", 1.0), ("Less", -1.0)):
            over = edit.op(operator, [y, edit.scalar(sign * largest, number)])
            y = edit.op("Where", [over, edit.scalar(sign * np.inf if infinite else np.nan, number), y])
    return edit.op("Where", [edit.op("IsNaN", [x]), x, y])


def round_to_half(edit: Edit, x: ir.Value, dtype: ir.DataType) -> ir.Value:
    """Round float32 numbers to float16 or bfloat16, half to even; the result is float32.

    The sum of x and z = x·2^−k has no place for the last k bits of z, so it rounds them off; k is 13 or 16. Then
    (x + z) − ((x + z) − z) is z rounded to the bits that remain (Veltkamp's splitting). Products with powers of two are
    exact, so contraction into fused multiply-adds changes nothing.

    Numbers that overflow, infinities and NaN give any result. bfloat16 numbers from 2^−125 to 2^−110 may be rounded
    twice, once half to even in the subnormals of float32.
    """
    number = ir.DataType.FLOAT
    info, bits = float_info(dtype), float_info(number).nmant
    shift = 2.0 ** (bits - info.nmant)
    z = edit.op("Mul", [x, edit.scalar(1 / shift, number)])
    total = edit.op("Add", [x, z])
    rounded = edit.op("Sub", [total, edit.op("Sub", [total, z])])
    y = edit.op("Mul", [rounded, edit.scalar(shift, number)])
    least = float(info.smallest_normal)
    if least == float_info(number).smallest_normal:  # the subnormals of float32 have rounded them
        return y
    unit = least * 2.0**-info.nmant
    steps = edit.op("Round", [edit.op("Mul", [x, edit.scalar(1 / unit, number)])])
    small = edit.op("Less", [edit.op("Abs", [x]), edit.scalar(least, number)])
    return edit.op("Where", [small, edit.op("Mul", [steps, edit.scalar(unit, number)]), y])


def round_to_power(edit: Edit, x: ir.Value, mode: str, *, saturate: bool) -> ir.Value:
    """Round float32 numbers to float8e8m0, whose values are the powers of two from 2^−127 to 2^127, and NaN.

    The standard does not define the result for negative numbers; here it is that of zero. The mode is up, down, or
    nearest (half up). Without ``saturate``, numbers out of range become NaN.
    """
    number = ir.DataType.FLOAT
    least, most = edit.scalar(2.0**-127, number), edit.scalar(2.0**127, number)
    size = edit.op("Min", [edit.op("Max", [x, least]), edit.scalar(limits(number)[1], number)])
    y, _ = floor_power(edit, size, -127, 127)
    if mode == "nearest":
        y = edit.op(
            "Where", [edit.op("Less", [size, edit.op("Mul", [y, edit.scalar(1.5, number)])]), y, _twice(edit, y)]
        )
    elif mode == "up":
        y = edit.op("Where", [edit.op("Greater", [size, y]), _twice(edit, y), y])
    if saturate:
        y = edit.op("Min", [y, most])
    else:
        infinite = edit.op("Greater", [x, edit.scalar(limits(number)[1], number)])
        over = edit.op("Or", [infinite, edit.op("Greater", [y, most])])
        out = edit.op("Or", [over, edit.op("Less", [x, least])])
        y = edit.op("Where", [out, edit.scalar(np.nan, number), y])
    return edit.op("Where", [edit.op("IsNaN", [x]), x, y])


def _twice(edit: Edit, x: ir.Value) -> ir.Value:
    return edit.op("Mul", [x, edit.scalar(2.0, ir.DataType.FLOAT)])


def floor_power(
    edit: Edit, x: ir.Value, low: int, high: int, dtype: ir.DataType = ir.DataType.FLOAT
) -> tuple[ir.Value, ir.Value]:
    """Return the largest power of two ≤ ``x`` and ≥ 2^low, and its exponent minus ``low``; ``x`` is < 2^(high + 1)."""
    step = 1 << max((high - low).bit_length() - 1, 0)
    power, count = edit.scalar(2.0**low, dtype), edit.scalar(0.0, dtype)
    higher, more = edit.scalar(2.0 ** (low + step), dtype), edit.scalar(step, dtype)
    while True:
        above = edit.op("Greater", [higher, x])
        power = edit.op("Where", [above, power, higher])
        count = edit.op("Where", [above, count, more])
        step //= 2
        if not step:
            return power, count
        higher = edit.op("Mul", [power, edit.scalar(2.0**step, dtype)])
        more = edit.op("Add", [count, edit.scalar(step, dtype)])


def wrap(edit: Edit, x: ir.Value, dtype: ir.DataType) -> ir.Value:
    """Return the low bits of int32 numbers as an integer narrower than a byte, in its carrier.

    BitwiseAnd (opset 18) is available wherever these dtypes are (opset 21).
    """
    number = ir.DataType.INT32
    low = edit.op("BitwiseAnd", [x, edit.scalar(2**dtype.bitwidth - 1, number)])
    if dtype.is_signed():
        sign = edit.op("BitwiseAnd", [low, edit.scalar(2 ** (dtype.bitwidth - 1), number)])
        low = edit.op("Sub", [low, edit.op("Add", [sign, sign])])
    return edit.op("Cast", [low], {"to": carrier(dtype).value})


def round_away(edit: Edit, x: ir.Value, dtype: ir.DataType) -> ir.Value:
    """Round floats to integers, halves away from zero, as a Cast to integers narrower than a byte does."""
    size = edit.op("Abs", [x])
    whole = edit.op("Floor", [size])
    rest = edit.op("Sub", [size, whole])
    one, half = edit.scalar(1.0, dtype), edit.scalar(0.5, dtype)
    rounded = edit.op("Where", [edit.op("Less", [rest, half]), whole, edit.op("Add", [whole, one])])
    return edit.op("Mul", [edit.op("Sign", [x]), rounded])


def to_small(edit: Edit, node: ir.Node, x: ir.Value, source: ir.DataType, dtype: ir.DataType) -> ir.Value:
    """Return the result of a Cast of ``x`` from ``source`` to a small dtype, in the small dtype's carrier."""
    saturate = bool(node.attributes.get_int("saturate", 1))
    if dtype == ir.DataType.FLOAT8E8M0:
        mode = node.attributes.get_string("round_mode", "up")
        return round_to_power(edit, edit.cast(x, ir.DataType.FLOAT), mode, saturate=saturate)
    if dtype in SMALL_FLOATS:
        return round_to_small_float(edit, edit.cast(x, ir.DataType.FLOAT), dtype, saturate=saturate)
    if source.is_floating_point():
        x = round_away(edit, edit.cast(x, ir.DataType.FLOAT), ir.DataType.FLOAT)
        source = ir.DataType.FLOAT
    return wrap(edit, edit.cast(x, ir.DataType.INT32), dtype)


def as_carrier(tensor: ir.TensorProtocol) -> np.ndarray:
    """Return the elements of a constant of a small dtype, in its carrier dtype."""
    array: np.ndarray = tensor.numpy().astype(np.float32)
    return array.astype(carrier(tensor.dtype).numpy())
