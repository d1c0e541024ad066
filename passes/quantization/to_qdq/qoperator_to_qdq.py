"""Write operators on 8-bit integers as float operators between DequantizeLinear and QuantizeLinear.

    QLinearConv(x, w, b)   →  QuantizeLinear(Conv(DequantizeLinear(x), DequantizeLinear(w), b·s_x·s_w))

QLinearMatMul and com.microsoft's QLinearAdd, QLinearMul, QGemm and others are written in the same way;
`passes.builders.quantized_operators` has the algebra. This pass applies it whether or not the runtime supports the
operator, since the passes for int8 kernels and saturation match QuantizeLinear and DequantizeLinear only. Results may
differ by one quantization step if the integer operator rounds differently.

Skips: unknown shapes and dtypes; scales along an axis before opset 13.
"""

from __future__ import annotations

import onnx_ir as ir

from passes.builders.quantized_operators import OPERATORS, PRODUCTS, quantized_operator, quantized_product
from passes.rewriting.base import Exactness
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import Replacement, rewrite


@rewrite(
    *(*OPERATORS, *PRODUCTS),
    exactness=Exactness.QUANTIZATION_STEP,
    inferred_for=(*OPERATORS, *PRODUCTS),
    repeats=True,
)
def qoperator_to_qdq(node: ir.Node, edit: Edit) -> Replacement:
    """Write operators on integers as float operators between DequantizeLinear and QuantizeLinear."""
    is_product = f"{node.domain}.{node.op_type}" in PRODUCTS
    return quantized_product(node, edit) if is_product else quantized_operator(node, edit)
