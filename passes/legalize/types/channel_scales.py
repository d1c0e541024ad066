"""Multiply by the scales of a weight after the product, where a runtime takes no scale per channel for an 8-bit kernel.

    Conv(x, DQ(w, s), b)     →  Conv(x, DQ(w, 1)) · s + b        s one for each output channel; likewise Gemm and MatMul

A runtime that replaces dequantized operands by their integers may know scales of whole tensors alone. The product of
integers remains, so that it can still be one of 8 bits.

Skips: scales that are not one for each output channel; zero points other than 0; factors of Gemm.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from passes.builders.operands import given
from passes.graphs.quantization import Parameters, parameters
from passes.operators import is_dequantize
from passes.rewriting.base import Exactness, Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import Match, NodeContext, NodeRewrite


@dataclass(frozen=True)
class _Found(Match):
    weight: ir.Node
    parameters: Parameters
    rank: int


class ScaleAfterProduct(NodeRewrite[_Found]):
    """Dequantize a weight with a scale of 1, and multiply the product by its scales."""

    name = "scale-after-product"
    exactness = Exactness.ROUNDING
    operators = frozenset({("", "Conv"), ("", "Gemm"), ("", "MatMul")})
    needs_shape = (1,)

    def match(self, node: ir.Node, context: NodeContext) -> _Found | Skip | None:
        """Match a weight that is dequantized with a scale for each output channel."""
        assert node.inputs[1] is not None
        weight, rank = node.inputs[1].producer(), len(context.shape(node, 1))
        if weight is None or not is_dequantize(weight):
            return None
        found = parameters(weight, context.scope)
        if isinstance(found, str):
            return Skip(found)
        if found.per_tensor:
            return None
        by_rows = node.op_type == "Conv" or node.attributes.get_int("transB", 0) == 1
        axis = 0 if by_rows else rank - 1
        if found.scale.ndim != 1 or found.block or found.axis % rank != axis:
            return Skip("its weight does not have one scale for each output channel")
        if found.zero.any():
            return Skip("its weight has a zero point other than 0")
        if any(node.attributes.get_float(name, 1.0) != 1 for name in ("alpha", "beta")):
            return Skip("it multiplies by alpha or beta")
        return _Found(node, weight, found, rank)

    def rewrite(self, match: _Found, edit: Edit) -> Sequence[ir.Value | None]:
        """The product of the integers, times the scales, plus the bias."""
        node, weight, scale = match.node, match.weight, match.parameters.scale
        one, zero = np.ones((), scale.dtype), ir.Tensor(np.zeros((), match.parameters.dtype.numpy()))
        integers = edit.op("DequantizeLinear", [weight.inputs[0], edit.constant(one), edit.constant(zero)])
        product = edit.op(node.op_type, [node.inputs[0], integers], dict(node.attributes))
        shape = (1, -1, *[1] * (match.rank - 2)) if node.op_type == "Conv" else (-1,)
        scaled, bias = edit.op("Mul", [product, edit.constant(scale.reshape(shape))]), given(node, 2)
        if bias is None:
            return [scaled]
        if node.op_type == "Conv":
            bias = edit.op("Reshape", [bias, edit.constant(np.array(shape, np.int64))])
        return [edit.op("Add", [scaled, bias])]


RULES: tuple[NodeRewrite[Any], ...] = (ScaleAfterProduct(),)
