"""Remove tensors without elements: MIGraphX reads a dimension of 0 as an unknown one.

    y = f(x)                y has no elements                      →  y is a constant
    y = f(x, c)             x has no elements, c is constant       →  y is what ONNX Runtime computes
    Concat(x, e, y)         e has no elements along the axis       →  Concat(x, y)

Skips: nodes with outputs of both kinds; what ONNX Runtime cannot compute.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import onnx
import onnx_ir as ir

from passes.builders.arithmetic import Array
from passes.evaluation.constant_session import EvaluationError
from passes.evaluation.evaluation import evaluate
from passes.graphs.scopes import Scope
from passes.graphs.traversal import has_subgraphs
from passes.rewriting.base import Exactness, Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import Match, NodeContext, NodeRewrite


class _Standard:
    """All standard operators except Constant, as (domain, operator); collected on first use."""

    def __get__(self, instance: object, owner: type) -> frozenset[tuple[str, str]]:
        return _standard()


@functools.cache
def _standard() -> frozenset[tuple[str, str]]:
    names = {each.name for each in onnx.defs.get_all_schemas_with_history() if each.domain == ""}
    return frozenset(("", name) for name in names - {"Constant"})


def is_empty(value: ir.Value | None, scope: Scope) -> bool:
    """Whether a value is a tensor of known dtype and static shape without elements."""
    shape = scope.proven_shape(value)
    return shape is not None and shape.is_static() and 0 in shape and _array_dtype(value, scope) is not None


def empty(value: ir.Value | None, scope: Scope) -> Array:
    """The array of a value that `is_empty`."""
    shape, dtype = scope.static_shape(value), _array_dtype(value, scope)
    assert shape is not None
    assert dtype is not None
    return np.zeros(shape, dtype.numpy())


def _array_dtype(value: ir.Value | None, scope: Scope) -> ir.DataType | None:
    if value is not None and value.type is not None and not isinstance(value.type, ir.TensorType):
        return None
    dtype = scope.dtype(value)
    return None if dtype in (None, ir.DataType.UNDEFINED, ir.DataType.STRING) else dtype


class ConstantForEmpty(NodeRewrite[Match]):
    """Replace values without elements by constants."""

    name = "constant-for-empty"
    exactness = Exactness.BITWISE
    operators: ClassVar[Any] = _Standard()

    def match(self, node: ir.Node, context: NodeContext) -> Match | Skip | None:
        """Match if no output has elements."""
        scope = context.scope
        outputs = [value for value in node.outputs if value.name]
        empties = [is_empty(value, scope) for value in outputs]
        if not any(empties):
            return None
        if node.op_type == "Identity" and scope.constant(node.inputs[0]) is not None:
            return None  # of a graph output, this is the simplest form
        return Match(node) if all(empties) else Skip("only some of its outputs have no elements")

    def rewrite(self, match: Match, edit: Edit) -> Sequence[ir.Value | None]:
        """A constant for each output."""
        return [edit.constant(empty(value, edit.scope)) if value.name else None for value in match.node.outputs]


class EvaluateEmpty(NodeRewrite[Match]):
    """Evaluate nodes that depend only on constants and tensors without elements."""

    name = "evaluate-empty"
    exactness = Exactness.BITWISE
    operators: ClassVar[Any] = _Standard()

    def match(self, node: ir.Node, context: NodeContext) -> Match | Skip | None:
        """Match if every input is constant or has no elements, and not all are constant."""
        scope = context.scope
        variable_inputs = [value for value in node.inputs if value is not None and scope.constant(value) is None]
        if not variable_inputs or has_subgraphs(node):
            return None
        return Match(node) if all(is_empty(value, scope) for value in variable_inputs) else None

    def rewrite(self, match: Match, edit: Edit) -> Sequence[ir.Value | None] | Skip:
        """The results of ONNX Runtime."""
        node, scope = match.node, edit.scope
        constants: dict[ir.Value, ir.TensorProtocol] = {}
        for value in node.inputs:
            if value is not None:
                constants[value] = scope.constant(value) or ir.Tensor(empty(value, scope))
        wanted = [value for value in node.outputs if value.name]
        try:
            found = dict(zip(wanted, evaluate([node], constants, wanted, scope), strict=True))
        except EvaluationError as error:
            return Skip(f"ONNX Runtime cannot compute it: {error}")
        return [edit.constant(found[value]) if value in found else None for value in node.outputs]


class DropEmptyOperands(NodeRewrite[Match]):
    """Remove operands that add no elements from Concat."""

    name = "drop-empty-operands"
    exactness = Exactness.BITWISE
    operators = frozenset({("", "Concat")})

    def match(self, node: ir.Node, context: NodeContext) -> Match | Skip | None:
        """Match if some operands, but not all, add nothing."""
        empties = [_adds_nothing(value, node, context.scope) for value in node.inputs]
        return Match(node) if any(empties) and not all(empties) else None

    def rewrite(self, match: Match, edit: Edit) -> Sequence[ir.Value | None]:
        """A Concat of the other operands, or the only one."""
        kept = [value for value in match.node.inputs if not _adds_nothing(value, match.node, edit.scope)]
        attributes: dict[str, Any] = dict(match.node.attributes)
        return [edit.op("Concat", kept, attributes) if len(kept) > 1 else kept[0]]


def _adds_nothing(value: ir.Value | None, node: ir.Node, scope: Scope) -> bool:
    """Whether an operand of a Concat has the size 0 along its axis; one without elements may still add to the size."""
    axis, shape = node.attributes.get_int("axis", 1), scope.proven_shape(value)
    return shape is not None and -len(shape) <= axis < len(shape) and shape[axis] == 0


RULES: tuple[NodeRewrite[Any], ...] = (ConstantForEmpty(), EvaluateEmpty(), DropEmptyOperands())
