"""Move DequantizeLinear before operators that rearrange integers, where MIGraphX would delete the quantization.

    DQ(Reshape(q), s, z)    →  Reshape(DQ(q, s, z))          also Slice and Split
    DQ(Pad(q, v), s, z)     →  Pad(DQ(q, s, z), (v − z)·s)

Where no int8 kernel takes the integers, MIGraphX deletes a QuantizeLinear and its DequantizeLinear together with the
operators between them: shapes no longer match, or the result is wrong. With one scale for the whole tensor, rearranging
floats is the same as rearranging integers. Where every consumer is forecast to run as an int8 kernel, nothing changes.

Skips: more than one scale; a Pad whose value is not constant.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from passes.builders.operands import given
from passes.graphs.int8_kernels import PRODUCTS, forecast_kernel
from passes.graphs.matching import origin
from passes.graphs.quantization import parameters, plain
from passes.graphs.scopes import Scope
from passes.operators import DEQUANTIZE, is_quantize
from passes.quantization.rewriting import consumers
from passes.rewriting.base import Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import Replacement, rewrite

_REARRANGING = ("Pad", "Reshape", "Slice", "Split")


@rewrite(*DEQUANTIZE, absorbs=_REARRANGING, inferred_for=DEQUANTIZE)
def lift_dequantize(node: ir.Node, edit: Edit) -> Replacement:
    """Move DequantizeLinear before operators that rearrange integers."""
    scope = edit.scope
    moving = edit.producer(node, 0, *_REARRANGING)
    if moving is None or (moving.op_type == "Pad" and len(moving.inputs) < 2):  # a Pad of an old opset
        return None
    before = origin(moving.outputs[0], lambda between: plain(between, scope, *_REARRANGING))
    if not is_quantize(before) or _takes_integers(node.outputs[0], scope):
        return None
    quantization = parameters(node, scope)
    if isinstance(quantization, str):
        return Skip(quantization)
    if not quantization.per_tensor:
        return Skip("the node has more than one scale")
    padding = given(moving, 2) if moving.op_type == "Pad" else None
    padded = scope.constant(padding)
    if padding is not None and padded is None:
        return Skip("the value that Pad pads with is not constant")
    edit.absorb(moving)
    x = edit.op(node.op_type, [moving.inputs[0], *node.inputs[1:]], node.attributes, domain=node.domain)
    inputs = [x, *moving.inputs[1:]]
    if moving.op_type == "Pad" and moving.attributes.get_string("mode", "constant") == "constant":
        value = int(padded.numpy().item()) if padded is not None else 0
        step, zero = quantization.scale.reshape(()), int(quantization.zero.item())
        number = (np.float32(value - zero) * step.astype(np.float32)).astype(step.dtype)
        inputs = [x, moving.inputs[1], edit.constant(np.asarray(number)), *moving.inputs[3:]]
    moved = edit.node(moving.op_type, inputs, moving.attributes, outputs=len(moving.outputs))
    return moved.outputs[moving.outputs.index(edit.input(node))]


def _takes_integers(value: ir.Value, scope: Scope) -> bool:
    """Return whether all consumers of a dequantized value are products that will run as int8 kernels."""
    return all(
        user is not None
        and plain(user, scope, *PRODUCTS)
        and forecast_kernel(user, scope).reason is None
        and taken in user.inputs[:2]
        for taken, user in consumers(value, scope)
    )
