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
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from passes.builders.arithmetic import HALVES
from passes.builders.small_dtypes import SMALL, SMALL_FLOATS, float_info, is_already_corrected, round_to_half, to_small
from passes.rewriting.base import Exactness, Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import Match, NodeContext, NodeRewrite

_WIDE_FLOATS = {ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.FLOAT, ir.DataType.DOUBLE}


@dataclass(frozen=True)
class _CastMatch(Match):
    source: ir.DataType
    target: ir.DataType


def _dtypes(node: ir.Node, context: NodeContext) -> tuple[ir.DataType, ir.DataType] | Skip:
    """The source and the target dtype of a Cast."""
    source, target = context.scope.dtype(node.inputs[0]), ir.DataType(node.attributes.get_int("to", 0))
    if source is None or ir.DataType.UNDEFINED in (source, target):
        return Skip("its source or target dtype is unknown")
    if ir.DataType.STRING in (source, target):
        return Skip("it casts strings")
    return source, target


class _CastRule(NodeRewrite[_CastMatch]):
    operators = frozenset({("", "Cast")})

    def match(self, node: ir.Node, context: NodeContext) -> _CastMatch | Skip | None:
        """Match the dtypes of the rule."""
        if is_already_corrected(node, self.name):
            return None
        dtypes = _dtypes(node, context)
        if isinstance(dtypes, Skip):
            return dtypes
        return _CastMatch(node, *dtypes) if self.applies(*dtypes) else None

    def applies(self, source: ir.DataType, target: ir.DataType) -> bool:
        """Whether the rule is for casts from ``source`` to ``target``."""
        raise AssertionError


class CastToBool(_CastRule):
    """Compare with zero instead of casting to bool."""

    name = "cast-to-bool"
    exactness = Exactness.BITWISE

    def match(self, node: ir.Node, context: NodeContext) -> _CastMatch | Skip | None:
        found = super().match(node, context)
        if isinstance(found, _CastMatch) and found.source.is_floating_point() and context.scope.opset() < 11:
            return Skip("Equal takes floats since opset 11: convert-opset comes first")
        return found

    def applies(self, source: ir.DataType, target: ir.DataType) -> bool:
        return target == ir.DataType.BOOL and source not in (ir.DataType.BOOL, *SMALL)

    def rewrite(self, match: _CastMatch, edit: Edit) -> Sequence[ir.Value]:
        zero = edit.scalar(0, match.source)
        return [edit.op("Not", [edit.op("Equal", [match.node.inputs[0], zero])])]


class CastOverflowToInfinity(_CastRule):
    """Cast numbers out of the range of a float to infinity."""

    name = "cast-overflow-to-infinity"
    exactness = Exactness.BITWISE

    def applies(self, source: ir.DataType, target: ir.DataType) -> bool:
        """Numbers to floats of 32 or 64 bits, if some are out of range."""
        wide = _is_number(source) and target in _WIDE_FLOATS and target not in HALVES
        return wide and source != target and any(_edges(source, target))

    def rewrite(self, match: _CastMatch, edit: Edit) -> Sequence[ir.Value]:
        x = match.node.inputs[0]
        assert x is not None
        y = edit.op("Cast", [x], {"to": match.target.value})
        return [_with_infinities(edit, x, y, match.source, match.target)]


class CastToHalf(_CastRule):
    """Round to float16 and bfloat16 in float32 before the Cast, which then changes no number."""

    name = "cast-to-half"
    exactness = Exactness.BITWISE

    def applies(self, source: ir.DataType, target: ir.DataType) -> bool:
        return target in HALVES and _is_number(source) and source != target

    def rewrite(self, match: _CastMatch, edit: Edit) -> Sequence[ir.Value]:
        """The Cast by way of float32, as in ONNX Runtime, whatever the source."""
        x = match.node.inputs[0]
        assert x is not None
        x = edit.cast(x, ir.DataType.FLOAT)
        y = edit.op("Cast", [round_to_half(edit, x, match.target)], {"to": match.target.value})
        return [_with_infinities(edit, x, y, ir.DataType.FLOAT, match.target)]


