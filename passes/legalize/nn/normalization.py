"""Decompose normalizations into arithmetic.

    BatchNormalization          →  (x − m) · scale / √(v + epsilon) + bias
    …, training                    with m, v of x over all axes but the channels, and
                                   running' = running · momentum + current · (1 − momentum)
    LayerNormalization          →  (x − m) · s · scale + bias,   s = 1 / √(mean((x − m)²) + epsilon);  also m and s
    RMSNormalization            →  x · s · scale,                s = 1 / √(mean(x²) + epsilon)
    LRN                         →  x / (bias + alpha / size · (B x²)) ^ beta

B is the constant 0/1 matrix that sums the ``size`` channels around each channel.

Skips: opsets before 7; dynamic shapes; training forms of BatchNormalization before opset 14, whose outputs have another
meaning.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from passes.builders.arithmetic import Arithmetic, wide
from passes.builders.operands import is_output_used
from passes.rewriting.base import Exactness, Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import EVERY_INPUT, Match, NodeContext, NodeRewrite


@dataclass(frozen=True)
class _NormalizationMatch(Match):
    shape: tuple[int, ...]
    dtypes: tuple[ir.DataType, ...]


class _Decomposition(NodeRewrite[_NormalizationMatch]):
    exactness = Exactness.ROUNDING
    since_opset = 7  # broadcasting
    needs_shape = (0,)
    needs_dtype = EVERY_INPUT

    def match(self, node: ir.Node, context: NodeContext) -> _NormalizationMatch | Skip | None:
        """Match any input with elements."""
        shape = context.shape(node)
        dtypes = tuple(context.dtype(node, index) for index, value in enumerate(node.inputs) if value is not None)
        return _NormalizationMatch(node, shape, dtypes) if 0 not in shape else None


class DecomposeBatchNormalization(_Decomposition):
    """Decompose BatchNormalization for inference and training."""

    name = "decompose-batch-normalization"
    operators = frozenset({("", "BatchNormalization")})

    def match(self, node: ir.Node, context: NodeContext) -> _NormalizationMatch | Skip | None:
        """Match inference, and training since opset 14."""
        if context.scope.opset() < 14 and any(is_output_used(node, index) for index in range(1, len(node.outputs))):
            return Skip("it is a training form of an opset before 14: run convert-opset first")
        return super().match(node, context)

    def rewrite(self, match: _NormalizationMatch, edit: Edit) -> Sequence[ir.Value | None]:
        """The statistics of the input for training, else the given ones."""
        node, shape = match.node, match.shape
        dtype, running_dtype = match.dtypes[0], match.dtypes[3]
        a = Arithmetic(edit, ir.DataType.DOUBLE if ir.DataType.DOUBLE in match.dtypes else ir.DataType.FLOAT)
        x, scale, bias, mean, variance = (
            a.cast(value) for value, kind in zip(filter(None, node.inputs), match.dtypes, strict=True)
        )
        per_element = edit.scope.opset() < 9 and node.attributes.get_int("spatial", 1) == 0
        broadcast_shape = [1, *shape[1:]] if per_element else [1, *shape[1:2], *(1 for _ in shape[2:])][: len(shape)]
        running: list[ir.Value | None] = [None, None]
        if edit.scope.opset() >= 14 and node.attributes.get_int("training_mode", 0) != 0:
            axes = [axis for axis in range(len(shape)) if axis != 1]
            current = a.reduce("Mean", x, axes)
            centered = a("Sub", x, current)
            variance_of_input = a.reduce("Mean", a("Mul", centered, centered), axes)
            momentum = node.attributes.get_float("momentum", 0.9)
            for index, (old, new) in enumerate(((mean, current), (variance, variance_of_input))):
                if is_output_used(node, index + 1):
                    kept, added = a("Mul", old, momentum), a("Mul", a.reshape(new, [-1]), 1 - momentum)
                    running[index] = a.cast(a("Add", kept, added), running_dtype)
        else:
            centered, variance_of_input = (
                a("Sub", x, a.reshape(mean, broadcast_shape)),
                a.reshape(variance, broadcast_shape),
            )
        deviation = a("Sqrt", a("Add", variance_of_input, node.attributes.get_float("epsilon", 1e-5)))
        factor = a("Div", a.reshape(scale, broadcast_shape), deviation)
        y = a.cast(a("Add", a("Mul", centered, factor), a.reshape(bias, broadcast_shape)), dtype)
        return [y, *running][: len(node.outputs)]


class DecomposeLayerNormalization(_Decomposition):
    """Decompose LayerNormalization and RMSNormalization; scale and bias may broadcast in any way."""

    name = "decompose-layer-normalization"
    operators = frozenset({("", "LayerNormalization"), ("", "RMSNormalization")})

    def rewrite(self, match: _NormalizationMatch, edit: Edit) -> Sequence[ir.Value | None]:
        """The result has the dtype of the scale, the statistics have those of their outputs."""
        node = match.node
        a = Arithmetic(edit, wide(match.dtypes[0]))
        x, scale, *rest = (a.cast(value) for value, kind in zip(filter(None, node.inputs), match.dtypes, strict=True))
        rank = len(match.shape)
        axes = range(node.attributes.get_int("axis", -1) % rank, rank)
        mean = None
        if node.op_type == "LayerNormalization":
            mean = a.reduce("Mean", x, axes)
            x = a("Sub", x, mean)
        variance_of_input = a.reduce("Mean", a("Mul", x, x), axes)
        inverse = a("Reciprocal", a("Sqrt", a("Add", variance_of_input, node.attributes.get_float("epsilon", 1e-5))))
        y = a("Mul", a("Mul", x, inverse), scale)
        for bias in rest:
            y = a("Add", y, bias)
        outputs: list[ir.Value | None] = [a.cast(y, match.dtypes[1])]
        for index, value in enumerate((mean, inverse), start=1):
            if is_output_used(node, index):
                assert value is not None
                outputs.append(a.cast(value, edit.scope.dtype(node.outputs[index]) or ir.DataType.FLOAT))
            elif index < len(node.outputs):
                outputs.append(None)
        return outputs


class DecomposeLocalResponseNormalization(_Decomposition):
    """Decompose LRN; its sums over channels become a product with a constant matrix."""

    name = "decompose-local-response-normalization"
    operators = frozenset({("", "LRN")})

    def match(self, node: ir.Node, context: NodeContext) -> _NormalizationMatch | Skip | None:
        """Match inputs with a channel axis."""
        found = super().match(node, context)
        return None if isinstance(found, _NormalizationMatch) and len(found.shape) < 2 else found

    def rewrite(self, match: _NormalizationMatch, edit: Edit) -> Sequence[ir.Value | None]:
        """Channel c sums from c − ⌊(size−1)/2⌋ to c + ⌈(size−1)/2⌉."""
        (x,) = match.node.inputs
        assert x is not None
        attributes = match.node.attributes
        a, size, channels = Arithmetic(edit, wide(match.dtypes[0])), attributes["size"].as_int(), match.shape[1]
        x = a.cast(x)
        offset = np.arange(channels) - np.arange(channels)[:, None]
        near = (-((size - 1) // 2) <= offset) & (offset <= size // 2)
        squares = a.reshape(a("Mul", x, x), [match.shape[0], channels, -1])
        total = a.reshape(a("MatMul", near.astype(np.float64), squares), match.shape)
        scaled = a("Mul", total, attributes.get_float("alpha", 1e-4) / size)
        power = a("Pow", a("Add", scaled, attributes.get_float("bias", 1.0)), attributes.get_float("beta", 0.75))
        return [a.cast(a("Div", x, power), match.dtypes[0])]


RULES: tuple[NodeRewrite[Any], ...] = (
    DecomposeBatchNormalization(),
    DecomposeLayerNormalization(),
    DecomposeLocalResponseNormalization(),
)
