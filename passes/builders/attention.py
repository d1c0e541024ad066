"""Scaled dot-product attention in primitive operators, shared by all operators of the attention family.

    scores = cap(scale · q · kᵀ) + bias,  cap(s) = softcap · tanh(s / softcap)
    y      = softmax(scores where allowed, else -∞) · v

Heads are the second axis: q is (batch, heads, queries, size), k (batch, kv heads, keys, size), v (batch, kv heads,
keys, value size). Query heads that share a key head are stacked as rows of one product, so that keys and values
are never copied. The output of a query that may not attend to any key is zero.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import onnx_ir as ir

from passes.builders.arithmetic import Arithmetic, Array, wide

Allowed = ir.Value | Array | None
"""The keys that each query may attend to: booleans that broadcast to the scores; None for no mask."""


@dataclass(frozen=True)
class Heads:
    """The sizes of queries (batch, query heads, queries, size), keys and values (batch, kv heads, keys, …).

    Attributes:
        kv_heads: a divisor of ``query_heads``; ``query_heads / kv_heads`` query heads share a key head.
        size: the last axis of queries and keys.
        value_size: the last axis of the values.
    """

    batch: int
    query_heads: int
    kv_heads: int
    queries: int
    keys: int
    size: int
    value_size: int


@dataclass(frozen=True)
class Scoring:
    """The way from scores to probabilities.

    Attributes:
        scale: factor of the products.
        allowed: which query may attend to which key.
        every_query_attends: whether every query may attend to some key; known without it if ``allowed`` is an array.
        bias: added to the products; broadcasts to their shape.
        softcap: bound of the products before the bias; 0 for none.
        precision: the dtype of the softmax; None for that of the products.
        sink: an additional score for each query whose probability is dropped; broadcasts to (1, heads, 1, 1).
    """

    scale: float
    allowed: Allowed = None
    every_query_attends: bool = False
    bias: ir.Value | None = None
    softcap: float = 0.0
    precision: ir.DataType | None = None
    sink: ir.Value | float | None = None


@dataclass(frozen=True)
class Attended:
    """The values that `attend` computes; all but the first are (batch, heads, queries, keys).

    Attributes:
        output: (batch, heads, queries, value size).
        raw: the scaled products.
        capped: after the soft cap.
        biased: with the bias, and -∞ where masked.
        probabilities: after softmax.
    """

    output: ir.Value
    raw: ir.Value
    capped: ir.Value
    biased: ir.Value
    probabilities: ir.Value


def default_scale(size: int) -> float:
    """Return 1/√size; heads of no size have products of zero, whatever the scale."""
    return 1 / math.sqrt(max(size, 1))


def split_heads(a: Arithmetic, x: ir.Value, shape: Sequence[int], heads: int) -> ir.Value:
    """Reshape ``x`` of ``shape`` (batch, length, heads · size) to (batch, heads, length, size)."""
    batch, length, hidden = shape
    return a("Transpose", a.reshape(x, [batch, length, heads, hidden // heads]), perm=[0, 2, 1, 3])


def merge_heads(a: Arithmetic, x: ir.Value, shape: Sequence[int]) -> ir.Value:
    """Reshape ``x`` of ``shape`` (batch, heads, length, size) to (batch, length, heads · size)."""
    batch, heads, length, size = shape
    return a.reshape(a("Transpose", x, perm=[0, 2, 1, 3]), [batch, length, heads * size])


def intersection(a: Arithmetic, one: Allowed, other: Allowed) -> Allowed:
    """Return the mask of what both allow."""
    if one is None or other is None:
        return other if one is None else one
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return np.asarray(one & other)
    return a("And", _value(a, one), _value(a, other))


def attend(a: Arithmetic, q: ir.Value, k: ir.Value, v: ir.Value, heads: Heads, scoring: Scoring) -> Attended:
    """Return the attention of all heads, in the dtype of the operands and of the bias."""
    groups = heads.query_heads // heads.kv_heads
    rows = [heads.batch, heads.kv_heads, groups * heads.queries]
    scaled = q if scoring.scale == 1.0 else a("Mul", q, scoring.scale)
    if groups > 1:
        scaled = a.reshape(scaled, [*rows, heads.size])
    raw = a("MatMul", scaled, a("Transpose", k, perm=[0, 1, 3, 2]))
    if groups > 1:
        raw = a.reshape(raw, [heads.batch, heads.query_heads, heads.queries, heads.keys])
    softcap = scoring.softcap
    capped = raw if softcap <= 0.0 else a("Mul", a("Tanh", a("Div", raw, softcap)), softcap)
    biased, probabilities = _probabilities(a, capped, scoring)
    weights = a.reshape(probabilities, [*rows, heads.keys]) if groups > 1 else probabilities
    output = a("MatMul", weights, v)
    if groups > 1:
        output = a.reshape(output, [heads.batch, heads.query_heads, heads.queries, heads.value_size])
    return Attended(output, raw, capped, biased, probabilities)


def attend_rounded_once(
    a: Arithmetic, q: ir.Value, k: ir.Value, v: ir.Value, heads: Heads, scoring: Scoring
) -> Attended:
    """Compute `attend` in 32 bits if the operands have 16: softmax multiplies the rounding of large scores.

    Arguments and results are those of `attend`, in the dtype of ``a``.
    """
    inner = Arithmetic(a.edit, wide(a.dtype))
    q, k, v = (inner.cast(x) for x in (q, k, v))
    bias = None if scoring.bias is None else inner.cast(scoring.bias)
    sink = inner.cast(scoring.sink) if isinstance(scoring.sink, ir.Value) else scoring.sink
    attended = attend(inner, q, k, v, heads, replace(scoring, bias=bias, sink=sink))
    return Attended(*(a.cast(getattr(attended, field.name)) for field in fields(attended)))


def _probabilities(a: Arithmetic, capped: ir.Value, scoring: Scoring) -> tuple[ir.Value, ir.Value]:
    """Return the masked scores with the bias, and their softmax."""
    scores = capped if scoring.bias is None else a("Add", capped, scoring.bias)
    biased, mask, allowed = scores, None, scoring.allowed
    attends = scoring.every_query_attends or (isinstance(allowed, np.ndarray) and bool(allowed.any(-1).all()))
    guarded = allowed is not None and not attends
    if allowed is not None:
        mask = _value(a, allowed)
        biased = a("Where", mask, scores, -np.inf)
        # a row may be masked entirely: a finite score avoids 0 / 0
        scores = a("Where", mask, scores, float(a.dtype.min)) if guarded else biased
    inner = Arithmetic(a.edit, scoring.precision or a.dtype)
    sink = None if scoring.sink is None else inner.value(scoring.sink)
    probabilities = a.cast(_softmax(inner, inner.cast(scores), sink))
    return biased, a("Where", mask, probabilities, 0.0) if guarded else probabilities


def _softmax(a: Arithmetic, scores: ir.Value, sink: ir.Value | None) -> ir.Value:
    """Return exp(s - m) / (Σ exp(s - m) + exp(sink - m)), with m the maximum."""
    if sink is None:
        return a("Softmax", scores, axis=-1)
    top = a("Max", a.reduce("Max", scores, [-1]), sink)
    weights = a("Exp", a("Sub", scores, top))
    return a("Div", weights, a("Add", a.reduce("Sum", weights, [-1]), a("Exp", a("Sub", sink, top))))


def _value(a: Arithmetic, allowed: ir.Value | Array) -> ir.Value:
    return a.edit.constant(allowed) if isinstance(allowed, np.ndarray) else allowed
