"""Decompose com.microsoft's normalizations, some of which are fused with sums or embeddings.

    SkipLayerNormalization(x, skip, γ, β, b)          →  LayerNormalization(x + skip + b, γ, β)
    SkipSimplifiedLayerNormalization(x, skip, γ, b)   →  s / √(mean(s²) + ε) · γ,  s = x + skip + b
    SimplifiedLayerNormalization(x, γ)                →  x / √(mean(x²) + ε) · γ
    EmbedLayerNormalization(ids, segments, …)         →  LayerNormalization(words[ids] + positions + segments)
    QEmbedLayerNormalization(ids, segments, …)        →  the same with 8-bit tables, dequantized after the lookup

16-bit floats are computed in float32 and rounded at the end, as in ONNX Runtime. Before opset 17, LayerNormalization
is decomposed as well.

Skips: unknown shapes; used mean and deviation outputs of SkipLayerNormalization, which are for training.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from passes.builders.arithmetic import Arithmetic, wide
from passes.builders.operands import given, is_output_used
from passes.legalize.contrib.fused import common_dtype
from passes.rewriting.base import Exactness, Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import UNKNOWN_DTYPE, UNKNOWN_SHAPE, Match, NodeContext, NodeRewrite

_DOMAIN = "com.microsoft"


def layer_norm(a: Arithmetic, x: ir.Value, scale: ir.Value, shift: ir.Value | None, epsilon: float) -> ir.Value:
    """(x - mean) / √(variance + ε) · scale + shift, over the last axis."""
    if a.edit.scope.opset() >= 17:
        inputs = [x, scale] if shift is None else [x, scale, shift]
        return a("LayerNormalization", *inputs, axis=-1, epsilon=epsilon)
    centred = a("Sub", x, a.reduce("Mean", x, [-1]))
    result, _ = rms_norm(a, centred, scale, [-1], epsilon)
    return result if shift is None else a("Add", result, shift)


def rms_norm(
    a: Arithmetic, x: ir.Value, scale: ir.Value, axes: Sequence[int], epsilon: float
) -> tuple[ir.Value, ir.Value]:
    """x / √(mean(x²) + ε) · scale, and 1 / √(mean(x²) + ε)."""
    root = a("Sqrt", a("Add", a.reduce("Mean", a("Mul", x, x), axes), epsilon))
    return a("Mul", a("Div", x, root), scale), a("Reciprocal", root)


@dataclass(frozen=True)
class _Found(Match):
    dtype: ir.DataType


class DecomposeSkipNormalization(NodeRewrite[_Found]):
    """Write SkipLayerNormalization and SkipSimplifiedLayerNormalization as a sum and a normalization."""

    name = "decompose-skip-normalization"
    exactness = Exactness.ROUNDING
    operators = frozenset({(_DOMAIN, "SkipLayerNormalization"), (_DOMAIN, "SkipSimplifiedLayerNormalization")})

    def match(self, node: ir.Node, context: NodeContext) -> _Found | Skip | None:
        """Match unless an output for training is used."""
        dtype = common_dtype(node, context.scope)
        if dtype is None:
            return Skip(UNKNOWN_DTYPE)
        if is_output_used(node, 1) or is_output_used(node, 2):
            return Skip("its mean or deviation is used, which only training needs")
        return _Found(node, dtype)

    def rewrite(self, match: _Found, edit: Edit) -> Sequence[ir.Value | None]:
        """Add, then normalize over the last axis."""
        node, a = match.node, Arithmetic(edit, wide(match.dtype))
        simplified = node.op_type == "SkipSimplifiedLayerNormalization"

        def operand(index: int) -> ir.Value | None:
            value = given(node, index)
            return None if value is None else a.cast(value)

        x, skip, scale, bias = operand(0), operand(1), operand(2), operand(3 if simplified else 4)
        assert x is not None
        assert scale is not None
        total = x if skip is None else a("Add", x, skip)
        total = total if bias is None else a("Add", total, bias)
        epsilon = node.attributes.get_float("epsilon", 1e-12)
        if simplified:
            output, _ = rms_norm(a, total, scale, [-1], epsilon)
        else:
            output = layer_norm(a, total, scale, operand(3), epsilon)
        results = [a.cast(each, match.dtype) for each in (output, total)]
        return [results[0], None, None, results[1]][: len(node.outputs)]


@dataclass(frozen=True)
class _Simplified(_Found):
    rank: int


class DecomposeSimplifiedLayerNormalization(NodeRewrite[_Simplified]):
    """Write SimplifiedLayerNormalization, ONNX Runtime's RMS normalization, as means and products."""

    name = "decompose-simplified-layer-normalization"
    exactness = Exactness.ROUNDING
    operators = frozenset({("", "SimplifiedLayerNormalization"), (_DOMAIN, "SimplifiedLayerNormalization")})
    needs_dtype = (0,)

    def match(self, node: ir.Node, context: NodeContext) -> _Simplified | Skip | None:
        """Match an input of known rank."""
        shape = context.scope.shape(node.inputs[0])
        return Skip(UNKNOWN_SHAPE) if shape is None else _Simplified(node, context.dtype(node), len(shape))

    def rewrite(self, match: _Simplified, edit: Edit) -> Sequence[ir.Value | None]:
        """Normalize over all axes from ``axis`` on."""
        node, a = match.node, Arithmetic(edit, wide(match.dtype))
        x, scale = node.inputs[:2]
        assert x is not None
        assert scale is not None
        given_scale = edit.scope.dtype(scale) or match.dtype
        first = node.attributes.get_int("axis", -1) % match.rank
        output, inverse = rms_norm(
            a,
            a.cast(x),
            a.cast(scale),
            range(first, match.rank),
            node.attributes.get_float("epsilon", 1e-5),
        )
        return [a.cast(output, given_scale), a.cast(inverse, ir.DataType.FLOAT)][: len(node.outputs)]


