"""Give the quantization of half-precision values float32 scales.

    QuantizeLinear(x, s, z)     →  QuantizeLinear(Cast(x), Cast(s), z)       s of float16 or bfloat16
    DequantizeLinear(q, s, z)   →  Cast(DequantizeLinear(q, Cast(s), z))

Both are computed in float32 anyway and rounded once at the end, so the result is bitwise equal. But an int8 kernel
multiplies the sum of integer products, which easily exceeds 65,504, by the product of the scales, in the dtype of the
scales: in half precision it overflows.

Skips: scales that are not constant. Blocks, which no int8 kernel takes, are unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from passes.graphs.quantization import quantized_dtype, zero_point
from passes.operators import DEQUANTIZE, QUANTIZE, is_quantize
from passes.rewriting.base import Exactness, Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import Match, NodeContext, NodeRewrite

_HALVES = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


class WidenScales(NodeRewrite[Match]):
    """Give the quantization of half-precision values float32 scales."""

    name = "widen-scales"
    exactness = Exactness.BITWISE
    operators = QUANTIZE | DEQUANTIZE

    def match(self, node: ir.Node, context: NodeContext) -> Match | Skip | None:
        """Match a half-precision scale of 8-bit integers."""
        scope = context.scope
        if scope.dtype(node.inputs[1]) not in _HALVES:
            return None
        scale, dtype = scope.constant(node.inputs[1]), quantized_dtype(node, scope)
        if scale is None:
            return Skip("its scale is not constant")
        if len(scale.shape) > 1 or dtype is None or dtype.bitwidth != 8:
            return None
        if "precision" in node.attributes:
            return Skip("its attribute precision already sets the precision of the computation")
        return Match(node)

    def rewrite(self, match: Match, edit: Edit) -> Sequence[ir.Value | None]:
        """The same node on float32, with casts."""
        node = match.node
        scale = edit.scope.constant(node.inputs[1])
        assert scale is not None
        wide = edit.constant(scale.numpy().astype(np.float32))
        rest = [] if zero_point(node) is None else [zero_point(node)]
        if is_quantize(node):
            x = edit.op("Cast", [node.inputs[0]], {"to": ir.DataType.FLOAT.value})
            return [edit.op(node.op_type, [x, wide, *rest], node.attributes, domain=node.domain)]
        attributes = {name: each for name, each in node.attributes.items() if name != "output_dtype"}
        y = edit.op(node.op_type, [node.inputs[0], wide, *rest], attributes, domain=node.domain)
        target = ir.DataType(node.attributes.get_int("output_dtype", 0) or scale.dtype.value)
        return [edit.op("Cast", [y], {"to": target.value})]
