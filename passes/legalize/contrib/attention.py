"""Write com.microsoft's attention of as many heads of keys as of queries as products and a softmax.

    MultiHeadAttention(query, key, value, …)         q, k and v come as they are, packed, or as heads already
    DecoderMaskedMultiHeadAttention(query, …)        the same for one query, which may be written into a buffer
    Attention(x, W, b, …)                            (q, k, v) = x · W + b
    QAttention(x, W, b, scales, …)                   the same of quantized x and W

Masks say which keys count: by number for each key, or by the length of each sample, or by its end and start. A key that
does not count gets ``mask_filter_value`` added to its score; one that lies ahead of the query, the lowest number.

Skips: shapes that are not known, masks of four axes or with the starts of packed samples, rotation within the operator,
buffers that past and present share (but for one query), and beams.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from passes.build.arithmetic import Arithmetic
from passes.build.attention import Attended, Heads, Scoring, attend, merge_heads, split_heads
from passes.build.operands import UNKNOWN_SHAPE, given, sizes_of
from passes.core.base import Exactness, Skip
from passes.core.edit import Edit
from passes.core.graphs import Scope
from passes.core.matching import is_plain
from passes.core.rewrite import Match, NodeContext, NodeRewrite

_DOMAIN = "com.microsoft"
_MASK = "its mask is of a kind that says more than which keys count"
_SHARED = "past and present share a buffer"


@dataclass(frozen=True)
class _Found(Match):
    """Attributes: the sizes; the length of the past; the dtype."""

    heads: Heads
    past: int
    dtype: ir.DataType


def _attend(
    a: Arithmetic,
    match: _Found,
    q: ir.Value,
    k: ir.Value,
    v: ir.Value,
    *,
    mask: ir.Value | None,
    bias: ir.Value | None,
    causal: bool,
    allowed: ir.Value | None = None,
) -> tuple[ir.Value, Attended]:
    """What all of them do with queries, keys and values of all heads: the output, and what led to it."""
    heads, attributes = match.heads, match.node.attributes
    lowest = attributes.get_float("mask_filter_value", -10000.0)
    if mask is not None:
        penalty = a("Where", _counts(a, mask, heads), 0.0, lowest)
        bias = penalty if bias is None else a("Add", bias, penalty)
    if causal and heads.queries > 1:
        ahead = np.arange(heads.keys)[None, :] > np.arange(heads.queries)[:, None] + match.past
        wall = np.where(ahead, float(a.dtype.min), 0.0)
        # a query all of whose own keys do not count must still not look ahead
        bias = a.value(wall) if bias is None else a("Where", a.edit.constant(ahead), float(a.dtype.min), bias)
    scale = attributes.get_float("scale", 0.0) or 1 / math.sqrt(heads.size)
    done = attend(a, q, k, v, heads, Scoring(scale, allowed, bias=bias))
    shape = (heads.batch, heads.query_heads, heads.queries, heads.value_size)
    return merge_heads(a, done.output, shape), done


def _counts(a: Arithmetic, mask: ir.Value, heads: Heads) -> ir.Value:
    """Which keys count, as booleans that broadcast to (batch, heads, queries, keys)."""
    shape, zero = mask.shape, a.edit.constant(np.array(0, np.int32))
    assert shape is not None
    if len(shape) == 3:
        return a.unsqueeze(a("Greater", mask, zero), [1])
    if len(shape) == 2:
        return a.unsqueeze(a("Greater", mask, zero), [1, 2])
    keys = a.edit.constant(np.arange(heads.keys, dtype=np.int32))
    if shape[0] == heads.batch:
        return a("Less", keys, a.reshape(mask, [-1, 1, 1, 1]))
    ends, starts = (a.reshape(a.slice(mask, 0, i * heads.batch, (i + 1) * heads.batch), [-1, 1, 1, 1]) for i in (0, 1))
    return a("And", a("Less", keys, ends), a("Not", a("Less", keys, starts)))


def _bad_mask(mask: ir.Value | None, heads: Heads, scope: Scope, *, partial: bool = False) -> Skip | None:
    """Why a mask cannot be read; ``partial`` if it may stop before the end of the keys."""
    if mask is None:
        return None
    shape = sizes_of(mask, scope)
    if shape is None:
        return Skip(UNKNOWN_SHAPE)
    batch, keys = heads.batch, heads.keys
    known = ((batch,), (2 * batch,), (batch, keys), (batch, heads.queries, keys))
    return None if shape in known or (partial and len(shape) == 2) else Skip(_MASK)


@dataclass(frozen=True)
class DecomposeMultiHeadAttention(NodeRewrite[_Found]):
    """Write com.microsoft's MultiHeadAttention as products and a softmax."""

    name = "decompose-multi-head-attention"
    exactness = Exactness.ROUNDING
    operators = frozenset({(_DOMAIN, "MultiHeadAttention")})

    def match(self, node: ir.Node, context: NodeContext) -> _Found | Skip | None:
        """Read the sizes, whichever way queries, keys and values are packed."""
        scope = context.scope
        if not is_plain(node, scope):
            return None
        if given(node, 8) is not None or given(node, 9) is not None:
            return Skip(_SHARED)
        heads = _heads(node, scope, past=given(node, 6))
        if isinstance(heads, Skip):
            return heads
        past = (sizes_of(given(node, 6), scope) or (0, 0, 0))[2]
        if node.attributes.get_int("unidirectional", 0) and heads.keys - past != heads.queries > 1:
            return Skip("which of the keys lie ahead is not defined, since they are not those of the queries")
        bad = _bad_mask(given(node, 4), heads, scope)
        dtype = scope.dtype(node.inputs[0])
        return bad or (_Found(node, heads, past, dtype) if dtype is not None else Skip(UNKNOWN_SHAPE))

    def rewrite(self, match: _Found, edit: Edit) -> Sequence[ir.Value | None]:
        """Unpack, add the biases of the projections, put the past in front, and attend."""
        node, a = match.node, Arithmetic(edit, match.dtype)
        q, k, v = _project(a, node, match.heads, match.past, given(node, 3))
        past_key, past_value = given(node, 6), given(node, 7)
        if past_key is not None and past_value is not None:
            k, v = a.concat([past_key, k], 2), a.concat([past_value, v], 2)
        causal = bool(node.attributes.get_int("unidirectional", 0))
        output, done = _attend(a, match, q, k, v, mask=given(node, 4), bias=given(node, 5), causal=causal)
        return [output, k, v, done.biased][: len(node.outputs)]


