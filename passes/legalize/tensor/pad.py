"""Rewrite Pad as concatenation or Gather.

    constant:             Concat(value, x, value)            for each padded axis
    reflect, edge, wrap:  Gather(x, indices, axis)           for each padded axis
    negative pads:        Slice(x), first

`separate-pad` applies the first to a Pad before a convolution or pooling, which MIGraphX would merge into the
operator's own padding: that loses the value, the pads of batch and channels, and a convolution's own pads.

Skips: pads or axes that are not constant; dynamic shapes; empty outputs; negative pads beyond the input's size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx_ir as ir

from passes.builders.operands import UNKNOWN_DTYPE, UNKNOWN_SHAPE, given, integers
from passes.graphs.scopes import Scope
from passes.rewriting.base import Exactness, Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import Match, NodeContext, NodeRewrite

_PERIODIC = {"reflect": "reflect", "edge": "edge", "wrap": "wrap"}
"""The modes that repeat the input, with numpy's names for them."""


@dataclass(frozen=True)
class Padding(Match):
    """The pads of a Pad.

    Attributes:
        pad: the Pad; ``node`` is the one to replace, which may be its consumer.
        shape: of its input.
        begins: number of elements before the input, by axis; negative for cropping.
        ends: number of elements after it.
    """

    pad: ir.Node
    shape: tuple[int, ...]
    begins: tuple[int, ...]
    ends: tuple[int, ...]


def read_padding(pad: ir.Node, scope: Scope) -> Padding | str:
    """The pads of a Pad by axis; a reason if they are not known."""
    shape = scope.static_shape(pad.inputs[0])
    if shape is None:
        return UNKNOWN_SHAPE
    rank = len(shape)
    if scope.opset() < 11:
        pads: list[int] | str | None = list(pad.attributes.get_ints("pads" if scope.opset() > 1 else "paddings", []))
    else:
        pads = integers(given(pad, 1), "pads", scope)
    axes = integers(given(pad, 3), "axes", scope)
    if isinstance(pads, str) or isinstance(axes, str):
        return pads if isinstance(pads, str) else str(axes)
    axes = [axis % rank for axis in axes] if axes is not None else list(range(rank))
    if pads is None or len(pads) != 2 * len(axes):
        return "its pads do not fit its dimensions"
    begins, ends = [0] * rank, [0] * rank
    for axis, begin, end in zip(axes, pads[: len(axes)], pads[len(axes) :], strict=True):
        begins[axis], ends[axis] = begin, end
    if any(sum(side) < 1 for side in zip(shape, begins, ends, strict=True)):
        return "its output is empty"
    if any(size + min(begin, 0) + min(end, 0) < 0 for size, begin, end in zip(shape, begins, ends, strict=True)):
        return "it crops more than there is"
    return Padding(pad, pad, shape, tuple(begins), tuple(ends))


def _crop(padding: Padding, edit: Edit) -> tuple[ir.Value, list[int]]:
    """The input cropped by negative pads, and its shape."""
    x = padding.pad.inputs[0]
    assert x is not None
    sides = list(zip(padding.shape, padding.begins, padding.ends, strict=True))
    cropped = [axis for axis, (_, begin, end) in enumerate(sides) if begin < 0 or end < 0]
    shape = [size + min(begin, 0) + min(end, 0) for size, begin, end in sides]
    if cropped:
        starts = [max(-padding.begins[axis], 0) for axis in cropped]
        stops = [start + shape[axis] for start, axis in zip(starts, cropped, strict=True)]
        operands = [edit.constant(np.array(each, np.int64)) for each in (starts, stops, cropped)]
        x = edit.op("Slice", [x, *operands])
    return x, shape


def concatenated(padding: Padding, edit: Edit) -> ir.Value:
    """A constant Pad as one Concat per axis."""
    x, shape = _crop(padding, edit)
    fill = _fill(padding.pad, edit)
    if 0 in shape:  # the input is cropped entirely
        sides = zip(shape, padding.begins, padding.ends, strict=True)
        return _block(edit, fill, [size + max(begin, 0) + max(end, 0) for size, begin, end in sides])
    for axis, (begin, end) in enumerate(zip(padding.begins, padding.ends, strict=True)):
        parts = [x]
        if begin > 0:
            parts.insert(0, _block(edit, fill, (*shape[:axis], begin, *shape[axis + 1 :])))
        if end > 0:
            parts.append(_block(edit, fill, (*shape[:axis], end, *shape[axis + 1 :])))
        if len(parts) > 1:
            x = edit.op("Concat", parts, {"axis": axis})
            shape[axis] += max(begin, 0) + max(end, 0)
    return x


