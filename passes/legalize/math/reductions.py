"""Rewrite reductions that the runtime does not support, or that overflow in it.

    ReduceSum(x), x without elements      →  0      likewise others: the neutral element of the reduction, −∞ for Max, …
    ReduceLogSumExp(x)                    →  m + log(Σ exp(x − m)),  m = max x clamped to the finite numbers

A tensor with an axis of length 0 has no elements; a reduction over that axis still has results, which are constant. The
mean of no elements is undefined, and 0 in ONNX Runtime. ReduceLogSumExp of integers is not rewritten: ONNX Runtime
rounds every exponential, which nothing else does.

Skips: axes that are not constant; dynamic shapes; results without elements.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from passes.builders.arithmetic import Arithmetic, Array, wide
from passes.builders.operands import UNKNOWN_SHAPE, given, not_constant
from passes.graphs.scopes import Scope
from passes.graphs.tensors import ints
from passes.rewriting.base import Exactness, Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import Match, NodeContext, NodeRewrite

_OF_NO_ELEMENTS = {
    "ReduceSum": 0.0,
    "ReduceSumSquare": 0.0,
    "ReduceL1": 0.0,
    "ReduceL2": 0.0,
    "ReduceMean": 0.0,
    "ReduceProd": 1.0,
    "ReduceMax": -math.inf,
    "ReduceMin": math.inf,
    "ReduceLogSum": -math.inf,
    "ReduceLogSumExp": -math.inf,
}
"""The result of each reduction over no elements."""


def reduced_axes(node: ir.Node, rank: int, scope: Scope) -> tuple[int, ...] | Skip:
    """The non-negative axes of a reduction, sorted.

    Args:
        node: of any opset: axes may be an input or an attribute.
        rank: of its input.
        scope: of the node.
    """
    axes: Sequence[int] | None = node.attributes.get_ints("axes", [])
    source = given(node, 1)
    if source is not None:
        axes = ints(scope.constant(source))
        if axes is None:
            return Skip(not_constant(source, "axes"))
    if not axes and node.attributes.get_int("noop_with_empty_axes", 0) == 1:
        return ()
    return tuple(sorted({axis % rank for axis in axes})) if axes else tuple(range(rank))


@dataclass(frozen=True)
class _Empty(Match):
    result: Array


class FoldEmptyReduction(NodeRewrite[_Empty]):
    """Replace a reduction of a tensor without elements by a constant."""

    name = "fold-empty-reduction"
    operators = frozenset(("", name) for name in _OF_NO_ELEMENTS)
    needs_shape = (0,)
    needs_dtype = (0,)

    def match(self, node: ir.Node, context: NodeContext) -> _Empty | Skip | None:
        """Match reduced axes of length 0, if no other axis has length 0."""
        shape, dtype = context.shape(node), context.dtype(node)
        axes = reduced_axes(node, len(shape), context.scope) if shape else ()
        if isinstance(axes, Skip):
            return axes
        if 0 not in shape:
            return None
        if any(size == 0 and axis not in axes for axis, size in enumerate(shape)):
            return Skip("its result has no elements, which the runtime does not support")
        value = _neutral(node.op_type, dtype)
        if value is None:
            return Skip(f"{node.op_type} of no elements is undefined for {dtype.name}")
        kept = node.attributes.get_int("keepdims", 1)
        result = [1 if axis in axes else size for axis, size in enumerate(shape) if kept or axis not in axes]
        return _Empty(node, np.full(result, value, dtype.numpy()))

    def rewrite(self, match: _Empty, edit: Edit) -> Sequence[ir.Value | None]:
        return [edit.constant(match.result)]


def _neutral(op_type: str, dtype: ir.DataType) -> float | int | bool | None:
    """The result of a reduction over no elements; None if the dtype has no such number."""
    value = _OF_NO_ELEMENTS[op_type]
    if dtype.is_floating_point() or math.isfinite(value):
        return value
    if op_type not in ("ReduceMax", "ReduceMin"):
        return None
    if dtype == ir.DataType.BOOL:
        return value > 0
    return int(dtype.max if value > 0 else dtype.min)


@dataclass(frozen=True)
class _LogSumExp(Match):
    axes: tuple[int, ...]
    dtype: ir.DataType


class StabilizeLogSumExp(NodeRewrite[_LogSumExp]):
    """Subtract the maximum in ReduceLogSumExp, so that no exponential overflows."""

    name = "stabilize-log-sum-exp"
    exactness = Exactness.ROUNDING
    operators = frozenset({("", "ReduceLogSumExp")})
    needs_dtype = (0,)

    def match(self, node: ir.Node, context: NodeContext) -> _LogSumExp | Skip | None:
        """Match floats with constant axes."""
        scope = context.scope
        shape, dtype = scope.shape(node.inputs[0]), context.dtype(node)  # the rank is sufficient
        if shape is None:
            return Skip(UNKNOWN_SHAPE)
        if not dtype.is_floating_point():
            return None
        axes = reduced_axes(node, len(shape), scope) if len(shape) else ()
        if isinstance(axes, Skip):
            return axes
        return _LogSumExp(node, axes, dtype) if axes and 0 not in shape else None

    def rewrite(self, match: _LogSumExp, edit: Edit) -> Sequence[ir.Value | None]:
        """The maximum is clamped to the finite numbers, because ∞ − ∞ is NaN."""
        node, dtype = match.node, match.dtype
        keepdims = bool(node.attributes.get_int("keepdims", 1))
        a = Arithmetic(edit, wide(dtype))
        assert node.inputs[0] is not None
        x = a.cast(node.inputs[0], dtype)
        limits = np.finfo(a.dtype.numpy())
        most = a("Min", a("Max", a.reduce("Max", x, match.axes), limits.min), limits.max)
        total = a.reduce("Sum", a("Exp", a("Sub", x, most)), match.axes)
        result = a("Add", a("Log", total), most)
        if not keepdims:
            result = a.squeeze(result, match.axes)
        return [a.cast(result, a.dtype, dtype)]


RULES: tuple[NodeRewrite[Any], ...] = (FoldEmptyReduction(), StabilizeLogSumExp())
