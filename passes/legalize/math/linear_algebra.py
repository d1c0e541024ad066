"""Determinants and inverses by elimination, and the products of integer matrices by numbers that are none.

    Det(A), Inverse(A)      →  Gaussian elimination with partial pivoting, one round a row, on the whole batch at once
    Gemm of integers        →  the product in integers; alpha, beta and the sum in float64, cut off at the end

A round finds the largest element p of what is left of column k (ArgMax), swaps the rows k and p by masks, and subtracts
row k from the others. The determinant is the product of the pivots, with its sign turned at each swap; of 2×2 it is
ad − bc. For the inverse the identity is written beside A and goes through the same rounds. A column of zeros leaves a
determinant of 0, and an inverse that is not finite.

Skips: opsets before 11, whose Equal knows no floats; shapes that are not static; matrices too large to be unrolled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from passes.build.arithmetic import Arithmetic, wide
from passes.build.operands import UNKNOWN_DTYPE, UNKNOWN_SHAPE, given, sizes_of, too_old
from passes.core.base import Exactness, Skip
from passes.core.edit import Edit
from passes.core.matching import is_plain
from passes.core.rewrite import Match, NodeContext, NodeRewrite

_LARGEST = 64
"""The most rows that are eliminated: each takes about fifteen nodes."""


@dataclass(frozen=True)
class _Square(Match):
    shape: tuple[int, ...]
    dtype: ir.DataType


@dataclass(frozen=True)
class EliminateMatrix(NodeRewrite[_Square]):
    """Compute Det and Inverse by elimination."""

    name = "eliminate-matrix"
    exactness = Exactness.ROUNDING
    operators = frozenset({("", "Det"), ("com.microsoft", "Inverse")})

    def match(self, node: ir.Node, context: NodeContext) -> _Square | Skip | None:
        """Whether the matrices are square, as they must be, and not too large."""
        scope = context.scope
        if not is_plain(node, scope):
            return None
        shape, dtype = sizes_of(node.inputs[0], scope), scope.dtype(node.inputs[0])
        if (reason := too_old(scope, 11)) is not None:
            return Skip(reason)
        if shape is None:
            return Skip(UNKNOWN_SHAPE)
        if dtype is None:
            return Skip(UNKNOWN_DTYPE)
        if len(shape) < 2 or shape[-1] != shape[-2] or 0 in shape:
            return Skip(f"a tensor of shape {list(shape)} is no square matrix")
        if shape[-1] > _LARGEST:
            return Skip(f"matrices of {shape[-1]} rows are too large to be unrolled; {_LARGEST} are the most")
        return _Square(node, shape, dtype)

    def rewrite(self, match: _Square, edit: Edit) -> Sequence[ir.Value | None]:
        """Rows are eliminated from the first to the last."""
        a, size = Arithmetic(edit, wide(match.dtype)), match.shape[-1]
        assert match.node.inputs[0] is not None
        matrix = a.cast(match.node.inputs[0], match.dtype)
        result = (_determinant if match.node.op_type == "Det" else _inverse)(a, matrix, match.shape, size)
        return [a.cast(result, a.dtype, match.dtype)]


def _determinant(a: Arithmetic, matrix: ir.Value, shape: Sequence[int], size: int) -> ir.Value:
    """The product of the pivots; what is left to eliminate loses a row and a column with each."""
    factors: list[ir.Value] = []
    for left in range(size, 2, -1):
        matrix, pivot, swapped = _swap(a, matrix, 0, left)
        factors += [a("Where", swapped, -1, 1), pivot]
        top = a.slice(a.slice(matrix, -2, 0, 1), -1, 1, left)
        below = a.slice(matrix, -2, 1, left)
        ratio = a("Div", a.slice(below, -1, 0, 1), _nonzero(a, pivot))
        matrix = a("Sub", a.slice(below, -1, 1, left), a("Mul", ratio, top))
    if size == 1:
        factors = [matrix]
    else:
        upper, lower = a.slice(matrix, -2, 0, 1), a.slice(matrix, -2, 1, 2)
        main = a("Mul", a.slice(upper, -1, 0, 1), a.slice(lower, -1, 1, 2))
        factors.append(a("Sub", main, a("Mul", a.slice(upper, -1, 1, 2), a.slice(lower, -1, 0, 1))))
    product = factors[0]
    for factor in factors[1:]:
        product = a("Mul", product, factor)
    return a.squeeze(product, [len(shape) - 2, len(shape) - 1])


def _inverse(a: Arithmetic, matrix: ir.Value, shape: Sequence[int], size: int) -> ir.Value:
    """What becomes of the identity beside the matrix while that becomes the identity."""
    matrix = a.concat([matrix, a.value(np.broadcast_to(np.eye(size), shape))], len(shape) - 1)
    for row in range(size):
        matrix, pivot, _ = _swap(a, matrix, row, size)
        scaled = a("Div", a.slice(matrix, -2, row, row + 1), pivot)
        reduced = a("Sub", matrix, a("Mul", a.slice(matrix, -1, row, row + 1), scaled))
        matrix = a("Where", _is_row(a, row, size), scaled, reduced)
    return a.slice(matrix, -1, size, 2 * size)


def _swap(a: Arithmetic, matrix: ir.Value, row: int, size: int) -> tuple[ir.Value, ir.Value, ir.Value]:
    """Bring the row with the largest element of column ``row``, of those from ``row`` on, to ``row``.

    Returns:
        The matrix, that element, and whether rows were swapped, these as (…, 1, 1).
    """
    column = a("Abs", a.slice(a.slice(matrix, -1, row, row + 1), -2, row, size))
    found = a("ArgMax", column, axis=_axis(a, matrix, -2), keepdims=1)
    places = a.index(np.arange(-row, size - row)[:, None])
    is_found = a("Equal", places, found)
    old = a.slice(matrix, -2, row, row + 1)
    new = a.reduce("Sum", a("Where", is_found, matrix, 0), [_axis(a, matrix, -2)])
    swapped = a("Where", _is_row(a, row, size), new, a("Where", is_found, old, matrix))
    return swapped, a.slice(new, -1, row, row + 1), a("Greater", found, a.index(0))


def _is_row(a: Arithmetic, row: int, size: int) -> ir.Value:
    """A mask of one row, as (size, 1)."""
    return a.edit.constant((np.arange(size) == row)[:, None])


def _axis(a: Arithmetic, matrix: ir.Value, axis: int) -> int:
    """An axis counted from the end, as one counted from the start."""
    shape = matrix.shape
    assert shape is not None
    return axis + len(shape)


def _nonzero(a: Arithmetic, pivot: ir.Value) -> ir.Value:
    """A pivot to divide by: where it is 0, so is all that is divided."""
    return a("Where", a("Equal", pivot, 0), 1, pivot)


@dataclass(frozen=True)
class _Product(Match):
    dtype: ir.DataType


@dataclass(frozen=True)
class DecomposeIntegerGemm(NodeRewrite[_Product]):
    """Multiply integer matrices by factors that are no integers."""

    name = "decompose-integer-gemm"
    exactness = Exactness.ROUNDING
    operators = frozenset({("", "Gemm")})

    def match(self, node: ir.Node, context: NodeContext) -> _Product | Skip | None:
        """Whether it is of integers, with a factor that is none."""
        scope = context.scope
        if not is_plain(node, scope):
            return None
        dtype = scope.dtype(node.inputs[0])
        if dtype is None:
            return Skip(UNKNOWN_DTYPE)
        factors = [node.attributes.get_float(name, 1.0) for name in ("alpha", "beta")]
        whole = all(factor.is_integer() for factor in factors)
        return None if whole or not dtype.is_integer() else _Product(node, dtype)

    def rewrite(self, match: _Product, edit: Edit) -> Sequence[ir.Value | None]:
        """The product itself is exact."""
        node, dtype = match.node, match.dtype
        a = Arithmetic(edit, ir.DataType.DOUBLE)
        sides = []
        for value, name in zip(node.inputs[:2], ("transA", "transB"), strict=True):
            assert value is not None
            wider = a.cast(value, dtype, wide(dtype))
            sides.append(a("Transpose", wider, perm=[1, 0]) if node.attributes.get_int(name, 0) else wider)
        y = a("Mul", a.cast(a("MatMul", *sides), wide(dtype)), node.attributes.get_float("alpha", 1.0))
        added = given(node, 2)
        if added is not None:
            y = a("Add", y, a("Mul", a.cast(added, dtype), node.attributes.get_float("beta", 1.0)))
        return [a.cast(y, a.dtype, dtype)]


RULES: tuple[NodeRewrite[Any], ...] = (EliminateMatrix(), DecomposeIntegerGemm())
