"""Scaled dot-product attention in primitive operators: what all operators of the attention family have in common.

    scores = cap(scale · q · kᵀ) + bias,  cap(s) = softcap · tanh(s / softcap)
    y      = softmax(scores where allowed, else -∞) · v

Heads are the second axis: q is (batch, heads, queries, size), k (batch, kv heads, keys, size), v (batch, kv heads,
keys, value size). Where several query heads share a key head, they become rows of one product, so that keys and values
are never copied. A query that may attend to no key gets zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from passes.build.arithmetic import Arithmetic, Array

Allowed = ir.Value | Array | None
"""Which query may attend to which key: booleans that broadcast to the scores; None for all to all."""


@dataclass(frozen=True)
class Heads:
    """The sizes of queries (batch, query heads, queries, size), keys and values (batch, kv heads, keys, …).

    Attributes:
        kv_heads: a divisor of ``query_heads``: so many of these share a head of keys.
        value_size: the last axis of the values; that of queries and keys is ``size``.
    """

    batch: int
    query_heads: int
    kv_heads: int
    queries: int
    keys: int
    size: int
    value_size: int


@dataclass(frozen=True)
class Attended:
    """What `attend` computes; each but the first is (batch, heads, queries, keys).

    Attributes:
        output: (batch, heads, queries, value size).
        raw: the scaled products.
        capped: after the soft cap.
        biased: with the bias, and -∞ where attention is not allowed.
        probabilities: after softmax.
    """

    output: ir.Value
    raw: ir.Value
    capped: ir.Value
    biased: ir.Value
    probabilities: ir.Value


def split_heads(a: Arithmetic, x: ir.Value, shape: Sequence[int], heads: int) -> ir.Value:
    """(batch, length, heads · size), which ``shape`` says, → (batch, heads, length, size)."""
    batch, length, hidden = shape
    return a("Transpose", a.reshape(x, [batch, length, heads, hidden // heads]), perm=[0, 2, 1, 3])


def merge_heads(a: Arithmetic, x: ir.Value, shape: Sequence[int]) -> ir.Value:
    """(batch, heads, length, size), which ``shape`` says, → (batch, length, heads · size)."""
    batch, heads, length, size = shape
    return a.reshape(a("Transpose", x, perm=[0, 2, 1, 3]), [batch, length, heads * size])


def both(a: Arithmetic, one: Allowed, other: Allowed) -> Allowed:
    """What both allow."""
    if one is None or other is None:
        return other if one is None else one
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return np.asarray(one & other)
    return a("And", _value(a, one), _value(a, other))


def attend(
    a: Arithmetic,
    q: ir.Value,
    k: ir.Value,
    v: ir.Value,
    heads: Heads,
    *,
    scale: float,
    allowed: Allowed = None,
    never_none: bool = False,
    bias: ir.Value | None = None,
    softcap: float = 0.0,
    precision: ir.DataType | None = None,
    sink: ir.Value | float | None = None,
) -> Attended:
    """Attention of all heads.

    Args:
        a: what builds it, in the dtype of ``q``, ``k``, ``v`` and ``bias``.
        q: the queries.
        k: the keys.
        v: the values.
        heads: their sizes.
        scale: factor of the products.
        allowed: which query may attend to which key.
        never_none: whether every query may attend to some key; where ``allowed`` is an array, that is seen.
        bias: added to the products, to whose shape it broadcasts.
        softcap: bound of the products before the bias; 0 for none.
        precision: the dtype of the softmax; that of the rest where it is None.
        sink: a further score of every query, whose probability goes nowhere; it broadcasts to (1, heads, 1, 1).
    """
    grouped = heads.query_heads != heads.kv_heads
    rows = [heads.batch, heads.kv_heads, heads.query_heads // heads.kv_heads * heads.queries]
    each = [heads.batch, heads.query_heads, heads.queries]
    scaled = q if scale == 1.0 else a("Mul", q, scale)
    if grouped:
        scaled = a.reshape(scaled, [*rows, heads.size])
    raw = a("MatMul", scaled, a("Transpose", k, perm=[0, 1, 3, 2]))
    if grouped:
        raw = a.reshape(raw, [*each, heads.keys])
    capped = raw if softcap <= 0.0 else a("Mul", a("Tanh", a("Div", raw, softcap)), softcap)
    scores = capped if bias is None else a("Add", capped, bias)
    biased, mask = scores, None
    never_none = never_none or (isinstance(allowed, np.ndarray) and bool(allowed.any(-1).all()))
    guarded = allowed is not None and not never_none
    if allowed is not None:
        mask = _value(a, allowed)
        biased = a("Where", mask, scores, -np.inf)
        # where a whole row may be masked, a finite score keeps it from 0 / 0
        scores = a("Where", mask, scores, float(a.dtype.min)) if guarded else biased
    inner = Arithmetic(a.edit, precision or a.dtype)
    probabilities = _softmax(inner, inner.cast(scores, a.dtype), None if sink is None else inner.value(sink))
    probabilities = a.cast(probabilities, inner.dtype)
    if guarded:
        probabilities = a("Where", mask, probabilities, 0.0)
    weights = a.reshape(probabilities, [*rows, heads.keys]) if grouped else probabilities
    output = a("MatMul", weights, v)
    if grouped:
        output = a.reshape(output, [*each, heads.value_size])
    return Attended(output, raw, capped, biased, probabilities)


def _softmax(a: Arithmetic, scores: ir.Value, sink: ir.Value | None) -> ir.Value:
    """exp(s - m) / (Σ exp(s - m) + exp(sink - m)), with m the largest of all."""
    if sink is None:
        return a("Softmax", scores, axis=-1)
    top = a("Max", a.reduce("Max", scores, [-1]), sink)
    weights = a("Exp", a("Sub", scores, top))
    return a("Div", weights, a("Add", a.reduce("Sum", weights, [-1]), a("Exp", a("Sub", sink, top))))


def _value(a: Arithmetic, allowed: ir.Value | Array) -> ir.Value:
    return a.edit.constant(allowed) if isinstance(allowed, np.ndarray) else allowed
