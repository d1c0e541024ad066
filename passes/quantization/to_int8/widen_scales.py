"""Give the quantization of half-precision values float32 scales.

    QuantizeLinear(x, s, z)     →  QuantizeLinear(Cast(x), Cast(s), z)       s of float16 or bfloat16
    DequantizeLinear(q, s, z)   →  Cast(DequantizeLinear(q, Cast(s), z))

Both are computed in float32 anyway and rounded once at the end, so the result is bitwise equal. But an int8 kernel
multiplies the sum of integer products, which easily exceeds 65,504, by the product of the scales, in the dtype of the
scales: in half precision it overflows.

Skips: scales that are not constant. Blocks, which no int8 kernel takes, are unchanged.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from passes.builders.arithmetic import HALVES
from passes.graphs.quantization import quantized_dtype, zero_point
from passes.operators import DEQUANTIZE, QUANTIZE, is_quantize
from passes.rewriting.base import Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import Replacement, rewrite


@rewrite(*QUANTIZE, *DEQUANTIZE)
def widen_scales(node: ir.Node, edit: Edit) -> Replacement:
    """Give the quantization of half-precision values float32 scales."""
    if edit.scope.dtype(node.inputs[1]) not in HALVES:
        return None
    scale, dtype = edit.scope.constant(node.inputs[1]), quantized_dtype(node, edit.scope)
    if scale is None:
        return Skip("the scale is not constant")
    if len(scale.shape) > 1 or dtype is None or dtype.bitwidth != 8:
        return None
    if "precision" in node.attributes:
        return Skip("the attribute precision already sets the precision of the computation")
    zero = zero_point(node)
    parameters = [edit.constant(scale.numpy().astype(np.float32)), *([] if zero is None else [zero])]
    if is_quantize(node):
        x = edit.op("Cast", [node.inputs[0]], {"to": ir.DataType.FLOAT.value})
        return edit.op(node.op_type, [x, *parameters], node.attributes, domain=node.domain)
    attributes = {name: attribute for name, attribute in node.attributes.items() if name != "output_dtype"}
    y = edit.op(node.op_type, [node.inputs[0], *parameters], attributes, domain=node.domain)
    return edit.op("Cast", [y], {"to": node.attributes.get_int("output_dtype", 0) or scale.dtype.value})
