"""GridSample and AffineGrid by arithmetic, Gather and MatMul.

    GridSample(x, grid)     →  the taps of each place along each axis, and one Gather and MatMul (sampling.py)
    AffineGrid(θ, size)     →  MatMul(constant grid in homogeneous coordinates, θᵀ)

Padding is a matter of whole pixels in every mode: one outside of the image is zero, the border's, or mirrored.

Skips: open dimensions, sizes that are not constant.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from passes.build.image_sampling import Taps, clamped, sample, within
from passes.build.operands import UNKNOWN_SHAPE, integers, sizes_of
from passes.build.operators import cast, number, reshape, wide_float
from passes.core.base import Exactness, Skip
from passes.core.edit import Edit
from passes.core.matching import is_plain
from passes.core.rewrite import Match, NodeContext, NodeRewrite

_CUBIC = -0.75
"""The coefficient of the cubic kernel, as the standard has it."""


@dataclass(frozen=True)
class _Sampled(Match):
    shape: tuple[int, ...]
    grid: tuple[int, ...]
    mode: str


@dataclass(frozen=True)
class GatherGridSample(NodeRewrite[_Sampled]):
    """Read an image at the places of a grid."""

    name = "gather-grid-sample"
    exactness = Exactness.ROUNDING
    operators = frozenset({("", "GridSample")})

    def match(self, node: ir.Node, context: NodeContext) -> _Sampled | Skip | None:
        """Read the shapes and the mode, whose names changed in opset 20."""
        scope = context.scope
        if not is_plain(node, scope):
            return None
        shape, grid = sizes_of(node.inputs[0], scope), sizes_of(node.inputs[1], scope)
        if shape is None or grid is None:
            return Skip(UNKNOWN_SHAPE)
        if 0 in shape or 0 in grid:
            return Skip("its input or its grid is empty")
        if scope.dtype(node.inputs[0]) is None or scope.dtype(node.inputs[1]) is None:
            return Skip("the dtype of its input is unknown")
        name = node.attributes.get_string("mode", "linear")
        mode = {"bilinear": "linear", "bicubic": "cubic"}.get(name, name)
        if mode not in ("linear", "cubic", "nearest"):
            return Skip(f"it has mode {name}")
        return _Sampled(node, shape, grid, mode)

    def rewrite(self, match: _Sampled, edit: Edit) -> Sequence[ir.Value | None]:
        """Places from the grid, whose last axis counts the image's axes from the last one."""
        node, rank = match.node, len(match.shape) - 2
        x, grid = node.inputs[0], node.inputs[1]
        assert x is not None and grid is not None
        dtype, given = edit.scope.dtype(x), edit.scope.dtype(grid)
        floating = dtype is not None and dtype.is_floating_point()
        working = wide_float(dtype) if floating else ir.DataType.FLOAT
        assert working is not None
        places = math.prod(match.grid[1:-1])
        flat = cast(edit, reshape(edit, grid, (match.grid[0], places, rank)), given, working)
        taps = []
        for axis, size in enumerate(match.shape[2:]):
            column = edit.constant(np.array([rank - 1 - axis], np.int64))
            at = self._place(edit, edit.op("Gather", [flat, column], {"axis": 2}), size, node, working)
            taps.append(self._taps(edit, at, size, match, working))
        y = sample(edit, cast(edit, x, dtype, working), match.shape, taps, places)
        y = reshape(edit, y, (*match.shape[:2], *match.grid[1:-1]))
        return [cast(edit, y, working, dtype)]

    @staticmethod
    def _place(edit: Edit, at: ir.Value, size: int, node: ir.Node, dtype: ir.DataType) -> ir.Value:
        """From −1…1 to pixels: the centers of the outer ones, or their edges."""
        half = number(edit, 2, dtype)
        shifted = edit.op("Add", [at, number(edit, 1, dtype)])
        if node.attributes.get_int("align_corners", 0):
            return edit.op("Mul", [edit.op("Div", [shifted, half]), number(edit, size - 1, dtype)])
        scaled = edit.op("Sub", [edit.op("Mul", [shifted, number(edit, size, dtype)]), number(edit, 1, dtype)])
        return edit.op("Div", [scaled, half])

    def _taps(self, edit: Edit, at: ir.Value, size: int, match: _Sampled, dtype: ir.DataType) -> Taps:
        weights: ir.Value | None = None
        if match.mode == "nearest":
            count, pixels = 1, edit.op("Round", [at])
        else:
            low = edit.op("Floor", [at])
            offsets = np.array([0, 1] if match.mode == "linear" else [-1, 0, 1, 2], dtype.numpy())
            count, pixels = len(offsets), edit.op("Add", [low, edit.constant(offsets)])
            away = edit.op("Abs", [edit.op("Sub", [edit.op("Sub", [at, low]), edit.constant(offsets)])])
            if match.mode == "linear":
                weights = edit.op("Sub", [number(edit, 1, dtype), away])
            else:
                weights = _keys(edit, away, dtype)
        padding = match.node.attributes.get_string("padding_mode", "zeros")
        inside = within(edit, pixels, size, dtype) if padding == "zeros" else None
        if padding == "reflection":
            pixels = _mirrored(edit, pixels, size, bool(match.node.attributes.get_int("align_corners", 0)), dtype)
        return Taps(count, clamped(edit, pixels, size, dtype), inside, weights)


