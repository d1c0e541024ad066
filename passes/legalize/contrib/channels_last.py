"""Write com.microsoft's channels-last convolutions and pooling as ONNX's channels-first operators.

    NhwcConv(x, w, b)          →  Conv(x', w', b)'                      w is (out, kernel, in)
    NhwcFusedConv(x, w, b, z)  →  activation(Conv(x', w, b) + z')'      w is (out, in, kernel)
    NhwcMaxPool(x)             →  MaxPool(x')'

where ' moves the channels to or from the second axis. merge-transposes merges adjacent Transposes afterwards.

Skips: unknown shapes; weights of another layout; unknown activations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from passes.builders.arithmetic import Arithmetic
from passes.builders.operands import given
from passes.legalize.contrib.fused import ACTIVATIONS, activate, own_attributes
from passes.rewriting.base import Exactness, Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import Match, NodeContext, NodeRewrite

_DOMAIN = "com.microsoft"


@dataclass(frozen=True)
class _Found(Match):
    rank: int
    dtype: ir.DataType


class MoveChannels(NodeRewrite[_Found]):
    """Write a channels-last convolution or pooling as ONNX's, between two Transposes."""

    name = "move-channels"
    exactness = Exactness.ROUNDING
    operators = frozenset((_DOMAIN, name) for name in ("NhwcConv", "NhwcFusedConv", "NhwcMaxPool"))
    needs_shape = (0, 1)
    needs_dtype = (0,)

    def match(self, node: ir.Node, context: NodeContext) -> _Found | Skip | None:
        """Match channels-last weights and known activations."""
        x = context.shape(node)
        if node.op_type == "NhwcConv":
            weights = context.shape(node, 1)
            if weights[-1] * node.attributes.get_int("group", 1) != x[-1]:
                return Skip(f"the last axis of its weights {weights} does not match the channels of {x}")
        activation = node.attributes.get_string("activation", "")
        if activation and activation not in ACTIVATIONS:
            return Skip(f"its activation {activation} is unknown")
        return _Found(node, len(x), context.dtype(node))

    def rewrite(self, match: _Found, edit: Edit) -> Sequence[ir.Value | None]:
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
