"""Decompose elementwise operators whose forms the runtime misinterprets, or leaves alone.

    Clip<min>(x)            →  Max(x, min)       likewise max; both: Min(Max(x, min), max), where max takes precedence
    Mod(a, b), integers     →  r = a − (a / b) · b, with truncating division
    Mod(a, b), floats       →  r = Mod<fmod=1>(a, b)
      without fmod             r + b if r ≠ 0 and the signs of r and b differ, else r
    IsNaN(x)                →  ¬(x < 1 ∨ x > 0)
    IsInf(x)                →  (x > 0 ∧ ¬(x / 2 < x)) ∨ (x < 0 ∧ ¬(x / 2 > x)), or the side that it detects
    Abs(x), unsigned        →  x
    Pow(x, y), x of type T  →  Cast<T>(Pow(Cast<double>(x), Cast<double>(y)))    for integers, as in ONNX Runtime

These comparisons need no constant that another precision could not hold, and hold for every number.
Integer division and multiplication are exact; a remainder computed in floats loses the low bits of int64.
Float32 holds integers up to 2²⁴ only.

Skips: unknown dtypes; Clip with a dynamic shape before opset 8, which has no broadcasting for Max and Min.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from passes.builders.arithmetic import Arithmetic, wide
from passes.builders.operands import given
from passes.rewriting.base import Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import UNKNOWN_SHAPE, Replacement, rewrite


@rewrite("Clip", needs_dtype=(0,))
def decompose_clip(node: ir.Node, edit: Edit) -> Replacement:
    """Decompose Clip into Max and Min."""
    a, y = Arithmetic(edit, edit.dtype(node)), edit.input(node)
    shape = edit.scope.static_shape(y)
    for index, (name, operator) in enumerate((("min", "Max"), ("max", "Min")), start=1):
        limit: ir.Value | float | None = given(node, index)  # an attribute before opset 11
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
    return y


@rewrite("Mod", needs_dtype=(0,))
def decompose_mod(node: ir.Node, edit: Edit) -> Replacement:
    """Decompose Mod into divisions of integers or truncated remainders of floats."""
    dtype, truncates = edit.dtype(node), node.attributes.get_int("fmod", 0)
    is_float = dtype.is_floating_point()
    if is_float and truncates:
        return None
    a = Arithmetic(edit, dtype if is_float else wide(dtype))
    x, y = a.cast(edit.input(node, 0)), a.cast(edit.input(node, 1))
    rest = a("Mod", x, y, fmod=1) if is_float else a("Sub", x, a("Mul", a("Div", x, y), y))
    if dtype.is_signed() and not truncates:
        signs_differ = a("Xor", a("Less", rest, 0), a("Less", y, 0))
        must_move = a("And", signs_differ, a("Not", a("Equal", rest, 0)))
        rest = a("Where", must_move, a("Add", rest, y), rest)
    return a.cast(rest, dtype)


@rewrite("IsNaN", needs_dtype=(0,))
def decompose_is_nan(node: ir.Node, edit: Edit) -> Replacement:
    """Decompose IsNaN into comparisons, of which every number passes one."""
    a = _comparing(edit, edit.dtype(node))
    x = a.cast(edit.input(node))
    return a("Not", a("Or", a("Less", x, 1), a("Greater", x, 0)))


@rewrite("IsInf", needs_dtype=(0,))
def decompose_is_inf(node: ir.Node, edit: Edit) -> Replacement:
    """Decompose IsInf into comparisons: half of a number is closer to 0, except of an infinite one."""
    a = _comparing(edit, edit.dtype(node))
    x = a.cast(edit.input(node))
    half = a("Mul", x, 0.5)
    positive = a("And", a("Greater", x, 0), a("Not", a("Less", half, x)))
    negative = a("And", a("Less", x, 0), a("Not", a("Greater", half, x)))
    sides = [
        side
        for name, side in (("detect_positive", positive), ("detect_negative", negative))
        if node.attributes.get_int(name, 1)
    ]
    if not sides:
        return a("And", positive, negative)
    return sides[0] if len(sides) == 1 else a("Or", *sides)


def _comparing(edit: Edit, dtype: ir.DataType) -> Arithmetic:
    """Return a builder of comparisons of floats, which those of 8 bits do not have."""
    return Arithmetic(edit, ir.DataType.FLOAT if dtype.bitwidth < 16 else dtype)


@rewrite("Abs", needs_dtype=(0,))
def unsigned_abs(node: ir.Node, edit: Edit) -> Replacement:
    """Remove Abs of unsigned integers."""
    dtype = edit.dtype(node)
    if not dtype.is_integer() or dtype.is_signed():
        return None
    return edit.op("Identity", node.inputs)


@rewrite("Pow", needs_dtype=(0, 1))
def integer_power(node: ir.Node, edit: Edit) -> Replacement:
    """Compute powers of integers in float64."""
    dtype = edit.dtype(node)
    if not dtype.is_integer():
        return None
    x, y = (edit.cast(edit.input(node, index), ir.DataType.DOUBLE) for index in (0, 1))
    return edit.cast(edit.op("Pow", [x, y]), dtype)
