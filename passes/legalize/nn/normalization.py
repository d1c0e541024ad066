"""Normalizations that the runtime does not know in all their forms, as arithmetic.

    BatchNormalization          →  (x − m) · scale / √(v + epsilon) + bias
    …, training                    with m, v of x over all axes but the channels, and
                                   running' = running · momentum + current · (1 − momentum)
    LayerNormalization          →  (x − m) · s · scale + bias,   s = 1 / √(mean((x − m)²) + epsilon);  also m and s
    RMSNormalization            →  x · s · scale,                s = 1 / √(mean(x²) + epsilon)
    LRN                         →  x / (bias + alpha / size · (B x²)) ^ beta

B is the constant matrix of ones and zeros that sums the ``size`` channels around each.

Skips: opsets before 7; shapes that are not static; training forms of BatchNormalization before opset 14, whose outputs
mean something else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from passes.build.arithmetic import Arithmetic, wide
from passes.build.operands import UNKNOWN_DTYPE, UNKNOWN_SHAPE, is_output_used, sizes_of, too_old
from passes.core.base import Exactness, Skip
from passes.core.edit import Edit
from passes.core.matching import is_plain
from passes.core.rewrite import Match, NodeContext, NodeRewrite


@dataclass(frozen=True)
class _Found(Match):
    shape: tuple[int, ...]
    dtypes: tuple[ir.DataType, ...]


def _known(node: ir.Node, context: NodeContext) -> _Found | Skip | None:
    """A plain node whose first input has a static shape, and all whose inputs have known dtypes."""
    scope = context.scope
    if not is_plain(node, scope):
        return None
    if (reason := too_old(scope)) is not None:
        return Skip(reason)
    shape = sizes_of(node.inputs[0], scope)
    dtypes = [scope.dtype(value) for value in node.inputs if value is not None]
    if shape is None:
        return Skip(UNKNOWN_SHAPE)
    known = tuple(dtype for dtype in dtypes if dtype is not None)
    if len(known) < sum(value is not None for value in node.inputs):
        return Skip(UNKNOWN_DTYPE)
    return _Found(node, shape, known) if 0 not in shape else None


@dataclass(frozen=True)
class DecomposeBatchNormalization(NodeRewrite[_Found]):
    """Write BatchNormalization out, in inference and in training."""

    name = "decompose-batch-normalization"
    exactness = Exactness.ROUNDING
    operators = frozenset({("", "BatchNormalization")})

    def match(self, node: ir.Node, context: NodeContext) -> _Found | Skip | None:
        """Whether it is a form with a meaning of its own."""
        if context.scope.opset() < 14 and any(is_output_used(node, index) for index in range(1, len(node.outputs))):
            return Skip("it is a training form of an opset before 14: convert-opset comes first")
        return _known(node, context)

    def rewrite(self, match: _Found, edit: Edit) -> Sequence[ir.Value | None]:
        """The statistics of the input in training, those given otherwise."""
        node, shape = match.node, match.shape
        dtype, running_dtype = match.dtypes[0], match.dtypes[3]
        a = Arithmetic(edit, ir.DataType.DOUBLE if ir.DataType.DOUBLE in match.dtypes else ir.DataType.FLOAT)
        x, scale, bias, mean, variance = (
            a.cast(value, kind) for value, kind in zip(filter(None, node.inputs), match.dtypes, strict=True)
        )
        by_place = edit.scope.opset() < 9 and node.attributes.get_int("spatial", 1) == 0
        around = [1, *shape[1:]] if by_place else [1, *shape[1:2], *(1 for _ in shape[2:])][: len(shape)]
        running: list[ir.Value | None] = [None, None]
        if edit.scope.opset() >= 14 and node.attributes.get_int("training_mode", 0) != 0:
            axes = [axis for axis in range(len(shape)) if axis != 1]
            current = a.reduce("Mean", x, axes)
            centred = a("Sub", x, current)
            spread = a.reduce("Mean", a("Mul", centred, centred), axes)
            momentum = node.attributes.get_float("momentum", 0.9)
            for index, (old, new) in enumerate(((mean, current), (variance, spread))):
                if is_output_used(node, index + 1):
                    kept, added = a("Mul", old, momentum), a("Mul", a.reshape(new, [-1]), 1 - momentum)
                    running[index] = a.cast(a("Add", kept, added), a.dtype, running_dtype)
        else:
            centred, spread = a("Sub", x, a.reshape(mean, around)), a.reshape(variance, around)
        deviation = a("Sqrt", a("Add", spread, node.attributes.get_float("epsilon", 1e-5)))
        factor = a("Div", a.reshape(scale, around), deviation)
        y = a.cast(a("Add", a("Mul", centred, factor), a.reshape(bias, around)), a.dtype, dtype)
        return [y, *running, *(None for _ in node.outputs[3:])][: len(node.outputs)]


@dataclass(frozen=True)
class DecomposeLayerNormalization(NodeRewrite[_Found]):
    """Write LayerNormalization and RMSNormalization out, so that scale and bias may be broadcast in any way."""

    name = "decompose-layer-normalization"
    exactness = Exactness.ROUNDING
    operators = frozenset({("", "LayerNormalization"), ("", "RMSNormalization")})

    def match(self, node: ir.Node, context: NodeContext) -> _Found | Skip | None:
        """Any node of known shape."""
        return _known(node, context)

    def rewrite(self, match: _Found, edit: Edit) -> Sequence[ir.Value | None]:
        """The result has the dtype of the scale, the statistics have those that their outputs say."""
        node = match.node
        a = Arithmetic(edit, wide(match.dtypes[0]))
        x, scale, *rest = (
            a.cast(value, kind) for value, kind in zip(filter(None, node.inputs), match.dtypes, strict=True)
        )
        rank = len(match.shape)
        axes = range(node.attributes.get_int("axis", -1) % rank, rank)
        mean = None
        if node.op_type == "LayerNormalization":
            mean = a.reduce("Mean", x, axes)
            x = a("Sub", x, mean)
        spread = a.reduce("Mean", a("Mul", x, x), axes)
        inverse = a("Reciprocal", a("Sqrt", a("Add", spread, node.attributes.get_float("epsilon", 1e-5))))
        y = a("Mul", a("Mul", x, inverse), scale)
        for bias in rest:
            y = a("Add", y, bias)
        outputs: list[ir.Value | None] = [a.cast(y, a.dtype, match.dtypes[1])]
        for index, value in enumerate((mean, inverse), start=1):
            if is_output_used(node, index):
                assert value is not None
                outputs.append(a.cast(value, a.dtype, edit.scope.dtype(node.outputs[index]) or ir.DataType.FLOAT))
            elif index < len(node.outputs):
                outputs.append(None)
        return outputs


@dataclass(frozen=True)
class DecomposeLocalResponseNormalization(NodeRewrite[_Found]):
    """Write LRN out, its sums over channels as a product with a constant matrix."""

    name = "decompose-local-response-normalization"
    exactness = Exactness.ROUNDING
    operators = frozenset({("", "LRN")})

    def match(self, node: ir.Node, context: NodeContext) -> _Found | Skip | None:
        """Any node of known shape that has channels."""
        found = _known(node, context)
        return None if isinstance(found, _Found) and len(found.shape) < 2 else found

    def rewrite(self, match: _Found, edit: Edit) -> Sequence[ir.Value | None]:
        """Channel c sums from c − ⌊(size−1)/2⌋ to c + ⌈(size−1)/2⌉."""
        (x,) = match.node.inputs
        assert x is not None
        of = match.node.attributes
        a, size, channels = Arithmetic(edit, wide(match.dtypes[0])), of["size"].as_int(), match.shape[1]
        x = a.cast(x, match.dtypes[0])
        offset = np.arange(channels) - np.arange(channels)[:, None]
        near = (-((size - 1) // 2) <= offset) & (offset <= size // 2)
        squares = a.reshape(a("Mul", x, x), [match.shape[0], channels, -1])
        total = a.reshape(a("MatMul", near.astype(np.float64), squares), match.shape)
        scaled = a("Mul", total, of.get_float("alpha", 1e-4) / size)
        power = a("Pow", a("Add", scaled, of.get_float("bias", 1.0)), of.get_float("beta", 0.75))
        return [a.cast(a("Div", x, power), a.dtype, match.dtypes[0])]


RULES: tuple[NodeRewrite[Any], ...] = (
    DecomposeBatchNormalization(),
    DecomposeLayerNormalization(),
    DecomposeLocalResponseNormalization(),
)
