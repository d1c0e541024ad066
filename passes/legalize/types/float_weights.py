"""Replace a dequantized weight by its numbers, which a runtime multiplies although it fails with the weight as it is.

    MatMul(x, DQ(w, s))     →  MatMul(x, v)       v = DQ(w, s), computed; likewise Gemm and Conv

A runtime that makes one product of several products of one input may do so before it looks at each one's zero point;
or it may have no kernel for convolutions of a float8. The weight is stored in the type that is multiplied from then on.

Skips: weights, scales or zero points that are not constant.
"""

from __future__ import annotations

import onnx_ir as ir

from passes.evaluation.constant_session import EvaluationError
from passes.evaluation.evaluation import evaluate
from passes.operators import is_dequantize
from passes.rewriting.base import Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import Replacement, rewrite


@rewrite("Conv", "Gemm", "MatMul")
def float_weight(node: ir.Node, edit: Edit) -> Replacement:
    """Compute with a weight in floating point instead of dequantizing it."""
    weight = edit.input(node, 1).producer()
    if weight is None or not is_dequantize(weight):
        return None
    given = {value: edit.scope.constant(value) for value in weight.inputs if value is not None}
    constants = {value: tensor for value, tensor in given.items() if tensor is not None}
    if len(constants) < len(given):
        return Skip("the weight, its scale or its zero point is not constant")
    try:
        (numbers,) = evaluate([weight], constants, weight.outputs, edit.scope)
    except EvaluationError as error:
        return Skip(f"the weight cannot be computed: {error}")
    return edit.op(node.op_type, [node.inputs[0], edit.constant(numbers), *node.inputs[2:]], dict(node.attributes))
