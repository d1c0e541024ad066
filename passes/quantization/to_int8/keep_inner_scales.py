"""Dequantize by arithmetic where a product sums over the axis of the scales.

    MatMul(x, DQ(W, s, z)), s along the summed axis   →  MatMul(x, (Cast(W) − z)·s)      likewise Conv and Gemm

Such scales cannot be taken out of the sum, so no kernel of 8 bits can compute the product. MIGraphX, which goes by the
number of scales alone, makes one nevertheless where the matrix is square, and its numbers are wrong. Written as
arithmetic, the product stays in float; weights become constants in float.

Skips: shapes that are unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from passes.analysis.int8_kernels import Reason, forecast_kernel, kept, trace
from passes.analysis.quantization import DOMAINS, aligned, infer_quantized, parameters, plain
from passes.build.quantize_linear import dequantize, output_dtype, unsupported_reason
from passes.core.base import Context, Exactness, Result, Skip
from passes.core.edit import Edit
from passes.core.graphs import Scope
from passes.core.rewrite import Match, NodeContext, NodeRewrite

_PRODUCTS = ("Conv", "Gemm", "MatMul")
_LOOKED_THROUGH = ("Transpose", "Reshape", "Expand", "Cast", "Identity")


@dataclass(frozen=True)
class _Found(Match):
    dtype: ir.DataType


@dataclass(frozen=True)
class KeepInnerScales(NodeRewrite[_Found]):
    """Dequantize by arithmetic where a product sums over the axis of the scales."""

    name = "keep-inner-scales"
    exactness = Exactness.BITWISE
    operators = frozenset((domain, "DequantizeLinear") for domain in DOMAINS)

    def run(self, model: ir.Model, context: Context) -> Result:
        """Axes want ranks."""
        infer_quantized(model)
        return super().run(model, context)

    def match(self, node: ir.Node, context: NodeContext) -> _Found | Skip | None:
        """Whether a product would take its scales for those of another axis."""
        scope = context.scope
        shape = scope.shape(node.inputs[1])
        if shape is None or len(shape) != 1 or shape[0] == 1:
            return None
        pending = [node.outputs[0]]
        while pending:
            value = pending.pop()
            for user in value.consumers():
                if plain(user, scope, *_LOOKED_THROUGH):
                    pending.extend(user.outputs)
                    continue
                if not plain(user, scope, *_PRODUCTS) or value not in user.inputs[:2]:
                    continue
                if forecast_kernel(user, scope).wrong and _is_inner(node, user, scope):
                    problem, dtype = unsupported_reason(node, scope), output_dtype(node, scope)
                    if problem is not None or dtype is None:
                        return Skip(problem or "its dtype is unknown")
                    return _Found(node, dtype)
        return None

    def rewrite(self, match: _Found, edit: Edit) -> Sequence[ir.Value | None]:
        """Cast, subtract, multiply; a weight right away."""
        node, scope = match.node, edit.scope
        weight, found = scope.constant(node.inputs[0]), parameters(node, scope)
        if weight is None or isinstance(found, str) or match.dtype != ir.DataType.FLOAT:
            return [dequantize(edit, node, node.inputs, match.dtype)]
        scale, zero = (aligned(each, found, len(weight.shape)) for each in (found.scale, found.zero))
        assert scale is not None and zero is not None
        return [edit.constant((weight.numpy().astype(np.int32) - zero).astype(np.float32) * scale)]


def _is_inner(node: ir.Node, user: ir.Node, scope: Scope) -> bool:
    """Whether a product takes the scales of ``node`` for those of another axis."""
    for index, value in enumerate(user.inputs[:2]):
        operand = trace(value, scope)
        if not isinstance(operand, Reason) and operand.dequantize is node:
            return operand.axis != kept(user, index, scope) or not operand.direct
    return False
