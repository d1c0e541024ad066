"""Dequantize before integers are rearranged, where their quantization would be deleted around them.

    DQ(Reshape(q), s, z)    →  Reshape(DQ(q, s, z))          likewise Slice and Split
    DQ(Pad(q, v), s, z)     →  Pad(DQ(q, s, z), (v − z)·s)

MIGraphX deletes a QuantizeLinear and its DequantizeLinear where no kernel of 8 bits takes the integers, and with them
what is between: the shapes do not fit any more, or the numbers are wrong. With one scale for all, rearranging numbers
is the same as rearranging integers. Where every product behind is forecast to run in 8 bits, the integers stay.

Skips: more than one scale; a Pad whose value is not constant.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from passes.analysis.int8_kernels import PRODUCTS, forecast_kernel
from passes.analysis.quantization import DOMAINS, Parameters, infer_quantized, is_quantize, parameters, plain
from passes.core.base import Context, Exactness, Result, Skip
from passes.core.edit import Edit
from passes.core.graphs import Scope
from passes.core.rewrite import Match, NodeContext, NodeRewrite

_DELETED = ("Pad", "Reshape", "Slice", "Split")
_LOOKED_THROUGH = ("Transpose", "Reshape", "Expand", "Cast", "Identity")


@dataclass(frozen=True)
class _Found(Match):
    found: Parameters


@dataclass(frozen=True)
class LiftDequantize(NodeRewrite[_Found]):
    """Dequantize before integers are rearranged."""

    name = "lift-dequantize"
    exactness = Exactness.BITWISE
    operators = frozenset((domain, "DequantizeLinear") for domain in DOMAINS)
    absorbs = frozenset(("", each) for each in _DELETED)

    def run(self, model: ir.Model, context: Context) -> Result:
        """The forecast wants shapes."""
        infer_quantized(model)
        return super().run(model, context)

    def match(self, node: ir.Node, context: NodeContext) -> _Found | Skip | None:
        """Whether it is behind a QuantizeLinear with such operators between, and not wanted in integers."""
        scope = context.scope
        moving = _moving(node.inputs[0], scope)
        if moving is None or not _is_between(moving, scope) or _stays(node.outputs[0], scope):
            return None
        found = parameters(node, scope)
        if isinstance(found, str):
            return Skip(found)
        if not found.per_tensor:
            return Skip("it has more than one scale")
        padding = moving.inputs[2] if moving.op_type == "Pad" and len(moving.inputs) > 2 else None
        if padding is not None and scope.constant(padding) is None:
            return Skip("what it pads with is not constant")
        return _Found(node, found, absorbed=(moving,))

    def rewrite(self, match: _Found, edit: Edit) -> Sequence[ir.Value | None]:
        """The two nodes in the other order."""
        node, (moving,) = match.node, match.absorbed
        own: dict[str, Any] = dict(node.attributes)
        attributes: dict[str, Any] = dict(moving.attributes)
        x = edit.op(node.op_type, [moving.inputs[0], *node.inputs[1:]], own, domain=node.domain)
        inputs = [x, *moving.inputs[1:]]
        if moving.op_type == "Pad" and moving.attributes.get_string("mode", "constant") == "constant":
            given = edit.scope.constant(moving.inputs[2]) if len(moving.inputs) > 2 else None
            value = int(given.numpy().item()) if given is not None else 0
            step, zero = match.found.scale.reshape(()), int(match.found.zero.item())
            pads = (np.float32(value - zero) * step.astype(np.float32)).astype(step.dtype)
            inputs = [x, moving.inputs[1], edit.constant(np.asarray(pads)), *moving.inputs[3:]]
        made = edit.node(moving.op_type, inputs, attributes, outputs=len(moving.outputs))
        return [made.outputs[moving.outputs.index(node.inputs[0])]]


def _moving(value: ir.Value | None, scope: Scope) -> ir.Node | None:
    """The node that rearranged integers last."""
    node = value.producer() if value is not None else None
    if node is None or not plain(node, scope, *_DELETED) or (len(node.inputs) < 2 and node.op_type == "Pad"):
        return None
    return node


def _is_between(node: ir.Node | None, scope: Scope) -> bool:
    """Whether, before it, nothing but such operators follows a QuantizeLinear."""
    while node is not None and plain(node, scope, *_DELETED):
        value = node.inputs[0]
        node = value.producer() if value is not None else None
    return is_quantize(node)


def _stays(value: ir.Value, scope: Scope) -> bool:
    """Whether all that takes dequantized numbers are products that will run in 8 bits."""
    pending = [value]
    while pending:
        value = pending.pop()
        if value.is_graph_output() or not value.uses():
            return False
        for node in value.consumers():
            if plain(node, scope, *_LOOKED_THROUGH):
                pending.extend(node.outputs)
            elif (
                not plain(node, scope, *PRODUCTS)
                or forecast_kernel(node, scope).reason is not None
                or value not in node.inputs[:2]
            ):
                return False
    return True
