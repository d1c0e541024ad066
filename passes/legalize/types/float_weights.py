"""Replace a dequantized weight by its numbers, where a runtime takes its zero point for that of a weight beside it.

    MatMul(x, DQ(w, s))     →  MatMul(x, v)       v = DQ(w, s), computed; likewise Gemm and Conv

A runtime that makes one product of several products of one input may do so before it looks at each one's zero point.
The weight is stored in the type of its scales from then on.

Skips: weights, scales or zero points that are not constant; scales of blocks, or of another dtype than the weight's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from passes.builders.quantize_linear import output_dtype
from passes.graphs.quantization import Array, aligned, parameters
from passes.operators import is_dequantize
from passes.rewriting.base import Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import Match, NodeContext, NodeRewrite


@dataclass(frozen=True)
class _Found(Match):
    weight: Array


class FloatWeight(NodeRewrite[_Found]):
    """Compute with a weight in floating point instead of dequantizing it."""

    name = "float-weight"
    operators = frozenset({("", "Conv"), ("", "Gemm"), ("", "MatMul")})

    def match(self, node: ir.Node, context: NodeContext) -> _Found | Skip | None:
        """Match a weight that is dequantized, all of it constant."""
        weight = node.inputs[1].producer() if node.inputs[1] is not None else None
        if weight is None or not is_dequantize(weight):
            return None
        found, integers = parameters(weight, context.scope), context.scope.constant(weight.inputs[0])
        if isinstance(found, str):
            return Skip(found)
        if integers is None:
            return Skip("its weight is not constant")
        if output_dtype(weight, context.scope) != ir.DataType.from_numpy(found.scale.dtype):
            return Skip("its weight has another dtype than its scale")
        scale, zero = (aligned(each, found, len(integers.shape)) for each in (found.scale, found.zero))
        if scale is None or zero is None:
            return Skip("its weight has scales of blocks")
        return _Found(node, (integers.numpy().astype(zero.dtype) - zero).astype(scale.dtype) * scale)

    def rewrite(self, match: _Found, edit: Edit) -> Sequence[ir.Value | None]:
        """The product with the numbers."""
        node = match.node
        operands = [node.inputs[0], edit.constant(match.weight), *node.inputs[2:]]
        return [edit.op(node.op_type, operands, dict(node.attributes))]


RULES: tuple[NodeRewrite[Any], ...] = (FloatWeight(),)
