"""Write block scales as per-axis scales where each block spans the axis, and single scales as scalars.

    DequantizeLinear <axis = a, block_size = b> (W, s, z), s of size 1 along a
        →  DequantizeLinear <axis = c> (W, s′, z′)      where s has several elements along c alone
        →  DequantizeLinear (W, s′, z′)                 where it has one
    DequantizeLinear (q, s, z), s of shape [1]          →  DequantizeLinear (q, s′, z′), s′ of shape []

The parameters keep their values and change their shape. An int8 kernel takes per-channel scales, but no block scales:
weights that are smaller than a block, or quantized in blocks as large as a row, would run in float without need. Also,
for an int8 kernel MIGraphX assumes that a scale that is not a scalar has one element per channel, and rejects the model
otherwise.

Skips: scales or zero points that are not constant. Scales with several elements along two axes are true block scales
and unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir

from passes.graphs.quantization import zero_point
from passes.operators import DEQUANTIZE, QUANTIZE
from passes.rewriting.base import Exactness, Skip
from passes.rewriting.edit import Edit
from passes.rewriting.expressions import Attribute
from passes.rewriting.rewrite import Match, NodeContext, NodeRewrite


@dataclass(frozen=True)
class _Found(Match):
    axis: int | None
    """The axis of the scales; None for a single scale."""


class UnblockScales(NodeRewrite[_Found]):
    """Write block scales as per-axis scales where each block spans the axis, and single scales as scalars."""

    name = "unblock-scales"
    exactness = Exactness.BITWISE
    operators = QUANTIZE | DEQUANTIZE

    def match(self, node: ir.Node, context: NodeContext) -> _Found | Skip | None:
        """Match scales that vary along at most one axis, which is not that of the blocks."""
        scope = context.scope
        shape, zero = scope.shape(node.inputs[1]), zero_point(node)
        if shape is None or not shape.is_static():
            return None
        dims = [int(each) for each in shape.numpy()]
        several = [axis for axis, size in enumerate(dims) if size != 1]
        if node.attributes.get_int("block_size", 0):
            if not dims or len(several) > 1 or dims[node.attributes.get_int("axis", 1) % len(dims)] != 1:
                return None
        elif several or all(each is None or scope.shape(each) == ir.Shape([]) for each in (node.inputs[1], zero)):
            return None
        if scope.constant(node.inputs[1]) is None or (zero is not None and scope.constant(zero) is None):
            return Skip("its scale or zero point is not constant")
        return _Found(node, several[0] if several else None)

    def rewrite(self, match: _Found, edit: Edit) -> Sequence[ir.Value | None]:
        """The same node with reshaped parameters."""
        node, shape = match.node, [] if match.axis is None else [-1]
        attributes: dict[str, Attribute] = {
            name: each for name, each in node.attributes.items() if name not in ("axis", "block_size")
        }
        if match.axis is not None:
            attributes["axis"] = match.axis
        inputs = [node.inputs[0]]
        for value in node.inputs[1:]:
            tensor = edit.scope.constant(value)
            if tensor is not None:
                value = edit.constant(ir.Tensor(tensor.numpy().reshape(shape), dtype=tensor.dtype))
            inputs.append(value)
        return [edit.op(node.op_type, inputs, attributes, domain=node.domain)]
