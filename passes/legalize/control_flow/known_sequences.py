"""Tensor operators in place of operators that read or split a sequence with known elements."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import onnx_ir as ir

from passes.builders.subgraph_copies import to_scalar
from passes.graphs.tensors import ints
from passes.rewriting.base import Skip
from passes.rewriting.edit import Edit

Elements = tuple[ir.Value, ...]
_MOST_PARTS = 2**12
"""The most elements of a sequence that are written as nodes."""


def sequence_at(node: ir.Node, elements: Elements, edit: Edit) -> Sequence[ir.Value | None] | Skip:
    """SequenceAt → the element at a constant position, or a Gather from the stacked elements."""
    place = node.inputs[1]
    assert place is not None
    known = ints(edit.scope.constant(place))
    if known is not None and len(known) == 1:
        if not -len(elements) <= known[0] < len(elements):
            return Skip(f"its position is out of range for a sequence of {len(elements)}")
        return [elements[known[0]]]
    shapes = [edit.scope.shape(value) for value in elements]
    shape = shapes[0] if shapes else None
    if shape is None or not shape.is_static() or any(each != shape for each in shapes):
        return Skip("its position is not constant, and the shapes of the elements differ or are unknown")
    index = to_scalar(place, edit)
    if index is None:
        return Skip("the shape of its position is unknown")
    return [edit.op("Gather", [_stack(elements, 0, edit), index], {"axis": 0})]


def sequence_length(node: ir.Node, elements: Elements, edit: Edit) -> Sequence[ir.Value | None]:
    """SequenceLength → a constant."""
    return [edit.constant(np.array(len(elements), np.int64))]


def concat_from_sequence(node: ir.Node, elements: Elements, edit: Edit) -> Sequence[ir.Value | None] | Skip:
    """ConcatFromSequence → Concat."""
    if not elements:
        return Skip("it concatenates an empty sequence")
    axis = node.attributes.get_int("axis", 0)
    if node.attributes.get_int("new_axis", 0):
        return [_stack(elements, axis, edit)]
    return [edit.op("Concat", elements, {"axis": axis})]


def split_to_sequence(node: ir.Node, edit: Edit) -> Sequence[ir.Value | None] | Skip:
    """SplitToSequence → Split, and a sequence of its outputs."""
    value = node.inputs[0]
    assert value is not None
    shape, axis = edit.scope.shape(value), node.attributes.get_int("axis", 0)
    if shape is not None and not -len(shape) <= axis < len(shape):
        return Skip(f"it has no axis {axis}")
    size = shape[axis] if shape is not None else None
    if not isinstance(size, int):
        return Skip("the size of the split axis is unknown: freeze its shape")
    given = node.inputs[1] if len(node.inputs) > 1 else None
    squeeze = given is None and not node.attributes.get_int("keepdims", 1)
    sizes: list[int] = []
    length: int | None = 1
    if given is not None:
        tensor = edit.scope.constant(given)
        if tensor is None:
            return Skip("its split sizes are not constant: freeze them with --freeze NAME=VALUE")
        sizes = [int(each) for each in tensor.numpy().ravel()]
        length = None if tensor.shape.numpy() else sizes[0]
    if length is not None and length < 1:
        return Skip(f"its parts have the size {length}")
    if length is not None:
        whole, rest = divmod(size, length)
        if whole > _MOST_PARTS:
            return Skip(f"it splits into {whole:,} parts, and at most {_MOST_PARTS:,} become nodes")
        sizes = [length] * whole + [rest] * (rest > 0)
    parts: list[ir.Value] = [value]
    if len(sizes) != 1:
        split = edit.constant(np.array(sizes, np.int64))
        parts = list(edit.node("Split", [value, split], {"axis": axis}, outputs=len(sizes)).outputs) if sizes else []
    if squeeze:
        axes = edit.constant(np.array([axis]))
        parts = [edit.op("Squeeze", [part, axes]) for part in parts]
    return [construct_sequence(parts, edit.scope.dtype(value), edit)]


def _stack(elements: Iterable[ir.Value], axis: int, edit: Edit) -> ir.Value:
    axes = edit.constant(np.array([axis]))
    parts = [edit.op("Unsqueeze", [value, axes]) for value in elements]
    return parts[0] if len(parts) == 1 else edit.op("Concat", parts, {"axis": axis})


def construct_sequence(elements: Sequence[ir.Value], dtype: ir.DataType | None, edit: Edit) -> ir.Value:
    """A sequence of existing values."""
    if elements:
        return edit.op("SequenceConstruct", elements)
    return edit.op("SequenceEmpty", [], {"dtype": (dtype or ir.DataType.FLOAT).value})
