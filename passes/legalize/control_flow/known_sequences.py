"""Tensor operators in place of operators that read or split a sequence with known elements."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from passes.builders.operands import given
from passes.builders.subgraph_copies import to_scalar
from passes.graphs.tensors import ints
from passes.rewriting.base import NotApplicable, Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import Replacement

Elements = tuple[ir.Value, ...]
_MOST_PARTS = 2**12
"""The most elements of a sequence that are written as nodes."""


def sequence_at(node: ir.Node, elements: Elements, edit: Edit) -> Replacement:
    """Replace SequenceAt by the element at a constant position, or by a Gather from the stacked elements."""
    place = edit.input(node, 1)
    known = ints(edit.scope.constant(place))
    if known is not None and len(known) == 1:
        if not -len(elements) <= known[0] < len(elements):
            return Skip(f"the position is out of range for a sequence of {len(elements)}")
        return elements[known[0]]
    shapes = [edit.scope.shape(value) for value in elements]
    shape = shapes[0] if shapes else None
    if shape is None or not shape.is_static() or any(other != shape for other in shapes):
        return Skip("the position is not constant, and the shapes of the elements differ or are unknown")
    index = to_scalar(place, edit)
    return edit.op("Gather", [_stack(elements, 0, edit), index], {"axis": 0})


def sequence_length(node: ir.Node, elements: Elements, edit: Edit) -> Replacement:
    """Replace SequenceLength by a constant."""
    return edit.index(len(elements))


def concat_from_sequence(node: ir.Node, elements: Elements, edit: Edit) -> Replacement:
    """Replace ConcatFromSequence by a Concat."""
    if not elements:
        return Skip("the sequence is empty")
    axis = node.attributes.get_int("axis", 0)
    if node.attributes.get_int("new_axis", 0):
        return _stack(elements, axis, edit)
    return edit.op("Concat", elements, {"axis": axis})


def split_to_sequence(node: ir.Node, edit: Edit) -> Replacement:
    """Replace SplitToSequence by a Split, and a sequence of its outputs."""
    value = edit.input(node)
    shape, axis = edit.scope.shape(value), node.attributes.get_int("axis", 0)
    if shape is not None and not -len(shape) <= axis < len(shape):
        return Skip(f"the input has no axis {axis}")
    size = shape[axis] if shape is not None else None
    if not isinstance(size, int):
        return Skip("the size of the split axis is unknown: freeze its shape")
    sizes = _part_sizes(node, size, edit)
    parts: list[ir.Value] = [value] if sizes else []
    if len(sizes) > 1:
        parts = list(edit.node("Split", [value, edit.index(sizes)], {"axis": axis}, outputs=len(sizes)).outputs)
    if given(node, 1) is None and not node.attributes.get_int("keepdims", 1):
        axes = edit.index([axis])
        parts = [edit.op("Squeeze", [part, axes]) for part in parts]
    return construct_sequence(parts, edit.scope.dtype(value), edit)


def _part_sizes(node: ir.Node, size: int, edit: Edit) -> list[int]:
    """Return the sizes of the parts of an axis of ``size`` elements."""
    split, length = given(node, 1), 1
    if split is not None:
        tensor = edit.scope.constant(split)
        if tensor is None:
            raise NotApplicable("the split sizes are not constant: freeze them with --freeze NAME=VALUE")
        if tensor.shape.numpy():
            return [int(part) for part in tensor.numpy().ravel()]
        length = int(tensor.numpy().item())
    if length < 1:
        raise NotApplicable(f"the parts have the size {length}")
    whole, rest = divmod(size, length)
    if whole > _MOST_PARTS:
        raise NotApplicable(f"the input splits into {whole:,} parts, and at most {_MOST_PARTS:,} become nodes")
    return [length] * whole + [rest] * (rest > 0)


def _stack(elements: Sequence[ir.Value], axis: int, edit: Edit) -> ir.Value:
    axes = edit.index([axis])
    return edit.concat([edit.op("Unsqueeze", [value, axes]) for value in elements], axis)


def construct_sequence(elements: Sequence[ir.Value], dtype: ir.DataType | None, edit: Edit) -> ir.Value:
    """Return a sequence of existing values."""
    if elements:
        return edit.op("SequenceConstruct", elements)
    return edit.op("SequenceEmpty", [], {"dtype": (dtype or ir.DataType.FLOAT).value})
