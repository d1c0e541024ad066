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
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from passes.builders.operands import UNKNOWN_SHAPE, given, not_constant
from passes.graphs.scopes import Scope
from passes.rewriting.base import Exactness, Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import Match, NodeContext, NodeRewrite


@dataclass(frozen=True)
class _Shaped(Match):
    before: tuple[int, ...]
    after: tuple[int, ...]


def _computed(node: ir.Node, index: int, scope: Scope) -> ir.Value | None:
    """An input that is present and not constant."""
    value = given(node, index)
    return value if value is not None and scope.constant(value) is None else None


class ReshapeByOutput(NodeRewrite[_Shaped]):
    """Reshape to the known shape of the output."""

    name = "reshape-by-output"
    exactness = Exactness.BITWISE
    operators = frozenset(("", each) for each in ("Reshape", "Squeeze", "Unsqueeze"))

    def match(self, node: ir.Node, context: NodeContext) -> _Shaped | Skip | None:
        """Match computed operands and scalars; None if the operand is unambiguous."""
        scope = context.scope
        before, after = scope.static_shape(node.inputs[0]), scope.proven_sizes(node.outputs[0])
        computed = _computed(node, 1, scope)
        if computed is None and _is_unambiguous(node, before, after, scope):
            return None
        if before is None or after is None:
            operand = "its shape" if node.op_type == "Reshape" else "its operand axes"
            return Skip(not_constant(computed, operand) if computed is not None else UNKNOWN_SHAPE)
        if math.prod(before) != math.prod(after):
            return Skip(f"its output is declared to have shape {after}, which does not fit {before}")
        return _Shaped(node, before, after)

    def rewrite(self, match: _Shaped, edit: Edit) -> Sequence[ir.Value | None]:
        """A Reshape, or a Squeeze to a scalar."""
        x = match.node.inputs[0]
        assert x is not None
        if match.after:
            return [edit.reshape(x, match.after)]
        if not match.before:
            return [x]
        return [edit.op("Squeeze", [x, edit.constant(np.arange(len(match.before), dtype=np.int64))])]


def _is_unambiguous(node: ir.Node, before: tuple[int, ...] | None, after: tuple[int, ...] | None, scope: Scope) -> bool:
    """Whether a node with a constant operand is as this rule writes it, or correct as it is."""
    if node.op_type != "Reshape":
        return node.op_type == "Squeeze" or before != () or after is None or len(after) < 2
    if scope.opset() < 5:
        return True
    tensor = scope.constant(node.inputs[1])
    return after is None or (after != () and tensor is not None and tuple(tensor.numpy().tolist()) == after)


class OperandByOutput(NodeRewrite[_Shaped]):
    """Replace an operand that follows from the shape of the output by a constant."""

    name = "operand-by-output"
    exactness = Exactness.BITWISE
    operators = frozenset(("", each) for each in ("ConstantOfShape", "Expand", "Split", "Tile", "TopK"))

    def match(self, node: ir.Node, context: NodeContext) -> _Shaped | Skip | None:
        """Match computed operands and known shapes."""
        scope = context.scope
        index = 0 if node.op_type == "ConstantOfShape" else 1
        computed = _computed(node, index, scope)
        if computed is None or len(node.inputs) > 2:  # Tile of opset 1 has three inputs
            return None
        before = () if index == 0 else scope.static_shape(node.inputs[0])
        outputs = [scope.proven_sizes(value) for value in node.outputs if value.name]
        if before is None:
            return Skip(UNKNOWN_SHAPE)
        if None in outputs or (node.op_type == "Split" and len(outputs) < len(node.outputs)):
            return Skip(not_constant(computed, "the shape of its output"))
        assert outputs[0] is not None
        return _Shaped(node, before, outputs[0])

    def rewrite(self, match: _Shaped, edit: Edit) -> Sequence[ir.Value | None] | Skip:
        """The operator with a constant operand."""
        node, before, after = match.node, match.before, match.after
        x = node.inputs[0]
        attributes: dict[str, Any] = dict(node.attributes)
        if node.op_type == "ConstantOfShape":
            value = attributes["value"].as_tensor().numpy().ravel()[0] if attributes else np.float32(0)
            fill = edit.constant(np.asarray(value))
            return [edit.op("Expand", [fill, edit.constant(np.array(after, np.int64))])] if after else [fill]
        match node.op_type:
            case "Expand":
                operand = list(after)
            case "Tile":
                if 0 in before:
                    return Skip("its input is empty: constant-for-empty replaces it")
                operand = [size // each for size, each in zip(after, before, strict=True)]
            case "TopK":
                operand = [after[node.attributes.get_int("axis", -1)]]
            case _:
                axis = node.attributes.get_int("axis", 0)
                operand = [(edit.scope.proven_sizes(value) or after)[axis] for value in node.outputs]
                attributes.pop("num_outputs", None)
        constant = edit.constant(np.array(operand, np.int64))
        return edit.node(node.op_type, [x, constant], attributes, outputs=len(node.outputs)).outputs


class ConstantShape(NodeRewrite[_Shaped]):
    """Replace the shape and the size of a value of static shape by constants."""

    name = "constant-shape"
    exactness = Exactness.BITWISE
    operators = frozenset({("", "Shape"), ("", "Size")})
    needs_shape = (0,)

    def match(self, node: ir.Node, context: NodeContext) -> _Shaped | Skip | None:
        """Match sizes that do not depend on data: no run would show that a declaration of them is false."""
        sizes = context.scope.proven_sizes(node.inputs[0])
        return Skip(UNKNOWN_SHAPE) if sizes is None else _Shaped(node, sizes, ())

    def rewrite(self, match: _Shaped, edit: Edit) -> Sequence[ir.Value | None]:
        """Constants; the bounds of Shape are clamped like a Python slice."""
        if match.node.op_type == "Size":
            return [edit.constant(np.int64(math.prod(match.before)))]
        start, end = (match.node.attributes.get_int(name, default) for name, default in (("start", 0), ("end", None)))
        return [edit.constant(np.array(match.before[start:end], np.int64))]


RULES: tuple[NodeRewrite[Any], ...] = (ReshapeByOutput(), OperandByOutput(), ConstantShape())
