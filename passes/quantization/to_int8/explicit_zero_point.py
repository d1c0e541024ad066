"""Add the zero points that QuantizeLinear and DequantizeLinear omit.

    QuantizeLinear(x, s)     →  QuantizeLinear(x, s, 0)        of uint8, or of output_dtype
    DequantizeLinear(q, s)   →  DequantizeLinear(q, s, 0)      of the dtype of q

A missing zero point is zero, so the result is bitwise equal. MIGraphX selects int8 kernels only if the zero points
are present, and aborts on a QuantizeLinear without one after Concat.

Skips: scales of unknown shape. 32-bit integers, unknown dtypes, and DequantizeLinear in blocks are unchanged: no kernel
depends on their zero points.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from passes.graphs.quantization import quantized_dtype, zero_point
from passes.operators import DEQUANTIZE, QUANTIZE, is_dequantize, is_quantize
from passes.rewriting.base import Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import Replacement, rewrite

_FLOATS = {
    ir.DataType.FLOAT8E4M3FN, ir.DataType.FLOAT8E4M3FNUZ, ir.DataType.FLOAT8E5M2, ir.DataType.FLOAT8E5M2FNUZ
}  # fmt: skip


@rewrite(*QUANTIZE, *DEQUANTIZE)
def explicit_zero_point(node: ir.Node, edit: Edit) -> Replacement:
    """Add the zero points that QuantizeLinear and DequantizeLinear omit."""
    if zero_point(node) is not None:
        return None
    dtype, shape = quantized_dtype(node, edit.scope), edit.scope.shape(node.inputs[1])
    if dtype is None or not (dtype in _FLOATS or (dtype.is_integer() and dtype.bitwidth <= 16)):
        return None
    if shape is None or not shape.is_static():
        return Skip("the shape of the scale is unknown")
    if len(shape) > 1 and is_dequantize(node):
        return None
    zero = edit.constant(ir.Tensor(np.zeros(shape.numpy(), dtype.numpy()), dtype=dtype))
    attributes = dict(node.attributes)
    if is_quantize(node):
        attributes.pop("output_dtype", None)
    return edit.op(node.op_type, [*node.inputs[:2], zero], attributes, domain=node.domain)
