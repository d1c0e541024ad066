"""Rewrite activations that the runtime misinterprets in old opsets, or whose exponentials overflow in it.

    Softplus(x)         →  max(x, 0) + log(1 + exp(−|x|))
    LogSoftmax(x)       →  (x − m) − log Σ exp(x − m),  m = max x along the axis
    Softmax<axis>(x)    →  Reshape(Softmax<1>(Reshape(x, [before axis, rest])))      (and LogSoftmax, before opset 13)

Before opset 13 Softmax and LogSoftmax normalize over all axes from ``axis`` on; that is the last axis alone only if all
others have length 1.

Skips: dynamic shapes, if the rewrite depends on them; opsets before 7 for the stable forms.
"""

from __future__ import annotations

import math

import onnx_ir as ir

from passes.builders.arithmetic import Arithmetic, wide
from passes.legalize.math.losses import log_softmax
from passes.rewriting.base import Exactness, Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import UNKNOWN_SHAPE, Replacement, rewrite


@rewrite("Softmax", "LogSoftmax", needs_shape=(0,))
def flatten_softmax(node: ir.Node, edit: Edit) -> Replacement:
    """Reshape the input of Softmax and LogSoftmax of old opsets to the matrix that they are defined on."""
    shape, axis = edit.shape(node), node.attributes.get_int("axis", 1)
    if edit.scope.opset() >= 13 or not shape or 0 in shape:
        return None
    axis = axis + len(shape) if axis < 0 else axis
    if len(shape) == 2 and axis == 1:
        return None
    before = math.prod(shape[:axis])
    rows = edit.reshape(edit.input(node), [before, math.prod(shape) // before])
    return edit.reshape(edit.op(node.op_type, [rows], {"axis": 1}), shape)


@rewrite("Softplus", "LogSoftmax", exactness=Exactness.ROUNDING, needs_dtype=(0,))
def stabilize_activation(node: ir.Node, edit: Edit) -> Replacement:
    """Rewrite Softplus, and LogSoftmax over one axis, so that no exponential has a positive argument."""
    dtype, opset = edit.dtype(node), edit.scope.opset()
    a = Arithmetic(edit, wide(dtype))
    x = a.cast(edit.input(node))
    if node.op_type == "Softplus":
        y = a("Add", a("Relu", x), a("Log", a("Add", a("Exp", a("Neg", a("Abs", x))), 1)))
        return a.cast(y, dtype)
    axis = node.attributes.get_int("axis", -1 if opset >= 13 else 1)
    if opset < 13:
        shape = edit.scope.static_shape(node.inputs[0])
        if shape is None:
            return Skip(UNKNOWN_SHAPE)
        if axis % max(len(shape), 1) != len(shape) - 1:
            return None  # flatten-softmax comes first
    return a.cast(log_softmax(a, x, axis), dtype)
