"""Add the zero points that QuantizeLinear and DequantizeLinear omit.

    QuantizeLinear(x, s)     →  QuantizeLinear(x, s, 0)        of uint8, or of output_dtype
    DequantizeLinear(q, s)   →  DequantizeLinear(q, s, 0)      of the dtype of q

A missing zero point is zero, so the result is bitwise equal. MIGraphX selects int8 kernels only where the zero points
are present, and aborts on a QuantizeLinear without one after Concat.

Skips: scales of unknown shape. 32-bit integers, unknown dtypes, and DequantizeLinear in blocks are unchanged: no kernel
depends on their zero points.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from passes.graphs.quantization import quantized_dtype, zero_point
from passes.operators import DEQUANTIZE, QUANTIZE, is_dequantize, is_quantize
from passes.rewriting.base import Exactness, Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import Match, NodeContext, NodeRewrite

_FLOATS = {
    ir.DataType.FLOAT8E4M3FN, ir.DataType.FLOAT8E4M3FNUZ, ir.DataType.FLOAT8E5M2, ir.DataType.FLOAT8E5M2FNUZ
}  # fmt: skip


@dataclass(frozen=True)
class _Found(Match):
    dtype: ir.DataType
    shape: tuple[int, ...]


class ExplicitZeroPoint(NodeRewrite[_Found]):
    """Add the zero points that QuantizeLinear and DequantizeLinear omit."""

    name = "explicit-zero-point"
    exactness = Exactness.BITWISE
    operators = QUANTIZE | DEQUANTIZE

    def match(self, node: ir.Node, context: NodeContext) -> _Found | Skip | None:
        """Match where there is no zero point, with its dtype and shape."""
        if zero_point(node) is not None:
            return None
        dtype, shape = quantized_dtype(node, context.scope), context.scope.shape(node.inputs[1])
        if dtype is None or not (dtype in _FLOATS or (dtype.is_integer() and dtype.bitwidth <= 16)):
            return None
        if shape is None or not shape.is_static():
            return Skip("the shape of its scale is unknown")
        dims = tuple(int(each) for each in shape.numpy())
        return _Found(node, dtype, dims) if len(dims) <= 1 or is_quantize(node) else None

    def rewrite(self, match: _Found, edit: Edit) -> Sequence[ir.Value | None]:
        """The same node with a third input."""
        node = match.node
        zero = edit.constant(ir.Tensor(np.zeros(match.shape, match.dtype.numpy()), dtype=match.dtype))
        attributes = {
            key: each for key, each in node.attributes.items() if key != "output_dtype" or is_dequantize(node)
        }
        return [edit.op(node.op_type, [*node.inputs[:2], zero], attributes, domain=node.domain)]