def _is_number(dtype: ir.DataType) -> bool:
    """Whether it is an integer of at least 8 or a float of at least 16 bits."""
    return dtype not in SMALL and (dtype.is_integer() or dtype in _WIDE_FLOATS)


def _with_infinities(edit: Edit, x: ir.Value, y: ir.Value, source: ir.DataType, target: ir.DataType) -> ir.Value:
    """``y``, the Cast of ``x``, with the results for numbers beyond the last safe ones replaced."""
    for operator, edge in zip(("Greater", "Less"), _edges(source, target), strict=True):
        if edge is not None:
            last, beyond = edge
            y = edit.op("Where", [edit.op(operator, [x, edit.constant(last)]), edit.constant(beyond), y])
    return y


def _edges(source: ir.DataType, target: ir.DataType) -> list[tuple[np.ndarray, np.ndarray] | None]:
    """The results of `_edge` above and below zero."""
    return [_edge(source, target, 1), _edge(source, target, -1)]


@functools.cache
def _edge(source: ir.DataType, target: ir.DataType, sign: int) -> tuple[np.ndarray, np.ndarray] | None:
    """The last number on one side of zero with a safe Cast, and the result beyond it; None if all numbers are safe.

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
        """The numbers of one sign in ascending order of magnitude: floats are enumerated by their bits."""
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


class CastThroughInt64(_CastRule):
    """Keep the low bits of floats that are out of an integer's range."""

    name = "cast-through-int64"
    exactness = Exactness.BITWISE

    def applies(self, source: ir.DataType, target: ir.DataType) -> bool:
        """Floats to integers other than int32 and int64, which saturate."""
        wide = target.is_integer() and target not in (*SMALL, ir.DataType.INT32, ir.DataType.INT64)
        return wide and source in _WIDE_FLOATS

    def rewrite(self, match: _CastMatch, edit: Edit) -> Sequence[ir.Value]:
        whole = edit.op("Cast", [match.node.inputs[0]], {"to": ir.DataType.INT64.value})
        return [edit.op("Cast", [whole], {"to": match.target.value})]


class CastThroughFloat(_CastRule):
    """Cast small floats to float32 first, in case the runtime does not support the direct Cast."""

    name = "cast-through-float"
    exactness = Exactness.BITWISE

    def applies(self, source: ir.DataType, target: ir.DataType) -> bool:
        """Small floats to anything but float32 and other small floats."""
        return source in SMALL_FLOATS and target != ir.DataType.FLOAT and target not in SMALL_FLOATS

    def rewrite(self, match: _CastMatch, edit: Edit) -> Sequence[ir.Value]:
        number = edit.op("Cast", [match.node.inputs[0]], {"to": ir.DataType.FLOAT.value})
        return [edit.op("Cast", [number], {"to": match.target.value})]


class CastByArithmetic(_CastRule):
    """Round to a small dtype by arithmetic; the remaining Cast changes no value."""

    name = "cast-by-arithmetic"
    exactness = Exactness.BITWISE

    def applies(self, source: ir.DataType, target: ir.DataType) -> bool:
        """Any other dtype to a small dtype."""
        return target in SMALL and source not in SMALL

    def rewrite(self, match: _CastMatch, edit: Edit) -> Sequence[ir.Value]:
        """The rounded number, and its Cast."""
        x = match.node.inputs[0]
        assert x is not None
        number = to_small(edit, match.node, x, match.source, match.target)
        return [edit.op("Cast", [number], {"to": match.target.value})]


RULES: tuple[NodeRewrite[Any], ...] = (
    CastToBool(),
    CastThroughInt64(),
    CastThroughFloat(),
    CastByArithmetic(),
    CastOverflowToInfinity(),
    CastToHalf(),
)
