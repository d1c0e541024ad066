"""Remove a QuantizeLinear that inverts the DequantizeLinear before it.

    QuantizeLinear(DequantizeLinear(q, s, z), s, z)   →  q

Quantizing a dequantized number with the same parameters gives the same integer: (q − z)·s / s differs from q − z by one
rounding, far less than half a step. A model that was quantized twice with the same parameters has such pairs.

Skips: scales that are not constant, zero, or so small or large that the product loses bits. float8 is unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from passes.graphs.quantization import parameters, quantized_dtype, same_parameters
from passes.operators import DEQUANTIZE, QUANTIZE
from passes.quantization.rewriting import producer
from passes.rewriting.base import Exactness, Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import Match, NodeContext, NodeRewrite


class CancelQdq(NodeRewrite[Match]):
    """Remove a QuantizeLinear that inverts the DequantizeLinear before it."""

    name = "cancel-qdq"
    exactness = Exactness.BITWISE
    operators = QUANTIZE
    absorbs = DEQUANTIZE

    def match(self, node: ir.Node, context: NodeContext) -> Match | Skip | None:
        """Match a DequantizeLinear with the same parameters before it."""
        scope, before = context.scope, producer(node, "DequantizeLinear", context)
        if before is None or not same_parameters(before, node, scope):
            return None
        found = parameters(node, scope)
        if isinstance(found, str):
            return Skip(found)
        if quantized_dtype(before, scope) != found.dtype:
            return None
        largest = np.abs(found.scale.astype(np.float64)).max(initial=0) * 2.0**found.dtype.bitwidth
        info = np.finfo(np.float32)
        if not np.isfinite(found.scale.astype(np.float64)).all() or largest > info.max:
            return Skip("its scale is so large that dequantized values overflow")
        if found.scale.astype(np.float64).min(initial=1) < info.tiny:
            return Skip("its scale is so small that dequantized values underflow")
        if found.dtype.bitwidth > 16 or (found.scale.dtype != np.float32 and found.dtype.bitwidth > 8):
            return Skip(f"{found.dtype.name} has more values than its floating-point dtype distinguishes")
        return Match(node, absorbed=(before,))

    def rewrite(self, match: Match, edit: Edit) -> Sequence[ir.Value | None]:
        """The integers before the pair."""
        return [match.absorbed[0].inputs[0]]
