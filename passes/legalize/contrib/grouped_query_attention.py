"""Write com.microsoft's GroupQueryAttention, with its cache, as products and a softmax.

    present = past, with the new keys (values) from ``seqlens_k + 1 - length`` on
    y       = softmax over the keys up to each query's own position (scale · q · presentᵀ + bias) · present

The length of each sample's past may be known only at run time, the total length must not: it decides whether the cache
grows. Without a past it can only be that of the query. If the query has the total length (the first prompt), the past
is ignored. The attributes select rotary embedding, normalization, a
softcap, a window and a sink. For padding queries, ONNX Runtime returns different values if both a window and a
softcap are set.

Skips: unknown shapes and total lengths, and quantized caches. Caches that evict have a rule of their own
(`passes.legalize.contrib.windowed_cache`).
"""

from __future__ import annotations

from collections.abc import Sequence

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
from passes.builders.operands import constant_integer, given
from passes.graphs.tensors import ints
from passes.legalize.contrib.attention import extend
from passes.legalize.contrib.normalization import rms_norm
from passes.legalize.nn.rotary import angles, rotate
from passes.rewriting.base import Exactness, Skip
from passes.rewriting.edit import Edit, not_constant
from passes.rewriting.rewrite import Replacement, rewrite


@rewrite("com.microsoft.GroupQueryAttention", exactness=Exactness.ROUNDING, needs_shape=(0, 3, 5, 10), needs_dtype=(0,))
def decompose_group_query_attention(node: ir.Node, edit: Edit) -> Replacement:
    """Write com.microsoft's GroupQueryAttention as products and a softmax."""
    scope, attributes, query = edit.scope, node.attributes, edit.shape(node)
    if given(node, 12) is not None or given(node, 13) is not None:
        return Skip("the cache is quantized")
    if attributes.get_int("sliding_window_cache", 0):  # `passes.legalize.contrib.windowed_cache`
        return None
    if 0 in query:
        return Skip("the query is empty")
    past = 0 if given(node, 3) is None else edit.shape(node, 3)[2]
    total = constant_integer(node.inputs[6], scope) if past else query[1]
    if total is None:
        return Skip(not_constant(edit.input(node, 6), "total_sequence_length"))
    keys = max(past, total)
    a, heads = Arithmetic(edit, edit.dtype(node)), sizes_of(node, query, keys)
    ends = a("Add", a.reshape(a.cast(edit.input(node, 5), ir.DataType.INT64), [-1, 1, 1, 1]), a.index(1))
    start = None if query[1] == total else a("Sub", ends, a.index(heads.queries))
    q, k, v = project(a, node, heads, start)
    k, v = (_write(a, heads, new, given(node, index), past, start) for new, index in ((k, 3), (v, 4)))
    allowed, bias = _allowed(a, node, heads, start, ends), extend(a, given(node, 10), keys)
    attends = attributes.get_int("local_window_size", -1) <= 0  # a padding query may have no key within its window
    score = scoring(a, node, heads, allowed=allowed, every_query_attends=attends, bias=bias)
    attended = attend_rounded_once(a, q, k, v, heads, score)
    output = merge_heads(a, attended.output, (heads.batch, heads.query_heads, heads.queries, heads.size))
    scores = attended.probabilities
    if attributes.get_int("qk_output", 0) == 1:
        scores = a("Where", a("IsInf", attended.biased), 0.0, attended.biased)
    if total < keys:
        scores = a.slice(scores, 3, 0, total)
    return [output, k, v, scores]


def sizes_of(node: ir.Node, query: Sequence[int], keys: int) -> Heads:
    """Return the sizes of heads; ``query`` is the shape of the query, which may have keys and values beside it."""
    many, few = node.attributes.get_int("num_heads", 1), node.attributes.get_int("kv_num_heads", 1)
    size = query[2] // (many + 2 * few) if given(node, 1) is None else query[2] // many
    return Heads(query[0], many, few, query[1], keys, size, size)


def scoring(
    a: Arithmetic,
    node: ir.Node,
    heads: Heads,
    *,
    allowed: Allowed,
    every_query_attends: bool,
    bias: ir.Value | None = None,
) -> Scoring:
    """Return how the scores of a node become probabilities, by its attributes and its sink."""
    attributes, sink = node.attributes, given(node, 11)
    extra: ir.Value | float | None = 0.0 if attributes.get_int("smooth_softmax", 0) == 1 else None
    return Scoring(
        scale=attributes.get_float("scale", 0.0) or default_scale(heads.size),
        allowed=allowed,
        every_query_attends=every_query_attends,
        bias=bias,
        softcap=attributes.get_float("softcap", 0.0),
        sink=extra if sink is None else a.reshape(sink, [1, -1, 1, 1]),
    )