def _mirrored(edit: Edit, pixels: ir.Value, size: int, centers: bool, dtype: ir.DataType) -> ir.Value:
    """Pixels outside, mirrored at the centers or the edges of the outer ones until they are inside."""
    last = size - 1 if centers else 2 * size - 1
    period = 2 * (size - 1) if centers else 2 * size
    if period == 0:
        return edit.op("Mul", [pixels, number(edit, 0, dtype)])
    turns = edit.op("Floor", [edit.op("Div", [pixels, number(edit, period, dtype)])])
    rest = edit.op("Sub", [pixels, edit.op("Mul", [turns, number(edit, period, dtype)])])
    back = edit.op("Sub", [number(edit, 2 * last if centers else last, dtype), rest])
    return edit.op("Min", [rest, back])


def _keys(edit: Edit, away: ir.Value, dtype: ir.DataType) -> ir.Value:
    """The cubic kernel of the four neighbours, the inner two of which are nearer than 1 (Keys)."""
    inner = _polynomial(edit, away, (_CUBIC + 2, -(_CUBIC + 3), 0, 1), dtype)
    outer = _polynomial(edit, away, (_CUBIC, -5 * _CUBIC, 8 * _CUBIC, -4 * _CUBIC), dtype)
    return edit.op("Where", [edit.constant(np.array([False, True, True, False])), inner, outer])


def _polynomial(edit: Edit, x: ir.Value, coefficients: Sequence[float], dtype: ir.DataType) -> ir.Value:
    """By Horner's rule, the highest power first."""
    y = number(edit, coefficients[0], dtype)
    for each in coefficients[1:]:
        y = edit.op("Mul", [y, x])
        if each:
            y = edit.op("Add", [y, number(edit, each, dtype)])
    return y


@dataclass(frozen=True)
class _Affine(Match):
    size: tuple[int, ...]


@dataclass(frozen=True)
class MatMulAffineGrid(NodeRewrite[_Affine]):
    """An affine map of a constant grid."""

    name = "matmul-affine-grid"
    exactness = Exactness.ROUNDING
    operators = frozenset({("", "AffineGrid")})

    def match(self, node: ir.Node, context: NodeContext) -> _Affine | Skip | None:
        """Read the size, (N, C, spatial sizes…)."""
        if not is_plain(node, context.scope):
            return None
        size = integers(node.inputs[1], "size", context.scope)
        if size is None or isinstance(size, str):
            return Skip(size or "it has no size")
        if context.scope.dtype(node.inputs[0]) is None:
            return Skip("the dtype of its input is unknown")
        return _Affine(node, tuple(size))

    def rewrite(self, match: _Affine, edit: Edit) -> Sequence[ir.Value | None]:
        """One MatMul for all places of all grids."""
        theta = match.node.inputs[0]
        assert theta is not None
        dtype = edit.scope.dtype(theta)
        working = wide_float(dtype)
        assert working is not None
        spatial = match.size[2:]
        corners = bool(match.node.attributes.get_int("align_corners", 0))
        lines = [_line(size, corners) for size in spatial]
        mesh = [*np.meshgrid(*lines, indexing="ij")][::-1]
        grid = np.stack([*mesh, np.ones(spatial)], axis=-1).reshape(-1, len(spatial) + 1)
        turned = edit.op("Transpose", [cast(edit, theta, dtype, working)], {"perm": [0, 2, 1]})
        y = edit.op("MatMul", [edit.constant(grid.astype(working.numpy())), turned])
        return [cast(edit, reshape(edit, y, (match.size[0], *spatial, len(spatial))), working, dtype)]


def _line(size: int, corners: bool) -> np.ndarray[Any, np.dtype[Any]]:
    """The places along one axis of a grid: pixel centers if −1…1 are the edges, or the corners themselves."""
    index = np.arange(size, dtype=np.float64)
    if corners:
        return -1 + 2 * index / max(size - 1, 1)
    return (2 * index + 1) / size - 1


RULES: tuple[NodeRewrite[Any], ...] = (GatherGridSample(), MatMulAffineGrid())
