"""Support vector machines as matrix products with their support vectors.

    SVMRegressor(x)   →  k(x, V)·a + ρ
    SVMClassifier(x)  →  a score for each pair of classes, k(x, V)·P + ρ, and the class that wins most pairs

with the kernels x·v, (γ x·v + c)^d, exp(−γ|x − v|²) and tanh(γ x·v + c). Without support vectors both are linear.

Skips: labels that are strings, if they are wanted; probabilities of more than two classes, which are found by
iteration; transforms of a single score that are not defined.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from passes.core.base import Exactness, Skip
from passes.core.edit import Edit
from passes.core.rewrite import NodeContext, NodeRewrite
from passes.legalize.ml import scores as ml
from passes.legalize.ml.scores import DOMAIN, Features

_KERNELS = ("LINEAR", "POLY", "RBF", "SIGMOID")


class SvmRegressor(NodeRewrite[Features]):
    """Write an SVMRegressor as matrix products."""

    name = "svm-regressor"
    exactness = Exactness.ROUNDING
    operators = frozenset({(DOMAIN, "SVMRegressor")})

    def match(self, node: ir.Node, context: NodeContext) -> Features | Skip | None:
        """Whether the support vectors fit the features."""
        found = ml.read(node, context.scope)
        if not isinstance(found, Features):
            return found
        vectors = node.attributes.get_int("n_supports", 0)
        coefficients = len(ml.floats(node, "coefficients"))
        if coefficients != (vectors or found.columns) or not len(ml.floats(node, "rho")):
            return Skip(f"it has {coefficients} coefficients for {vectors} support vectors, or no rho")
        return _fits(found, vectors)

    def rewrite(self, match: Features, edit: Edit) -> Sequence[ir.Value | None]:
        """[rows, 1]."""
        ml.begin(edit)
        node = match.node
        x, vectors = ml.matrix(match, edit), node.attributes.get_int("n_supports", 0)
        kernel = _kernel(x, _vectors(node, vectors), node, edit) if vectors else x
        weights = edit.constant(ml.floats(node, "coefficients")[:, None])
        rho = edit.constant(ml.floats(node, "rho")[:1])
        result = edit.op("Add", [edit.op("MatMul", [kernel, weights]), rho])
        if node.attributes.get_int("one_class", 0):
            positive = edit.op("Greater", [result, ml.number(0, result, edit)])
            result = edit.op("Where", [positive, ml.number(1, result, edit), ml.number(-1, result, edit)])
        return [result]


class SvmClassifier(NodeRewrite[Features]):
    """Write an SVMClassifier as matrix products, and the count of won pairs."""

    name = "svm-classifier"
    exactness = Exactness.ROUNDING
    operators = frozenset({(DOMAIN, "SVMClassifier")})

    def match(self, node: ir.Node, context: NodeContext) -> Features | Skip | None:
        """Whether all its parts fit together, and the labels are numbers."""
        found = ml.read(node, context.scope)
        if not isinstance(found, Features):
            return found
        classes, vectors = len(_labels(node)), int(ml.integers(node, "vectors_per_class").sum())
        strings = ml.string_labels(node)
        if strings is not None or classes < 2:
            return strings or Skip("it has fewer than two labels")
        pairs, kind = classes * (classes - 1) // 2, node.attributes.get_string("post_transform", "NONE")
        wanted = ((classes - 1) * vectors, pairs) if vectors else (classes * found.columns, 1)
        given = tuple(len(ml.floats(node, name)) for name in ("coefficients", "rho"))
        if given[0] != wanted[0] or given[1] < wanted[1]:
            return Skip(f"it has {given} coefficients and rho, and needs {wanted}")
        if vectors and len(ml.integers(node, "vectors_per_class")) != classes:
            return Skip("vectors_per_class does not fit the labels")
        if vectors and len(ml.floats(node, "prob_a")):
            return Skip("its probabilities are found by iteration")
        if vectors and classes == 2 and kind == "PROBIT":
            return Skip("PROBIT of one score for two labels is not defined")
        return _fits(found, vectors)

    def rewrite(self, match: Features, edit: Edit) -> Sequence[ir.Value | None]:
        """The labels and the scores."""
        ml.begin(edit)
        node, x = match.node, ml.matrix(match, edit)
        strings = bool(node.attributes.get_strings("classlabels_strings", []))
        machine = _vote if len(ml.integers(node, "vectors_per_class")) else _linear
        labels, scores = machine(node, x, edit)
        return [None if strings else labels, scores]


def _linear(node: ir.Node, x: ir.Value, edit: Edit) -> tuple[ir.Value, ir.Value]:
    """Without support vectors: one score a class, and the largest wins."""
    labels, weights = _labels(node), ml.floats(node, "coefficients")
    matrix = edit.constant(np.ascontiguousarray(weights.reshape(len(labels), -1).T))
    raw = edit.op("Add", [edit.op("MatMul", [x, matrix]), edit.constant(ml.floats(node, "rho")[:1])])
    scores = ml.transform(raw, node.attributes.get_string("post_transform", "NONE") or "NONE", edit)
    best = ml.pick(labels, edit.op("ArgMax", [raw], {"axis": 1, "keepdims": 0}), edit)
    if len(labels) != 2:
        return best, scores
    # of two classes, the second wins as soon as any score is large enough
    top = edit.op("ReduceMax", [raw, edit.constant(np.array([1]))], {"keepdims": 0})
    if (weights >= 0).all():
        enough = edit.op("Not", [edit.op("Less", [top, ml.number(0.5, top, edit)])])
    else:
        enough = edit.op("Greater", [top, ml.number(0, top, edit)])
    return edit.op("Where", [enough, edit.constant(np.array(labels[1], np.int64)), best]), scores


def _vote(node: ir.Node, x: ir.Value, edit: Edit) -> tuple[ir.Value, ir.Value]:
    """One score a pair of classes, and the class wins that wins most pairs; of equals the first."""
    labels, counts = _labels(node), ml.integers(node, "vectors_per_class")
    starts, total, classes = np.cumsum(counts) - counts, int(counts.sum()), len(counts)
    given = ml.floats(node, "coefficients").reshape(classes - 1, total)
    pairs = [(one, other) for one in range(classes) for other in range(one + 1, classes)]
    weights = np.zeros((total, len(pairs)), np.float32)
    wins, lost = np.zeros((len(pairs), classes), np.float32), np.zeros(classes, np.float32)
    for index, (one, other) in enumerate(pairs):
        first = slice(starts[one], starts[one] + counts[one])
        second = slice(starts[other], starts[other] + counts[other])
        weights[first, index], weights[second, index] = given[other - 1, first], given[one, second]
        wins[index, one], wins[index, other] = 1, -1
        lost[other] += 1
    kernel = _kernel(x, _vectors(node, total), node, edit)
    rho = edit.constant(ml.floats(node, "rho")[: len(pairs)])
    scores = edit.op("Add", [edit.op("MatMul", [kernel, edit.constant(weights)]), rho])
    won = edit.op("Cast", [edit.op("Greater", [scores, ml.number(0, scores, edit)])], {"to": ml.FLOAT.value})
    votes = edit.op("Add", [edit.op("MatMul", [won, edit.constant(wins)]), edit.constant(lost)])
    best = ml.pick(labels, edit.op("ArgMax", [votes], {"axis": 1, "keepdims": 0}), edit)
    kind = node.attributes.get_string("post_transform", "NONE") or "NONE"
    if classes == 2:
        return best, ml.pair(scores, edit, positive=kind != "NONE", kind=kind)
    return best, ml.transform(scores, kind, edit)


def _labels(node: ir.Node) -> Sequence[int]:
    """The labels as numbers; of strings, their indices."""
    strings = node.attributes.get_strings("classlabels_strings", [])
    return range(len(strings)) if strings else ml.integers(node, "classlabels_ints").tolist()


def _fits(found: Features, vectors: int) -> Features | Skip:
    size = len(ml.floats(found.node, "support_vectors"))
    if vectors and size != vectors * found.columns:
        return Skip(f"it has {size} numbers for {vectors} support vectors of {found.columns} features")
    if _kind(found.node) not in _KERNELS:
        return Skip(f"its kernel {_kind(found.node)} is unknown")
    return found


def _kind(node: ir.Node) -> str:
    return node.attributes.get_string("kernel_type", "LINEAR") or "LINEAR"


def _vectors(node: ir.Node, count: int) -> np.ndarray:
    return ml.floats(node, "support_vectors").reshape(count, -1)


def _kernel(x: ir.Value, vectors: np.ndarray, node: ir.Node, edit: Edit) -> ir.Value:
    """How near each row is to each support vector: [rows, vectors]."""
    parameters = [float(each) for each in ml.floats(node, "kernel_params")] or [0.0, 0.0, 0.0]
    gamma, offset, degree = (ml.number(each, x, edit) for each in parameters)
    kind = _kind(node)
    if kind == "RBF":
        rows = edit.op("Unsqueeze", [x, edit.constant(np.array([1]))])
        apart = edit.op("Sub", [rows, edit.constant(vectors[None])])
        squares = edit.op("Mul", [apart, apart])
        distance = edit.op("ReduceSum", [squares, edit.constant(np.array([2]))], {"keepdims": 0})
        return edit.op("Exp", [edit.op("Neg", [edit.op("Mul", [distance, gamma])])])
    product = edit.op("MatMul", [x, edit.constant(np.ascontiguousarray(vectors.T))])
    if kind == "LINEAR":
        return product
    shifted = edit.op("Add", [edit.op("Mul", [product, gamma]), offset])
    return edit.op("Tanh", [shifted]) if kind == "SIGMOID" else edit.op("Pow", [shifted, degree])


RULES: tuple[NodeRewrite[Any], ...] = (SvmRegressor(), SvmClassifier())
