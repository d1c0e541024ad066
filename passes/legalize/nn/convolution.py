"""Make the padding of convolutions explicit, as two numbers per axis.

    Conv(auto_pad=…)                                 →  Conv(pads=…)
    ConvTranspose(auto_pad, output_shape, pads = b…e, output_padding = o)
        if e ≥ o                                     →  ConvTranspose(pads = b…e−o)
        else                                         →  Pad(ConvTranspose(pads = b…0), 0…o−e) + bias
    ConvTranspose(x, w)                              →  Conv(x with zeros between its elements, w mirrored)

Pads first crop the part of the output that output_padding adds, so their difference is sufficient. Output elements that
no window reaches are zero before the bias is added.

Skips: dynamic shapes; auto_pad=SAME if windows do not reach all of the output, whose size ONNX Runtime computes
differently from the standard.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from passes.builders.operands import given
from passes.builders.windows import Window, windows
from passes.rewriting.base import Exactness, Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import Match, NodeContext, NodeRewrite


@dataclass(frozen=True)
class _ConvMatch(Match):
    shape: tuple[int, ...]
    weights: tuple[int, ...]
    axes: tuple[Window, ...]


class ExplicitConv(NodeRewrite[_ConvMatch]):
    """Replace auto_pad and default attributes of Conv by explicit ones."""

    name = "explicit-conv"
    exactness = Exactness.BITWISE
    operators = frozenset({("", "Conv")})
    needs_shape = (0, 1)

    def match(self, node: ir.Node, context: NodeContext) -> _ConvMatch | Skip | None:
        """Match a Conv with auto_pad or default attributes."""
        is_explicit = {"pads", "strides", "dilations", "kernel_shape"} <= set(node.attributes)
        if is_explicit and "auto_pad" not in node.attributes:
            return None
        shape, weights = context.shape(node, 0), context.shape(node, 1)
        return _ConvMatch(node, shape, weights, tuple(windows(node, shape[2:], weights[2:])))

    def rewrite(self, match: _ConvMatch, edit: Edit) -> Sequence[ir.Value | None]:
        """The same operator with explicit attributes."""
        attributes = _explicit(match.axes) | {"group": match.node.attributes.get_int("group", 1)}
        return [edit.op("Conv", match.node.inputs, attributes)]


def _explicit(axes: Sequence[Window]) -> dict[str, Any]:
    return {
        "kernel_shape": [each.kernel for each in axes],
        "strides": [each.stride for each in axes],
        "dilations": [each.dilation for each in axes],
        "pads": [each.begin for each in axes] + [each.end for each in axes],
    }


def _transposed(node: ir.Node, sizes: Sequence[int], kernel: Sequence[int]) -> tuple[Window, ...] | str:
    """The windows of a transposed convolution: one per input element, over an output of ``size`` elements.

    ``begin`` and ``end`` are the elements that pads crop, or, if negative, that are added. A reason if ONNX Runtime
    deviates from the standard.
    """
    rank = len(sizes)
    strides = node.attributes.get_ints("strides", None) or [1] * rank
    dilations = node.attributes.get_ints("dilations", None) or [1] * rank
    pads = node.attributes.get_ints("pads", None) or [0] * (2 * rank)
    added = node.attributes.get_ints("output_padding", None) or [0] * rank
    wanted = list(node.attributes.get_ints("output_shape", []))[-rank:]
    auto = node.attributes.get_string("auto_pad", "NOTSET")
    found = []
    for axis, (count, length, stride, dilation) in enumerate(zip(sizes, kernel, strides, dilations, strict=True)):
        full = (count - 1) * stride + (length - 1) * dilation + 1
        begin, end = (pads[axis], pads[axis + rank]) if auto == "NOTSET" else (0, 0)
        size = full + added[axis] - begin - end
        if wanted or auto.startswith("SAME"):
            size = wanted[axis] if wanted else count * stride
            if not wanted and size > full + added[axis]:
                return f"windows do not reach all {size} elements of its output, where ONNX Runtime is not standard"
            total = max(full + added[axis] - size, 0)
            begin = total // 2 if auto == "SAME_UPPER" else total - total // 2
        found.append(Window(size, length, stride, dilation, begin, full - begin - size, count))
    return tuple(found)


class ExplicitConvTranspose(NodeRewrite[_ConvMatch]):
    """Express the output size of a transposed convolution by pads alone."""

    name = "explicit-conv-transpose"
    exactness = Exactness.ROUNDING
    operators = frozenset({("", "ConvTranspose")})
    needs_shape = (0, 1)

    def match(self, node: ir.Node, context: NodeContext) -> _ConvMatch | Skip | None:
        """Match a ConvTranspose with other attributes that determine its size."""
        is_explicit = {"pads", "strides", "dilations", "kernel_shape"} <= set(node.attributes)
        other = {"auto_pad", "output_shape", "output_padding"} & set(node.attributes)
        if is_explicit and not other:
            return None
        return _transpose_match(node, context)

    def rewrite(self, match: _ConvMatch, edit: Edit) -> Sequence[ir.Value | None] | Skip:
        """Crop by pads; append missing zeros, and add the bias last."""
        node, bias = match.node, given(match.node, 2)
        attributes = _explicit(match.axes) | {"group": node.attributes.get_int("group", 1)}
        attributes["pads"] = [max(each, 0) for each in attributes["pads"]]
        rank = len(match.axes)
        missing = [max(-each.begin, 0) for each in match.axes] + [max(-each.end, 0) for each in match.axes]
        if not any(missing):
            return [edit.op("ConvTranspose", node.inputs, attributes)]
        if any(each.size <= max(-each.begin, 0) + max(-each.end, 0) for each in match.axes):
            return Skip("its pads crop everything that the windows reach")
        y = edit.op("ConvTranspose", node.inputs[:2], attributes)
        pads = np.array([0, 0, *missing[:rank], 0, 0, *missing[rank:]], np.int64)
        y = edit.op("Pad", [y, edit.constant(pads)])
        return [_with_bias(edit, y, bias, rank)]


def _transpose_match(node: ir.Node, context: NodeContext) -> _ConvMatch | Skip:
    shape, weights = context.shape(node, 0), context.shape(node, 1)
    axes = _transposed(node, shape[2:], weights[2:])
    return Skip(axes) if isinstance(axes, str) else _ConvMatch(node, shape, weights, axes)


def _with_bias(edit: Edit, y: ir.Value, bias: ir.Value | None, rank: int) -> ir.Value:
    return y if bias is None else edit.op("Add", [y, edit.reshape(bias, (1, -1, *[1] * rank))])


class ConvTransposeAsConv(NodeRewrite[_ConvMatch]):
    """Rewrite a transposed convolution as a convolution of its input with zeros between the elements."""

    name = "conv-transpose-as-conv"
    needs_dtype = (0,)
    exactness = Exactness.ROUNDING
    operators = frozenset({("", "ConvTranspose")})
    needs_shape = (0, 1)

    def match(self, node: ir.Node, context: NodeContext) -> _ConvMatch | Skip | None:
        return _transpose_match(node, context)

    def rewrite(self, match: _ConvMatch, edit: Edit) -> Sequence[ir.Value | None]:
        """Insert zeros into the input, mirror the weights, convolve."""
        node, axes, rank = match.node, match.axes, len(match.axes)
        x, weights = node.inputs[0], node.inputs[1]
        dtype = edit.scope.dtype(x)
        assert x is not None and weights is not None and dtype is not None
        for place, each in enumerate(axes):
            x = _insert_zeros(edit, x, match.shape, place, axes, dtype)
            if each.kernel > 1:
                back = edit.constant(np.arange(each.kernel)[::-1].astype(np.int64))
                weights = edit.op("Gather", [weights, back], {"axis": place + 2})
        group = node.attributes.get_int("group", 1)
        inner, outer, kernel = match.weights[0] // group, match.weights[1], match.weights[2:]
        weights = edit.reshape(weights, (group, inner, outer, *kernel))
        weights = edit.op("Transpose", [weights], {"perm": [0, 2, 1, *range(3, 3 + rank)]})
        weights = edit.reshape(weights, (group * outer, inner, *kernel))
        y = edit.op(
            "Conv",
            [x, weights],
            {
                "kernel_shape": list(kernel),
                "strides": [1] * rank,
                "dilations": [each.dilation for each in axes],
                "pads": [each.reach - 1 for each in axes] * 2,
                "group": group,
            },
        )
        starts = [max(each.begin, 0) for each in axes]
        ends = [each.count * each.stride - each.stride + each.reach - max(each.end, 0) for each in axes]
        bounds = [edit.constant(np.array(each, np.int64)) for each in (starts, ends, list(range(2, 2 + rank)))]
        y = edit.op("Slice", [y, *bounds])
        missing = [max(-each.begin, 0) for each in axes], [max(-each.end, 0) for each in axes]
        if any(map(any, missing)):
            y = edit.op("Pad", [y, edit.constant(np.array([0, 0, *missing[0], 0, 0, *missing[1]], np.int64))])
        return [_with_bias(edit, y, given(node, 2), rank)]


def _insert_zeros(
    edit: Edit, x: ir.Value, shape: Sequence[int], place: int, axes: Sequence[Window], dtype: ir.DataType
) -> ir.Value:
    """Insert zeros between the elements along one spatial axis; those before it are expanded already."""
    each = axes[place]
    if each.stride == 1 or each.count == 1:
        return x
    before = [*shape[:2], *((one.count - 1) * one.stride + 1 for one in axes[:place])]
    after = [one.count for one in axes[place + 1 :]]
    x = edit.reshape(x, (math.prod(before), each.count, 1, math.prod(after)))
    gap = np.array([math.prod(before), each.count, each.stride - 1, math.prod(after)], np.int64)
    zeros = edit.op("Expand", [edit.constant(np.zeros((), dtype.numpy())), edit.constant(gap)])
    x = edit.op("Concat", [x, zeros], {"axis": 2})
    x = edit.reshape(x, (*before, each.count * each.stride, *after))
    length = (each.count - 1) * each.stride + 1
    return edit.op("Slice", [x, *(edit.constant(np.array([end], np.int64)) for end in (0, length, place + 2))])


RULES: tuple[NodeRewrite[Any], ...] = (ExplicitConv(), ExplicitConvTranspose(), ConvTransposeAsConv())
