"""Rewrite slices whose bounds MIGraphX misinterprets, or requires to be constant.

    Slice(x, starts, ends, axes, steps)    all constant       →  the same, clamped, for the axes that it cuts
                                           negative steps     →  Gather(x, constant indices)
    Slice(x, starts, ends, axes, steps)    computed bounds    →  Gather(x, start + step · [0, 1, …]) for each axis

Negative bounds count from the end; then bounds are clamped to [0, size], or to [−1, size − 1] if the step is negative.
For computed bounds, the number of elements between them is taken from the shape of the output.

Skips: axes that are not constant; dynamic shapes; computed bounds if the output's shape is unknown; negative steps that
end at the largest integer, where ONNX Runtime deviates from the standard.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from passes.builders.arithmetic import Arithmetic
from passes.builders.operands import given
from passes.graphs.scopes import Scope
from passes.rewriting.base import NotApplicable, Skip
from passes.rewriting.edit import Edit, not_constant
from passes.rewriting.expressions import Array
from passes.rewriting.rewrite import Replacement, rewrite

_UNBOUNDED = (2**31 - 1, 2**63 - 1)
"""Ends that ONNX Runtime interprets as the end of the axis in the direction of the step."""
_INPUTS = {"starts": 1, "ends": 2, "axes": 3, "steps": 4}


@dataclass(frozen=True)
class Span:
    """The elements ``start``, ``start + step``, … of an axis; ``count`` elements in all."""

    axis: int
    start: int
    step: int
    count: int

    @classmethod
    def of(cls, size: int, axis: int, start: int, end: int, step: int) -> Span:
        """Return the span that bounds select on an axis of ``size`` elements."""
        low, high = (0, size) if step > 0 else (-1, size - 1)
        start = min(max(start + size if start < 0 else start, 0), high)
        end = min(max(end + size if end < 0 else end, low), high)
        return cls(axis, start, step, max(-((start - end) // step), 0))

    @property
    def indices(self) -> Array:
        """The index of each element."""
        return self.start + self.step * np.arange(self.count)

    @property
    def end(self) -> int:
        """The end bound for a positive step."""
        return self.start + (self.count - 1) * self.step + 1


@rewrite("Slice", needs_shape=(0,))
def normalize_slice(node: ir.Node, edit: Edit) -> Replacement:
    """Make the bounds of a slice non-negative and in range."""
    x, shape, axes = edit.input(node), edit.shape(node), _axes(node, edit)
    if _computed_bound(node, edit.scope) is not None:
        return None  # `gather_slice` gives the reason
    starts, ends, steps = (_operand(node, name, edit) for name in ("starts", "ends", "steps"))
    if starts is None or ends is None:
        return None
    steps = steps or [1] * len(axes)
    if any(step < 0 and end in _UNBOUNDED for end, step in zip(ends, steps, strict=True)):
        return Skip("ONNX Runtime deviates from the standard for negative steps that end at the largest integer")
    spans = [Span.of(shape[axis], axis, *bounds) for axis, *bounds in zip(axes, starts, ends, steps, strict=True)]
    parts = [span for span in spans if not _is_whole(span, shape)]
    if _is_normal(node, spans, edit) and len(parts) == len(spans):
        return None
    if any(span.count == 0 for span in spans):
        dtype = edit.scope.dtype(x)
        counts = dict(enumerate(shape)) | {span.axis: span.count for span in spans}
        if dtype is None or dtype == ir.DataType.STRING:
            return Skip("the output is empty, and the dtype of the input is unknown")
        return edit.constant(np.zeros(list(counts.values()), dtype.numpy()))
    cuts = [span for span in parts if span.step > 0]
    if cuts:
        x = _slice(edit, x, cuts)
    for span in parts:
        if span.step < 0:
            x = edit.op("Gather", [x, edit.index(span.indices)], {"axis": span.axis})
    return x


@rewrite("Slice", needs_shape=(0,))
def gather_slice(node: ir.Node, edit: Edit) -> Replacement:
    """Gather the elements between computed bounds, if their number is known."""
    computed = _computed_bound(node, edit.scope)
    if computed is None:
        return None
    x, shape, axes = edit.input(node), edit.shape(node), _axes(node, edit)
    after = edit.scope.proven_sizes(node.outputs[0])
    if after is None:
        return Skip(not_constant(edit.input(node, _INPUTS[computed]), f"the operand {computed}"))
    a = Arithmetic(edit, ir.DataType.INT64)
    sizes, starts, operand = np.array([shape[axis] for axis in axes]), a.cast(edit.input(node, 1)), given(node, 4)
    steps: list[int] | None = None
    if operand is not None and edit.scope.constant(operand) is None:
        stride = a.cast(operand)
        last = a("Where", a("Less", stride, 0), sizes - 1, sizes)
    else:
        steps = edit.integers(node, 4, "the operand steps") or [1] * len(axes)
        stride, last = a.value(np.array(steps)), a.value(np.where(np.array(steps) < 0, sizes - 1, sizes))
    starts = a("Where", a("Less", starts, 0), a("Add", starts, sizes), starts)
    starts = a("Min", a("Max", starts, 0), last)
    for index, axis in enumerate(axes):
        if after[axis] == shape[axis] and steps is not None and steps[index] == 1:
            continue
        offsets = a("Mul", a.slice(stride, 0, index, index + 1), np.arange(after[axis]))
        x = a("Gather", x, a("Add", a.slice(starts, 0, index, index + 1), offsets), axis=axis)
    return x


def _computed_bound(node: ir.Node, scope: Scope) -> str | None:
    """Return the name of the first operand that is not constant, apart from the axes."""
    for name in ("starts", "ends", "steps"):
        value = given(node, _INPUTS[name])
        if value is not None and scope.constant(value) is None:
            return name
    return None


def _operand(node: ir.Node, name: str, edit: Edit) -> list[int] | None:
    """Return the integers of an input, or of an attribute before opset 10; None if it is omitted."""
    if edit.scope.opset() < 10:
        return list(node.attributes.get_ints(name, [])) or None
    return edit.integers(node, _INPUTS[name], f"the operand {name}")


def _axes(node: ir.Node, edit: Edit) -> list[int]:
    """Return the sliced axes, by default the first ones."""
    axes, starts = _operand(node, "axes", edit), given(node, 1)
    if axes is not None:
        return [axis % len(edit.shape(node)) for axis in axes]
    if starts is None or edit.scope.constant(starts) is not None:
        return list(range(len(_operand(node, "starts", edit) or [])))
    shape = edit.scope.static_shape(starts)
    if not shape:
        raise NotApplicable(not_constant(starts, "the operand starts"))
    return list(range(shape[0]))


def _is_whole(span: Span, shape: Sequence[int]) -> bool:
    """Return whether a span selects the complete axis in order."""
    return span.count == shape[span.axis] and (span.step == 1 or (span.count == 1 and span.start == 0))


def _is_normal(node: ir.Node, spans: Sequence[Span], edit: Edit) -> bool:
    """Return whether the operands of a slice are as `_slice` writes them."""
    return (
        _operand(node, "axes", edit) == [span.axis for span in spans]
        and _operand(node, "starts", edit) == [span.start for span in spans]
        and _operand(node, "ends", edit) == [span.end for span in spans]
        and all(span.step > 0 and span.count > 0 for span in spans)
    )


def _slice(edit: Edit, x: ir.Value, spans: Sequence[Span]) -> ir.Value:
    rows = [[span.start, span.end, span.axis, span.step] for span in spans]
    columns = [edit.index(column) for column in zip(*rows, strict=True)]
    plain = all(span.step == 1 for span in spans)  # there is no input for steps before opset 10
    return edit.op("Slice", [x, *columns[: 3 if plain else 4]])
