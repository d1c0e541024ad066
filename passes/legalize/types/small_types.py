"""Carry tensors of dtypes that a runtime's parser rejects in a wider dtype.

    Cast(f(Cast(x → float8)) → float)        →  f(round(x / u)·u)              f moves elements: Reshape, Gather, …
    DequantizeLinear(W, s), W of int4        →  DequantizeLinear(W as int8, s)
    DequantizeLinear(Q(x, s), s) in float8   →  round(x / s / u)·u · s
    Cast(W → float), W a constant of float4  →  W's numbers

The rewrite starts at a node that converts a small dtype to another dtype, and traces back to the nodes that produce the
small dtype, and to constants. Only operators that move elements may be between them. The small dtype is eliminated, and
the numbers are exactly the same; see `passes.builders.small_dtypes` for the arithmetic.

Skips: inputs of small dtypes, which a runtime without the dtype cannot take; small dtypes that other operators compute.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from passes.builders.quantize_linear import arithmetic_dtype, dequantize, quantize
from passes.builders.small_dtypes import SMALL, SMALL_FLOATS, as_carrier, carrier, to_small
from passes.graphs.matching import is_op, is_plain
from passes.graphs.scopes import Scope
from passes.operators import is_quantize
from passes.rewriting.base import Exactness, NotApplicable
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import Replacement, rewrite

_MOVING = {
    "Concat", "DepthToSpace", "Expand", "Flatten", "Gather", "GatherElements", "GatherND", "Identity", "Pad", "Reshape",
    "Slice", "SpaceToDepth", "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze",
}  # fmt: skip
"""Operators whose outputs consist of elements of their inputs (and zeros)."""
_CONVERTING = ("Cast", "CastLike", "QuantizeLinear")
"""Operators that convert to a small dtype."""


@rewrite(
    "Cast",
    "DequantizeLinear",
    "com.microsoft.DequantizeLinear",
    exactness=Exactness.ROUNDING,
    absorbs=(*_MOVING, *_CONVERTING, "com.microsoft.QuantizeLinear"),
)
def carry_small_types(node: ir.Node, edit: Edit) -> Replacement:
    """Carry the numbers of small dtypes in wider ones."""
    scope = edit.scope
    values = [value for value in node.inputs if value is not None and _dtype(value, scope) in SMALL]
    target = node.attributes.get_int("to", 0) if node.op_type == "Cast" else 0
    if not values or (target and ir.DataType(target) in SMALL):
        return None
    sources: dict[ir.Node, None] = {}
    for value in values:
        _trace(value, scope, sources)
    if node.op_type == "DequantizeLinear":
        arithmetic_dtype(node, scope)
    carried: dict[ir.Value, ir.Value] = {}
    for source in sources:
        _carry_outputs(source, edit, carried)
    edit.absorb(*reversed(sources))
    inputs = [_carry(value, edit, carried) for value in node.inputs]
    if node.op_type == "Cast":
        assert inputs[0] is not None
        return edit.cast(inputs[0], ir.DataType(target))
    if _dtype(values[0], scope) not in SMALL_FLOATS and _dtype(node.inputs[1], scope) not in SMALL:
        return edit.op("DequantizeLinear", inputs, node.attributes)
    return dequantize(edit, node, inputs, arithmetic_dtype(node, scope))


def _dtype(value: ir.Value | None, scope: Scope) -> ir.DataType | None:
    """Return the dtype of a value, or of the Cast that computes it."""
    dtype = scope.dtype(value)
    node = value.producer() if value is not None else None
    if dtype is None and node is not None and is_op(node, "Cast"):
        return ir.DataType(node.attributes.get_int("to", 0))
    return dtype


def _trace(value: ir.Value, scope: Scope, sources: dict[ir.Node, None]) -> None:
    """Collect the nodes that a value of a small dtype is computed by, operands first."""
    pending: list[ir.Value | ir.Node] = [value]
    while pending:
        current = pending.pop()
        if isinstance(current, ir.Node):  # its operands are done
            sources[current] = None
            continue
        node = current.producer()
        if scope.constant(current) is not None or node in sources:
            continue
        node = _carriable(current, scope)
        operands = node.inputs[:1] if node.op_type == "CastLike" else node.inputs
        pending.append(node)
        for operand in reversed(operands):
            if operand is not None and _dtype(operand, scope) in SMALL:
                pending.append(operand)


def _carriable(value: ir.Value, scope: Scope) -> ir.Node:
    """Return the node that computes a value of a small dtype."""
    node, dtype = value.producer(), _dtype(value, scope)
    assert dtype is not None
    if node is None:
        raise NotApplicable(f"{value.name} is an input of {dtype.name.lower()}")
    moves = node.domain == "" and node.op_type in _MOVING
    if moves and node.op_type == "Pad":
        moves = node.attributes.get_string("mode", "constant") != "constant" or len(node.inputs) < 3
    is_known = moves or is_op(node, *_CONVERTING) or is_quantize(node)
    if not is_known or not is_plain(node, scope):
        raise NotApplicable(f"{value.name} is computed by {node.op_type} in {dtype.name.lower()}")
    if node.op_type == "QuantizeLinear":
        arithmetic_dtype(node, scope)
    if not moves and node.inputs[0] is not None and scope.dtype(node.inputs[0]) is None:
        raise NotApplicable(f"the dtype of {node.inputs[0].name} is unknown")
    return node


def _carry(value: ir.Value | None, edit: Edit, carried: dict[ir.Value, ir.Value]) -> ir.Value | None:
    """Return the carrier of a value of a small dtype; any other value unchanged."""
    if value is None or _dtype(value, edit.scope) not in SMALL:
        return value
    if value not in carried:
        tensor = edit.scope.constant(value)
        assert tensor is not None
        carried[value] = edit.constant(as_carrier(tensor))
    return carried[value]


def _carry_outputs(node: ir.Node, edit: Edit, carried: dict[ir.Value, ir.Value]) -> None:
    """Carry the results of a node whose operands are constants, or carried already."""
    dtype = _dtype(node.outputs[0], edit.scope)
    assert dtype is not None
    if node.op_type in ("Cast", "CastLike"):
        x = _carry(node.inputs[0], edit, carried)
        assert x is not None
        before = _dtype(node.inputs[0], edit.scope)
        assert before is not None
        exact = _is_on_grid(node.inputs[0], dtype, edit.scope)
        carried[node.outputs[0]] = x if exact else to_small(edit, node, x, carrier(before), dtype)
        return
    inputs = [_carry(value, edit, carried) for value in node.inputs]
    if node.op_type == "QuantizeLinear":
        carried[node.outputs[0]] = quantize(edit, node, inputs, dtype)
    else:
        copy = edit.node(node.op_type, inputs, node.attributes, outputs=len(node.outputs))
        carried.update(zip(node.outputs, copy.outputs, strict=True))


def _is_on_grid(value: ir.Value | None, dtype: ir.DataType, scope: Scope) -> bool:
    """Return whether a value is gathered from numbers of a small float, which a Cast to it does not change."""
    node = value.producer() if value is not None else None
    table = scope.constant(node.inputs[0]) if node is not None and is_op(node, "Gather") else None
    if table is None or table.dtype != ir.DataType.FLOAT or dtype not in SMALL_FLOATS or table.size > 256:
        return False
    numbers = table.numpy()
    return np.array_equal(numbers.astype(dtype.numpy()).astype(np.float32), numbers, equal_nan=True)
