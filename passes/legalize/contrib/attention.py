"""Write com.microsoft's attention with equal numbers of query and key heads as products and a softmax.

    MultiHeadAttention(query, key, value, …)         q, k and v separate, packed, or already split into heads
    DecoderMaskedMultiHeadAttention(query, …)        the same for one query, with an optional shared buffer
    Attention(x, W, b, …)                            (q, k, v) = x · W + b
    QAttention(x, W, b, scales, …)                   the same with quantized x and W

A mask has a number per key, or the length of each sample, or its end and start. ``mask_filter_value`` is added to the
score of a masked key; a key after its query gets the lowest number of the dtype.

Skips: unknown shapes, masks of four axes or with the starts of packed samples, rotation within the operator, buffers
shared by past and present (except for one query), and beams.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from passes.builders.arithmetic import Arithmetic
from passes.builders.attention import Attended, Heads, Scoring, attend, default_scale, merge_heads, split_heads
from passes.builders.operands import given
from passes.graphs.scopes import Scope
from passes.rewriting.base import Exactness, Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import UNKNOWN_SHAPE, Match, NodeContext, NodeRewrite

_DOMAIN = "com.microsoft"
_MASK = "its mask has a form that is not supported"
_SHARED = "past and present share a buffer"


@dataclass(frozen=True)
class _Found(Match):
    heads: Heads
    past: int
    """The length of the past."""
    dtype: ir.DataType


def _attend(
    a: Arithmetic,
    match: _Found,
    projections: tuple[ir.Value, ir.Value, ir.Value],
    bias: ir.Value | None,
    allowed: ir.Value | None = None,
) -> tuple[ir.Value, Attended]:
    """The output for queries, keys and values of all heads, and the intermediate values."""
    heads = match.heads
    scale = match.node.attributes.get_float("scale", 0.0) or default_scale(heads.size)
    done = attend(a, *projections, heads, Scoring(scale, allowed, bias=bias))
    shape = (heads.batch, heads.query_heads, heads.queries, heads.value_size)
    return merge_heads(a, done.output, shape), done


def _masked_bias(
    a: Arithmetic, match: _Found, mask: ir.Value | None, bias: ir.Value | None, *, causal: bool
) -> ir.Value | None:
    """The bias of the scores, with the mask and causality added to it."""
    heads = match.heads
    if mask is not None:
        masked = match.node.attributes.get_float("mask_filter_value", -10000.0)
        penalty = a("Where", _is_attended(a, mask, heads), 0.0, masked)
        bias = penalty if bias is None else a("Add", bias, penalty)
    if causal and heads.queries > 1:
        later = np.arange(heads.keys)[None, :] > np.arange(heads.queries)[:, None] + match.past
        lowest = float(a.dtype.min)
        # not added: a query whose own keys are all masked must still not attend to later ones
        return (
            a.value(np.where(later, lowest, 0.0)) if bias is None else a("Where", a.edit.constant(later), lowest, bias)
        )
    return bias


def _is_attended(a: Arithmetic, mask: ir.Value, heads: Heads) -> ir.Value:
    """Which keys are not masked, as booleans that broadcast to (batch, heads, queries, keys)."""
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
    """Why a mask is not supported; ``partial`` if it may end before the keys do."""
    if mask is None:
        return None
    shape = scope.static_shape(mask)
    if shape is None:
        return Skip(UNKNOWN_SHAPE)
    batch, keys = heads.batch, heads.keys
    known = ((batch,), (2 * batch,), (batch, keys), (batch, heads.queries, keys))
    return None if shape in known or (partial and len(shape) == 2) else Skip(_MASK)


class DecomposeMultiHeadAttention(NodeRewrite[_Found]):
    """Write com.microsoft's MultiHeadAttention as products and a softmax."""

    name = "decompose-multi-head-attention"
    exactness = Exactness.ROUNDING
    operators = frozenset({(_DOMAIN, "MultiHeadAttention")})
    needs_shape = (0, 1, 2, 4, 6)
    needs_dtype = (0,)

    def match(self, node: ir.Node, context: NodeContext) -> _Found | Skip | None:
        """Match every packing of queries, keys and values."""
        scope = context.scope
        if given(node, 8) is not None or given(node, 9) is not None:
            return Skip(_SHARED)
        heads = _heads(node, scope, past=given(node, 6))
        if isinstance(heads, Skip):
            return heads
        past = (scope.static_shape(given(node, 6)) or (0, 0, 0))[2]
        if node.attributes.get_int("unidirectional", 0) and heads.keys - past != heads.queries > 1:
            return Skip("unidirectional is not defined for keys that are not those of the queries")
        return _bad_mask(given(node, 4), heads, scope) or _Found(node, heads, past, context.dtype(node))

    def rewrite(self, match: _Found, edit: Edit) -> Sequence[ir.Value | None]:
        """Unpack, add the biases of the projections, prepend the past, and attend."""
        node, a = match.node, Arithmetic(edit, match.dtype)
        q, k, v = _project(a, node, match.heads, match.past, given(node, 3))
        past_key, past_value = given(node, 6), given(node, 7)
        if past_key is not None and past_value is not None:
            k, v = a.concat([past_key, k], 2), a.concat([past_value, v], 2)
        causal = bool(node.attributes.get_int("unidirectional", 0))
        bias = _masked_bias(a, match, given(node, 4), given(node, 5), causal=causal)
        output, done = _attend(a, match, (q, k, v), bias)
        return [output, k, v, done.biased][: len(node.outputs)]