class DecomposeEmbedLayerNormalization(NodeRewrite[_Found]):
    """Write EmbedLayerNormalization as lookups, a sum and a normalization."""

    name = "decompose-embed-layer-normalization"
    exactness = Exactness.ROUNDING
    operators = frozenset({(_DOMAIN, "EmbedLayerNormalization")})
    needs_shape = (0,)
    needs_dtype = (2,)

    def match(self, node: ir.Node, context: NodeContext) -> _Found | Skip | None:
        """Match every node whose number of positions is known."""
        return _Found(node, context.dtype(node, 2))

    def rewrite(self, match: _Found, edit: Edit) -> Sequence[ir.Value | None]:
        """Look up words, positions and segments, normalize, and count the words that the mask keeps."""
        node, a = match.node, Arithmetic(edit, match.dtype)
        ids, segments, words, positions, kinds, scale, shift = node.inputs[:7]
        mask, places = given(node, 7), given(node, 8)
        shape = edit.scope.static_shape(ids)
        assert shape is not None
        assert scale is not None
        if places is None:
            places = a.index(np.arange(shape[1])[None, :])
        total = a("Add", a("Gather", words, ids, axis=0), a("Gather", positions, places, axis=0))
        if segments is not None and kinds is not None:
            total = a("Add", total, a("Gather", kinds, segments, axis=0))
        inner = Arithmetic(edit, wide(match.dtype))
        scale, shift = (None if each is None else inner.cast(each) for each in (scale, shift))
        assert scale is not None
        epsilon = node.attributes.get_float("epsilon", 1e-12)
        output = a.cast(layer_norm(inner, inner.cast(total), scale, shift, epsilon))
        return [output, _counted(a, mask, shape[0]), total][: len(node.outputs)]


def _counted(a: Arithmetic, mask: ir.Value | None, batch: int) -> ir.Value:
    """The number of words of each sample that a mask keeps; 0 without a mask."""
    if mask is None:
        return a.edit.constant(np.zeros(batch, np.int32))
    ones = a("Cast", a("Equal", mask, a.edit.constant(np.array(1, np.int32))), to=int(ir.DataType.INT32))
    return a.reduce("Sum", ones, [1], keepdims=False)


class DecomposeQEmbedLayerNormalization(NodeRewrite[_Found]):
    """Write QEmbedLayerNormalization as lookups, products, a sum and a normalization."""

    name = "decompose-q-embed-layer-normalization"
    exactness = Exactness.ROUNDING
    operators = frozenset({(_DOMAIN, "QEmbedLayerNormalization")})
    needs_shape = (0,)

    def match(self, node: ir.Node, context: NodeContext) -> _Found | Skip | None:
        """Match every node whose number of positions is known."""
        return _Found(node, ir.DataType.FLOAT)

    def rewrite(self, match: _Found, edit: Edit) -> Sequence[ir.Value | None]:
        """Look up, dequantize and normalize; tables, scale and shift each have their own scale and zero point."""
        node, a = match.node, Arithmetic(edit, match.dtype)
        ids, segments, *tables = node.inputs[:7]
        shape = edit.scope.static_shape(ids)
        assert shape is not None
        places = a.index(np.arange(shape[1])[None, :])
        words, positions, kinds, scale, shift = (
            None
            if table is None
            else self._dequantized(a, table, rows, node.inputs[8 + index], node.inputs[13 + index])
            for index, (table, rows) in enumerate(zip(tables, (ids, places, segments, None, None), strict=True))
        )
        assert words is not None and positions is not None and scale is not None
        total = a("Add", words, positions)
        total = total if kinds is None else a("Add", total, kinds)
        output = layer_norm(a, total, scale, shift, node.attributes.get_float("epsilon", 1e-12))
        return [output, _counted(a, given(node, 7), shape[0])][: len(node.outputs)]

    @staticmethod
    def _dequantized(
        a: Arithmetic, table: ir.Value, rows: ir.Value | None, scale: ir.Value | None, zero: ir.Value | None
    ) -> ir.Value:
        """(table − zero point) · scale, of some rows or all."""
        chosen = table if rows is None else a("Gather", table, rows, axis=0)
        number, point = (a("Cast", each, to=int(ir.DataType.FLOAT)) for each in (chosen, zero))
        return a("Mul", a("Sub", number, point), scale)


RULES: tuple[NodeRewrite[Any], ...] = (
    DecomposeSkipNormalization(),
    DecomposeSimplifiedLayerNormalization(),
    DecomposeEmbedLayerNormalization(),
    DecomposeQEmbedLayerNormalization(),
)