def _heads(node: ir.Node, scope: Scope, past: ir.Value | None) -> Heads | Skip:
    """The sizes of MultiHeadAttention, from whichever of its forms it has."""
    count = node.attributes.get_int("num_heads", 1)
    q, k, v = (sizes_of(given(node, index), scope) for index in range(3))
    before = (0, 0, 0) if past is None else sizes_of(past, scope)
    unknown = any(given(node, index) is not None and shape is None for index, shape in enumerate((q, k, v)))
    if unknown or q is None or before is None:
        return Skip(UNKNOWN_SHAPE)
    if 0 in (*q, *(k or ()), *(v or ())):
        return Skip("queries, keys or values are empty")
    if len(q) == 5:  # (batch, length, heads, 3, size)
        keys, size, value_size = q[1], q[4], q[4]
    elif k is None:
        return Skip("queries, keys and values are packed along the last axis")
    elif len(k) == 5:  # (batch, length, heads, 2, size)
        keys, size, value_size = k[1], k[4], k[4]
    elif v is None:
        return Skip("it has keys, but no values")
    elif len(k) == 4:  # (batch, heads, length, size)
        keys, size, value_size = k[2], k[3], v[3]
    else:
        keys, size, value_size = k[1], q[2] // count, v[2] // count
    return Heads(q[0], count, count, q[1], before[2] + keys, size, value_size)


