"""Remove Dropout in inference mode.

    Dropout(x), inference or ratio 0    →  x, and a mask of ones                  (of zeros before opset 12)
    BiasDropout(x, b, r), likewise      →  x + b + r, and a mask of ones
    BitmaskDropout(x), BitmaskBiasDropout(x, b, r)    likewise, without the mask

The standard did not define the mask of an inference before opset 12; ONNX Runtime returns zeros.

Skips: Dropout that is random; a training mode or ratio that is not constant; bit masks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from passes.builders.arithmetic import Array
from passes.builders.operands import (
    UNKNOWN_DTYPE,
    UNKNOWN_SHAPE,
    constant_integer,
    given,
    is_output_used,
    not_constant,
)
from passes.graphs.randomness import FUSED_DROPOUTS, is_random
from passes.rewriting.base import Exactness, Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import Match, NodeContext, NodeRewrite

_CONTRIB = "com.microsoft"


@dataclass(frozen=True)
class _Dropout(Match):
    mask: Array | None


class RemoveDropout(NodeRewrite[_Dropout]):
    """Replace a Dropout in inference mode by its input and a constant mask."""

    name = "remove-dropout"
    operators = frozenset({("", "Dropout")})

    def match(self, node: ir.Node, context: NodeContext) -> _Dropout | Skip | None:
        """Match inference mode, or a ratio of 0, and a mask of static shape."""
        scope = context.scope
        if scope.opset() < 7 and not node.attributes.get_int("is_test", 0):
            return Skip("it is in training mode, which is random")
        ratio, training = given(node, 1), given(node, 2)
        if training is not None and constant_integer(training, scope) != 0:
            if constant_integer(training, scope) is None:
                return Skip(not_constant(training, "training_mode"))
            share = scope.constant(ratio)
            if ratio is not None and share is None:
                return Skip(not_constant(ratio, "ratio"))
            if share is None or float(share.numpy().item()) != 0:
                return Skip("it is in training mode, which is random")
        if not is_output_used(node, 1):
            return _Dropout(node, None)
        shape, dtype = scope.static_shape(node.inputs[0]), scope.dtype(node.inputs[0])
        if shape is None:
            return Skip(UNKNOWN_SHAPE)
        if dtype is None:
            return Skip(UNKNOWN_DTYPE)
        kind = bool if scope.opset() >= 10 else dtype.numpy()
        return _Dropout(node, np.full(shape, scope.opset() >= 12, kind))

    def rewrite(self, match: _Dropout, edit: Edit) -> Sequence[ir.Value | None]:
        mask = None if match.mask is None else edit.constant(match.mask)
        return [match.node.inputs[0], mask][: len(match.node.outputs)]


class RemoveFusedDropout(NodeRewrite[_Dropout]):
    """Replace com.microsoft's Dropout with a bias and a residual by a sum."""

    name = "remove-fused-dropout"
    exactness = Exactness.ROUNDING
    operators = frozenset((_CONTRIB, name) for name in FUSED_DROPOUTS)

    def match(self, node: ir.Node, context: NodeContext) -> _Dropout | Skip | None:
        """Match inference mode, or a ratio of 0, and a mask of static shape."""
        scope = context.scope
        if is_random(node, scope):
            return Skip("it is or may be in training mode, which is random")
        if not is_output_used(node, 1):
            return _Dropout(node, None)
        if node.op_type != "BiasDropout":
            return Skip("the padding bits of its bit mask are not specified")
        shape = scope.static_shape(node.inputs[0])
        return Skip(UNKNOWN_SHAPE) if shape is None else _Dropout(node, np.ones(shape, bool))

    def rewrite(self, match: _Dropout, edit: Edit) -> Sequence[ir.Value | None]:
        """The sum of the inputs that are present."""
        terms = match.node.inputs[: FUSED_DROPOUTS[match.node.op_type][0]]
        result = terms[0]
        for term in terms[1:]:
            result = result if term is None else edit.op("Add", [result, term])
        mask = None if match.mask is None else edit.constant(match.mask)
        return [result, mask][: len(match.node.outputs)]


RULES: tuple[NodeRewrite[Any], ...] = (RemoveDropout(), RemoveFusedDropout())
