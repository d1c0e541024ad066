"""Decompose Einsum into diagonals, sums, and binary products.

    aab,bcc->ac     →   x = diagonal of the first over a; y = diagonal of the second over c
                        x(ab) · y(bc)  →  MatMul over b

First each label occurs once in each operand: the diagonal over a repeated label is gathered from the flattened tensor.
Labels that neither another operand nor the result has are summed. Operands are then multiplied in pairs: common
labels that are still needed are batch axes, common labels that are not are summed by MatMul, and all others are rows or
columns; without a summed label, the product is a Mul. Axes of length 1 broadcast. An ellipsis stands for as many labels
as the operand needs, numbered from the right.

Skips: dynamic shapes; equations that do not fit their operands.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from passes.builders.arithmetic import Arithmetic, wide
from passes.rewriting.base import Exactness, Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import EVERY_INPUT, Replacement, rewrite

Labels = tuple[str, ...]


@dataclass(frozen=True)
class _Equation:
    """The labels of each operand and of the result; those of an ellipsis are ``.0``, ``.1``, … from the right."""

    operands: tuple[Labels, ...]
    result: Labels


@dataclass(frozen=True)
class _Term:
    """A tensor with a unique label for each axis."""

    value: ir.Value
    labels: Labels
    shape: tuple[int, ...]

    def size(self, label: str) -> int:
        """Return the length of an axis; 1 if there is none with this label."""
        return self.shape[self.labels.index(label)] if label in self.labels else 1


@rewrite("Einsum", exactness=Exactness.ROUNDING, needs_shape=EVERY_INPUT, needs_dtype=(0,))
def decompose_einsum(node: ir.Node, edit: Edit) -> Replacement:
    """Decompose Einsum into diagonals, sums, and binary products."""
    shapes = [edit.shape(node, index) for index in range(len(node.inputs))]
    equation = _parse(node.attributes["equation"].as_string(), [len(shape) for shape in shapes])
    if equation is None or not _fits(equation, shapes):
        return Skip("the equation does not fit the shapes of its operands")
    if any(0 in shape for shape in shapes):
        return None
    a, result = Arithmetic(edit, wide(edit.dtype(node))), equation.result
    terms = []
    for index, (labels, shape) in enumerate(zip(equation.operands, shapes, strict=True)):
        terms.append(_diagonal(a, _Term(a.cast(edit.input(node, index)), labels, shape)))
    term, *others = terms
    for index, other in enumerate(others):  # from left to right
        needed = {*result, *(label for later in others[index + 1 :] for label in later.labels)}
        term = _product(a, term, other, needed)
    term = _sum(a, term, [label for label in term.labels if label not in result])
    return a.cast(_ordered(a, term, result), edit.dtype(node))


def _parse(equation: str, ranks: Sequence[int]) -> _Equation | None:
    """Return the labels of an equation; None if it is invalid or does not fit the ranks."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    operands = []
    for text, rank in zip(left.split(","), ranks, strict=False):
        labels = _labels(text, rank - len(text.replace("...", "")))
        if labels is None or len(labels) != rank:
            return None
        operands.append(labels)
    if len(operands) != len(ranks) or left.count(",") + 1 != len(ranks):
        return None
    counts = Counter(label for labels in operands for label in labels)
    dots = sorted((label for label in counts if label[0] == "."), key=lambda label: -int(label[1:]))
    if arrow:
        result = _labels(right, len(dots) if "..." in right else 0)
        fits = result is not None and len({*result}) == len(result) and counts.keys() >= {*result}
        return _Equation(tuple(operands), result) if fits and result is not None else None
    singles = sorted(label for label, count in counts.items() if count == 1 and label[0] != ".")
    return _Equation(tuple(operands), (*dots, *singles))


def _labels(text: str, dots: int) -> Labels | None:
    """Return the labels of one term, whose ellipsis stands for ``dots`` axes; None if it is invalid."""
    before, ellipsis, after = text.partition("...")
    if not (before + after).isalpha() and before + after:
        return None
    if dots < 0 or (dots and not ellipsis):
        return None
    return (*before, *(f".{index}" for index in reversed(range(dots))), *after)


def _fits(equation: _Equation, shapes: Sequence[Sequence[int]]) -> bool:
    """Return whether all axes with the same label have the same length, or 1."""
    sizes: dict[str, int] = {}
    for labels, shape in zip(equation.operands, shapes, strict=True):
        for label, size in zip(labels, shape, strict=True):
            if 1 not in (size, sizes.setdefault(label, size)) and size != sizes[label]:
                return False
            sizes[label] = max(sizes[label], size)
        pairs = {*zip(labels, shape, strict=True)}
        if len(pairs) != len({*labels}):  # the diagonal of an operand that is not square
            return False
    return True