def _project(
    a: Arithmetic, node: ir.Node, heads: Heads, past: int, bias: ir.Value | None
) -> tuple[ir.Value, ir.Value, ir.Value]:
    """Queries, keys and values as (batch, heads, length, size), with the bias of the projection."""
    q, k, v = (given(node, index) for index in range(3))
    assert q is not None
    scope, count = a.edit.scope, heads.query_heads
    hidden = (count * heads.size, count * heads.size, count * heads.value_size)
    ends = np.cumsum((0, *hidden))
    parts = [None if bias is None else a.slice(bias, 0, int(ends[i]), int(ends[i + 1])) for i in range(3)]

    def split(x: ir.Value, length: int, which: int) -> ir.Value:
        part = parts[which]
        x = x if part is None else a("Add", x, part)
        return split_heads(a, x, (heads.batch, length, hidden[which]), count)

    def unpack(x: ir.Value, length: int, which: int, index: int) -> ir.Value:
        """(batch, length, heads, packed, size) → the one of them at an index."""
        one = a.reshape(a.slice(x, 3, index, index + 1), [heads.batch, length, hidden[which]])
        return split(one, length, which)

    if k is None:
        return (unpack(q, heads.queries, 0, 0), unpack(q, heads.queries, 1, 1), unpack(q, heads.queries, 2, 2))
    fresh, shape = heads.keys - past, sizes_of(k, scope)
    query = split(q, heads.queries, 0)
    if shape is not None and len(shape) == 5:
        return query, unpack(k, fresh, 1, 0), unpack(k, fresh, 2, 1)
    assert v is not None
    if shape is not None and len(shape) == 4:
        return query, k, v
    return query, split(k, fresh, 1), split(v, fresh, 2)


@dataclass(frozen=True)
class DecomposeDecoderMaskedMultiHeadAttention(NodeRewrite[_Found]):
    """Write com.microsoft's DecoderMaskedMultiHeadAttention as products and a softmax."""

    name = "decompose-decoder-masked-multi-head-attention"
    exactness = Exactness.ROUNDING
    operators = frozenset({(_DOMAIN, "DecoderMaskedMultiHeadAttention")})

    def match(self, node: ir.Node, context: NodeContext) -> _Found | Skip | None:
        """Read the sizes; the keys are those of the buffer where there is one."""
        scope = context.scope
        if not is_plain(node, scope):
            return None
        if given(node, 9) is not None:
            return Skip("its samples are beams")
        shared = bool(node.attributes.get_int("past_present_share_buffer", 0))
        past = given(node, 5)
        heads = _heads(node, scope, past)
        if isinstance(heads, Skip):
            return heads
        before = (sizes_of(past, scope) or (0, 0, 0))[2]
        if shared:
            if given(node, 7) is None:
                return Skip("a shared buffer needs past_sequence_length")
            heads = Heads(heads.batch, heads.query_heads, heads.kv_heads, 1, before, heads.size, heads.value_size)
        bad = _bad_mask(given(node, 3), heads, scope, partial=shared)
        bias = given(node, 4)
        if bias is not None and sizes_of(bias, scope) is None:
            return Skip(UNKNOWN_SHAPE)
        dtype = scope.dtype(node.inputs[0])
        return bad or (_Found(node, heads, before, dtype) if dtype is not None else Skip(UNKNOWN_SHAPE))

    def rewrite(self, match: _Found, edit: Edit) -> Sequence[ir.Value | None]:
        """Write keys and values to their place behind the past, and attend to what is there."""
        node, heads, a = match.node, match.heads, Arithmetic(edit, match.dtype)
        shared = bool(node.attributes.get_int("past_present_share_buffer", 0))
        q, k, v = _project(a, node, heads, heads.keys - 1 if shared else match.past, given(node, 10))
        past_key, past_value, allowed = given(node, 5), given(node, 6), None
        if past_key is not None and past_value is not None:
            if shared:
                length = given(node, 7)
                assert length is not None
                place = edit.constant(np.arange(heads.keys, dtype=np.int32).reshape(1, 1, -1, 1))
                here = a("Equal", place, a.reshape(length, [1, 1, 1, 1]))
                k, v = a("Where", here, k, past_key), a("Where", here, v, past_value)
                places = edit.constant(np.arange(heads.keys, dtype=np.int32))
                allowed = a("Not", a("Greater", places, a.reshape(length, [1, 1, 1, 1])))
            else:
                k, v = a.concat([past_key, k], 2), a.concat([past_value, v], 2)
        mask, bias = (_extended(a, given(node, index), heads.keys) for index in (3, 4))
        output, done = _attend(a, match, q, k, v, mask=mask, bias=bias, causal=False, allowed=allowed)
        return [output, k, v, done.biased][: len(node.outputs)]


def _extended(a: Arithmetic, x: ir.Value | None, keys: int) -> ir.Value | None:
    """A mask or bias that ends with the keys that there are so far, for all places of a buffer: 0 for the rest."""
    shape = sizes_of(x, a.edit.scope)
    if x is None or shape is None or len(shape) < 2 or shape[-1] >= keys:
        return x
    dtype = a.edit.scope.dtype(x) or a.dtype
    return a.concat([x, a.edit.constant(np.zeros((*shape[:-1], keys - shape[-1]), dtype.numpy()))], -1)


