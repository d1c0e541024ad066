"""Quantization and dequantization as the arithmetic that they are, where a runtime rejects them or saturates wrongly.

    QuantizeLinear(x, s, z)     →  Cast(Clip(Round(x / s) + z, least, largest))
    DequantizeLinear(q, s, z)   →  (Cast(q) − Cast(z)) · s

Scales and zero points may be one number, one for each index of an axis, or one for each block along an axis; they are
spread over the tensor as constants, or by Reshape, Expand and Slice. All is computed in float32, as ONNX Runtime does,
whatever floats come in, and rounded once at the end.

The same operators in the domain com.microsoft, where 16 bits came earlier, become the standard's first.

Skips: shapes or dtypes that are unknown, and float8e8m0 as scale without a dtype for the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from passes.build.grids import SMALL, SMALL_FLOATS, as_carrier, carrier, cast, limits, round_to_grid, scalar
from passes.core.base import Exactness, Skip
from passes.core.edit import Edit
from passes.core.graphs import Scope
from passes.core.rewrite import Match, NodeContext, NodeRewrite

_NUMBER = ir.DataType.FLOAT
_SIXTEEN_BITS = {ir.DataType.INT16, ir.DataType.UINT16, ir.DataType.INT4, ir.DataType.UINT4}


def output_dtype(node: ir.Node, scope: Scope) -> ir.DataType | None:
    """The dtype of what QuantizeLinear or DequantizeLinear makes; None where it is unknown."""
    given = node.attributes.get_int("output_dtype", 0)
    if given:
        return ir.DataType(given)
    if node.op_type == "DequantizeLinear":
        dtype = scope.dtype(node.inputs[1])
        return None if dtype == ir.DataType.FLOAT8E8M0 else dtype
    return scope.dtype(_zero_point(node)) if _zero_point(node) is not None else ir.DataType.UINT8


def obstacle(node: ir.Node, scope: Scope) -> str | None:
    """Why QuantizeLinear or DequantizeLinear cannot be written as arithmetic; None where it can."""
    if scope.dtype(node.inputs[0]) is None or output_dtype(node, scope) is None:
        return "the dtypes that it is between are unknown"
    for value in node.inputs:
        shape = scope.shape(value)
        if value is not None and (shape is None or not shape.is_static()):
            return f"the shape of {value.name} is unknown: freeze it with freeze-shapes"
    return None


def quantized(edit: Edit, node: ir.Node, inputs: Sequence[ir.Value | None], dtype: ir.DataType) -> ir.Value:
    """What a QuantizeLinear makes, in the carrier of its dtype.

    Args:
        edit: where to build it.
        node: the operator, with no `obstacle`.
        inputs: what stands for the node's inputs: those of small dtypes in their carriers.
        dtype: of the result.
    """
    x, scale, zero_point = (*inputs, None)[:3]
    assert x is not None and scale is not None
    y = edit.op("Div", [cast(edit, x, _NUMBER), cast(edit, spread(edit, node, scale), _NUMBER)])
    if dtype in SMALL_FLOATS:
        if zero_point is not None and dtype == ir.DataType.FLOAT4E2M1:  # of 8 bits, zero points are zero
            y = edit.op("Add", [y, cast(edit, spread(edit, node, zero_point), _NUMBER)])
        return round_to_grid(edit, y, dtype, saturate=bool(node.attributes.get_int("saturate", 1)))
    y = edit.op("Round", [y])
    if zero_point is not None:
        y = edit.op("Add", [y, cast(edit, spread(edit, node, zero_point), _NUMBER)])
    least, largest = (scalar(edit, limit, _NUMBER) for limit in limits(dtype))
    return cast(edit, edit.op("Min", [edit.op("Max", [y, least]), largest]), carrier(dtype), _NUMBER)


def dequantized(edit: Edit, node: ir.Node, inputs: Sequence[ir.Value | None], dtype: ir.DataType) -> ir.Value:
    """What a DequantizeLinear makes; the arguments are like those of `quantized`."""
    x, scale, zero_point = (*inputs, None)[:3]
    assert x is not None and scale is not None
    if zero_point is not None:
        spread_out = spread(edit, node, zero_point)
        if edit.scope.dtype(node.inputs[0]) == ir.DataType.INT32:  # float32 does not hold all of these
            x = edit.op("Sub", [x, spread_out])
        else:
            x = edit.op("Sub", [cast(edit, x, _NUMBER), cast(edit, spread_out, _NUMBER)])
    y = edit.op("Mul", [cast(edit, x, _NUMBER), cast(edit, spread(edit, node, scale), _NUMBER)])
    return cast(edit, y, dtype, _NUMBER)


def spread(edit: Edit, node: ir.Node, parameter: ir.Value) -> ir.Value:
    """A scale or zero point in a shape that broadcasts with what is quantized, each of them where it belongs."""
    shape = edit.scope.shape(node.inputs[0])
    own = edit.scope.shape(parameter)
    assert shape is not None and own is not None
    dims, given = list(shape.numpy()), list(own.numpy())
    if all(each == 1 for each in given):
        return parameter if len(given) <= len(dims) else reshaped(edit, parameter, [])
    axis = node.attributes.get_int("axis", 1) % len(dims)
    if len(given) == 1 and given[0] == dims[axis]:
        return reshaped(edit, parameter, [given[0], *[1] * (len(dims) - axis - 1)])
    count, size = given[axis], dims[axis]
    if count in (1, size):
        return parameter
    block = node.attributes.get_int("block_size", 0) or -(-size // count)
    tensor = parameter.const_value if parameter in edit.constants else edit.scope.constant(parameter)
    if tensor is not None:
        return edit.constant(np.repeat(tensor.numpy(), block, axis).take(range(size), axis))
    apart = reshaped(edit, parameter, [*given[: axis + 1], 1, *given[axis + 1 :]])
    repeated = [*given[: axis + 1], block, *given[axis + 1 :]]
    wide = edit.op("Expand", [apart, edit.constant(np.array(repeated))])
    whole = reshaped(edit, wide, [*given[:axis], count * block, *given[axis + 1 :]])
    if count * block == size:
        return whole
    return edit.op("Slice", [whole, *(edit.constant(np.array([each])) for each in (0, size, axis))])


def reshaped(edit: Edit, value: ir.Value, shape: Sequence[int]) -> ir.Value:
    """A value in another shape; a constant as a constant."""
    tensor = value.const_value if value in edit.constants else edit.scope.constant(value)
    if tensor is not None:
        return edit.constant(tensor.numpy().reshape(shape))
    if not shape:
        return edit.op("Squeeze", [value])
    return edit.op("Reshape", [value, edit.constant(np.array(shape, np.int64))])


def _carried(edit: Edit, value: ir.Value | None) -> ir.Value | None:
    """A constant of a small dtype in its carrier; anything else as it is."""
    tensor = edit.scope.constant(value)
    return value if tensor is None or tensor.dtype not in SMALL else edit.constant(as_carrier(tensor))


def _zero_point(node: ir.Node) -> ir.Value | None:
    return node.inputs[2] if len(node.inputs) > 2 else None


@dataclass(frozen=True)
class _Found(Match):
    target: ir.DataType


@dataclass(frozen=True)
class StandardQuantization(NodeRewrite[Match]):
    """Write QuantizeLinear and DequantizeLinear of com.microsoft as the standard's."""

    name = "standard-quantization"
    exactness = Exactness.BITWISE
    operators = frozenset({("com.microsoft", "QuantizeLinear"), ("com.microsoft", "DequantizeLinear")})

    def match(self, node: ir.Node, context: NodeContext) -> Match | Skip | None:
        """Whether the model's opset knows the dtypes."""
        quantized_value = _zero_point(node) if node.op_type == "QuantizeLinear" else node.inputs[0]
        dtype = context.scope.dtype(quantized_value) if quantized_value is not None else ir.DataType.UINT8
        if dtype is None:
            return Skip("the dtype that it quantizes to is unknown")
        since = 21 if dtype in _SIXTEEN_BITS or "block_size" in node.attributes else 13
        if context.scope.opset() < since:
            return Skip(f"the standard has this only since opset {since}: convert-opset comes first")
        return Match(node)

    def rewrite(self, match: Match, edit: Edit) -> Sequence[ir.Value]:
        """The same node in the standard's domain."""
        attributes: dict[str, Any] = dict(match.node.attributes)
        return [edit.op(match.node.op_type, match.node.inputs, attributes)]


