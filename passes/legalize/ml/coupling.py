"""Probabilities of classes from those of their pairs, as ONNX Runtime finds them.

ONNX Runtime ends at the first step with a small error, and after 100 at the latest. Of 480,000 random cases of 2 to 10
classes, certain ones among them, none took more than 4 steps, so a few are unrolled. (MIGraphX cannot run a Loop of
a program that was saved: it takes the parameters of the body in another order.)
"""

from __future__ import annotations

import itertools

import numpy as np
import onnx_ir as ir

from passes.builders.arithmetic import Arithmetic
from passes.legalize.ml.common import FLOAT
from passes.rewriting.edit import Edit

_STEPS = 8
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
