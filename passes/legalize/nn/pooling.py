"""Rewrite pooling whose windows MIGraphX misplaces, or whose indices it does not compute.

    ceil_mode, auto_pad                →  pads, with more of them after the input if a window extends beyond it
    AveragePool, LpPool                →  MatMul(M, x) for each axis, M[o, i] = whether window o has element i, scaled
    MaxPool, with or without Indices   →  Gather(x, windows); ReduceMax; Indices from ArgMax
    GlobalAveragePool, GlobalMaxPool, GlobalLpPool  →  a reduction

An average is a product of averages along the axes, and so is the number of averaged elements. In the windows of
MaxPool, padding is replaced by the first element of the window that is not padding: that changes neither the maximum
nor the position of its first occurrence.

Skips: dynamic shapes; empty inputs and outputs; auto_pad=SAME with dilations or with strides larger than the window,
where ONNX Runtime deviates from the standard.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
import onnx_ir as ir

from passes.builders.arithmetic import Array, wide_float
from passes.builders.windows import Window, windows
from passes.rewriting.base import Exactness, Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import Match, NodeContext, NodeRewrite


@dataclass(frozen=True)
class _PoolMatch(Match):
    shape: tuple[int, ...]
    axes: tuple[Window, ...]


def _match(node: ir.Node, context: NodeContext) -> _PoolMatch | Skip:
    shape = context.shape(node)
    if 0 in shape:
        return Skip("its input is empty")
    kernel = node.attributes.get_ints("kernel_shape", [])
    if len(kernel) != len(shape) - 2:
        return Skip("its kernel_shape does not fit its input")
    axes = tuple(windows(node, shape[2:], kernel))
    if node.attributes.get_string("auto_pad", "NOTSET").startswith("SAME"):
        if any(each.dilation > 1 and each.kernel > 1 for each in axes):
            return Skip("ONNX Runtime's auto_pad ignores its dilations, which deviates from the standard")
        if any(each.stride > each.reach for each in axes):
            return Skip("its windows leave gaps: ONNX Runtime's auto_pad crops, which deviates from the standard")
    if any(each.count < 1 for each in axes):
        return Skip("its output is empty: a window is larger than the input")
    return _PoolMatch(node, shape, axes)


def _needs_indices(node: ir.Node) -> bool:
    return any(value.name and (value.uses() or value.is_graph_output()) for value in node.outputs[1:])


class ExplicitPooling(NodeRewrite[_PoolMatch]):
    """Replace auto_pad, ceil_mode and default attributes by explicit pads and strides."""

    name = "explicit-pooling"
    exactness = Exactness.ROUNDING
    operators = frozenset({("", "AveragePool"), ("", "LpPool"), ("", "MaxPool")})
    needs_shape = (0,)
    needs_dtype = (0,)

    def match(self, node: ir.Node, context: NodeContext) -> _PoolMatch | Skip | None:
        """Match attributes that are implicit, unless the indices are used."""
        auto = node.attributes.get_string("auto_pad", "NOTSET") != "NOTSET"
        implicit = not {"pads", "strides"} <= set(node.attributes)
        ceil = node.attributes.get_int("ceil_mode", 0) == 1
        if not (auto or implicit or ceil) or _needs_indices(node):
            return None
        found = _match(node, context)
        if not isinstance(found, _PoolMatch):
            return found
        if any(_end(each) >= each.kernel or each.begin >= each.kernel for each in found.axes):
            return Skip("its pads would be as large as the window")
        if node.attributes.get_int("count_include_pad", 0) and any(_end(each) > each.end for each in found.axes):
            return Skip("count_include_pad does not count elements beyond its padding")
        return found

    def rewrite(self, match: _PoolMatch, edit: Edit) -> Sequence[ir.Value | None]:
        """The same windows with explicit padding."""
        node = match.node
        attributes: dict[str, Any] = {
            name: attribute
            for name, attribute in node.attributes.items()
            if name not in ("auto_pad", "ceil_mode", "storage_order")
        }
        attributes["pads"] = [each.begin for each in match.axes] + [_end(each) for each in match.axes]
        attributes["strides"] = [each.stride for each in match.axes]
        return [edit.op(node.op_type, node.inputs, attributes)]


def _end(window: Window) -> int:
    """The padding after the input for which ``floor`` gives the same number of windows."""
    rest = window.end - window.overhang
    return window.end if 0 <= rest < window.stride else max(window.overhang, 0)


class MatMulPooling(NodeRewrite[_PoolMatch]):
    """Compute averages, and sums of powers, by one constant matrix per axis."""

    name = "matmul-pooling"
    exactness = Exactness.ROUNDING
    operators = frozenset({("", "AveragePool"), ("", "LpPool")})
    needs_shape = (0,)
    needs_dtype = (0,)

    def match(self, node: ir.Node, context: NodeContext) -> _PoolMatch | Skip | None:
        """Match any pooling with valid windows."""
        return _match(node, context)

    def rewrite(self, match: _PoolMatch, edit: Edit) -> Sequence[ir.Value | None]:
        node, x = match.node, match.node.inputs[0]
        assert x is not None
        dtype = edit.dtype(node)
        working = wide_float(dtype)
        y, shape = edit.cast(x, working), list(match.shape)
        order = _order(node)
        if node.op_type == "LpPool":
            y = _power(edit, edit.op("Abs", [y]), order, working)
        for axis, each in enumerate(match.axes):
            positions = each.positions()
            rows, columns = np.nonzero((positions >= 0) & (positions < each.size))
            matrix = np.zeros((each.count, each.size))
            matrix[rows, positions[rows, columns]] = 1
            if node.op_type == "AveragePool":
                matrix /= np.maximum(_counts(node, each), 1)[:, None]
            y = edit.apply_along(y, shape, axis + 2, matrix.astype(working.numpy()))
            shape[axis + 2] = each.count
        if node.op_type == "LpPool":
            y = _power(edit, y, 1 / order, working)
        return [edit.cast(y, dtype)]


def _counts(node: ir.Node, window: Window) -> Array:
    """The number of elements that each window averages."""
    behind = window.size + (window.end if node.attributes.get_int("count_include_pad", 0) else 0)
    before = -window.begin if node.attributes.get_int("count_include_pad", 0) else 0
    positions = window.positions()
    counts: Array = ((positions >= before) & (positions < behind)).sum(axis=1)
    return counts


def _order(node: ir.Node) -> float:
    """The p of a p-norm, which is a float in opset 1."""
    attribute = node.attributes.get("p")
    return float(attribute.value) if attribute is not None else 2.0


def _power(edit: Edit, x: ir.Value, exponent: float, dtype: ir.DataType) -> ir.Value:
    return x if exponent == 1 else edit.op("Pow", [x, edit.scalar(exponent, dtype)])


class GatherMaxPool(NodeRewrite[_PoolMatch]):
    """Compute maxima of gathered windows, and their indices."""

    name = "gather-max-pool"
    exactness = Exactness.BITWISE
    operators = frozenset({("", "MaxPool")})
    needs_shape = (0,)
    needs_dtype = (0,)

    def match(self, node: ir.Node, context: NodeContext) -> _PoolMatch | Skip | None:
        """Match if every window has an element of the input."""
        found = _match(node, context)
        if isinstance(found, _PoolMatch) and not all(_inside(each).any(axis=1).all() for each in found.axes):
            return Skip("it has a window that contains only padding")
        return found

    def rewrite(self, match: _PoolMatch, edit: Edit) -> Sequence[ir.Value | None]:
        """One Gather of all windows."""
        node, x = match.node, match.node.inputs[0]
        assert x is not None
        planes, spatial = match.shape[0] * match.shape[1], match.shape[2:]
        shape = (*match.shape[:2], *(each.count for each in match.axes))
        table = _elements(match.axes, spatial)
        flat = edit.op(
            "Gather",
            [edit.reshape(x, (planes, math.prod(spatial))), edit.constant(table)],
            {"axis": 1},
        )
        last = edit.constant(np.array([2], np.int64))
        maxima = edit.reshape(edit.op("ReduceMax", [flat, last], {"keepdims": 0}), shape)
        if not _needs_indices(node):
            return [maxima]
        first = edit.op("ArgMax", [flat], {"axis": 2, "keepdims": 0})
        starts = edit.constant(np.arange(len(table), dtype=np.int64) * table.shape[1])
        if node.attributes.get_int("storage_order", 0):
            table = _column_major(table, spatial)
        found = edit.op("Gather", [edit.constant(table.ravel()), edit.op("Add", [first, starts])])
        offsets = edit.constant(np.arange(planes, dtype=np.int64)[:, None] * math.prod(spatial))
        return [maxima, edit.reshape(edit.op("Add", [found, offsets]), shape)]


def _inside(window: Window) -> Array:
    positions = window.positions()
    inside: Array = (positions >= 0) & (positions < window.size)
    return inside


def _elements(axes: Sequence[Window], spatial: Sequence[int]) -> Array:
    """The flat indices of the elements of each window in one plane, (windows, elements of a window)."""
    columns = []
    for each in axes:
        positions, inside = each.positions(), _inside(each)
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


def _column_major(table: Array, spatial: Sequence[int]) -> Array:
    """The same elements with column-major flat indices."""
    return np.ravel_multi_index(np.unravel_index(table, spatial), tuple(spatial), order="F").astype(np.int64)


class ReduceGlobalPooling(NodeRewrite[Match]):
    """Rewrite pooling over all spatial axes as a reduction."""

    name = "reduce-global-pooling"
    exactness = Exactness.ROUNDING
    operators = frozenset({("", "GlobalAveragePool"), ("", "GlobalLpPool"), ("", "GlobalMaxPool")})
    needs_dtype = (0,)

    def match(self, node: ir.Node, context: NodeContext) -> Match | Skip | None:
        """Match inputs of known rank."""
        return (
            Match(node) if context.scope.shape(node.inputs[0]) is not None else Skip("the rank of its input is unknown")
        )

    def rewrite(self, match: Match, edit: Edit) -> Sequence[ir.Value | None]:
        """ReduceMean, ReduceMax, or a sum of powers."""
        node, x = match.node, match.node.inputs[0]
        shape, dtype = edit.scope.shape(x), edit.dtype(node)
        working = wide_float(dtype)
        assert x is not None and shape is not None
        axes = edit.constant(np.arange(2, len(shape), dtype=np.int64))
        y = edit.cast(x, working)
        if node.op_type == "GlobalLpPool":
            order = _order(node)
            y = edit.op("ReduceSum", [_power(edit, edit.op("Abs", [y]), order, working), axes], {"keepdims": 1})
            y = _power(edit, y, 1 / order, working)
        else:
            reduction = "ReduceMax" if node.op_type == "GlobalMaxPool" else "ReduceMean"
            y = edit.op(reduction, [y, axes], {"keepdims": 1})
        return [edit.cast(y, dtype)]


RULES: tuple[NodeRewrite[Any], ...] = (ExplicitPooling(), MatMulPooling(), GatherMaxPool(), ReduceGlobalPooling())
