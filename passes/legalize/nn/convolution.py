"""Make the padding of convolutions explicit, as two numbers per axis.

    Conv(auto_pad=…)                                 →  Conv(pads=…)
    ConvTranspose(auto_pad, output_shape, pads = b…e, output_padding = o)
        if e ≥ o                                     →  ConvTranspose(pads = b…e−o)
        else                                         →  Pad(ConvTranspose(pads = b…0), 0…o−e) + bias
    ConvTranspose(x, w)                              →  Conv(x with zeros between its elements, w mirrored)
    Conv over more than three axes                   →  Σₖ Conv(what place k along the first axis meets, w[:, :, k])

Pads first crop the part of the output that output_padding adds, so their difference is sufficient. Output elements that
no window reaches are zero before the bias is added.

Skips: dynamic shapes; auto_pad=SAME if windows do not reach all of the output, whose size ONNX Runtime computes
differently from the standard.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from passes.builders.operands import given
from passes.builders.windows import Window, windows
from passes.rewriting.base import Exactness, NotApplicable, Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import Replacement, rewrite

_EXPLICIT = {"pads", "strides", "dilations", "kernel_shape"}


@rewrite("Conv", needs_shape=(0, 1))
def explicit_conv(node: ir.Node, edit: Edit) -> Replacement:
    """Replace auto_pad and default attributes of Conv by explicit ones."""
    if set(node.attributes) >= _EXPLICIT and "auto_pad" not in node.attributes:
        return None
    axes = windows(node, edit.shape(node)[2:], edit.shape(node, 1)[2:])
    return edit.op("Conv", node.inputs, _explicit(axes) | {"group": node.attributes.get_int("group", 1)})


@rewrite("Conv", exactness=Exactness.ROUNDING, needs_shape=(0, 1))
def unroll_conv_axis(node: ir.Node, edit: Edit) -> Replacement:
    """Sum convolutions over the last axes, one for each place of the kernel along the first of more than three."""
    sizes, kernel = edit.shape(node), edit.shape(node, 1)
    if len(sizes) < 6:
        return None
    first, *rest = windows(node, sizes[2:], kernel[2:])
    batch, count, others = sizes[0], first.count, range(3, len(sizes))
    swapped = {"perm": [0, 2, 1, *others]}  # the first axis beside the batch, or back
    pads = [0] * (2 * len(sizes))
    pads[2], pads[2 + len(sizes)] = first.begin, first.end
    x = edit.op("Pad", [node.inputs[0], edit.index(pads)]) if any(pads) else edit.input(node)
    total: ir.Value | None = None
    for place in range(first.kernel):
        start = place * first.dilation
        end = start + (count - 1) * first.stride + 1
        met = edit.op("Slice", [x, *map(edit.index, ([start], [end], [2], [first.stride]))])
        met = edit.reshape(edit.op("Transpose", [met], swapped), [batch * count, sizes[1], *sizes[3:]])
        weights = edit.op("Slice", [node.inputs[1], *map(edit.index, ([place], [place + 1], [2]))])
        weights = edit.reshape(weights, [*kernel[:2], *kernel[3:]])
        part = edit.op("Conv", [met, weights], _explicit(rest) | {"group": node.attributes.get_int("group", 1)})
        total = part if total is None else edit.op("Add", [total, part])
    assert total is not None
    y = edit.reshape(total, [batch, count, kernel[0], *(window.count for window in rest)])
    return _with_bias(edit, edit.op("Transpose", [y], swapped), given(node, 2), len(sizes) - 2)


def _explicit(axes: Sequence[Window]) -> dict[str, Any]:
    return {
        "kernel_shape": [window.kernel for window in axes],
        "strides": [window.stride for window in axes],
        "dilations": [window.dilation for window in axes],
        "pads": [window.begin for window in axes] + [window.end for window in axes],
    }


def _transposed(node: ir.Node, edit: Edit) -> list[Window]:
    """Return the windows of a transposed convolution: one per input element, over an output of ``size`` elements.

    ``begin`` and ``end`` are the elements that pads crop, or, if negative, that are added.
    """
    sizes, kernel = edit.shape(node)[2:], edit.shape(node, 1)[2:]
    rank = len(sizes)
    strides = node.attributes.get_ints("strides", None) or [1] * rank
    dilations = node.attributes.get_ints("dilations", None) or [1] * rank
    pads = node.attributes.get_ints("pads", None) or [0] * (2 * rank)
    added = node.attributes.get_ints("output_padding", None) or [0] * rank
    wanted = list(node.attributes.get_ints("output_shape", []))[-rank:]
    auto = node.attributes.get_string("auto_pad", "NOTSET")
    axes = []
    for axis, (count, length, stride, dilation) in enumerate(zip(sizes, kernel, strides, dilations, strict=True)):
        full = (count - 1) * stride + (length - 1) * dilation + 1
        begin, end = (pads[axis], pads[axis + rank]) if auto == "NOTSET" else (0, 0)
        size = full + added[axis] - begin - end
        if wanted or auto.startswith("SAME"):
            size = wanted[axis] if wanted else count * stride
            if not wanted and size > full + added[axis]:
                raise NotApplicable(
                    f"windows do not reach all {size} elements of the output, for which ONNX Runtime is not standard"
                )
            total = max(full + added[axis] - size, 0)
            begin = total // 2 if auto == "SAME_UPPER" else total - total // 2
        axes.append(Window(size, length, stride, dilation, begin, full - begin - size, count))
    return axes


@rewrite("ConvTranspose", exactness=Exactness.ROUNDING, needs_shape=(0, 1))
def explicit_conv_transpose(node: ir.Node, edit: Edit) -> Replacement:
    """Express the output size of a transposed convolution by pads alone."""
    names = set(node.attributes)
    if names >= _EXPLICIT and not {"auto_pad", "output_shape", "output_padding"} & names:
        return None
    axes = _transposed(node, edit)
    attributes = _explicit(axes) | {"group": node.attributes.get_int("group", 1)}
    attributes["pads"] = [max(pad, 0) for pad in attributes["pads"]]
    before, after = _missing(axes)
    if not any(before + after):
        return edit.op("ConvTranspose", node.inputs, attributes)
    if any(window.size <= first + last for window, first, last in zip(axes, before, after, strict=True)):
        return Skip("the pads crop everything that the windows reach")
    y = edit.op("ConvTranspose", node.inputs[:2], attributes)
    y = edit.op("Pad", [y, edit.index([0, 0, *before, 0, 0, *after])])
    return _with_bias(edit, y, given(node, 2), len(axes))


def _missing(axes: Sequence[Window]) -> tuple[list[int], list[int]]:
    """Return the elements that are added before and after the windows."""
    return [max(-window.begin, 0) for window in axes], [max(-window.end, 0) for window in axes]


def _with_bias(edit: Edit, y: ir.Value, bias: ir.Value | None, rank: int) -> ir.Value:
    return y if bias is None else edit.op("Add", [y, edit.reshape(bias, (1, -1, *[1] * rank))])


@rewrite("ConvTranspose", exactness=Exactness.ROUNDING, needs_shape=(0, 1), needs_dtype=(0,))
def conv_transpose_as_conv(node: ir.Node, edit: Edit) -> Replacement:
    """Rewrite a transposed convolution as a convolution of its input with zeros between the elements."""
    axes, shape, (rows, outer, *kernel) = _transposed(node, edit), edit.shape(node), edit.shape(node, 1)
    x, weights, rank = edit.input(node, 0), edit.input(node, 1), len(axes)
    for place, window in enumerate(axes):
        x = _insert_zeros(edit, x, shape, place, axes, edit.dtype(node))
        if window.kernel > 1:
            backward = edit.index(np.arange(window.kernel)[::-1])
            weights = edit.op("Gather", [weights, backward], {"axis": place + 2})
    group = node.attributes.get_int("group", 1)
    inner = rows // group
    weights = edit.reshape(weights, (group, inner, outer, *kernel))
    weights = edit.op("Transpose", [weights], {"perm": [0, 2, 1, *range(3, 3 + rank)]})
    weights = edit.reshape(weights, (group * outer, inner, *kernel))
    pads = [window.reach - 1 for window in axes] * 2
    attributes = _explicit(axes) | {"strides": [1] * rank, "pads": pads, "group": group}
    y = edit.op("Conv", [x, weights], attributes)
    starts = [max(window.begin, 0) for window in axes]
    ends = [(window.count - 1) * window.stride + window.reach - max(window.end, 0) for window in axes]
    y = edit.op("Slice", [y, edit.index(starts), edit.index(ends), edit.index(np.arange(2, 2 + rank))])
    before, after = _missing(axes)
    if any(before + after):
        y = edit.op("Pad", [y, edit.index([0, 0, *before, 0, 0, *after])])
    return _with_bias(edit, y, given(node, 2), rank)


def _insert_zeros(
    edit: Edit, x: ir.Value, shape: Sequence[int], place: int, axes: Sequence[Window], dtype: ir.DataType
) -> ir.Value:
    """Insert zeros between the elements along one spatial axis; those before it are expanded already."""
    count, stride = axes[place].count, axes[place].stride
    if stride == 1 or count == 1:
        return x
    before = [*shape[:2], *((window.count - 1) * window.stride + 1 for window in axes[:place])]
    after = [window.count for window in axes[place + 1 :]]
    x = edit.reshape(x, (math.prod(before), count, 1, math.prod(after)))
    gap = edit.index([math.prod(before), count, stride - 1, math.prod(after)])
    x = edit.concat([x, edit.op("Expand", [edit.scalar(0, dtype), gap])], 2)
    x = edit.reshape(x, (*before, count * stride, *after))
    return edit.slice(x, place + 2, 0, (count - 1) * stride + 1)
