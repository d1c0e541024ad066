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

import numpy as np
import onnx_ir as ir

from passes.builders.arithmetic import Arithmetic, Array, wide_float
from passes.builders.small_dtypes import round_away
from passes.rewriting.base import Exactness, NotApplicable, Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import Replacement, rewrite


def _check_sizes(node: ir.Node, edit: Edit) -> None:
    """Raise `NotApplicable` if the images are empty, or there are no regions."""
    if 0 in edit.shape(node) or 0 in edit.shape(node, 1):
        raise NotApplicable("the input is empty, or there are no regions")


def _column(edit: Edit, rois: ir.Value, place: int) -> ir.Value:
    """Return one coordinate of each region, (regions, 1, 1)."""
    return edit.reshape(edit.op("Gather", [rois, edit.index([place])], {"axis": 1}), (-1, 1, 1))


@rewrite("RoiAlign", exactness=Exactness.ROUNDING, needs_shape=(0, 1), needs_dtype=(0,))
def matmul_roi_align(node: ir.Node, edit: Edit) -> Replacement:
    """Sample regions along rows, then along columns."""
    _check_sizes(node, edit)
    if edit.scope.constant(node.inputs[1]) is None and node.attributes.get_int("sampling_ratio", 0) <= 0:
        return Skip(
            "sampling_ratio is 0, and the rois, which then determine the samples, are not constant: freeze them"
        )
    dtype, count, channels = edit.dtype(node), edit.shape(node, 1)[0], edit.shape(node)[1]
    a = Arithmetic(edit, wide_float(dtype))
    images = a("Gather", a.cast(edit.input(node)), node.inputs[2], axis=0)
    rois = a.cast(edit.input(node, 1))
    height, width = (_RoiAlignAxis(node, axis, edit) for axis in (0, 1))
    rows, columns = height.weights(a, rois), width.weights(a, rois)
    if node.attributes.get_string("mode", "avg") == "avg":
        return a.cast(_weighted(a, height.averaged(a, rows), images, width.averaged(a, columns)), dtype)
    corners = [_weighted(a, row, images, column) for row in rows for column in columns]
    y = a.reshape(a("Max", *corners), (count, channels, height.bins, height.samples, width.bins, width.samples))
    return a.cast(a.reduce("Max", y, [3, 5], keepdims=False), dtype)


def _weighted(a: Arithmetic, rows: ir.Value, images: ir.Value, columns: ir.Value) -> ir.Value:
    """Multiply by the weights of rows, then by those of columns."""
    return a("MatMul", a("MatMul", rows, images), a("Transpose", columns, perm=[0, 1, 3, 2]))


class _RoiAlignAxis:
    """RoiAlign along one axis, 0 for height and 1 for width; of samples, the maximum over the regions."""

    def __init__(self, node: ir.Node, axis: int, edit: Edit) -> None:
        attributes = node.attributes
        self.node, self.axis, self.size = node, axis, edit.shape(node)[2 + axis]
        self.regions = edit.shape(node, 1)[0]
        self.bins = attributes.get_int("output_width" if axis else "output_height", 1)
        default = "half_pixel" if edit.scope.opset() >= 16 else "output_half_pixel"
        self.half = attributes.get_string("coordinate_transformation_mode", default) == "half_pixel"
        self.scale = attributes.get_float("spatial_scale", 1.0)
        ratio = attributes.get_int("sampling_ratio", 0)
        self.counts: Array = np.array([ratio]) if ratio > 0 else self._adaptive(edit)
        self.samples = int(self.counts.max())

    def _adaptive(self, edit: Edit) -> Array:
        """Return the number of samples per bin of each constant region along the axis: one per pixel."""
        tensor = edit.scope.constant(self.node.inputs[1])
        assert tensor is not None
        rois = tensor.numpy().astype(np.float32) * np.float32(self.scale)
        extent = rois[:, 3 - self.axis] - rois[:, 1 - self.axis]
        if not self.half:
            extent = np.maximum(extent, np.float32(1))
        return np.maximum(np.ceil(extent / np.float32(self.bins)).astype(np.int64), 1)

    def weights(self, a: Arithmetic, rois: ir.Value) -> list[ir.Value]:
        """Return the weight of each pixel in each sample, as the lower and as the upper neighbour.

        Both are (regions, 1, bins · samples, size).
        """
        shift = 0.5 if self.half else 0.0
        places = (1 - self.axis, 3 - self.axis)
        start, end = (a("Sub", a("Mul", _column(a.edit, rois, place), self.scale), shift) for place in places)
        extent = a("Sub", end, start)
        if not self.half:
            extent = a("Max", extent, 1)
        at = a("Add", start, a("Mul", a("Div", extent, self.bins), self._steps()))
        outside = a("Or", a("Less", at, -1), a("Greater", at, self.size))
        at = a("Clip", at, 0, self.size - 1)
        low = a("Floor", at)
        high = a("Min", a("Add", low, 1), self.size - 1)
        far = a("Sub", at, low)
        weights, pixels = [], a.index(np.arange(self.size))
        for pixel, weight in ((low, a("Sub", 1, far)), (high, far)):
            here = a("Equal", a.cast(pixel, ir.DataType.INT64), pixels)
            chosen = a("Where", here, a("Where", outside, 0, weight), 0)
            weights.append(a.reshape(chosen, (self.regions, 1, self.bins * self.samples, self.size)))
        return weights

    def _steps(self) -> Array:
        """Return the positions of samples in bins from the region's start: (regions or 1, bins · samples, 1).

        A region with fewer samples than the maximum repeats its last one, which does not change a maximum.
        """
        counts = self.counts[:, None, None]
        inner = (np.minimum(np.arange(self.samples), counts - 1) + 0.5) / counts
        steps: Array = np.arange(self.bins)[None, :, None] + inner
        return steps.reshape(len(self.counts), -1, 1)

    def averaged(self, a: Arithmetic, weights: Sequence[ir.Value]) -> ir.Value:
        """Return the weight of each pixel in each bin: (regions, 1, bins, size)."""
        both = a.reshape(a("Add", *weights), (self.regions, 1, self.bins, self.samples, self.size))
        counts = self.counts[:, None]
        share = np.where(np.arange(self.samples) < counts, 1 / counts, 0.0)[:, None, None, :, None]
        return a.reduce("Sum", a("Mul", both, share), [3], keepdims=False)


