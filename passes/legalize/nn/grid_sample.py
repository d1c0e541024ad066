"""Rewrite GridSample and AffineGrid as arithmetic, Gather and MatMul.

    GridSample(x, grid)     →  taps along each axis, then one Gather and MatMul (`passes.builders.image_sampling`)
    AffineGrid(θ, size)     →  MatMul(constant grid in homogeneous coordinates, θᵀ)

Padding modes concern whole pixels: one outside of the image is zero, the border's, or mirrored.

Skips: dynamic shapes; sizes that are not constant.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from passes.builders.arithmetic import Array, wide_float
from passes.builders.image_sampling import Taps, clamped, sample, within
from passes.builders.operands import integers
from passes.rewriting.base import Exactness, Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import Match, NodeContext, NodeRewrite

_CUBIC = -0.75
"""The standard's coefficient of the cubic kernel."""


@dataclass(frozen=True)
class _Sampled(Match):
    shape: tuple[int, ...]
    grid: tuple[int, ...]
    mode: str


class GatherGridSample(NodeRewrite[_Sampled]):
    """Sample an image at the positions of a grid."""

    name = "gather-grid-sample"
    exactness = Exactness.ROUNDING
    operators = frozenset({("", "GridSample")})
    needs_shape = (0, 1)
    needs_dtype = (0, 1)

    def match(self, node: ir.Node, context: NodeContext) -> _Sampled | Skip | None:
        """Read the shapes and the mode, whose names changed in opset 20."""
        shape, grid = context.shape(node, 0), context.shape(node, 1)
        if 0 in shape or 0 in grid:
            return Skip("its input or its grid is empty")
        name = node.attributes.get_string("mode", "linear")
        mode = {"bilinear": "linear", "bicubic": "cubic"}.get(name, name)
        if mode not in ("linear", "cubic", "nearest"):
            return Skip(f"its mode {name} is unknown")
        return _Sampled(node, shape, grid, mode)

    def rewrite(self, match: _Sampled, edit: Edit) -> Sequence[ir.Value | None]:
        """The grid's last axis holds coordinates for the image's axes from the last one."""
        node, rank = match.node, len(match.shape) - 2
        x, grid = node.inputs[0], node.inputs[1]
        assert x is not None and grid is not None
        dtype = edit.dtype(node)
        working = wide_float(dtype) if dtype.is_floating_point() else ir.DataType.FLOAT
        positions = math.prod(match.grid[1:-1])
        flat = edit.cast(edit.reshape(grid, (match.grid[0], positions, rank)), working)
        taps = []
        for axis, size in enumerate(match.shape[2:]):
            column = edit.constant(np.array([rank - 1 - axis], np.int64))
            at = self._to_pixels(edit, edit.op("Gather", [flat, column], {"axis": 2}), size, node, working)
            taps.append(self._taps(edit, at, size, match, working))
        y = sample(edit, edit.cast(x, working), match.shape, taps, positions)
        y = edit.reshape(y, (*match.shape[:2], *match.grid[1:-1]))
        return [edit.cast(y, dtype)]

    @staticmethod
    def _to_pixels(edit: Edit, at: ir.Value, size: int, node: ir.Node, dtype: ir.DataType) -> ir.Value:
        """From [−1, 1] to pixels; ±1 are the centers or the outer edges of the border pixels."""
        two = edit.scalar(2, dtype)
        shifted = edit.op("Add", [at, edit.scalar(1, dtype)])
        if node.attributes.get_int("align_corners", 0):
            return edit.op("Mul", [edit.op("Div", [shifted, two]), edit.scalar(size - 1, dtype)])
        scaled = edit.op("Sub", [edit.op("Mul", [shifted, edit.scalar(size, dtype)]), edit.scalar(1, dtype)])
        return edit.op("Div", [scaled, two])

    def _taps(self, edit: Edit, at: ir.Value, size: int, match: _Sampled, dtype: ir.DataType) -> Taps:
        weights: ir.Value | None = None
        if match.mode == "nearest":
            count, pixels = 1, edit.op("Round", [at])
        else:
            low = edit.op("Floor", [at])
            offsets = np.array([0, 1] if match.mode == "linear" else [-1, 0, 1, 2], dtype.numpy())
            count, pixels = len(offsets), edit.op("Add", [low, edit.constant(offsets)])
            distance = edit.op("Abs", [edit.op("Sub", [edit.op("Sub", [at, low]), edit.constant(offsets)])])
            if match.mode == "linear":
                weights = edit.op("Sub", [edit.scalar(1, dtype), distance])
            else:
                weights = _cubic_weights(edit, distance, dtype)
        padding = match.node.attributes.get_string("padding_mode", "zeros")
        inside = within(edit, pixels, size, dtype) if padding == "zeros" else None
        if padding == "reflection":
            pixels = _mirrored(edit, pixels, size, bool(match.node.attributes.get_int("align_corners", 0)), dtype)
        return Taps(count, clamped(edit, pixels, size, dtype), inside, weights)


