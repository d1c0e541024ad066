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
from typing import Any

import numpy as np
import onnx_ir as ir

from passes.builders.operands import given, integers, not_constant
from passes.graphs.scopes import Scope
from passes.rewriting.base import Exactness, Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import Match, NodeContext, NodeRewrite


@dataclass(frozen=True)
class Span:
    """The elements ``start``, ``start + step``, … of an axis; ``count`` elements in all."""

    axis: int
    start: int
    step: int
    count: int

    @classmethod
    def of(cls, size: int, axis: int, start: int, end: int, step: int) -> Span:
        """The span that bounds select on an axis of ``size`` elements."""
        low, high = (0, size) if step > 0 else (-1, size - 1)
        start = min(max(start + size if start < 0 else start, 0), high)
        end = min(max(end + size if end < 0 else end, low), high)
        return cls(axis, start, step, max(-((start - end) // step), 0))

    @property
    def indices(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        return self.start + self.step * np.arange(self.count, dtype=np.int64)

    @property
    def end(self) -> int:
        """The end bound for a positive step."""
        return self.start + (self.count - 1) * self.step + 1


_UNBOUNDED = (2**31 - 1, 2**63 - 1)
"""Ends that ONNX Runtime interprets as the end of the axis in the direction of the step."""


@dataclass(frozen=True)
class _Constant(Match):
    sizes: tuple[int, ...]
    spans: tuple[Span, ...]


class NormalizeSlice(NodeRewrite[_Constant]):
    """Make the bounds of a slice non-negative and in range."""

    name = "normalize-slice"
    exactness = Exactness.BITWISE
    operators = frozenset({("", "Slice")})
    needs_shape = (0,)

    def match(self, node: ir.Node, context: NodeContext) -> _Constant | Skip | None:
        """Match constant bounds that are not normalized."""
        scope, sizes = context.scope, context.shape(node)
        axes = _axes(node, len(sizes), scope)
        if isinstance(axes, str):
            return Skip(axes)
        starts, ends, steps = (_operand(node, name, scope) for name in ("starts", "ends", "steps"))
        if not isinstance(starts, list) or not isinstance(ends, list) or isinstance(steps, str):
            return None  # `GatherSlice` gives the reason
        if any(step < 0 and end in _UNBOUNDED for end, step in zip(ends, steps or [], strict=False)):
            return Skip("ONNX Runtime deviates from the standard for negative steps that end at the largest integer")
        spans = tuple(
            Span.of(sizes[axis], axis, *bounds)
            for axis, *bounds in zip(axes, starts, ends, steps or [1] * len(axes), strict=True)
        )
        return _Constant(node, sizes, spans) if not _is_normal(node, spans, sizes, scope) else None

    def rewrite(self, match: _Constant, edit: Edit) -> Sequence[ir.Value | None] | Skip:
        """A Slice of the axes with positive steps, then a Gather for each other axis."""
        x = match.node.inputs[0]
        assert x is not None
        if any(span.count == 0 for span in match.spans):
            dtype = edit.scope.dtype(x)
            counts = dict(enumerate(match.sizes)) | {span.axis: span.count for span in match.spans}
            if dtype is None or dtype == ir.DataType.STRING:
                return Skip("its output is empty, and its dtype is unknown")
            return [edit.constant(np.zeros(list(counts.values()), dtype.numpy()))]
        cut = [span for span in match.spans if span.step > 0 and not _is_whole(span, match.sizes)]
        if cut:
            x = _slice(edit, x, cut)
        for span in match.spans:
            if span.step < 0 and not _is_whole(span, match.sizes):
                x = edit.op("Gather", [x, edit.constant(span.indices)], {"axis": span.axis})
        return [x]


@dataclass(frozen=True)
class _Counted(Match):
    sizes: tuple[int, ...]
    axes: tuple[int, ...]
    counts: tuple[int, ...]


class GatherSlice(NodeRewrite[_Counted]):
    """Gather the elements between computed bounds, if their number is known."""

    name = "gather-slice"
    exactness = Exactness.BITWISE
    operators = frozenset({("", "Slice")})
    needs_shape = (0,)

    def match(self, node: ir.Node, context: NodeContext) -> _Counted | Skip | None:
        """Match computed bounds and known shapes of input and output."""
        scope = context.scope
        bounds = {name: _operand(node, name, scope) for name in ("starts", "ends", "steps")}
        reason = next((each for each in bounds.values() if isinstance(each, str)), None)
        if reason is None:
            return None
        sizes, after = context.shape(node), scope.proven_sizes(node.outputs[0])
        axes = _axes(node, len(sizes), scope)
        if isinstance(axes, str):
            return Skip(axes)
        if after is None:
            return Skip(reason)
        return _Counted(node, sizes, tuple(axes), tuple(after[axis] for axis in axes))

    def rewrite(self, match: _Counted, edit: Edit) -> Sequence[ir.Value | None]:
        """A Gather for each axis that may be cut or reversed."""
        x, node = match.node.inputs[0], match.node
        assert x is not None
        steps = _operand(node, "steps", edit.scope)
        sizes = np.array([match.sizes[axis] for axis in match.axes], np.int64)
        starts = _int64(edit, node.inputs[1])
        if isinstance(steps, str):
            stride = _int64(edit, given(node, 4))
            backwards = edit.op("Less", [stride, edit.constant(np.int64(0))])
            last = edit.op("Where", [backwards, edit.constant(sizes - 1), edit.constant(sizes)])
        else:
            known = np.array(steps or [1] * len(match.axes), np.int64)
            stride, last = edit.constant(known), edit.constant(np.where(known < 0, sizes - 1, sizes))
        negative = edit.op("Less", [starts, edit.constant(np.int64(0))])
        starts = edit.op("Where", [negative, edit.op("Add", [starts, edit.constant(sizes)]), starts])
        starts = edit.op("Min", [edit.op("Max", [starts, edit.constant(np.int64(0))]), last])
        for index, (axis, count) in enumerate(zip(match.axes, match.counts, strict=True)):
            if count == match.sizes[axis] and not isinstance(steps, str) and (not steps or steps[index] == 1):
                continue
            offsets = edit.op("Mul", [_element(edit, stride, index), edit.constant(np.arange(count, dtype=np.int64))])
            x = edit.op("Gather", [x, edit.op("Add", [_element(edit, starts, index), offsets])], {"axis": axis})
        return [x]


_INPUTS = {"starts": 1, "ends": 2, "axes": 3, "steps": 4}


def _operand(node: ir.Node, name: str, scope: Scope) -> list[int] | str | None:
    """Integers of an input, or of an attribute before opset 10: None if omitted, a reason if not constant."""
    if scope.opset() < 10:
        return list(node.attributes.get_ints(name, [])) or None
    return integers(given(node, _INPUTS[name]), f"its operand {name}", scope)


def _axes(node: ir.Node, rank: int, scope: Scope) -> list[int] | str:
    """The sliced axes, by default the first ones; a reason if they are not constant."""
    axes = _operand(node, "axes", scope)
    if isinstance(axes, str):
        return axes
    if axes is None:
        starts = _operand(node, "starts", scope)
        if isinstance(starts, list):
            return list(range(len(starts)))
        shape = scope.static_shape(given(node, 1))
        value = given(node, 1)
        return list(range(shape[0])) if shape else not_constant(value, "its starts") if value is not None else []
    return [axis % rank for axis in axes]


def _is_whole(span: Span, sizes: Sequence[int]) -> bool:
    """Whether a span selects the complete axis in order."""
    return span.count == sizes[span.axis] and (span.step == 1 or (span.count == 1 and span.start == 0))


def _is_normal(node: ir.Node, spans: Sequence[Span], sizes: Sequence[int], scope: Scope) -> bool:
    """Whether a slice is as `_slice` writes it."""
    return (
        _operand(node, "axes", scope) == [span.axis for span in spans]
        and _operand(node, "starts", scope) == [span.start for span in spans]
        and _operand(node, "ends", scope) == [span.end for span in spans]
        and all(span.step > 0 and span.count > 0 and not _is_whole(span, sizes) for span in spans)
    )


def _slice(edit: Edit, x: ir.Value, spans: Sequence[Span]) -> ir.Value:
    rows = [[span.start, span.end, span.axis, span.step] for span in spans]
    columns = [edit.constant(np.array(column, np.int64)) for column in zip(*rows, strict=True)]
    plain = all(span.step == 1 for span in spans)  # there is no input for steps before opset 10
    return edit.op("Slice", [x, *columns[: 3 if plain else 4]])


def _int64(edit: Edit, value: ir.Value | None) -> ir.Value:
    assert value is not None
    return value if edit.scope.dtype(value) == ir.DataType.INT64 else edit.op("Cast", [value], {"to": 7})


def _element(edit: Edit, vector: ir.Value, index: int) -> ir.Value:
    """One element of a vector, as a vector of length 1."""
    bounds = [edit.constant(np.array([each], np.int64)) for each in (index, index + 1, 0)]
    return edit.op("Slice", [vector, *bounds])


RULES: tuple[NodeRewrite[Any], ...] = (NormalizeSlice(), GatherSlice())
