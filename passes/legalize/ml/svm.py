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
from typing import Any

import numpy as np
import onnx_ir as ir

from passes.builders.arithmetic import Arithmetic
from passes.legalize.ml import common as ml
from passes.legalize.ml.common import DOMAIN, FLOAT, Features
from passes.legalize.ml.coupling import coupled
from passes.rewriting.base import Exactness, Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import NodeContext, NodeRewrite

_MOST_COUPLED = 20
"""The most classes that have probabilities; each becomes some hundred nodes."""
_KERNELS = ("LINEAR", "POLY", "RBF", "SIGMOID")


@dataclass(frozen=True)
class _Machine(Features):
    """The attributes of a machine.

    Attributes:
        kernel: LINEAR, POLY, RBF or SIGMOID.
        gamma: γ, c and d.
        vectors: [vectors, features]; None for a linear model of the features.
        coefficients: flat.
        rho: flat.
    """

    kernel: str
    gamma: Sequence[float]
    vectors: np.ndarray | None
    coefficients: np.ndarray
    rho: np.ndarray


def _read(node: ir.Node, context: NodeContext, count: int) -> _Machine | Skip | None:
    """The attributes of a node with a number of support vectors."""
    found = ml.read(node, context.scope)
    if not isinstance(found, Features):
        return found
    kernel = node.attributes.get_string("kernel_type", "LINEAR") or "LINEAR"
    gamma = ml.floats(node, "kernel_params").tolist() or [0.0, 0.0, 0.0]
    coefficients, rho, flat = (ml.floats(node, name) for name in ("coefficients", "rho", "support_vectors"))
    if kernel not in _KERNELS or len(gamma) != 3:
        return Skip(f"its kernel {kernel} is unknown, or has not three parameters")
    if not len(coefficients) or not len(rho):
        return Skip("it has no coefficients or no rho")
    if count and len(flat) != count * found.columns:
        return Skip(f"its support vectors have {len(flat)} numbers for {count} vectors of {found.columns} features")
    vectors = flat.reshape(count, found.columns) if count else None
    return _Machine(node, found.dtype, found.shape, kernel, gamma, vectors, coefficients, rho)


def _kernel(match: _Machine, edit: Edit) -> ir.Value:
    """The kernel function of each row and each support vector, [rows, vectors]."""
    a, x, vectors = Arithmetic(edit, FLOAT), ml.matrix(match, edit), match.vectors
    assert vectors is not None
    gamma, offset, degree = match.gamma
    if match.kernel == "RBF":
        mean = vectors.mean(axis=0)
        x, wide = a("Sub", x, mean), vectors.astype(np.float64) - mean
        ones = np.ones((match.columns, 1))
        squares = a("MatMul", a("Mul", x, x), ones)
        distances = a("Sub", a("Add", squares, (wide**2).sum(axis=1)), a("MatMul", x, 2 * wide.T))
        return a("Exp", a("Mul", a("Max", distances, 0), -gamma))
    products = a("MatMul", x, vectors.T)
    if match.kernel == "LINEAR":
        return products
    sums = a("Add", a("Mul", products, gamma), offset)
    if match.kernel == "SIGMOID":
        return a("Tanh", sums)
    if degree == 2:
        return a("Mul", sums, sums)
    return a("Mul", a("Mul", sums, sums), sums) if degree == 3 else a("Pow", sums, degree)


class SvmRegressor(NodeRewrite[_Machine]):
    """Write an SVMRegressor as matrix products."""

    name = "svm-regressor"
    exactness = Exactness.ROUNDING
    operators = frozenset({(DOMAIN, "SVMRegressor")})

    def match(self, node: ir.Node, context: NodeContext) -> _Machine | Skip | None:
        """Match one coefficient for each support vector, or each feature."""
        count = node.attributes.get_int("n_supports", 0)
        found = _read(node, context, count)
        if isinstance(found, _Machine) and len(found.coefficients) != (count or found.columns):
            return Skip(f"it has {len(found.coefficients)} coefficients for {count or found.columns} numbers")
        return found

    def rewrite(self, match: _Machine, edit: Edit) -> Sequence[ir.Value | None]:
        """The weighted sum of the kernel's values; ONNX Runtime has no post transform."""
        ml.begin(edit)
        a = Arithmetic(edit, FLOAT)
        x = ml.matrix(match, edit) if match.vectors is None else _kernel(match, edit)
        y = a("Add", a("MatMul", x, match.coefficients[:, None]), match.rho[:1])
        if match.node.attributes.get_int("one_class", 0):
            y = a("Where", a("Greater", y, 0), 1, -1)
        return [y]


