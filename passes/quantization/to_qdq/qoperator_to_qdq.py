"""Write operators on integers of 8 bits as operators in float between DequantizeLinear and QuantizeLinear.

    QLinearConv(x, w, b)   →  QuantizeLinear(Conv(DequantizeLinear(x), DequantizeLinear(w), b·s_x·s_w))

Likewise QLinearMatMul and com.microsoft's QLinearAdd, QLinearMul, QGemm and the rest of them: it is the algebra of
`passes.build.quantized_operators`, applied whether or not the runtime takes the operator. The passes that make
kernels of 8 bits, and keep saturation, know this form only. Results may differ by one step where the integers would
have been rounded another way.

Skips: unknown shapes and dtypes; scales along an axis before opset 13.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from passes.build.quantized_operators import QuantizedOperator, QuantizedProductToFloat
from passes.core.base import Context, Exactness, Pass, Result
from passes.core.fixpoint import run_in_rounds


class _Operators(QuantizedOperator):
    name = "qoperator-to-qdq"


class _Products(QuantizedProductToFloat):
    name = "qoperator-to-qdq"


_STEPS = (_Operators(), _Products())


@dataclass(frozen=True)
class QOperatorToQdq(Pass):
    """Write operators on integers as operators in float between DequantizeLinear and QuantizeLinear."""

    name = "qoperator-to-qdq"
    exactness = Exactness.QUANTIZATION_STEP

    def run(self, model: ir.Model, context: Context) -> Result:
        """Each round lets shapes be known for the next: inference does not know most of these operators."""
        return run_in_rounds(_STEPS, model, context)
