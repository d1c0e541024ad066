"""Compute determinants and inverses by elimination, and Gemm of integers with fractional factors.

    Det(A), Inverse(A)      →  Gaussian elimination with partial pivoting, one round per row, on the whole batch
    Gemm of integers        →  the product in integers; alpha, beta and the sum in float64, truncated at the end

Each round finds the largest remaining element p of column k (ArgMax), swaps the rows k and p by masks, and subtracts
row k from the others. The determinant is the product of the pivots, negated at each swap; for 2×2 it is ad − bc. For
the inverse, the identity is concatenated to A and goes through the same rounds. A column of zeros gives a determinant
of 0, and an inverse that is not finite.

Skips: opsets before 11, whose Equal does not support floats; dynamic shapes; matrices that are too large to unroll.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from passes.builders.arithmetic import Arithmetic, wide
from passes.builders.operands import given
from passes.rewriting.base import Exactness, Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import Replacement, rewrite

_MAX_ROWS = 64
"""The most rows that are eliminated: each becomes about fifteen nodes."""


@rewrite(
    "Det",
    "com.microsoft.Inverse",
    exactness=Exactness.ROUNDING,
    since_opset=11,  # Equal of floats
    needs_shape=(0,),
    needs_dtype=(0,),
)
def eliminate_matrix(node: ir.Node, edit: Edit) -> Replacement:
    """Compute Det and Inverse by elimination."""
    shape, dtype = edit.shape(node), edit.dtype(node)
    if len(shape) < 2 or shape[-1] != shape[-2] or 0 in shape:
        return Skip(f"a tensor of shape {list(shape)} is not a square matrix")
    if shape[-1] > _MAX_ROWS:
        return Skip(f"matrices of {shape[-1]} rows are too large to unroll; the limit is {_MAX_ROWS}")
    a = Arithmetic(edit, wide(dtype))
    compute = _determinant if node.op_type == "Det" else _inverse
    return a.cast(compute(a, a.cast(edit.input(node)), shape, shape[-1]), dtype)


def _determinant(a: Arithmetic, matrix: ir.Value, shape: Sequence[int], size: int) -> ir.Value:
    """Return the product of the pivots; each elimination removes a row and a column."""
    factors: list[ir.Value] = []
    for left in range(size, 2, -1):
        matrix, pivot, swapped = _swap(a, matrix, 0, left)
        factors += [a("Where", swapped, -1, 1), pivot]
        top = a.slice(a.slice(matrix, -2, 0, 1), -1, 1, left)
        below = a.slice(matrix, -2, 1, left)
        divisor = a("Where", a("Equal", pivot, 0), 1, pivot)  # of a pivot of 0, all dividends are 0
        ratio = a("Div", a.slice(below, -1, 0, 1), divisor)
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
    """Return the identity transformed by the operations that reduce the matrix to the identity."""
    matrix = a.concat([matrix, a.value(np.broadcast_to(np.eye(size), shape))], len(shape) - 1)
    for row in range(size):
        matrix, pivot, _ = _swap(a, matrix, row, size)
        scaled = a("Div", a.slice(matrix, -2, row, row + 1), pivot)
        reduced = a("Sub", matrix, a("Mul", a.slice(matrix, -1, row, row + 1), scaled))
        matrix = a("Where", _is_row(a, row, size), scaled, reduced)
    return a.slice(matrix, -1, size, 2 * size)


def _swap(a: Arithmetic, matrix: ir.Value, row: int, size: int) -> tuple[ir.Value, ir.Value, ir.Value]:
    """Swap row ``row`` with the row from it on that has the largest element in column ``row``.

    Return the matrix, the pivot, and whether rows were swapped, both as (…, 1, 1).
    """
    column = a("Abs", a.slice(a.slice(matrix, -1, row, row + 1), -2, row, size))
    largest = a("ArgMax", column, axis=-2, keepdims=1)
    places = a.index(np.arange(-row, size - row)[:, None])
    is_found = a("Equal", places, largest)
    old = a.slice(matrix, -2, row, row + 1)
    new = a.reduce("Sum", a("Where", is_found, matrix, 0), [-2])
    swapped = a("Where", _is_row(a, row, size), new, a("Where", is_found, old, matrix))
    return swapped, a.slice(new, -1, row, row + 1), a("Greater", largest, a.index(0))


def _is_row(a: Arithmetic, row: int, size: int) -> ir.Value:
    """Return a mask of one row, (size, 1)."""
    return a.edit.constant((np.arange(size) == row)[:, None])


@rewrite("Gemm", exactness=Exactness.ROUNDING, needs_dtype=(0,))
def decompose_integer_gemm(node: ir.Node, edit: Edit) -> Replacement:
    """Compute Gemm of integers with fractional factors."""
    dtype = edit.dtype(node)
    alpha, beta = (node.attributes.get_float(name, 1.0) for name in ("alpha", "beta"))
    if not dtype.is_integer() or (alpha.is_integer() and beta.is_integer()):
        return None
    a = Arithmetic(edit, ir.DataType.DOUBLE)
    sides = []
    for index, name in enumerate(("transA", "transB")):
        side = a.cast(edit.input(node, index), wide(dtype))
        sides.append(a("Transpose", side, perm=[1, 0]) if node.attributes.get_int(name, 0) else side)
    y = a("Mul", a.cast(a("MatMul", *sides)), alpha)
    added = given(node, 2)
    if added is not None:
        y = a("Add", y, a("Mul", a.cast(added), beta))
    return a.cast(y, dtype)
