"""Carry tensors of dtypes that a runtime's parser rejects in a wider dtype.

    Cast(f(Cast(x → float8)) → float)        →  f(round(x / u)·u)              f moves elements: Reshape, Gather, …
    DequantizeLinear(W, s), W of int4        →  DequantizeLinear(W as int8, s)
    DequantizeLinear(Q(x, s), s) in float8   →  round(x / s / u)·u · s
    Cast(W → float), W a constant of float4  →  W's numbers

The rewrite starts at a node that converts a small dtype to another dtype, and traces back to the nodes that produce the
small dtype, and to constants. Only operators that move elements may be between them. The small dtype is eliminated, and
the numbers are exactly the same; see `passes.builders.small_dtypes` for the arithmetic.

Skips: small dtypes that are inputs, which a runtime without the dtype cannot take, or that are computed by other
operators.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from passes.builders.quantize_linear import dequantize, output_dtype, quantize, unsupported_reason
from passes.builders.small_dtypes import SMALL, SMALL_FLOATS, as_carrier, carrier, is_one_of, to_small
from passes.graphs.matching import is_op, is_plain
from passes.graphs.scopes import Scope
from passes.operators import is_quantize
from passes.rewriting.base import Exactness, Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import Match, NodeContext, NodeRewrite

_MOVING = {
    "Concat", "DepthToSpace", "Expand", "Flatten", "Gather", "GatherElements", "GatherND", "Identity", "Pad", "Reshape",
    "Slice", "SpaceToDepth", "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze",
}  # fmt: skip
"""Operators whose outputs consist of elements of their inputs (and zeros)."""
_CONVERTING = ("Cast", "CastLike", "QuantizeLinear")
"""Operators that convert to a small dtype."""


@dataclass(frozen=True)
class _SmallTypeMatch(Match):
    dtype: ir.DataType


class CarrySmallTypes(NodeRewrite[_SmallTypeMatch]):
    """Carry the numbers of small dtypes in wider ones."""

    name = "carry-small-types"
    exactness = Exactness.ROUNDING
    operators = frozenset({("", "Cast"), ("", "DequantizeLinear"), ("com.microsoft", "DequantizeLinear")})
    absorbs = frozenset(("", each) for each in (*_MOVING, *_CONVERTING)) | {("com.microsoft", "QuantizeLinear")}

    def match(self, node: ir.Node, context: NodeContext) -> _SmallTypeMatch | Skip | None:
        """Match an input of a small dtype that is produced by convertible nodes."""
        scope = context.scope
        values = [value for value in node.inputs if value is not None and is_one_of(_dtype(value, scope), SMALL)]
        target = node.attributes.get_int("to", 0) if node.op_type == "Cast" else 0
        if not values or (target and ir.DataType(target) in SMALL):
            return None
        found: dict[ir.Node, None] = {}
        for value in values:
            problem = _trace(value, scope, found)
            if problem is not None:
                return Skip(problem)
        dtype = _dtype(values[0], scope)
        assert dtype is not None
        if node.op_type == "DequantizeLinear" and (problem := unsupported_reason(node, scope)) is not None:
            return Skip(problem)
        return _SmallTypeMatch(node, dtype, absorbed=tuple(reversed(found)))

    def rewrite(self, match: _SmallTypeMatch, edit: Edit) -> Sequence[ir.Value]:
        """The same operator on the carriers of its inputs."""
        node, known = match.node, dict[ir.Value, ir.Value]()
        for each in reversed(match.absorbed):  # operands first
            _carry_outputs(each, edit, known)
        inputs = [_carry(value, edit, known) for value in node.inputs]
        if node.op_type == "Cast":
            assert inputs[0] is not None
            return [edit.cast(inputs[0], ir.DataType(node.attributes.get_int("to", 0)))]
        if match.dtype not in SMALL_FLOATS and not is_one_of(_dtype(node.inputs[1], edit.scope), SMALL):
            attributes: dict[str, Any] = dict(node.attributes)
            return [edit.op("DequantizeLinear", inputs, attributes)]
        target = output_dtype(node, edit.scope)
        assert target is not None
        return [dequantize(edit, node, inputs, target)]


def _dtype(value: ir.Value | None, scope: Scope) -> ir.DataType | None:
    """A value's dtype, else that of the Cast that produces it."""
    found = scope.dtype(value)
    node = value.producer() if value is not None else None
    if found is None and node is not None and is_op(node, "Cast"):
        return ir.DataType(node.attributes.get_int("to", 0))
    return found


