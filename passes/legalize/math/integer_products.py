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

from passes.graphs.scopes import Scope
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
    """Return 8-bit integers minus their zero point, as float32.

    Args:
        value: the integers.
        zero_point: per tensor or per axis; None for zero.
        shape: what a zero point per axis is reshaped to.
    """
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


class _Operands:
    """The inputs of MatMulInteger, ConvInteger, QLinearMatMul or QLinearConv by role."""

    def __init__(self, node: ir.Node) -> None:
        inputs = [*node.inputs, *[None] * (9 - len(node.inputs))]
        self.scales: tuple[ir.Value, ir.Value, ir.Value] | None = None
        self.output_zero: ir.Value | None = None
        self.bias: ir.Value | None = None
        if node.op_type.startswith("QLinear"):
            self.x, x_scale, self.x_zero, self.w, w_scale, self.w_zero, y_scale, self.output_zero, self.bias = inputs
            assert x_scale is not None and w_scale is not None and y_scale is not None
            self.scales = x_scale, w_scale, y_scale
        else:
            self.x, self.w, self.x_zero, self.w_zero = inputs[:4]


@rewrite("MatMulInteger", "ConvInteger", "QLinearMatMul", "QLinearConv", needs_shape=EVERY_INPUT)
def exact_integer_product(node: ir.Node, edit: Edit) -> Replacement:
    """Multiply 8-bit integers exactly in float32."""
    scope, operands = edit.scope, _Operands(node)
    assert operands.x is not None and operands.w is not None
    if scope.dtype(operands.x) not in _BYTES or scope.dtype(operands.w) not in _BYTES:
        return Skip("the factors are not known to be 8-bit integers")
    if operands.scales is not None and _several(operands.scales[2], scope):
        return Skip("the output has more than one scale")
    shape = scope.static_shape(operands.w)
    assert shape is not None
    is_conv = "Conv" in node.op_type
    length = math.prod(shape[1:]) if is_conv else shape[max(len(shape) - 2, 0)]
    bits = digits_of(length)
    if bits is None:
        return Skip(f"a sum of {length} products is not exact in float32")
    columns, along = None, None
    if is_conv:
        columns, along = [-1, *[1] * (len(shape) - 1)], [-1, *[1] * (len(shape) - 2)]
    x = centered(edit, operands.x, operands.x_zero, [-1, 1])
    w = centered(edit, operands.w, operands.w_zero, columns)
    operator, attributes = ("Conv", dict(node.attributes)) if is_conv else ("MatMul", {})
    total = exact_sum(edit, x, bits, lambda digit: edit.op(operator, [digit, w], attributes))
    if operands.scales is None:
        return total
    if operands.bias is not None:
        total = edit.op("Add", [total, reshaped_parameter(edit, operands.bias, along)])
    x_scale, w_scale, y_scale = operands.scales
    both = edit.op("Mul", [_scale(edit, x_scale, [-1, 1]), _scale(edit, w_scale, along)])
    factor = edit.op("Div", [both, _scale(edit, y_scale, None)])
    y = edit.op("Mul", [edit.cast(total, _NUMBER), factor])
    zero = edit.scalar(0, ir.DataType.UINT8) if operands.output_zero is None else operands.output_zero
    return edit.op("QuantizeLinear", [y, edit.scalar(1, _NUMBER), reshaped_parameter(edit, zero, None)])


def _scale(edit: Edit, value: ir.Value, shape: Sequence[int] | None) -> ir.Value:
    return edit.cast(reshaped_parameter(edit, value, shape), _NUMBER)


def _several(value: ir.Value, scope: Scope) -> bool:
    shape = scope.shape(value)
    return shape is None or any(size != 1 for size in shape)
