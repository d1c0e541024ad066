"""Decompose ONNX's Attention into matrix products and a softmax.

    Attention(Q, K, V)  →  Softmax(scale · Q · Kᵀ + mask) · V              (ONNX operator, since 23)

MIGraphX interprets every operator named Attention as that of com.microsoft, whatever its domain. The standard's
function body is correct, but adds zeros, scales twice, copies keys for grouped heads and guards against rows without
keys that cannot occur. Here everything that attributes and shapes determine is constant: a causal mask and a window
become one constant, and only sequence lengths that are inputs are compared at run time.

Skips: dynamic shapes; empty tensors.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from passes.builders.arithmetic import Arithmetic
from passes.builders.attention import (
    Allowed,
    Heads,
    Scoring,
    attend,
    default_scale,
    intersection,
    merge_heads,
    split_heads,
)
from passes.builders.operands import given
from passes.rewriting.base import Exactness, Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import Replacement, rewrite

_SCORE_OUTPUTS = ("raw", "capped", "biased", "probabilities")
"""The fourth output, by qk_matmul_output_mode."""


@rewrite("Attention", exactness=Exactness.ROUNDING, needs_shape=(0, 1, 2, 3, 4), needs_dtype=(0, 3))
def decompose_attention(node: ir.Node, edit: Edit) -> Replacement:
    """Decompose ONNX's Attention into matrix products and a softmax."""
    if edit.scope.opset() < 23:
        return None
    attributes, a = node.attributes, Arithmetic(edit, edit.dtype(node))
    shapes, values = [edit.shape(node, i) for i in range(3)], [edit.input(node, i) for i in range(3)]
    is_flat = len(shapes[0]) == 3
    if is_flat:
        many, few = (attributes.get_int(name, 0) for name in ("q_num_heads", "kv_num_heads"))
        if many < 1 or few < 1:
            return Skip("inputs of rank 3 need q_num_heads and kv_num_heads")
        counts = (many, few, few)
        if all(0 not in shape for shape in shapes):
            values = [split_heads(a, values[i], shapes[i], counts[i]) for i in range(3)]
        shapes = [(shape[0], n, shape[1], shape[2] // n) for shape, n in zip(shapes, counts, strict=True)]
    (batch, query_heads, queries, size), (_, kv_heads, keys, _), (_, value_heads, _, value_size) = shapes
    if any(0 in shape for shape in shapes):
        return Skip("queries, keys or values are empty")
    if query_heads % kv_heads or value_heads != kv_heads:
        return Skip("the number of query heads is not a multiple of that of key and value heads")
    past_key, past_value = given(node, 4), given(node, 5)
    past = 0 if past_key is None else edit.shape(node, 4)[2]
    heads = Heads(batch, query_heads, kv_heads, queries, past + keys, size, value_size)
    q, k, v = values
    if past_key is not None and past_value is not None:
        k, v = a.concat([past_key, k], 2), a.concat([past_value, v], 2)
    allowed, bias = _masks(a, node, heads, past)
    precision = attributes.get_int("softmax_precision", 0)
    scoring = Scoring(
        scale=attributes.get_float("scale", default_scale(size)),
        allowed=allowed,
        bias=bias,
        softcap=attributes.get_float("softcap", 0.0),
        precision=ir.DataType(precision) if precision else None,
    )
    attended = attend(a, q, k, v, heads, scoring)
    output = attended.output
    if is_flat:
        output = merge_heads(a, output, (batch, query_heads, queries, value_size))
    scores = getattr(attended, _SCORE_OUTPUTS[attributes.get_int("qk_matmul_output_mode", 0)])
    return [output, k, v, scores]


def _masks(a: Arithmetic, node: ir.Node, heads: Heads, past: int) -> tuple[Allowed, ir.Value | None]:
    """Return which query may attend to which key, and the bias of the scores."""
    allowed, mask = _structure(a, node, heads, past), given(node, 3)
    if mask is None:
        return allowed, None
    shape, dtype = a.edit.shape(node, 3), a.edit.dtype(node, 3)
    if shape and shape[-1] < heads.keys:  # the remaining keys are masked
        rest = (*shape[:-1], heads.keys - shape[-1])
        nothing = np.full(rest, False if dtype == ir.DataType.BOOL else -np.inf).astype(dtype.numpy())
        mask = a.concat([mask, a.edit.constant(nothing)], -1)
    if dtype == ir.DataType.BOOL:
        return intersection(a, allowed, mask), None
    mask = a.cast(mask)
    return intersection(a, allowed, a("Greater", mask, -np.inf)), mask


def _structure(a: Arithmetic, node: ir.Node, heads: Heads, past: int) -> Allowed:
    """Return the mask from causality, the window and the sequence lengths: query i is at position i + offset."""
    attributes, lengths = node.attributes, given(node, 6)
    left, right = (attributes.get_int(f"{side}_window_size", -1) for side in ("left", "right"))
    if attributes.get_int("is_causal", 0):
        right = 0
    distance = np.arange(heads.keys)[None, :] - np.arange(heads.queries)[:, None]
    if lengths is None:
        allowed = np.ones_like(distance, bool)
        if right >= 0:
            allowed &= distance <= past + right
        if left >= 0:
            allowed &= distance >= past - left
        return None if allowed.all() else allowed
    valid = a.reshape(lengths, [-1, 1, 1, 1])
    result: Allowed = a("Less", a.index(np.arange(heads.keys)), valid)
    if right >= 0:
        last = a("Add", valid, a.index(right - heads.queries))
        result = intersection(a, result, a("LessOrEqual", a.index(distance), last))
    if left >= 0:
        first = a("Sub", valid, a.index(left + heads.queries))
        result = intersection(a, result, a("GreaterOrEqual", a.index(distance), first))
    return result
