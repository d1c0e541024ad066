"""Write com.microsoft's products with low-bit weights as DequantizeLinear and MatMul.

    MatMulNBits(A, B, scales, zeros, bias)  →  A · DequantizeLinear(B', scales, zeros)ᵀ + bias

B' holds the same integers, one per byte. If the opset has no DequantizeLinear for the dtype of the scales, or the zero
points are floats, (B' - zeros) · scales is written as arithmetic.

Skips: weights that are not constant, permuted (g_idx) or prepacked for a specific CPU.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from passes.builders.arithmetic import Arithmetic, Array
from passes.builders.operands import given
from passes.rewriting.base import Exactness, Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import Replacement, rewrite


@rewrite("com.microsoft.MatMulNBits", exactness=Exactness.ROUNDING, needs_dtype=(0, 3))
def decompose_mat_mul_n_bits(node: ir.Node, edit: Edit) -> Replacement:
    """Write com.microsoft's MatMulNBits as DequantizeLinear and MatMul."""
    scope, attributes, dtype = edit.scope, node.attributes, edit.dtype(node)
    if given(node, 4) is not None or attributes.get_int("weight_prepacked", 0) != 0:
        return Skip("the weights are permuted, or prepacked for a specific CPU")
    zeros, bias = given(node, 3), given(node, 5)
    weights, packed_zeros = scope.constant(node.inputs[1]), scope.constant(zeros)
    has_float_zeros = zeros is not None and scope.dtype(zeros) != ir.DataType.UINT8
    if weights is None or (zeros is not None and not has_float_zeros and packed_zeros is None):
        return Skip("the weights are not constant")
    bits = attributes.get_int("bits", 4)
    rows, columns, block = (attributes.get_int(name, 0) for name in ("N", "K", "block_size"))
    row_blocks = -(-columns // block)
    blocks = rows * row_blocks
    a, scales = Arithmetic(edit, dtype), edit.input(node, 2)
    numbers = edit.constant(unpack(weights.numpy().reshape(blocks, -1), bits, block))
    middle = np.full(blocks, 2 ** (bits - 1), np.uint8)
    if packed_zeros is not None and not has_float_zeros:
        middle = unpack(packed_zeros.numpy().reshape(rows, -1), bits, row_blocks).ravel()
    if zeros is not None and has_float_zeros:
        matrix = a("Mul", a("Sub", a.cast(numbers), a.reshape(zeros, [blocks, 1])), a.reshape(scales, [blocks, 1]))
    elif scope.opset() >= (13 if dtype == ir.DataType.FLOAT else 19):
        matrix = a("DequantizeLinear", numbers, a.reshape(scales, [blocks]), edit.constant(middle), axis=0)
    else:
        matrix = a("Mul", a("Sub", a.cast(numbers), middle[:, None]), a.reshape(scales, [blocks, 1]))
    matrix = a.reshape(matrix, [rows, row_blocks * block])
    if columns < row_blocks * block:
        matrix = a.slice(matrix, 1, 0, columns)
    product = a("MatMul", node.inputs[0], a("Transpose", matrix, perm=[1, 0]))
    return product if bias is None else a("Add", product, bias)


def unpack(packed: Array, bits: int, length: int) -> Array:
    """Return the first ``length`` elements of each row of packed bytes, lowest bits first, one per byte."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    elements = (packed[..., None] >> shifts) & np.uint8(2**bits - 1)
    return np.ascontiguousarray(elements.reshape(len(packed), -1)[:, :length])
