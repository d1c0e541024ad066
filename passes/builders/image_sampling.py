"""Sampling an image at computed positions, shared by GridSample and DeformConv.

    y[n, c, q] = Σ over taps of  weight[n, q, tap] · x[n, c, position[n, q, tap]]

The image becomes a table with one row of channels per pixel and a final row of zeros. All taps of all positions are
one Gather from this table, and the weighted sum is one MatMul. Positions outside of the image with value zero read the
final row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from passes.rewriting.edit import Edit


@dataclass(frozen=True)
class Taps:
    """The pixels that are read along one axis.

    Attributes:
        count: the number of taps per position.
        positions: indices of pixels, (N, Q, count): whole numbers in a float dtype, clamped to the image.
        inside: whether they are in the image, bool of the same shape; None if all are.
        weights: of the same shape; None for a single tap of weight 1.
    """

    count: int
    positions: ir.Value
    inside: ir.Value | None
    weights: ir.Value | None


def sample(edit: Edit, x: ir.Value, shape: Sequence[int], taps: Sequence[Taps], positions: int) -> ir.Value:
    """Sample ``x`` at positions that are given by axis.

    Args:
        edit: receives the new nodes.
        x: (N, C, spatial sizes…), in the dtype of the weights.
        shape: of ``x``.
        taps: of each spatial axis.
        positions: Q, the number of positions per image.

    Returns:
        (N, C, Q)
    """
    batch, channels, spatial = shape[0], shape[1], shape[2:]
    pixels, rank = math.prod(spatial), len(spatial)
    assert x.dtype is not None
    rows = edit.op("Transpose", [edit.reshape(x, (batch, channels, pixels))], {"perm": [0, 2, 1]})
    rows = edit.reshape(rows, (batch * pixels, channels))
    counts = [each.count for each in taps]
    flat: ir.Value | None = None
    inside: ir.Value | None = None
    weights: ir.Value | None = None
    for axis, each in enumerate(taps):
        spread = (batch, positions, *[count if other == axis else 1 for other, count in enumerate(counts)])
        index = edit.op("Cast", [each.positions], {"to": ir.DataType.INT64.value})
        index = edit.reshape(index, spread)
        stride = math.prod(spatial[axis + 1 :])
        if stride > 1:
            index = edit.op("Mul", [index, edit.constant(np.array(stride, np.int64))])
        flat = index if flat is None else edit.op("Add", [flat, index])
        if each.inside is not None:
            within = edit.reshape(each.inside, spread)
            inside = within if inside is None else edit.op("And", [inside, within])
        if each.weights is not None:
            weight = edit.reshape(each.weights, spread)
            weights = weight if weights is None else edit.op("Mul", [weights, weight])
    assert flat is not None
    if batch > 1:
        first = np.arange(batch, dtype=np.int64).reshape(batch, *[1] * (rank + 1)) * pixels
        flat = edit.op("Add", [flat, edit.constant(first)])
    if inside is not None:
        rows = edit.op("Concat", [rows, edit.constant(np.zeros((1, channels), x.dtype.numpy()))], {"axis": 0})
        flat = edit.op("Where", [inside, flat, edit.constant(np.array(batch * pixels, np.int64))])
    total = math.prod(counts)
    read = edit.op("Gather", [rows, edit.reshape(flat, (batch, positions, total))], {"axis": 0})
    if weights is not None:
        read = edit.op("MatMul", [edit.reshape(weights, (batch, positions, 1, total)), read])
    return edit.op("Transpose", [edit.reshape(read, (batch, positions, channels))], {"perm": [0, 2, 1]})


def linear_taps(edit: Edit, at: ir.Value, size: int, dtype: ir.DataType) -> Taps:
    """Linear interpolation between two neighbours, with zeros outside of the image.

    Args:
        edit: receives the new nodes.
        at: positions along the axis, (N, Q, 1).
        size: of the image along the axis.
        dtype: of ``at``.
    """
    low = edit.op("Floor", [at])
    far = edit.op("Sub", [at, low])
    near = edit.op("Sub", [edit.scalar(1, dtype), far])
    weights = edit.op("Concat", [near, far], {"axis": -1})
    pixels = edit.op("Add", [low, edit.constant(np.array([0, 1], dtype.numpy()))])
    return Taps(2, clamped(edit, pixels, size, dtype), within(edit, pixels, size, dtype), weights)


def within(edit: Edit, pixels: ir.Value, size: int, dtype: ir.DataType) -> ir.Value:
    """Whether the whole numbers ``pixels`` are valid indices of an axis of ``size``."""
    low = edit.op("Greater", [pixels, edit.scalar(-1, dtype)])
    return edit.op("And", [low, edit.op("Less", [pixels, edit.scalar(size, dtype)])])


def clamped(edit: Edit, pixels: ir.Value, size: int, dtype: ir.DataType) -> ir.Value:
    """``pixels`` clamped to the valid indices of an axis of ``size``."""
    return edit.op("Clip", [pixels, edit.scalar(0, dtype), edit.scalar(size - 1, dtype)])
