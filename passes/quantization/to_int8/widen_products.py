"""Multiply dequantized values in float32 where a product takes them in half precision.

    MatMul(Cast(DQ(a) → half), Cast(DQ(b) → half))   →  Cast(MatMul(DQ(a), DQ(b)) → half)     likewise Conv and Gemm

`passes.quantization.to_int8.widen_scales` writes quantization with half-precision scales in this form. Where a runtime
does not round these casts as ONNX requires, the casts are replaced by arithmetic, and no int8 kernel matches through
arithmetic. The integer product itself is exact either way: the result is rounded once, instead of both operands before
it, so that it moves by the rounding of half precision (2⁻¹¹ of each term).

The transposes and reshapes between are copied. Skips: Gemm with alpha other than 1, which no int8 kernel has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from passes.graphs.quantization import plain
from passes.graphs.scopes import Scope
from passes.operators import is_dequantize
from passes.quantization.rewriting import InferredRewrite
from passes.rewriting.base import Exactness, Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import Match, NodeContext

_HALVES = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
_MOVING = ("Transpose", "Reshape", "Identity")


@dataclass(frozen=True)
class _Found(Match):
    dtype: ir.DataType
    chains: tuple[tuple[ir.Node, ...], tuple[ir.Node, ...]]


class WidenProducts(InferredRewrite[_Found]):
    """Multiply dequantized values in float32 where a product takes them in half precision."""

    name = "widen-products"
    exactness = Exactness.ROUNDING
    operators = frozenset({("", "Conv"), ("", "Gemm"), ("", "MatMul")})

    def match(self, node: ir.Node, context: NodeContext) -> _Found | Skip | None:
        """Match where both operands are dequantized to float32 and cast to half precision."""
        scope = context.scope
        dtype = scope.dtype(node.outputs[0]) or scope.dtype(node.inputs[0])
        if dtype not in _HALVES:
            return None
        left, right = (_chain(value, scope) for value in node.inputs[:2])
        if left is None or right is None:
            return None
        if node.op_type == "Gemm" and node.attributes.get_float("alpha", 1.0) != 1.0:
            return Skip("alpha is not 1")
        return _Found(node, dtype, (left, right))

    def rewrite(self, match: _Found, edit: Edit) -> Sequence[ir.Value | None]:
        """The same product on the float32 operands, and its result cast."""
        inputs: list[ir.Value | None] = []
        for chain in match.chains:
            value = chain[-1].inputs[0]
            for node in reversed(chain[:-1]):
                value = edit.op(node.op_type, [value, *node.inputs[1:]], node.attributes)
            inputs.append(value)
        inputs += [_widened(bias, edit) for bias in match.node.inputs[2:]]
        product = edit.op(match.node.op_type, inputs, match.node.attributes)
        return [edit.op("Cast", [product], {"to": match.dtype.value})]


def _widened(value: ir.Value | None, edit: Edit) -> ir.Value | None:
    """A bias in float32."""
    tensor = edit.scope.constant(value)
    if tensor is not None:
        return edit.constant(tensor.numpy().astype(np.float32))
    return None if value is None else edit.op("Cast", [value], {"to": ir.DataType.FLOAT.value})


def _chain(value: ir.Value | None, scope: Scope) -> tuple[ir.Node, ...] | None:
    """The nodes from an operand back to the Cast of a float32 dequantized value; None where there is none."""
    found: list[ir.Node] = []
    while value is not None and (node := value.producer()) is not None:
        found.append(node)
        if plain(node, scope, "Cast"):
            before = node.inputs[0]
            made = before is not None and is_dequantize(before.producer())
            return tuple(found) if made and scope.dtype(before) == ir.DataType.FLOAT else None
        if not plain(node, scope, *_MOVING):
            return None
        value = node.inputs[0]
    return None
