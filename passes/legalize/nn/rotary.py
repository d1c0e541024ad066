"""Decompose rotary position embeddings into primitive operators.

    (x1, x2)  →  (x1 · cos θ - x2 · sin θ, x2 · cos θ + x1 · sin θ)        θ from a cache, by position

The pairs are the halves of the rotated part of each head, or adjacent elements if it is interleaved. ONNX's operator
takes the positions last, and may take none: then the caches have a row for each element. Its function body has slices
without elements, which MIGraphX rejects. MRotaryEmbedding has three positions for each token, of time, height and
width: θ of each pair comes from one of them, in sections, or in turn.

Skips: dynamic shapes; a scale other than 1; packed batches.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from passes.builders.arithmetic import Arithmetic
from passes.builders.attention import merge_heads, split_heads
from passes.builders.operands import given
from passes.rewriting.base import Exactness, Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import Replacement, rewrite


def rotate(
    a: Arithmetic, x: ir.Value, shape: Sequence[int], cos: ir.Value, sin: ir.Value, half: int, *, interleaved: bool
) -> ir.Value:
    """Rotate the first ``2 · half`` elements of every head of ``x``, (batch, heads, length, size).

    Pairs are halves, or adjacent elements if ``interleaved``; cosines and sines broadcast to (…, length, half).
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
    """Return the rows of ``cache`` (lengths, half) at positions (batch or 1, length): (batch or 1, 1, length, half)."""
    return a.unsqueeze(a("Gather", cache, positions, axis=0), [1])


def _angles_of_three(a: Arithmetic, node: ir.Node, cache: ir.Value, positions: ir.Value) -> ir.Value:
    """Return rows of ``cache`` as `angles` does, at positions (3, batch, length): each column at one of the three."""
    sizes = node.attributes["mrope_section"].as_ints()
    columns = np.repeat(np.arange(3), sizes)
    if node.attributes.get_int("mrope_layout", 0) == 1:
        columns[:] = 0
        for part in (1, 2):
            columns[part : 3 * sizes[part] : 3] = part
    rows = a("Gather", cache, positions, axis=0)
    parts = [a.squeeze(a.slice(rows, 0, part, part + 1), [0]) for part in range(3)]
    chosen = parts[0]
    for part in (1, 2):
        chosen = a("Where", a.constant(columns == part), parts[part], chosen)
    return a.unsqueeze(chosen, [1])


@rewrite(
    "com.microsoft.RotaryEmbedding",
    "com.microsoft.MRotaryEmbedding",
    exactness=Exactness.ROUNDING,
    needs_shape=(0, 1, 2),
    needs_dtype=(0,),
)
def decompose_rotary_embedding(node: ir.Node, edit: Edit) -> Replacement:
    """Decompose com.microsoft's RotaryEmbedding into products with cosines and sines."""
    attributes, cache = node.attributes, edit.shape(node, 2)
    if attributes.get_float("scale", 1.0) != 1.0 or attributes.get_int("is_packed_batching", 0) != 0:
        return Skip("the scale is not 1, or the batch is packed")
    return _rotated(node, edit, (2, 3), 1, 2 * cache[1])


@rewrite("RotaryEmbedding", exactness=Exactness.ROUNDING, needs_shape=(0, 1, 2), needs_dtype=(0,))
def decompose_standard_rotary_embedding(node: ir.Node, edit: Edit) -> Replacement:
    """Decompose ONNX's RotaryEmbedding into products with cosines and sines."""
    return _rotated(node, edit, (1, 2), 3, 2 * edit.shape(node, 1)[-1])


def _rotated(node: ir.Node, edit: Edit, caches: Sequence[int], place: int, size: int) -> Replacement:
    """Return the rotated input.

    Args:
        caches: the places of the cosines and sines among the inputs.
        place: the place of the positions among the inputs.
        size: the size of the rotated part of a head, and of all of it unless the heads are known otherwise.
    """
    attributes, shape = node.attributes, edit.shape(node)
    if 0 in shape:
        return Skip("the input is empty")
    half = (attributes.get_int("rotary_embedding_dim", 0) or size) // 2
    a, x = Arithmetic(edit, edit.dtype(node)), edit.input(node, 0)
    is_flat = len(shape) == 3
    if is_flat:
        heads = attributes.get_int("num_heads", 0) or shape[2] // size
        x = split_heads(a, x, shape, heads)
        shape = (shape[0], heads, shape[1], shape[2] // heads)
    if given(node, place):
        positions = edit.input(node, place)
        if len(edit.scope.static_shape(positions) or ()) == 1:  # the position of the first element
            positions = a("Add", a.unsqueeze(positions, [1]), a.index(np.arange(shape[2])[None, :]))
        if node.op_type == "MRotaryEmbedding":
            cos, sin = (_angles_of_three(a, node, edit.input(node, index), positions) for index in caches)
        else:
            cos, sin = (angles(a, edit.input(node, index), positions) for index in caches)
    else:
        cos, sin = (a.unsqueeze(edit.input(node, index), [1]) for index in caches)
    output = rotate(a, x, shape, cos, sin, half, interleaved=bool(attributes.get_int("interleaved", 0)))
    return merge_heads(a, output, shape) if is_flat else output
