"""Write com.microsoft's relative position biases (of T5 and WavLM) as lookups and products.

    RelativePositionBias(table, queries, keys)   →  table[bucket(key − query)] per head
    GatedRelativePositionBias(q, b, r, W, c, e)  →  (u · (v · e − 1) + 2) · r,  (u, v) = sigmoid(Σ ((q + b) · W + c))

A bucket holds one distance or, for far keys, a range that grows with the distance; with ``is_bidirectional`` half of
the buckets are for keys after the query. The sums are over each half of the product's last axis. The table's declared
shape is (buckets, heads), but ONNX Runtime stores the values of a head contiguously.

Skips: unknown lengths and shapes; packed tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from passes.builders.arithmetic import Arithmetic, Array, wide
from passes.builders.attention import split_heads
from passes.builders.operands import constant_integer, given, not_constant
from passes.rewriting.base import Exactness, Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import Match, NodeContext, NodeRewrite

_DOMAIN = "com.microsoft"


def buckets(queries: int, keys: int, count: int, farthest: int, both_ways: bool) -> Array:
    """The bucket of each key for each query, (queries, keys), computed in float32 as ONNX Runtime does.

    Args:
        queries: the number of queries.
        keys: the number of keys.
        count: the number of buckets.
        farthest: the distance from which on keys share the last bucket.
        both_ways: whether keys after the query have their own buckets; if not, their distance is 0.
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


class LookUpRelativePositions(NodeRewrite[_Table]):
    """Write RelativePositionBias as a lookup by constant indices."""

    name = "look-up-relative-positions"
    exactness = Exactness.BITWISE
    operators = frozenset({(_DOMAIN, "RelativePositionBias")})
    needs_shape = (0,)

    def match(self, node: ir.Node, context: NodeContext) -> _Table | Skip | None:
        """Match lengths that are constant, or known by the shape of the output."""
        scope = context.scope
        done = scope.proven_sizes(node.outputs[0])
        lengths = []
        for index, what in ((1, "query_length"), (2, "key_length")):
            value = given(node, index)
            length = constant_integer(value, scope) if done is None else done[index + 1]
            if length is None and value is not None:
                return Skip(not_constant(value, what))
            lengths.append(length or 0)
        return _Table(node, context.shape(node), *lengths)

    def rewrite(self, match: _Table, edit: Edit) -> Sequence[ir.Value | None]:
        """Gather the bucket of each pair from one row of the table per head."""
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


class DecomposeGatedRelativePositionBias(NodeRewrite[_Gated]):
    """Write GatedRelativePositionBias as products and sigmoids."""

    name = "decompose-gated-relative-position-bias"
    exactness = Exactness.ROUNDING
    operators = frozenset({(_DOMAIN, "GatedRelativePositionBias")})
    needs_shape = (0, 3)
    needs_dtype = (0,)

    def match(self, node: ir.Node, context: NodeContext) -> _Gated | Skip | None:
        if given(node, 6) is not None:
            return Skip("its tokens are packed")
        return _Gated(node, context.shape(node), context.shape(node, 3)[1], context.dtype(node))

    def rewrite(self, match: _Gated, edit: Edit) -> Sequence[ir.Value | None]:
        """Compute both gates with one product, and scale the bias."""
        node, a = match.node, Arithmetic(edit, wide(match.dtype))
        query, shift, relative, weight, bias, factor = (a.cast(value) for value in node.inputs[:6] if value)
        heads = node.attributes["num_heads"].as_int()
        query = split_heads(a, a("Add", query, shift), match.shape, heads)
        gates = a("Add", a("MatMul", query, weight), bias)
        gates = a.reshape(gates, [match.shape[0], heads, match.shape[1], 2, match.width // 2])
        gates = a("Sigmoid", a.reduce("Sum", gates, [4], keepdims=False))
        update, reset = a.slice(gates, 3, 0, 1), a.slice(gates, 3, 1, 2)
        gate = a("Add", a("Mul", update, a("Sub", a("Mul", reset, factor), 1.0)), 2.0)
        return [a.cast(a("Mul", gate, relative), match.dtype)]


RULES: tuple[NodeRewrite[Any], ...] = (LookUpRelativePositions(), DecomposeGatedRelativePositionBias())
