"""Reading an image at computed places: what GridSample and DeformConv share.

    y[n, c, q] = Σ over taps of  weight[n, q, tap] · x[n, c, place[n, q, tap]]

The image becomes a table, one row of channels for each pixel and a last row of zeros; all taps of all places are one
Gather from it, and the sum is one MatMul. A place outside of the image that counts as zero is the last row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from passes.build.operators import number, reshape
from passes.core.edit import Edit


@dataclass(frozen=True)
class Taps:
    """What is read along one axis.

    Attributes:
        count: how many pixels each place reads.
        places: which they are, (N, Q, count): whole numbers in a float dtype, within the image.
        inside: whether they are in the image, bool of the same shape; None where all are.
        weights: theirs, of the same shape; None for a single one of weight 1.
    """

    count: int
    places: ir.Value
    inside: ir.Value | None
    weights: ir.Value | None


def sample(edit: Edit, x: ir.Value, shape: Sequence[int], taps: Sequence[Taps], places: int) -> ir.Value:
    """Read ``x`` at places that are given axis by axis.

    Args:
        edit: where to build.
        x: (N, C, spatial sizes…), in the dtype of the weights.
        shape: its sizes.
        taps: of each spatial axis.
        places: Q, how many places each image is read at.

    Returns:
        (N, C, Q)
    """
    batch, channels, spatial = shape[0], shape[1], shape[2:]
    pixels, rank = math.prod(spatial), len(spatial)
    assert x.dtype is not None
    rows = edit.op("Transpose", [reshape(edit, x, (batch, channels, pixels))], {"perm": [0, 2, 1]})
    rows = reshape(edit, rows, (batch * pixels, channels))
    counts = [each.count for each in taps]
    flat: ir.Value | None = None
    inside: ir.Value | None = None
    weights: ir.Value | None = None
    for place, each in enumerate(taps):
        spread = (batch, places, *[count if other == place else 1 for other, count in enumerate(counts)])
        index = edit.op("Cast", [each.places], {"to": ir.DataType.INT64.value})
        index = reshape(edit, index, spread)
        stride = math.prod(spatial[place + 1 :])
        if stride > 1:
            index = edit.op("Mul", [index, edit.constant(np.array(stride, np.int64))])
        flat = index if flat is None else edit.op("Add", [flat, index])
        if each.inside is not None:
            within = reshape(edit, each.inside, spread)
            inside = within if inside is None else edit.op("And", [inside, within])
        if each.weights is not None:
            weight = reshape(edit, each.weights, spread)
            weights = weight if weights is None else edit.op("Mul", [weights, weight])
    assert flat is not None
    if batch > 1:
        first = np.arange(batch, dtype=np.int64).reshape(batch, *[1] * (rank + 1)) * pixels
        flat = edit.op("Add", [flat, edit.constant(first)])
    if inside is not None:
        rows = edit.op("Concat", [rows, edit.constant(np.zeros((1, channels), x.dtype.numpy()))], {"axis": 0})
        flat = edit.op("Where", [inside, flat, edit.constant(np.array(batch * pixels, np.int64))])
    total = math.prod(counts)
    read = edit.op("Gather", [rows, reshape(edit, flat, (batch, places, total))], {"axis": 0})
    if weights is not None:
        read = edit.op("MatMul", [reshape(edit, weights, (batch, places, 1, total)), read])
    return edit.op("Transpose", [reshape(edit, read, (batch, places, channels))], {"perm": [0, 2, 1]})


def linear_taps(edit: Edit, at: ir.Value, size: int, dtype: ir.DataType) -> Taps:
    """The two neighbours of each place, with zeros outside of the image.

    Args:
        edit: where to build.
        at: places along the axis, (N, Q, 1).
        size: of the image along the axis.
        dtype: of ``at``.
    """
    low = edit.op("Floor", [at])
    far = edit.op("Sub", [at, low])
    near = edit.op("Sub", [number(edit, 1, dtype), far])
    weights = edit.op("Concat", [near, far], {"axis": -1})
    pixels = edit.op("Add", [low, edit.constant(np.array([0, 1], dtype.numpy()))])
    return Taps(2, clamped(edit, pixels, size, dtype), within(edit, pixels, size, dtype), weights)


def within(edit: Edit, pixels: ir.Value, size: int, dtype: ir.DataType) -> ir.Value:
    """Which of the whole numbers ``pixels`` are of an axis of ``size``."""
    low = edit.op("Greater", [pixels, number(edit, -1, dtype)])
    return edit.op("And", [low, edit.op("Less", [pixels, number(edit, size, dtype)])])


def clamped(edit: Edit, pixels: ir.Value, size: int, dtype: ir.DataType) -> ir.Value:
    """The nearest pixels that an axis of ``size`` has."""
    return edit.op("Clip", [pixels, number(edit, 0, dtype), number(edit, size - 1, dtype)])
