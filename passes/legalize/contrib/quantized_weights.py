"""Write com.microsoft's products with weights of few bits as DequantizeLinear and MatMul.

    MatMulNBits(A, B, scales, zeros, bias)  →  A · DequantizeLinear(B', scales, zeros)ᵀ + bias

B' are the same numbers, a byte each. Weights stay integers, 1 byte an element; where the opset has no DequantizeLinear
for their scales, or the zero points are floats, (B' - zeros) · scales is spelled out.

Skips: weights of less than 8 bits that are not constant, permuted (g_idx) or packed for another machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from passes.build.arithmetic import Arithmetic, Array
from passes.build.operands import UNKNOWN_DTYPE, given
from passes.core.base import Exactness, Skip
from passes.core.edit import Edit
from passes.core.matching import is_plain
from passes.core.rewrite import Match, NodeContext, NodeRewrite


@dataclass(frozen=True)
class _Found(Match):
    """Attributes: bits an element; rows of the weights; their length; that of a block; the dtype of the product."""

    bits: int
    rows: int
    columns: int
    block: int
    dtype: ir.DataType

    @property
    def blocks(self) -> int:
        """How many there are in a row."""
        return -(-self.columns // self.block)


@dataclass(frozen=True)
class DecomposeMatMulNBits(NodeRewrite[_Found]):
    """Write com.microsoft's MatMulNBits as DequantizeLinear and MatMul."""

    name = "decompose-mat-mul-n-bits"
    exactness = Exactness.ROUNDING
    operators = frozenset({("com.microsoft", "MatMulNBits")})

    def match(self, node: ir.Node, context: NodeContext) -> _Found | Skip | None:
        """Whether the weights can be read."""
        scope, attributes = context.scope, node.attributes
        if not is_plain(node, scope):
            return None
        bits = attributes.get_int("bits", 4)
        zeros, dtype = given(node, 3), scope.dtype(node.inputs[0])
        if dtype is None or (zeros is not None and scope.dtype(zeros) is None):
            return Skip(UNKNOWN_DTYPE)
        if given(node, 4) is not None or attributes.get_int("weight_prepacked", 0) != 0:
            return Skip("its weights are permuted, or packed for another machine")
        packed = zeros is not None and scope.dtype(zeros) == ir.DataType.UINT8
        if scope.constant(node.inputs[1]) is None or (packed and scope.constant(zeros) is None):
            return Skip("its weights are not constant")
        rows, columns, block = (attributes.get_int(name, 0) for name in ("N", "K", "block_size"))
        return _Found(node, bits, rows, columns, block, dtype)

    def rewrite(self, match: _Found, edit: Edit) -> Sequence[ir.Value | None]:
        """Unpack, dequantize by blocks, and multiply."""
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
    """The first ``length`` elements of each row of bytes, the lowest bits first, a byte each."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    elements = (packed[..., None] >> shifts) & np.uint8(2**bits - 1)
    return np.ascontiguousarray(elements.reshape(len(packed), -1)[:, :length])


RULES: tuple[NodeRewrite[Any], ...] = (DecomposeMatMulNBits(),)