def _mirrored(edit: Edit, pixels: ir.Value, size: int, centers: bool, dtype: ir.DataType) -> ir.Value:
    """Pixels reflected at the centers or the edges of the border pixels until they are inside."""
    last = size - 1 if centers else 2 * size - 1
    period = 2 * (size - 1) if centers else 2 * size
    if period == 0:
        return edit.op("Mul", [pixels, edit.scalar(0, dtype)])
    periods = edit.op("Floor", [edit.op("Div", [pixels, edit.scalar(period, dtype)])])
    rest = edit.op("Sub", [pixels, edit.op("Mul", [periods, edit.scalar(period, dtype)])])
    reflected = edit.op("Sub", [edit.scalar(2 * last if centers else last, dtype), rest])
    return edit.op("Min", [rest, reflected])


def _cubic_weights(edit: Edit, distance: ir.Value, dtype: ir.DataType) -> ir.Value:
    """Keys' cubic kernel for the four neighbours, the inner two of which are nearer than 1."""
    inner = _polynomial(edit, distance, (_CUBIC + 2, -(_CUBIC + 3), 0, 1), dtype)
    outer = _polynomial(edit, distance, (_CUBIC, -5 * _CUBIC, 8 * _CUBIC, -4 * _CUBIC), dtype)
    return edit.op("Where", [edit.constant(np.array([False, True, True, False])), inner, outer])


def _polynomial(edit: Edit, x: ir.Value, coefficients: Sequence[float], dtype: ir.DataType) -> ir.Value:
    """Horner's rule, highest power first."""
    y = edit.scalar(coefficients[0], dtype)
    for each in coefficients[1:]:
        y = edit.op("Mul", [y, x])
        if each:
            y = edit.op("Add", [y, edit.scalar(each, dtype)])
    return y


@dataclass(frozen=True)
class _Affine(Match):
    size: tuple[int, ...]


class MatMulAffineGrid(NodeRewrite[_Affine]):
    """Rewrite AffineGrid as the affine map of a constant grid."""

    name = "matmul-affine-grid"
    exactness = Exactness.ROUNDING
    operators = frozenset({("", "AffineGrid")})
    needs_dtype = (0,)

    def match(self, node: ir.Node, context: NodeContext) -> _Affine | Skip | None:
        """Match a constant size, (N, C, spatial sizes…)."""
        size = integers(node.inputs[1], "size", context.scope)
        if size is None or isinstance(size, str):
            return Skip(size or "it has no size")
        return _Affine(node, tuple(size))

    def rewrite(self, match: _Affine, edit: Edit) -> Sequence[ir.Value | None]:
        """One MatMul for all positions of all grids."""
        theta = match.node.inputs[0]
        assert theta is not None
        dtype = edit.dtype(match.node)
        working = wide_float(dtype)
        spatial = match.size[2:]
        corners = bool(match.node.attributes.get_int("align_corners", 0))
        lines = [_line(size, corners) for size in spatial]
        mesh = [*np.meshgrid(*lines, indexing="ij")][::-1]
        grid = np.stack([*mesh, np.ones(spatial)], axis=-1).reshape(-1, len(spatial) + 1)
        turned = edit.op("Transpose", [edit.cast(theta, working)], {"perm": [0, 2, 1]})
        y = edit.op("MatMul", [edit.constant(grid.astype(working.numpy())), turned])
        return [edit.cast(edit.reshape(y, (match.size[0], *spatial, len(spatial))), dtype)]


def _line(size: int, corners: bool) -> Array:
    """The coordinates along one axis: ±1 are the corner pixels' centers (``corners``) or the outer edges."""
    index = np.arange(size, dtype=np.float64)
    if corners:
        return -1 + 2 * index / max(size - 1, 1)
    return (2 * index + 1) / size - 1


RULES: tuple[NodeRewrite[Any], ...] = (GatherGridSample(), MatMulAffineGrid())
