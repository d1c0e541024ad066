"""Activations that the runtime reads otherwise in old opsets, or whose exponentials overflow in it.

    Softplus(x)         →  max(x, 0) + log(1 + exp(−|x|))
    LogSoftmax(x)       →  (x − m) − log Σ exp(x − m),  m = max x along the axis
    Softmax<axis>(x)    →  Reshape(Softmax<1>(Reshape(x, [before axis, rest])))      (and LogSoftmax, before opset 13)

Before opset 13 Softmax and LogSoftmax are over all axes from ``axis`` on, at once; that is over the last one alone only
where all others have length 1.

Skips: shapes that are not known where they decide; the stable forms before opset 7.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from passes.build.arithmetic import Arithmetic, wide
from passes.build.operands import UNKNOWN_DTYPE, UNKNOWN_SHAPE, sizes_of, too_old
from passes.core.base import Exactness, Skip
from passes.core.edit import Edit
from passes.core.matching import is_plain
from passes.core.rewrite import Match, NodeContext, NodeRewrite


@dataclass(frozen=True)
class _Typed(Match):
    dtype: ir.DataType


@dataclass(frozen=True)
class StabilizeActivation(NodeRewrite[_Typed]):
    """Write Softplus and LogSoftmax with exponentials of what is not positive alone."""

    name = "stabilize-activation"
    exactness = Exactness.ROUNDING
    operators = frozenset({("", "Softplus"), ("", "LogSoftmax")})

    def match(self, node: ir.Node, context: NodeContext) -> _Typed | Skip | None:
        """Any node of known dtype; a LogSoftmax that is over one axis."""
        if not is_plain(node, context.scope):
            return None
        if (reason := too_old(context.scope)) is not None:
            return Skip(reason)
        dtype, shape = context.scope.dtype(node.inputs[0]), sizes_of(node.inputs[0], context.scope)
        if dtype is None:
            return Skip(UNKNOWN_DTYPE)
        if node.op_type == "LogSoftmax" and context.scope.opset() < 13:
            if shape is None:
                return Skip(UNKNOWN_SHAPE)
            if node.attributes.get_int("axis", 1) % max(len(shape), 1) != len(shape) - 1:
                return None  # flatten-softmax makes it one that is
        return _Typed(node, dtype)

    def rewrite(self, match: _Typed, edit: Edit) -> Sequence[ir.Value | None]:
        """A few elementwise operators, and two reductions for LogSoftmax."""
        node = match.node
        a = Arithmetic(edit, wide(match.dtype))
        assert node.inputs[0] is not None
        x = a.cast(node.inputs[0], match.dtype)
        if node.op_type == "Softplus":
            y = a("Add", a("Relu", x), a("Log", a("Add", a("Exp", a("Neg", a("Abs", x))), 1)))
        else:
            axes = [node.attributes.get_int("axis", -1 if edit.scope.opset() >= 13 else 1)]
            low = a("Sub", x, a.reduce("Max", x, axes))
            y = a("Sub", low, a("Log", a.reduce("Sum", a("Exp", low), axes)))
        return [a.cast(y, a.dtype, match.dtype)]


@dataclass(frozen=True)
class _Flat(Match):
    shape: tuple[int, ...]
    axis: int


@dataclass(frozen=True)
class FlattenSoftmax(NodeRewrite[_Flat]):
    """Give Softmax and LogSoftmax of old opsets the matrix that they are defined on."""

    name = "flatten-softmax"
    operators = frozenset({("", "Softmax"), ("", "LogSoftmax")})

    def match(self, node: ir.Node, context: NodeContext) -> _Flat | Skip | None:
        """Whether it is anything but a matrix, by its rows."""
        scope = context.scope
        if scope.opset() >= 13 or not is_plain(node, scope):
            return None
        shape = sizes_of(node.inputs[0], scope)
        if shape is None:
            return Skip(UNKNOWN_SHAPE)
        axis = node.attributes.get_int("axis", 1)
        axis = axis + len(shape) if axis < 0 else axis
        is_row = len(shape) == 2 and axis == 1
        return None if is_row or not shape or 0 in shape else _Flat(node, shape, axis)

    def rewrite(self, match: _Flat, edit: Edit) -> Sequence[ir.Value | None]:
        """A matrix, and back."""
        node = match.node
        a = Arithmetic(edit, ir.DataType.FLOAT)
        before = math.prod(match.shape[: match.axis])
        assert node.inputs[0] is not None
        rows = a.reshape(node.inputs[0], [before, math.prod(match.shape) // before])
        return [a.reshape(a(node.op_type, rows, axis=1), match.shape)]


RULES: tuple[NodeRewrite[Any], ...] = (FlattenSoftmax(), StabilizeActivation())
