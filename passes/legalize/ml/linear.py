"""Linear models as matrix products.

    LinearRegressor(x)   →  transform(x·Aᵀ + b)
    LinearClassifier(x)  →  labels[ArgMax(x·Aᵀ + b)], transform(x·Aᵀ + b)

One score for two labels: the second label if it is positive, and 1 − s and s as the scores, or σ(−s) and σ(s).

Skips: string labels that are used; a classifier without intercepts; PROBIT of one score for two labels, which is not
defined.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from passes.legalize.ml import common as ml
from passes.legalize.ml.common import Features
from passes.rewriting.base import Exactness, NotApplicable, Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import Replacement, rewrite


@rewrite("ai.onnx.ml.LinearRegressor", exactness=Exactness.ROUNDING, since_opset=9, needs_shape=(0,), needs_dtype=(0,))
def multiply_linear_regressor(node: ir.Node, edit: Edit) -> Replacement:
    """Write a LinearRegressor as a matrix product."""
    features, targets = ml.read(node, edit), node.attributes.get_int("targets", 1)
    intercepts = ml.floats(node, "intercepts")
    if len(intercepts) != targets:
        intercepts = intercepts[:0]
    return _transform(_product(node, features, targets, intercepts, edit), targets, node, edit)


@rewrite("ai.onnx.ml.LinearClassifier", exactness=Exactness.ROUNDING, since_opset=9, needs_shape=(0,), needs_dtype=(0,))
def multiply_linear_classifier(node: ir.Node, edit: Edit) -> Replacement:
    """Write a LinearClassifier as a matrix product and ArgMax."""
    features, intercepts, kind = ml.read(node, edit), ml.floats(node, "intercepts"), ml.post_transform(node)
    targets = len(intercepts)
    if not targets:
        return Skip("there are no intercepts, which define the number of scores")
    has_strings, labels = ml.has_string_labels(node), ml.labels(node)
    if len(labels) != max(targets, 2):
        return Skip(f"there are {targets} scores and {len(labels)} labels")
    if targets == 1 and kind == "PROBIT":
        return Skip("PROBIT of one score for two labels is not defined")
    scores = _product(node, features, targets, intercepts, edit)
    if targets > 1:
        best = edit.op("ArgMax", [scores], {"axis": 1, "keepdims": 0})
        return [None if has_strings else ml.pick(labels, best, edit), _transform(scores, targets, node, edit)]
    is_positive = edit.op("Greater", [scores, ml.number(0, scores, edit)])
    chosen = None if has_strings else ml.choose(is_positive, labels[1], labels[0], edit)
    return [chosen, ml.pair(scores, edit, positive=True, kind=kind)]


def _product(node: ir.Node, features: Features, targets: int, intercepts: np.ndarray, edit: Edit) -> ir.Value:
    """Return x·Aᵀ + b, of shape [rows, targets]."""
    coefficients = ml.floats(node, "coefficients")
    if len(coefficients) != targets * features.columns:
        raise NotApplicable(
            f"there are {len(coefficients)} coefficients for {targets} scores of {features.columns} features"
        )
    columns = np.ascontiguousarray(coefficients.reshape(targets, features.columns).T)
    scores = edit.op("MatMul", [ml.matrix(features, edit), edit.constant(columns)])
    return edit.op("Add", [scores, edit.constant(intercepts)]) if len(intercepts) else scores


def _transform(scores: ir.Value, targets: int, node: ir.Node, edit: Edit) -> ir.Value:
    """Return the transformed scores; for a single score, only PROBIT has an effect."""
    kind = ml.post_transform(node)
    return ml.transform(scores, kind, edit) if targets > 1 or kind == "PROBIT" else scores
