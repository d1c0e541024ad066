"""Rewrite Resize and Upsample, one axis at a time.

    nearest:                   Gather(x, indices, axis)                     for each resized axis
    linear:                    Gather(x, below)·(1−w) + Gather(x, above)·w  for each resized axis
    linear, cubic, antialias:  MatMul(M, x), M of shape (out, in)           for each resized axis
    tf_crop_and_resize:        Where(outside, extrapolation_value, ·)       at the end

Multidimensional interpolation is a product of one-dimensional ones, and all positions are known at conversion time, so
constants are sufficient. Like in ONNX Runtime, coordinates are computed in float32, since nearest_mode decides at exact
halves; integers are interpolated in float32 and truncated; with antialias they are rounded after each axis, the last
axis first, and the weights for uint8 are multiples of 2⁻²². Truncation can differ by one if the exact result is an
integer, because sums are rounded in another order.

Skips: scales, sizes or roi that are not constant; dynamic shapes; empty outputs; antialias of int8, for which ONNX
Runtime loses negative numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from passes.builders.arithmetic import Array, wide_float
from passes.builders.operands import given
from passes.rewriting.base import Exactness, NotApplicable, Skip
from passes.rewriting.edit import Edit, not_constant
from passes.rewriting.rewrite import Replacement, rewrite

_LINEAR = ("linear", "bilinear")
_UINT8_SCALE = 2**22
"""In ONNX Runtime, the antialias weights of uint8 are multiples of 1 / this."""


@dataclass(frozen=True, eq=False)
class _Axis:
    """One resized axis.

    The ``scale`` is output size divided by input size, before rounding; ``positions`` are those of the output elements
    in the input, float32.
    """

    axis: int
    size: int
    scale: float
    positions: Array

    @property
    def outside(self) -> Array:
        """Return whether each output element lies outside of the input."""
        return (self.positions < 0) | (self.positions > self.size - 1)


def _coordinates(mode: str, size: int, count: int, scale: np.float32, roi: tuple[float, float]) -> Array:
    """Return the positions of ``count`` output elements in an input of a ``size``; ``roi`` is relative to that."""
    index = np.arange(count, dtype=np.float32)
    half, one = np.float32(0.5), np.float32(1)
    if scale == 1:  # in every mode, an axis of the same size is copied
        return index
    match mode:
        case "asymmetric":
            return index / scale
        case "tf_half_pixel_for_nn":
            return (index + half) / scale
        case "align_corners":
            return index * np.float32(size - 1) / np.float32(max(count - 1, 1))
        case "tf_crop_and_resize":
            start, end, span = np.float32(roi[0]), np.float32(roi[1]), np.float32(size - 1)
            if count == 1:
                return np.array([0.5 * float(start + end) * float(span)], np.float32)
            return start * span + index * (end - start) * span / np.float32(count - 1)
        case "half_pixel_symmetric":
            adjustment = np.float32(count) / (scale * np.float32(size))
            offset = np.float32(size) / np.float32(2) * (one - adjustment)
            return (float(offset) + (index.astype(np.float64) + 0.5) / float(scale) - 0.5).astype(np.float32)
        case "pytorch_half_pixel" if count == 1:
            return np.zeros(1, np.float32)
    return (index + half) / scale - half


def _resized_axes(node: ir.Node, edit: Edit) -> list[_Axis]:
    """Return the resized axes, in their order."""
    opset, shape, rank = edit.scope.opset(), edit.shape(node), len(edit.shape(node))
    if 0 in shape:
        raise NotApplicable("the input is empty")
    has_roi = node.op_type == "Resize" and opset >= 11
    axes = [axis % rank for axis in node.attributes.get_ints("axes", None) or range(rank)]
    operands: dict[str, Array] = {}
    for name, index in (("roi", 1), ("scales", 2), ("sizes", 3)) if has_roi else (("scales", 1),):
        value = given(node, index)
        if value is None or (name == "roi" and _mode(node, opset) != "tf_crop_and_resize"):
            continue
        tensor = edit.scope.constant(value)
        if tensor is None:
            raise NotApplicable(not_constant(value, name))
        if tensor.size:
            operands[name] = tensor.numpy().ravel()
    if "scales" in node.attributes:
        operands["scales"] = np.array(node.attributes.get_floats("scales", []))
    if "sizes" not in operands and "scales" not in operands:
        raise NotApplicable("there are neither scales nor sizes")
    if len(operands.get("sizes", operands.get("scales", ()))) != len(axes):
        raise NotApplicable("the scales or sizes do not fit the axes")
    before = np.array([shape[axis] for axis in axes], np.int64)
    if "sizes" in operands:
        after = operands["sizes"].astype(np.int64)
        scales = after.astype(np.float32) / before.astype(np.float32)
        policy = node.attributes.get_string("keep_aspect_ratio_policy", "stretch")
        if policy != "stretch":
            scales = np.full_like(scales, scales.min() if policy == "not_larger" else scales.max())
            after = np.floor(scales * before.astype(np.float32) + np.float32(0.5)).astype(np.int64)
    else:
        scales = operands["scales"].astype(np.float32)
        after = np.floor(scales * before.astype(np.float32)).astype(np.int64)
    roi = operands.get("roi", np.array([0.0] * len(axes) + [1.0] * len(axes)))
    resized = []
    for place, (axis, size, count) in enumerate(zip(axes, before.tolist(), after.tolist(), strict=True)):
        region = float(roi[place]), float(roi[place + len(axes)])
        positions = _coordinates(_mode(node, opset), size, count, scales[place], region)
        if count != size or not np.array_equal(positions, np.arange(size)):
            resized.append(_Axis(axis, size, float(scales[place]), positions))
    if not all(len(axis.positions) for axis in resized):
        raise NotApplicable("the output is empty")
    return sorted(resized, key=lambda axis: axis.axis)


def _mode(node: ir.Node, opset: int) -> str:
    return node.attributes.get_string("coordinate_transformation_mode", "half_pixel") if opset >= 11 else "asymmetric"


def _extrapolate(y: ir.Value, node: ir.Node, axes: Sequence[_Axis], edit: Edit) -> ir.Value:
    """Insert the extrapolation value, if there is one, at output elements outside of the input."""
    rank = len(edit.shape(node))
    outside = np.zeros([1] * rank, bool)
    for axis in axes:
        outside = outside | axis.outside.reshape([-1 if place == axis.axis else 1 for place in range(rank)])
    if _mode(node, edit.scope.opset()) == "tf_crop_and_resize" and outside.any():
        value = edit.scalar(node.attributes.get_float("extrapolation_value", 0.0), edit.dtype(node))
        y = edit.op("Where", [edit.constant(outside), value, y])
    return edit.op("Identity", [y]) if y is node.inputs[0] else y


@rewrite("Resize", "Upsample", needs_shape=(0,), needs_dtype=(0,))
def gather_resize(node: ir.Node, edit: Edit) -> Replacement:
    """Resize to the nearest element, by constant indices."""
    if node.attributes.get_string("mode", "nearest") != "nearest":
        return None
    axes, y = _resized_axes(node, edit), edit.input(node)
    rounding = (
        node.attributes.get_string("nearest_mode", "round_prefer_floor") if edit.scope.opset() >= 11 else "simple"
    )
    for axis in axes:
        indices = np.clip(_nearest(rounding, axis), 0, axis.size - 1).astype(np.int64)
        y = edit.op("Gather", [y, edit.constant(indices)], {"axis": axis.axis})
    return _extrapolate(y, node, axes, edit)


def _nearest(rounding: str, axis: _Axis) -> Array:
    """Return the index of the element that is nearest to each position."""
    x = axis.positions
    match rounding:
        case "floor":
            return np.floor(x)
        case "ceil":
            return np.ceil(x)
        case "round_prefer_ceil":
            return np.floor(x + np.float32(0.5))
        case "round_prefer_floor":
            return np.ceil(x - np.float32(0.5))
    return np.ceil(x) if axis.scale < 1 else np.trunc(x)  # before opset 11


@rewrite("Resize", "Upsample", exactness=Exactness.ROUNDING, needs_shape=(0,), needs_dtype=(0,))
def lerp_resize(node: ir.Node, edit: Edit) -> Replacement:
    """Resize by interpolation between the elements below and above each position, the last axis first."""
    widened = any(node.attributes.get_int(name, 0) for name in ("antialias", "exclude_outside"))
    if node.attributes.get_string("mode", "nearest") not in _LINEAR or widened:
        return None
    dtype, rank = edit.dtype(node), len(edit.shape(node))
    working = wide_float(dtype) if dtype.is_floating_point() else ir.DataType.FLOAT
    axes, y = _resized_axes(node, edit), edit.cast(edit.input(node), working)
    for axis in reversed(axes):
        positions = np.clip(axis.positions, 0, axis.size - 1)
        below = np.floor(positions).astype(np.int64)
        above = np.minimum(below + 1, axis.size - 1)
        share = (positions - below).astype(working.numpy()).reshape([-1] + [1] * (rank - 1 - axis.axis))
        low, high = (edit.op("Gather", [y, edit.constant(side)], {"axis": axis.axis}) for side in (below, above))
        weighted = [edit.op("Mul", [side, edit.constant(part)]) for side, part in ((low, 1 - share), (high, share))]
        y = edit.op("Add", weighted)
    return _extrapolate(edit.cast(y, dtype), node, axes, edit)


@rewrite("Resize", "Upsample", exactness=Exactness.ROUNDING, needs_shape=(0,), needs_dtype=(0,))
def matmul_resize(node: ir.Node, edit: Edit) -> Replacement:
    """Resize by interpolation, with one constant matrix per axis, the last axis first."""
    mode, dtype = node.attributes.get_string("mode", "nearest"), edit.dtype(node)
    if mode == "nearest":
        return None
    if mode not in (*_LINEAR, "cubic"):
        return Skip(f"the mode {mode} is unknown")
    antialias, is_float = bool(node.attributes.get_int("antialias", 0)), dtype.is_floating_point()
    if antialias and dtype == ir.DataType.INT8:
        return Skip("ONNX Runtime's antialias of int8 returns 0 for negative numbers")
    is_fixed = antialias and dtype == ir.DataType.UINT8
    working = wide_float(dtype) if is_float else ir.DataType.FLOAT
    if is_fixed:  # the sums have 30 bits
        working = ir.DataType.DOUBLE
    axes, y, shape = _resized_axes(node, edit), edit.cast(edit.input(node), working), list(edit.shape(node))
    for axis in reversed(axes):
        matrix = _matrix(node, axis).astype(working.numpy())
        if is_fixed:
            matrix = np.floor(matrix * _UINT8_SCALE + 0.5) / _UINT8_SCALE
        y = edit.apply_along(y, shape, axis.axis, matrix)
        shape[axis.axis] = len(axis.positions)
        if antialias and not is_float:
            y = _rounded(edit, y, dtype, working)
    return _extrapolate(edit.cast(y, dtype), node, axes, edit)


def _rounded(edit: Edit, y: ir.Value, dtype: ir.DataType, working: ir.DataType) -> ir.Value:
    """Round to integers within ``dtype``'s range, halves away from zero."""
    low, high = edit.scalar(float(dtype.min), working), edit.scalar(float(dtype.max), working)
    up = edit.op("Floor", [edit.op("Add", [edit.op("Abs", [y]), edit.scalar(0.5, working)])])
    return edit.op("Clip", [edit.op("Mul", [edit.op("Sign", [y]), up]), low, high])


