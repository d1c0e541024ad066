"""What rules ask about the operands and results of a node: whether they are there, how large, whether constant."""

from __future__ import annotations

import onnx_ir as ir

from passes.core.graphs import Scope, ints
from passes.core.rewrite import UNKNOWN_DTYPE, UNKNOWN_SHAPE

__all__ = [
    "UNKNOWN_DTYPE", "UNKNOWN_SHAPE", "given", "integers", "not_constant", "scalar", "sizes_of", "too_old", "wanted",
]  # fmt: skip


def given(node: ir.Node, index: int) -> ir.Value | None:
    """An optional input; None where it is left out."""
    return node.inputs[index] if index < len(node.inputs) else None


def wanted(node: ir.Node, index: int) -> bool:
    """Whether an optional output is there and used."""
    if index >= len(node.outputs):
        return False
    value = node.outputs[index]
    return bool(value.name) and (bool(value.uses()) or value.is_graph_output())


def sizes_of(value: ir.Value | None, scope: Scope) -> tuple[int, ...] | None:
    """The shape of a value, where all of it is known."""
    return scope.static_shape(value)


def integers(value: ir.Value | None, what: str, scope: Scope) -> list[int] | str | None:
    """The elements of an optional input; None where it is left out, a reason where it is not constant."""
    if value is None:
        return None
    found = ints(scope.constant(value))
    return not_constant(value, what) if found is None else found


def scalar(value: ir.Value | None, scope: Scope) -> int | None:
    """The number in a constant integer or bool of one element; None for anything else."""
    tensor = scope.constant(value)
    if tensor is not None and tensor.dtype == ir.DataType.BOOL and tensor.size == 1:
        return int(tensor.numpy().item())
    found = ints(tensor)
    return found[0] if found is not None and len(found) == 1 else None


def not_constant(value: ir.Value, what: str) -> str:
    """Why a rule stops at an operand that must be known, and what helps."""
    if value.is_graph_input():
        return f"{what} is not constant: freeze it with --freeze {value.name}=VALUE"
    return f"{what} is not constant: {value.name} is computed while the model runs"


def too_old(scope: Scope, since: int = 7) -> str | None:
    """Why a rule stops before the opset of what it writes; 7 is the first that broadcasts as numpy does."""
    return (
        f"it needs opset {since}, and the model has {scope.opset()}: convert-opset comes first"
        if scope.opset() < since
        else None
    )
