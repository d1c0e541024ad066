"""Rewrite GridSample and AffineGrid as arithmetic, Gather and MatMul.

    GridSample(x, grid)     →  taps along each axis, then one Gather and MatMul (`passes.builders.image_sampling`)
    AffineGrid(θ, size)     →  MatMul(constant grid in homogeneous coordinates, θᵀ)

Padding modes concern whole pixels: one outside of the image is zero, the border's, or mirrored.

Skips: dynamic shapes; sizes that are not constant.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from passes.builders.arithmetic import Arithmetic, Array, wide_float
from passes.builders.image_sampling import Taps, clamped, sample, within
from passes.rewriting.base import Exactness, Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import Replacement, rewrite

_CUBIC = -0.75
"""The standard's coefficient of the cubic kernel."""


@rewrite("GridSample", exactness=Exactness.ROUNDING, needs_shape=(0, 1), needs_dtype=(0, 1))
def gather_grid_sample(node: ir.Node, edit: Edit) -> Replacement:
    """Sample an image at the positions of a grid."""
    shape, grid_shape, dtype = edit.shape(node), edit.shape(node, 1), edit.dtype(node)
    if 0 in shape or 0 in grid_shape:
        return Skip("the input or the grid is empty")
    name = node.attributes.get_string("mode", "linear")
    mode = {"bilinear": "linear", "bicubic": "cubic"}.get(name, name)  # the names before opset 20
    if mode not in ("linear", "cubic", "nearest"):
        return Skip(f"the mode {name} is unknown")
    a = Arithmetic(edit, wide_float(dtype) if dtype.is_floating_point() else ir.DataType.FLOAT)
    rank, positions = len(shape) - 2, math.prod(grid_shape[1:-1])
    grid = a.cast(a.reshape(edit.input(node, 1), (grid_shape[0], positions, rank)))
    taps = []
    for axis, size in enumerate(shape[2:]):  # the coordinates are those of the image's axes from the last one
        at = _to_pixels(a, a("Gather", grid, a.index([rank - 1 - axis]), axis=2), size, node)
        taps.append(_taps(a, at, size, node, mode))
    y = sample(a, a.cast(edit.input(node)), shape, taps, positions)
    return a.cast(a.reshape(y, (*shape[:2], *grid_shape[1:-1])), dtype)


def _to_pixels(a: Arithmetic, at: ir.Value, size: int, node: ir.Node) -> ir.Value:
    """Map [−1, 1] to pixels; ±1 are the centers or the outer edges of the border pixels."""
    shifted = a("Add", at, 1)
    if node.attributes.get_int("align_corners", 0):
        return a("Mul", a("Div", shifted, 2), size - 1)
    return a("Div", a("Sub", a("Mul", shifted, size), 1), 2)


def _taps(a: Arithmetic, at: ir.Value, size: int, node: ir.Node, mode: str) -> Taps:
    """Return the pixels along one axis that contribute to each position."""
    weights = None
    if mode == "nearest":
        count, pixels = 1, a("Round", at)
    else:
        low = a("Floor", at)
        offsets = np.array([0, 1] if mode == "linear" else [-1, 0, 1, 2])
        count, pixels = len(offsets), a("Add", low, offsets)
        distance = a("Abs", a("Sub", a("Sub", at, low), offsets))
        weights = a("Sub", 1, distance) if mode == "linear" else _cubic_weights(a, distance)
    padding = node.attributes.get_string("padding_mode", "zeros")
    inside = within(a, pixels, size) if padding == "zeros" else None
    if padding == "reflection":
        pixels = _mirrored(a, pixels, size, bool(node.attributes.get_int("align_corners", 0)))
    return Taps(count, clamped(a, pixels, size), inside, weights)


def _mirrored(a: Arithmetic, pixels: ir.Value, size: int, centers: bool) -> ir.Value:
    """Reflect pixels at the centers or the edges of the border pixels until they are inside."""
    last = size - 1 if centers else 2 * size - 1
    period = 2 * (size - 1) if centers else 2 * size
    if period == 0:
        return a("Mul", pixels, 0)
    rest = a("Sub", pixels, a("Mul", a("Floor", a("Div", pixels, period)), period))
    return a("Min", rest, a("Sub", 2 * last if centers else last, rest))


def _cubic_weights(a: Arithmetic, distance: ir.Value) -> ir.Value:
    """Return Keys' cubic kernel for the four neighbours, the inner two of which are nearer than 1."""
    inner = _polynomial(a, distance, (_CUBIC + 2, -(_CUBIC + 3), 0, 1))
    outer = _polynomial(a, distance, (_CUBIC, -5 * _CUBIC, 8 * _CUBIC, -4 * _CUBIC))
    return a("Where", a.constant(np.array([False, True, True, False])), inner, outer)


def _polynomial(a: Arithmetic, x: ir.Value, coefficients: Sequence[float]) -> ir.Value:
    """Evaluate a polynomial by Horner's rule, highest power first."""
    y = a.value(coefficients[0])
    for coefficient in coefficients[1:]:
        y = a("Mul", y, x)
        if coefficient:
            y = a("Add", y, coefficient)
    return y


@rewrite("AffineGrid", exactness=Exactness.ROUNDING, needs_dtype=(0,))
def matmul_affine_grid(node: ir.Node, edit: Edit) -> Replacement:
    """Rewrite AffineGrid as the affine map of a constant grid, in one product for all positions of all grids."""
    size, dtype = edit.integers(node, 1, "the size"), edit.dtype(node)
    if size is None:
        return Skip("the size is missing")
    batch, _, *spatial = size
    a, corners = Arithmetic(edit, wide_float(dtype)), bool(node.attributes.get_int("align_corners", 0))
    lines = [_line(count, corners) for count in spatial]
    mesh = [*np.meshgrid(*lines, indexing="ij")][::-1]
    grid = np.stack([*mesh, np.ones(spatial)], axis=-1).reshape(-1, len(spatial) + 1)
    y = a("MatMul", grid, a("Transpose", a.cast(edit.input(node)), perm=[0, 2, 1]))
    return a.cast(a.reshape(y, (batch, *spatial, len(spatial))), dtype)


def _line(size: int, corners: bool) -> Array:
    """Return the coordinates along one axis: ±1 are the corner pixels' centers (``corners``) or the outer edges."""
    index = np.arange(size, dtype=np.float64)
    if corners:
        return -1 + 2 * index / max(size - 1, 1)
    return (2 * index + 1) / size - 1
