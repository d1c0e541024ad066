"""Write com.microsoft's convolutions and pooling of channels-last tensors with the channels where ONNX has them.

    NhwcConv(x, w, b)          →  Conv(x', w', b)'                      w is (out, kernel, in), as it is written
    NhwcFusedConv(x, w, b, z)  →  activation(Conv(x', w, b) + z')'      w is (out, in, kernel)
    NhwcMaxPool(x)             →  MaxPool(x')'

where ' moves the channels to or from the second axis. Transpositions that meet are merged afterwards.

Skips: an unknown rank; weights of another layout; activations that are none of ONNX Runtime's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from passes.build.arithmetic import Arithmetic
from passes.build.operands import UNKNOWN_SHAPE, given, sizes_of
from passes.core.base import Exactness, Skip
from passes.core.edit import Edit
from passes.core.matching import is_plain
from passes.core.rewrite import Match, NodeContext, NodeRewrite
from passes.legalize.contrib.fused import ACTIVATIONS, activate, own_attributes

_DOMAIN = "com.microsoft"


@dataclass(frozen=True)
class _Found(Match):
    rank: int
    dtype: ir.DataType


@dataclass(frozen=True)
class MoveChannels(NodeRewrite[_Found]):
    """Let a channels-last convolution or pooling be one of ONNX, between two transpositions."""

    name = "move-channels"
    exactness = Exactness.ROUNDING
    operators = frozenset((_DOMAIN, name) for name in ("NhwcConv", "NhwcFusedConv", "NhwcMaxPool"))

    def match(self, node: ir.Node, context: NodeContext) -> _Found | Skip | None:
        """Whether the rank, and the layout of the weights, are known."""
        scope = context.scope
        if not is_plain(node, scope):
            return None
        x, dtype = sizes_of(node.inputs[0], scope), scope.dtype(node.inputs[0])
        if x is None or dtype is None:
            return Skip(UNKNOWN_SHAPE)
        if node.op_type == "NhwcConv":
            weights = sizes_of(node.inputs[1], scope)
            if weights is None:
                return Skip(UNKNOWN_SHAPE)
            if weights[-1] * node.attributes.get_int("group", 1) != x[-1]:
                return Skip(f"its weights {weights} do not have their last axis for the channels of {x}")
        activation = node.attributes.get_string("activation", "")
        if activation and activation not in ACTIVATIONS:
            return Skip(f"its activation {activation} is not known")
        return _Found(node, len(x), dtype)

    def rewrite(self, match: _Found, edit: Edit) -> Sequence[ir.Value | None]:
        """Transpose, compute, transpose back."""
        node, a = match.node, Arithmetic(edit, match.dtype)
        inward = [0, match.rank - 1, *range(1, match.rank - 1)]
        inputs = list(node.inputs[:3])
        inputs[0] = a("Transpose", inputs[0], perm=inward)
        if node.op_type == "NhwcConv":
            inputs[1] = a("Transpose", inputs[1], perm=inward)
        while inputs[-1] is None:
            inputs.pop()
        operator = node.op_type.removeprefix("Nhwc").removeprefix("Fused")
        result = edit.op(operator, inputs, own_attributes(node))
        if (other := given(node, 3)) is not None:
            result = a("Add", result, a("Transpose", other, perm=inward))
        parameters = list(node.attributes.get_floats("activation_params", []))
        result = activate(a, node.attributes.get_string("activation", ""), result, parameters)
        return [a("Transpose", result, perm=[0, *range(2, match.rank), 1])]


RULES: tuple[NodeRewrite[Any], ...] = (MoveChannels(),)
