"""Rewrite DeformConv: sample the image at the offset positions, then multiply by the weights.

    DeformConv(x, w, offset, bias, mask)  →  MatMul(w, sample(x, grid + offset) · mask) + bias

Each element of a window has its own position and is interpolated linearly between pixels, with zeros outside of the
image (`passes.builders.image_sampling`). Channel groups with offsets of their own become separate images.

Skips: dynamic shapes; empty inputs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from passes.builders.arithmetic import Arithmetic, Array, wide_float
from passes.builders.image_sampling import linear_taps, sample
from passes.builders.operands import given
from passes.builders.windows import Window, windows
from passes.rewriting.base import Exactness, Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import Replacement, rewrite


@rewrite("DeformConv", exactness=Exactness.ROUNDING, needs_shape=(0, 1), needs_dtype=(0,))
def gather_deform_conv(node: ir.Node, edit: Edit) -> Replacement:
    """Rewrite DeformConv as sampling and a matrix product."""
    shape, weight_shape, dtype = edit.shape(node), edit.shape(node, 1), edit.dtype(node)
    if 0 in shape:
        return Skip("the input is empty")
    axes = tuple(windows(node, shape[2:], weight_shape[2:]))
    a, rank, (batch, channels) = Arithmetic(edit, wide_float(dtype)), len(axes), shape[:2]
    groups = node.attributes.get_int("offset_group", 1)
    out = [window.count for window in axes]
    elements, positions = math.prod(window.kernel for window in axes), math.prod(out)
    offset = a.reshape(a.cast(edit.input(node, 2)), (batch * groups, elements, rank, positions))
    taps = []
    for axis, window in enumerate(axes):
        moved = a("Gather", offset, a.index(axis), axis=2)
        at = a.reshape(a("Add", moved, _base(axes, axis)), (batch * groups, elements * positions, 1))
        taps.append(linear_taps(a, at, window.size))
    images = (batch * groups, channels // groups, *shape[2:])
    read = sample(a, a.reshape(a.cast(edit.input(node)), images), images, taps, elements * positions)
    bias, mask = given(node, 3), given(node, 4)
    if mask is not None:
        read = a("Mul", read, a.reshape(a.cast(mask), (batch * groups, 1, elements * positions)))
    group = node.attributes.get_int("group", 1)
    inner = channels // group * elements
    left = a.reshape(a.cast(edit.input(node, 1)), (group, weight_shape[0] // group, inner))
    y = a("MatMul", left, a.reshape(read, (batch, group, inner, positions)))
    y = a.reshape(y, (batch, weight_shape[0], *out))
    if bias is not None:
        y = a("Add", y, a.reshape(a.cast(bias), (1, -1, *[1] * rank)))
    return a.cast(y, dtype)


def _base(axes: Sequence[Window], axis: int) -> Array:
    """Return the positions of the elements of all windows without offsets along one axis, (elements, windows)."""
    rank = len(axes)
    positions = axes[axis].positions().T  # (kernel, count)
    shape = [1] * (2 * rank)
    shape[axis], shape[rank + axis] = positions.shape
    full = [*(window.kernel for window in axes), *(window.count for window in axes)]
    spread = np.broadcast_to(positions.reshape(shape), full)
    return spread.reshape(math.prod(full[:rank]), math.prod(full[rank:]))
