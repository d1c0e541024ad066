"""Multiply by the scales of a weight after the product, if a runtime takes no scale per channel for an 8-bit kernel.

    Conv(x, DQ(w, s), b)     →  Conv(x, DQ(w, 1)) · s + b        s one for each output channel; likewise Gemm and MatMul

A runtime that replaces dequantized operands by their integers may know scales of whole tensors alone. The product of
integers remains, so that it can still be one of 8 bits.

Skips: scales that are not one for each output channel; zero points other than 0; factors of Gemm.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from passes.builders.operands import given
from passes.graphs.quantization import parameters
from passes.operators import is_dequantize
from passes.rewriting.base import Exactness, Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import Replacement, rewrite


@rewrite("Conv", "Gemm", "MatMul", exactness=Exactness.ROUNDING, needs_shape=(1,))
def scale_after_product(node: ir.Node, edit: Edit) -> Replacement:
    """Dequantize a weight with a scale of 1, and multiply the product by its scales."""
    weight, rank = edit.input(node, 1).producer(), len(edit.shape(node, 1))
    if weight is None or not is_dequantize(weight):
        return None
    dequantized, is_conv = parameters(weight, edit.scope), node.op_type == "Conv"
    if isinstance(dequantized, str):
        return Skip(dequantized)
    if dequantized.per_tensor:
        return None
    scale = dequantized.scale
    axis = 0 if is_conv or node.attributes.get_int("transB", 0) == 1 else rank - 1
    if scale.ndim != 1 or dequantized.block or dequantized.axis % rank != axis:
        return Skip("the weight does not have one scale for each output channel")
    if dequantized.zero.any():
        return Skip("the weight has a zero point other than 0")
    if any(node.attributes.get_float(name, 1.0) != 1 for name in ("alpha", "beta")):
        return Skip("the product is multiplied by alpha or beta")
    one, zero = np.ones((), scale.dtype), ir.Tensor(np.zeros((), dequantized.dtype.numpy()))
    integers = edit.op("DequantizeLinear", [weight.inputs[0], edit.constant(one), edit.constant(zero)])
    product = edit.op(node.op_type, [node.inputs[0], integers], dict(node.attributes))
    shape = (1, -1, *[1] * (rank - 2)) if is_conv else (-1,)
    scaled, bias = edit.op("Mul", [product, edit.constant(scale.reshape(shape))]), given(node, 2)
    if bias is None:
        return scaled
    return edit.op("Add", [scaled, edit.reshape(bias, shape) if is_conv else bias])
