"""Merge a Slice with the one before it.

    Slice<b>(Slice<a>(x))  →  Slice<a, b>(x)                    of different axes
    x[s:e:t][u:v:w]        →  x[s + t·u : s + t·v : t·w]        of one axis, whose size is known

Skips: starts, ends, axes or steps that are not constant, or do not fit each other; axes counted from the last one of an
unknown number; of an axis that both slice, a size that is not known, or a negative step; a first Slice with other uses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from passes.graphs.matching import is_op, operand
from passes.graphs.scopes import Scope
from passes.rewriting.base import Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import Match, NodeContext, NodeRewrite

_Bounds = Mapping[int, slice]
"""Start, end and step by axis."""


@dataclass(frozen=True)
class _Pair(Match):
    source: ir.Value
    bounds: _Bounds


class MergeSlices(NodeRewrite[_Pair]):
    """Merge a Slice with the one before it."""

    name = "merge-slices"
    operators = frozenset({("", "Slice")})

    def match(self, node: ir.Node, context: NodeContext) -> _Pair | Skip | None:
        """Compose the bounds of both, where that leaves one Slice less."""
        scope = context.scope
        first = context.producer(node, 0, "Slice")
        middle = node.inputs[0]
        source = first.inputs[0] if first is not None else None
        if first is None or middle is None or source is None:
            return None
        if middle.is_graph_output() or not all(
            use.idx == 0 and is_op(use.node, "Slice") and use.node.graph is node.graph for use in middle.uses()
        ):
            return Skip(f"{middle.name} is used elsewhere")
        shape = scope.proven_shape(source)
        before, after = (_bounds(each, shape, scope) for each in (first, node))
        if isinstance(before, Skip):
            return before
        if isinstance(after, Skip):
            return after
        bounds = {**before, **after}
        for axis in before.keys() & after.keys():
            size = shape[axis] if shape is not None else None
            if not isinstance(size, int):
                return Skip(f"both slice axis {axis} of {source.name}, whose size is not known")
            if before[axis].step < 0 or after[axis].step < 0:
                return Skip(f"both slice axis {axis} of {source.name}, one of them backwards")
            kept = range(size)[before[axis]][after[axis]]
            bounds[axis] = slice(kept.start, kept.stop, kept.step)
        return _Pair(node, source, bounds, absorbed=(first,))

    def rewrite(self, match: _Pair, edit: Edit) -> Sequence[ir.Value]:
        """One Slice of all axes."""
        axes = sorted(match.bounds)
        bounds = [match.bounds[axis] for axis in axes]
        operands = {"starts": [each.start for each in bounds], "ends": [each.stop for each in bounds], "axes": axes}
        if any(each.step != 1 for each in bounds):
            operands["steps"] = [each.step for each in bounds]
        made = [edit.constant(np.array(each, np.int64), f"{match.node.name}/{key}") for key, each in operands.items()]
        return [edit.op("Slice", [match.source, *made])]


def _bounds(node: ir.Node, shape: ir.Shape | None, scope: Scope) -> _Bounds | Skip:
    """What a Slice keeps of each axis that it slices; ``shape`` is that of its input, or has as many axes."""
    starts, ends = operand(node, 1, "starts", scope), operand(node, 2, "ends", scope)
    axes = operand(node, 3, "axes", scope) if _has(node, 3, "axes") else list(range(len(starts or ())))
    steps = operand(node, 4, "steps", scope) if _has(node, 4, "steps") else [1] * len(starts or ())
    if starts is None or ends is None or axes is None or steps is None:
        return Skip(f"the bounds of {node.name} are not constant")
    if not len(starts) == len(ends) == len(axes) == len(steps) or 0 in steps:
        return Skip(f"the bounds of {node.name} do not fit each other")
    if min(axes, default=0) < 0:
        if shape is None:
            return Skip(f"the number of axes of {node.name} is not known")
        axes = [axis % len(shape) for axis in axes]
    if len({*axes}) < len(axes):
        return Skip(f"{node.name} slices an axis twice")
    return {axis: slice(*each) for axis, *each in zip(axes, starts, ends, steps, strict=True)}


def _has(node: ir.Node, index: int, name: str) -> bool:
    """Whether an input, or in older opsets an attribute, is given."""
    return name in node.attributes or (index < len(node.inputs) and node.inputs[index] is not None)