def _diagonal(a: Arithmetic, term: _Term) -> _Term:
    """Keep the elements whose coordinates agree on repeated labels, so that each label is unique."""
    labels = tuple(dict.fromkeys(term.labels))
    if labels == term.labels:
        return term
    shape = tuple(term.size(label) for label in labels)
    coordinates = dict(zip(labels, np.indices(shape), strict=True))
    flat = np.ravel_multi_index([coordinates[label] for label in term.labels], term.shape)
    value = a("Gather", a.reshape(term.value, [-1]), a.index(flat), axis=0)
    return _Term(value, labels, shape)


def _sum(a: Arithmetic, term: _Term, labels: Sequence[str]) -> _Term:
    axes = [term.labels.index(label) for label in labels]
    if not axes:
        return term
    kept = [axis for axis in range(len(term.shape)) if axis not in axes]
    value = term.value
    if any(term.shape[axis] > 1 for axis in axes):
        value = a.reduce("Sum", value, axes, keepdims=False)
    else:
        value = a.squeeze(value, axes)
    return _Term(value, tuple(term.labels[axis] for axis in kept), tuple(term.shape[axis] for axis in kept))


def _product(a: Arithmetic, left: _Term, right: _Term, needed: set[str]) -> _Term:
    """Multiply two terms, and sum over the labels that are not ``needed``."""
    sides = []
    for side, other in ((left, right), (right, left)):  # first sum over labels of one side, and broadcast ones
        gone = [label for label in side.labels if label not in needed and side.size(label) != other.size(label)]
        alone = [label for label in side.labels if label not in needed and label not in other.labels]
        sides.append(_sum(a, side, list(dict.fromkeys([*gone, *alone]))))
    left, right = sides
    both = [label for label in left.labels if label in right.labels]
    summed = [label for label in both if label not in needed]
    batch = [label for label in both if label in needed]
    rows = [label for label in left.labels if label not in right.labels and label in needed]
    columns = [label for label in right.labels if label not in left.labels and label in needed]
    # a label of length 1 may be left on one side and be summed already on the other
    left = _sum(a, left, [label for label in left.labels if label not in (*batch, *rows, *summed)])
    right = _sum(a, right, [label for label in right.labels if label not in (*batch, *columns, *summed)])
    sizes = [max(left.size(label), right.size(label)) for label in batch]
    sizes += [left.size(label) for label in rows] + [right.size(label) for label in columns]
    labels = (*batch, *rows, *columns)
    if not summed:
        x = _arranged(a, left, [*batch, *rows], [], [1] * len(columns))
        y = _arranged(a, right, batch, columns, [1] * len(rows))
        return _Term(a("Mul", x, y), labels, tuple(sizes))
    x = _matrix(a, left, batch, rows, summed)
    y = _matrix(a, right, batch, summed, columns)
    value = a("MatMul", x, y)
    return _Term(value if len(rows) == len(columns) == 1 else a.reshape(value, sizes), labels, tuple(sizes))


def _ordered(a: Arithmetic, term: _Term, labels: Sequence[str]) -> ir.Value:
    """Return the value of a term, transposed to the order of ``labels``."""
    order = [term.labels.index(label) for label in labels]
    return term.value if order == sorted(order) else a("Transpose", term.value, perm=order)


def _arranged(
    a: Arithmetic, term: _Term, first: Sequence[str], last: Sequence[str], between: Sequence[int]
) -> ir.Value:
    """Return the value of a term with axes of length 1 inserted between its first and last axes."""
    value = _ordered(a, term, [*first, *last])
    if not between:
        return value
    shape = [*(term.size(label) for label in first), *between, *(term.size(label) for label in last)]
    return a.reshape(value, shape)


def _matrix(a: Arithmetic, term: _Term, batch: Sequence[str], rows: Sequence[str], columns: Sequence[str]) -> ir.Value:
    """Return the value of a term as matrices whose rows and columns are groups of labels."""
    value = _ordered(a, term, [*batch, *rows, *columns])
    lengths = [math.prod(term.size(label) for label in group) for group in (rows, columns)]
    shape = [*(term.size(label) for label in batch), *lengths]
    return value if len(rows) == len(columns) == 1 else a.reshape(value, shape)
