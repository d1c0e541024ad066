"""Decompose com.microsoft's normalizations, some of which are fused with sums or embeddings.

    SkipLayerNormalization(x, skip, γ, β, b)          →  LayerNormalization(x + skip + b, γ, β)
    SkipSimplifiedLayerNormalization(x, skip, γ, b)   →  s / √(mean(s²) + ε) · γ,  s = x + skip + b
    SimplifiedLayerNormalization(x, γ)                →  x / √(mean(x²) + ε) · γ
    EmbedLayerNormalization(ids, segments, …)         →  LayerNormalization(words[ids] + positions + segments)
    QEmbedLayerNormalization(ids, segments, …)        →  the same with 8-bit tables, dequantized after the lookup
    GroupNorm(x, γ, β)               →  activation(γ · (x − mean) / √(variance + ε) + β)   per group of channels
    SkipGroupNorm(x, γ, β, skip, b)  →  GroupNorm(s, γ, β), s = x + skip + b

16-bit floats are computed in float32 and rounded at the end, as in ONNX Runtime. Before opset 17, LayerNormalization
is decomposed as well. Channels of GroupNorm are the last axis, unless ``channels_last`` is 0.

Skips: unknown shapes; activations other than SiLU; used mean and deviation outputs of SkipLayerNormalization, which
are for training.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from passes.builders.arithmetic import Arithmetic, wide
from passes.builders.operands import given, is_output_used
from passes.legalize.contrib.fused import common_dtype
from passes.rewriting.base import Exactness, Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import UNKNOWN_SHAPE, Replacement, rewrite


def layer_norm(a: Arithmetic, x: ir.Value, scale: ir.Value, shift: ir.Value | None, epsilon: float) -> ir.Value:
    """Return (x - mean) / √(variance + ε) · scale + shift, over the last axis."""
    x, *factors = (a.cast(value) for value in (x, scale, shift) if value is not None)
    if a.edit.scope.opset() >= 17:
        return a("LayerNormalization", x, *factors, axis=-1, epsilon=epsilon)
    y, _ = rms_norm(a, a("Sub", x, a.reduce("Mean", x, [-1])), factors[0], [-1], epsilon)
    return a("Add", y, factors[1]) if shift is not None else y


def rms_norm(
    a: Arithmetic, x: ir.Value, scale: ir.Value, axes: Sequence[int], epsilon: float
) -> tuple[ir.Value, ir.Value]:
    """Return x / √(mean(x²) + ε) · scale, and 1 / √(mean(x²) + ε)."""
    x = a.cast(x)
    root = a("Sqrt", a("Add", a.reduce("Mean", a("Mul", x, x), axes), epsilon))
    return a("Mul", a("Div", x, root), a.cast(scale)), a("Reciprocal", root)


@rewrite(
    "com.microsoft.SkipLayerNormalization",
    "com.microsoft.SkipSimplifiedLayerNormalization",
    exactness=Exactness.ROUNDING,
)
def decompose_skip_normalization(node: ir.Node, edit: Edit) -> Replacement:
    """Write SkipLayerNormalization and SkipSimplifiedLayerNormalization as a sum and a normalization."""
    dtype = common_dtype(node, edit)
    if is_output_used(node, 1) or is_output_used(node, 2):
        return Skip("the mean or deviation is used, which only training needs")
    a, simplified = Arithmetic(edit, wide(dtype)), node.op_type == "SkipSimplifiedLayerNormalization"
    total = a("Add", a.cast(edit.input(node, 0)), a.cast(edit.input(node, 1)))
    bias = given(node, 3 if simplified else 4)
    if bias is not None:
        total = a("Add", total, a.cast(bias))
    scale, epsilon = edit.input(node, 2), node.attributes.get_float("epsilon", 1e-12)
    if simplified:
        y, _ = rms_norm(a, total, scale, [-1], epsilon)
    else:
        y = layer_norm(a, total, scale, given(node, 3), epsilon)
    return [a.cast(y, dtype), None, None, a.cast(total, dtype)]


@rewrite(
    "SimplifiedLayerNormalization",
    "com.microsoft.SimplifiedLayerNormalization",
    exactness=Exactness.ROUNDING,
    needs_dtype=(0,),
)
def decompose_simplified_layer_normalization(node: ir.Node, edit: Edit) -> Replacement:
    """Write SimplifiedLayerNormalization, ONNX Runtime's RMS normalization, as means and products."""
    dtype, shape = edit.dtype(node), edit.scope.shape(node.inputs[0])  # the rank is sufficient
    if shape is None:
        return Skip(UNKNOWN_SHAPE)
    a, rank, scale = Arithmetic(edit, wide(dtype)), len(shape), edit.input(node, 1)
    axes = range(node.attributes.get_int("axis", -1) % rank, rank)
    y, inverse = rms_norm(a, edit.input(node), scale, axes, node.attributes.get_float("epsilon", 1e-5))
    y = a.cast(y, edit.scope.dtype(scale) or dtype)
    return [y, a.cast(inverse, ir.DataType.FLOAT)]


