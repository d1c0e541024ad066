"""Rewrite QuantizeLinear and DequantizeLinear that a runtime rejects, or saturates wrongly, as arithmetic.

    com.microsoft.QuantizeLinear, com.microsoft.DequantizeLinear  →  the standard's operators
    QuantizeLinear, DequantizeLinear                              →  arithmetic (`passes.builders.quantize_linear`)

The com.microsoft operators had 16-bit integers before the standard did.

Skips: unknown shapes or dtypes; a float8e8m0 scale without an explicit output dtype.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from passes.builders.operands import given
from passes.builders.quantize_linear import dequantize, output_dtype, quantize, unsupported_reason
from passes.builders.small_dtypes import SMALL, as_carrier
from passes.rewriting.base import Exactness, Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import Match, NodeContext, NodeRewrite

_SINCE_OPSET_21 = {ir.DataType.INT16, ir.DataType.UINT16, ir.DataType.INT4, ir.DataType.UINT4}


@dataclass(frozen=True)
class _QuantizationMatch(Match):
    target: ir.DataType


class StandardQuantization(NodeRewrite[Match]):
    """Write QuantizeLinear and DequantizeLinear of com.microsoft as the standard's."""

    name = "standard-quantization"
    exactness = Exactness.BITWISE
    operators = frozenset({("com.microsoft", "QuantizeLinear"), ("com.microsoft", "DequantizeLinear")})

    def match(self, node: ir.Node, context: NodeContext) -> Match | Skip | None:
        """Match if the standard's operator supports the dtype at the model's opset."""
        quantized = given(node, 2) if node.op_type == "QuantizeLinear" else node.inputs[0]
        dtype = context.scope.dtype(quantized) if quantized is not None else ir.DataType.UINT8
        if dtype is None:
            return Skip("its quantized dtype is unknown")
        since = 21 if dtype in _SINCE_OPSET_21 or "block_size" in node.attributes else 13
        if context.scope.opset() < since:
            return Skip(f"the standard operator supports this since opset {since}: run convert-opset first")
        return Match(node)

    def rewrite(self, match: Match, edit: Edit) -> Sequence[ir.Value]:
        """The same node in the standard's domain."""
        attributes: dict[str, Any] = dict(match.node.attributes)
        return [edit.op(match.node.op_type, match.node.inputs, attributes)]


class _ByArithmetic(NodeRewrite[_QuantizationMatch]):
    def match(self, node: ir.Node, context: NodeContext) -> _QuantizationMatch | Skip | None:
        """Match if shapes and dtypes are known."""
        problem = unsupported_reason(node, context.scope)
        if problem is not None:
            return Skip(problem)
        target = output_dtype(node, context.scope)
        assert target is not None
        return _QuantizationMatch(node, target)


class QuantizeByArithmetic(_ByArithmetic):
    """Divide, round, shift, clip and cast instead of QuantizeLinear."""

    name = "quantize-by-arithmetic"
    exactness = Exactness.BITWISE
    operators = frozenset({("", "QuantizeLinear"), ("com.microsoft", "QuantizeLinear")})

    def rewrite(self, match: _QuantizationMatch, edit: Edit) -> Sequence[ir.Value]:
        """The arithmetic in the carrier dtype, then a value-preserving Cast to a small dtype."""
        y = quantize(edit, match.node, [_in_carrier(edit, each) for each in match.node.inputs], match.target)
        return [edit.cast(y, match.target)]


class DequantizeByArithmetic(_ByArithmetic):
    """Cast, shift and multiply instead of DequantizeLinear."""

    name = "dequantize-by-arithmetic"
    exactness = Exactness.BITWISE
    operators = frozenset({("", "DequantizeLinear"), ("com.microsoft", "DequantizeLinear")})

    def rewrite(self, match: _QuantizationMatch, edit: Edit) -> Sequence[ir.Value]:
        return [dequantize(edit, match.node, [_in_carrier(edit, each) for each in match.node.inputs], match.target)]


def _in_carrier(edit: Edit, value: ir.Value | None) -> ir.Value | None:
    """A constant of a small dtype in its carrier; any other value unchanged."""
    tensor = edit.scope.constant(value)
    return value if tensor is None or tensor.dtype not in SMALL else edit.constant(as_carrier(tensor))


RULES: tuple[NodeRewrite[Any], ...] = (StandardQuantization(), QuantizeByArithmetic(), DequantizeByArithmetic())
