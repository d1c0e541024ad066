"""Rewrite casts that a runtime computes wrongly for numbers out of range, infinities, and narrow dtypes.

    Cast(x → float)   →  Where(x > L, +∞, Where(x < −L, −∞, Cast(x)))      L: the largest x that stays finite
    Cast(x → float16) →  the same with Cast(r(x)), r: half to even         also bfloat16; because a runtime cuts off
    Cast(x → bool)    →  ¬(x = 0)                                          so that .5, −1 and NaN are true
    Cast(x → uint8)   →  Cast(Cast(x → int64) → uint8)                     from floats, to integers below 64 bits
    Cast(x → int4)    →  Cast(low bits of x → int4)                        because int4 has four bits, not eight
    Cast(x → float8)  →  Cast(round(x / u)·u → float8)                     saturating according to the attribute

A runtime that saturates returns the largest number for an infinity. The replacements are equivalent for all numbers
that are cast correctly, and where a target rounds itself: it casts exactly what is rounded already. ONNX does not
define casts of floats that are out of an integer's range; like ONNX Runtime, they keep the low bits.

Skips: unknown dtypes; strings.
"""

from __future__ import annotations

import functools

import numpy as np
import onnx_ir as ir

from passes.builders.arithmetic import HALVES
from passes.builders.small_dtypes import SMALL, SMALL_FLOATS, float_info, is_already_corrected, round_to_half, to_small
from passes.rewriting.base import NotApplicable
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import Replacement, rewrite

_WIDE_FLOATS = {ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.FLOAT, ir.DataType.DOUBLE}


def _dtypes(node: ir.Node, edit: Edit) -> tuple[ir.DataType, ir.DataType]:
    """Return the source and the target dtype of a Cast."""
    source, target = edit.scope.dtype(node.inputs[0]), ir.DataType(node.attributes.get_int("to", 0))
    if source is None or ir.DataType.UNDEFINED in (source, target):
        raise NotApplicable("the source or target dtype is unknown")
    if ir.DataType.STRING in (source, target):
        raise NotApplicable("the node casts strings")
    return source, target


@rewrite("Cast")
def cast_to_bool(node: ir.Node, edit: Edit) -> Replacement:
    """Compare with zero instead of casting to bool."""
    source, target = _dtypes(node, edit)
    if target != ir.DataType.BOOL or source in (ir.DataType.BOOL, *SMALL) or is_already_corrected(node, "cast-to-bool"):
        return None
    return edit.op("Not", [edit.op("Equal", [node.inputs[0], edit.scalar(0, source)])])


@rewrite("Cast")
def cast_through_int64(node: ir.Node, edit: Edit) -> Replacement:
    """Keep the low bits of floats that are out of an integer's range; int32 and int64 saturate."""
    source, target = _dtypes(node, edit)
    keeps_bits = target.is_integer() and target not in (*SMALL, ir.DataType.INT32, ir.DataType.INT64)
    if not keeps_bits or source not in _WIDE_FLOATS or is_already_corrected(node, "cast-through-int64"):
        return None
    return edit.cast(edit.cast(edit.input(node), ir.DataType.INT64), target)


@rewrite("Cast")
def cast_through_float(node: ir.Node, edit: Edit) -> Replacement:
    """Cast small floats to float32 first, in case the runtime does not support the direct Cast."""
    source, target = _dtypes(node, edit)
    if source not in SMALL_FLOATS or target in (ir.DataType.FLOAT, *SMALL_FLOATS):
        return None
    if is_already_corrected(node, "cast-through-float"):
        return None
    return edit.cast(edit.cast(edit.input(node), ir.DataType.FLOAT), target)


@rewrite("Cast")
def cast_by_arithmetic(node: ir.Node, edit: Edit) -> Replacement:
    """Round to a small dtype by arithmetic; the remaining Cast changes no value."""
    source, target = _dtypes(node, edit)
    if target not in SMALL or source in SMALL or is_already_corrected(node, "cast-by-arithmetic"):
        return None
    number = to_small(edit, node, edit.input(node), source, target)
    return edit.op("Cast", [number], {"to": target.value})