def _heads(node: ir.Node, scope: Scope, past: ir.Value | None) -> Heads | Skip:
    """The sizes of MultiHeadAttention, in any of its forms."""
    count = node.attributes.get_int("num_heads", 1)
    q, k, v = (scope.static_shape(given(node, index)) for index in range(3))
    before = (0, 0, 0) if past is None else scope.static_shape(past)
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
        return Skip("it has keys but no values")
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
        """Of (batch, length, heads, packed, size), the part at an index of the packed axis."""
        one = a.reshape(a.slice(x, 3, index, index + 1), [heads.batch, length, hidden[which]])
        return split(one, length, which)

    if k is None:
        return (unpack(q, heads.queries, 0, 0), unpack(q, heads.queries, 1, 1), unpack(q, heads.queries, 2, 2))
    fresh, shape = heads.keys - past, scope.static_shape(k)
    query = split(q, heads.queries, 0)
    if shape is not None and len(shape) == 5:
        return query, unpack(k, fresh, 1, 0), unpack(k, fresh, 2, 1)
    assert v is not None
    if shape is not None and len(shape) == 4:
        return query, k, v
    return query, split(k, fresh, 1), split(v, fresh, 2)


class DecomposeDecoderMaskedMultiHeadAttention(NodeRewrite[_Found]):
    """Write com.microsoft's DecoderMaskedMultiHeadAttention as products and a softmax."""

    name = "decompose-decoder-masked-multi-head-attention"
    exactness = Exactness.ROUNDING
    operators = frozenset({(_DOMAIN, "DecoderMaskedMultiHeadAttention")})
    needs_shape = (0, 1, 2, 3, 4, 5)
    needs_dtype = (0,)

    def match(self, node: ir.Node, context: NodeContext) -> _Found | Skip | None:
        """Match all but beams; with a shared buffer, its length is the number of keys."""
        scope = context.scope
        if given(node, 9) is not None:
            return Skip("its samples are beams")
        shared = bool(node.attributes.get_int("past_present_share_buffer", 0))
        past = given(node, 5)
        heads = _heads(node, scope, past)
        if isinstance(heads, Skip):
            return heads
        before = (scope.static_shape(past) or (0, 0, 0))[2]
        if shared:
            if given(node, 7) is None:
                return Skip("a shared buffer needs past_sequence_length")
            heads = Heads(heads.batch, heads.query_heads, heads.kv_heads, 1, before, heads.size, heads.value_size)
        bad = _bad_mask(given(node, 3), heads, scope, partial=shared)
        return bad or _Found(node, heads, before, context.dtype(node))

    def rewrite(self, match: _Found, edit: Edit) -> Sequence[ir.Value | None]:
        """Write keys and values after the past, and attend to all of them."""
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
        output, done = _attend(a, match, (q, k, v), _masked_bias(a, match, mask, bias, causal=False), allowed)
        return [output, k, v, done.biased][: len(node.outputs)]


def _extended(a: Arithmetic, x: ir.Value | None, keys: int) -> ir.Value | None:
    """A mask or bias of the keys so far, extended with zeros to the whole buffer."""
    shape = a.edit.scope.static_shape(x)
    if x is None or shape is None or len(shape) < 2 or shape[-1] >= keys:
        return x
    dtype = a.edit.scope.dtype(x) or a.dtype
    return a.concat([x, a.edit.constant(np.zeros((*shape[:-1], keys - shape[-1]), dtype.numpy()))], -1)


@dataclass(frozen=True)
class _Projected(_Found):
    hidden: tuple[int, int, int]


class DecomposeProjectedAttention(NodeRewrite[_Projected]):
    """Write com.microsoft's Attention and QAttention as products and a softmax."""

    name = "decompose-projected-attention"
    exactness = Exactness.ROUNDING
    operators = frozenset({(_DOMAIN, "Attention"), (_DOMAIN, "QAttention")})
    needs_shape = (0, 1)

    def match(self, node: ir.Node, context: NodeContext) -> _Projected | Skip | None:
        """Match known sizes of the input, the weights of the projection, and the past."""
        scope, attributes = context.scope, node.attributes
        quantized = node.op_type == "QAttention"
        mask, past, bias = given(node, 5 if quantized else 3), given(node, 8 if quantized else 4), given(node, 2)
        x, weights = context.shape(node, 0), context.shape(node, 1)
        before = (2, 0, 0, 0, 0) if past is None else scope.static_shape(past)
        dtype = scope.dtype(bias if quantized else node.inputs[0])
        if before is None or dtype is None:
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
        """Project, split into queries, keys and values, prepend the past, and attend."""
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
        output, _ = _attend(a, match, (q, k, v), _masked_bias(a, match, mask, extra, causal=causal))
        if len(node.outputs) == 1:
            return [output]
        return [output, a.concat([a.unsqueeze(k, [0]), a.unsqueeze(v, [0])], 0)]


def _dequantized(a: Arithmetic, node: ir.Node) -> ir.Value:
    """The exact product of the integers, then its scale."""
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
