"""Write com.microsoft's GroupQueryAttention with a cache as long as its window, which evicts what is older.

    L(T)    = T, or, where T is more than the capacity C,  T − G·⌈(T − C) / G⌉   with G = C − window + 1
    row i   of the past and present holds the position  T − L(T) + i,  for i < L(T)
    present = the last L(T) of the past and new keys (values); the other rows are 0
    y       = softmax over the keys of the window before each query (scale · q · keysᵀ) · values

T is the number of tokens so far, ``seqlens_k + 1``, and for the past that without the new tokens. Past and new keys are
concatenated, with their positions; which of them are read, and which stay, may be known only at run time. The layout is
that of ONNX Runtime's description of the operator.

Skips: a bias, whose columns are positions; scores as an output; quantized caches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from passes.builders.arithmetic import Arithmetic
from passes.builders.attention import Heads, Scoring, attend_rounded_once, default_scale, merge_heads
from passes.builders.operands import given
from passes.legalize.contrib.grouped_query_attention import Found, rotated, sink_of, sizes_of, split
from passes.rewriting.base import Exactness, Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import NodeContext, NodeRewrite

_NEVER = 1 << 40
"""A position that no query reaches."""


class DecomposeWindowedCache(NodeRewrite[Found]):
    """Write com.microsoft's GroupQueryAttention with a cache that evicts as products and a softmax."""

    name = "decompose-windowed-cache"
    exactness = Exactness.ROUNDING
    operators = frozenset({("com.microsoft", "GroupQueryAttention")})
    needs_shape = (0, 3, 5)
    needs_dtype = (0,)

    def match(self, node: ir.Node, context: NodeContext) -> Found | Skip | None:
        """Match a cache of known capacity."""
        if not node.attributes.get_int("sliding_window_cache", 0):
            return None
        if given(node, 3) is None:
            return Skip("it has no cache, whose capacity it would evict by")
        if given(node, 12) is not None or given(node, 13) is not None:
            return Skip("its cache is quantized")
        if given(node, 10) is not None:
            return Skip("its bias has a column for each position, and its cache evicts positions")
        if len(node.outputs) > 3 and node.outputs[3].uses():
            return Skip("it returns scores")
        q, capacity = context.shape(node), context.shape(node, 3)[2]
        if 0 in q or capacity < node.attributes.get_int("local_window_size", -1):
            return Skip("its query is empty, or its cache is smaller than its window")
        return Found(node, sizes_of(node, q, capacity + q[1]), capacity, None, False, context.dtype(node))

    def rewrite(self, match: Found, edit: Edit) -> Sequence[ir.Value | None]:
        """Attend to past and new keys by their positions, and keep the last of them."""
        node, heads, attributes = match.node, match.heads, match.node.attributes
        a = Arithmetic(edit, match.dtype)
        cache = _Cache.of(a, match, attributes.get_int("local_window_size", -1))
        q, k, v = split(a, node, heads)
        q = rotated(a, match, q, heads.query_heads, given(node, 14), cache.before)
        k = rotated(a, match, k, heads.kv_heads, given(node, 15), cache.before)
        keys, values = cache.joined(given(node, 3), k), cache.joined(given(node, 4), v)
        done = attend_rounded_once(
            a,
            q,
            keys,
            values,
            heads,
            Scoring(
                scale=attributes.get_float("scale", 0.0) or default_scale(heads.size),
                allowed=cache.allowed(),
                every_query_attends=True,
                softcap=attributes.get_float("softcap", 0.0),
                sink=sink_of(a, node),
            ),
        )
        output = merge_heads(a, done.output, (heads.batch, heads.query_heads, heads.queries, heads.size))
        return [output, cache.kept(keys), cache.kept(values), None][: len(node.outputs)]


@dataclass(frozen=True)
class _Cache:
    """Which positions the rows of a cache have; all values are int64[batch, 1, 1, 1].

    Attributes:
        total: the number of tokens with the new ones.
        before: without them.
        resident: how many of these are in the past.
    """

    a: Arithmetic
    heads: Heads
    capacity: int
    window: int
    total: ir.Value
    before: ir.Value
    resident: ir.Value

    @classmethod
    def of(cls, a: Arithmetic, match: Found, window: int) -> _Cache:
        lengths, capacity = match.node.inputs[5], match.past
        assert lengths is not None
        total = a("Add", a.reshape(a("Cast", lengths, to=int(ir.DataType.INT64)), [-1, 1, 1, 1]), a.index(1))
        before = a("Max", a("Sub", total, a.index(match.heads.queries)), a.index(0))  # a first prompt may be padded
        return cls(a, match.heads, capacity, window, total, before, _resident(a, before, capacity, window))

    def joined(self, old: ir.Value | None, new: ir.Value) -> ir.Value:
        """Past and new keys or values: (batch, kv heads, capacity + queries, size); other rows are 0."""
        a = self.a
        assert old is not None
        held = a("Less", a.index(np.arange(self.capacity).reshape(1, 1, -1, 1)), self.resident)
        return a.concat([a("Where", held, old, 0.0), new], 2)

    def allowed(self) -> ir.Value:
        """Which query reads which key: (batch, 1, queries, capacity + queries)."""
        a = self.a
        rows, steps = a.index(np.arange(self.capacity)), np.arange(self.heads.queries)
        past = a("Add", a("Sub", self.before, self.resident), rows)
        past = a("Where", a("Less", rows, self.resident), past, a.index(_NEVER))
        positions = a.concat([past, a("Add", self.before, a.index(steps.reshape(1, 1, 1, -1)))], 3)
        apart = a("Sub", a("Add", self.before, a.index(steps.reshape(1, 1, -1, 1))), positions)
        return a("And", a("Not", a("Less", apart, a.index(0))), a("Less", apart, a.index(self.window)))

    def kept(self, joined: ir.Value) -> ir.Value:
        """The cache after the new tokens: (batch, kv heads, capacity, size)."""
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
            found = a("Gather", joined, a.reshape(place, [self.capacity]), axis=2)
        else:
            every = a.index(np.zeros((heads.batch, heads.kv_heads, self.capacity, heads.size), np.int64))
            found = a("GatherElements", joined, a("Add", place, every), axis=2)
        return a("Where", held, found, 0.0)


def _resident(a: Arithmetic, total: ir.Value, capacity: int, window: int) -> ir.Value:
    """How many of so many tokens are in the cache."""
    step = capacity - window + 1
    over = a("Add", total, a.index(step - 1 - capacity))
    evictions = a("Max", a("Div", over, a.index(step)), a.index(0))
    return a("Sub", total, a("Mul", evictions, a.index(step)))


RULES: tuple[NodeRewrite[Any], ...] = (DecomposeWindowedCache(),)
