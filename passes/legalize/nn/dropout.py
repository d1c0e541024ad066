"""Remove Dropout in inference mode.

    Dropout(x), inference or ratio 0    →  x, and a mask of ones                  (of zeros before opset 12)
    BiasDropout(x, b, r), the same      →  x + b + r, and a mask of ones
    BitmaskDropout(x), BitmaskBiasDropout(x, b, r)    the same without the mask

The standard did not define the mask of an inference before opset 12; ONNX Runtime returns zeros.

Skips: Dropout that is random; a training mode or ratio that is not constant; bit masks.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from passes.builders.operands import constant_integer, given, is_output_used
from passes.graphs.randomness import FUSED_DROPOUTS, is_random
from passes.rewriting.base import Exactness, Skip
from passes.rewriting.edit import Edit, not_constant
from passes.rewriting.rewrite import UNKNOWN_DTYPE, UNKNOWN_SHAPE, Replacement, rewrite

_RANDOM = "the node is in training mode, which is random"


@rewrite("Dropout")
def remove_dropout(node: ir.Node, edit: Edit) -> Replacement:
    """Replace a Dropout in inference mode, or of ratio 0, by its input and a constant mask."""
    scope, ratio, training = edit.scope, given(node, 1), given(node, 2)
    opset = scope.opset()
    if training is not None and constant_integer(training, scope) != 0:
        if constant_integer(training, scope) is None:
            return Skip(not_constant(training, "training_mode"))
        share = scope.constant(ratio)
        if ratio is not None and share is None:
            return Skip(not_constant(ratio, "ratio"))
        if share is None or float(share.numpy().item()) != 0:
            return Skip(_RANDOM)
    if not is_output_used(node, 1):
        return edit.input(node)
    shape, dtype = scope.static_shape(node.inputs[0]), scope.dtype(node.inputs[0])
    if shape is None:
        return Skip(UNKNOWN_SHAPE)
    if dtype is None:
        return Skip(UNKNOWN_DTYPE)
    return [node.inputs[0], edit.constant(np.full(shape, opset >= 12, bool if opset >= 10 else dtype.numpy()))]


@rewrite(*(f"com.microsoft.{name}" for name in FUSED_DROPOUTS), exactness=Exactness.ROUNDING)
def remove_fused_dropout(node: ir.Node, edit: Edit) -> Replacement:
    """Replace com.microsoft's Dropout with a bias and a residual by a sum."""
    if is_random(node, edit.scope):
        return Skip("the node is or may be in training mode, which is random")
    mask = None
    if is_output_used(node, 1):
        if node.op_type != "BiasDropout":
            return Skip("the padding bits of the bit mask are not specified")
        shape = edit.scope.static_shape(node.inputs[0])
        if shape is None:
            return Skip(UNKNOWN_SHAPE)
        mask = edit.constant(np.ones(shape, bool))
    y, *terms = node.inputs[: FUSED_DROPOUTS[node.op_type][0]]
    for term in terms:
        y = y if term is None else edit.op("Add", [y, term])
    return [y, mask]
