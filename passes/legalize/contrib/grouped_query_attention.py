"""Write com.microsoft's GroupQueryAttention, with its cache, as products and a softmax.

    present = past, with the new keys (values) from ``seqlens_k + 1 - length`` on
    y       = softmax over the keys up to each query's own position (scale · q · presentᵀ + bias) · present

The length of each sample's past may be known only at run time; the length of the cache must be static. Where the query
has the total length (the first prompt), the past is ignored. The attributes select rotary embedding, normalization, a
softcap, a window and a sink. For padding queries, ONNX Runtime returns different values where both a window and a
softcap are set.

Skips: unknown shapes and total lengths (for a single new token, the length of the cache is enough), and quantized
caches. Caches that evict have a rule of their own (`passes.legalize.contrib.windowed_cache`).
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
    attend_rounded_once,
    default_scale,
    intersection,
    merge_heads,
    split_heads,
)
from passes.builders.operands import constant_integer, given, not_constant
from passes.graphs.tensors import ints
from passes.legalize.nn.rotary import angles, rotate
from passes.rewriting.base import Exactness, Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import Match, NodeContext, NodeRewrite


@dataclass(frozen=True)
class Found(Match):
    """The static facts.

    Attributes:
        heads: the sizes, with the whole cache as keys.
        past: the length of the past cache.
        total: the length of the longest sample, including new tokens; None where it is known only at run time.
        first: whether there is no past.
        dtype: of the queries.
    """

    heads: Heads
    past: int
    total: int | None
    first: bool
    dtype: ir.DataType


class DecomposeGroupQueryAttention(NodeRewrite[Found]):
    """Write com.microsoft's GroupQueryAttention as products and a softmax."""

    name = "decompose-group-query-attention"
    exactness = Exactness.ROUNDING
    operators = frozenset({("com.microsoft", "GroupQueryAttention")})
    needs_shape = (0, 3, 5, 10)
    needs_dtype = (0,)

    def match(self, node: ir.Node, context: NodeContext) -> Found | Skip | None:
        """Match known sizes; for a single new token, the total length may be known only at run time."""
        scope, attributes = context.scope, node.attributes
        q, before = context.shape(node), (0, 0, 0, 0) if given(node, 3) is None else context.shape(node, 3)
        if given(node, 12) is not None or given(node, 13) is not None:
            return Skip("its cache is quantized")
        if attributes.get_int("sliding_window_cache", 0):  # `passes.legalize.contrib.windowed_cache`
            return None
        if 0 in q:
            return Skip("its query is empty")
        total = constant_integer(node.inputs[6], scope)
        declared = scope.proven_sizes(node.outputs[1]) if len(node.outputs) > 1 else None
        if total is None and (q[1] > 1 or declared is None):
            assert node.inputs[6] is not None
            return Skip(not_constant(node.inputs[6], "total_sequence_length"))
        keys = declared[2] if total is None and declared is not None else max(before[2], total or 0)
        return Found(node, sizes_of(node, q, keys), before[2], total, q[1] == total, context.dtype(node))

    def rewrite(self, match: Found, edit: Edit) -> Sequence[ir.Value | None]:
        """Split and rotate, write the cache, and attend to it."""
        node, heads, attributes = match.node, match.heads, match.node.attributes
        a = Arithmetic(edit, match.dtype)
        lengths = node.inputs[5]
        assert lengths is not None
        ends = a("Add", a.reshape(a("Cast", lengths, to=int(ir.DataType.INT64)), [-1, 1, 1, 1]), a.index(1))
        start = None if match.first else a("Sub", ends, a.index(heads.queries))
        q, k, v = split(a, node, heads)
        q, k = (
            rotated(a, match, x, count, weight, start)
            for x, count, weight in (
                (q, heads.query_heads, given(node, 14)),
                (k, heads.kv_heads, given(node, 15)),
            )
        )
        k, v = (_cached(a, match, new, old, start) for new, old in ((k, given(node, 3)), (v, given(node, 4))))
        done = attend_rounded_once(
            a,
            q,
            k,
            v,
            heads,
            Scoring(
                scale=attributes.get_float("scale", 0.0) or default_scale(heads.size),
                allowed=_allowed(a, match, start, ends),
                # a padding query may have all keys outside of its window
                every_query_attends=attributes.get_int("local_window_size", -1) <= 0,
                bias=_bias(a, match),
                softcap=attributes.get_float("softcap", 0.0),
                sink=sink_of(a, node),
            ),
        )
        output = merge_heads(a, done.output, (heads.batch, heads.query_heads, heads.queries, heads.size))
        scores = done.probabilities
        if attributes.get_int("qk_output", 0) == 1:
            scores = a("Where", a("IsInf", done.biased), 0.0, done.biased)
        if match.total is not None and match.total < heads.keys:
            scores = a.slice(scores, 3, 0, match.total)
        return [output, k, v, scores][: len(node.outputs)]


def sizes_of(node: ir.Node, query: Sequence[int], keys: int) -> Heads:
    """The sizes of heads; ``query`` is the shape of the query, which may have keys and values beside it."""
    many, few = node.attributes.get_int("num_heads", 1), node.attributes.get_int("kv_num_heads", 1)
    size = query[2] // (many + 2 * few) if given(node, 1) is None else query[2] // many
    return Heads(query[0], many, few, query[1], keys, size, size)


