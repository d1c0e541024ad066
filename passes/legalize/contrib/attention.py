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

import numpy as np
import onnx_ir as ir

from passes.builders.arithmetic import Arithmetic, wide
from passes.builders.attention import (
    Attended,
    Heads,
    Scoring,
    attend,
    attend_rounded_once,
    default_scale,
    merge_heads,
    split_heads,
)
from passes.builders.operands import given
from passes.rewriting.base import Exactness, NotApplicable, Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import Replacement, rewrite

_SHARED = "past and present share a buffer"
Projections = tuple[ir.Value, ir.Value, ir.Value]
"""Queries, keys and values, (batch, heads, length, size) each."""


def _attend(
    a: Arithmetic,
    node: ir.Node,
    heads: Heads,
    projections: Projections,
    bias: ir.Value | None,
    allowed: ir.Value | None = None,
) -> tuple[ir.Value, Attended]:
    """Return the output for queries, keys and values of all heads, and the intermediate values."""
    scale = node.attributes.get_float("scale", 0.0) or default_scale(heads.size)
    attention = attend_rounded_once if bias is not None and _exceeds(node, a) else attend
    attended = attention(a, *projections, heads, Scoring(scale, allowed, bias=bias))
    shape = (heads.batch, heads.query_heads, heads.queries, heads.value_size)
    return merge_heads(a, attended.output, shape), attended


def _filter(node: ir.Node) -> float:
    """Return what is added to the score of a masked key."""
    return node.attributes.get_float("mask_filter_value", -10000.0)


def _exceeds(node: ir.Node, a: Arithmetic) -> bool:
    """Return whether the filter of masked keys is −∞ in the dtype: if all keys are masked, a softmax of it is NaN."""
    return _filter(node) < float(a.dtype.min)


def _mask(node: ir.Node, index: int, heads: Heads, edit: Edit, *, may_be_shorter: bool = False) -> ir.Value | None:
    """Return the mask, the optional input ``index``, which may be shorter than the keys only if ``may_be_shorter``."""
    mask, batch = given(node, index), heads.batch
    if mask is None:
        return None
    shape = edit.shape(node, index)
    known = ((batch,), (2 * batch,), (batch, heads.keys), (batch, heads.queries, heads.keys))
    if shape not in known and not (may_be_shorter and len(shape) == 2):
        raise NotApplicable("the mask has a form that is not supported")
    return mask


def _masked_bias(
    a: Arithmetic,
    node: ir.Node,
    heads: Heads,
    mask: ir.Value | None,
    bias: ir.Value | None,
    causal_after: int | None = None,
) -> ir.Value | None:
    """Return the scores' bias with the mask and, if ``causal_after`` keys precede the queries, causality added."""
    if mask is not None:
        masked = _filter(node)
        if _exceeds(node, a):
            a = Arithmetic(a.edit, wide(a.dtype))
            bias = None if bias is None else a.cast(bias)
        penalty = a("Where", _is_attended(a, mask, heads), 0.0, masked)
        bias = penalty if bias is None else a("Add", bias, penalty)
    if causal_after is None or heads.queries == 1:
        return bias
    is_later = np.arange(heads.keys)[None, :] > np.arange(heads.queries)[:, None] + causal_after
    lowest = float(a.dtype.min)
    if bias is None:
        return a.value(np.where(is_later, lowest, 0.0))
    # not added: a query whose own keys are all masked must still not attend to later ones
    return a("Where", a.constant(is_later), lowest, bias)


def _is_attended(a: Arithmetic, mask: ir.Value, heads: Heads) -> ir.Value:
    """Return which keys are not masked, as booleans that broadcast to (batch, heads, queries, keys)."""
    shape, zero = mask.shape, a.constant(np.int32(0))
    assert shape is not None
    if len(shape) == 3:
        return a.unsqueeze(a("Greater", mask, zero), [1])
    if len(shape) == 2:
        return a.unsqueeze(a("Greater", mask, zero), [1, 2])
    keys, batch = a.constant(np.arange(heads.keys, dtype=np.int32)), heads.batch
    if shape[0] == batch:
        return a("Less", keys, a.reshape(mask, [-1, 1, 1, 1]))
    ends, starts = (a.reshape(a.slice(mask, 0, i * batch, (i + 1) * batch), [-1, 1, 1, 1]) for i in (0, 1))
    return a("And", a("Less", keys, ends), a("Not", a("Less", keys, starts)))


