"""Losses of classification, as sums over a mask of the labels.

    M[n, c, …] = (t[n, …] = c)                      1 where class c is the label
    NegativeLogLikelihoodLoss(x, t, w)  →  W = Σ_c M · w,  l = −Σ_c M · x · w
                                           none: l      sum: Σ l      mean: Σ l / Σ W
    SoftmaxCrossEntropyLoss(x, t, w)    →  the same of log_prob = (x − m) − log Σ exp(x − m), m = max over the classes

A label that is to be ignored is no class at all: its column of the mask is empty, so that its loss and its weight are
0, whatever its score. Labels need not be valid indices for that.

Skips: shapes that are not static; scores without classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from passes.build.arithmetic import Arithmetic, wide
from passes.build.operands import UNKNOWN_DTYPE, UNKNOWN_SHAPE, given, sizes_of
from passes.core.base import Exactness, Skip
from passes.core.edit import Edit
from passes.core.matching import is_plain
from passes.core.rewrite import Match, NodeContext, NodeRewrite

_CLASSES = 1
"""The axis of the scores that the labels index."""


@dataclass(frozen=True)
class _Found(Match):
    shape: tuple[int, ...]
    dtype: ir.DataType
    labels: ir.DataType


@dataclass(frozen=True)
class DecomposeLoss(NodeRewrite[_Found]):
    """Write NegativeLogLikelihoodLoss and SoftmaxCrossEntropyLoss out."""

    name = "decompose-loss"
    exactness = Exactness.ROUNDING
    operators = frozenset({("", "NegativeLogLikelihoodLoss"), ("", "SoftmaxCrossEntropyLoss")})

    def match(self, node: ir.Node, context: NodeContext) -> _Found | Skip | None:
        """Whether its dtypes and the shape of the scores are known."""
        scope = context.scope
        if not is_plain(node, scope):
            return None
        shape = sizes_of(node.inputs[0], scope)
        dtype, labels = scope.dtype(node.inputs[0]), scope.dtype(node.inputs[1])
        if shape is None:
            return Skip(UNKNOWN_SHAPE)
        if dtype is None or labels is None:
            return Skip(UNKNOWN_DTYPE)
        return _Found(node, shape, dtype, labels) if len(shape) > 1 else Skip("its scores have no classes")

    def rewrite(self, match: _Found, edit: Edit) -> Sequence[ir.Value | None]:
        """The loss, and the logarithms of the probabilities where there is an output for them."""
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

        def picked(values: ir.Value | float) -> ir.Value:
            return a.reduce("Sum", a("Where", mask, values, 0), [_CLASSES], keepdims=False)

        weight = None
        if weights is not None:
            weight = picked(a.reshape(a.cast(weights, dtype), column))
        elif ignored is not None:
            weight = picked(1)
        loss = a("Neg", picked(scores))
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
    """Without overflow, and in the same words in every opset."""
    low = a("Sub", x, a.reduce("Max", x, [_CLASSES]))
    return a("Sub", low, a("Log", a.reduce("Sum", a("Exp", low), [_CLASSES])))


RULES: tuple[NodeRewrite[_Found], ...] = (DecomposeLoss(),)
