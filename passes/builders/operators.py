"""Single operators with constant operands, and linear maps along an axis.

A separable map (interpolation, averaging) is one constant matrix per axis:

    y = (M_1 ⊗ M_2 ⊗ …) x    →    MatMul(M_k, x) along axis k, one axis after the other
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from passes.builders.arithmetic import HALVES, Array
from passes.rewriting.edit import Edit


def reshape(edit: Edit, x: ir.Value, shape: Sequence[int]) -> ir.Value:
    """``x`` reshaped to a static shape."""
    return edit.op("Reshape", [x, edit.constant(np.array(shape, np.int64))])


def reshape_or_fold(edit: Edit, value: ir.Value, shape: Sequence[int]) -> ir.Value:
    """``value`` reshaped to a static shape; the reshape of a constant is a constant."""
    tensor = value.const_value if value in edit.constants else edit.scope.constant(value)
    if tensor is not None:
        return edit.constant(tensor.numpy().reshape(shape))
    if not shape:
        return edit.op("Squeeze", [value])
    return edit.op("Reshape", [value, edit.constant(np.array(shape, np.int64))])


def slice_of(edit: Edit, x: ir.Value, starts: ir.Value, ends: ir.Value, axes: ir.Value) -> ir.Value:
    """A Slice with constant bounds, which are attributes before opset 10."""
    if edit.scope.opset() >= 10:
        return edit.op("Slice", [x, starts, ends, axes])
    found = {name: each.const_value for name, each in (("starts", starts), ("ends", ends), ("axes", axes))}
    return edit.op("Slice", [x], {name: each.numpy().tolist() for name, each in found.items() if each is not None})


def cast(edit: Edit, value: ir.Value, to: ir.DataType | None, source: ir.DataType | None = None) -> ir.Value:
    """``value`` cast to ``to``; unchanged if that is None, or its dtype (by default ``value.dtype``) already."""
    return value if to is None or to == (source or value.dtype) else edit.op("Cast", [value], {"to": to.value})


def scalar(edit: Edit, number: float, dtype: ir.DataType) -> ir.Value:
    """A constant of rank 0."""
    with np.errstate(over="ignore"):
        return edit.constant(np.asarray(number).astype(dtype.numpy()))


def wide_float(dtype: ir.DataType | None) -> ir.DataType | None:
    """The dtype to compute in: float32 for float16 and bfloat16, as ONNX Runtime does, which rounds once."""
    return ir.DataType.FLOAT if dtype in HALVES else dtype


def apply_along(edit: Edit, x: ir.Value, shape: Sequence[int], axis: int, matrix: Array) -> ir.Value:
    """The product of a constant matrix and every line of ``x`` along an axis.

    Args:
        edit: receives the new nodes.
        x: of the matrix's dtype, with the static ``shape``.
        shape: of ``x``.
        axis: non-negative.
        matrix: (out, shape[axis]).

    Returns:
        ``x`` with ``out`` elements along the axis.
    """
    last = len(shape) - 1
    if axis == last:
        return edit.op("MatMul", [x, edit.constant(np.ascontiguousarray(matrix.T))])
    left = edit.constant(np.ascontiguousarray(matrix))
    if axis == last - 1:
        return edit.op("MatMul", [left, x])
    before, after = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
    flat = reshape(edit, x, (before, shape[axis], after))
    return reshape(edit, edit.op("MatMul", [left, flat]), (*shape[:axis], len(matrix), *shape[axis + 1 :]))
