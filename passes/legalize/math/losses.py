"""Decompose classification losses into sums over a mask of the labels.

    M[n, c, …] = (t[n, …] = c)                      1 where class c is the label
    NegativeLogLikelihoodLoss(x, t, w)  →  W = Σ_c M · w,  l = −Σ_c M · x · w
                                           none: l      sum: Σ l      mean: Σ l / Σ W
    SoftmaxCrossEntropyLoss(x, t, w)    →  the same of log_prob = (x − m) − log Σ exp(x − m), m = max over the classes

An ignored label matches no class: its column of the mask is empty, so that its loss and its weight are 0 whatever its
score. Ignored labels therefore need not be valid indices.

Skips: dynamic shapes; scores without classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from passes.builders.arithmetic import Arithmetic, wide
from passes.builders.operands import given
from passes.rewriting.base import Exactness, Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import Match, NodeContext, NodeRewrite

_CLASSES = 1
"""The class axis of the scores."""


@dataclass(frozen=True)
class _LossMatch(Match):
    shape: tuple[int, ...]
    dtype: ir.DataType
    labels: ir.DataType


class DecomposeLoss(NodeRewrite[_LossMatch]):
    """Decompose NegativeLogLikelihoodLoss and SoftmaxCrossEntropyLoss."""

    name = "decompose-loss"
    exactness = Exactness.ROUNDING
    operators = frozenset({("", "NegativeLogLikelihoodLoss"), ("", "SoftmaxCrossEntropyLoss")})
    needs_shape = (0,)
    needs_dtype = (0, 1)

    def match(self, node: ir.Node, context: NodeContext) -> _LossMatch | Skip | None:
        """Match scores with a class axis."""
        shape = context.shape(node)
        if len(shape) < 2:
            return Skip("its scores have no class axis")
        return _LossMatch(node, shape, context.dtype(node, 0), context.dtype(node, 1))

    def rewrite(self, match: _LossMatch, edit: Edit) -> Sequence[ir.Value | None]:
        """The loss, and the log-probabilities if there is an output for them."""
        node, dtype = match.node, match.dtype
        scores, labels, weights = node.inputs[0], node.inputs[1], given(node, 2)
        assert scores is not None and labels is not None
        a, index = Arithmetic(edit, wide(dtype)), Arithmetic(edit, match.labels)
        scores = a.cast(scores, dtype)
        if node.op_type == "SoftmaxCrossEntropyLoss":
            scores = _log_softmax(a, scores)
        column = [-1, *(1 for _ in match.shape[2:])]
        classes = match.shape[_CLASSES]
        ignored = node.attributes.get_int("ignore_index", None)
        if ignored is not None and 0 <= ignored < classes:
            labels = index("Where", index("Equal", labels, ignored), -1, labels)
        mask = index("Equal", a.unsqueeze(labels, [_CLASSES]), np.arange(classes).reshape(column))

        def select_label(values: ir.Value | float) -> ir.Value:
            return a.reduce("Sum", a("Where", mask, values, 0), [_CLASSES], keepdims=False)

        weight = None
        if weights is not None:
            weight = select_label(a.reshape(a.cast(weights, dtype), column))
        elif ignored is not None:
            weight = select_label(1)
        loss = a("Neg", select_label(scores))
        if weights is not None:
            assert weight is not None
            loss = a("Mul", loss, weight)
        axes = range(len(match.shape) - 1)
        reduction = node.attributes.get_string("reduction", "mean")
        if reduction == "mean" and weight is None:
            loss = a.reduce("Mean", loss, axes, keepdims=False)
        elif reduction != "none":
            loss = a.reduce("Sum", loss, axes, keepdims=False)
            if reduction == "mean":
                assert weight is not None
                loss = a("Div", loss, a.reduce("Sum", weight, axes, keepdims=False))
        outputs = [a.cast(loss, a.dtype, dtype)]
        if len(node.outputs) > 1:
            outputs.append(a.cast(scores, a.dtype, dtype))
        return outputs


def _log_softmax(a: Arithmetic, x: ir.Value) -> ir.Value:
    """LogSoftmax without overflow, in operators of every opset."""
    low = a("Sub", x, a.reduce("Max", x, [_CLASSES]))
    return a("Sub", low, a("Log", a.reduce("Sum", a("Exp", low), [_CLASSES])))


RULES: tuple[NodeRewrite[_LossMatch], ...] = (DecomposeLoss(),)