def _matrix(node: ir.Node, axis: _Axis) -> Array:
    """Return the weights of the input elements in each output element, (out, in), in float32 as ONNX Runtime.

    An output element is a weighted sum of the elements around its position. For downsampling, antialias widens the
    kernel by the inverse scale. Elements beyond the border take the border's value, or are excluded.
    """
    cubic = node.attributes.get_string("mode", "nearest") == "cubic"
    coefficient = np.float32(node.attributes.get_float("cubic_coeff_a", -0.75))
    exclude = bool(node.attributes.get_int("exclude_outside", 0))
    antialias = bool(node.attributes.get_int("antialias", 0))
    half, one = np.float32(0.5), np.float32(1)
    stretch = max(one / np.float32(axis.scale), one) if antialias else one
    radius = (2 if cubic else 1) * stretch
    center = axis.positions + half
    first = np.floor(center - radius + half)
    taps = first[:, None] + np.arange(2 * math.ceil(radius) + 1, dtype=np.float32)
    distance = np.abs((taps - center[:, None] + half) * (one / stretch))
    weights = _cubic_kernel(distance, coefficient) if cubic else np.maximum(np.float32(0), one - distance)
    if exclude:
        weights = np.where((taps >= 0) & (taps < axis.size), weights, np.float32(0))
    matrix = np.zeros((len(center), axis.size), np.float32)
    columns = np.clip(taps, 0, axis.size - 1).astype(np.int64)
    np.add.at(matrix, (np.arange(len(center))[:, None], columns), weights)
    if exclude or antialias:
        matrix *= one / np.cumsum(weights, axis=1)[:, -1:]
    return matrix


def _cubic_kernel(x: Array, a: np.float32) -> Array:
    """Return Keys' cubic convolution kernel at distances ``x`` with coefficient ``a``."""
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return np.where(x < 1, near, np.where(x < 2, far, np.float32(0)))
