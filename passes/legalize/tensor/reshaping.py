"""Replace computed operands, which MIGraphX requires to be constant, by constants that the output's shape determines.

    Reshape, Squeeze, Unsqueeze(x, computed)    →  Reshape(x, the output's shape)
    Expand(x, computed)                         →  Expand(x, the output's shape)
    Tile(x, computed)                           →  Tile(x, the output's shape / the shape of x)
    Split(x, computed)                          →  Split(x, sizes of the outputs)
    TopK(x, computed)                           →  TopK(x, size of the output)
    ConstantOfShape(computed)                   →  Expand(value, the output's shape)
    Reshape(x, [])                              →  Squeeze(x)         which MIGraphX reads as 0 elements
    Unsqueeze(scalar, axes)                     →  Reshape(scalar)    because in MIGraphX it has an axis already
    Shape(x), Size(x)                           →  constants

Output shapes are inferred, or declared by the model if they depend on computed values.

Skips: computed operands if the output's shape is unknown; dynamic shapes.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx_ir as ir

from passes.builders.operands import given
from passes.graphs.scopes import Scope
from passes.rewriting.base import Skip
from passes.rewriting.edit import Edit, not_constant
from passes.rewriting.rewrite import UNKNOWN_SHAPE, Replacement, rewrite


@rewrite("Reshape", "Squeeze", "Unsqueeze")
def reshape_by_output(node: ir.Node, edit: Edit) -> Replacement:
    """Reshape to the known shape of the output."""
    x, scope = edit.input(node), edit.scope
    before, after = scope.static_shape(x), scope.proven_sizes(node.outputs[0])
    computed = _computed(node, 1, scope)
    if computed is None and _is_unambiguous(node, before, after, scope):
        return None
    if before is None or after is None:
        operand = "the shape" if node.op_type == "Reshape" else "the operand axes"
        return Skip(not_constant(computed, operand) if computed is not None else UNKNOWN_SHAPE)
    if math.prod(before) != math.prod(after):
        return Skip(f"the output is declared to have shape {after}, which does not fit {before}")
    if after:
        return edit.reshape(x, after)
    return edit.squeeze(x, range(len(before)))


def _computed(node: ir.Node, index: int, scope: Scope) -> ir.Value | None:
    """Return an input that is present and not constant."""
    value = given(node, index)
    return value if value is not None and scope.constant(value) is None else None


def _is_unambiguous(node: ir.Node, before: tuple[int, ...] | None, after: tuple[int, ...] | None, scope: Scope) -> bool:
    """Return whether a node with a constant operand is as `reshape_by_output` writes it, or correct as it is."""
    if node.op_type != "Reshape":
        return node.op_type == "Squeeze" or before != () or after is None or len(after) < 2
    tensor = scope.constant(node.inputs[1])
    return after is None or (after != () and tensor is not None and tuple(tensor.numpy().tolist()) == after)


@rewrite("ConstantOfShape", "Expand", "Split", "Tile", "TopK")
def operand_by_output(node: ir.Node, edit: Edit) -> Replacement:
    """Replace an operand that follows from the shape of the output by a constant."""
    scope, attributes = edit.scope, dict[str, Any](node.attributes)
    index = 0 if node.op_type == "ConstantOfShape" else 1
    computed = _computed(node, index, scope)
    if computed is None or len(node.inputs) > 2:  # Tile of opset 1 has three inputs
        return None
    before = () if index == 0 else scope.static_shape(node.inputs[0])
    outputs = [scope.proven_sizes(value) for value in node.outputs if value.name]
    if before is None:
        return Skip(UNKNOWN_SHAPE)
    after = outputs[0]
    if after is None or None in outputs or (node.op_type == "Split" and len(outputs) < len(node.outputs)):
        return Skip(not_constant(computed, "the shape of the output"))
    match node.op_type:
        case "ConstantOfShape":
            value = attributes["value"].as_tensor().numpy().ravel()[0] if attributes else np.float32(0)
            fill = edit.constant(np.asarray(value))
            return edit.op("Expand", [fill, edit.index(after)]) if after else fill
        case "Expand":
            operand = list(after)
        case "Tile":
            if 0 in before:
                return Skip("the input is empty: constant-for-empty replaces it")
            operand = [new // old for new, old in zip(after, before, strict=True)]
        case "TopK":
            operand = [after[node.attributes.get_int("axis", -1)]]
        case _:
            axis = node.attributes.get_int("axis", 0)
            operand = [sizes[axis] for sizes in outputs if sizes is not None]
            attributes.pop("num_outputs", None)
    return edit.node(node.op_type, [node.inputs[0], edit.index(operand)], attributes, outputs=len(node.outputs)).outputs


@rewrite("Shape", "Size", needs_shape=(0,))
def constant_shape(node: ir.Node, edit: Edit) -> Replacement:
    """Replace the shape and the size of a value of static shape by constants."""
    sizes = edit.scope.proven_sizes(node.inputs[0])  # no run would show that a declaration of others is false
    if sizes is None:
        return Skip(UNKNOWN_SHAPE)
    if node.op_type == "Size":
        return edit.constant(np.int64(math.prod(sizes)))
    start, end = node.attributes.get_int("start", 0), node.attributes.get_int("end", None)
    return edit.index(sizes[start:end])  # bounds are clamped in both
