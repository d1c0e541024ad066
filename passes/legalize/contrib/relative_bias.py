"""Write com.microsoft's relative position biases (of T5 and WavLM) as lookups and products.

    RelativePositionBias(table, queries, keys)   →  table[bucket(key − query)] per head
    GatedRelativePositionBias(q, b, r, W, c, e)  →  (u · (v · e − 1) + 2) · r,  (u, v) = sigmoid(Σ ((q + b) · W + c))

A bucket holds one distance or, for far keys, a range that grows with the distance; with ``is_bidirectional`` half of
the buckets are for keys after the query. The sums are over each half of the product's last axis. The table's declared
shape is (buckets, heads), but ONNX Runtime stores the values of a head contiguously.

Skips: unknown lengths and shapes; packed tokens.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from passes.builders.arithmetic import Arithmetic, Array, wide
from passes.builders.attention import split_heads
from passes.builders.operands import given
from passes.rewriting.base import Exactness, Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import Replacement, rewrite


def buckets(queries: int, keys: int, count: int, farthest: int, both_ways: bool) -> Array:
    """Return the bucket of each key for each query, (queries, keys), computed in float32 as ONNX Runtime does.

    Of ``count`` buckets, keys from the distance ``farthest`` on share the last. Keys after the query have their own
    buckets if ``both_ways``, else the distance 0.
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


@rewrite("com.microsoft.RelativePositionBias", needs_shape=(0,))
def look_up_relative_positions(node: ir.Node, edit: Edit) -> Replacement:
    """Write RelativePositionBias as a lookup by constant indices."""
    count, heads = edit.shape(node)
    shape = edit.scope.proven_sizes(node.outputs[0])
    lengths = []
    for index, what in ((1, "query_length"), (2, "key_length")):
        length = edit.integers(node, index, what) if shape is None else [shape[index + 1]]
        lengths.append(length[0] if length else 0)
    is_bidirectional = bool(node.attributes.get_int("is_bidirectional", 0))
    queries, keys = lengths
    places = buckets(queries, keys, count, node.attributes["max_distance"].as_int(), is_bidirectional)
    # the values of a head are contiguous
    table = edit.reshape(edit.input(node), [1, heads, count])
    return edit.op("Gather", [table, edit.constant(places)], {"axis": 2})


@rewrite("com.microsoft.GatedRelativePositionBias", exactness=Exactness.ROUNDING, needs_shape=(0, 3), needs_dtype=(0,))
def decompose_gated_relative_position_bias(node: ir.Node, edit: Edit) -> Replacement:
    """Write GatedRelativePositionBias as one product for both gates, sigmoids and a factor of the bias."""
    if given(node, 6) is not None:
        return Skip("the tokens are packed")
    shape, dtype, heads = edit.shape(node), edit.dtype(node), node.attributes["num_heads"].as_int()
    a = Arithmetic(edit, wide(dtype))
    query, shift, relative, weight, bias, factor = (a.cast(edit.input(node, index)) for index in range(6))
    query = split_heads(a, a("Add", query, shift), shape, heads)
    gates = a("Add", a("MatMul", query, weight), bias)
    gates = a.reshape(gates, [shape[0], heads, shape[1], 2, edit.shape(node, 3)[1] // 2])
    gates = a("Sigmoid", a.reduce("Sum", gates, [4], keepdims=False))
    update, reset = a.slice(gates, 3, 0, 1), a.slice(gates, 3, 1, 2)
    gate = a("Add", a("Mul", update, a("Sub", a("Mul", reset, factor), 1.0)), 2.0)
    return a.cast(a("Mul", gate, relative), dtype)
