"""Random operators as functions of numbers that are uniformly distributed in [0, 1).

    Bernoulli(p)                →  u < p
    Multinomial(x)              →  the number of cumulative probabilities ≤ u, with probabilities Softmax(x)
    Dropout(x, ratio), training →  x · m / (1 − ratio),  m = u ≥ ratio

Only drawing u remains random. ONNX's function body of Bernoulli, which ONNX Runtime uses, returns 1 where u > p, that
is with probability 1 − p; the operator's definition says p.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from passes.graphs.scopes import Scope
from passes.rewriting.base import NotApplicable, OpsetTooOld
from passes.rewriting.edit import Edit

FROM_UNIFORM = frozenset({("", "Bernoulli"), ("", "Dropout"), ("", "Multinomial")})
"""The operators that `from_uniform` implements."""
_SINCE_OPSET = {"Dropout": 12, "Multinomial": 11}
"""The first supported opset: CumSum is new in 11, and the training_mode of Dropout in 12."""


def check_supported(node: ir.Node, scope: Scope) -> None:
    """Raise NotApplicable if a random node cannot be written with uniform numbers."""
    since = _SINCE_OPSET.get(node.op_type, 0)
    if scope.opset() < since:
        raise OpsetTooOld("the replacement", since, scope.opset())
    mode = node.inputs[2] if node.op_type == "Dropout" else None
    if mode is not None and scope.constant(mode) is None:
        raise NotApplicable(f"training_mode is not constant: freeze {mode.name}")


def precision(node: ir.Node, scope: Scope) -> ir.DataType:
    """Return the dtype of the uniform numbers for a node."""
    given = scope.dtype(node.inputs[0]) if node.op_type != "Dropout" else None
    return ir.DataType.DOUBLE if given == ir.DataType.DOUBLE else ir.DataType.FLOAT


def from_uniform(node: ir.Node, uniform: ir.Value, edit: Edit) -> list[ir.Value | None]:
    """Return the outputs of one of `FROM_UNIFORM` that `check_supported` accepts.

    The uniform numbers have the shape of the first output and the dtype `precision`.
    """
    wide, scope = precision(node, edit.scope), edit.scope
    x = node.inputs[0]
    if node.op_type == "Dropout":
        return _dropout(node, uniform, edit)
    assert x is not None
    dtype = node.outputs[0].dtype
    if dtype is None:
        dtype = ir.DataType(node.attributes.get_int("dtype", (scope.dtype(x) or ir.DataType.FLOAT).value))
    x = edit.cast(x, wide)
    if node.op_type == "Bernoulli":
        return [edit.cast(edit.op("Less", [uniform, x]), dtype)]
    # the last sum is 1 up to rounding; it is left out so that the result is always a valid class
    sums = edit.op("CumSum", [edit.op("Softmax", [x], {"axis": 1}), edit.constant(np.int64(1))])
    sums = edit.unsqueeze(edit.slice(sums, 1, 0, -1), [1])
    reached = edit.op("Not", [edit.op("Less", [edit.unsqueeze(uniform, [2]), sums])])
    return [edit.reduce("Sum", edit.cast(reached, dtype), [2], keepdims=False)]


def _dropout(node: ir.Node, uniform: ir.Value, edit: Edit) -> list[ir.Value | None]:
    x, ratio = node.inputs[:2]
    assert x is not None
    share = edit.constant(np.float32(0.5)) if ratio is None else edit.cast(ratio, ir.DataType.FLOAT)
    mask = edit.op("Not", [edit.op("Less", [uniform, share])])
    kept = edit.op("Max", [edit.op("Sub", [edit.constant(np.float32(1)), share]), edit.constant(np.float32(1e-9))])
    factor = edit.op("Div", [edit.op("Cast", [mask], {"to": ir.DataType.FLOAT.value}), kept])
    factor = edit.cast(factor, edit.scope.dtype(x) or ir.DataType.FLOAT)
    return [edit.op("Mul", [x, factor]), mask]
