"""Write com.microsoft's low-bit block-quantized weights in a form that stays small, or as floats.

    MatMulNBits(A, B, s, z, –, b)   →  MatMulNBits(A, B, s, z flat) + b        weights stay in 4 bits
    GatherBlockQuantized(W, i, s, z) →  (Gather(W', i) − Gather(z', i))·Gather(s, i)
    MatMulBnb4(A, B, absmax)        →  A · Wᵀ                                  W = table[B]·absmax, in float

W' and z' hold the same integers, one per byte; scales and zero points are expanded to their blocks after the Gather.
The tables of MatMulBnb4 are bitsandbytes' FP4 and NF4.

Skips: weights that are not constant; permuted weights (g_idx); unknown shapes.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from passes.builders.arithmetic import Arithmetic
from passes.builders.operands import given
from passes.legalize.contrib.quantized_weights import unpack
from passes.rewriting.base import Exactness, Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import UNKNOWN_SHAPE, Replacement, rewrite

_CONTRIB = "com.microsoft"
_NUMBER = ir.DataType.FLOAT
_FP4 = np.array([0, 1 / 192, 2 / 3, 1, 1 / 3, 1 / 2, 1 / 6, 1 / 4], np.float32)
_TABLES = {
    0: np.concatenate([_FP4, -_FP4]),
    1: np.array(
        [
            -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
            -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
            0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
        ],
        np.float32,
    ),
}  # fmt: skip
"""The values of 4-bit codes, by ``quant_type``."""


@rewrite("com.microsoft.MatMulNBits", exactness=Exactness.ROUNDING)
def plain_mat_mul_n_bits(node: ir.Node, edit: Edit) -> Replacement:
    """Give MatMulNBits flat zero points, and move its bias to an Add."""
    zeros, bias, inputs = given(node, 3), given(node, 5), list(node.inputs[:3])
    if node.attributes.get_int("bits", 4) != 4 or given(node, 4) is not None:
        return None
    if zeros is not None and edit.scope.dtype(zeros) != ir.DataType.UINT8:
        return None
    shape = (0,) if zeros is None else edit.scope.static_shape(zeros)
    if shape is None:
        return Skip(UNKNOWN_SHAPE)
    if len(shape) < 2 and bias is None:
        return None
    if zeros is not None:
        inputs.append(edit.reshape_or_fold(zeros, [-1]))
    y = edit.op("MatMulNBits", inputs, node.attributes, domain=_CONTRIB)
    return y if bias is None else edit.op("Add", [y, bias])


@rewrite("com.microsoft.GatherBlockQuantized", exactness=Exactness.ROUNDING, needs_shape=(1, 2), needs_dtype=(2,))
def decompose_gather_block_quantized(node: ir.Node, edit: Edit) -> Replacement:
    """Gather integers, scales and zero points, then dequantize in float32."""
    data, zeros = (edit.scope.constant(given(node, index)) for index in (0, 3))
    if data is None or (given(node, 3) is not None and zeros is None):
        return Skip("the weights or their zero points are not constant")
    gathered = node.attributes.get_int("gather_axis", 0) % len(data.shape)
    blocked = node.attributes.get_int("quantize_axis", 1) % len(data.shape)
    if gathered == blocked:
        return Skip("the rows are gathered along the axis of the blocks")
    a, indices = Arithmetic(edit, _NUMBER), edit.input(node, 1)
    bits, block = node.attributes.get_int("bits", 4), node.attributes.get_int("block_size", 128)
    numbers = _bytes(data, bits, None)
    length = numbers.shape[blocked]
    axis = blocked + len(edit.shape(node, 1)) - 1 if blocked > gathered else blocked

    def gather(value: ir.Value) -> ir.Value:
        return a.cast(a("Gather", value, indices, axis=gathered))

    x = gather(edit.constant(numbers))
    if zeros is not None:
        is_packed = data.dtype == ir.DataType.UINT8 and bits < 8
        points = edit.constant(_bytes(zeros, bits, -(-length // block) if is_packed else None))
        x = a("Sub", x, _over_blocks(a, gather(points), axis, block, length))
    elif data.dtype == ir.DataType.UINT8:
        x = a("Sub", x, float(2 ** (bits - 1)))
    scales = _over_blocks(a, gather(edit.input(node, 2)), axis, block, length)
    return a.cast(a("Mul", x, scales), edit.dtype(node, 2))


def _bytes(tensor: ir.TensorProtocol, bits: int, length: int | None) -> np.ndarray:
    """Return low-bit integers, one per byte; unpack packed ones along the last axis, up to ``length`` of them."""
    array = tensor.numpy()
    if tensor.dtype != ir.DataType.UINT8 or bits == 8:
        return array.astype(np.int8 if tensor.dtype.is_signed() else np.uint8)
    rows = array.reshape(-1, array.shape[-1])
    length = length or array.shape[-1] * (8 // bits)
    return unpack(rows, bits, length).reshape(*array.shape[:-1], length)


def _over_blocks(a: Arithmetic, x: ir.Value, axis: int, block: int, length: int) -> ir.Value:
    """Repeat the element of each block for each element of the block along an axis."""
    shape = x.shape
    assert shape is not None
    dims = [int(size) for size in shape.numpy()]
    if dims[axis] in (1, length):
        return x
    wide = [*dims[: axis + 1], block, *dims[axis + 1 :]]
    expanded = a("Expand", a.unsqueeze(x, [axis + 1]), a.index(wide))
    flat = a.reshape(expanded, [*dims[:axis], dims[axis] * block, *dims[axis + 1 :]])
    return flat if dims[axis] * block == length else a.slice(flat, axis, 0, length)


@rewrite("com.microsoft.MatMulBnb4", exactness=Exactness.ROUNDING, needs_dtype=(0,))
def decompose_mat_mul_bnb4(node: ir.Node, edit: Edit) -> Replacement:
    """Write MatMulBnb4 as a product with float weights."""
    packed, largest = (edit.scope.constant(value) for value in node.inputs[1:3])
    if packed is None or largest is None:
        return Skip("the weights are not constant")
    table = _TABLES.get(node.attributes.get_int("quant_type", 1))
    if table is None:
        return Skip("the quant_type is unknown")
    if not node.attributes.get_int("transB", 1):
        return Skip("the weights are transposed")
    rows, columns, block = (node.attributes.get_int(name, 0) for name in ("N", "K", "block_size"))
    stored = packed.numpy().ravel()
    indices = np.stack([stored >> 4, stored & 15], axis=-1).ravel()[: rows * columns]
    scales = np.repeat(largest.numpy().ravel().astype(np.float32), block)[: rows * columns]
    weights = (table[indices] * scales).reshape(rows, columns).T
    matrix = np.ascontiguousarray(weights).astype(edit.dtype(node).numpy())
    return edit.op("MatMul", [node.inputs[0], edit.constant(matrix)])
