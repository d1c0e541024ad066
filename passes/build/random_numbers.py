"""What operators that draw random numbers make of numbers drawn evenly from [0, 1).

    Bernoulli(p)                →  u < p
    Multinomial(x)              →  how many cumulated probabilities are ≤ u,  Softmax(x) being summed up
    Dropout(x, ratio), training →  x · m / (1 − ratio),  m = u ≥ ratio

So only the drawing itself is random. ONNX's own body of Bernoulli, which ONNX Runtime takes, gives 1 where u > p, which
is with the probability 1 − p, and not p as the operator is defined.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from passes.core.edit import Edit
from passes.core.graphs import Scope

BY_EVEN_NUMBERS = frozenset({("", "Bernoulli"), ("", "Dropout"), ("", "Multinomial")})
"""The operators that `follow` knows."""
_SINCE = {"Dropout": 12, "Multinomial": 11}
"""The first opset in which it can be written, as CumSum came with 11; before 12 it is not known what Dropout drops."""


def obstacle(node: ir.Node, scope: Scope) -> str | None:
    """Why a node, which draws, cannot be written with even numbers; None where it can."""
    since = _SINCE.get(node.op_type, 0)
    if scope.opset() < since:
        return f"its opset is {scope.opset()}, and {since} is the first that it can be written in"
    if node.op_type == "Dropout" and scope.constant(node.inputs[2]) is None:
        return f"its training_mode is not constant: freeze {node.inputs[2].name}"  # type: ignore[union-attr]
    return None


def precision(node: ir.Node, scope: Scope) -> ir.DataType:
    """The dtype that even numbers for a node shall have."""
    given = scope.dtype(node.inputs[0]) if node.op_type != "Dropout" else None
    return ir.DataType.DOUBLE if given == ir.DataType.DOUBLE else ir.DataType.FLOAT


def follow(node: ir.Node, even: ir.Value, edit: Edit) -> list[ir.Value | None]:
    """The outputs of a node that draws.

    Args:
        node: of `BY_EVEN_NUMBERS`, without an `obstacle`.
        even: what was drawn, of the shape of the first output and of the node's `precision`.
        edit: what builds them.
    """
    wide, scope = precision(node, edit.scope), edit.scope
    x = node.inputs[0]
    if node.op_type == "Dropout":
        return _dropout(node, even, edit)
    assert x is not None
    dtype = node.outputs[0].dtype
    if dtype is None:
        dtype = ir.DataType(node.attributes.get_int("dtype", (scope.dtype(x) or ir.DataType.FLOAT).value))
    x = _cast(edit, x, wide)
    if node.op_type == "Bernoulli":
        return [edit.op("Cast", [edit.op("Less", [even, x])], {"to": dtype.value})]
    # the last sum is 1 but for rounding, and left out, so that no class is counted that there is not
    sums = edit.op("CumSum", [edit.op("Softmax", [x], {"axis": 1}), edit.constant(np.int64(1))])
    sums = _unsqueeze(edit, edit.op("Slice", [sums, *(_index(edit, each) for each in (0, -1, 1))]), 1)
    reached = edit.op("Not", [edit.op("Less", [_unsqueeze(edit, even, 2), sums])])
    return [edit.op("ReduceSum", [edit.op("Cast", [reached], {"to": dtype.value}), _index(edit, 2)], {"keepdims": 0})]


def _dropout(node: ir.Node, even: ir.Value, edit: Edit) -> list[ir.Value | None]:
    x, ratio = node.inputs[:2]
    assert x is not None
    share = edit.constant(np.float32(0.5)) if ratio is None else _cast(edit, ratio, ir.DataType.FLOAT)
    mask = edit.op("Not", [edit.op("Less", [even, share])])
    kept = edit.op("Max", [edit.op("Sub", [edit.constant(np.float32(1)), share]), edit.constant(np.float32(1e-9))])
    factor = edit.op("Div", [edit.op("Cast", [mask], {"to": ir.DataType.FLOAT.value}), kept])
    factor = _cast(edit, factor, edit.scope.dtype(x) or ir.DataType.FLOAT, of=ir.DataType.FLOAT)
    results: Sequence[ir.Value | None] = [edit.op("Mul", [x, factor]), mask]
    return list(results[: len(node.outputs)])


def _cast(edit: Edit, x: ir.Value, to: ir.DataType, of: ir.DataType | None = None) -> ir.Value:
    return x if (of or edit.scope.dtype(x)) == to else edit.op("Cast", [x], {"to": to.value})


def _index(edit: Edit, number: int) -> ir.Value:
    return edit.constant(np.array([number], np.int64))


def _unsqueeze(edit: Edit, x: ir.Value, axis: int) -> ir.Value:
    return edit.op("Unsqueeze", [x, _index(edit, axis)])
