"""Rewrite DeformConv: sample the image at the offset positions, then multiply by the weights.

    DeformConv(x, w, offset, bias, mask)  →  MatMul(w, sample(x, grid + offset) · mask) + bias

Each element of a window has its own position and is interpolated linearly between pixels, with zeros outside of the
image (`passes.builders.image_sampling`). Channel groups with offsets of their own become separate images.

Skips: dynamic shapes; empty inputs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from passes.builders.arithmetic import Array, wide_float
from passes.builders.image_sampling import linear_taps, sample
from passes.builders.operands import given
from passes.builders.windows import Window, windows
from passes.rewriting.base import Exactness, Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import Match, NodeContext, NodeRewrite


@dataclass(frozen=True)
class _DeformConvMatch(Match):
    shape: tuple[int, ...]
    weights: tuple[int, ...]
    axes: tuple[Window, ...]


class GatherDeformConv(NodeRewrite[_DeformConvMatch]):
    """Rewrite DeformConv as sampling and a matrix product."""

    name = "gather-deform-conv"
    exactness = Exactness.ROUNDING
    operators = frozenset({("", "DeformConv")})
    needs_shape = (0, 1)
    needs_dtype = (0,)

    def match(self, node: ir.Node, context: NodeContext) -> _DeformConvMatch | Skip | None:
        """Read the shapes of image and weights."""
        shape, weights = context.shape(node, 0), context.shape(node, 1)
        if 0 in shape:
            return Skip("its input is empty")
        return _DeformConvMatch(node, shape, weights, tuple(windows(node, shape[2:], weights[2:])))

    def rewrite(self, match: _DeformConvMatch, edit: Edit) -> Sequence[ir.Value | None]:
        """Sample, multiply by the mask, multiply by the weights."""
        node, axes, rank = match.node, match.axes, len(match.axes)
        dtype = edit.dtype(node)
        working = wide_float(dtype)
        x, weights, offset, bias, mask = (self._input(edit, node, index, working) for index in range(5))
        assert x is not None and weights is not None and offset is not None
        batch, channels = match.shape[:2]
        groups = node.attributes.get_int("offset_group", 1)
        kernel, out = [each.kernel for each in axes], [each.count for each in axes]
        elements, positions = math.prod(kernel), math.prod(out)
        offset = edit.reshape(offset, (batch * groups, elements, rank, positions))
        taps = []
        for axis, each in enumerate(axes):
            moved = edit.op("Gather", [offset, edit.constant(np.array(axis, np.int64))], {"axis": 2})
            base = edit.constant(_base(axes, axis).astype(working.numpy()))
            at = edit.reshape(edit.op("Add", [moved, base]), (batch * groups, elements * positions, 1))
            taps.append(linear_taps(edit, at, each.size, working))
        images = (batch * groups, channels // groups, *match.shape[2:])
        read = sample(edit, edit.reshape(x, images), images, taps, elements * positions)
        if mask is not None:
            read = edit.op("Mul", [read, edit.reshape(mask, (batch * groups, 1, elements * positions))])
        group = node.attributes.get_int("group", 1)
        inner = channels // group * elements
        left = edit.reshape(weights, (group, match.weights[0] // group, inner))
        y = edit.op("MatMul", [left, edit.reshape(read, (batch, group, inner, positions))])
        y = edit.reshape(y, (batch, match.weights[0], *out))
        if bias is not None:
            y = edit.op("Add", [y, edit.reshape(bias, (1, -1, *[1] * rank))])
        return [edit.cast(y, dtype)]

    @staticmethod
    def _input(edit: Edit, node: ir.Node, index: int, working: ir.DataType) -> ir.Value | None:
        value = given(node, index)
        return None if value is None else edit.cast(value, working)


def _base(axes: Sequence[Window], axis: int) -> Array:
    """The positions of the elements of all windows without offsets along one axis, (elements, windows)."""
    rank = len(axes)
    positions = axes[axis].positions().T  # (kernel, count)
    shape = [1] * (2 * rank)
    shape[axis], shape[rank + axis] = positions.shape
    full = [*(each.kernel for each in axes), *(each.count for each in axes)]
    spread = np.broadcast_to(positions.reshape(shape), full)
    return spread.reshape(math.prod(full[:rank]), math.prod(full[rank:]))


RULES: tuple[NodeRewrite[Any], ...] = (GatherDeformConv(),)
