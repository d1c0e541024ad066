"""QuantizeLinear and DequantizeLinear as float32 arithmetic.

    QuantizeLinear(x, s, z)     →  Cast(Clip(Round(x / s) + z, lowest, highest))
    DequantizeLinear(q, s, z)   →  (Cast(q) − Cast(z)) · s

Scales and zero points may be per tensor, per axis, or blocked along an axis; they are broadcast to the tensor as
constants, or by Reshape, Expand and Slice. As in ONNX Runtime, everything is computed in float32 whatever the float
dtypes are, and rounded once at the end.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from passes.builders.operands import given
from passes.builders.small_dtypes import SMALL_FLOATS, carrier, limits, round_to_small_float
from passes.graphs.scopes import Scope
from passes.rewriting.base import NotApplicable
from passes.rewriting.edit import Edit

_NUMBER = ir.DataType.FLOAT


def output_dtype(node: ir.Node, scope: Scope) -> ir.DataType | None:
    """Return the output dtype of a QuantizeLinear or DequantizeLinear; None if unknown."""
    explicit = node.attributes.get_int("output_dtype", 0)
    if explicit:
        return ir.DataType(explicit)
    if node.op_type == "DequantizeLinear":
        dtype = scope.dtype(node.inputs[1])
        return None if dtype == ir.DataType.FLOAT8E8M0 else dtype
    zero_point = given(node, 2)
    return ir.DataType.UINT8 if zero_point is None else scope.dtype(zero_point)


def arithmetic_dtype(node: ir.Node, scope: Scope) -> ir.DataType:
    """Return the output dtype of a QuantizeLinear or DequantizeLinear that can be written as arithmetic.

    Raises NotApplicable if a shape or dtype is unknown.
    """
    dtype = output_dtype(node, scope)
    if dtype is None or scope.dtype(node.inputs[0]) is None:
        raise NotApplicable("the input or output dtype is unknown")
    for value in node.inputs:
        if value is not None and scope.static_shape(value) is None:
            raise NotApplicable(f"the shape of {value.name} is unknown: freeze it with freeze-shapes")
    return dtype


def quantize(edit: Edit, node: ir.Node, inputs: Sequence[ir.Value | None], dtype: ir.DataType) -> ir.Value:
    """Return the result of a QuantizeLinear that has an `arithmetic_dtype`, in the carrier of that.

    ``inputs`` are the node's inputs or their replacements; small dtypes are in their carriers.
    """
    x, scale, zero_point = (*inputs, None)[:3]
    assert x is not None and scale is not None
    y = edit.op("Div", [edit.cast(x, _NUMBER), edit.cast(broadcast_parameter(edit, node, scale), _NUMBER)])
    is_float = dtype in SMALL_FLOATS
    y = y if is_float else edit.op("Round", [y])
    if zero_point is not None and (not is_float or dtype == ir.DataType.FLOAT4E2M1):  # others have zero points of 0
        y = edit.op("Add", [y, edit.cast(broadcast_parameter(edit, node, zero_point), _NUMBER)])
    if is_float:
        return round_to_small_float(edit, y, dtype, saturate=bool(node.attributes.get_int("saturate", 1)))
    least, largest = (edit.scalar(limit, _NUMBER) for limit in limits(dtype))
    return edit.cast(edit.op("Min", [edit.op("Max", [y, least]), largest]), carrier(dtype))


def dequantize(edit: Edit, node: ir.Node, inputs: Sequence[ir.Value | None], dtype: ir.DataType) -> ir.Value:
    """Return the result of a DequantizeLinear; for the arguments see `quantize`."""
    x, scale, zero_point = (*inputs, None)[:3]
    assert x is not None and scale is not None
    if zero_point is not None:
        offset = broadcast_parameter(edit, node, zero_point)
        if edit.scope.dtype(node.inputs[0]) == ir.DataType.INT32:  # float32 cannot represent all int32
            x = edit.op("Sub", [x, offset])
        else:
            x = edit.op("Sub", [edit.cast(x, _NUMBER), edit.cast(offset, _NUMBER)])
    y = edit.op("Mul", [edit.cast(x, _NUMBER), edit.cast(broadcast_parameter(edit, node, scale), _NUMBER)])
    return edit.cast(y, dtype)


def broadcast_parameter(edit: Edit, node: ir.Node, parameter: ir.Value) -> ir.Value:
    """Return a scale or zero point of ``node``, expanded so that it broadcasts against the node's first input."""
    shape = edit.scope.shape(node.inputs[0])
    parameter_shape = edit.scope.shape(parameter)
    assert shape is not None and parameter_shape is not None
    dims, sizes = list(shape.numpy()), list(parameter_shape.numpy())
    if all(size == 1 for size in sizes):
        return parameter if len(sizes) <= len(dims) else edit.reshape_or_fold(parameter, [])
    axis = node.attributes.get_int("axis", 1) % len(dims)
    if len(sizes) == 1 and sizes[0] == dims[axis]:
        return edit.reshape_or_fold(parameter, [sizes[0], *[1] * (len(dims) - axis - 1)])
    count, size = sizes[axis], dims[axis]
    if count in (1, size):
        return parameter
    block = node.attributes.get_int("block_size", 0) or -(-size // count)
    tensor = parameter.const_value if parameter in edit.constants else edit.scope.constant(parameter)
    if tensor is not None:
        return edit.constant(np.repeat(tensor.numpy(), block, axis).take(range(size), axis))
    split = edit.reshape_or_fold(parameter, [*sizes[: axis + 1], 1, *sizes[axis + 1 :]])
    repeated = [*sizes[: axis + 1], block, *sizes[axis + 1 :]]
    expanded = edit.op("Expand", [split, edit.index(repeated)])
    merged = edit.reshape_or_fold(expanded, [*sizes[:axis], count * block, *sizes[axis + 1 :]])
    if count * block == size:
        return merged
    return edit.slice(merged, axis, 0, size)
