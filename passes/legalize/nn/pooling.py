"""Rewrite pooling whose windows MIGraphX misplaces, or whose indices it does not compute.

    ceil_mode, auto_pad                →  pads, with more of them after the input if a window extends beyond it
    AveragePool, LpPool                →  MatMul(M, x) for each axis, M[o, i] = whether window o has element i, scaled
    MaxPool, with or without Indices   →  Gather(x, windows); ReduceMax; Indices from ArgMax
    GlobalAveragePool, GlobalMaxPool, GlobalLpPool  →  a reduction

An average is a product of averages along the axes, and so is the number of averaged elements. In the windows of
MaxPool, padding is replaced by the first element of the window that is not padding: that changes neither the maximum
nor the position of its first occurrence.

Skips: dynamic shapes; empty inputs and outputs; auto_pad=SAME with dilations or with strides larger than the window,
for which ONNX Runtime deviates from the standard.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np
import onnx_ir as ir

from passes.builders.arithmetic import Arithmetic, Array, wide_float
from passes.builders.operands import is_output_used
from passes.builders.windows import Window, windows
from passes.rewriting.base import Exactness, NotApplicable, Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import Replacement, rewrite


def _windows(node: ir.Node, edit: Edit) -> list[Window]:
    """Return the windows of a pooling along each axis."""
    shape, kernel = edit.shape(node), node.attributes.get_ints("kernel_shape", [])
    if 0 in shape:
        raise NotApplicable("the input is empty")
    if len(kernel) != len(shape) - 2:
        raise NotApplicable("the kernel_shape does not fit the input")
    axes = windows(node, shape[2:], kernel)
    if node.attributes.get_string("auto_pad", "NOTSET").startswith("SAME"):
        if any(window.dilation > 1 and window.kernel > 1 for window in axes):
            raise NotApplicable("ONNX Runtime's auto_pad ignores the dilations, which deviates from the standard")
        if any(window.stride > window.reach for window in axes):
            raise NotApplicable("windows leave gaps: ONNX Runtime's auto_pad crops, which deviates from the standard")
    if any(window.count < 1 for window in axes):
        raise NotApplicable("the output is empty: a window is larger than the input")
    return axes


@rewrite("AveragePool", "LpPool", "MaxPool", exactness=Exactness.ROUNDING, needs_shape=(0,), needs_dtype=(0,))
def explicit_pooling(node: ir.Node, edit: Edit) -> Replacement:
    """Replace auto_pad, ceil_mode and default attributes by explicit pads and strides."""
    has_auto_pad = node.attributes.get_string("auto_pad", "NOTSET") != "NOTSET"
    is_implicit = has_auto_pad or not {"pads", "strides"} <= set(node.attributes)
    if not (is_implicit or node.attributes.get_int("ceil_mode", 0) == 1) or is_output_used(node, 1):
        return None
    axes = _windows(node, edit)
    if any(_end(window) >= window.kernel or window.begin >= window.kernel for window in axes):
        return Skip("the pads would be as large as the window")
    if node.attributes.get_int("count_include_pad", 0) and any(_end(window) > window.end for window in axes):
        return Skip("count_include_pad does not count elements beyond its padding")
    replaced = ("auto_pad", "ceil_mode", "storage_order")
    attributes: dict[str, Any] = {name: value for name, value in node.attributes.items() if name not in replaced}
    attributes["pads"] = [window.begin for window in axes] + [_end(window) for window in axes]
    attributes["strides"] = [window.stride for window in axes]
    return edit.op(node.op_type, node.inputs, attributes)


def _end(window: Window) -> int:
    """Return the padding after the input for which ``floor`` gives the same number of windows."""
    rest = window.end - window.overhang
    return window.end if 0 <= rest < window.stride else max(window.overhang, 0)


@rewrite("AveragePool", "LpPool", exactness=Exactness.ROUNDING, needs_shape=(0,), needs_dtype=(0,))
def matmul_pooling(node: ir.Node, edit: Edit) -> Replacement:
    """Compute averages, and sums of powers, by one constant matrix per axis."""
    axes, shape, order, dtype = _windows(node, edit), list(edit.shape(node)), _order(node), edit.dtype(node)
    a = Arithmetic(edit, wide_float(dtype))
    y = a.cast(edit.input(node))
    if node.op_type == "LpPool":
        y = _power(a, a("Abs", y), order)
    for axis, window in enumerate(axes, start=2):
        rows, columns = np.nonzero(_inside(window))
        matrix = np.zeros((window.count, window.size))
        matrix[rows, window.positions()[rows, columns]] = 1
        if node.op_type == "AveragePool":
            matrix /= np.maximum(_counts(node, window), 1)[:, None]
        y = a.apply_along(y, shape, axis, matrix.astype(a.dtype.numpy()))
        shape[axis] = window.count
    return a.cast(_power(a, y, 1 / order) if node.op_type == "LpPool" else y, dtype)


def _counts(node: ir.Node, window: Window) -> Array:
    """Return the number of elements that each window averages."""
    pads = (window.begin, window.end) if node.attributes.get_int("count_include_pad", 0) else (0, 0)
    counts: Array = _inside(window, *pads).sum(axis=1)
    return counts


def _order(node: ir.Node) -> float:
    """Return the p of a p-norm, which is a float in opset 1."""
    attribute = node.attributes.get("p")
    return float(attribute.value) if attribute is not None else 2.0


def _power(a: Arithmetic, x: ir.Value, exponent: float) -> ir.Value:
    return x if exponent == 1 else a("Pow", x, exponent)


@rewrite("MaxPool", needs_shape=(0,), needs_dtype=(0,))
def gather_max_pool(node: ir.Node, edit: Edit) -> Replacement:
    """Compute maxima of gathered windows, and their indices."""
    axes, (batch, channels, *spatial) = _windows(node, edit), edit.shape(node)
    if not all(_inside(window).any(axis=1).all() for window in axes):
        return Skip("a window contains only padding")
    planes, size = batch * channels, math.prod(spatial)
    shape, table = (batch, channels, *(window.count for window in axes)), _elements(axes, spatial)
    flat = edit.op("Gather", [edit.reshape(edit.input(node), (planes, size)), edit.constant(table)], {"axis": 1})
    maxima = edit.reshape(edit.reduce("Max", flat, [2], keepdims=False), shape)
    if not is_output_used(node, 1):
        return [maxima]
    first = edit.op("ArgMax", [flat], {"axis": 2, "keepdims": 0})
    starts = edit.index(np.arange(len(table)) * table.shape[1])
    if node.attributes.get_int("storage_order", 0):
        table = np.ravel_multi_index(np.unravel_index(table, spatial), tuple(spatial), order="F").astype(np.int64)
    places = edit.op("Gather", [edit.constant(table.ravel()), edit.op("Add", [first, starts])])
    offsets = edit.index(np.arange(planes)[:, None] * size)
    return [maxima, edit.reshape(edit.op("Add", [places, offsets]), shape)]


def _inside(window: Window, begin: int = 0, end: int = 0) -> Array:
    """Return which elements of each window are in the input, or in so many elements before or after it."""
    positions = window.positions()
    inside: Array = (positions >= -begin) & (positions < window.size + end)
    return inside


def _elements(axes: Sequence[Window], spatial: Sequence[int]) -> Array:
    """Return the flat indices of the elements of each window in one plane, (windows, elements of a window)."""
    columns = []
    for window in axes:
        positions, inside = window.positions(), _inside(window)
        first = np.take_along_axis(positions, inside.argmax(axis=1)[:, None], axis=1)
        columns.append(np.where(inside, positions, first))
    strides = [math.prod(spatial[axis + 1 :]) for axis in range(len(axes))]
    rank = len(axes)
    parts = []
    for axis, (positions, stride) in enumerate(zip(columns, strides, strict=True)):
        shape = [1] * (2 * rank)
        shape[axis], shape[rank + axis] = positions.shape
        parts.append(positions.reshape(shape) * stride)
    total = reduce(np.add, parts)
    table: Array = total.reshape(math.prod(total.shape[:rank]), -1).astype(np.int64)
    return table


@rewrite("GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool", exactness=Exactness.ROUNDING, needs_dtype=(0,))
def reduce_global_pooling(node: ir.Node, edit: Edit) -> Replacement:
    """Rewrite pooling over all spatial axes as a reduction."""
    shape, dtype, order = edit.scope.shape(node.inputs[0]), edit.dtype(node), _order(node)
    if shape is None:
        return Skip("the rank of the input is unknown")
    a, axes = Arithmetic(edit, wide_float(dtype)), range(2, len(shape))
    x = a.cast(edit.input(node))
    if node.op_type == "GlobalLpPool":
        y = _power(a, a.reduce("Sum", _power(a, a("Abs", x), order), axes), 1 / order)
    else:
        y = a.reduce("Max" if node.op_type == "GlobalMaxPool" else "Mean", x, axes)
    return a.cast(y, dtype)