class SvmClassifier(NodeRewrite[_Machine]):
    """Write an SVMClassifier as matrix products and votes."""

    name = "svm-classifier"
    exactness = Exactness.ROUNDING
    operators = frozenset({(DOMAIN, "SVMClassifier")})

    def match(self, node: ir.Node, context: NodeContext) -> _Machine | Skip | None:
        """Match attributes that fit each other, and labels that are integers or unused."""
        strings, classes, counts = ml.string_labels(node), len(_labels(node)), ml.integers(node, "vectors_per_class")
        if strings is not None or classes < 2:
            return strings or Skip(f"it has {classes} labels")
        found = _read(node, context, int(counts.sum()))
        if not isinstance(found, _Machine):
            return found
        pairs = classes * (classes - 1) // 2
        first, second = (len(ml.floats(node, name)) for name in ("prob_a", "prob_b"))
        needed = classes * found.columns if found.vectors is None else (classes - 1) * len(found.vectors)
        if found.vectors is not None and first and classes > _MOST_COUPLED:
            return Skip(f"it has probabilities of {classes} classes; the limit is {_MOST_COUPLED}")
        fits = len(found.coefficients) == needed and first == second
        if found.vectors is not None:
            fits = fits and len(counts) == classes and len(found.rho) >= pairs and (not first or first >= pairs)
            if classes == 2 and not first and _kind(node) == "PROBIT":
                return Skip("PROBIT of one score for two labels is not defined")
        return found if fits else Skip(f"its attributes do not fit {classes} classes")

    def rewrite(self, match: _Machine, edit: Edit) -> Sequence[ir.Value | None]:
        """The labels and the scores."""
        ml.begin(edit)
        node = match.node
        decide = _linear if match.vectors is None else _by_pairs
        labels, chosen, scores = _labels(node), *decide(match, edit)
        strings = node.attributes.get_strings("classlabels_strings", [])
        return [None if strings else ml.pick(labels, chosen, edit), scores]


def _kind(node: ir.Node) -> str:
    return node.attributes.get_string("post_transform", "NONE") or "NONE"


def _labels(node: ir.Node) -> Sequence[int]:
    """The integer labels; the indices of string labels."""
    strings = node.attributes.get_strings("classlabels_strings", [])
    return range(len(strings)) if strings else ml.integers(node, "classlabels_ints").tolist()


def _linear(match: _Machine, edit: Edit) -> tuple[ir.Value, ir.Value]:
    """The indices of the labels, and a score for each class, of a model without support vectors."""
    a, node = Arithmetic(edit, FLOAT), match.node
    classes = len(match.coefficients) // match.columns
    weights = match.coefficients.reshape(classes, match.columns).T
    scores = a("Add", a("MatMul", ml.matrix(match, edit), weights), match.rho[0])
    best = edit.op("ArgMax", [scores], {"axis": 1, "keepdims": 0})
    if classes == 2 and not len(ml.floats(node, "prob_a")):  # the larger score has a threshold
        limit = float(np.nextafter(np.float32(0.5), np.float32(0))) if (match.coefficients >= 0).all() else 0.0
        above = edit.op("Cast", [a("Greater", scores, limit)], {"to": FLOAT.value})
        above = edit.op("Cast", [a("MatMul", above, np.ones((2, 1)))], {"to": ir.DataType.BOOL.value})
        is_second = edit.op("Squeeze", [above, edit.constant(np.array([1]))])
        best = edit.op("Where", [is_second, edit.constant(np.array(1, np.int64)), best])
    return best, ml.transform(scores, _kind(node), edit)


def _by_pairs(match: _Machine, edit: Edit) -> tuple[ir.Value, ir.Value]:
    """The indices of the labels that win most pairs, and the scores of the pairs or the classes' probabilities."""
    a, node = Arithmetic(edit, FLOAT), match.node
    counts = ml.integers(node, "vectors_per_class")
    classes, pairs = len(counts), list(itertools.combinations(range(len(counts)), 2))
    owner = np.repeat(np.arange(classes), counts)
    given = match.coefficients.reshape(classes - 1, -1)
    weights, votes = np.zeros((len(owner), len(pairs))), np.zeros((len(pairs), classes))
    for index, (i, j) in enumerate(pairs):  # a class has no coefficients against itself
        weights[owner == i, index] = given[j - 1, owner == i]
        weights[owner == j, index] = given[i, owner == j]
        votes[index, i], votes[index, j] = 1, -1
    scores = a("Add", a("MatMul", _kernel(match, edit), weights), match.rho[: len(pairs)])
    wins = edit.op("Cast", [a("Greater", scores, 0)], {"to": FLOAT.value})
    won = a("Add", a("MatMul", wins, votes), (votes < 0).sum(axis=0))
    best = edit.op("ArgMax", [won], {"axis": 1, "keepdims": 0})
    slopes, offsets = (ml.floats(node, name)[: len(pairs)] for name in ("prob_a", "prob_b"))
    if len(slopes):
        probabilities = a("Sigmoid", a("Neg", a("Add", a("Mul", scores, slopes), offsets)))
        return best, ml.transform(coupled(probabilities, match.rows, classes, edit), _kind(node), edit)
    if classes > 2:
        return best, ml.transform(scores, _kind(node), edit)
    return best, ml.pair(scores, edit, positive=_kind(node) != "NONE", kind=_kind(node))


RULES: tuple[NodeRewrite[Any], ...] = (SvmRegressor(), SvmClassifier())