@rewrite("MaxRoiPool", exactness=Exactness.ROUNDING, needs_shape=(0, 1), needs_dtype=(0,))
def where_max_roi_pool(node: ir.Node, edit: Edit) -> Replacement:
    """Compute the maxima of the bins of regions, by masks of rows and of columns; empty bins are 0."""
    _check_sizes(node, edit)
    dtype, count, (_, channels, height, width) = edit.dtype(node), edit.shape(node, 1)[0], edit.shape(node)
    a = Arithmetic(edit, wide_float(dtype))
    rois, lowest = a.cast(edit.input(node, 1)), float(a.dtype.min)
    batch = a.reshape(a.cast(_column(edit, rois, 0), ir.DataType.INT64), (-1,))
    y = a("Gather", a.cast(edit.input(node)), batch, axis=0)
    rows, columns = node.attributes.get_ints("pooled_shape", [])
    in_row, no_row = _bins(a, node, rois, 0, rows)
    y = a("Where", a.reshape(in_row, (count, 1, rows, height, 1)), a.unsqueeze(y, [2]), lowest)
    y = a.reduce("Max", y, [3], keepdims=False)
    in_column, no_column = _bins(a, node, rois, 1, columns)
    y = a.reshape(y, (count, channels, rows, 1, width))
    y = a("Where", a.reshape(in_column, (count, 1, 1, columns, width)), y, lowest)
    y = a.reduce("Max", y, [4], keepdims=False)
    is_empty = a("Or", a.reshape(no_row, (count, 1, rows, 1)), a.reshape(no_column, (count, 1, 1, columns)))
    return a.cast(a("Where", is_empty, 0, y), dtype)


def _bins(a: Arithmetic, node: ir.Node, rois: ir.Value, axis: int, bins: int) -> tuple[ir.Value, ir.Value]:
    """Return whether each pixel along an axis is in each bin, (regions, bins, size), and which bins are empty."""
    size, scale = a.edit.shape(node)[2 + axis], node.attributes.get_float("spatial_scale", 1.0)
    scaled = (a("Mul", _column(a.edit, rois, place), scale) for place in (2 - axis, 4 - axis))
    start, end = (round_away(a.edit, x, a.dtype) for x in scaled)
    bin_size = a("Div", a("Max", a("Add", a("Sub", end, start), 1), 1), bins)
    index = np.arange(bins + 1)[None, :, None]
    low, high = a("Floor", a("Mul", index[:, :-1], bin_size)), a("Ceil", a("Mul", index[:, 1:], bin_size))
    first, behind = (a("Clip", a("Add", bound, start), 0, size) for bound in (low, high))
    pixels = np.arange(size)
    is_inside = a("And", a("Not", a("Less", pixels, first)), a("Less", pixels, behind))
    return is_inside, a("Not", a("Less", first, behind))