def sink_of(a: Arithmetic, node: ir.Node) -> ir.Value | float | None:
    """The score whose probability is dropped, if there is one."""
    sink = given(node, 11)
    if sink is not None:
        return a.reshape(sink, [1, -1, 1, 1])
    return 0.0 if node.attributes.get_int("smooth_softmax", 0) == 1 else None


def split(a: Arithmetic, node: ir.Node, heads: Heads) -> tuple[ir.Value, ir.Value, ir.Value]:
    """Queries, keys and values as (batch, heads, length, size)."""
    q, k, v = (given(node, index) for index in range(3))
    assert q is not None
    counts = (heads.query_heads, heads.kv_heads, heads.kv_heads)
    if k is None or v is None:
        ends = np.cumsum((0, *(count * heads.size for count in counts)))
        q, k, v = (a.slice(q, 2, int(ends[i]), int(ends[i + 1])) for i in range(3))
    q, k, v = (
        split_heads(a, x, (heads.batch, heads.queries, count * heads.size), count)
        for x, count in zip((q, k, v), counts, strict=True)
    )
    return q, k, v


def rotated(
    a: Arithmetic, match: Found, x: ir.Value, count: int, weight: ir.Value | None, start: ir.Value | None
) -> ir.Value:
    """Queries or keys, normalized and rotated; ``start`` is the position of the first new token, None for 0."""
    node, heads, attributes = match.node, match.heads, match.node.attributes
    if weight is not None:
        epsilon = attributes.get_float("qk_norm_epsilon", 1e-6)
        mean = a.reduce("Mean", a("Mul", x, x), [-1])
        x = a("Mul", a("Div", x, a("Sqrt", a("Add", mean, epsilon))), weight)
    cos, sin = given(node, 7), given(node, 8)
    if not attributes.get_int("do_rotary", 0) or cos is None or sin is None:
        return x
    positions, steps = given(node, 9), a.index(np.arange(heads.queries)[None, :])
    if positions is None:
        positions = steps if start is None else a("Add", a.reshape(start, [-1, 1]), steps)
    elif start is None:  # ONNX Runtime reads the first position only
        positions = a("Add", a.slice(a.reshape(positions, [1, -1]), 1, 0, 1), steps)
    cache = a.edit.scope.static_shape(cos)
    half = cache[1] if cache is not None else heads.size // 2
    shape = (heads.batch, count, heads.queries, heads.size)
    interleaved = bool(attributes.get_int("rotary_interleaved", 0))
    return rotate(a, x, shape, angles(a, cos, positions), angles(a, sin, positions), half, interleaved=interleaved)


def _cached(a: Arithmetic, match: Found, new: ir.Value, old: ir.Value | None, start: ir.Value | None) -> ir.Value:
    """The cache with the new tokens: at its beginning where ``start`` is None, else from each sample's start on."""
    heads = match.heads
    shape = [heads.batch, heads.kv_heads, heads.keys, heads.size]

    def padded(x: ir.Value, length: int) -> ir.Value:
        rest = np.zeros([*shape[:2], heads.keys - length, heads.size])
        return x if length == heads.keys else a.concat([x, a.value(rest)], 2)

    if start is None:
        return padded(new, heads.queries)
    place = a.index(np.arange(heads.keys).reshape(1, 1, -1, 1))
    offset = a("Sub", place, start)
    if heads.queries > 1:
        chosen = a("Equal", offset, a.index(np.arange(heads.queries).reshape(1, 1, 1, -1)))
        new = a("MatMul", a("Cast", chosen, to=int(a.dtype)), new)
    fresh = a("Not", a("Less", offset, a.index(0)))
    inside = a("Less", offset, a.index(heads.queries))
    if old is None or match.past == 0:
        return a("Where", a("And", fresh, inside), new, 0.0)
    kept = a("Where", fresh, 0.0, padded(old, match.past))
    return a("Where", a("And", fresh, inside), new, kept)


def _allowed(a: Arithmetic, match: Found, start: ir.Value | None, ends: ir.Value) -> Allowed:
    """The keys up to the query's own position and within the window; without causality, all valid keys."""
    heads, attributes = match.heads, match.node.attributes
    window = attributes.get_int("local_window_size", -1)
    distance = np.arange(heads.keys)[None, :] - np.arange(heads.queries)[:, None]
    valid = a("Less", a.index(np.arange(heads.keys)), ends)
    if not attributes.get_int("causal", 1):
        return valid
    if start is None:  # samples may have padding at the end
        within = (distance <= 0) & (distance > -window) if window > 0 else distance <= 0
        lengths = ints(a.edit.scope.constant(match.node.inputs[5]))
        full = lengths is not None and all(length + 1 >= heads.queries for length in lengths)
        return within if full else intersection(a, within, valid)
    apart = a.index(distance)
    allowed: Allowed = a("Not", a("Greater", apart, start))
    if window > 0:
        allowed = intersection(a, allowed, a("Greater", apart, a("Sub", start, a.index(window))))
    return allowed


def _bias(a: Arithmetic, match: Found) -> ir.Value | None:
    """The bias of the scores, extended with zeros to the whole cache."""
    bias, keys = given(match.node, 10), match.heads.keys
    shape = a.edit.scope.static_shape(bias)
    if bias is None or shape is None or shape[-1] == keys:
        return bias
    return a.concat([bias, a.value(np.zeros((*shape[:-1], keys - shape[-1])))], -1)


RULES: tuple[NodeRewrite[Any], ...] = (DecomposeGroupQueryAttention(),)