def _fill(pad: ir.Node, edit: Edit) -> ir.Value:
    """The value of a constant Pad: a scalar, or one element."""
    value = given(pad, 2)
    if value is not None:
        return value
    dtype = edit.scope.dtype(pad.inputs[0])
    assert dtype is not None
    return edit.constant(np.array(pad.attributes.get_float("value", 0.0)).astype(dtype.numpy()))


def _block(edit: Edit, fill: ir.Value, shape: Sequence[int]) -> ir.Value:
    if edit.scope.opset() < 8:  # the value is an attribute, and there is no Expand
        assert fill.const_value is not None
        return edit.constant(np.full(shape, fill.const_value.numpy()))
    return edit.op("Expand", [fill, edit.constant(np.array(shape, np.int64))])


class ConcatPad(NodeRewrite[Padding]):
    """Rewrite a constant Pad as concatenations."""

    name = "concat-pad"
    exactness = Exactness.BITWISE
    operators = frozenset({("", "Pad")})

    def match(self, node: ir.Node, context: NodeContext) -> Padding | Skip | None:
        if node.attributes.get_string("mode", "constant") != "constant":
            return None
        return _constant_padding(node, context.scope)

    def rewrite(self, match: Padding, edit: Edit) -> Sequence[ir.Value | None]:
        y = concatenated(match, edit)
        return [y if y is not match.pad.inputs[0] else edit.op("Identity", [y])]


def _constant_padding(pad: ir.Node, scope: Scope) -> Padding | Skip:
    found = read_padding(pad, scope)
    if isinstance(found, str):
        return Skip(found)
    dtype = scope.dtype(pad.inputs[0])
    if dtype is None or dtype == ir.DataType.STRING:
        return Skip(UNKNOWN_DTYPE if dtype is None else "its input is of strings")
    return found


class GatherPad(NodeRewrite[Padding]):
    """Rewrite a Pad that repeats its input as a Gather with constant indices."""

    name = "gather-pad"
    exactness = Exactness.BITWISE
    operators = frozenset({("", "Pad")})

    def match(self, node: ir.Node, context: NodeContext) -> Padding | Skip | None:
        """Match modes other than constant."""
        mode = node.attributes.get_string("mode", "constant")
        if mode == "constant":
            return None
        if mode not in _PERIODIC:
            return Skip(f"its mode {mode} is unknown")
        found = read_padding(node, context.scope)
        if isinstance(found, str):
            return Skip(found)
        sides = zip(found.shape, found.begins, found.ends, strict=True)
        if any(size + min(begin, 0) + min(end, 0) <= 0 < max(begin, end) for size, begin, end in sides):
            return Skip("it has no elements to repeat: an axis is empty")
        return found

    def rewrite(self, match: Padding, edit: Edit) -> Sequence[ir.Value | None]:
        mode: Any = _PERIODIC[match.node.attributes.get_string("mode", "constant")]
        y, shape = _crop(match, edit)
        for axis, (size, begin, end) in enumerate(zip(shape, match.begins, match.ends, strict=True)):
            if max(begin, end) > 0:
                indices = np.pad(np.arange(size), (max(begin, 0), max(end, 0)), mode=mode)
                y = edit.op("Gather", [y, edit.constant(indices.astype(np.int64))], {"axis": axis})
        return [y if y is not match.node.inputs[0] else edit.op("Identity", [y])]


class SeparatePad(NodeRewrite[Padding]):
    """Keep a constant Pad separate from the convolution or pooling after it."""

    name = "separate-pad"
    exactness = Exactness.BITWISE
    operators = frozenset(("", each) for each in ("AveragePool", "Conv", "ConvTranspose", "LpPool", "MaxPool"))
    absorbs = frozenset({("", "Pad")})

    def match(self, node: ir.Node, context: NodeContext) -> Padding | Skip | None:
        """Match a constant Pad before the node."""
        if node.graph is None:  # a proposed node is judged again after it is committed
            return None
        pad = context.producer(node, 0, "Pad")
        if pad is None or pad.attributes.get_string("mode", "constant") != "constant":
            return None
        found = _constant_padding(pad, context.scope)
        return found if isinstance(found, Skip) else replace(found, node=node, absorbed=(pad,))

    def rewrite(self, match: Padding, edit: Edit) -> Sequence[ir.Value | None]:
        """The same operator on a concatenation."""
        node = match.node
        x = concatenated(match, edit)
        attributes: dict[str, Any] = dict(node.attributes)
        made = edit.node(node.op_type, [x, *node.inputs[1:]], attributes, outputs=len(node.outputs))
        return made.outputs


RULES: tuple[NodeRewrite[Any], ...] = (SeparatePad(), ConcatPad(), GatherPad())
