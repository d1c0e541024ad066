"""Queries about the inputs and outputs of a node: presence, static shape, constant value."""

from __future__ import annotations

import onnx_ir as ir

from passes.graphs.scopes import Scope
from passes.graphs.tensors import ints
from passes.graphs.traversal import is_used


def given(node: ir.Node, index: int) -> ir.Value | None:
    """Return an optional input; None if it is omitted."""
    return node.inputs[index] if index < len(node.inputs) else None


def is_output_used(node: ir.Node, index: int) -> bool:
    """Return whether an optional output is present and used."""
    if index >= len(node.outputs):
        return False
    value = node.outputs[index]
    return bool(value.name) and is_used(value)


def constant_integer(value: ir.Value | None, scope: Scope) -> int | None:
    """Return the value of a constant integer or bool with one element; None for anything else."""
    tensor = scope.constant(value)
    if tensor is not None and tensor.dtype == ir.DataType.BOOL and tensor.size == 1:
        return int(tensor.numpy().item())
    elements = ints(tensor)
    return elements[0] if elements is not None and len(elements) == 1 else None