@dataclass(frozen=True)
class _Projected(_Found):
    hidden: tuple[int, int, int]


@dataclass(frozen=True)
class DecomposeProjectedAttention(NodeRewrite[_Projected]):
    """Write com.microsoft's Attention and QAttention as products and a softmax."""

    name = "decompose-projected-attention"
    exactness = Exactness.ROUNDING
    operators = frozenset({(_DOMAIN, "Attention"), (_DOMAIN, "QAttention")})

    def match(self, node: ir.Node, context: NodeContext) -> _Projected | Skip | None:
        """Read the sizes from the input and the weights of the projection."""
        scope, attributes = context.scope, node.attributes
        if not is_plain(node, scope):
            return None
        quantized = node.op_type == "QAttention"
        mask, past, bias = given(node, 5 if quantized else 3), given(node, 8 if quantized else 4), given(node, 2)
        x, weights = sizes_of(node.inputs[0], scope), sizes_of(node.inputs[1], scope)
        before = (2, 0, 0, 0, 0) if past is None else sizes_of(past, scope)
        dtype = scope.dtype(bias if quantized else node.inputs[0])
        if x is None or weights is None or before is None or dtype is None:
            return Skip(UNKNOWN_SHAPE)
        if attributes.get_int("past_present_share_buffer", 0):
            return Skip(_SHARED)
        if attributes.get_int("do_rotary", 0):
            return Skip("it rotates queries and keys itself")
        if 0 in x:
            return Skip("its input is empty")
        third = weights[1] // 3
        hidden = tuple(attributes.get_ints("qkv_hidden_sizes", [third, third, third]))
        count = attributes.get_int("num_heads", 1)
        heads = Heads(x[0], count, count, x[1], before[3] + x[1], hidden[0] // count, hidden[2] // count)
        bad = _bad_mask(mask, heads, scope)
        return bad or _Projected(node, heads, before[3], dtype, (hidden[0], hidden[1], hidden[2]))

    def rewrite(self, match: _Projected, edit: Edit) -> Sequence[ir.Value | None]:
        """Project, cut into queries, keys and values, put the past in front, and attend."""
        node, heads, a = match.node, match.heads, Arithmetic(edit, match.dtype)
        quantized = node.op_type == "QAttention"
        mask, past = (given(node, 5), given(node, 8)) if quantized else (given(node, 3), given(node, 4))
        bias, projected = given(node, 2), _dequantized(a, node) if quantized else a("MatMul", *node.inputs[:2])
        if bias is not None:
            projected = a("Add", projected, bias)
        ends = np.cumsum((0, *match.hidden))
        q, k, v = (
            split_heads(
                a,
                a.slice(projected, 2, int(ends[i]), int(ends[i + 1])),
                (heads.batch, heads.queries, match.hidden[i]),
                heads.query_heads,
            )
            for i in range(3)
        )
        if past is not None:
            keys, values = (a.squeeze(a.slice(past, 0, i, i + 1), [0]) for i in (0, 1))
            k, v = a.concat([keys, k], 2), a.concat([values, v], 2)
        causal = bool(node.attributes.get_int("unidirectional", 0))
        extra = None if quantized else given(node, 5)
        output, _ = _attend(a, match, q, k, v, mask=mask, bias=extra, causal=causal)
        if len(node.outputs) == 1:
            return [output]
        return [output, a.concat([a.unsqueeze(k, [0]), a.unsqueeze(v, [0])], 0)]


def _dequantized(a: Arithmetic, node: ir.Node) -> ir.Value:
    """The product of quantized numbers, exactly, then its scale."""
    x, weights, _, x_scale, w_scale = node.inputs[:5]
    assert x_scale is not None and w_scale is not None
    zeros = [given(node, 6), given(node, 7)]
    while zeros and zeros[-1] is None:
        zeros.pop()
    product = a("Cast", a("MatMulInteger", x, weights, *zeros), to=int(a.dtype))
    return a("Mul", product, a("Mul", x_scale, w_scale))


RULES: tuple[NodeRewrite[Any], ...] = (
    DecomposeMultiHeadAttention(),
    DecomposeDecoderMaskedMultiHeadAttention(),
    DecomposeProjectedAttention(),
)
