"""Write DequantizeLinear as arithmetic where a product sums over the axis of its scales.

    MatMul(x, DQ(W, s, z)), s along the summed axis   →  MatMul(x, (Cast(W) − z)·s)      likewise Conv and Gemm

Such scales cannot be factored out of the sum, so no int8 kernel can compute the product. MIGraphX checks only the
number of scales: for a square matrix it selects an int8 kernel, and the result is wrong. Written as arithmetic, the
product stays in float, and weights become float constants.

Skips: unknown shapes and dtypes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from passes.builders.quantize_linear import dequantize, output_dtype, unsupported_reason
from passes.graphs.int8_kernels import Reason, forecast_kernel, kept, trace
from passes.graphs.quantization import aligned, parameters, plain
from passes.graphs.scopes import Scope
from passes.operators import DEQUANTIZE
from passes.quantization.rewriting import InferredRewrite, consumers
from passes.rewriting.base import Exactness, Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import Match, NodeContext

_PRODUCTS = ("Conv", "Gemm", "MatMul")


@dataclass(frozen=True)
class _Found(Match):
    dtype: ir.DataType


class KeepInnerScales(InferredRewrite[_Found]):
    """Write DequantizeLinear as arithmetic where a product sums over the axis of its scales."""

    name = "keep-inner-scales"
    exactness = Exactness.BITWISE
    operators = DEQUANTIZE

    def match(self, node: ir.Node, context: NodeContext) -> _Found | Skip | None:
        """Match where the int8 kernel of a product would apply the scales along another axis."""
        scope = context.scope
        shape = scope.shape(node.inputs[1])
        if shape is None or len(shape) != 1 or shape[0] == 1:
            return None
        for value, user in consumers(node.outputs[0], scope):
            if user is None or not plain(user, scope, *_PRODUCTS) or value not in user.inputs[:2]:
                continue
            if forecast_kernel(user, scope).wrong and _is_inner(node, user, scope):
                problem, dtype = unsupported_reason(node, scope), output_dtype(node, scope)
                if problem is not None or dtype is None:
                    return Skip(problem or "its dtype is unknown")
                return _Found(node, dtype)
        return None

    def rewrite(self, match: _Found, edit: Edit) -> Sequence[ir.Value | None]:
        """Cast, subtract and multiply; a float constant for a weight."""
        node, scope = match.node, edit.scope
        weight, found = scope.constant(node.inputs[0]), parameters(node, scope)
        if weight is None or isinstance(found, str) or match.dtype != ir.DataType.FLOAT:
            return [dequantize(edit, node, node.inputs, match.dtype)]
        scale, zero = (aligned(each, found, len(weight.shape)) for each in (found.scale, found.zero))
        assert scale is not None and zero is not None
        return [edit.constant((weight.numpy().astype(np.int32) - zero).astype(np.float32) * scale)]


def _is_inner(node: ir.Node, user: ir.Node, scope: Scope) -> bool:
    """Whether the int8 kernel of a product would apply the scales of ``node`` along another axis."""
    for index, value in enumerate(user.inputs[:2]):
        operand = trace(value, scope)
        if not isinstance(operand, Reason) and operand.dequantize is node:
            return operand.axis != kept(user, index, scope) or not operand.direct
    return False
