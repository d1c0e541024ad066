"""The rules for operators on 8-bit integers with scales; see `passes.builders.quantized_operators`."""

from __future__ import annotations

import onnx_ir as ir

from passes.builders.quantized_operators import OPERATORS, PRODUCTS, quantized_operator, quantized_product
from passes.rewriting.base import Exactness
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import Replacement, rewrite


@rewrite(*OPERATORS, exactness=Exactness.QUANTIZATION_STEP)
def dequantize_compute_quantize(node: ir.Node, edit: Edit) -> Replacement:
    """Dequantize, compute in float, and quantize."""
    return quantized_operator(node, edit)


@rewrite(*PRODUCTS, exactness=Exactness.ROUNDING)
def quantized_product_to_float(node: ir.Node, edit: Edit) -> Replacement:
    """Rewrite com.microsoft's integer products with float results as standard operators."""
    return quantized_product(node, edit)