def project(a: Arithmetic, node: ir.Node, heads: Heads, start: ir.Value | None) -> tuple[ir.Value, ir.Value, ir.Value]:
    """Return queries and keys, normalized and rotated, and values, (batch, heads, length, size) each.

    ``start`` is the position of the first new token; None for 0.
    """
    q, k, v = a.edit.input(node), given(node, 1), given(node, 2)
    counts = (heads.query_heads, heads.kv_heads, heads.kv_heads)
    if k is None or v is None:
        ends = np.cumsum((0, *(count * heads.size for count in counts))).tolist()
        q, k, v = (a.slice(q, 2, ends[i], ends[i + 1]) for i in range(3))
    q, k, v = (
        split_heads(a, x, (heads.batch, heads.queries, count * heads.size), count)
        for x, count in zip((q, k, v), counts, strict=True)
    )
    q = _rotate(a, node, heads, q, heads.query_heads, given(node, 14), start)
    return q, _rotate(a, node, heads, k, heads.kv_heads, given(node, 15), start), v


def _rotate(
    a: Arithmetic, node: ir.Node, heads: Heads, x: ir.Value, count: int, weight: ir.Value | None, start: ir.Value | None
) -> ir.Value:
    """Normalize and rotate queries or keys of ``count`` heads; ``weight`` is the factor of the normalization."""
    attributes = node.attributes
    if weight is not None:
        x, _ = rms_norm(a, x, weight, [-1], attributes.get_float("qk_norm_epsilon", 1e-6))
    cos, sin, positions = given(node, 7), given(node, 8), given(node, 9)
    if not attributes.get_int("do_rotary", 0) or cos is None or sin is None:
        return x
    steps = a.index(np.arange(heads.queries)[None, :])
    if positions is None:
        positions = steps if start is None else a("Add", a.reshape(start, [-1, 1]), steps)
    elif start is None:  # ONNX Runtime reads the first position only
        positions = a("Add", a.slice(a.reshape(positions, [1, -1]), 1, 0, 1), steps)
    cache = a.edit.scope.static_shape(cos)
    half = cache[1] if cache is not None else heads.size // 2
    shape = (heads.batch, count, heads.queries, heads.size)
    is_interleaved = bool(attributes.get_int("rotary_interleaved", 0))
    return rotate(a, x, shape, angles(a, cos, positions), angles(a, sin, positions), half, interleaved=is_interleaved)


def _write(
    a: Arithmetic, heads: Heads, new: ir.Value, old: ir.Value | None, past: int, start: ir.Value | None
) -> ir.Value:
    """Return the ``old`` cache, of length ``past``, with the keys or values of the new tokens.

    ``start`` is where each sample's new tokens begin; None for the beginning of the cache.
    """
    shape = [heads.batch, heads.kv_heads, heads.keys, heads.size]

    def pad(x: ir.Value, length: int) -> ir.Value:
        if length == heads.keys:
            return x
        return a.concat([x, a.value(np.zeros([*shape[:2], heads.keys - length, heads.size]))], 2)

    if start is None:
        return pad(new, heads.queries)
    offset = a("Sub", a.index(np.arange(heads.keys).reshape(1, 1, -1, 1)), start)
    if heads.queries > 1:
        is_chosen = a("Equal", offset, a.index(np.arange(heads.queries).reshape(1, 1, 1, -1)))
        new = a("MatMul", a.cast(is_chosen), new)
    is_after = a("Not", a("Less", offset, a.index(0)))
    is_new = a("And", is_after, a("Less", offset, a.index(heads.queries)))
    if old is None or past == 0:
        return a("Where", is_new, new, 0.0)
    return a("Where", is_new, new, a("Where", is_after, 0.0, pad(old, past)))


def _allowed(a: Arithmetic, node: ir.Node, heads: Heads, start: ir.Value | None, ends: ir.Value) -> Allowed:
    """Return the keys up to the query's own position and within the window; without causality, all valid keys."""
    window = node.attributes.get_int("local_window_size", -1)
    distance = np.arange(heads.keys)[None, :] - np.arange(heads.queries)[:, None]
    valid = a("Less", a.index(np.arange(heads.keys)), ends)
    if not node.attributes.get_int("causal", 1):
        return valid
    if start is None:  # samples may have padding at the end
        within = (distance <= 0) & (distance > -window) if window > 0 else distance <= 0
        lengths = ints(a.edit.scope.constant(node.inputs[5]))
        is_full = lengths is not None and all(length + 1 >= heads.queries for length in lengths)
        return within if is_full else intersection(a, within, valid)
    apart = a.index(distance)
    allowed: Allowed = a("Not", a("Greater", apart, start))
    if window > 0:
        allowed = intersection(a, allowed, a("Greater", apart, a("Sub", start, a.index(window))))
    return allowed
