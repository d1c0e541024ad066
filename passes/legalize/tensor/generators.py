"""Rewrite operators that generate tensors from a few numbers.

    Range(start, limit, delta)                   →  start + delta · [0, 1, …]     as many as the output has
    HannWindow, HammingWindow, BlackmanWindow(n) →  the constant that ONNX Runtime computes
    MelWeightMatrix(…)                           →  likewise
    EyeLike(x)                                   →  a constant

The length of a range or window that is computed at run time is taken from the output's shape.

Skips: lengths that are neither constant nor known from the output's shape; what ONNX Runtime cannot compute.
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from passes.builders.arithmetic import Arithmetic, wide_float
from passes.evaluation.constant_session import EvaluationError
from passes.evaluation.evaluation import evaluate
from passes.rewriting.base import Exactness, NotApplicable, Skip
from passes.rewriting.edit import Edit, not_constant
from passes.rewriting.rewrite import UNKNOWN_DTYPE, Replacement, rewrite

_MOST = 2**25
"""The most elements of a constant."""
_WINDOWS = ("BlackmanWindow", "HammingWindow", "HannWindow")


@rewrite("Range", exactness=Exactness.ROUNDING, needs_dtype=(0,))
def count_range(node: ir.Node, edit: Edit) -> Replacement:
    """Compute a range of known length from its start."""
    dtype, count = edit.dtype(node), _count(node, edit)
    if count > _MOST:
        return Skip(f"the {count} steps of the range are too many for a constant")
    if count == 0:
        return edit.constant(np.zeros(0, dtype.numpy()))
    a = Arithmetic(edit, wide_float(dtype))
    start, delta = (a.reshape(a.cast(edit.input(node, index)), [1]) for index in (0, 2))
    return a.cast(a("Add", start, a("Mul", delta, np.arange(count))), dtype)


def _count(node: ir.Node, edit: Edit) -> int:
    """Return the length of a range, from its operands if they are constant, else from the output's shape."""
    constants = [edit.scope.constant(value) for value in node.inputs]
    if all(tensor is not None for tensor in constants):
        start, limit, delta = (tensor.numpy().item() for tensor in constants if tensor is not None)
        if delta == 0:
            raise NotApplicable("the delta is 0")
        count: int = math.ceil((limit - start) / delta)
        return max(count, 0)
    sizes = edit.scope.proven_sizes(node.outputs[0])
    if sizes is None:
        index = constants.index(None)
        operand = ("the start", "the limit", "the delta")[index]
        raise NotApplicable(not_constant(edit.input(node, index), operand))
    return sizes[0]


@rewrite(*_WINDOWS, "MelWeightMatrix")
def evaluate_window(node: ir.Node, edit: Edit) -> Replacement:
    """Evaluate windows and filter banks of known size."""
    scope = edit.scope
    sizes, dtype = scope.proven_sizes(node.outputs[0]), scope.dtype(node.inputs[0])
    constants: dict[ir.Value, ir.TensorProtocol] = {}
    for value in node.inputs:
        tensor = scope.constant(value)
        if node.op_type in _WINDOWS and sizes is not None and dtype is not None:
            tensor = ir.Tensor(np.array(sizes[0], dtype.numpy()))
        if value is not None and tensor is None:
            return Skip(not_constant(value, "the size of the output"))
        if value is not None and tensor is not None:
            constants[value] = tensor
    try:
        return [edit.constant(tensor) for tensor in evaluate([node], constants, node.outputs, scope)]
    except EvaluationError as error:
        return Skip(f"ONNX Runtime cannot compute it: {error}")


@rewrite("EyeLike", needs_shape=(0,))
def constant_eye(node: ir.Node, edit: Edit) -> Replacement:
    """Replace EyeLike by a constant."""
    rows, columns = edit.shape(node)
    dtype, diagonal = edit.scope.dtype(node.inputs[0]), node.attributes.get_int("k", 0)
    if "dtype" in node.attributes:
        dtype = ir.DataType(node.attributes["dtype"].as_int())
    if dtype is None:
        return Skip(UNKNOWN_DTYPE)
    return edit.constant(np.eye(rows, columns, diagonal, dtype=np.bool_).astype(dtype.numpy()))
