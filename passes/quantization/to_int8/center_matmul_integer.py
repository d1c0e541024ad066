"""Move the zero points of MatMulInteger to the middle of the integer range, and correct with column and row sums.

    MatMulInteger(A, B, a, b)  →  MatMulInteger(A, B, α, β) + (α − a)·Σₖ(B − β) + (β − b)·Σₖ(A − α) + K·(α − a)·(β − b)

α and β are 128 for uint8 and 0 for int8. Zero terms are omitted, and sums over weights are constants. The arithmetic is
in int32 and wraps around as the sum of products does, so the result is bitwise equal.

MIGraphX treats uint8 with the zero point 128 as int8 and multiplies in 8 bits. Any other zero point it subtracts in
8 bits, which overflows and silently gives wrong numbers. Dynamic quantization produces such zero points.

Skips: vectors; unknown shapes and dtypes; one zero point per row.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from passes.builders.operands import given
from passes.graphs.scopes import Scope
from passes.rewriting.base import NotApplicable
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import Replacement, rewrite

_SUM = ir.DataType.INT32
_CENTERS = {ir.DataType.UINT8: 128, ir.DataType.INT8: 0}


@rewrite("MatMulInteger", inferred_for=("MatMulInteger",))
def center_matmul_integer(node: ir.Node, edit: Edit) -> Replacement:
    """Move the zero points of MatMulInteger to the middle of the integer range."""
    scope = edit.scope
    centered = [_is_centered(node, index, scope) for index in (0, 1)]
    if all(centered):
        return None
    dtypes, length = _dtypes(node, scope), _length(node, scope)
    _check_zero_points(node, scope)
    centers = [_CENTERS[dtype] for dtype in dtypes]
    zeros = [edit.constant(np.asarray(center, dtype.numpy())) for center, dtype in zip(centers, dtypes, strict=True)]
    y = edit.op("MatMulInteger", [node.inputs[0], node.inputs[1], *zeros])
    shifts = [None if centered[index] else _shift(edit, node, index, centers[index]) for index in (0, 1)]
    for index, axis in ((0, -2), (1, -1)):
        shift = shifts[index]
        if shift is not None:
            total = _total(edit, node.inputs[1 - index], centers[1 - index], axis, length)
            y = edit.op("Add", [y, edit.op("Mul", [shift, total])])
    if shifts[0] is not None and shifts[1] is not None:
        count = edit.constant(np.asarray(length, np.int32))
        y = edit.op("Add", [y, edit.op("Mul", [count, edit.op("Mul", [shifts[0], shifts[1]])])])
    return y


def _dtypes(node: ir.Node, scope: Scope) -> list[ir.DataType]:
    """Return the dtypes of the operands."""
    dtypes = []
    for value in node.inputs[:2]:
        dtype, shape = scope.dtype(value), scope.shape(value)
        if dtype is None or dtype not in _CENTERS or shape is None:
            raise NotApplicable("the operands are not known to be 8-bit integers, or have an unknown rank")
        if len(shape) < 2:
            raise NotApplicable("an operand is a vector")
        dtypes.append(dtype)
    return dtypes


def _length(node: ir.Node, scope: Scope) -> int:
    """Return the number of products in a sum."""
    for value, axis in ((node.inputs[1], -2), (node.inputs[0], -1)):
        shape = scope.shape(value)
        size = shape[axis] if shape is not None else None
        if isinstance(size, int):
            return size
    raise NotApplicable("the length of the sums is unknown")


def _check_zero_points(node: ir.Node, scope: Scope) -> None:
    """Raise NotApplicable unless there is one zero point for the first operand, and one or one per column."""
    rows, columns = _zero(node, 0), _zero(node, 1)
    if rows is not None and _count(rows, scope) != 1:
        raise NotApplicable("the first operand may have one zero point per row")
    shape = scope.shape(columns)
    if columns is not None and (shape is None or len(shape) > 1):
        raise NotApplicable("the second zero point has an unknown shape, or is not one per column")


def _zero(node: ir.Node, index: int) -> ir.Value | None:
    return given(node, index + 2)


def _count(value: ir.Value, scope: Scope) -> int | None:
    shape = scope.shape(value)
    return int(np.prod(shape.numpy())) if shape is not None and shape.is_static() else None


def _is_centered(node: ir.Node, index: int, scope: Scope) -> bool:
    """Return whether a zero point is in the middle of the range; a missing one is zero."""
    dtype, zero = scope.dtype(node.inputs[index]), _zero(node, index)
    if zero is None:
        return dtype == ir.DataType.INT8
    tensor = scope.constant(zero)
    return tensor is not None and dtype in _CENTERS and bool((tensor.numpy() == _CENTERS[dtype]).all())


def _shift(edit: Edit, node: ir.Node, index: int, center: int) -> ir.Value:
    """Return the middle minus the zero point, in int32; folded if the zero point is constant."""
    zero = _zero(node, index)
    tensor = edit.scope.constant(zero)
    if zero is None or tensor is not None:
        stored = tensor.numpy().astype(np.int32) if tensor is not None else np.zeros((), np.int32)
        return edit.constant(np.asarray(center - (stored.reshape(()) if stored.size == 1 else stored), np.int32))
    if edit.scope.shape(zero) != ir.Shape([]) and _count(zero, edit.scope) == 1:
        zero = edit.op("Squeeze", [zero])
    wide = edit.op("Cast", [zero], {"to": _SUM.value})
    return edit.op("Sub", [edit.constant(np.asarray(center, np.int32)), wide])


def _total(edit: Edit, value: ir.Value | None, center: int, axis: int, length: int) -> ir.Value:
    """Return the sums of ``value - center`` along an axis, which is kept; folded if the integers are constant."""
    tensor = edit.scope.constant(value)
    if tensor is not None:
        sums = (tensor.numpy().astype(np.int64) - center).sum(axis=axis, keepdims=True)
        return edit.constant(sums.astype(np.int32))
    wide = edit.op("Cast", [value], {"to": _SUM.value})
    sums = edit.op("ReduceSum", [wide, edit.constant(np.array([axis], np.int64))], {"keepdims": 1})
    return edit.op("Sub", [sums, edit.constant(np.asarray(center * length, np.int32))]) if center else sums
