"""Store weights of 4 bits in 8 where a kernel of 8 bits can take them.

    DequantizeLinear(W, s, z), W of int4 or uint4   →  DequantizeLinear(W as int8 or uint8, s, z likewise)

The numbers stay what they are. MIGraphX multiplies integers of 8 bits; those of 4 bits it unpacks and dequantizes
before a product in float, and on a zero point of 4 bits that is a single number it ends with a segmentation fault.

Skips: the weight of a matrix product whose other operand is not dequantized, with several scales: there 4 bits are of
use, as the product runs in float anyway. Blocks, which no kernel of 8 bits takes, are left alone; so is what is
computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from passes.analysis.int8_kernels import Reason, trace
from passes.analysis.quantization import DOMAINS, plain, quantized_dtype, zero_point
from passes.core.base import Exactness, Skip
from passes.core.edit import Edit
from passes.core.graphs import Scope
from passes.core.rewrite import Match, NodeContext, NodeRewrite

_WIDE = {ir.DataType.INT4: np.int8, ir.DataType.UINT4: np.uint8}
_LOOKED_THROUGH = ("Transpose", "Reshape", "Expand", "Cast", "Identity")


@dataclass(frozen=True)
class Int4ToInt8(NodeRewrite[Match]):
    """Store weights of 4 bits in 8 where a kernel of 8 bits can take them."""

    name = "int4-to-int8"
    exactness = Exactness.BITWISE
    operators = frozenset((domain, "DequantizeLinear") for domain in DOMAINS)

    def match(self, node: ir.Node, context: NodeContext) -> Match | Skip | None:
        """Whether it dequantizes a constant of 4 bits, not in blocks."""
        scope = context.scope
        if quantized_dtype(node, scope) not in _WIDE or node.attributes.get_int("block_size", 0) != 0:
            return None
        if scope.constant(node.inputs[0]) is None:
            return None
        zero, scale = zero_point(node), scope.shape(node.inputs[1])
        if zero is not None and scope.constant(zero) is None:
            return Skip("its zero point is not constant")
        if scale is None or len(scale) > 1:
            return None
        if len(scale) and _only_weights(node.outputs[0], scope):
            return Skip("it is the weight of a product whose other operand is in float")
        return Match(node)

    def rewrite(self, match: Match, edit: Edit) -> Sequence[ir.Value | None]:
        """The same node on wider integers."""
        node = match.node
        inputs = [_widened(value, edit) if index != 1 else value for index, value in enumerate(node.inputs)]
        attributes: dict[str, Any] = dict(node.attributes)
        return [edit.op(node.op_type, inputs, attributes, domain=node.domain)]


def _widened(value: ir.Value | None, edit: Edit) -> ir.Value | None:
    tensor = edit.scope.constant(value)
    return value if tensor is None else edit.constant(tensor.numpy().astype(_WIDE[tensor.dtype]))


def _only_weights(value: ir.Value, scope: Scope) -> bool:
    """Whether all that takes it are matrix products whose other operand is not dequantized."""
    pending = [value]
    while pending:
        value = pending.pop()
        if value.is_graph_output():
            return False
        for user in value.consumers():
            if plain(user, scope, *_LOOKED_THROUGH):
                pending.extend(user.outputs)
                continue
            if not plain(user, scope, "MatMul", "Gemm") or value not in user.inputs[:2]:
                return False
            other = user.inputs[1 - list(user.inputs[:2]).index(value)]
            if not isinstance(trace(other, scope), Reason):
                return False
    return True
