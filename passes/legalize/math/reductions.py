"""Rewrite reductions that the runtime does not support or leaves alone, or that overflow in it.

    ReduceSum(x), x without elements      →  0      likewise others: the neutral element of the reduction, −∞ for Max, …
    ReduceLogSumExp(x)                    →  m + log(Σ exp(x − m)),  m = max x clamped to the finite numbers
    ArgMax<select_last_index>(x)          →  n − 1 − ArgMax(x in reverse order)      likewise ArgMin
    Hardmax<axis>(x)                      →  ArgMax(x) = [0, 1, …, n − 1]

A tensor with an axis of length 0 has no elements; a reduction over that axis still has results, which are constant. The
mean of no elements is undefined, and 0 in ONNX Runtime. ReduceLogSumExp of integers is not rewritten: ONNX Runtime
rounds every exponential, which nothing else does. Before opset 13, Hardmax has one 1 for all axes from ``axis`` on.

Skips: axes that are not constant; dynamic shapes; results without elements.
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from passes.builders.arithmetic import Arithmetic, wide
from passes.rewriting.base import Exactness, Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import UNKNOWN_SHAPE, Replacement, rewrite

_OF_NO_ELEMENTS = {
    **dict.fromkeys(("ReduceSum", "ReduceSumSquare", "ReduceL1", "ReduceL2", "ReduceMean"), 0.0),
    "ReduceProd": 1.0,
    **dict.fromkeys(("ReduceMax", "ReduceLogSum", "ReduceLogSumExp"), -math.inf),
    "ReduceMin": math.inf,
}
"""The result of each reduction over no elements."""


def _reduced_axes(node: ir.Node, rank: int, edit: Edit) -> tuple[int, ...]:
    """Return the non-negative axes of a reduction of any opset, sorted."""
    if rank == 0:
        return ()
    axes = edit.integers(node, 1, "axes") or node.attributes.get_ints("axes", [])
    if not axes and node.attributes.get_int("noop_with_empty_axes", 0) == 1:
        return ()
    return tuple(sorted({axis % rank for axis in axes or range(rank)}))


@rewrite(*_OF_NO_ELEMENTS, needs_shape=(0,), needs_dtype=(0,))
def fold_empty_reduction(node: ir.Node, edit: Edit) -> Replacement:
    """Replace a reduction of a tensor without elements by a constant."""
    shape, dtype = edit.shape(node), edit.dtype(node)
    axes = _reduced_axes(node, len(shape), edit)
    if 0 not in shape:
        return None
    if any(size == 0 and axis not in axes for axis, size in enumerate(shape)):
        return Skip("the result has no elements, which the runtime does not support")
    value = _neutral(node.op_type, dtype)
    if value is None:
        return Skip(f"{node.op_type} of no elements is undefined for {dtype.name}")
    kept = node.attributes.get_int("keepdims", 1)
    result = [1 if axis in axes else size for axis, size in enumerate(shape) if kept or axis not in axes]
    return edit.constant(np.full(result, value, dtype.numpy()))


def _neutral(op_type: str, dtype: ir.DataType) -> float | int | bool | None:
    """Return the result of a reduction over no elements; None if the dtype has no such number."""
    value = _OF_NO_ELEMENTS[op_type]
    if dtype.is_floating_point() or math.isfinite(value):
        return value
    if op_type not in ("ReduceMax", "ReduceMin"):
        return None
    if dtype == ir.DataType.BOOL:
        return value > 0
    return int(dtype.max if value > 0 else dtype.min)


@rewrite("ReduceLogSumExp", exactness=Exactness.ROUNDING, needs_dtype=(0,))
def stabilize_log_sum_exp(node: ir.Node, edit: Edit) -> Replacement:
    """Subtract the maximum in ReduceLogSumExp, so that no exponential overflows."""
    shape, dtype = edit.scope.shape(node.inputs[0]), edit.dtype(node)  # the rank is sufficient
    if shape is None:
        return Skip(UNKNOWN_SHAPE)
    if not dtype.is_floating_point():
        return None
    axes = _reduced_axes(node, len(shape), edit)
    if not axes or 0 in shape:
        return None
    a = Arithmetic(edit, wide(dtype))
    x = a.cast(edit.input(node))
    limits = np.finfo(a.dtype.numpy())  # the maximum is clamped to them, because ∞ − ∞ is NaN
    most = a("Min", a("Max", a.reduce("Max", x, axes), limits.min), limits.max)
    total = a.reduce("Sum", a("Exp", a("Sub", x, most)), axes)
    result = a("Add", a("Log", total), most)
    if not node.attributes.get_int("keepdims", 1):
        result = a.squeeze(result, axes)
    return a.cast(result, dtype)


@rewrite("ArgMax", "ArgMin", needs_shape=(0,))
def reverse_last_index(node: ir.Node, edit: Edit) -> Replacement:
    """Take the first index in reverse order instead of the last one."""
    shape, axis = edit.shape(node), node.attributes.get_int("axis", 0)
    if not node.attributes.get_int("select_last_index", 0) or not shape:
        return None
    last = shape[axis] - 1
    reverse = edit.op("Gather", [edit.input(node), edit.index(range(last, -1, -1))], {"axis": axis})
    attributes = {name: value for name, value in node.attributes.items() if name != "select_last_index"}
    index = Arithmetic(edit, ir.DataType.INT64)
    return index("Sub", last, edit.op(node.op_type, [reverse], attributes))


@rewrite("Hardmax", needs_shape=(0,), needs_dtype=(0,))
def compare_hardmax(node: ir.Node, edit: Edit) -> Replacement:
    """Compare the index of the maximum with all indices."""
    shape, coerces = edit.shape(node), edit.scope.opset() < 13
    axis = node.attributes.get_int("axis", 1 if coerces else -1)
    axis = axis + len(shape) if axis < 0 else axis
    if not shape or 0 in shape:
        return None
    rows = [math.prod(shape[:axis]), math.prod(shape[axis:])] if coerces else list(shape)
    axis = 1 if coerces else axis
    most = edit.op("ArgMax", [edit.reshape(edit.input(node), rows) if coerces else edit.input(node)], {"axis": axis})
    indices = edit.index(np.arange(rows[axis]).reshape([-1, *[1] * (len(rows) - 1 - axis)]))
    result = edit.cast(edit.op("Equal", [most, indices]), edit.dtype(node))
    return edit.reshape(result, shape) if coerces else result
