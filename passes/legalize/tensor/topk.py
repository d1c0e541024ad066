"""Rewrite TopK so that it does not sort several rows concurrently, for which the runtime's threads conflict.

    TopK(x, k), short axis   →   rank_i = #{j : x_j before x_i};   indices_r = ArgMax_i(rank_i = r),   r < k
                                 values = GatherElements(x, indices)
    TopK(x, k), long axis    →   Concat(TopK(row 0, k), TopK(row 1, k), …)

An element is before another if it is larger, or equal and of lower index; smaller, for ``largest = 0``. Ranks cost the
square of the axis; rows cost a node each. A sorted result is also valid for ``sorted = 0``.

Skips: a k that is not constant; dynamic shapes; a single row; for ranks, more comparisons than `_COMPARISONS` and
opsets before 11; for rows, more than `_ROWS`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from passes.builders.arithmetic import Arithmetic
from passes.rewriting.base import Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import Replacement, rewrite

_COMPARISONS = 1 << 22
"""The most comparisons: rows × axis²."""
_SHORT = 64
"""The longest axis for comparisons."""
_ROWS = 256
"""The most rows that become a node each."""


@dataclass(frozen=True)
class _Rows:
    """The lines of ``length`` elements of a tensor along a non-negative axis, of which TopK sorts each."""

    axis: int
    length: int
    count: int
    k: int
    largest: bool

    @classmethod
    def of(cls, node: ir.Node, edit: Edit) -> _Rows | None:
        """Return the rows that a node sorts; None for a single row."""
        shape = edit.shape(node)
        (k,) = edit.integers(node, 1, "k") or [node.attributes.get_int("k", -1)]
        axis = node.attributes.get_int("axis", -1) % len(shape)
        length, count = shape[axis], int(np.prod(np.delete(shape, axis), dtype=np.int64))
        if count <= 1 or not length or k <= 0:
            return None
        return cls(axis, length, count, k, bool(node.attributes.get_int("largest", 1)))


@rewrite("TopK", since_opset=11, needs_shape=(0,))  # Equal of floats
def rank_by_comparison(node: ir.Node, edit: Edit) -> Replacement:
    """Compute the rank of each element of a short axis by comparisons with all others."""
    x, after, rows = edit.input(node), len(edit.shape(node)), _Rows.of(node, edit)
    if rows is None:
        return None
    axis, length = rows.axis, rows.length
    if length > _SHORT or rows.count * length**2 > _COMPARISONS:
        return Skip(f"{rows.count} rows of {length} elements need too many comparisons")
    a = Arithmetic(edit, ir.DataType.INT32)
    places = np.arange(length)
    # an additional last axis holds the elements to compare with
    swap = list(range(after + 1))
    swap[axis], swap[after] = after, axis
    elements = a.unsqueeze(x, [after])
    others = a("Transpose", elements, perm=swap)
    strictly_before = a("Less" if rows.largest else "Greater", elements, others)
    lower = edit.constant((places < places[:, None]).reshape(_along(after + 1, {axis: length, after: length})))
    before = a("Or", strictly_before, a("And", a("Equal", elements, others), lower))
    ranks = a.reduce("Sum", a.cast(before), [after])
    results = np.arange(rows.k).reshape(_along(after + 1, {after: rows.k}))
    has_rank = a.cast(a("Equal", ranks, results))
    indices = a("ArgMax", has_rank, axis=axis, keepdims=1)  # length 1 along the axis, k along the last one
    indices = a.squeeze(a("Transpose", indices, perm=swap), [after])
    return [a("GatherElements", x, indices, axis=axis), indices]


@rewrite("TopK", needs_shape=(0,))
def sort_row_by_row(node: ir.Node, edit: Edit) -> Replacement:
    """Sort each row by a TopK of its own."""
    x, shape, rows = edit.input(node), edit.shape(node), _Rows.of(node, edit)
    if rows is None:
        return None
    if rows.count > _ROWS:
        return Skip(f"{rows.count} rows are too many to become a node each")
    rest = [axis for axis in range(len(shape)) if axis != rows.axis]
    last = [*rest, rows.axis]  # the axis becomes the last one
    is_last = last == sorted(last)
    moved = x if is_last else edit.op("Transpose", [x], {"perm": last})
    flat = edit.reshape(moved, [rows.count, rows.length])
    attributes = {"axis": -1} if rows.largest else {"axis": -1, "largest": 0}  # not an attribute in old opsets
    results = []
    for row in range(rows.count):
        operands = [edit.slice(flat, 0, row, row + 1), edit.index([rows.k])]
        results.append(edit.node("TopK", operands, attributes, outputs=2).outputs)
    outputs = []
    for parts in zip(*results, strict=True):
        y = edit.reshape(edit.concat(parts, 0), [*(shape[axis] for axis in rest), rows.k])
        outputs.append(y if is_last else edit.op("Transpose", [y], {"perm": np.argsort(last).tolist()}))
    return outputs


def _along(rank: int, lengths: dict[int, int]) -> list[int]:
    """Return a shape of ones except for some axes."""
    return [lengths.get(axis, 1) for axis in range(rank)]
