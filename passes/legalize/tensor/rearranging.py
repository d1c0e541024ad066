"""Rewrite operators that rearrange the elements of an image.

    DepthToSpace, SpaceToDepth  →  Reshape(Transpose(Reshape(x)))
    Col2Im(x)                   →  ConvTranspose(x as columns of channels, one-hot weights), a group for each channel
    MaxUnpool(x, i)             →  ScatterElements(zeros, i, x), all flattened

MaxUnpool's indices are flat indices of its output, as those of MaxPool are of its input.

Skips: dynamic shapes, and shapes that are not constant; Col2Im of integers.
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from passes.rewriting.base import Exactness, Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import Replacement, rewrite


@rewrite("DepthToSpace", "SpaceToDepth", needs_shape=(0,), needs_dtype=(0,))
def transpose_blocks(node: ir.Node, edit: Edit) -> Replacement:
    """Rewrite moving blocks between space and channels as a Transpose."""
    x, shape = edit.input(node), edit.shape(node)
    if len(shape) != 4:
        return Skip(f"the input has rank {len(shape)}, not 4")
    batch, channels, height, width = shape
    block = node.attributes.get_int("blocksize", 1)
    depth_first = node.attributes.get_string("mode", "DCR") == "DCR"
    if node.op_type == "DepthToSpace":
        channels //= block * block
        split = (block, block, channels) if depth_first else (channels, block, block)
        perm = [0, 3, 4, 1, 5, 2] if depth_first else [0, 1, 4, 2, 5, 3]
        y = edit.reshape(x, (batch, *split, height, width))
        return edit.reshape(edit.op("Transpose", [y], {"perm": perm}), (batch, channels, height * block, width * block))
    height, width = height // block, width // block
    perm = [0, 3, 5, 1, 2, 4] if depth_first else [0, 1, 3, 5, 2, 4]
    y = edit.reshape(x, (batch, channels, height, block, width, block))
    return edit.reshape(edit.op("Transpose", [y], {"perm": perm}), (batch, channels * block * block, height, width))


@rewrite("Col2Im", exactness=Exactness.ROUNDING, needs_shape=(0,), needs_dtype=(0,))
def conv_transpose_col2im(node: ir.Node, edit: Edit) -> Replacement:
    """Rewrite Col2Im, which adds overlapping columns, as a ConvTranspose."""
    shape, dtype = edit.shape(node), edit.dtype(node)
    if not dtype.is_floating_point():
        return Skip(f"the input is {dtype}, and convolutions support floats only")
    image, block = edit.integers(node, 1, "the operand image_shape"), edit.integers(node, 2, "the operand block_shape")
    assert image is not None and block is not None
    rank = len(block)
    strides = node.attributes.get_ints("strides", None) or [1] * rank
    dilations = node.attributes.get_ints("dilations", None) or [1] * rank
    pads = node.attributes.get_ints("pads", None) or [0] * (2 * rank)
    counts, added = [], []
    for axis, (size, length) in enumerate(zip(image, block, strict=True)):
        room = size + pads[axis] + pads[axis + rank] - (length - 1) * dilations[axis] - 1
        counts.append(room // strides[axis] + 1)
        added.append(room % strides[axis])
    elements = math.prod(block)  # of a block; each has a weight of 1
    channels = shape[1] // elements
    weights = np.tile(np.eye(elements).reshape(elements, 1, *block), (channels, *[1] * (rank + 1)))
    return edit.op(
        "ConvTranspose",
        [edit.reshape(edit.input(node), (*shape[:2], *counts)), edit.constant(weights.astype(dtype.numpy()))],
        {
            "kernel_shape": block,
            "strides": list(strides),
            "dilations": list(dilations),
            "pads": list(pads),
            "output_padding": added,
            "group": channels,
        },
    )


@rewrite("MaxUnpool", needs_shape=(0,), needs_dtype=(0,))
def scatter_max_unpool(node: ir.Node, edit: Edit) -> Replacement:
    """Rewrite MaxUnpool as ScatterElements."""
    output = edit.integers(node, 2, "the operand output_shape")
    if output is None:
        output = _unpooled_shape(node, edit.shape(node))
    zeros = edit.op("Expand", [edit.scalar(0, edit.dtype(node)), edit.index([math.prod(output)])])
    indices, updates = (edit.reshape(edit.input(node, index), (-1,)) for index in (1, 0))
    return edit.reshape(edit.op("ScatterElements", [zeros, indices, updates], {"axis": 0}), output)


def _unpooled_shape(node: ir.Node, shape: tuple[int, ...]) -> list[int]:
    """Return the shape of the output of MaxUnpool according to its windows."""
    kernel = node.attributes.get_ints("kernel_shape", [])
    rank = len(kernel)
    strides = node.attributes.get_ints("strides", None) or [1] * rank
    pads = node.attributes.get_ints("pads", None) or [0] * (2 * rank)
    sizes = list(shape[:2])
    for axis in range(rank):
        sizes.append((shape[axis + 2] - 1) * strides[axis] + kernel[axis] - pads[axis] - pads[axis + rank])
    return sizes
