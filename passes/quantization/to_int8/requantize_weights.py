"""Quantize float weights that are exact multiples of a scale.

    MatMul(DQ(…), W)   →  MatMul(DQ(…), DequantizeLinear(Q, s, z))       where W = (Q − z)·s

Quantizers that "freeze" a model store the rounded weights as floats and keep only the quantization of activations.
Then MIGraphX selects no int8 kernel, although the weights allow it. This pass recovers scale and integers: the scale is
the largest weight divided by the smallest integer for which all weights are integer multiples of it. It tries one scale
per tensor first, then one per output channel.

Weights change by at most 4·10⁻⁷ relative, the rounding of the product of integer and scale; otherwise nothing changes.

Skips: weights that are not 8-bit multiples of a scale. Only weights whose other operand is dequantized from 8 bits are
considered.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from passes.graphs.int8_kernels import Reason, kept, trace
from passes.graphs.quantization import Array, quantized_dtype
from passes.operators import DEQUANTIZE
from passes.rewriting.base import Exactness, Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import Replacement, rewrite

_LARGEST = 255
"""The most steps between the smallest and the largest weight."""
_RELATIVE_ERROR = 4e-7
"""How far a weight may be from a multiple of the scale."""
_EIGHT_BITS = (ir.DataType.INT8, ir.DataType.UINT8)


@rewrite("Conv", "Gemm", "MatMul", exactness=Exactness.ROUNDING, inferred_for=DEQUANTIZE)
def requantize_weights(node: ir.Node, edit: Edit) -> Replacement:
    """Quantize float weights that are exact multiples of a scale."""
    scope = edit.scope
    if node.op_type == "Gemm" and node.attributes.get_float("alpha", 1.0) != 1.0:
        return None
    tensor = scope.constant(node.inputs[1])
    if tensor is None or tensor.dtype != ir.DataType.FLOAT or tensor.size < 2 or len(tensor.shape) < 2:
        return None
    operand = trace(node.inputs[0], scope)
    if isinstance(operand, Reason) or quantized_dtype(operand.dequantize, scope) not in _EIGHT_BITS:
        return None
    axis = kept(node, 1, scope)
    grid = on_grid(tensor.numpy(), axis if scope.opset() >= 13 else None) if scope.opset() >= 10 else None
    if grid is None:
        return Skip(f"the weight {edit.input(node, 1).name} is not on an 8-bit quantization grid")
    per_axis = grid[1].ndim > 0
    parts = [edit.constant(part) for part in grid]
    weight = edit.op("DequantizeLinear", parts, {"axis": axis or 0} if per_axis else {})
    return edit.op(node.op_type, [node.inputs[0], weight, *node.inputs[2:]], node.attributes)


def on_grid(weights: Array, axis: int | None) -> tuple[Array, Array, Array] | None:
    """Return the integers, scales and zero points that weights can be written with.

    Args:
        weights: float32.
        axis: the axis along which there may be several scales; None for one scale per tensor.

    Returns:
        The integers (int8, in the shape of the weights), the scales (float32) and the zero points (int8): one, or one
        per index of the axis. None if the weights are not on such a grid.
    """
    whole = _grid(weights.ravel())
    if whole is not None:
        integers, scale, zero = whole
        return integers.reshape(weights.shape), np.asarray(scale), np.asarray(zero)
    if axis is None:
        return None
    rows = np.moveaxis(weights, axis, 0).reshape(weights.shape[axis], -1)
    grids = []
    for row in rows:
        grid = _grid(row)
        if grid is None:
            return None
        grids.append(grid)
    integers = np.stack([grid[0] for grid in grids])
    moved = np.moveaxis(weights, axis, 0).shape
    whole_integers = np.ascontiguousarray(np.moveaxis(integers.reshape(moved), 0, axis))
    return whole_integers, np.array([grid[1] for grid in grids], np.float32), np.array([grid[2] for grid in grids])


def _grid(row: Array) -> tuple[Array, np.float32, np.int8] | None:
    """Return the integers, scale and zero point of weights that share one scale; None if there is no such scale."""
    if not np.isfinite(row).all():
        return None
    sizes = np.unique(np.abs(row.astype(np.float64)))
    sizes = sizes[sizes > 0]
    if sizes.size == 0:
        return np.zeros(row.shape, np.int8), np.float32(1), np.int8(0)
    if sizes.size > _LARGEST:
        return None
    steps = np.arange(1, _LARGEST + 1)
    multiples = sizes[:, None] * (steps / sizes[-1])
    off = np.abs(multiples - np.round(multiples)) <= 2 * _RELATIVE_ERROR * multiples
    for count in steps[off.all(axis=0)]:
        scale = np.float32(sizes[-1] / count)
        if scale < np.finfo(np.float32).tiny:
            return None
        integers = np.round(row.astype(np.float64) / float(scale)).astype(np.int64)
        low, high = min(int(integers.min()), 0), max(int(integers.max()), 0)
        zero = 0 if low >= -128 and high <= 127 else -128 - low
        if high - low > _LARGEST or not -128 <= zero <= 127:
            return None
        again = integers.astype(np.float32) * scale
        if (np.abs(again - row) <= _RELATIVE_ERROR * np.abs(row)).all():
            return (integers + zero).astype(np.int8), scale, np.int8(zero)
    return None
