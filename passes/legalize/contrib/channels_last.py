"""Write com.microsoft's channels-last convolutions and pooling as ONNX's channels-first operators.

    NhwcConv(x, w, b)          →  Conv(x', w', b)'                      w is (out, kernel, in)
    NhwcFusedConv(x, w, b, z)  →  activation(Conv(x', w, b) + z')'      w is (out, in, kernel)
    NhwcMaxPool(x)             →  MaxPool(x')'

where ' moves the channels to or from the second axis. merge-transposes merges adjacent Transposes afterwards.

Skips: unknown shapes; weights of another layout; unknown activations.
"""

from __future__ import annotations

import onnx_ir as ir

from passes.builders.arithmetic import Arithmetic
from passes.builders.operands import given
from passes.legalize.contrib.fused import unfused
from passes.rewriting.base import Exactness, Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import Replacement, rewrite


@rewrite(
    "com.microsoft.NhwcConv",
    "com.microsoft.NhwcFusedConv",
    "com.microsoft.NhwcMaxPool",
    exactness=Exactness.ROUNDING,
    needs_shape=(0, 1),
    needs_dtype=(0,),
)
def move_channels(node: ir.Node, edit: Edit) -> Replacement:
    """Write a channels-last convolution or pooling as ONNX's, between two Transposes."""
    a, shape, inputs = Arithmetic(edit, edit.dtype(node)), edit.shape(node), list(node.inputs)
    inward = [0, len(shape) - 1, *range(1, len(shape) - 1)]
    inputs[0] = a("Transpose", inputs[0], perm=inward)
    if node.op_type == "NhwcConv":
        weights = edit.shape(node, 1)
        if weights[-1] * node.attributes.get_int("group", 1) != shape[-1]:
            return Skip(f"the last axis of the weights {weights} does not match the channels of {shape}")
        inputs[1] = a("Transpose", inputs[1], perm=inward)
    if given(node, 3) is not None:
        inputs[3] = a("Transpose", inputs[3], perm=inward)
    y = unfused(a, node, node.op_type.removeprefix("Nhwc").removeprefix("Fused"), inputs)
    return a("Transpose", y, perm=[0, *range(2, len(shape)), 1])
