"""Rewrite activations that the runtime misinterprets in old opsets, or whose exponentials overflow in it.

    Softplus(x)         →  max(x, 0) + log(1 + exp(−|x|))
    LogSoftmax(x)       →  (x − m) − log Σ exp(x − m),  m = max x along the axis
    Softmax<axis>(x)    →  Reshape(Softmax<1>(Reshape(x, [before axis, rest])))      (and LogSoftmax, before opset 13)

Before opset 13 Softmax and LogSoftmax normalize over all axes from ``axis`` on; that is the last axis alone only if all
others have length 1.

Skips: dynamic shapes, where the rewrite depends on them; opsets before 7 for the stable forms.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from passes.builders.arithmetic import Arithmetic, wide
from passes.builders.operands import UNKNOWN_SHAPE
from passes.rewriting.base import Exactness, Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import Match, NodeContext, NodeRewrite


@dataclass(frozen=True)
class _Typed(Match):
    dtype: ir.DataType


class StabilizeActivation(NodeRewrite[_Typed]):
    """Rewrite Softplus and LogSoftmax so that no exponential has a positive argument."""

    name = "stabilize-activation"
    exactness = Exactness.ROUNDING
    operators = frozenset({("", "Softplus"), ("", "LogSoftmax")})
    since_opset = 7  # broadcasting
    needs_dtype = (0,)

    def match(self, node: ir.Node, context: NodeContext) -> _Typed | Skip | None:
        """Match Softplus, and LogSoftmax over one axis."""
        shape = context.scope.static_shape(node.inputs[0])
        if node.op_type == "LogSoftmax" and context.scope.opset() < 13:
            if shape is None:
                return Skip(UNKNOWN_SHAPE)
            if node.attributes.get_int("axis", 1) % max(len(shape), 1) != len(shape) - 1:
                return None  # flatten-softmax comes first
        return _Typed(node, context.dtype(node))

    def rewrite(self, match: _Typed, edit: Edit) -> Sequence[ir.Value | None]:
        """Elementwise operators, and two reductions for LogSoftmax."""
        node = match.node
        a = Arithmetic(edit, wide(match.dtype))
        assert node.inputs[0] is not None
        x = a.cast(node.inputs[0])
        if node.op_type == "Softplus":
            y = a("Add", a("Relu", x), a("Log", a("Add", a("Exp", a("Neg", a("Abs", x))), 1)))
        else:
            axes = [node.attributes.get_int("axis", -1 if edit.scope.opset() >= 13 else 1)]
            low = a("Sub", x, a.reduce("Max", x, axes))
            y = a("Sub", low, a("Log", a.reduce("Sum", a("Exp", low), axes)))
        return [a.cast(y, match.dtype)]


@dataclass(frozen=True)
class _Flat(Match):
    shape: tuple[int, ...]
    axis: int


class FlattenSoftmax(NodeRewrite[_Flat]):
    """Reshape the input of Softmax and LogSoftmax of old opsets to the matrix that they are defined on."""

    name = "flatten-softmax"
    operators = frozenset({("", "Softmax"), ("", "LogSoftmax")})
    needs_shape = (0,)

    def match(self, node: ir.Node, context: NodeContext) -> _Flat | None:
        """Match any input that is not a matrix normalized by rows."""
        if context.scope.opset() >= 13:
            return None
        shape = context.shape(node)
        axis = node.attributes.get_int("axis", 1)
        axis = axis + len(shape) if axis < 0 else axis
        is_row = len(shape) == 2 and axis == 1
        return None if is_row or not shape or 0 in shape else _Flat(node, shape, axis)

    def rewrite(self, match: _Flat, edit: Edit) -> Sequence[ir.Value | None]:
        """Reshape to a matrix, normalize its rows, and reshape back."""
        node = match.node
        a = Arithmetic(edit, ir.DataType.FLOAT)
        before = math.prod(match.shape[: match.axis])
        assert node.inputs[0] is not None
        rows = a.reshape(node.inputs[0], [before, math.prod(match.shape) // before])
        return [a.reshape(a(node.op_type, rows, axis=1), match.shape)]


RULES: tuple[NodeRewrite[Any], ...] = (FlattenSoftmax(), StabilizeActivation())
