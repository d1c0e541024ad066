"""Merge a Slice with the one before it.

    Slice<b>(Slice<a>(x))  →  Slice<a, b>(x)                    of different axes
    x[s:e:t][u:v:w]        →  x[s + t·u : s + t·v : t·w]        of one axis, whose size is known

Skips: starts, ends, axes or steps that are not constant, or do not fit each other; axes counted from the last one of an
unknown number; of an axis that both slice, a size that is not known, or a negative step; a first Slice with other uses.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from passes.graphs.matching import is_op, operand
from passes.graphs.scopes import Scope
from passes.rewriting.base import NotApplicable, Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import Replacement, rewrite

_Bounds = Mapping[int, slice]
"""Start, end and step by axis."""


@rewrite("Slice")
def merge_slices(node: ir.Node, edit: Edit) -> Replacement:
    """Merge a Slice with the one before it."""
    first = edit.producer(node, 0, "Slice")
    source = first.inputs[0] if first is not None else None
    if first is None or source is None:
        return None
    middle = first.outputs[0]
    if middle.is_graph_output() or not all(
        use.idx == 0 and is_op(use.node, "Slice") and use.node.graph is node.graph for use in middle.uses()
    ):
        return Skip(f"{middle.name} is used elsewhere")
    shape = edit.scope.proven_shape(source)
    before, after = (_bounds(slicing, shape, edit.scope) for slicing in (first, node))
    bounds = {**before, **after}
    for axis in before.keys() & after.keys():
        size = shape[axis] if shape is not None else None
        if not isinstance(size, int):
            return Skip(f"both slice axis {axis} of {source.name}, whose size is not known")
        if before[axis].step < 0 or after[axis].step < 0:
            return Skip(f"both slice axis {axis} of {source.name}, one of them backwards")
        kept = range(size)[before[axis]][after[axis]]
        bounds[axis] = slice(kept.start, kept.stop, kept.step)
    edit.absorb(first)
    axes = sorted(bounds)
    slices = [bounds[axis] for axis in axes]
    operands = {"starts": [kept.start for kept in slices], "ends": [kept.stop for kept in slices], "axes": axes}
    if any(kept.step != 1 for kept in slices):
        operands["steps"] = [kept.step for kept in slices]
    inputs = [edit.constant(np.array(numbers, np.int64), f"{node.name}/{key}") for key, numbers in operands.items()]
    return edit.op("Slice", [source, *inputs])


def _bounds(node: ir.Node, shape: ir.Shape | None, scope: Scope) -> _Bounds:
    """Return what a Slice keeps of each axis that it slices; ``shape`` is that of its input, or has as many axes."""
    starts, ends = operand(node, 1, "starts", scope), operand(node, 2, "ends", scope)
    axes = operand(node, 3, "axes", scope) if _has(node, 3, "axes") else list(range(len(starts or ())))
    steps = operand(node, 4, "steps", scope) if _has(node, 4, "steps") else [1] * len(starts or ())
    if starts is None or ends is None or axes is None or steps is None:
        raise NotApplicable(f"the bounds of {node.name} are not constant")
    if not len(starts) == len(ends) == len(axes) == len(steps) or 0 in steps:
        raise NotApplicable(f"the bounds of {node.name} do not fit each other")
    if min(axes, default=0) < 0:
        if shape is None:
            raise NotApplicable(f"the number of axes of {node.name} is not known")
        axes = [axis % len(shape) for axis in axes]
    if len({*axes}) < len(axes):
        raise NotApplicable(f"{node.name} slices an axis twice")
    return {axis: slice(*bounds) for axis, *bounds in zip(axes, starts, ends, steps, strict=True)}


def _has(node: ir.Node, index: int, name: str) -> bool:
    """Return whether an input, or in older opsets an attribute, is given."""
    return name in node.attributes or (index < len(node.inputs) and node.inputs[index] is not None)
