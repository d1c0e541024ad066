"""Store 4-bit weights as 8-bit integers where an int8 kernel can take them.

    DequantizeLinear(W, s, z), W of int4 or uint4   →  DequantizeLinear(W as int8 or uint8, s, z in the same dtype)

The values are unchanged. MIGraphX multiplies 8-bit integers; 4-bit integers it unpacks and dequantizes for a product in
float, and a scalar zero point of 4 bits makes it crash with a segmentation fault.

Skips: a weight with several scales in a matrix product whose other operand is not dequantized: that product runs in
float, so the weight is better stored in 4 bits. Blocks, which no int8 kernel takes, and computed weights are unchanged.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from passes.graphs.int8_kernels import Reason, trace
from passes.graphs.quantization import plain, quantized_dtype, zero_point
from passes.graphs.scopes import Scope
from passes.operators import DEQUANTIZE
from passes.quantization.rewriting import consumers
from passes.rewriting.base import Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import Replacement, rewrite

_WIDE = {ir.DataType.INT4: np.int8, ir.DataType.UINT4: np.uint8}


@rewrite(*DEQUANTIZE)
def int4_to_int8(node: ir.Node, edit: Edit) -> Replacement:
    """Store 4-bit weights as 8-bit integers where an int8 kernel can take them."""
    scope = edit.scope
    if quantized_dtype(node, scope) not in _WIDE or node.attributes.get_int("block_size", 0) != 0:
        return None
    if scope.constant(node.inputs[0]) is None:
        return None
    zero, scale = zero_point(node), scope.shape(node.inputs[1])
    if zero is not None and scope.constant(zero) is None:
        return Skip("the zero point is not constant")
    if scale is None or len(scale) > 1:
        return None
    if len(scale) and _only_weights(node.outputs[0], scope):
        return Skip("the other operand of the product is in float")
    inputs = [_widened(value, edit) if index != 1 else value for index, value in enumerate(node.inputs)]
    return edit.op(node.op_type, inputs, node.attributes, domain=node.domain)


def _widened(value: ir.Value | None, edit: Edit) -> ir.Value | None:
    tensor = edit.scope.constant(value)
    return value if tensor is None else edit.constant(tensor.numpy().astype(_WIDE[tensor.dtype]))


def _only_weights(value: ir.Value, scope: Scope) -> bool:
    """Return whether all its consumers are matrix products whose other operand is not dequantized."""
    return all(_is_weight(taken, user, scope) for taken, user in consumers(value, scope))


def _is_weight(value: ir.Value, user: ir.Node | None, scope: Scope) -> bool:
    if user is None or not plain(user, scope, "MatMul", "Gemm") or value not in user.inputs[:2]:
        return False
    return isinstance(trace(user.inputs[1 - user.inputs.index(value)], scope), Reason)
