"""Move DequantizeLinear before operators that rearrange integers, where MIGraphX would delete the quantization.

    DQ(Reshape(q), s, z)    →  Reshape(DQ(q, s, z))          likewise Slice and Split
    DQ(Pad(q, v), s, z)     →  Pad(DQ(q, s, z), (v − z)·s)

Where no int8 kernel takes the integers, MIGraphX deletes a QuantizeLinear and its DequantizeLinear together with the
operators between them: shapes no longer match, or the result is wrong. With one scale for the whole tensor, rearranging
floats is the same as rearranging integers. Where every consumer is forecast to run as an int8 kernel, nothing changes.

Skips: more than one scale; a Pad whose value is not constant.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from passes.graphs.int8_kernels import PRODUCTS, forecast_kernel
from passes.graphs.quantization import Parameters, parameters, plain
from passes.graphs.scopes import Scope
from passes.operators import DEQUANTIZE, is_quantize
from passes.quantization.rewriting import InferredRewrite, consumers
from passes.rewriting.base import Exactness, Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import Match, NodeContext

_REARRANGING = ("Pad", "Reshape", "Slice", "Split")


@dataclass(frozen=True)
class _Found(Match):
    parameters: Parameters


class LiftDequantize(InferredRewrite[_Found]):
    """Move DequantizeLinear before operators that rearrange integers."""

    name = "lift-dequantize"
    exactness = Exactness.BITWISE
    operators = DEQUANTIZE
    absorbs = frozenset(("", each) for each in _REARRANGING)

    def match(self, node: ir.Node, context: NodeContext) -> _Found | Skip | None:
        """Match where only rearranging operators follow a QuantizeLinear, and a consumer takes floats."""
        scope = context.scope
        moving = context.producer(node, 0, *_REARRANGING)
        if moving is None or (moving.op_type == "Pad" and len(moving.inputs) < 2):  # a Pad of an old opset
            return None
        if not _is_between(moving, scope) or _takes_integers(node.outputs[0], scope):
            return None
        found = parameters(node, scope)
        if isinstance(found, str):
            return Skip(found)
        if not found.per_tensor:
            return Skip("it has more than one scale")
        padding = moving.inputs[2] if moving.op_type == "Pad" and len(moving.inputs) > 2 else None
        if padding is not None and scope.constant(padding) is None:
            return Skip("the value it pads with is not constant")
        return _Found(node, found, absorbed=(moving,))

    def rewrite(self, match: _Found, edit: Edit) -> Sequence[ir.Value | None]:
        """The two nodes in reverse order."""
        node, (moving,) = match.node, match.absorbed
        x = edit.op(node.op_type, [moving.inputs[0], *node.inputs[1:]], node.attributes, domain=node.domain)
        inputs = [x, *moving.inputs[1:]]
        if moving.op_type == "Pad" and moving.attributes.get_string("mode", "constant") == "constant":
            given = edit.scope.constant(moving.inputs[2]) if len(moving.inputs) > 2 else None
            value = int(given.numpy().item()) if given is not None else 0
            step, zero = match.parameters.scale.reshape(()), int(match.parameters.zero.item())
            pads = (np.float32(value - zero) * step.astype(np.float32)).astype(step.dtype)
            inputs = [x, moving.inputs[1], edit.constant(np.asarray(pads)), *moving.inputs[3:]]
        made = edit.node(moving.op_type, inputs, moving.attributes, outputs=len(moving.outputs))
        return [made.outputs[moving.outputs.index(node.inputs[0])]]


def _is_between(node: ir.Node | None, scope: Scope) -> bool:
    """Whether only such operators are between a QuantizeLinear and ``node``."""
    while node is not None and plain(node, scope, *_REARRANGING):
        value = node.inputs[0]
        node = value.producer() if value is not None else None
    return is_quantize(node)


def _takes_integers(value: ir.Value, scope: Scope) -> bool:
    """Whether all consumers of a dequantized value are products that will run as int8 kernels."""
    return all(
        user is not None
        and plain(user, scope, *PRODUCTS)
        and forecast_kernel(user, scope).reason is None
        and taken in user.inputs[:2]
        for taken, user in consumers(value, scope)
    )