@dataclass(frozen=True)
class _Arithmetic(NodeRewrite[_Found]):
    def match(self, node: ir.Node, context: NodeContext) -> _Found | Skip | None:
        """Whether shapes and dtypes are known."""
        problem = obstacle(node, context.scope)
        if problem is not None:
            return Skip(problem)
        target = output_dtype(node, context.scope)
        assert target is not None
        return _Found(node, target)


@dataclass(frozen=True)
class QuantizeByArithmetic(_Arithmetic):
    """Divide, round, shift, clip and cast instead of QuantizeLinear."""

    name = "quantize-by-arithmetic"
    exactness = Exactness.BITWISE
    operators = frozenset({("", "QuantizeLinear"), ("com.microsoft", "QuantizeLinear")})

    def rewrite(self, match: _Found, edit: Edit) -> Sequence[ir.Value]:
        """The arithmetic, and a Cast that changes nothing where the dtype is a small one."""
        y = quantized(edit, match.node, [_carried(edit, each) for each in match.node.inputs], match.target)
        return [cast(edit, y, match.target, carrier(match.target))]


@dataclass(frozen=True)
class DequantizeByArithmetic(_Arithmetic):
    """Cast, shift and multiply instead of DequantizeLinear."""

    name = "dequantize-by-arithmetic"
    exactness = Exactness.BITWISE
    operators = frozenset({("", "DequantizeLinear"), ("com.microsoft", "DequantizeLinear")})

    def rewrite(self, match: _Found, edit: Edit) -> Sequence[ir.Value]:
        """The arithmetic."""
        return [dequantized(edit, match.node, [_carried(edit, each) for each in match.node.inputs], match.target)]


RULES: tuple[NodeRewrite[Any], ...] = (StandardQuantization(), QuantizeByArithmetic(), DequantizeByArithmetic())
