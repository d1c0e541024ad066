"""Compute in float32 what the runtime rejects, or computes too coarsely, in float16 and bfloat16.

    y = Op(x, …)    →    Cast<float16>(Op(Cast<float>(x), …))

ONNX Runtime's CPU kernels for 16-bit floats also compute in float32 and round once.

Skips: opsets before 6, whose Cast has another form; outputs of unknown dtype.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir

from passes.builders.arithmetic import HALVES
from passes.rewriting.base import Exactness, Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import Match, NodeContext, NodeRewrite

_OPERATORS = """
Acos Acosh Asin Asinh Atan Atanh Cos Cosh Sin Sinh Tan Tanh Exp Log Sqrt Reciprocal Erf Pow
Celu Elu Gelu HardSigmoid HardSwish LeakyRelu Mish PRelu Selu Sigmoid Softplus Softsign Swish ThresholdedRelu
ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMean ReduceProd ReduceSum ReduceSumSquare CumSum CumProd
GroupNormalization InstanceNormalization LayerNormalization LpNormalization LRN MeanVarianceNormalization
RMSNormalization LogSoftmax Softmax NegativeLogLikelihoodLoss SoftmaxCrossEntropyLoss
Det Einsum Gemm MatMul Mean Sum RNN GRU LSTM
"""
"""Operators that round, and that support float32 wherever they support 16-bit floats."""


@dataclass(frozen=True)
class _HalfMatch(Match):
    outputs: tuple[ir.DataType | None, ...]


class WidenHalfFloats(NodeRewrite[_HalfMatch]):
    """Compute in float32 for float16 and bfloat16 inputs."""

    name = "widen-half-floats"
    exactness = Exactness.ROUNDING
    operators = frozenset(("", name) for name in _OPERATORS.split())

    def match(self, node: ir.Node, context: NodeContext) -> _HalfMatch | Skip | None:
        """Match a 16-bit float among the inputs, and outputs of known dtype."""
        scope = context.scope
        if scope.opset() < 6 or not any(scope.dtype(value) in HALVES for value in node.inputs):
            return None
        outputs = tuple(scope.dtype(value) if value.name else None for value in node.outputs)
        if any(dtype is None and value.name for dtype, value in zip(outputs, node.outputs, strict=True)):
            return Skip("the dtype of its output is unknown")
        return _HalfMatch(node, outputs)

    def rewrite(self, match: _HalfMatch, edit: Edit) -> Sequence[ir.Value | None]:
        """Cast, the operator, and cast back."""
        node = match.node
        inputs = [self._widened(value, edit) for value in node.inputs]
        # an empty list is equivalent to an absent attribute
        attributes = {name: each.value for name, each in node.attributes.items() if each.value not in ([], ())}
        same = edit.node(node.op_type, inputs, attributes, outputs=len(node.outputs))
        return [
            edit.op("Cast", [value], {"to": int(dtype)}) if dtype in HALVES else value
            for value, dtype in zip(same.outputs, match.outputs, strict=True)
        ]

    @staticmethod
    def _widened(value: ir.Value | None, edit: Edit) -> ir.Value | None:
        if value is None or edit.scope.dtype(value) not in HALVES:
            return value
        return edit.op("Cast", [value], {"to": int(ir.DataType.FLOAT)})


RULES: tuple[NodeRewrite[_HalfMatch], ...] = (WidenHalfFloats(),)
