"""Rewrite scatters that MIGraphX does not support, and remove those without updates.

    TensorScatter(past, u, w)       →  ScatterElements(past, (w + [0, 1, …]) mod size, u) along the axis
    Scatter…(x, i, u)               without indices  →  x

Skips: dynamic shapes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from passes.builders.operands import given
from passes.rewriting.base import Exactness, Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import Match, NodeContext, NodeRewrite


class DropEmptyScatter(NodeRewrite[Match]):
    """Remove a scatter without updates."""

    name = "drop-empty-scatter"
    exactness = Exactness.BITWISE
    operators = frozenset(("", each) for each in ("Scatter", "ScatterElements", "ScatterND", "TensorScatter"))

    def match(self, node: ir.Node, context: NodeContext) -> Match | Skip | None:
        updates = context.scope.static_shape(node.inputs[1 if node.op_type == "TensorScatter" else 2])
        return Match(node) if updates is not None and 0 in updates else None

    def rewrite(self, match: Match, edit: Edit) -> Sequence[ir.Value | None]:
        return [match.node.inputs[0]]


@dataclass(frozen=True)
class _Cache(Match):
    past: tuple[int, ...]
    update: tuple[int, ...]
    axis: int


class ScatterTensor(NodeRewrite[_Cache]):
    """Rewrite TensorScatter with the index of each element along the sequence axis."""

    name = "scatter-tensor"
    exactness = Exactness.BITWISE
    operators = frozenset({("", "TensorScatter")})
    needs_shape = (0, 1)

    def match(self, node: ir.Node, context: NodeContext) -> _Cache | Skip | None:
        """Match any shapes; the write positions may be computed."""
        past, update = context.shape(node, 0), context.shape(node, 1)
        return _Cache(node, past, update, node.attributes.get_int("axis", -2) % len(past))

    def rewrite(self, match: _Cache, edit: Edit) -> Sequence[ir.Value | None]:
        """One ScatterElements; indices are equal along all axes but the batch and the sequence."""
        node, axis = match.node, match.axis
        past, update, begin = node.inputs[0], node.inputs[1], given(node, 2)
        along = [1] * len(match.update)
        along[axis] = match.update[axis]
        indices = edit.constant(np.arange(match.update[axis], dtype=np.int64).reshape(along))
        if begin is not None:
            column = edit.reshape(begin, [match.update[0], *[1] * (len(match.update) - 1)])
            indices = edit.op("Add", [column, indices])
        if node.attributes.get_string("mode", "linear") == "circular":
            indices = edit.op("Mod", [indices, edit.constant(np.int64(match.past[axis]))])
        indices = edit.op("Expand", [indices, edit.constant(np.array(match.update, np.int64))])
        return [edit.op("ScatterElements", [past, indices, update], {"axis": axis})]


RULES: tuple[NodeRewrite[Any], ...] = (DropEmptyScatter(), ScatterTensor())