@rewrite("Cast")
def cast_overflow_to_infinity(node: ir.Node, edit: Edit) -> Replacement:
    """Cast numbers out of the range of a float of 32 or 64 bits to infinity."""
    source, target = _dtypes(node, edit)
    if not can_overflow(source, target) or is_already_corrected(node, "cast-overflow-to-infinity"):
        return None
    x = edit.input(node)
    return _with_infinities(edit, x, edit.op("Cast", [x], {"to": target.value}), source, target)


def can_overflow(source: ir.DataType, target: ir.DataType) -> bool:
    """Return whether some numbers are out of range in a Cast to a float of 32 or 64 bits."""
    is_wide = _is_number(source) and target in _WIDE_FLOATS and target not in HALVES
    return is_wide and source != target and any(_edges(source, target))


@rewrite("Cast")
def cast_to_half(node: ir.Node, edit: Edit) -> Replacement:
    """Round to float16 and bfloat16 in float32 before the Cast, which then changes no number.

    ONNX Runtime casts by way of float32 as well, whatever the source is.
    """
    source, target = _dtypes(node, edit)
    if target not in HALVES or source == target or not _is_number(source) or is_already_corrected(node, "cast-to-half"):
        return None
    x = edit.cast(edit.input(node), ir.DataType.FLOAT)
    y = edit.op("Cast", [round_to_half(edit, x, target)], {"to": target.value})
    return _with_infinities(edit, x, y, ir.DataType.FLOAT, target)


def _is_number(dtype: ir.DataType) -> bool:
    """Return whether a dtype is an integer of at least 8 or a float of at least 16 bits."""
    return dtype not in SMALL and (dtype.is_integer() or dtype in _WIDE_FLOATS)


def _with_infinities(edit: Edit, x: ir.Value, y: ir.Value, source: ir.DataType, target: ir.DataType) -> ir.Value:
    """Replace the results in ``y``, the Cast of ``x``, for numbers beyond the last safe ones."""
    for operator, edge in zip(("Greater", "Less"), _edges(source, target), strict=True):
        if edge is not None:
            last, beyond = edge
            y = edit.op("Where", [edit.op(operator, [x, edit.constant(last)]), edit.constant(beyond), y])
    return y


def _edges(source: ir.DataType, target: ir.DataType) -> list[tuple[np.ndarray, np.ndarray] | None]:
    """Return the results of `_edge` above and below zero."""
    return [_edge(source, target, 1), _edge(source, target, -1)]


@functools.cache
def _edge(source: ir.DataType, target: ir.DataType, sign: int) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the last number on one side of zero with a safe Cast, and the result beyond it; None if all are safe.

    A Cast is safe if its result is finite and is not rounded out of an integer's range: a runtime that holds the
    rounded number in the source's dtype temporarily turns 2³¹ into −2³¹.
    """
    dtype = source.numpy()
    low, high = -np.inf, np.inf
    if source.is_integer():
        info = np.iinfo(dtype)
        low, high = info.min, info.max  # not as floats, which cannot represent 2⁶³ − 1
        count = info.max if sign > 0 else -info.min
        extreme = np.asarray(sign * count, dtype)
    else:
        pattern = np.dtype(f"u{dtype.itemsize}")
        count = int(np.asarray(float_info(source).max, dtype).view(pattern))
        extreme = np.asarray(sign * np.inf, dtype)

    def number(index: int) -> np.ndarray:
        """Return the number of this sign at ``index`` by magnitude: floats are enumerated by their bits."""
        if source.is_integer():
            return np.asarray(sign * index, dtype)
        size = np.asarray(index, pattern).view(dtype)
        return size if sign > 0 else np.negative(size)

    def is_safe(index: int) -> bool:
        rounded = float(number(index).astype(target.numpy()))
        return np.isfinite(rounded) and low <= rounded <= high

    with np.errstate(over="ignore"):
        last, end = 0, count + 1
        while end - last > 1:  # the bisect module is limited to 2⁶³ − 1
            middle = (last + end) // 2
            last, end = (middle, end) if is_safe(middle) else (last, middle)
        if last == count and source.is_integer():
            return None
        return number(last), extreme.astype(target.numpy())
