"""Rewrite operators that rearrange the elements of an image.

    DepthToSpace, SpaceToDepth  →  Reshape(Transpose(Reshape(x)))
    Col2Im(x)                   →  ConvTranspose(x as columns of channels, one-hot weights), a group for each channel
    MaxUnpool(x, i)             →  ScatterElements(zeros, i, x), all flattened

MaxUnpool's indices are flat indices of its output, as those of MaxPool are of its input.

Skips: dynamic shapes, and shapes that are not constant; Col2Im of integers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from passes.builders.operands import given, integers
from passes.rewriting.base import Exactness, Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import Match, NodeContext, NodeRewrite


@dataclass(frozen=True)
class _ImageMatch(Match):
    shape: tuple[int, ...]


class TransposeBlocks(NodeRewrite[_ImageMatch]):
    """Rewrite moving blocks between space and channels as a Transpose."""

    name = "transpose-blocks"
    exactness = Exactness.BITWISE
    operators = frozenset({("", "DepthToSpace"), ("", "SpaceToDepth")})
    needs_shape = (0,)
    needs_dtype = (0,)

    def match(self, node: ir.Node, context: NodeContext) -> _ImageMatch | Skip | None:
        """Match images of rank 4."""
        shape = context.shape(node)
        return _ImageMatch(node, shape) if len(shape) == 4 else Skip(f"its input has rank {len(shape)}, not 4")

    def rewrite(self, match: _ImageMatch, edit: Edit) -> Sequence[ir.Value | None]:
        """Split the axes, permute them, merge them."""
        node, x = match.node, match.node.inputs[0]
        assert x is not None
        batch, channels, height, width = match.shape
        block = node.attributes.get_int("blocksize", 1)
        depth_first = node.attributes.get_string("mode", "DCR") == "DCR"
        if node.op_type == "DepthToSpace":
            channels //= block * block
            split = (block, block, channels) if depth_first else (channels, block, block)
            perm = [0, 3, 4, 1, 5, 2] if depth_first else [0, 1, 4, 2, 5, 3]
            y = edit.reshape(x, (batch, *split, height, width))
            y = edit.op("Transpose", [y], {"perm": perm})
            return [edit.reshape(y, (batch, channels, height * block, width * block))]
        height, width = height // block, width // block
        y = edit.reshape(x, (batch, channels, height, block, width, block))
        y = edit.op("Transpose", [y], {"perm": [0, 3, 5, 1, 2, 4] if depth_first else [0, 1, 3, 5, 2, 4]})
        return [edit.reshape(y, (batch, channels * block * block, height, width))]


@dataclass(frozen=True)
class _Columns(_ImageMatch):
    image: tuple[int, ...]
    block: tuple[int, ...]


class ConvTransposeCol2Im(NodeRewrite[_Columns]):
    """Rewrite Col2Im, which adds overlapping columns, as a ConvTranspose."""

    name = "conv-transpose-col2im"
    exactness = Exactness.ROUNDING
    operators = frozenset({("", "Col2Im")})
    needs_shape = (0,)
    needs_dtype = (0,)

    def match(self, node: ir.Node, context: NodeContext) -> _Columns | Skip | None:
        """Match constant shapes of the image and of the block."""
        dtype = context.dtype(node)
        if not dtype.is_floating_point():
            return Skip(f"its input is {dtype}, and convolutions support floats only")
        image = integers(node.inputs[1], "image_shape", context.scope)
        block = integers(node.inputs[2], "block_shape", context.scope)
        if not isinstance(image, list) or not isinstance(block, list):
            return Skip(str(block if isinstance(image, list) else image))
        return _Columns(node, context.shape(node), tuple(image), tuple(block))

    def rewrite(self, match: _Columns, edit: Edit) -> Sequence[ir.Value | None]:
        """One weight of 1 for each element of a block."""
        node, x, rank = match.node, match.node.inputs[0], len(match.block)
        assert x is not None and x.dtype is not None
        strides = node.attributes.get_ints("strides", None) or [1] * rank
        dilations = node.attributes.get_ints("dilations", None) or [1] * rank
        pads = node.attributes.get_ints("pads", None) or [0] * (2 * rank)
        counts, added = [], []
        for axis, (size, length) in enumerate(zip(match.image, match.block, strict=True)):
            room = size + pads[axis] + pads[axis + rank] - (length - 1) * dilations[axis] - 1
            counts.append(room // strides[axis] + 1)
            added.append(room % strides[axis])
        elements = math.prod(match.block)
        channels = match.shape[1] // elements
        weights = np.tile(np.eye(elements).reshape(elements, 1, *match.block), (channels, *[1] * (rank + 1)))
        y = edit.op(
            "ConvTranspose",
            [
                edit.reshape(x, (match.shape[0], match.shape[1], *counts)),
                edit.constant(weights.astype(x.dtype.numpy())),
            ],
            {
                "kernel_shape": list(match.block),
                "strides": list(strides),
                "dilations": list(dilations),
                "pads": list(pads),
                "output_padding": added,
                "group": channels,
            },
        )
        return [y]


@dataclass(frozen=True)
class _Unpooled(_ImageMatch):
    output: tuple[int, ...]


class ScatterMaxUnpool(NodeRewrite[_Unpooled]):
    """Rewrite MaxUnpool as ScatterElements."""

    name = "scatter-max-unpool"
    exactness = Exactness.BITWISE
    operators = frozenset({("", "MaxUnpool")})
    needs_shape = (0,)
    needs_dtype = (0,)

    def match(self, node: ir.Node, context: NodeContext) -> _Unpooled | Skip | None:
        """Read the output's shape, or compute it from the windows."""
        shape = context.shape(node)
        output = integers(given(node, 2), "output_shape", context.scope)
        if isinstance(output, str):
            return Skip(output)
        if output is None:
            kernel = node.attributes.get_ints("kernel_shape", [])
            rank = len(kernel)
            strides = node.attributes.get_ints("strides", None) or [1] * rank
            pads = node.attributes.get_ints("pads", None) or [0] * (2 * rank)
            output = [
                *shape[:2],
                *(
                    (shape[axis + 2] - 1) * strides[axis] + kernel[axis] - pads[axis] - pads[axis + rank]
                    for axis in range(rank)
                ),
            ]
        return _Unpooled(node, shape, tuple(output))

    def rewrite(self, match: _Unpooled, edit: Edit) -> Sequence[ir.Value | None]:
        x, indices = match.node.inputs[:2]
        assert x is not None and x.dtype is not None and indices is not None
        total = edit.constant(np.array([math.prod(match.output)], np.int64))
        zeros = edit.op("Expand", [edit.scalar(0, x.dtype), total])
        flat = [edit.reshape(each, (-1,)) for each in (indices, x)]
        return [edit.reshape(edit.op("ScatterElements", [zeros, *flat], {"axis": 0}), match.output)]


RULES: tuple[NodeRewrite[Any], ...] = (TransposeBlocks(), ConvTransposeCol2Im(), ScatterMaxUnpool())
