"""Compute products of 8-bit integers exactly, by float32 matrix products and convolutions.

    MatMulInteger(a, b)    →  Σᵢ 2^(n·i) · Cast<int32>(MatMul(dᵢ, b − z_b))      dᵢ: the n-bit digits of a − z_a
    ConvInteger(x, w)      →  likewise with Conv: its padding is the zero point of x, that is 0
    QLinearMatMul, QLinearConv  →  QuantizeLinear(that · (s_a·s_b / s_y), 1, z_y)

A sum of integers is exact in float32 while it is below 2²⁴: with factors below 256, that is 258 terms. For longer sums
one factor is split into digits of 5, 3, 2 or 1 bits, the last of which holds the sign.

Runtimes have fast 8-bit products, but some ignore the zero points, or save programs that they cannot load again.

Skips: dtypes other than int8 and uint8; sums that may be longer than 65,793 terms.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import onnx_ir as ir

from passes.builders.operands import given
from passes.rewriting.base import Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import EVERY_INPUT, Replacement, rewrite

_NUMBER, _SUM = ir.DataType.FLOAT, ir.DataType.INT32
_BYTES = (ir.DataType.INT8, ir.DataType.UINT8)
_EXACT = 2**24
_LARGEST = 255
"""The largest difference of two 8-bit integers."""
_DIGITS = (9, 5, 3, 2, 1)
"""Widths of a digit; the difference of two 8-bit integers has nine bits including the sign."""


def centered(edit: Edit, value: ir.Value, zero_point: ir.Value | None, shape: Sequence[int] | None = None) -> ir.Value:
    """Return 8-bit integers minus their zero point, as float32; one per axis is reshaped to ``shape``."""
    x = edit.op("Cast", [value], {"to": _NUMBER.value})
    if zero_point is None:
        return x
    return edit.op("Sub", [x, edit.op("Cast", [reshaped_parameter(edit, zero_point, shape)], {"to": _NUMBER.value})])


def reshaped_parameter(edit: Edit, parameter: ir.Value, shape: Sequence[int] | None) -> ir.Value:
    """Reshape a scale or zero point: rank 0 if per tensor, in ``shape`` if per axis, others unchanged."""
    shape_before = edit.scope.static_shape(parameter)
    assert shape_before is not None
    dims = list(shape_before)
    if all(size == 1 for size in dims):
        return edit.reshape_or_fold(parameter, []) if dims else parameter
    return edit.reshape_or_fold(parameter, shape) if len(dims) == 1 and shape is not None else parameter


def digits_of(length: int) -> int | None:
    """Return the widest digits for exact sums of ``length`` terms, otherwise None."""
    for bits in _DIGITS:
        largest = _LARGEST if bits == 9 else 2**bits - 1  # the last digit, with the sign, is smaller
        if length * largest * _LARGEST < _EXACT:
            return bits
    return None


def exact_sum(edit: Edit, x: ir.Value, bits: int, multiply: Callable[[ir.Value], ir.Value]) -> ir.Value:
    """Return the int32 result of ``multiply(x)``, summed over digits of ``bits`` bits."""
    base = edit.scalar(2.0**bits, _NUMBER)
    total: ir.Value | None = None
    for index in range(pieces := -(-9 // bits)):
        digit = x
        if index < pieces - 1:
            rest = edit.op("Floor", [edit.op("Div", [x, base])])
            digit, x = edit.op("Sub", [x, edit.op("Mul", [rest, base])]), rest
        product = edit.op("Cast", [multiply(digit)], {"to": _SUM.value})
        if total is None:
            total = product
        else:
            total = edit.op("Add", [total, edit.op("Mul", [product, edit.scalar(2 ** (bits * index), _SUM)])])
    assert total is not None
    return total


@rewrite("MatMulInteger", "ConvInteger", "QLinearMatMul", "QLinearConv", needs_shape=EVERY_INPUT)
def exact_integer_product(node: ir.Node, edit: Edit) -> Replacement:
    """Multiply 8-bit integers exactly in float32."""
    scope, is_scaled, is_conv = edit.scope, node.op_type.startswith("QLinear"), "Conv" in node.op_type
    x_index, w_index, x_zero, w_zero = (0, 3, 2, 5) if is_scaled else (0, 1, 2, 3)
    if scope.dtype(node.inputs[x_index]) not in _BYTES or scope.dtype(node.inputs[w_index]) not in _BYTES:
        return Skip("the factors are not known to be 8-bit integers")
    if is_scaled and any(size != 1 for size in edit.shape(node, 6)):
        return Skip("the output has more than one scale")
    shape = edit.shape(node, w_index)
    length = math.prod(shape[1:]) if is_conv else shape[max(len(shape) - 2, 0)]
    bits = digits_of(length)
    if bits is None:
        return Skip(f"a sum of {length} products is not exact in float32")
    columns, along = None, None
    if is_conv:
        columns, along = [-1, *[1] * (len(shape) - 1)], [-1, *[1] * (len(shape) - 2)]
    x = centered(edit, edit.input(node, x_index), given(node, x_zero), [-1, 1])
    w = centered(edit, edit.input(node, w_index), given(node, w_zero), columns)
    operator, attributes = ("Conv", dict(node.attributes)) if is_conv else ("MatMul", {})
    total = exact_sum(edit, x, bits, lambda digit: edit.op(operator, [digit, w], attributes))
    if not is_scaled:
        return total
    bias, zero = given(node, 8), given(node, 7) or edit.scalar(0, ir.DataType.UINT8)
    if bias is not None:
        total = edit.op("Add", [total, reshaped_parameter(edit, bias, along)])
    scales = ((1, [-1, 1]), (4, along), (6, None))
    x_scale, w_scale, y_scale = (
        edit.cast(reshaped_parameter(edit, edit.input(node, index), sizes), _NUMBER) for index, sizes in scales
    )
    factor = edit.op("Div", [edit.op("Mul", [x_scale, w_scale]), y_scale])
    y = edit.op("Mul", [edit.cast(total, _NUMBER), factor])
    return edit.op("QuantizeLinear", [y, edit.scalar(1, _NUMBER), reshaped_parameter(edit, zero, None)])
