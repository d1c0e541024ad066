"""Write com.microsoft's biases by relative position, of T5 and WavLM, as lookups and products.

    RelativePositionBias(table, queries, keys)   →  table[bucket(key − query)], for each head
    GatedRelativePositionBias(q, b, r, W, c, e)  →  (u · (v · e − 1) + 2) · r,  (u, v) = sigmoid(Σ ((q + b) · W + c))

A bucket holds one distance, or for far ones all in a range that grows with the distance; with ``is_bidirectional`` half
of the buckets are for keys behind the query. Sums are over either half of what the product gives. The table is declared
to be (buckets, heads); ONNX Runtime writes and reads it with the numbers of one head next to each other all the same.

Skips: lengths and shapes that are not known; packed tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from passes.build.arithmetic import Arithmetic, Array, wide
from passes.build.attention import split_heads
from passes.build.operands import UNKNOWN_SHAPE, given, not_constant, scalar, sizes_of
from passes.core.base import Exactness, Skip
from passes.core.edit import Edit
from passes.core.matching import is_plain
from passes.core.rewrite import Match, NodeContext, NodeRewrite

_DOMAIN = "com.microsoft"


def buckets(queries: int, keys: int, count: int, farthest: int, both_ways: bool) -> Array:
    """The bucket of each key for each query, (queries, keys), in float32 like ONNX Runtime.

    Args:
        queries: how many.
        keys: how many.
        count: how many buckets there are.
        farthest: the distance from which on all are in the last one.
        both_ways: whether keys behind the query have buckets of their own; if not, they count as at distance 0.
    """
    offset = np.arange(keys)[None, :] - np.arange(queries)[:, None]
    first = np.zeros_like(offset)
    if both_ways:
        count //= 2
        first = np.where(offset > 0, count, 0)
        distance = np.abs(offset)
    else:
        distance = np.maximum(-offset, 0)
    exact = count // 2
    with np.errstate(divide="ignore"):
        grown = np.log(distance.astype(np.float32) / np.float32(exact)) / np.log(np.float32(farthest / exact))
    far = exact + np.maximum(grown * (count - exact), 0).astype(np.int64)
    return np.asarray(first + np.where(distance < exact, distance, np.minimum(far, count - 1)))


@dataclass(frozen=True)
class _Table(Match):
    shape: tuple[int, ...]
    queries: int
    keys: int


@dataclass(frozen=True)
class LookUpRelativePositions(NodeRewrite[_Table]):
    """Write RelativePositionBias as a lookup by constant indices."""

    name = "look-up-relative-positions"
    exactness = Exactness.BITWISE
    operators = frozenset({(_DOMAIN, "RelativePositionBias")})

    def match(self, node: ir.Node, context: NodeContext) -> _Table | Skip | None:
        """Whether both lengths are known, by themselves or by the output's shape."""
        scope = context.scope
        if not is_plain(node, scope):
            return None
        shape, done = sizes_of(node.inputs[0], scope), sizes_of(node.outputs[0], scope)
        if shape is None:
            return Skip(UNKNOWN_SHAPE)
        lengths = []
        for index, what in ((1, "query_length"), (2, "key_length")):
            value = given(node, index)
            length = scalar(value, scope) if done is None else done[index + 1]
            if length is None and value is not None:
                return Skip(not_constant(value, what))
            lengths.append(length or 0)
        return _Table(node, shape, *lengths)

    def rewrite(self, match: _Table, edit: Edit) -> Sequence[ir.Value | None]:
        """One row of the table a head, from which all pairs take their bucket's number."""
        attributes, (count, heads) = match.node.attributes, match.shape
        both_ways = bool(attributes.get_int("is_bidirectional", 0))
        found = buckets(match.queries, match.keys, count, attributes["max_distance"].as_int(), both_ways)
        table = edit.op("Reshape", [match.node.inputs[0], edit.constant(np.array([1, heads, count]))])
        return [edit.op("Gather", [table, edit.constant(found)], {"axis": 2})]


@dataclass(frozen=True)
class _Gated(Match):
    shape: tuple[int, ...]
    width: int
    dtype: ir.DataType


@dataclass(frozen=True)
class DecomposeGatedRelativePositionBias(NodeRewrite[_Gated]):
    """Write GatedRelativePositionBias as products and sigmoids."""

    name = "decompose-gated-relative-position-bias"
    exactness = Exactness.ROUNDING
    operators = frozenset({(_DOMAIN, "GatedRelativePositionBias")})

    def match(self, node: ir.Node, context: NodeContext) -> _Gated | Skip | None:
        """Read the sizes."""
        scope = context.scope
        if not is_plain(node, scope):
            return None
        if given(node, 6) is not None:
            return Skip("its tokens are packed")
        shape, weight = sizes_of(node.inputs[0], scope), sizes_of(node.inputs[3], scope)
        dtype = scope.dtype(node.inputs[0])
        if shape is None or weight is None or dtype is None:
            return Skip(UNKNOWN_SHAPE)
        return _Gated(node, shape, weight[1], dtype)

    def rewrite(self, match: _Gated, edit: Edit) -> Sequence[ir.Value | None]:
        """Both gates by one product; what they leave of the bias."""
        node, a = match.node, Arithmetic(edit, wide(match.dtype))
        query, shift, relative, weight, bias, factor = (
            a.cast(value, match.dtype) for value in node.inputs[:6] if value
        )
        heads = node.attributes["num_heads"].as_int()
        query = split_heads(a, a("Add", query, shift), match.shape, heads)
        gates = a("Add", a("MatMul", query, weight), bias)
        gates = a.reshape(gates, [match.shape[0], heads, match.shape[1], 2, match.width // 2])
        gates = a("Sigmoid", a.reduce("Sum", gates, [4], keepdims=False))
        update, reset = a.slice(gates, 3, 0, 1), a.slice(gates, 3, 1, 2)
        gate = a("Add", a("Mul", update, a("Sub", a("Mul", reset, factor), 1.0)), 2.0)
        return [a.cast(a("Mul", gate, relative), a.dtype, match.dtype)]


RULES: tuple[NodeRewrite[Any], ...] = (LookUpRelativePositions(), DecomposeGatedRelativePositionBias())
