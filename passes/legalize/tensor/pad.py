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
from dataclasses import dataclass
from typing import Literal, cast

import numpy as np
import onnx_ir as ir

from passes.builders.operands import given
from passes.rewriting.base import NotApplicable, Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import UNKNOWN_DTYPE, UNKNOWN_SHAPE, Replacement, rewrite

_PERIODIC = ("reflect", "edge", "wrap")
"""The modes that repeat the input; numpy has the same names for them."""


@rewrite("AveragePool", "Conv", "ConvTranspose", "LpPool", "MaxPool", absorbs=("Pad",))
def separate_pad(node: ir.Node, edit: Edit) -> Replacement:
    """Keep a constant Pad separate from the convolution or pooling after it."""
    if node.graph is None:  # a proposed node is judged again after it is committed
        return None
    pad = edit.producer(node, 0, "Pad")
    if pad is None or _mode(pad) != "constant":
        return None
    edit.absorb(pad)
    x = _concatenated(pad, edit)
    return edit.node(node.op_type, [x, *node.inputs[1:]], node.attributes, outputs=len(node.outputs)).outputs


@rewrite("Pad")
def concat_pad(node: ir.Node, edit: Edit) -> Replacement:
    """Rewrite a constant Pad as concatenations."""
    if _mode(node) != "constant":
        return None
    y = _concatenated(node, edit)
    return y if y is not node.inputs[0] else edit.op("Identity", [y])


@rewrite("Pad")
def gather_pad(node: ir.Node, edit: Edit) -> Replacement:
    """Rewrite a Pad that repeats its input as a Gather with constant indices."""
    mode = _mode(node)
    if mode == "constant":
        return None
    if mode not in _PERIODIC:
        return Skip(f"the mode {mode} is unknown")
    padding = _Padding.of(node, edit)
    shape, begins, ends = padding.cropped, padding.begins, padding.ends
    if any(size <= 0 < max(begin, end) for size, begin, end in zip(shape, begins, ends, strict=True)):
        return Skip("the input has no elements to repeat: an axis is empty")
    y = _crop(node, padding, edit)
    for axis, (size, begin, end) in enumerate(zip(shape, begins, ends, strict=True)):
        if max(begin, end) > 0:
            amounts = (max(begin, 0), max(end, 0))
            indices = np.pad(np.arange(size), amounts, mode=cast("Literal['reflect', 'edge', 'wrap']", mode))
            y = edit.op("Gather", [y, edit.index(indices)], {"axis": axis})
    return y if y is not node.inputs[0] else edit.op("Identity", [y])


def _mode(pad: ir.Node) -> str:
    return pad.attributes.get_string("mode", "constant")


@dataclass(frozen=True)
class _Padding:
    """The input's shape, and the numbers of elements before and after it, by axis; negative for cropping."""

    shape: tuple[int, ...]
    begins: list[int]
    ends: list[int]

    @classmethod
    def of(cls, pad: ir.Node, edit: Edit) -> _Padding:
        """Return the pads of a Pad."""
        scope = edit.scope
        shape = scope.proven_sizes(pad.inputs[0])  # ONNX Runtime runs a Pad whose declared sizes are false
        if shape is None:
            raise NotApplicable(UNKNOWN_SHAPE)
        if scope.opset() < 11:
            pads: list[int] | None = list(pad.attributes.get_ints("pads", []))
        else:
            pads = edit.integers(pad, 1, "the operand pads")
        rank = len(shape)
        axes = edit.integers(pad, 3, "the operand axes")
        axes = list(range(rank)) if axes is None else [axis % rank for axis in axes]
        if pads is None or len(pads) != 2 * len(axes):
            raise NotApplicable("the number of pads does not fit the rank of the input")
        begins, ends = [0] * rank, [0] * rank
        for axis, begin, end in zip(axes, pads[: len(axes)], pads[len(axes) :], strict=True):
            begins[axis], ends[axis] = begin, end
        padding = cls(shape, begins, ends)
        if any(sum(side) < 1 for side in zip(shape, begins, ends, strict=True)):
            raise NotApplicable("the output is empty")
        if any(size < 0 for size in padding.cropped):
            raise NotApplicable("the pads crop more than the input has")
        return padding

    @property
    def cropped(self) -> list[int]:
        """The shape of the input after negative pads."""
        sides = zip(self.shape, self.begins, self.ends, strict=True)
        return [size + min(begin, 0) + min(end, 0) for size, begin, end in sides]


def _crop(pad: ir.Node, padding: _Padding, edit: Edit) -> ir.Value:
    """Apply negative pads."""
    x, shape = edit.input(pad), padding.cropped
    axes = [axis for axis, size in enumerate(shape) if size < padding.shape[axis]]
    if not axes:
        return x
    starts = [max(-padding.begins[axis], 0) for axis in axes]
    stops = [start + shape[axis] for start, axis in zip(starts, axes, strict=True)]
    return edit.op("Slice", [x, edit.index(starts), edit.index(stops), edit.index(axes)])


def _concatenated(pad: ir.Node, edit: Edit) -> ir.Value:
    """Write a constant Pad as one Concat per axis."""
    padding, dtype = _Padding.of(pad, edit), edit.scope.dtype(pad.inputs[0])
    if dtype is None or dtype == ir.DataType.STRING:
        raise NotApplicable(UNKNOWN_DTYPE if dtype is None else "the input is of strings")
    fill = given(pad, 2)
    if fill is None:
        fill = edit.scalar(pad.attributes.get_float("value", 0.0), dtype)
    x, shape = _crop(pad, padding, edit), padding.cropped
    if 0 in shape:  # the input is cropped entirely
        sides = zip(shape, padding.begins, padding.ends, strict=True)
        return _block(edit, fill, [size + max(begin, 0) + max(end, 0) for size, begin, end in sides])
    for axis, (begin, end) in enumerate(zip(padding.begins, padding.ends, strict=True)):
        parts = [x]
        if begin > 0:
            parts.insert(0, _block(edit, fill, (*shape[:axis], begin, *shape[axis + 1 :])))
        if end > 0:
            parts.append(_block(edit, fill, (*shape[:axis], end, *shape[axis + 1 :])))
        x = edit.concat(parts, axis)
        shape[axis] += max(begin, 0) + max(end, 0)
    return x


def _block(edit: Edit, fill: ir.Value, shape: Sequence[int]) -> ir.Value:
    if edit.scope.opset() < 8:  # the value is an attribute, and there is no Expand
        assert fill.const_value is not None
        return edit.constant(np.full(shape, fill.const_value.numpy()))
    return edit.op("Expand", [fill, edit.index(shape)])
