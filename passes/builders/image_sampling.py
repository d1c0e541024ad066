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

from passes.builders.arithmetic import Arithmetic


@dataclass(frozen=True)
class Taps:
    """The pixels that are read along one axis.

    Attributes:
        count: the number of taps per position.
        positions: indices of pixels, (N, Q, count): whole numbers in a float dtype, clamped to the image.
        inside: whether the positions are in the image, bool of the same shape; None if all are.
        weights: the factors of the pixels, of the same shape; None for a single tap of weight 1.
    """

    count: int
    positions: ir.Value
    inside: ir.Value | None
    weights: ir.Value | None


def sample(a: Arithmetic, x: ir.Value, shape: Sequence[int], taps: Sequence[Taps], positions: int) -> ir.Value:
    """Sample ``x``, (N, C, spatial sizes…), by the taps along each spatial axis.

    Return (N, C, Q), with Q the number of positions per image.
    """
    batch, channels, spatial = shape[0], shape[1], shape[2:]
    pixels, rank = math.prod(spatial), len(spatial)
    rows = a("Transpose", a.reshape(x, (batch, channels, pixels)), perm=[0, 2, 1])
    rows = a.reshape(rows, (batch * pixels, channels))
    flat: ir.Value | None = None
    inside: ir.Value | None = None
    weights: ir.Value | None = None
    for axis, tap in enumerate(taps):
        spread = (batch, positions, *[tap.count if other == axis else 1 for other in range(rank)])
        index = a.reshape(a.cast(tap.positions, ir.DataType.INT64), spread)
        stride = math.prod(spatial[axis + 1 :])
        if stride > 1:
            index = a("Mul", index, a.index(stride))
        flat = index if flat is None else a("Add", flat, index)
        if tap.inside is not None:
            is_within = a.reshape(tap.inside, spread)
            inside = is_within if inside is None else a("And", inside, is_within)
        if tap.weights is not None:
            weight = a.reshape(tap.weights, spread)
            weights = weight if weights is None else a("Mul", weights, weight)
    assert flat is not None
    if batch > 1:
        flat = a("Add", flat, a.index(np.arange(batch).reshape(batch, *[1] * (rank + 1)) * pixels))
    if inside is not None:
        rows = a.concat([rows, a.value(np.zeros((1, channels)))], 0)
        flat = a("Where", inside, flat, a.index(batch * pixels))
    total = math.prod(tap.count for tap in taps)
    samples = a("Gather", rows, a.reshape(flat, (batch, positions, total)), axis=0)
    if weights is not None:
        samples = a("MatMul", a.reshape(weights, (batch, positions, 1, total)), samples)
    return a("Transpose", a.reshape(samples, (batch, positions, channels)), perm=[0, 2, 1])


def linear_taps(a: Arithmetic, at: ir.Value, size: int) -> Taps:
    """Return the taps of linear interpolation along an axis at positions (N, Q, 1), with zeros outside of the image."""
    low = a("Floor", at)
    far = a("Sub", at, low)
    weights = a.concat([a("Sub", 1, far), far], -1)
    pixels = a("Add", low, np.array([0, 1]))
    return Taps(2, clamped(a, pixels, size), within(a, pixels, size), weights)


def within(a: Arithmetic, pixels: ir.Value, size: int) -> ir.Value:
    """Return whether the whole numbers ``pixels`` are valid indices of an axis of ``size``."""
    return a("And", a("Greater", pixels, -1), a("Less", pixels, size))


def clamped(a: Arithmetic, pixels: ir.Value, size: int) -> ir.Value:
    """Clamp ``pixels`` to the valid indices of an axis of ``size``."""
    return a("Clip", pixels, 0, size - 1)
