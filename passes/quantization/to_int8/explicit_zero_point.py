"""Write out the zero points that quantization leaves out.

    QuantizeLinear(x, s)     →  QuantizeLinear(x, s, 0)        of uint8, or as output_dtype says
    DequantizeLinear(q, s)   →  DequantizeLinear(q, s, 0)      of the dtype of q

Zero is what is left out, so nothing changes. MIGraphX makes kernels of 8 bits only where the zero points are there, and
aborts at a QuantizeLinear after Concat that has none.

Skips: scales of unknown shape. 32 bits, dtypes that are not known, and DequantizeLinear in blocks are left alone: no
kernel depends on their zero points.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from passes.analysis.quantization import DOMAINS, is_quantize, quantized_dtype, zero_point
from passes.core.base import Exactness, Skip
from passes.core.edit import Edit
from passes.core.rewrite import Match, NodeContext, NodeRewrite

_FLOATS = {
    ir.DataType.FLOAT8E4M3FN, ir.DataType.FLOAT8E4M3FNUZ, ir.DataType.FLOAT8E5M2, ir.DataType.FLOAT8E5M2FNUZ
}  # fmt: skip


@dataclass(frozen=True)
class _Found(Match):
    dtype: ir.DataType
    shape: tuple[int, ...]


@dataclass(frozen=True)
class ExplicitZeroPoint(NodeRewrite[_Found]):
    """Write out the zero points that quantization leaves out."""

    name = "explicit-zero-point"
    exactness = Exactness.BITWISE
    operators = frozenset((domain, name) for domain in DOMAINS for name in ("QuantizeLinear", "DequantizeLinear"))

    def match(self, node: ir.Node, context: NodeContext) -> _Found | Skip | None:
        """Whether it has none, and what it would be."""
        if zero_point(node) is not None:
            return None
        dtype, shape = quantized_dtype(node, context.scope), context.scope.shape(node.inputs[1])
        if dtype is None or not (dtype in _FLOATS or (dtype.is_integer() and dtype.bitwidth <= 16)):
            return None
        if shape is None or not shape.is_static():
            return Skip("the shape of its scale is not known")
        dims = tuple(int(each) for each in shape.numpy())
        return _Found(node, dtype, dims) if len(dims) <= 1 or is_quantize(node) else None

    def rewrite(self, match: _Found, edit: Edit) -> Sequence[ir.Value | None]:
        """The same node with a third input."""
        node = match.node
        zero = edit.constant(ir.Tensor(np.zeros(match.shape, match.dtype.numpy()), dtype=match.dtype))
        attributes: dict[str, Any] = dict(node.attributes)
        if is_quantize(node):
            attributes.pop("output_dtype", None)
        return [edit.op(node.op_type, [*node.inputs[:2], zero], attributes, domain=node.domain)]
