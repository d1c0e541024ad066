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

import numpy as np
import onnx_ir as ir

from passes.builders.arithmetic import Arithmetic, wide
from passes.builders.operands import given
from passes.rewriting.base import Exactness, Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import Replacement, rewrite

_CLASSES = 1
"""The class axis of the scores."""


@rewrite(
    "NegativeLogLikelihoodLoss",
    "SoftmaxCrossEntropyLoss",
    exactness=Exactness.ROUNDING,
    needs_shape=(0,),
    needs_dtype=(0, 1),
)
def decompose_loss(node: ir.Node, edit: Edit) -> Replacement:
    """Decompose NegativeLogLikelihoodLoss and SoftmaxCrossEntropyLoss."""
    shape, dtype = edit.shape(node), edit.dtype(node)
    if len(shape) < 2:
        return Skip("the scores have no class axis")
    a, index = Arithmetic(edit, wide(dtype)), Arithmetic(edit, edit.dtype(node, 1))
    scores, labels, weights = a.cast(edit.input(node)), edit.input(node, 1), given(node, 2)
    if node.op_type == "SoftmaxCrossEntropyLoss":
        scores = log_softmax(a, scores, _CLASSES)
    column = [-1, *(1 for _ in shape[2:])]
    classes = shape[_CLASSES]
    ignored = node.attributes.get_int("ignore_index", None)
    if ignored is not None and 0 <= ignored < classes:
        labels = index("Where", index("Equal", labels, ignored), -1, labels)
    mask = index("Equal", a.unsqueeze(labels, [_CLASSES]), np.arange(classes).reshape(column))

    def select_label(values: ir.Value | float) -> ir.Value:
        return a.reduce("Sum", a("Where", mask, values, 0), [_CLASSES], keepdims=False)

    loss, weight = a("Neg", select_label(scores)), None
    if weights is not None:
        weight = select_label(a.reshape(a.cast(weights), column))
        loss = a("Mul", loss, weight)
    elif ignored is not None:
        weight = select_label(1)
    axes = range(len(shape) - 1)
    reduction = node.attributes.get_string("reduction", "mean")
    if reduction == "mean" and weight is None:
        loss = a.reduce("Mean", loss, axes, keepdims=False)
    elif reduction != "none":
        loss = a.reduce("Sum", loss, axes, keepdims=False)
        if reduction == "mean" and weight is not None:
            loss = a("Div", loss, a.reduce("Sum", weight, axes, keepdims=False))
    return [a.cast(loss, dtype), a.cast(scores, dtype)]


def log_softmax(a: Arithmetic, x: ir.Value, axis: int) -> ir.Value:
    """Compute LogSoftmax along an axis without overflow, in operators of every opset."""
    low = a("Sub", x, a.reduce("Max", x, [axis]))
    return a("Sub", low, a("Log", a.reduce("Sum", a("Exp", low), [axis])))
