"""Write operators on 8-bit integers as float operators between DequantizeLinear and QuantizeLinear.

    QLinearConv(x, w, b)   →  QuantizeLinear(Conv(DequantizeLinear(x), DequantizeLinear(w), b·s_x·s_w))

Likewise QLinearMatMul and com.microsoft's QLinearAdd, QLinearMul, QGemm and others.
`passes.builders.quantized_operators`
has the algebra; this pass applies it whether or not the runtime supports the operator, since the passes for int8
kernels and saturation match QuantizeLinear and DequantizeLinear only. Results may differ by one quantization step where
the integer operator rounds differently.

Skips: unknown shapes and dtypes; scales along an axis before opset 13.
"""

from __future__ import annotations

import onnx_ir as ir

from passes.builders.quantized_operators import QuantizedOperator, QuantizedProductToFloat
from passes.rewriting.base import Context, Exactness, Pass, Result
from passes.rewriting.fixpoint import run_to_fixpoint


class _Operators(QuantizedOperator):
    name = "qoperator-to-qdq"


class _Products(QuantizedProductToFloat):
    name = "qoperator-to-qdq"


_STEPS = (_Operators(), _Products())


class QOperatorToQdq(Pass):
    """Write operators on integers as float operators between DequantizeLinear and QuantizeLinear."""

    name = "qoperator-to-qdq"
    exactness = Exactness.QUANTIZATION_STEP

    def run(self, model: ir.Model, context: Context) -> Result:
        """Rewrite to a fixpoint: ONNX does not infer most of these operators, so each round makes more shapes known."""
        return run_to_fixpoint(_STEPS, model, context)
