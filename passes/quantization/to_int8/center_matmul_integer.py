"""Move the zero points of MatMulInteger to the middle of the integer range, and correct with column and row sums.

    MatMulInteger(A, B, a, b)  →  MatMulInteger(A, B, α, β) + (α − a)·Σₖ(B − β) + (β − b)·Σₖ(A − α) + K·(α − a)·(β − b)

α and β are 128 for uint8 and 0 for int8. Zero terms are omitted, and sums over weights are constants. The arithmetic is
in int32 and wraps around as the sum of products does, so the result is bitwise equal.

MIGraphX treats uint8 with the zero point 128 as int8 and multiplies in 8 bits. Any other zero point it subtracts in
8 bits, which overflows and silently gives wrong numbers. Dynamic quantization produces such zero points.

Skips: vectors; unknown shapes and dtypes; one zero point per row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from passes.graphs.scopes import Scope
from passes.quantization.rewriting import InferredRewrite
from passes.rewriting.base import Exactness, Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import Match, NodeContext

_SUM = ir.DataType.INT32
_CENTERS = {ir.DataType.UINT8: 128, ir.DataType.INT8: 0}


@dataclass(frozen=True)
class _Found(Match):
    dtypes: tuple[ir.DataType, ir.DataType]
    length: int


class CenterMatMulInteger(InferredRewrite[_Found]):
    """Move the zero points of MatMulInteger to the middle of the integer range."""

    name = "center-matmul-integer"
    exactness = Exactness.BITWISE
    operators = frozenset({("", "MatMulInteger")})
    inferred_for = operators

    def match(self, node: ir.Node, context: NodeContext) -> _Found | Skip | None:
        """Match unless both zero points are known to be in the middle."""
        scope = context.scope
        if all(_is_centered(node, index, scope) for index in (0, 1)):
            return None
        dtypes, shapes = [], []
        for value in node.inputs[:2]:
            dtype, shape = scope.dtype(value), scope.shape(value)
            if dtype not in _CENTERS or shape is None:
                return Skip("its operands are not known to be 8-bit integers, or have an unknown rank")
            if len(shape) < 2:
                return Skip("an operand is a vector")
            dtypes.append(dtype)
            shapes.append(shape)
        length = shapes[1][-2] if isinstance(shapes[1][-2], int) else shapes[0][-1]
        if not isinstance(length, int):
            return Skip("the length of its sums is unknown")
        rows = _zero(node, 0)
        if rows is not None and _count(rows, scope) != 1:
            return Skip("it may have one zero point per row")
        columns = _zero(node, 1)
        if columns is not None and ((shape := scope.shape(columns)) is None or len(shape) > 1):
            return Skip("its second zero point has an unknown shape, or is not one per column")
        return _Found(node, (dtypes[0], dtypes[1]), length)

    def rewrite(self, match: _Found, edit: Edit) -> Sequence[ir.Value | None]:
        """The product with centered zero points, plus the correction terms."""
        node, scope = match.node, edit.scope
        centers = [_CENTERS[dtype] for dtype in match.dtypes]
        zeros = [
            edit.constant(np.asarray(center, dtype.numpy()))
            for center, dtype in zip(centers, match.dtypes, strict=True)
        ]
        y = edit.op("MatMulInteger", [node.inputs[0], node.inputs[1], *zeros])
        shifts = [
            None if _is_centered(node, index, scope) else _shift(edit, node, index, centers[index]) for index in (0, 1)
        ]
        for index, axis in ((0, -2), (1, -1)):
            shift = shifts[index]
            if shift is not None:
                total = _total(edit, node.inputs[1 - index], centers[1 - index], axis, match.length)
                y = edit.op("Add", [y, edit.op("Mul", [shift, total])])
        if shifts[0] is not None and shifts[1] is not None:
            length = edit.constant(np.asarray(match.length, np.int32))
            y = edit.op("Add", [y, edit.op("Mul", [length, edit.op("Mul", [shifts[0], shifts[1]])])])
        return [y]


def _zero(node: ir.Node, index: int) -> ir.Value | None:
    return node.inputs[index + 2] if len(node.inputs) > index + 2 else None


def _count(value: ir.Value, scope: Scope) -> int | None:
    shape = scope.shape(value)
    return int(np.prod(shape.numpy())) if shape is not None and shape.is_static() else None


def _is_centered(node: ir.Node, index: int, scope: Scope) -> bool:
    """Whether a zero point is in the middle of the range; a missing one is zero."""
    dtype, zero = scope.dtype(node.inputs[index]), _zero(node, index)
    if zero is None:
        return dtype == ir.DataType.INT8
    tensor = scope.constant(zero)
    return tensor is not None and dtype in _CENTERS and bool((tensor.numpy() == _CENTERS[dtype]).all())


def _shift(edit: Edit, node: ir.Node, index: int, center: int) -> ir.Value:
    """The middle minus the zero point, in int32; folded where the zero point is constant."""
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
    """The sums of ``value - center`` along an axis, which is kept; folded where the integers are constant."""
    tensor = edit.scope.constant(value)
    if tensor is not None:
        sums = (tensor.numpy().astype(np.int64) - center).sum(axis=axis, keepdims=True)
        return edit.constant(sums.astype(np.int32))
    wide = edit.op("Cast", [value], {"to": _SUM.value})
    sums = edit.op("ReduceSum", [wide, edit.constant(np.array([axis], np.int64))], {"keepdims": 1})
    return edit.op("Sub", [sums, edit.constant(np.asarray(center * length, np.int32))]) if center else sums
