"""Rewrite RoiAlign and MaxRoiPool, which resample regions of an image to a common size.

    RoiAlign(x, rois), avg  →  MatMul(MatMul(A, x[batch]), Bᵀ), with the weights A and B of rows and columns in each bin
    RoiAlign(x, rois), max  →  the same for the pixel before and after each sample, along both axes; Max of the four
    MaxRoiPool(x, rois)     →  ReduceMax(Where(row is in bin, x[batch], −∞)), then the same for columns

The samples of a region form a grid, so the weight of a pixel in a sample is a product of the weights of its row and its
column. Like ONNX Runtime, RoiAlign's mode ``max`` takes the largest weighted pixel, not the largest interpolated
sample.

Skips: dynamic shapes; sampling_ratio=0, which derives the number of samples from the sizes of the regions, if these are
not constant.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from passes.builders.arithmetic import Array, wide_float
from passes.rewriting.base import Exactness, Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import Match, NodeContext, NodeRewrite


@dataclass(frozen=True)
class _Regions(Match):
    shape: tuple[int, ...]
    """Of the images."""
    count: int
    """The number of regions."""
    dtype: ir.DataType


def _match(node: ir.Node, context: NodeContext) -> _Regions | Skip:
    shape, rois = context.shape(node, 0), context.shape(node, 1)
    if 0 in shape or 0 in rois:
        return Skip("its input is empty, or there are no regions")
    return _Regions(node, shape, rois[0], context.dtype(node))


def _column(edit: Edit, rois: ir.Value, place: int) -> ir.Value:
    """One coordinate of each region, (regions, 1, 1)."""
    column = edit.op("Gather", [rois, edit.constant(np.array([place], np.int64))], {"axis": 1})
    return edit.reshape(column, (-1, 1, 1))


class MatMulRoiAlign(NodeRewrite[_Regions]):
    """Sample regions along rows, then along columns."""

    name = "matmul-roi-align"
    exactness = Exactness.ROUNDING
    operators = frozenset({("", "RoiAlign")})
    needs_shape = (0, 1)
    needs_dtype = (0,)

    def match(self, node: ir.Node, context: NodeContext) -> _Regions | Skip | None:
        """Match a known number of samples."""
        found = _match(node, context)
        constant = context.scope.constant(node.inputs[1]) is not None
        if isinstance(found, _Regions) and not constant and node.attributes.get_int("sampling_ratio", 0) <= 0:
            return Skip(
                "its sampling_ratio is 0, and the rois, which then determine the samples, are not constant: freeze them"
            )
        return found

    def rewrite(self, match: _Regions, edit: Edit) -> Sequence[ir.Value | None]:
        """The weights of rows and columns, and two MatMuls."""
        node = match.node
        x, rois, batch = node.inputs[:3]
        working = wide_float(match.dtype)
        assert x is not None and rois is not None and batch is not None and working is not None
        images = edit.op("Gather", [edit.cast(x, working), batch], {"axis": 0})
        rois = edit.cast(rois, working)
        height, width = (_RoiAlignAxis(match, axis, edit) for axis in (0, 1))
        rows, columns = height.weights(edit, rois, working), width.weights(edit, rois, working)
        if node.attributes.get_string("mode", "avg") == "avg":
            y = _weighted(edit, height.averaged(edit, rows), images, width.averaged(edit, columns))
            return [edit.cast(y, match.dtype)]
        corners = [_weighted(edit, one, images, other) for one in rows for other in columns]
        bins = (height.bins, height.samples, width.bins, width.samples)
        y = edit.reshape(edit.op("Max", corners), (match.count, match.shape[1], *bins))
        axes = edit.constant(np.array([3, 5], np.int64))
        return [edit.cast(edit.op("ReduceMax", [y, axes], {"keepdims": 0}), match.dtype)]


def _weighted(edit: Edit, rows: ir.Value, images: ir.Value, columns: ir.Value) -> ir.Value:
    """Multiply by the weights of rows, then by those of columns."""
    transposed = edit.op("Transpose", [columns], {"perm": [0, 1, 3, 2]})
    return edit.op("MatMul", [edit.op("MatMul", [rows, images]), transposed])


class _RoiAlignAxis:
    """RoiAlign along one axis, 0 for height and 1 for width.

    Attributes:
        bins: the number of bins along the axis.
        samples: the number of samples per bin along the axis; the maximum over the regions.
    """

    def __init__(self, match: _Regions, axis: int, edit: Edit) -> None:
        attributes = match.node.attributes
        self.match, self.axis, self.size = match, axis, match.shape[2 + axis]
        self.bins = attributes.get_int("output_width" if axis else "output_height", 1)
        default = "half_pixel" if edit.scope.opset() >= 16 else "output_half_pixel"
        self.half = attributes.get_string("coordinate_transformation_mode", default) == "half_pixel"
        self.scale = attributes.get_float("spatial_scale", 1.0)
        ratio = attributes.get_int("sampling_ratio", 0)
        self.counts: Array = np.array([ratio]) if ratio > 0 else self._adaptive(edit)
        self.samples = int(self.counts.max())

    def _adaptive(self, edit: Edit) -> Array:
        """The number of samples per bin of each constant region along the axis: one per pixel."""
        tensor = edit.scope.constant(self.match.node.inputs[1])
        assert tensor is not None
        rois = tensor.numpy().astype(np.float32) * np.float32(self.scale)
        extent = rois[:, 3 - self.axis] - rois[:, 1 - self.axis]
        if not self.half:
            extent = np.maximum(extent, np.float32(1))
        return np.maximum(np.ceil(extent / np.float32(self.bins)).astype(np.int64), 1)

    def weights(self, edit: Edit, rois: ir.Value, dtype: ir.DataType) -> list[ir.Value]:
        """The weight of each pixel in each sample, as the lower and as the upper neighbour.

        Returns:
            Two values of shape (regions, 1, bins · samples, size).
        """
        shift = edit.scalar(0.5 if self.half else 0.0, dtype)
        scale = edit.scalar(self.scale, dtype)
        start, end = (
            edit.op("Sub", [edit.op("Mul", [_column(edit, rois, place), scale]), shift])
            for place in (1 - self.axis, 3 - self.axis)
        )
        extent = edit.op("Sub", [end, start])
        if not self.half:
            extent = edit.op("Max", [extent, edit.scalar(1, dtype)])
        bin_size = edit.op("Div", [extent, edit.scalar(self.bins, dtype)])
        steps = edit.constant(self._steps().astype(dtype.numpy()))
        at = edit.op("Add", [start, edit.op("Mul", [bin_size, steps])])
        outside = edit.op(
            "Or",
            [edit.op("Less", [at, edit.scalar(-1, dtype)]), edit.op("Greater", [at, edit.scalar(self.size, dtype)])],
        )
        last = edit.scalar(self.size - 1, dtype)
        at = edit.op("Clip", [at, edit.scalar(0, dtype), last])
        low = edit.op("Floor", [at])
        high = edit.op("Min", [edit.op("Add", [low, edit.scalar(1, dtype)]), last])
        far = edit.op("Sub", [at, low])
        near = edit.op("Sub", [edit.scalar(1, dtype), far])
        pixels = edit.constant(np.arange(self.size, dtype=np.int64))
        zero = edit.scalar(0, dtype)
        found = []
        for pixel, weight in ((low, near), (high, far)):
            inside = edit.op("Where", [outside, zero, weight])
            here = edit.op("Equal", [edit.cast(pixel, ir.DataType.INT64), pixels])
            one = edit.op("Where", [here, inside, zero])
            found.append(edit.reshape(one, (self.match.count, 1, self.bins * self.samples, self.size)))
        return found

    def _steps(self) -> Array:
        """The positions of samples in bins from the region's start: (regions or 1, bins · samples, 1).

        A region with fewer samples than the maximum repeats its last one, which does not change a maximum.
        """
        counts = self.counts[:, None, None]
        inner = (np.minimum(np.arange(self.samples), counts - 1) + 0.5) / counts
        steps: Array = np.arange(self.bins)[None, :, None] + inner
        return steps.reshape(len(self.counts), -1, 1)

    def averaged(self, edit: Edit, weights: Sequence[ir.Value]) -> ir.Value:
        """The weight of each pixel in each bin: (regions, 1, bins, size)."""
        both = edit.op("Add", list(weights))
        shape = (self.match.count, 1, self.bins, self.samples, self.size)
        counts = self.counts[:, None]
        share = np.where(np.arange(self.samples) < counts, 1 / counts, 0.0)[:, None, None, :, None]
        assert both.dtype is not None
        shared = edit.op("Mul", [edit.reshape(both, shape), edit.constant(share.astype(both.dtype.numpy()))])
        return edit.op("ReduceSum", [shared, edit.constant(np.array([3], np.int64))], {"keepdims": 0})


class WhereMaxRoiPool(NodeRewrite[_Regions]):
    """Compute the maxima of the bins of regions, by masks of rows and of columns."""

    name = "where-max-roi-pool"
    exactness = Exactness.ROUNDING
    operators = frozenset({("", "MaxRoiPool")})
    needs_shape = (0, 1)
    needs_dtype = (0,)

    def match(self, node: ir.Node, context: NodeContext) -> _Regions | Skip | None:
        return _match(node, context)

    def rewrite(self, match: _Regions, edit: Edit) -> Sequence[ir.Value | None]:
        """Maxima over rows, then columns; empty bins are 0."""
        x, rois = match.node.inputs[:2]
        working = wide_float(match.dtype)
        assert x is not None and rois is not None and working is not None
        rois = edit.cast(rois, working)
        batch = edit.op("Cast", [_column(edit, rois, 0)], {"to": ir.DataType.INT64.value})
        images = edit.op("Gather", [edit.cast(x, working), edit.reshape(batch, (-1,))], {"axis": 0})
        lowest = edit.scalar(float(working.min), working)
        bins = match.node.attributes.get_ints("pooled_shape", [])
        channels, height, width = match.shape[1:]
        rows, no_row = self._bins(match, edit, rois, 0, bins[0], working)
        y = edit.reshape(images, (match.count, channels, 1, height, width))
        y = edit.op("Where", [edit.reshape(rows, (match.count, 1, bins[0], height, 1)), y, lowest])
        y = edit.op("ReduceMax", [y, edit.constant(np.array([3], np.int64))], {"keepdims": 0})
        columns, no_column = self._bins(match, edit, rois, 1, bins[1], working)
        y = edit.reshape(y, (match.count, channels, bins[0], 1, width))
        y = edit.op("Where", [edit.reshape(columns, (match.count, 1, 1, bins[1], width)), y, lowest])
        y = edit.op("ReduceMax", [y, edit.constant(np.array([4], np.int64))], {"keepdims": 0})
        empty = edit.op(
            "Or",
            [
                edit.reshape(no_row, (match.count, 1, bins[0], 1)),
                edit.reshape(no_column, (match.count, 1, 1, bins[1])),
            ],
        )
        return [edit.cast(edit.op("Where", [empty, edit.scalar(0, working), y]), match.dtype)]

    @staticmethod
    def _bins(
        match: _Regions, edit: Edit, rois: ir.Value, axis: int, bins: int, dtype: ir.DataType
    ) -> tuple[ir.Value, ir.Value]:
        """Whether each pixel along an axis is in each bin, (regions, bins, size), and which bins are empty."""
        size = match.shape[2 + axis]
        scale = edit.scalar(match.node.attributes.get_float("spatial_scale", 1.0), dtype)
        one = edit.scalar(1, dtype)
        start, end = (
            _away_from_zero(edit, edit.op("Mul", [_column(edit, rois, place), scale]), dtype)
            for place in (2 - axis, 4 - axis)
        )
        extent = edit.op("Max", [edit.op("Add", [edit.op("Sub", [end, start]), one]), one])
        bin_size = edit.op("Div", [extent, edit.scalar(bins, dtype)])
        index = np.arange(bins + 1).astype(dtype.numpy())[None, :, None]
        low = edit.op("Floor", [edit.op("Mul", [edit.constant(index[:, :-1]), bin_size])])
        high = edit.op("Ceil", [edit.op("Mul", [edit.constant(index[:, 1:]), bin_size])])
        bounds = [
            edit.op("Clip", [edit.op("Add", [each, start]), edit.scalar(0, dtype), edit.scalar(size, dtype)])
            for each in (low, high)
        ]
        pixels = edit.constant(np.arange(size).astype(dtype.numpy()))
        before = edit.op("Less", [pixels, bounds[0]])
        inside = edit.op("And", [edit.op("Not", [before]), edit.op("Less", [pixels, bounds[1]])])
        return inside, edit.op("Not", [edit.op("Less", bounds)])


def _away_from_zero(edit: Edit, x: ir.Value, dtype: ir.DataType) -> ir.Value:
    """Round to integers, halves away from zero, unlike Round."""
    up = edit.op("Floor", [edit.op("Add", [edit.op("Abs", [x]), edit.scalar(0.5, dtype)])])
    return edit.op("Mul", [edit.op("Sign", [x]), up])


RULES: tuple[NodeRewrite[Any], ...] = (MatMulRoiAlign(), WhereMaxRoiPool())