@rewrite("com.microsoft.EmbedLayerNormalization", exactness=Exactness.ROUNDING, needs_shape=(0,), needs_dtype=(2,))
def decompose_embed_layer_normalization(node: ir.Node, edit: Edit) -> Replacement:
    """Write EmbedLayerNormalization as lookups, a sum and a normalization."""
    ids, segments, words, positions, kinds = node.inputs[:5]
    (batch, length), dtype, places = edit.shape(node), edit.dtype(node, 2), given(node, 8)
    if places is None:
        places = edit.index(np.arange(length)[None, :])
    a, inner = Arithmetic(edit, dtype), Arithmetic(edit, wide(dtype))
    total = a("Add", a("Gather", words, ids, axis=0), a("Gather", positions, places, axis=0))
    if segments is not None and kinds is not None:
        total = a("Add", total, a("Gather", kinds, segments, axis=0))
    y = layer_norm(inner, total, edit.input(node, 5), given(node, 6), node.attributes.get_float("epsilon", 1e-12))
    return [a.cast(y), _kept_words(a, given(node, 7), batch), total]


def _kept_words(a: Arithmetic, mask: ir.Value | None, batch: int) -> ir.Value:
    """Return the number of words of each sample that a mask keeps; 0 without a mask."""
    if mask is None:
        return a.constant(np.zeros(batch, np.int32))
    kept = a.cast(a("Equal", mask, a.constant(np.int32(1))), ir.DataType.INT32)
    return a.reduce("Sum", kept, [1], keepdims=False)


@rewrite("com.microsoft.QEmbedLayerNormalization", exactness=Exactness.ROUNDING, needs_shape=(0,))
def decompose_q_embed_layer_normalization(node: ir.Node, edit: Edit) -> Replacement:
    """Write QEmbedLayerNormalization as lookups, products, a sum and a normalization."""
    a, (batch, length) = Arithmetic(edit, ir.DataType.FLOAT), edit.shape(node)

    def dequantize(index: int, rows: ir.Value | None = None) -> ir.Value:
        """Return (table − zero point) · scale, of some rows or all."""
        table = edit.input(node, index)
        numbers = table if rows is None else a("Gather", table, rows, axis=0)
        return a("Mul", a("Sub", a.cast(numbers), a.cast(edit.input(node, index + 11))), node.inputs[index + 6])

    places = edit.index(np.arange(length)[None, :])
    total = a("Add", dequantize(2, node.inputs[0]), dequantize(3, places))
    if node.inputs[4] is not None:
        total = a("Add", total, dequantize(4, node.inputs[1]))
    y = layer_norm(a, total, dequantize(5), dequantize(6), node.attributes.get_float("epsilon", 1e-12))
    return [y, _kept_words(a, given(node, 7), batch)]


@rewrite(
    "com.microsoft.GroupNorm",
    "com.microsoft.SkipGroupNorm",
    exactness=Exactness.ROUNDING,
    needs_shape=(0, 3),
    needs_dtype=(0,),
)
def decompose_group_norm(node: ir.Node, edit: Edit) -> Replacement:
    """Write GroupNorm and SkipGroupNorm as means and products."""
    activation = node.attributes.get_int("activation", 0)
    if activation not in (0, 1):
        return Skip(f"the activation {activation} is neither none nor SiLU")
    shape, dtype = edit.shape(node), edit.dtype(node)
    a, is_last = Arithmetic(edit, wide(dtype)), bool(node.attributes.get_int("channels_last", 1))
    ones = [1] * (len(shape) - 2)

    def spread(value: ir.Value, *before: int) -> ir.Value:
        """Give a value of shape (…, channels) spatial axes of size 1."""
        value, channels = a.cast(value), shape[-1 if is_last else 1]
        if not before and is_last:
            return value
        return a.reshape(value, [*before, *ones, channels] if is_last else [*before, channels, *ones])

    total, skip, bias = a.cast(edit.input(node)), given(node, 3), given(node, 4)
    if skip is not None:
        sizes = edit.shape(node, 3)
        total = a("Add", total, spread(skip, sizes[0]) if len(sizes) == 2 else a.cast(skip))
    if bias is not None:
        total = a("Add", total, spread(bias))
    y = a.reshape(_normalize(a, total, node, shape, is_last), shape)
    y = a("Add", a("Mul", y, spread(edit.input(node, 1))), spread(edit.input(node, 2)))
    if activation:
        y = a("Mul", y, a("Sigmoid", y))
    return [a.cast(y, dtype), a.cast(total, dtype)]


def _normalize(a: Arithmetic, x: ir.Value, node: ir.Node, shape: tuple[int, ...], is_last: bool) -> ir.Value:
    """Return ``x`` normalized per group, reshaped so that the groups have an axis of their own."""
    batch, groups = shape[0], node.attributes["groups"].as_int()
    size = shape[-1 if is_last else 1] // groups
    places = math.prod(shape[1:]) // (groups * size)
    x = a.reshape(x, [batch, places, groups, size] if is_last else [batch, groups, size * places])
    axes = [1, 3] if is_last else [2]
    centred = a("Sub", x, a.reduce("Mean", x, axes))
    variance = a.reduce("Mean", a("Mul", centred, centred), axes)
    return a("Div", centred, a("Sqrt", a("Add", variance, node.attributes.get_float("epsilon", 1e-5))))
