"""Remove a QuantizeLinear that inverts the DequantizeLinear before it.

    QuantizeLinear(DequantizeLinear(q, s, z), s, z)   →  q

Quantizing a dequantized number with the same parameters gives the same integer: (q − z)·s / s differs from q − z by one
rounding, far less than half a step. A model that was quantized twice with the same parameters has such pairs.

Skips: scales that are not constant, zero, or so small or large that the product loses bits. float8 is unchanged.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from passes.graphs.quantization import parameters, quantized_dtype, same_parameters
from passes.operators import DEQUANTIZE, QUANTIZE
from passes.quantization.rewriting import producer
from passes.rewriting.base import Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import Replacement, rewrite


@rewrite(*QUANTIZE, absorbs=DEQUANTIZE)
def cancel_qdq(node: ir.Node, edit: Edit) -> Replacement:
    """Remove a QuantizeLinear that inverts the DequantizeLinear before it."""
    before = producer(node, "DequantizeLinear", edit)
    if before is None or not same_parameters(before, node, edit.scope):
        return None
    shared = parameters(node, edit.scope)
    if isinstance(shared, str):
        return Skip(shared)
    if quantized_dtype(before, edit.scope) != shared.dtype:
        return None
    scale, bits, info = shared.scale.astype(np.float64), shared.dtype.bitwidth, np.finfo(np.float32)
    if not np.isfinite(scale).all() or np.abs(scale).max(initial=0) * 2.0**bits > info.max:
        return Skip("the scale is so large that dequantized values overflow")
    if scale.min(initial=1) < info.tiny:
        return Skip("the scale is so small that dequantized values underflow")
    if bits > 16 or (shared.scale.dtype != np.float32 and bits > 8):
        return Skip(f"{shared.dtype.name} has more values than its floating-point dtype distinguishes")
    edit.absorb(before)
    return before.inputs[0]
