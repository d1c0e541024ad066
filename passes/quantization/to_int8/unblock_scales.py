"""Write block scales as per-axis scales if each block spans the axis, and single scales as scalars.

    DequantizeLinear <axis = a, block_size = b> (W, s, z), s of size 1 along a
        →  DequantizeLinear <axis = c> (W, s′, z′)      if s has several elements along c alone
        →  DequantizeLinear (W, s′, z′)                 if it has one
    DequantizeLinear (q, s, z), s of shape [1]          →  DequantizeLinear (q, s′, z′), s′ of shape []

The parameters keep their values and change their shape. An int8 kernel takes per-channel scales, but no block scales:
weights that are smaller than a block, or quantized in blocks as large as a row, would run in float without need. Also,
for an int8 kernel MIGraphX assumes that a scale that is not a scalar has one element per channel, and rejects the model
otherwise.

Skips: scales or zero points that are not constant. Scales with several elements along two axes are true block scales
and unchanged.
"""

from __future__ import annotations

import onnx_ir as ir

from passes.graphs.quantization import zero_point
from passes.operators import DEQUANTIZE, QUANTIZE
from passes.rewriting.base import Skip
from passes.rewriting.edit import Edit
from passes.rewriting.expressions import Attribute
from passes.rewriting.rewrite import Replacement, rewrite


@rewrite(*QUANTIZE, *DEQUANTIZE)
def unblock_scales(node: ir.Node, edit: Edit) -> Replacement:
    """Write block scales as per-axis scales if each block spans the axis, and single scales as scalars."""
    scope = edit.scope
    sizes, zero = scope.static_shape(node.inputs[1]), zero_point(node)
    if sizes is None:
        return None
    several = [axis for axis, size in enumerate(sizes) if size != 1]
    if node.attributes.get_int("block_size", 0):
        if not sizes or len(several) > 1 or sizes[node.attributes.get_int("axis", 1) % len(sizes)] != 1:
            return None
    elif several or all(value is None or scope.shape(value) == ir.Shape([]) for value in (node.inputs[1], zero)):
        return None
    if scope.constant(node.inputs[1]) is None or (zero is not None and scope.constant(zero) is None):
        return Skip("the scale or zero point is not constant")
    attributes: dict[str, Attribute] = {**node.attributes}
    for name in ("axis", "block_size"):
        attributes.pop(name, None)
    if several:
        attributes["axis"] = several[0]
    inputs = [node.inputs[0]]
    for value in node.inputs[1:]:
        tensor = scope.constant(value)
        if tensor is not None:
            array = tensor.numpy().reshape([-1] if several else [])
            value = edit.constant(ir.Tensor(array, dtype=tensor.dtype))
        inputs.append(value)
    return edit.op(node.op_type, inputs, attributes, domain=node.domain)
