"""Rewrite selections that MIGraphX does not support, or supports for constants only, as Gather.

    Compress(x, condition)      condition constant  →  Gather(x, indices of what is true)
    ReverseSequence(x, n)       source(t, b) = n_b − 1 − t if t < n_b, else t
                                →  Gather(x with time and batch as one axis, source(t, b) in it)

Skips: dynamic shapes; conditions that are not constant, because the output's size depends on them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from passes.builders.operands import not_constant
from passes.rewriting.base import Exactness, Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import Match, NodeContext, NodeRewrite


@dataclass(frozen=True)
class _Selected(Match):
    sizes: tuple[int, ...]
    axis: int | None
    indices: tuple[int, ...]


class GatherCompress(NodeRewrite[_Selected]):
    """Gather what a constant condition selects."""

    name = "gather-compress"
    exactness = Exactness.BITWISE
    operators = frozenset({("", "Compress")})
    needs_shape = (0,)

    def match(self, node: ir.Node, context: NodeContext) -> _Selected | Skip | None:
        scope = context.scope
        condition, sizes = scope.constant(node.inputs[1]), context.shape(node)
        if condition is None:
            assert node.inputs[1] is not None
            return Skip(f"the size of its output is unknown: {not_constant(node.inputs[1], 'its condition')}")
        axis = node.attributes["axis"].as_int() % len(sizes) if "axis" in node.attributes else None
        size = math.prod(sizes) if axis is None else sizes[axis]
        return _Selected(node, sizes, axis, tuple(np.flatnonzero(condition.numpy().ravel()[:size]).tolist()))

    def rewrite(self, match: _Selected, edit: Edit) -> Sequence[ir.Value | None] | Skip:
        """A Gather, from the flattened tensor without an axis; a constant if nothing is selected."""
        data = match.node.inputs[0]
        assert data is not None
        if not match.indices:
            dtype = edit.scope.dtype(data)
            shape = [0 if axis == (match.axis or 0) else size for axis, size in enumerate(match.sizes)]
            if dtype is None or dtype == ir.DataType.STRING:
                return Skip("it selects nothing, and its dtype is unknown")
            return [edit.constant(np.zeros(shape if match.axis is not None else 0, dtype.numpy()))]
        if match.axis is None:
            data = edit.reshape(data, [-1])
        indices = edit.constant(np.array(match.indices, np.int64))
        return [edit.op("Gather", [data, indices], {"axis": match.axis or 0})]


@dataclass(frozen=True)
class _Reversed(Match):
    sizes: tuple[int, ...]
    time: int


class GatherReverseSequence(NodeRewrite[_Reversed]):
    """Gather sequences in reverse, each up to its length."""

    name = "gather-reverse-sequence"
    exactness = Exactness.BITWISE
    operators = frozenset({("", "ReverseSequence")})
    needs_shape = (0,)

    def match(self, node: ir.Node, context: NodeContext) -> _Reversed | Skip | None:
        """Match any shape; lengths may be computed."""
        sizes = context.shape(node)
        time, batch = node.attributes.get_int("time_axis", 0), node.attributes.get_int("batch_axis", 1)
        return _Reversed(node, sizes, time) if {time, batch} == {0, 1} else None

    def rewrite(self, match: _Reversed, edit: Edit) -> Sequence[ir.Value | None]:
        """One Gather of the source positions."""
        x, lengths = match.node.inputs
        assert x is not None
        assert lengths is not None
        first, second, *rest = match.sizes
        steps = np.arange(match.sizes[match.time], dtype=np.int64)
        times = np.expand_dims(steps, 1 - match.time)  # broadcasts along the batch axis
        column = edit.reshape(lengths, [-1, 1] if match.time == 1 else [1, -1])
        reversed_times = edit.op("Sub", [edit.op("Sub", [column, edit.constant(np.int64(1))]), edit.constant(times)])
        source = edit.op(
            "Where", [edit.op("Less", [edit.constant(times), column]), reversed_times, edit.constant(times)]
        )
        if match.time == 0:
            source = edit.op("Mul", [source, edit.constant(np.int64(second))])
            offset = np.arange(second, dtype=np.int64)[None]
        else:
            offset = np.arange(first, dtype=np.int64)[:, None] * second
        indices = edit.reshape(edit.op("Add", [source, edit.constant(offset)]), [first * second])
        flat = edit.reshape(x, [first * second, *rest])
        return [edit.reshape(edit.op("Gather", [flat, indices], {"axis": 0}), match.sizes)]


RULES: tuple[NodeRewrite[Any], ...] = (GatherCompress(), GatherReverseSequence())
