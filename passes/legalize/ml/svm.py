"""Write support vector machines as matrix products and their kernel functions.

    K = kernel(x, v)                 [rows, vectors]; v are the support vectors
        LINEAR x·vᵀ    POLY (γ x·vᵀ + c)ᵈ    SIGMOID tanh(γ x·vᵀ + c)    RBF exp(−γ |x − v|²)
    SVMRegressor(x)   →  K·a + ρ, or its sign
    SVMClassifier(x)  →  s = K·A + ρ for each pair of classes; the label that wins most pairs; s, or probabilities

Without support vectors, the scores are x·Aᵀ + ρ, one for each class. |x − v|² = |x|² + |v|² − 2 x·vᵀ is computed of
numbers less the mean of v, whose squares are not large beside the distance.

The probabilities of pairs are pᵢⱼ = σ(−(a s + b)), and those of the classes are found as in ONNX Runtime by the
iteration of Wu, Lin and Weng, "Probability Estimates for Multi-class Classification by Pairwise Coupling", JMLR 2004.

Skips: string labels that are used; fewer than two classes; probabilities of many classes; PROBIT of one score for two
labels, which is not defined; attributes that do not fit each other.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from passes.builders.arithmetic import Arithmetic
from passes.legalize.ml import common as ml
from passes.legalize.ml.common import FLOAT, Features
from passes.rewriting.base import Exactness, NotApplicable, Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import Replacement, rewrite

_MOST_COUPLED = 20
"""The most classes that have probabilities; each becomes some hundred nodes."""
_KERNELS = ("LINEAR", "POLY", "RBF", "SIGMOID")


@dataclass(frozen=True)
class _Machine:
    """A support vector machine, or a linear model of the features, without ``vectors``: [vectors, features].

    ``gamma`` is γ, c and d; coefficients and rho are flat.
    """

    node: ir.Node
    features: Features
    kernel: str
    gamma: Sequence[float]
    vectors: np.ndarray | None
    coefficients: np.ndarray
    rho: np.ndarray

    @classmethod
    def of(cls, node: ir.Node, edit: Edit, count: int) -> _Machine:
        """Return the machine with ``count`` support vectors that a node is."""
        features, kernel = ml.read(node, edit), node.attributes.get_string("kernel_type", "LINEAR") or "LINEAR"
        gamma = ml.floats(node, "kernel_params").tolist() or [0.0, 0.0, 0.0]
        coefficients, rho, flat = (ml.floats(node, name) for name in ("coefficients", "rho", "support_vectors"))
        if kernel not in _KERNELS or len(gamma) != 3:
            raise NotApplicable(f"the kernel {kernel} is unknown, or has not three parameters")
        if not len(coefficients) or not len(rho):
            raise NotApplicable("there are no coefficients or no rho")
        if count and len(flat) != count * features.columns:
            raise NotApplicable(
                f"the support vectors have {len(flat)} numbers for {count} vectors of {features.columns} features"
            )
        vectors = flat.reshape(count, features.columns) if count else None
        return cls(node, features, kernel, gamma, vectors, coefficients, rho)

    def values(self, edit: Edit) -> ir.Value:
        """Return the kernel function of each row and each support vector, [rows, vectors]; else the features."""
        a, x, vectors = Arithmetic(edit, FLOAT), ml.matrix(self.features, edit), self.vectors
        if vectors is None:
            return x
        gamma, offset, degree = self.gamma
        if self.kernel == "RBF":
            mean = vectors.mean(axis=0)
            x, centred = a("Sub", x, mean), vectors.astype(np.float64) - mean
            ones = np.ones((self.features.columns, 1))
            squares = a("MatMul", a("Mul", x, x), ones)
            distances = a("Sub", a("Add", squares, (centred**2).sum(axis=1)), a("MatMul", x, 2 * centred.T))
            return a("Exp", a("Mul", a("Max", distances, 0), -gamma))
        products = a("MatMul", x, vectors.T)
        if self.kernel == "LINEAR":
            return products
        sums = a("Add", a("Mul", products, gamma), offset)
        if self.kernel == "SIGMOID":
            return a("Tanh", sums)
        if degree == 2:
            return a("Mul", sums, sums)
        return a("Mul", a("Mul", sums, sums), sums) if degree == 3 else a("Pow", sums, degree)


@rewrite("ai.onnx.ml.SVMRegressor", exactness=Exactness.ROUNDING, since_opset=11, needs_shape=(0,), needs_dtype=(0,))
def multiply_svm_regressor(node: ir.Node, edit: Edit) -> Replacement:
    """Write an SVMRegressor, which has no post transform in ONNX Runtime, as matrix products."""
    count = node.attributes.get_int("n_supports", 0)
    machine = _Machine.of(node, edit, count)
    needed = count or machine.features.columns
    if len(machine.coefficients) != needed:
        return Skip(f"there are {len(machine.coefficients)} coefficients for {needed} numbers")
    a = Arithmetic(edit, FLOAT)
    y = a("Add", a("MatMul", machine.values(edit), machine.coefficients[:, None]), machine.rho[:1])
    if node.attributes.get_int("one_class", 0):
        y = a("Where", a("Greater", y, 0), 1, -1)
    return y


@rewrite("ai.onnx.ml.SVMClassifier", exactness=Exactness.ROUNDING, since_opset=11, needs_shape=(0,), needs_dtype=(0,))
def multiply_svm_classifier(node: ir.Node, edit: Edit) -> Replacement:
    """Write an SVMClassifier as matrix products and votes."""
    has_strings, labels, counts = ml.has_string_labels(node), ml.labels(node), ml.integers(node, "vectors_per_class")
    classes = len(labels)
    if classes < 2:
        return Skip(f"there are {classes} labels")
    machine = _Machine.of(node, edit, int(counts.sum()))
    pairs = classes * (classes - 1) // 2
    first, second = (len(ml.floats(node, name)) for name in ("prob_a", "prob_b"))
    fits = first == second
    if machine.vectors is None:
        fits = fits and len(machine.coefficients) == classes * machine.features.columns
    else:
        if first and classes > _MOST_COUPLED:
            return Skip(f"there are probabilities of {classes} classes; the limit is {_MOST_COUPLED}")
        fits = fits and len(machine.coefficients) == (classes - 1) * len(machine.vectors)
        fits = fits and len(counts) == classes and len(machine.rho) >= pairs and (not first or first >= pairs)
        if classes == 2 and not first and ml.post_transform(node) == "PROBIT":
            return Skip("PROBIT of one score for two labels is not defined")
    if not fits:
        return Skip(f"the attributes do not fit {classes} classes")
    chosen, scores = (_by_class if machine.vectors is None else _by_pairs)(machine, edit)
    return [None if has_strings else ml.pick(labels, chosen, edit), scores]


def _by_class(machine: _Machine, edit: Edit) -> tuple[ir.Value, ir.Value]:
    """Return the indices of the labels, and a score for each class, of a model without support vectors."""
    a, node = Arithmetic(edit, FLOAT), machine.node
    classes = len(machine.coefficients) // machine.features.columns
    weights = machine.coefficients.reshape(classes, machine.features.columns).T
    scores = a("Add", a("MatMul", ml.matrix(machine.features, edit), weights), machine.rho[0])
    best = a("ArgMax", scores, axis=1, keepdims=0)
    if classes == 2 and not len(ml.floats(node, "prob_a")):  # the larger score has a threshold
        limit = float(np.nextafter(np.float32(0.5), np.float32(0))) if (machine.coefficients >= 0).all() else 0.0
        above = a("MatMul", a.cast(a("Greater", scores, limit)), np.ones((2, 1)))
        is_second = a.squeeze(a.cast(above, ir.DataType.BOOL), [1])
        best = a("Where", is_second, a.index(1), best)
    return best, ml.transform(scores, ml.post_transform(node), edit)


def _by_pairs(machine: _Machine, edit: Edit) -> tuple[ir.Value, ir.Value]:
    """Return the indices of the labels that win most pairs, and the pairs' scores or the classes' probabilities."""
    a, node = Arithmetic(edit, FLOAT), machine.node
    counts = ml.integers(node, "vectors_per_class")
    classes, pairs = len(counts), list(itertools.combinations(range(len(counts)), 2))
    owner = np.repeat(np.arange(classes), counts)
    given = machine.coefficients.reshape(classes - 1, -1)
    weights, votes = np.zeros((len(owner), len(pairs))), np.zeros((len(pairs), classes))
    for index, (i, j) in enumerate(pairs):  # a class has no coefficients against itself
        weights[owner == i, index] = given[j - 1, owner == i]
        weights[owner == j, index] = given[i, owner == j]
        votes[index, i], votes[index, j] = 1, -1
    scores = a("Add", a("MatMul", machine.values(edit), weights), machine.rho[: len(pairs)])
    wins = a.cast(a("Greater", scores, 0))
    won = a("Add", a("MatMul", wins, votes), (votes < 0).sum(axis=0))
    best = a("ArgMax", won, axis=1, keepdims=0)
    slopes, offsets = (ml.floats(node, name)[: len(pairs)] for name in ("prob_a", "prob_b"))
    if len(slopes):
        probabilities = a("Sigmoid", a("Neg", a("Add", a("Mul", scores, slopes), offsets)))
        return best, ml.transform(
            coupled(probabilities, machine.features.rows, classes, edit), ml.post_transform(node), edit
        )
    if classes > 2:
        return best, ml.transform(scores, ml.post_transform(node), edit)
    return best, ml.pair(scores, edit, positive=ml.post_transform(node) != "NONE", kind=ml.post_transform(node))


_STEPS = 8
"""ONNX Runtime ends at the first step with a small error, and after 100 at the latest. Of 480,000 random cases of 2 to
10 classes none took more than 4. (MIGraphX cannot run a Loop of a program that was saved: it swaps parameters.)"""
_LEAST = 1e-7
"""The least probability of a pair."""
_ERROR = np.float32(0.005)


def coupled(pairs: ir.Value, rows: int, classes: int, edit: Edit) -> ir.Value:
    """Return the probabilities of the classes, [rows, classes].

    The probabilities of the first class of each of the ``pairs`` are [rows, pairs]; (0, 1), (0, 2), …, (1, 2), ….
    With r these, Qᵢᵢ = Σ rⱼᵢ² and Qᵢⱼ = −rⱼᵢ rᵢⱼ, p minimizes pᵀQp with Σ p = 1.
    """
    a = Arithmetic(edit, FLOAT)
    places, rest = np.zeros((classes * (classes - 1) // 2, classes, classes)), np.zeros((classes, classes))
    for index, (i, j) in enumerate(itertools.combinations(range(classes), 2)):
        places[index, i, j], places[index, j, i], rest[j, i] = 1, -1, 1
    within = a("Min", a("Max", pairs, _LEAST), 1 - _LEAST)
    flat = a("Add", a("MatMul", within, places.reshape(len(places), -1)), rest.ravel())
    r = a.reshape(flat, [rows, classes, classes])
    across = a("Transpose", r, perm=[0, 2, 1])
    diagonal = a("Mul", a("MatMul", a("Mul", across, across), np.ones((classes, 1))), np.eye(classes))
    q = a("Sub", diagonal, a("Mul", across, r))
    p = a.value(np.full((rows, classes, 1), 1 / classes))
    for _ in range(_STEPS):
        p = _step(a, q, p, classes)
    return a.reshape(p, [rows, classes])


def _step(a: Arithmetic, q: ir.Value, p: ir.Value, classes: int) -> ir.Value:
    """Return p, [rows, classes, 1], after a step; a row whose error is small stays as it is."""
    before, ones = p, np.ones((1, classes))
    qp = a("MatMul", q, p)
    pqp = a("MatMul", ones, a("Mul", p, qp))
    small = a("Less", a("Abs", a("Sub", qp, pqp)), float(_ERROR / np.float32(classes)))
    count = a("MatMul", ones, a.cast(small))
    for i in range(classes):
        place = np.eye(classes)[:, i : i + 1]
        column = a("MatMul", q, place)
        own, qi = a("MatMul", place.T, column), a("MatMul", place.T, qp)
        change = a("Div", a("Sub", pqp, qi), own)
        scale = a("Add", change, 1)
        grown = a("Mul", change, a("Add", a("Mul", change, own), a("Mul", qi, 2)))
        pqp = a("Div", a("Div", a("Add", pqp, grown), scale), scale)
        qp = a("Div", a("Add", qp, a("Mul", column, change)), scale)
        p = a("Div", a("Add", p, a("Mul", change, place)), scale)
    return a("Where", a("Less", count, classes - 0.5), p, before)
