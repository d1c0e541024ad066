"""Linear models as matrix products.

    LinearRegressor(x)   →  transform(x·Aᵀ + b)
    LinearClassifier(x)  →  labels[ArgMax(x·Aᵀ + b)], transform(x·Aᵀ + b)

One score for two labels: the second label where it is positive, and 1 − s and s as the scores, or σ(−s) and σ(s).

Skips: string labels that are used; a classifier without intercepts; PROBIT of one score for two labels, which is not
defined.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from passes.legalize.ml import common as ml
from passes.legalize.ml.common import DOMAIN, Features
from passes.rewriting.base import Exactness, Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import NodeContext, NodeRewrite

_OLDEST = 9
"""The oldest opset of the standard operators."""


class LinearRegressor(NodeRewrite[Features]):
    """Write a LinearRegressor as a matrix product."""

    name = "linear-regressor"
    exactness = Exactness.ROUNDING
    operators = frozenset({(DOMAIN, "LinearRegressor")})

    def match(self, node: ir.Node, context: NodeContext) -> Features | Skip | None:
        """Match coefficients that fit the features."""
        found = ml.read(node, context.scope, oldest=_OLDEST)
        return _fits(found, node.attributes.get_int("targets", 1)) if isinstance(found, Features) else found

    def rewrite(self, match: Features, edit: Edit) -> Sequence[ir.Value | None]:
        """The product and the transform."""
        ml.begin(edit)
        targets = match.node.attributes.get_int("targets", 1)
        intercepts = ml.floats(match.node, "intercepts")
        scores = _product(match, targets, intercepts if len(intercepts) == targets else np.zeros(0, np.float32), edit)
        return [_scores(scores, targets, match.node, edit)]


class LinearClassifier(NodeRewrite[Features]):
    """Write a LinearClassifier as a matrix product and ArgMax."""

    name = "linear-classifier"
    exactness = Exactness.ROUNDING
    operators = frozenset({(DOMAIN, "LinearClassifier")})

    def match(self, node: ir.Node, context: NodeContext) -> Features | Skip | None:
        """Match coefficients that fit the features, and labels that are integers or unused."""
        found = ml.read(node, context.scope, oldest=_OLDEST)
        if not isinstance(found, Features):
            return found
        targets = len(ml.floats(node, "intercepts"))
        if not targets:
            return Skip("it has no intercepts, which define the number of scores")
        strings = ml.string_labels(node)
        labels = _labels(node)
        if strings is not None or len(labels) != max(targets, 2):
            return strings or Skip(f"it has {targets} scores and {len(labels)} labels")
        if targets == 1 and _kind(node) == "PROBIT":
            return Skip("PROBIT of one score for two labels is not defined")
        return _fits(found, targets)

    def rewrite(self, match: Features, edit: Edit) -> Sequence[ir.Value | None]:
        """The labels and the scores."""
        ml.begin(edit)
        node = match.node
        intercepts, labels = ml.floats(node, "intercepts"), _labels(node)
        scores = _product(match, len(intercepts), intercepts, edit)
        strings = bool(node.attributes.get_strings("classlabels_strings", []))
        if len(intercepts) > 1:
            best = edit.op("ArgMax", [scores], {"axis": 1, "keepdims": 0})
            return [None if strings else ml.pick(labels, best, edit), _scores(scores, len(intercepts), node, edit)]
        is_positive = edit.op("Greater", [scores, ml.number(0, scores, edit)])
        chosen = None if strings else ml.choose(is_positive, labels[1], labels[0], edit)
        return [chosen, ml.pair(scores, edit, positive=True, kind=_kind(node))]


def _kind(node: ir.Node) -> str:
    return node.attributes.get_string("post_transform", "NONE") or "NONE"


def _labels(node: ir.Node) -> Sequence[int]:
    """The integer labels; the indices of string labels."""
    strings = node.attributes.get_strings("classlabels_strings", [])
    return range(len(strings)) if strings else ml.integers(node, "classlabels_ints").tolist()


def _fits(found: Features, targets: int) -> Features | Skip:
    count = len(ml.floats(found.node, "coefficients"))
    if count != targets * found.columns:
        return Skip(f"it has {count} coefficients for {targets} scores of {found.columns} features")
    return found


def _product(match: Features, targets: int, intercepts: np.ndarray, edit: Edit) -> ir.Value:
    """x·Aᵀ + b, of shape [rows, targets]."""
    coefficients = ml.floats(match.node, "coefficients").reshape(targets, match.columns)
    scores = edit.op("MatMul", [ml.matrix(match, edit), edit.constant(np.ascontiguousarray(coefficients.T))])
    return edit.op("Add", [scores, edit.constant(intercepts)]) if len(intercepts) else scores


def _scores(scores: ir.Value, targets: int, node: ir.Node, edit: Edit) -> ir.Value:
    """The transformed scores; for a single score, only PROBIT has an effect."""
    kind = _kind(node)
    return ml.transform(scores, kind, edit) if targets > 1 or kind == "PROBIT" else scores


RULES: tuple[NodeRewrite[Any], ...] = (LinearRegressor(), LinearClassifier())