def _trace(value: ir.Value, scope: Scope, found: dict[ir.Node, None]) -> str | None:
    """Collect the nodes between a value of a small dtype and its sources, these first; the reason if not possible."""
    pending: list[ir.Value | ir.Node] = [value]
    while pending:
        current = pending.pop()
        if isinstance(current, ir.Node):  # its operands are done
            found[current] = None
            continue
        node = current.producer()
        if scope.constant(current) is not None or node in found:
            continue
        problem = _obstacle(current, scope)
        if problem is not None:
            return problem
        assert node is not None
        operands = node.inputs[:1] if node.op_type == "CastLike" else node.inputs
        pending.append(node)
        pending += [each for each in reversed(operands) if each is not None and is_one_of(_dtype(each, scope), SMALL)]
    return None


def _obstacle(value: ir.Value, scope: Scope) -> str | None:
    """Why a value of a small dtype cannot be carried in another one."""
    node, dtype = value.producer(), _dtype(value, scope)
    assert dtype is not None
    if node is None:
        return f"{value.name} is an input of {dtype.name.lower()}"
    if not is_plain(node, scope):
        return f"{value.name} is computed by {node.op_type} in {dtype.name.lower()}"
    moving = node.domain == "" and node.op_type in _MOVING
    if moving and node.op_type == "Pad":
        moving = node.attributes.get_string("mode", "constant") != "constant" or len(node.inputs) < 3
    if not moving and not is_op(node, *_CONVERTING) and not is_quantize(node):
        return f"{value.name} is computed by {node.op_type} in {dtype.name.lower()}"
    if node.op_type == "QuantizeLinear" and (problem := unsupported_reason(node, scope)) is not None:
        return problem
    if not moving and node.inputs[0] is not None and scope.dtype(node.inputs[0]) is None:
        return f"the dtype of {node.inputs[0].name} is unknown"
    return None


def _carry(value: ir.Value | None, edit: Edit, known: dict[ir.Value, ir.Value]) -> ir.Value | None:
    """The carrier of a value of a small dtype; any other value unchanged."""
    if value is None or not is_one_of(_dtype(value, edit.scope), SMALL):
        return value
    if value not in known:
        tensor = edit.scope.constant(value)
        assert tensor is not None
        known[value] = edit.constant(as_carrier(tensor))
    return known[value]


def _carry_outputs(node: ir.Node, edit: Edit, known: dict[ir.Value, ir.Value]) -> None:
    """Carry the results of a node whose operands are constants, or carried already."""
    dtype = _dtype(node.outputs[0], edit.scope)
    assert dtype is not None
    if node.op_type in ("Cast", "CastLike"):
        x = _carry(node.inputs[0], edit, known)
        assert x is not None
        before = _dtype(node.inputs[0], edit.scope)
        assert before is not None
        exact = _is_on_grid(node.inputs[0], dtype, edit.scope)
        known[node.outputs[0]] = x if exact else to_small(edit, node, x, carrier(before), dtype)
        return
    inputs = [_carry(each, edit, known) for each in node.inputs]
    if node.op_type == "QuantizeLinear":
        known[node.outputs[0]] = quantize(edit, node, inputs, dtype)
    else:
        attributes: Mapping[str, Any] = dict(node.attributes)
        made = edit.node(node.op_type, inputs, attributes, outputs=len(node.outputs))
        known.update(zip(node.outputs, made.outputs, strict=True))


def _is_on_grid(value: ir.Value | None, dtype: ir.DataType, scope: Scope) -> bool:
    """Whether a value is gathered from a table of numbers of a small float, so that a Cast to it changes none."""
    node = value.producer() if value is not None else None
    table = scope.constant(node.inputs[0]) if node is not None and is_op(node, "Gather") else None
    if table is None or table.dtype != ir.DataType.FLOAT or dtype not in SMALL_FLOATS or table.size > 256:
        return False
    numbers = table.numpy()
    return np.array_equal(numbers.astype(dtype.numpy()).astype(np.float32), numbers, equal_nan=True)


RULES: tuple[NodeRewrite[Any], ...] = (CarrySmallTypes(),)