@rewrite(
    "com.microsoft.MultiHeadAttention", exactness=Exactness.ROUNDING, needs_shape=(0, 1, 2, 4, 6), needs_dtype=(0,)
)
def decompose_multi_head_attention(node: ir.Node, edit: Edit) -> Replacement:
    """Write com.microsoft's MultiHeadAttention as products and a softmax."""
    if given(node, 8) is not None or given(node, 9) is not None:
        return Skip(_SHARED)
    past_key, past_value = given(node, 6), given(node, 7)
    past = 0 if past_key is None else edit.shape(node, 6)[2]
    heads = _heads(node, past, edit)
    is_causal = bool(node.attributes.get_int("unidirectional", 0))
    if is_causal and heads.keys - past != heads.queries > 1:
        return Skip("unidirectional is not defined for keys that are not those of the queries")
    a = Arithmetic(edit, edit.dtype(node))
    q, k, v = _project(a, node, heads, heads.keys - past, given(node, 3))
    if past_key is not None and past_value is not None:
        k, v = a.concat([past_key, k], 2), a.concat([past_value, v], 2)
    mask = _mask(node, 4, heads, edit)
    bias = _masked_bias(a, node, heads, mask, given(node, 5), past if is_causal else None)
    output, attended = _attend(a, node, heads, (q, k, v), bias)
    return [output, k, v, attended.biased]


def _heads(node: ir.Node, past: int, edit: Edit) -> Heads:
    """Return the sizes of MultiHeadAttention, in any of its forms, with ``past`` keys before those of the node."""
    count = node.attributes.get_int("num_heads", 1)
    q = edit.shape(node)
    k, v = (edit.scope.static_shape(given(node, index)) for index in (1, 2))
    if 0 in (*q, *(k or ()), *(v or ())):
        raise NotApplicable("queries, keys or values are empty")
    if len(q) == 5:  # (batch, length, heads, 3, size)
        keys, size, value_size = q[1], q[4], q[4]
    elif k is None:
        raise NotApplicable("queries, keys and values are packed along the last axis")
    elif len(k) == 5:  # (batch, length, heads, 2, size)
        keys, size, value_size = k[1], k[4], k[4]
    elif v is None:
        raise NotApplicable("the node has keys but no values")
    elif len(k) == 4:  # (batch, heads, length, size)
        keys, size, value_size = k[2], k[3], v[3]
    else:
        keys, size, value_size = k[1], q[2] // count, v[2] // count
    return Heads(q[0], count, count, q[1], past + keys, size, value_size)


def _project(a: Arithmetic, node: ir.Node, heads: Heads, keys: int, bias: ir.Value | None) -> Projections:
    """Return queries, ``keys`` keys (without the past) and values, with the ``bias`` of the projection."""
    k, v, count = given(node, 1), given(node, 2), heads.query_heads
    hidden = (count * heads.size, count * heads.size, count * heads.value_size)
    lengths, ends = (heads.queries, keys, keys), np.cumsum((0, *hidden)).tolist()

    def split(x: ir.Value, which: int) -> ir.Value:
        if bias is not None:
            x = a("Add", x, a.slice(bias, 0, ends[which], ends[which + 1]))
        return split_heads(a, x, (heads.batch, lengths[which], hidden[which]), count)

    def unpack(x: ir.Value, which: int, index: int) -> ir.Value:
        """Return the part at an index of the packed axis of (batch, length, heads, packed, size)."""
        part = a.reshape(a.slice(x, 3, index, index + 1), [heads.batch, lengths[which], hidden[which]])
        return split(part, which)

    q = a.edit.input(node)
    if k is None:
        return unpack(q, 0, 0), unpack(q, 1, 1), unpack(q, 2, 2)
    rank = len(a.edit.shape(node, 1))
    if rank == 5:
        return split(q, 0), unpack(k, 1, 0), unpack(k, 2, 1)
    assert v is not None
    if rank == 4:
        return split(q, 0), k, v
    return split(q, 0), split(k, 1), split(v, 2)


@rewrite(
    "com.microsoft.DecoderMaskedMultiHeadAttention",
    exactness=Exactness.ROUNDING,
    needs_shape=(0, 1, 2, 3, 4, 5),
    needs_dtype=(0,),
)
def decompose_decoder_masked_multi_head_attention(node: ir.Node, edit: Edit) -> Replacement:
    """Write com.microsoft's DecoderMaskedMultiHeadAttention as products and a softmax."""
    if given(node, 9) is not None:
        return Skip("the samples are beams")
    past_key, past_value, length = given(node, 5), given(node, 6), given(node, 7)
    is_shared = bool(node.attributes.get_int("past_present_share_buffer", 0))
    if is_shared and length is None:
        return Skip("a shared buffer needs past_sequence_length")
    past, a = 0 if past_key is None else edit.shape(node, 5)[2], Arithmetic(edit, edit.dtype(node))
    heads = _heads(node, past, edit)
    if is_shared:  # the length of the buffer is the number of keys
        heads = Heads(heads.batch, heads.query_heads, heads.kv_heads, 1, past, heads.size, heads.value_size)
    mask = _mask(node, 3, heads, edit, may_be_shorter=is_shared)
    q, k, v = _project(a, node, heads, 1 if is_shared else heads.keys - past, given(node, 10))
    allowed = None
    if past_key is not None and past_value is not None:
        if is_shared:
            assert length is not None
            length, places = a.reshape(length, [1, 1, 1, 1]), np.arange(heads.keys, dtype=np.int32)
            is_here = a("Equal", a.constant(places[:, None]), length)
            k, v = a("Where", is_here, k, past_key), a("Where", is_here, v, past_value)
            allowed = a("Not", a("Greater", a.constant(places), length))
        else:
            k, v = a.concat([past_key, k], 2), a.concat([past_value, v], 2)
    mask, bias = (extend(a, value, heads.keys) for value in (mask, given(node, 4)))
    output, attended = _attend(a, node, heads, (q, k, v), _masked_bias(a, node, heads, mask, bias), allowed)
    return [output, k, v, attended.biased]


