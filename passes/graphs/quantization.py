"""Quantization: its operators, their parameters, and their ranges.

    QuantizeLinear(x, s, z)    =  saturate(round(x / s) + z)
    DequantizeLinear(q, s, z)  =  (q − z) · s

s and z are one number each, one for each index of an axis, or one for each block along an axis.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from passes.graphs.matching import is_plain
from passes.graphs.scopes import Scope, nodes_of
from passes.operators import is_dequantize, is_quantized_operator

Array = np.ndarray[Any, np.dtype[Any]]


def is_quantized(model: ir.Model) -> bool:
    """Return whether any node of a model quantizes, dequantizes or computes with quantized numbers."""
    return quantized_node(model) is not None


def quantized_node(model: ir.Model) -> ir.Node | None:
    """Return the first node that makes a model a quantized one, otherwise None."""
    return next(filter(is_quantized_operator, nodes_of(model)), None)


def zero_point(node: ir.Node) -> ir.Value | None:
    """Return the value of the zero point, otherwise None."""
    return node.inputs[2] if len(node.inputs) > 2 else None


def quantized_dtype(node: ir.Node, scope: Scope) -> ir.DataType | None:
    """Return the quantized dtype of a QuantizeLinear or DequantizeLinear; None if unknown."""
    zero = zero_point(node)
    if is_dequantize(node):
        return scope.dtype(node.inputs[0]) or (scope.dtype(zero) if zero is not None else None)
    if zero is not None:
        return scope.dtype(zero)
    return ir.DataType(node.attributes.get_int("output_dtype", 0) or ir.DataType.UINT8.value)


@dataclass(frozen=True)
class Parameters:
    """The constant scales and zero points of a node.

    Attributes:
        scale: the scales as they are stored.
        zero: the zero points as integers of 64 bits, in the same shape; zeros if none are given.
        axis: the axis, as the node has it.
        block: the size of blocks; 0 without blocks.
    """

    scale: Array
    zero: Array
    dtype: ir.DataType
    axis: int
    block: int

    @property
    def per_tensor(self) -> bool:
        """Return whether there is one scale for the whole tensor."""
        return self.scale.size == 1 and self.block == 0

    def bounds(self) -> tuple[Array, Array]:
        """Return the smallest and largest numbers that the integers can represent."""
        with np.errstate(over="ignore"):  # it may be infinite
            low, high = (
                np.asarray((int(limit) - self.zero).astype(np.float32) * self.scale.astype(np.float32))
                for limit in (self.dtype.min, self.dtype.max)
            )
            return low.astype(self.scale.dtype), high.astype(self.scale.dtype)


def parameters(node: ir.Node, scope: Scope) -> Parameters | str:
    """Return the parameters of an integer QuantizeLinear or DequantizeLinear; the reason if they are unknown."""
    scale, zero = scope.constant(node.inputs[1]), zero_point(node)
    offset = scope.constant(zero)
    if scale is None or (zero is not None and offset is None):
        return "the scale or zero point is not constant"
    dtype = quantized_dtype(node, scope)
    if dtype is None:
        return "the dtype of its integers is not known"
    if not dtype.is_integer():
        return f"{dtype.name} rounds by each number's size, and not by a step"
    steps = scale.numpy()
    zeros = offset.numpy().astype(np.int64) if offset is not None else np.zeros(steps.shape, np.int64)
    if zeros.size not in (1, steps.size):
        return "the scale and the zero point differ in shape"
    block = node.attributes.get_int("block_size", 0) or int(steps.ndim > 1 and steps.size > 1)
    return Parameters(steps, zeros, dtype, node.attributes.get_int("axis", 1), block)


def aligned(array: Array, params: Parameters, rank: int | None) -> Array | None:
    """Return a bound in a shape that broadcasts with the tensor; None for blocks, or if an unknown rank is needed."""
    if array.size == 1 and params.block == 0:
        return array.reshape(())
    if array.ndim != 1 or rank is None:
        return None
    shape = [1] * rank
    shape[params.axis] = -1
    return array.reshape(shape)


def same_parameters(node: ir.Node, other: ir.Node, scope: Scope) -> bool:
    """Return whether two nodes have the same scales, zero points, axis and blocks."""
    if len(node.inputs) != len(other.inputs):
        return False
    for name in ("axis", "block_size"):
        default = 1 if name == "axis" else 0
        if node.attributes.get_int(name, default) != other.attributes.get_int(name, default):
            return False
    return all(
        a is b or _equal(scope.constant(a), scope.constant(b))
        for a, b in zip(node.inputs[1:], other.inputs[1:], strict=True)
    )


def _equal(tensor: ir.TensorProtocol | None, other: ir.TensorProtocol | None) -> bool:
    if tensor is None or other is None or tensor.dtype != other.dtype:
        return False
    return np.array_equal(tensor.numpy(), other.numpy())


def plain(node: ir.Node, scope: Scope, *operators: str) -> bool:
    """Return whether a node is one of these standard operators."""
    return node.domain == "" and node.op_type in operators and is_plain(node, scope)
