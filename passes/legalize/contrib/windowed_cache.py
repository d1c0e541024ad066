"""Write com.microsoft's GroupQueryAttention with a cache as long as its window, which evicts what is older.

    L(T)    = T, or, if T is more than the capacity C,  T − G·⌈(T − C) / G⌉   with G = C − window + 1
    row i   of the past and present holds the position  T − L(T) + i,  for i < L(T)
    present = the last L(T) of the past and new keys (values); the other rows are 0
    y       = softmax over the keys of the window before each query (scale · q · keysᵀ) · values

T is the number of tokens so far, ``seqlens_k + 1``, and for the past that without the new tokens. Past and new keys are
concatenated, with their positions; which of them are read, and which stay, may be known only at run time. The layout is
that of ONNX Runtime's description of the operator.

Skips: a bias, whose columns are positions; scores as an output; quantized caches.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from passes.builders.arithmetic import Arithmetic
from passes.builders.attention import Heads, attend_rounded_once, merge_heads
from passes.builders.operands import given, is_output_used
from passes.legalize.contrib.grouped_query_attention import project, scoring, sizes_of
from passes.rewriting.base import Exactness, Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import Replacement, rewrite

_NEVER = 1 << 40
"""A position that no query reaches."""


@rewrite("com.microsoft.GroupQueryAttention", exactness=Exactness.ROUNDING, needs_shape=(0, 3, 5), needs_dtype=(0,))
def decompose_windowed_cache(node: ir.Node, edit: Edit) -> Replacement:
    """Write com.microsoft's GroupQueryAttention with a cache that evicts as products and a softmax."""
    if not node.attributes.get_int("sliding_window_cache", 0):
        return None
    if given(node, 3) is None:
        return Skip("the node has no cache, by whose capacity keys would be evicted")
    if given(node, 12) is not None or given(node, 13) is not None:
        return Skip("the cache is quantized")
    if given(node, 10) is not None:
        return Skip("the bias has a column for each position, and the cache evicts positions")
    if is_output_used(node, 3):
        return Skip("the scores are used")
    query, capacity = edit.shape(node), edit.shape(node, 3)[2]
    window = node.attributes.get_int("local_window_size", -1)
    if 0 in query or capacity < window:
        return Skip("the query is empty, or the cache is smaller than the window")
    a, heads = Arithmetic(edit, edit.dtype(node)), sizes_of(node, query, capacity + query[1])
    cache = _Cache.of(a, heads, edit.input(node, 5), capacity, window)
    q, k, v = project(a, node, heads, cache.before)
    keys, values = cache.join(edit.input(node, 3), k), cache.join(edit.input(node, 4), v)
    score = scoring(a, node, heads, allowed=cache.allowed(), every_query_attends=True)
    output = attend_rounded_once(a, q, keys, values, heads, score).output
    output = merge_heads(a, output, (heads.batch, heads.query_heads, heads.queries, heads.size))
    return [output, cache.keep(keys), cache.keep(values), None]


@dataclass(frozen=True)
class _Cache:
    """The positions that the rows of a cache hold.

    Attributes:
        capacity: the number of rows.
        window: the number of keys that a query reads.
        total: the number of tokens with the new ones, int64[batch, 1, 1, 1], as the other values.
        before: the number of tokens without the new ones.
        resident: the number of tokens before that the past holds.
    """

    a: Arithmetic
    heads: Heads
    capacity: int
    window: int
    total: ir.Value
    before: ir.Value
    resident: ir.Value

    @classmethod
    def of(cls, a: Arithmetic, heads: Heads, lengths: ir.Value, capacity: int, window: int) -> _Cache:
        """Return the cache whose samples have ``lengths + 1`` tokens with the new ones."""
        total = a("Add", a.reshape(a.cast(lengths, ir.DataType.INT64), [-1, 1, 1, 1]), a.index(1))
        before = a("Max", a("Sub", total, a.index(heads.queries)), a.index(0))  # a first prompt may be padded
        return cls(a, heads, capacity, window, total, before, _resident(a, before, capacity, window))

    def join(self, old: ir.Value, new: ir.Value) -> ir.Value:
        """Return past and new keys or values, (batch, kv heads, capacity + queries, size); other rows are 0."""
        a = self.a
        held = a("Less", a.index(np.arange(self.capacity).reshape(1, 1, -1, 1)), self.resident)
        return a.concat([a("Where", held, old, 0.0), new], 2)

    def allowed(self) -> ir.Value:
        """Return which query reads which key, (batch, 1, queries, capacity + queries)."""
        a = self.a
        rows, steps = a.index(np.arange(self.capacity)), np.arange(self.heads.queries)
        past = a("Add", a("Sub", self.before, self.resident), rows)
        past = a("Where", a("Less", rows, self.resident), past, a.index(_NEVER))
        positions = a.concat([past, a("Add", self.before, a.index(steps.reshape(1, 1, 1, -1)))], 3)
        apart = a("Sub", a("Add", self.before, a.index(steps.reshape(1, 1, -1, 1))), positions)
        return a("And", a("Not", a("Less", apart, a.index(0))), a("Less", apart, a.index(self.window)))

    def keep(self, joined: ir.Value) -> ir.Value:
        """Return the cache after the new tokens, (batch, kv heads, capacity, size)."""
        a, heads = self.a, self.heads
        left = _resident(a, self.total, self.capacity, self.window)
        rows = a.index(np.arange(self.capacity).reshape(1, 1, -1, 1))
        position = a("Add", a("Sub", self.total, left), rows)
        fresh = a("Add", a("Sub", position, self.before), a.index(self.capacity))
        stale = a("Sub", position, a("Sub", self.before, self.resident))
        place = a("Where", a("Less", position, self.before), stale, fresh)
        held = a("Less", rows, left)
        place = a("Where", held, place, a.index(0))
        if heads.batch == 1:
            rows = a("Gather", joined, a.reshape(place, [self.capacity]), axis=2)
        else:
            every = a.index(np.zeros((heads.batch, heads.kv_heads, self.capacity, heads.size), np.int64))
            rows = a("GatherElements", joined, a("Add", place, every), axis=2)
        return a("Where", held, rows, 0.0)


def _resident(a: Arithmetic, total: ir.Value, capacity: int, window: int) -> ir.Value:
    """Return how many of ``total`` tokens are in the cache."""
    step = capacity - window + 1
    over = a("Add", total, a.index(step - 1 - capacity))
    evictions = a("Max", a("Div", over, a.index(step)), a.index(0))
    return a("Sub", total, a("Mul", evictions, a.index(step)))
