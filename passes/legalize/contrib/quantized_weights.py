"""Write com.microsoft's products with low-bit weights as DequantizeLinear and MatMul.

    MatMulNBits(A, B, scales, zeros, bias)  →  A · DequantizeLinear(B', scales, zeros)ᵀ + bias

B' holds the same integers, one per byte. Where the opset has no DequantizeLinear for the dtype of the scales, or the
zero points are floats, (B' - zeros) · scales is written as arithmetic.

Skips: weights that are not constant, permuted (g_idx) or prepacked for a specific CPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from passes.builders.arithmetic import Arithmetic, Array
from passes.builders.operands import given
from passes.rewriting.base import Exactness, Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import Match, NodeContext, NodeRewrite


@dataclass(frozen=True)
class _Found(Match):
    bits: int
    rows: int
    columns: int
    block: int
    """The number of elements that share a scale."""
    dtype: ir.DataType

    @property
    def blocks(self) -> int:
        """The number of blocks in a row."""
        return -(-self.columns // self.block)


class DecomposeMatMulNBits(NodeRewrite[_Found]):
    """Write com.microsoft's MatMulNBits as DequantizeLinear and MatMul."""

    name = "decompose-mat-mul-n-bits"
    exactness = Exactness.ROUNDING
    operators = frozenset({("com.microsoft", "MatMulNBits")})
    needs_dtype = (0, 3)

    def match(self, node: ir.Node, context: NodeContext) -> _Found | Skip | None:
        """Match constant weights in their plain layout."""
        scope, attributes = context.scope, node.attributes
        bits, zeros = attributes.get_int("bits", 4), given(node, 3)
        if given(node, 4) is not None or attributes.get_int("weight_prepacked", 0) != 0:
            return Skip("its weights are permuted, or prepacked for a specific CPU")
        packed = zeros is not None and scope.dtype(zeros) == ir.DataType.UINT8
        if scope.constant(node.inputs[1]) is None or (packed and scope.constant(zeros) is None):
            return Skip("its weights are not constant")
        rows, columns, block = (attributes.get_int(name, 0) for name in ("N", "K", "block_size"))
        return _Found(node, bits, rows, columns, block, context.dtype(node))

    def rewrite(self, match: _Found, edit: Edit) -> Sequence[ir.Value | None]:
        """Unpack, dequantize per block, and multiply."""
        node, a, scope = match.node, Arithmetic(edit, match.dtype), edit.scope
        scales, zeros, bias = node.inputs[2], given(node, 3), given(node, 5)
        weights = scope.constant(node.inputs[1])
        assert weights is not None
        assert scales is not None
        blocks = match.rows * match.blocks
        packed = edit.constant(unpack(weights.numpy().reshape(blocks, -1), match.bits, match.block))
        scales = a.reshape(scales, [blocks, 1])
        zero = scope.constant(zeros)
        if zeros is not None and (zero is None or zero.dtype != ir.DataType.UINT8):
            matrix = a("Mul", a("Sub", a("Cast", packed, to=int(a.dtype)), a.reshape(zeros, [blocks, 1])), scales)
        else:
            middle = np.full(blocks, 2 ** (match.bits - 1), np.uint8)
            if zero is not None:
                middle = unpack(zero.numpy().reshape(match.rows, -1), match.bits, match.blocks).ravel()
            if scope.opset() >= (13 if match.dtype == ir.DataType.FLOAT else 19):
                flat = a.reshape(scales, [blocks])
                matrix = a("DequantizeLinear", packed, flat, edit.constant(middle), axis=0)
            else:
                matrix = a("Mul", a("Sub", a("Cast", packed, to=int(a.dtype)), middle[:, None]), scales)
        matrix = a.reshape(matrix, [match.rows, match.blocks * match.block])
        if match.columns < match.blocks * match.block:
            matrix = a.slice(matrix, 1, 0, match.columns)
        product = a("MatMul", node.inputs[0], a("Transpose", matrix, perm=[1, 0]))
        return [product if bias is None else a("Add", product, bias)]


def unpack(packed: Array, bits: int, length: int) -> Array:
    """The first ``length`` elements of each row of packed bytes, lowest bits first, one per byte."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    elements = (packed[..., None] >> shifts) & np.uint8(2**bits - 1)
    return np.ascontiguousarray(elements.reshape(len(packed), -1)[:, :length])


RULES: tuple[NodeRewrite[Any], ...] = (DecomposeMatMulNBits(),)
