"""Compute in float32 what the runtime rejects, or computes too coarsely, in float16 and bfloat16.

    y = Op(x, …)    →    Cast<float16>(Op(Cast<float>(x), …))

ONNX Runtime's CPU kernels for 16-bit floats also compute in float32 and round once.

Skips: opsets before 6, whose Cast has another form; outputs of unknown dtype.
"""

from __future__ import annotations

import onnx_ir as ir

from passes.builders.arithmetic import HALVES
from passes.rewriting.base import Exactness, Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import Replacement, rewrite

_OPERATORS = """
Acos Acosh Asin Asinh Atan Atanh Cos Cosh Sin Sinh Tan Tanh Exp Log Sqrt Reciprocal Erf Pow
Celu Elu Gelu HardSigmoid HardSwish LeakyRelu Mish PRelu Selu Sigmoid Softplus Softsign Swish ThresholdedRelu
ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMean ReduceProd ReduceSum ReduceSumSquare CumSum CumProd
GroupNormalization InstanceNormalization LayerNormalization LpNormalization LRN MeanVarianceNormalization
RMSNormalization LogSoftmax Softmax NegativeLogLikelihoodLoss SoftmaxCrossEntropyLoss
Det Einsum Gemm MatMul Mean Sum RNN GRU LSTM
"""
"""Operators that round, and that support float32 wherever they support 16-bit floats."""


@rewrite(*_OPERATORS.split(), exactness=Exactness.ROUNDING)
def widen_half_floats(node: ir.Node, edit: Edit) -> Replacement:
    """Compute in float32 for float16 and bfloat16 inputs."""
    scope = edit.scope
    if not any(scope.dtype(value) in HALVES for value in node.inputs):
        return None
    if any(value.name and scope.dtype(value) is None for value in node.outputs):
        return Skip("the dtype of an output is unknown")
    inputs = [
        edit.cast(value, ir.DataType.FLOAT) if value is not None and scope.dtype(value) in HALVES else value
        for value in node.inputs
    ]
    # an empty list is equivalent to an absent attribute
    attributes = {name: each.value for name, each in node.attributes.items() if each.value not in ([], ())}
    widened = edit.node(node.op_type, inputs, attributes, outputs=len(node.outputs)).outputs
    dtypes = [scope.dtype(value) if value.name else None for value in node.outputs]
    return [
        edit.cast(value, dtype) if dtype is not None and dtype in HALVES else value
        for value, dtype in zip(widened, dtypes, strict=True)
    ]
