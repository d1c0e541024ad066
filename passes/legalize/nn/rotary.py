"""Decompose rotary position embeddings into primitive operators.

    (x1, x2)  →  (x1 · cos θ - x2 · sin θ, x2 · cos θ + x1 · sin θ)        θ from a cache, by position

The pairs are the halves of the rotated part of each head, or adjacent elements if it is interleaved. This is
com.microsoft's RotaryEmbedding; ONNX's operator of that name has a function body (expand-functions).

Skips: dynamic shapes; a scale other than 1; packed batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from passes.builders.arithmetic import Arithmetic
from passes.builders.attention import merge_heads, split_heads
from passes.rewriting.base import Exactness, Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import Match, NodeContext, NodeRewrite


def rotate(
    a: Arithmetic, x: ir.Value, shape: Sequence[int], cos: ir.Value, sin: ir.Value, half: int, *, interleaved: bool
) -> ir.Value:
    """Rotate the first ``2 · half`` elements of every head.

    Args:
        a: builds the nodes.
        x: (batch, heads, length, size).
        shape: of ``x``.
        cos: cosines that broadcast to (batch, heads, length, half).
        sin: sines, likewise.
        half: the number of pairs.
        interleaved: whether adjacent elements are pairs, instead of halves.
    """
    size = shape[-1]
    rotated = x if 2 * half == size else a.slice(x, -1, 0, 2 * half)
    if interleaved:
        pairs = a.reshape(rotated, [*shape[:-1], half, 2])
        one, two = (a.reshape(a.slice(pairs, -1, i, i + 1), [*shape[:-1], half]) for i in (0, 1))
    else:
        one, two = a.slice(rotated, -1, 0, half), a.slice(rotated, -1, half, 2 * half)
    real = a("Sub", a("Mul", one, cos), a("Mul", two, sin))
    imaginary = a("Add", a("Mul", two, cos), a("Mul", one, sin))
    if interleaved:
        interlaced = a.concat([a.unsqueeze(real, [-1]), a.unsqueeze(imaginary, [-1])], -1)
        parts = [a.reshape(interlaced, [*shape[:-1], 2 * half])]
    else:
        parts = [real, imaginary]
    if 2 * half < size:
        parts.append(a.slice(x, -1, 2 * half, size))
    return a.concat(parts, -1)


def angles(a: Arithmetic, cache: ir.Value, positions: ir.Value) -> ir.Value:
    """Rows of a cache (lengths, half) at positions (batch or 1, length), as (batch or 1, 1, length, half)."""
    return a.unsqueeze(a("Gather", cache, positions, axis=0), [1])


@dataclass(frozen=True)
class _RotaryMatch(Match):
    shape: tuple[int, ...]
    heads: int
    half: int
    dtype: ir.DataType


class DecomposeRotaryEmbedding(NodeRewrite[_RotaryMatch]):
    """Decompose com.microsoft's RotaryEmbedding into products with cosines and sines."""

    name = "decompose-rotary-embedding"
    exactness = Exactness.ROUNDING
    operators = frozenset({("com.microsoft", "RotaryEmbedding")})
    needs_shape = (0, 1, 2)
    needs_dtype = (0,)

    def match(self, node: ir.Node, context: NodeContext) -> _RotaryMatch | Skip | None:
        """Read the number of heads, and the size of the rotated part."""
        attributes, dtype = node.attributes, context.dtype(node)
        shape, cache = context.shape(node, 0), context.shape(node, 2)
        if attributes.get_float("scale", 1.0) != 1.0 or attributes.get_int("is_packed_batching", 0) != 0:
            return Skip("its scale is not 1, or its batch is packed")
        if 0 in shape:
            return Skip("its input is empty")
        half = (attributes.get_int("rotary_embedding_dim", 0) or 2 * cache[1]) // 2
        if len(shape) == 4:
            return _RotaryMatch(node, shape, shape[1], half, dtype)
        heads = attributes.get_int("num_heads", 0) or shape[2] // (2 * cache[1])
        return _RotaryMatch(node, shape, heads, half, dtype)

    def rewrite(self, match: _RotaryMatch, edit: Edit) -> Sequence[ir.Value | None]:
        """Look up the angles, and rotate."""
        x, positions, cos, sin = match.node.inputs[:4]
        assert x is not None and positions is not None and cos is not None and sin is not None
        a = Arithmetic(edit, match.dtype)
        shape = match.shape
        if flat := len(shape) == 3:
            batch, length, hidden = shape
            x = split_heads(a, x, shape, match.heads)
            shape = (batch, match.heads, length, hidden // match.heads)
        if len(edit.scope.static_shape(positions) or ()) == 1:  # the position of the first element
            positions = a("Add", a.unsqueeze(positions, [1]), a.index(np.arange(shape[2])[None, :]))
        interleaved = bool(match.node.attributes.get_int("interleaved", 0))
        cos, sin = angles(a, cos, positions), angles(a, sin, positions)
        output = rotate(a, x, shape, cos, sin, match.half, interleaved=interleaved)
        return [merge_heads(a, output, shape) if flat else output]


RULES: tuple[NodeRewrite[Any], ...] = (DecomposeRotaryEmbedding(),)
