"""Write DequantizeLinear as arithmetic where a product sums over the axis of its scales.

    MatMul(x, DQ(W, s, z)), s along the summed axis   →  MatMul(x, (Cast(W) − z)·s)      also Conv and Gemm

Such scales cannot be factored out of the sum, so no int8 kernel can compute the product. MIGraphX checks only the
number of scales: for a square matrix it selects an int8 kernel, and the result is wrong. Written as arithmetic, the
product stays in float, and weights become float constants.

Skips: unknown shapes and dtypes.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from passes.builders.quantize_linear import arithmetic_dtype, dequantize
from passes.graphs.int8_kernels import Reason, forecast_kernel, kept, trace
from passes.graphs.quantization import aligned, parameters, plain
from passes.graphs.scopes import Scope
from passes.operators import DEQUANTIZE
from passes.quantization.rewriting import consumers
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import Replacement, rewrite

_PRODUCTS = ("Conv", "Gemm", "MatMul")


@rewrite(*DEQUANTIZE, inferred_for=DEQUANTIZE)
def keep_inner_scales(node: ir.Node, edit: Edit) -> Replacement:
    """Write DequantizeLinear as arithmetic where a product sums over the axis of its scales."""
    scope = edit.scope
    shape = scope.shape(node.inputs[1])
    if shape is None or len(shape) != 1 or shape[0] == 1 or not _reaches_wrong_kernel(node, scope):
        return None
    dtype, weight, given = arithmetic_dtype(node, scope), scope.constant(node.inputs[0]), parameters(node, scope)
    if weight is None or isinstance(given, str) or dtype != ir.DataType.FLOAT:
        return dequantize(edit, node, node.inputs, dtype)
    scale, zero = (aligned(parameter, given, len(weight.shape)) for parameter in (given.scale, given.zero))
    assert scale is not None and zero is not None
    return edit.constant((weight.numpy().astype(np.int32) - zero).astype(np.float32) * scale)


def _reaches_wrong_kernel(node: ir.Node, scope: Scope) -> bool:
    """Return whether the int8 kernel of a product takes the result of ``node``, and would compute it wrongly."""
    return any(
        user is not None
        and plain(user, scope, *_PRODUCTS)
        and value in user.inputs[:2]
        and forecast_kernel(user, scope).wrong
        and _is_inner(node, user, scope)
        for value, user in consumers(node.outputs[0], scope)
    )


def _is_inner(node: ir.Node, user: ir.Node, scope: Scope) -> bool:
    """Return whether the int8 kernel of a product would apply the scales of ``node`` along another axis."""
    for index, value in enumerate(user.inputs[:2]):
        operand = trace(value, scope)
        if not isinstance(operand, Reason) and operand.dequantize is node:
            return operand.axis != kept(user, index, scope) or not operand.direct
    return False
