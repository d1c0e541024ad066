"""Decompose normalizations into arithmetic.

    BatchNormalization          →  (x − m) · scale / √(v + epsilon) + bias
    …, training                    with m, v of x over all axes but the channels, and
                                   running' = running · momentum + current · (1 − momentum)
    LayerNormalization          →  (x − m) · s · scale + bias,   s = 1 / √(mean((x − m)²) + epsilon);  also m and s
    RMSNormalization            →  x · s · scale,                s = 1 / √(mean(x²) + epsilon)
    LRN                         →  x / (bias + alpha / size · (B x²)) ^ beta

B is the constant 0/1 matrix that sums the ``size`` channels around each channel.

Skips: opsets before 7; dynamic shapes; training forms of BatchNormalization before opset 14, whose outputs have another
meaning.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from passes.builders.arithmetic import Arithmetic, wide
from passes.builders.operands import is_output_used
from passes.rewriting.base import Exactness, Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import EVERY_INPUT, Replacement, rewrite


@rewrite("BatchNormalization", exactness=Exactness.ROUNDING, needs_shape=(0,), needs_dtype=EVERY_INPUT)
def decompose_batch_normalization(node: ir.Node, edit: Edit) -> Replacement:
    """Decompose BatchNormalization: by the statistics of the input for training, else by the given ones."""
    shape, opset, attributes = edit.shape(node), edit.scope.opset(), node.attributes
    if opset < 14 and any(is_output_used(node, index) for index in range(1, len(node.outputs))):
        return Skip("the node is a training form of an opset before 14: run convert-opset first")
    if 0 in shape:
        return None
    dtypes = [edit.dtype(node, index) for index in range(5)]
    a = Arithmetic(edit, ir.DataType.DOUBLE if ir.DataType.DOUBLE in dtypes else ir.DataType.FLOAT)
    x, scale, bias, mean, variance = (a.cast(edit.input(node, index)) for index in range(5))
    is_per_element = opset < 9 and attributes.get_int("spatial", 1) == 0
    columns = [1, *shape[1:]] if is_per_element else [1, *shape[1:2], *(1 for _ in shape[2:])][: len(shape)]
    running: list[ir.Value | None] = [None, None]
    if opset >= 14 and attributes.get_int("training_mode", 0) != 0:
        axes = [axis for axis in range(len(shape)) if axis != 1]
        current = a.reduce("Mean", x, axes)
        centered = a("Sub", x, current)
        spread = a.reduce("Mean", a("Mul", centered, centered), axes)
        momentum = attributes.get_float("momentum", 0.9)
        for index, (old, new) in enumerate(((mean, current), (variance, spread))):
            if is_output_used(node, index + 1):
                kept, added = a("Mul", old, momentum), a("Mul", a.reshape(new, [-1]), 1 - momentum)
                running[index] = a.cast(a("Add", kept, added), dtypes[3])
    else:
        centered, spread = a("Sub", x, a.reshape(mean, columns)), a.reshape(variance, columns)
    deviation = a("Sqrt", a("Add", spread, attributes.get_float("epsilon", 1e-5)))
    factor = a("Div", a.reshape(scale, columns), deviation)
    y = a.cast(a("Add", a("Mul", centered, factor), a.reshape(bias, columns)), dtypes[0])
    return [y, *running]


@rewrite(
    "LayerNormalization", "RMSNormalization", exactness=Exactness.ROUNDING, needs_shape=(0,), needs_dtype=EVERY_INPUT
)
def decompose_layer_normalization(node: ir.Node, edit: Edit) -> Replacement:
    """Decompose LayerNormalization and RMSNormalization; scale and bias may broadcast in any way."""
    shape, rank = edit.shape(node), len(edit.shape(node))
    if 0 in shape:
        return None
    a = Arithmetic(edit, wide(edit.dtype(node)))
    x, scale, *biases = (a.cast(value) for value in node.inputs if value is not None)
    axes = range(node.attributes.get_int("axis", -1) % rank, rank)
    mean = None
    if node.op_type == "LayerNormalization":
        mean = a.reduce("Mean", x, axes)
        x = a("Sub", x, mean)
    variance = a.reduce("Mean", a("Mul", x, x), axes)
    inverse = a("Reciprocal", a("Sqrt", a("Add", variance, node.attributes.get_float("epsilon", 1e-5))))
    y = a("Mul", a("Mul", x, inverse), scale)
    for bias in biases:
        y = a("Add", y, bias)
    outputs: list[ir.Value | None] = [a.cast(y, edit.dtype(node, 1)), None, None]
    for index, statistic in enumerate((mean, inverse), start=1):
        if statistic is not None and is_output_used(node, index):
            outputs[index] = a.cast(statistic, edit.scope.dtype(node.outputs[index]) or ir.DataType.FLOAT)
    return outputs


@rewrite("LRN", exactness=Exactness.ROUNDING, needs_shape=(0,), needs_dtype=(0,))
def decompose_local_response_normalization(node: ir.Node, edit: Edit) -> Replacement:
    """Decompose LRN; its sums over channels become a product with a constant matrix.

    Channel c sums from c − ⌊(size−1)/2⌋ to c + ⌈(size−1)/2⌉.
    """
    shape, dtype, attributes = edit.shape(node), edit.dtype(node), node.attributes
    if len(shape) < 2 or 0 in shape:
        return None
    a, size, channels = Arithmetic(edit, wide(dtype)), attributes["size"].as_int(), shape[1]
    x = a.cast(edit.input(node))
    offset = np.arange(channels) - np.arange(channels)[:, None]
    near = (-((size - 1) // 2) <= offset) & (offset <= size // 2)
    squares = a.reshape(a("Mul", x, x), [shape[0], channels, -1])
    total = a.reshape(a("MatMul", near.astype(np.float64), squares), shape)
    scaled = a("Mul", total, attributes.get_float("alpha", 1e-4) / size)
    power = a("Pow", a("Add", scaled, attributes.get_float("bias", 1.0)), attributes.get_float("beta", 0.75))
    return a.cast(a("Div", x, power), dtype)
