"""Rewrite Resize and Upsample, one axis at a time.

    nearest:                   Gather(x, indices, axis)               for each resized axis
    linear, cubic, antialias:  MatMul(M, x), M of shape (out, in)     for each resized axis
    tf_crop_and_resize:        Where(outside, extrapolation_value, ·) at the end

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
from typing import Any

import numpy as np
import onnx_ir as ir

from passes.builders.arithmetic import Array, wide_float
from passes.builders.operands import given, not_constant
from passes.graphs.scopes import Scope
from passes.rewriting.base import Exactness, Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import Match, NodeContext, NodeRewrite

_UINT8_SCALE = 2**22
"""In ONNX Runtime, the antialias weights of uint8 are multiples of 1 / this."""


@dataclass(frozen=True, eq=False)
class _Axis:
    """One resized axis.

    Attributes:
        axis: its index.
        size: of the input.
        scale: output size divided by input size, before rounding.
        positions: the position of each output element in the input, float32.
    """

    axis: int
    size: int
    scale: float
    positions: Array

    @property
    def outside(self) -> Array:
        """Whether each output element lies outside of the input."""
        return (self.positions < 0) | (self.positions > self.size - 1)


@dataclass(frozen=True)
class _ResizeMatch(Match):
    shape: tuple[int, ...]
    axes: tuple[_Axis, ...]
    extrapolation: float | None
    """The value outside of the input; None to extend its border."""


def _coordinates(mode: str, size: int, count: int, scale: np.float32, roi: tuple[float, float]) -> Array:
    """The positions of the output elements in the input.

    Args:
        mode: coordinate_transformation_mode.
        size: of the input.
        count: of the output.
        scale: output size divided by input size.
        roi: start and end of the region, relative to the size.
    """
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


def _plan(node: ir.Node, shape: Sequence[int], scope: Scope) -> tuple[_Axis, ...] | str:
    """The resized axes; a reason if they are not known."""
    opset, rank = scope.opset(), len(shape)
    has_roi = node.op_type == "Resize" and opset >= 11
    axes = [axis % rank for axis in node.attributes.get_ints("axes", None) or range(rank)]
    operands: dict[str, Array] = {}
    for name, index in (("roi", 1), ("scales", 2), ("sizes", 3)) if has_roi else (("scales", 1),):
        value = given(node, index)
        if value is None or (name == "roi" and _mode(node, opset) != "tf_crop_and_resize"):
            continue
        tensor = scope.constant(value)
        if tensor is None:
            return not_constant(value, name)
        if tensor.size:
            operands[name] = tensor.numpy().ravel()
    if "scales" in node.attributes:
        operands["scales"] = np.array(node.attributes.get_floats("scales", []))
    if "sizes" not in operands and "scales" not in operands:
        return "it has neither scales nor sizes"
    if len(operands.get("sizes", operands.get("scales", ()))) != len(axes):
        return "its scales or sizes do not fit its axes"
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
    found = []
    for place, (axis, size, count) in enumerate(zip(axes, before.tolist(), after.tolist(), strict=True)):
        region = float(roi[place]), float(roi[place + len(axes)])
        positions = _coordinates(_mode(node, opset), size, count, scales[place], region)
        if count != size or not np.array_equal(positions, np.arange(size)):
            found.append(_Axis(axis, size, float(scales[place]), positions))
    return tuple(sorted(found, key=lambda each: each.axis))


def _mode(node: ir.Node, opset: int) -> str:
    return node.attributes.get_string("coordinate_transformation_mode", "half_pixel") if opset >= 11 else "asymmetric"


def _match(node: ir.Node, context: NodeContext) -> _ResizeMatch | Skip:
    scope, shape = context.scope, context.shape(node)
    if 0 in shape:
        return Skip("its input is empty")
    axes = _plan(node, shape, scope)
    if isinstance(axes, str):
        return Skip(axes)
    if not all(len(each.positions) for each in axes):
        return Skip("its output is empty")
    crop = _mode(node, scope.opset()) == "tf_crop_and_resize"
    return _ResizeMatch(node, shape, axes, node.attributes.get_float("extrapolation_value", 0.0) if crop else None)


def _extrapolate(y: ir.Value, match: _ResizeMatch, dtype: ir.DataType | None, edit: Edit) -> ir.Value:
    """Insert the extrapolation value at output elements outside of the input."""
    outside = np.zeros([1] * len(match.shape), bool)
    for each in match.axes:
        outside = outside | each.outside.reshape([-1 if axis == each.axis else 1 for axis in range(len(match.shape))])
    if match.extrapolation is None or not outside.any():
        return y
    assert dtype is not None
    return edit.op("Where", [edit.constant(outside), edit.scalar(match.extrapolation, dtype), y])


class GatherResize(NodeRewrite[_ResizeMatch]):
    """Resize to the nearest element, by constant indices."""

    name = "gather-resize"
    exactness = Exactness.BITWISE
    operators = frozenset({("", "Resize"), ("", "Upsample")})
    needs_shape = (0,)
    needs_dtype = (0,)

    def match(self, node: ir.Node, context: NodeContext) -> _ResizeMatch | Skip | None:
        if node.attributes.get_string("mode", "nearest") != "nearest":
            return None
        return _match(node, context)

    def rewrite(self, match: _ResizeMatch, edit: Edit) -> Sequence[ir.Value | None]:
        rounding = match.node.attributes.get_string("nearest_mode", "round_prefer_floor")
        if edit.scope.opset() < 11:
            rounding = "simple"
        y = match.node.inputs[0]
        assert y is not None
        dtype = edit.scope.dtype(y)
        for each in match.axes:
            indices = np.clip(_nearest(rounding, each), 0, each.size - 1).astype(np.int64)
            y = edit.op("Gather", [y, edit.constant(indices)], {"axis": each.axis})
        y = _extrapolate(y, match, dtype, edit)
        return [y if y is not match.node.inputs[0] else edit.op("Identity", [y])]


def _nearest(rounding: str, axis: _Axis) -> Array:
    """The index of the element that is nearest to each position."""
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


class MatMulResize(NodeRewrite[_ResizeMatch]):
    """Resize by interpolation, with one constant matrix per axis."""

    name = "matmul-resize"
    exactness = Exactness.ROUNDING
    operators = frozenset({("", "Resize"), ("", "Upsample")})
    needs_shape = (0,)
    needs_dtype = (0,)

    def match(self, node: ir.Node, context: NodeContext) -> _ResizeMatch | Skip | None:
        """Match modes other than nearest."""
        mode = node.attributes.get_string("mode", "nearest")
        if mode == "nearest":
            return None
        if mode not in ("linear", "bilinear", "cubic"):
            return Skip(f"its mode {mode} is unknown")
        antialias = node.attributes.get_int("antialias", 0)
        if antialias and context.scope.dtype(node.inputs[0]) == ir.DataType.INT8:
            return Skip("ONNX Runtime's antialias of int8 returns 0 for negative numbers")
        return _match(node, context)

    def rewrite(self, match: _ResizeMatch, edit: Edit) -> Sequence[ir.Value | None]:
        """One MatMul per axis, the last axis first."""
        x = match.node.inputs[0]
        dtype = edit.scope.dtype(x)
        assert x is not None and dtype is not None
        antialias = bool(match.node.attributes.get_int("antialias", 0))
        fixed = antialias and dtype == ir.DataType.UINT8
        working = ir.DataType.FLOAT if not dtype.is_floating_point() else wide_float(dtype)
        working = ir.DataType.DOUBLE if fixed else working  # the sums have 30 bits
        assert working is not None
        y, shape = edit.cast(x, working), list(match.shape)
        for each in reversed(match.axes):
            matrix = _matrix(match.node, each).astype(working.numpy())
            if fixed:
                matrix = np.floor(matrix * _UINT8_SCALE + 0.5) / _UINT8_SCALE
            y = edit.apply_along(y, shape, each.axis, matrix)
            shape[each.axis] = len(each.positions)
            if antialias and not dtype.is_floating_point():
                y = _rounded(edit, y, dtype, working)
        y = _extrapolate(edit.cast(y, dtype), match, dtype, edit)
        return [y if y is not x else edit.op("Identity", [y])]


def _rounded(edit: Edit, y: ir.Value, dtype: ir.DataType, working: ir.DataType) -> ir.Value:
    """Rounded to integers within ``dtype``'s range, halves away from zero."""
    low, high = edit.scalar(float(dtype.min), working), edit.scalar(float(dtype.max), working)
    up = edit.op("Floor", [edit.op("Add", [edit.op("Abs", [y]), edit.scalar(0.5, working)])])
    return edit.op("Clip", [edit.op("Mul", [edit.op("Sign", [y]), up]), low, high])


def _matrix(node: ir.Node, axis: _Axis) -> Array:
    """The weights of the input elements in each output element, (out, in), as ONNX Runtime computes them in float32.

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
    """Keys' cubic convolution kernel at distances ``x`` with coefficient ``a``."""
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return np.where(x < 1, near, np.where(x < 2, far, np.float32(0)))


RULES: tuple[NodeRewrite[Any], ...] = (GatherResize(), MatMulResize())
