"""Let quantization of half-precision numbers have scales of single precision.

    QuantizeLinear(x, s, z)     →  QuantizeLinear(Cast(x), Cast(s), z)       s of float16 or bfloat16
    DequantizeLinear(q, s, z)   →  Cast(DequantizeLinear(q, Cast(s), z))

Both are computed in single precision anyway and rounded once at the end, so nothing changes. But a kernel of 8 bits
multiplies the integers' sum, which easily exceeds 65,504, by the product of the scales in the dtype that these have: in
half precision it overflows.

Skips: scales that are not constant; blocks are left alone, as no kernel of 8 bits has them.
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

_HALVES = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


@dataclass(frozen=True)
class WidenScales(NodeRewrite[Match]):
    """Let quantization of half-precision numbers have scales of single precision."""

    name = "widen-scales"
    exactness = Exactness.BITWISE
    operators = frozenset((domain, name) for domain in DOMAINS for name in ("QuantizeLinear", "DequantizeLinear"))

    def match(self, node: ir.Node, context: NodeContext) -> Match | Skip | None:
        """Whether its scale is of half precision."""
        scope = context.scope
        if scope.dtype(node.inputs[1]) not in _HALVES:
            return None
        scale, dtype = scope.constant(node.inputs[1]), quantized_dtype(node, scope)
        if scale is None:
            return Skip("its scale is not constant")
        if len(scale.shape) > 1 or dtype is None or dtype.bitwidth != 8:
            return None
        if "precision" in node.attributes:
            return Skip("it says itself in which precision it is computed")
        return Match(node)

    def rewrite(self, match: Match, edit: Edit) -> Sequence[ir.Value | None]:
        """The same node between casts."""
        node = match.node
        scale = edit.scope.constant(node.inputs[1])
        assert scale is not None
        wide = edit.constant(scale.numpy().astype(np.float32))
        attributes: dict[str, Any] = dict(node.attributes)
        rest = [] if zero_point(node) is None else [zero_point(node)]
        if is_quantize(node):
            x = edit.op("Cast", [node.inputs[0]], {"to": ir.DataType.FLOAT.value})
            return [edit.op(node.op_type, [x, wide, *rest], attributes, domain=node.domain)]
        attributes.pop("output_dtype", None)
        y = edit.op(node.op_type, [node.inputs[0], wide, *rest], attributes, domain=node.domain)
        target = ir.DataType(node.attributes.get_int("output_dtype", 0) or scale.dtype.value)
        return [edit.op("Cast", [y], {"to": target.value})]
