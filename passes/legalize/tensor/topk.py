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

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from passes.builders.arithmetic import Arithmetic
from passes.builders.operands import given, not_constant
from passes.graphs.tensors import ints
from passes.rewriting.base import Exactness, Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import Match, NodeContext, NodeRewrite

_COMPARISONS = 1 << 22
"""The most comparisons: rows × axis²."""
_SHORT = 64
"""The longest axis for comparisons."""
_ROWS = 256
"""The most rows that become a node each."""


@dataclass(frozen=True)
class _Rows(Match):
    shape: tuple[int, ...]
    axis: int
    k: int
    largest: bool

    @property
    def length(self) -> int:
        return self.shape[self.axis]

    @property
    def count(self) -> int:
        return math.prod(size for axis, size in enumerate(self.shape) if axis != self.axis)


def _match(node: ir.Node, context: NodeContext) -> _Rows | Skip | None:
    shape = context.shape(node)
    k, operand = node.attributes.get_int("k", -1), given(node, 1)
    if operand is not None:
        found = ints(context.scope.constant(operand))
        if found is None:
            return Skip(not_constant(operand, "its k"))
        (k,) = found
    axis = node.attributes.get_int("axis", -1) % len(shape)
    made = _Rows(node, shape, axis, k, bool(node.attributes.get_int("largest", 1)))
    return made if made.count > 1 and made.length and k > 0 else None


class RankByComparison(NodeRewrite[_Rows]):
    """Compute the rank of each element of a short axis by comparisons with all others."""

    name = "rank-by-comparison"
    since_opset = 11  # Equal of floats
    exactness = Exactness.BITWISE
    operators = frozenset({("", "TopK")})
    needs_shape = (0,)

    def match(self, node: ir.Node, context: NodeContext) -> _Rows | Skip | None:
        found = _match(node, context)
        if isinstance(found, _Rows) and (found.length > _SHORT or found.count * found.length**2 > _COMPARISONS):
            return Skip(f"{found.count} rows of {found.length} elements need too many comparisons")
        return found

    def rewrite(self, match: _Rows, edit: Edit) -> Sequence[ir.Value | None]:
        """Count the elements before each element; the first k outputs take those with these counts."""
        x, axis, length, after = match.node.inputs[0], match.axis, match.length, len(match.shape)
        assert x is not None
        a = Arithmetic(edit, ir.DataType.INT32)
        places = np.arange(length)
        # an additional last axis holds the elements to compare with
        swap = [after if each == axis else each for each in range(after)] + [axis]
        mine = a.unsqueeze(x, [after])
        others = a("Transpose", mine, perm=swap)
        strictly_before = a("Less" if match.largest else "Greater", mine, others)
        lower = edit.constant((places < places[:, None]).reshape(_along(after + 1, {axis: length, after: length})))
        before = a("Or", strictly_before, a("And", a("Equal", mine, others), lower))
        ranks = a.reduce("Sum", a.cast(before), [after])
        wanted = a.value(np.arange(match.k).reshape(_along(after + 1, {after: match.k})))
        there = a.cast(a("Equal", ranks, wanted))
        found = a("ArgMax", there, axis=axis, keepdims=1)  # length 1 along the axis, k along the last one
        indices = a.squeeze(a("Transpose", found, perm=swap), [after])
        return [a("GatherElements", x, indices, axis=axis), indices]


class SortRowByRow(NodeRewrite[_Rows]):
    """Sort each row by a TopK of its own."""

    name = "sort-row-by-row"
    exactness = Exactness.BITWISE
    operators = frozenset({("", "TopK")})
    needs_shape = (0,)

    def match(self, node: ir.Node, context: NodeContext) -> _Rows | Skip | None:
        found = _match(node, context)
        if isinstance(found, _Rows) and found.count > _ROWS:
            return Skip(f"{found.count} rows are too many to become a node each")
        return found

    def rewrite(self, match: _Rows, edit: Edit) -> Sequence[ir.Value | None]:
        """Make the axis the last one, sort each row, and concatenate the results."""
        x, axis = match.node.inputs[0], match.axis
        assert x is not None
        a = Arithmetic(edit, ir.DataType.INT64)
        rest = [each for each in range(len(match.shape)) if each != axis]
        last = [*rest, axis]
        moved = a("Transpose", x, perm=last) if axis != last[axis] else x
        rows = a.reshape(moved, [match.count, match.length])
        attributes = {"axis": -1, **({} if match.largest else {"largest": 0})}  # not an attribute in old opsets
        sorted_ = [
            edit.node("TopK", [a.slice(rows, 0, row, row + 1), a.index([match.k])], attributes, outputs=2).outputs
            for row in range(match.count)
        ]
        back = [last.index(each) for each in range(len(last))]

        def joined(parts: Sequence[ir.Value]) -> ir.Value:
            whole = a.reshape(a.concat(parts, 0), [*(match.shape[each] for each in rest), match.k])
            return a("Transpose", whole, perm=back) if axis != last[axis] else whole

        return [joined(parts) for parts in zip(*sorted_, strict=True)]


def _along(rank: int, lengths: dict[int, int]) -> list[int]:
    """A shape of ones except for some axes."""
    return [lengths.get(axis, 1) for axis in range(rank)]


RULES: tuple[NodeRewrite[_Rows], ...] = (RankByComparison(), SortRowByRow())
