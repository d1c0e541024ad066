"""Decompose ONNX's Attention into matrix products and a softmax.

    Attention(Q, K, V)  →  Softmax(scale · Q · Kᵀ + mask) · V              (ONNX operator, since 23)

MIGraphX interprets every operator named Attention as that of com.microsoft, whatever its domain. The standard's
function body is correct, but adds zeros, scales twice, copies keys for grouped heads and guards against rows without
keys that cannot occur. Here everything that attributes and shapes determine is constant: a causal mask and a window
become one constant, and only sequence lengths that are inputs are compared at run time.

Skips: dynamic shapes; empty tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

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
from passes.rewriting.rewrite import Match, NodeContext, NodeRewrite

_SCORE_OUTPUTS = ("raw", "capped", "biased", "probabilities")
"""The fourth output, by qk_matmul_output_mode."""


@dataclass(frozen=True)
class _AttentionMatch(Match):
    heads: Heads
    past: int
    flat: bool
    dtype: ir.DataType


class DecomposeAttention(NodeRewrite[_AttentionMatch]):
    """Decompose ONNX's Attention into matrix products and a softmax."""

    name = "decompose-attention"
    exactness = Exactness.ROUNDING
    operators = frozenset({("", "Attention")})
    needs_shape = (0, 1, 2, 3, 4)
    needs_dtype = (0, 3)

    def match(self, node: ir.Node, context: NodeContext) -> _AttentionMatch | Skip | None:
        """Read the sizes of queries, keys and values, with or without a separate heads axis."""
        scope = context.scope
        if scope.opset() < 23:
            return None
        q, k, v = (context.shape(node, index) for index in range(3))
        past = (0, 0, 0) if given(node, 4) is None else context.shape(node, 4)
        flat = len(q) == 3
        if flat:
            many, few = (node.attributes.get_int(name, 0) for name in ("q_num_heads", "kv_num_heads"))
            if many < 1 or few < 1:
                return Skip("inputs of rank 3 need q_num_heads and kv_num_heads")
            q, k, v = ((x[0], n, x[1], x[2] // n) for x, n in ((q, many), (k, few), (v, few)))
        if 0 in (*q, *k, *v):
            return Skip("queries, keys or values are empty")
        if q[1] % k[1] or v[1] != k[1]:
            return Skip("its number of query heads is not a multiple of that of key and value heads")
        heads = Heads(q[0], q[1], k[1], q[2], past[2] + k[2], q[3], v[3])
        return _AttentionMatch(node, heads, past[2], flat, context.dtype(node))

    def rewrite(self, match: _AttentionMatch, edit: Edit) -> Sequence[ir.Value | None]:
        """The products, with the masks that the node has."""
        node, heads, attributes = match.node, match.heads, match.node.attributes
        a = Arithmetic(edit, match.dtype)
        q, k, v = node.inputs[:3]
        assert q is not None and k is not None and v is not None
        if match.flat:
            new = heads.keys - match.past
            q = split_heads(a, q, (heads.batch, heads.queries, heads.query_heads * heads.size), heads.query_heads)
            k = split_heads(a, k, (heads.batch, new, heads.kv_heads * heads.size), heads.kv_heads)
            v = split_heads(a, v, (heads.batch, new, heads.kv_heads * heads.value_size), heads.kv_heads)
        past_key, past_value = given(node, 4), given(node, 5)
        if past_key is not None and past_value is not None:
            k, v = a.concat([past_key, k], 2), a.concat([past_value, v], 2)
        allowed, bias = _masks(a, match)
        precision = attributes.get_int("softmax_precision", 0)
        attended = attend(
            a,
            q,
            k,
            v,
            heads,
            Scoring(
                scale=attributes.get_float("scale", default_scale(heads.size)),
                allowed=allowed,
                bias=bias,
                softcap=attributes.get_float("softcap", 0.0),
                precision=ir.DataType(precision) if precision else None,
            ),
        )
        output = attended.output
        if match.flat:
            output = merge_heads(a, output, (heads.batch, heads.query_heads, heads.queries, heads.value_size))
        scores = getattr(attended, _SCORE_OUTPUTS[attributes.get_int("qk_matmul_output_mode", 0)])
        return [output, k, v, scores][: len(node.outputs)]


def _masks(a: Arithmetic, match: _AttentionMatch) -> tuple[Allowed, ir.Value | None]:
    """Which query may attend to which key, and the bias of the scores."""
    allowed, mask = _structure(a, match), given(match.node, 3)
    if mask is None:
        return allowed, None
    shape, dtype = a.edit.scope.static_shape(mask), a.edit.scope.dtype(mask)
    assert shape is not None
    assert dtype is not None
    if shape and shape[-1] < match.heads.keys:  # the remaining keys are masked
        rest = (*shape[:-1], match.heads.keys - shape[-1])
        nothing = np.full(rest, False if dtype == ir.DataType.BOOL else -np.inf).astype(dtype.numpy())
        mask = a.concat([mask, a.edit.constant(nothing)], -1)
    if dtype == ir.DataType.BOOL:
        return intersection(a, allowed, mask), None
    mask = a.cast(mask)
    return intersection(a, allowed, a("Greater", mask, -np.inf)), mask


def _structure(a: Arithmetic, match: _AttentionMatch) -> Allowed:
    """The mask from causality, the window and the sequence lengths: query i is at position i + offset."""
    attributes, heads, lengths = match.node.attributes, match.heads, given(match.node, 6)
    left, right = (attributes.get_int(f"{side}_window_size", -1) for side in ("left", "right"))
    if attributes.get_int("is_causal", 0):
        right = 0
    distance = np.arange(heads.keys)[None, :] - np.arange(heads.queries)[:, None]
    if lengths is None:
        allowed = np.ones_like(distance, bool)
        if right >= 0:
            allowed &= distance <= match.past + right
        if left >= 0:
            allowed &= distance >= match.past - left
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


RULES: tuple[NodeRewrite[Any], ...] = (DecomposeAttention(),)