def extend(a: Arithmetic, x: ir.Value | None, keys: int) -> ir.Value | None:
    """Extend a mask or bias of the keys so far with zeros to the whole buffer."""
    shape = a.edit.scope.static_shape(x)
    if x is None or shape is None or len(shape) < 2 or shape[-1] >= keys:
        return x
    dtype = a.edit.scope.dtype(x) or a.dtype
    return a.concat([x, a.constant(np.zeros((*shape[:-1], keys - shape[-1]), dtype.numpy()))], -1)


@rewrite("com.microsoft.Attention", exactness=Exactness.ROUNDING, needs_shape=(0, 1, 3, 4), needs_dtype=(0,))
def decompose_projected_attention(node: ir.Node, edit: Edit) -> Replacement:
    """Write com.microsoft's Attention as products and a softmax."""
    a = Arithmetic(edit, edit.dtype(node))
    projected = a("MatMul", edit.input(node, 0), edit.input(node, 1))
    return _attend_projected(a, node, projected, mask_index=3, past_index=4, bias=given(node, 5))


@rewrite("com.microsoft.QAttention", exactness=Exactness.ROUNDING, needs_shape=(0, 1, 5, 8), needs_dtype=(3,))
def decompose_quantized_attention(node: ir.Node, edit: Edit) -> Replacement:
    """Write com.microsoft's QAttention as an exact product of integers, its scale, and attention."""
    a = Arithmetic(edit, edit.dtype(node, 3))
    zeros = [given(node, 6), given(node, 7)]
    while zeros and zeros[-1] is None:
        zeros.pop()
    product = a.cast(a("MatMulInteger", edit.input(node, 0), edit.input(node, 1), *zeros))
    projected = a("Mul", product, a("Mul", edit.input(node, 3), edit.input(node, 4)))
    return _attend_projected(a, node, projected, mask_index=5, past_index=8, bias=None)


def _attend_projected(
    a: Arithmetic, node: ir.Node, projected: ir.Value, *, mask_index: int, past_index: int, bias: ir.Value | None
) -> Replacement:
    """Return the outputs of Attention and QAttention, with the ``bias`` of the scores.

    Queries, keys and values are ``projected`` without the bias of the projection, and concatenated.
    """
    edit, attributes, past = a.edit, node.attributes, given(node, past_index)
    if attributes.get_int("past_present_share_buffer", 0):
        return Skip(_SHARED)
    if attributes.get_int("do_rotary", 0):
        return Skip("the operator rotates queries and keys itself")
    batch, length, _ = edit.shape(node)
    if 0 in edit.shape(node):
        return Skip("the input is empty")
    before = 0 if past is None else edit.shape(node, past_index)[3]
    third, count = edit.shape(node, 1)[1] // 3, attributes.get_int("num_heads", 1)
    hidden = attributes.get_ints("qkv_hidden_sizes", [third, third, third])
    heads = Heads(batch, count, count, length, before + length, hidden[0] // count, hidden[2] // count)
    mask, projection_bias = _mask(node, mask_index, heads, edit), given(node, 2)
    if projection_bias is not None:
        projected = a("Add", projected, projection_bias)
    ends = np.cumsum((0, *hidden)).tolist()
    parts = [a.slice(projected, 2, ends[i], ends[i + 1]) for i in range(3)]
    q, k, v = (split_heads(a, part, (batch, length, hidden[i]), count) for i, part in enumerate(parts))
    if past is not None:
        keys, values = (a.squeeze(a.slice(past, 0, i, i + 1), [0]) for i in (0, 1))
        k, v = a.concat([keys, k], 2), a.concat([values, v], 2)
    is_causal = bool(attributes.get_int("unidirectional", 0))
    bias = _masked_bias(a, node, heads, mask, bias, before if is_causal else None)
    output, _ = _attend(a, node, heads, (q, k, v), bias)
    if len(node.outputs) == 1:
        return output
    return [output, a.concat([a.unsqueeze(k, [0]), a.unsqueeze(v, [0])], 0)]
