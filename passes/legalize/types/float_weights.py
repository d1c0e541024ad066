"""Replace a dequantized weight by its numbers, if a runtime takes its zero point for that of a weight beside it.

    MatMul(x, DQ(w, s))     →  MatMul(x, v)       v = DQ(w, s), computed; likewise Gemm and Conv

A runtime that makes one product of several products of one input may do so before it looks at each one's zero point.
The weight is stored in the type of its scales from then on.

Skips: weights, scales or zero points that are not constant; scales of blocks, or of another dtype than the weight's.
"""

from __future__ import annotations

import onnx_ir as ir

from passes.builders.quantize_linear import output_dtype
from passes.graphs.quantization import aligned, parameters
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
    dequantized, integers = parameters(weight, edit.scope), edit.scope.constant(weight.inputs[0])
    if isinstance(dequantized, str):
        return Skip(dequantized)
    if integers is None:
        return Skip("the weight is not constant")
    if output_dtype(weight, edit.scope) != ir.DataType.from_numpy(dequantized.scale.dtype):
        return Skip("the weight has another dtype than its scale")
    scale, zero = (aligned(array, dequantized, len(integers.shape)) for array in (dequantized.scale, dequantized.zero))
    if scale is None or zero is None:
        return Skip("the weight has scales of blocks")
    numbers = (integers.numpy().astype(zero.dtype) - zero).astype(scale.dtype) * scale
    return edit.op(node.op_type, [node.inputs[0], edit.constant(numbers), *node.inputs[2:]], dict(node.attributes))
