"""Remove tensors without elements: MIGraphX reads a dimension of 0 as an unknown one.

    y = f(x)                y has no elements                      →  y is a constant
    y = f(x, c)             x has no elements, c is constant       →  y is what ONNX Runtime computes
    Concat(x, e, y)         e has no elements along the axis       →  Concat(x, y)
    Split(x, [a, 0, b])                                            →  Split(x, [a, b]), and a constant

Skips: nodes with outputs of both kinds; what ONNX Runtime cannot compute.
"""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir

from passes.evaluation.constant_session import EvaluationError
from passes.evaluation.evaluation import evaluate
from passes.graphs.scopes import Scope
from passes.graphs.traversal import has_subgraphs
from passes.rewriting.base import Skip
from passes.rewriting.edit import Edit
from passes.rewriting.expressions import Array
from passes.rewriting.rewrite import Replacement, rewrite

_STANDARD = {schema.name for schema in onnx.defs.get_all_schemas_with_history() if schema.domain == ""} - {"Constant"}
"""All standard operators except Constant."""


def _is_empty(value: ir.Value | None, scope: Scope) -> bool:
    """Return whether a value is a tensor of known dtype and static shape without elements."""
    sizes = scope.proven_sizes(value)
    return sizes is not None and 0 in sizes and _array_dtype(value, scope) is not None


def _empty(value: ir.Value | None, scope: Scope) -> Array:
    """Return the array of a value that `_is_empty`."""
    shape, dtype = scope.static_shape(value), _array_dtype(value, scope)
    assert shape is not None
    assert dtype is not None
    return np.zeros(shape, dtype.numpy())


def _array_dtype(value: ir.Value | None, scope: Scope) -> ir.DataType | None:
    if value is not None and value.type is not None and not isinstance(value.type, ir.TensorType):
        return None
    dtype = scope.dtype(value)
    return None if dtype in (None, ir.DataType.UNDEFINED, ir.DataType.STRING) else dtype


@rewrite(*_STANDARD)
def constant_for_empty(node: ir.Node, edit: Edit) -> Replacement:
    """Replace values without elements by constants."""
    scope = edit.scope
    empties = [_is_empty(value, scope) for value in node.outputs if value.name]
    if not any(empties):
        return None
    if node.op_type == "Identity" and scope.constant(node.inputs[0]) is not None:
        return None  # of a graph output, this is the simplest form
    if not all(empties):
        return Skip("only some of the outputs have no elements")
    return [edit.constant(_empty(value, scope)) if value.name else None for value in node.outputs]


@rewrite(*_STANDARD)
def evaluate_empty(node: ir.Node, edit: Edit) -> Replacement:
    """Evaluate nodes that depend only on constants and tensors without elements."""
    scope = edit.scope
    variable_inputs = [value for value in node.inputs if value is not None and scope.constant(value) is None]
    if not variable_inputs or has_subgraphs(node) or not all(_is_empty(value, scope) for value in variable_inputs):
        return None
    constants: dict[ir.Value, ir.TensorProtocol] = {}
    for value in node.inputs:
        if value is not None:
            constants[value] = scope.constant(value) or ir.Tensor(_empty(value, scope))
    outputs = [value for value in node.outputs if value.name]
    try:
        results = dict(zip(outputs, evaluate([node], constants, outputs, scope), strict=True))
    except EvaluationError as error:
        return Skip(f"ONNX Runtime cannot compute it: {error}")
    return [edit.constant(results[value]) if value in results else None for value in node.outputs]


@rewrite("Concat")
def drop_empty_operands(node: ir.Node, edit: Edit) -> Replacement:
    """Remove operands that add no elements from Concat."""
    kept = [value for value in node.inputs if not _adds_nothing(value, node, edit.scope)]
    if not kept or len(kept) == len(node.inputs):
        return None
    return [edit.op("Concat", kept, node.attributes) if len(kept) > 1 else kept[0]]


@rewrite("Split", needs_shape=(0,))
def split_without_empty(node: ir.Node, edit: Edit) -> Replacement:
    """Split into the parts that have elements; the others are constants."""
    axis, shapes = node.attributes.get_int("axis", 0), [edit.scope.proven_sizes(value) for value in node.outputs]
    sizes = [None if shape is None else shape[axis] for shape in shapes]
    kept = [size for size in sizes if size]
    if 0 not in sizes or None in sizes or not kept or 0 in edit.shape(node):
        return None
    x, parts = edit.input(node), iter([edit.input(node)])
    if len(kept) > 1:
        parts = iter(edit.node("Split", [x, edit.index(kept)], {"axis": axis}, outputs=len(kept)).outputs)
    results = zip(node.outputs, sizes, strict=True)
    return [next(parts) if size else edit.constant(_empty(value, edit.scope)) for value, size in results]


def _adds_nothing(value: ir.Value | None, node: ir.Node, scope: Scope) -> bool:
    """Return whether an operand of a Concat has the size 0 along its axis; others without elements add to the size."""
    axis, shape = node.attributes.get_int("axis", 1), scope.proven_shape(value)
    return shape is not None and -len(shape) <= axis < len(shape) and shape[axis] == 0
