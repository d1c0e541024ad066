"""Rewrite operators on 8-bit integers with scales: dequantize, compute in float, quantize.

    QLinearConv(x, w, b)       →  Quantize(Conv(Dequantize(x), Dequantize(w), Dequantize(b, s_x·s_w)))
    QLinearMatMul, and com.microsoft's QLinearAdd, QLinearMul, QLinearSigmoid, QLinearLeakyRelu, QLinearSoftmax,
    QLinearAveragePool, QLinearGlobalAveragePool, QLinearReduceMean, QLinearConcat, QLinearWhere, QGemm  →  likewise
    DynamicQuantizeMatMul(a, w)      →  q, s, z = DynamicQuantizeLinear(a);  MatMulInteger(q, w)·s·s_w + bias
    MatMulIntegerToFloat(a, b)       →  MatMulInteger(a, b)·s_a·s_b + bias

Compilers recognize this form and select 8-bit kernels for it. If its rounding differs from that of the integer
operators, `passes.legalize.math.integer_products` has the exact form of products. Channels-last operators are
transposed. Like ONNX Runtime, QLinearSoftmax quantizes with 1/s rounded down to an integer.

Before opset 13 DequantizeLinear supports only scales per tensor. A weight with scales per axis and one zero point is
dequantized with the scale 1, and the product is multiplied by the scales:

    QLinearConv(x, w, b)       →  Quantize(Conv(Dequantize(x), Dequantize(w, 1))·s_w + b·s_x·s_w)

Skips: unknown shapes and dtypes; zero points per axis before opset 13; dynamic quantization before opset 11, which does
not have it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from passes.builders.operands import given
from passes.graphs.scopes import Scope
from passes.rewriting.base import OpsetTooOld, Skip
from passes.rewriting.edit import Edit
from passes.rewriting.expressions import Attribute
from passes.rewriting.rewrite import UNKNOWN_DTYPE, UNKNOWN_SHAPE, Replacement

_NUMBER = ir.DataType.FLOAT


@dataclass(frozen=True)
class _Form:
    """The layout of an operator's quantized inputs and output, and its computation.

    Attributes:
        inputs: the index of each tensor that is followed by a scale and a zero point.
        output: the index of the output's scale, which is followed by its zero point.
        compute: the operator on the dequantized inputs.
    """

    inputs: tuple[int, ...]
    output: int
    compute: Callable[[Edit, ir.Node, list[ir.Value]], ir.Value]


def _plain(operator: str, *names: str) -> Callable[[Edit, ir.Node, list[ir.Value]], ir.Value]:
    """Return the builder of a standard operator with some of the node's attributes."""

    def compute(edit: Edit, node: ir.Node, operands: list[ir.Value]) -> ir.Value:
        return edit.op(operator, operands, _attributes(node, names))

    return compute


def _attributes(node: ir.Node, names: Sequence[str]) -> dict[str, Attribute]:
    return {name: node.attributes[name] for name in names if name in node.attributes}


def _spatial(operator: str, *names: str) -> Callable[[Edit, ir.Node, list[ir.Value]], ir.Value]:
    """Return the builder of an operator that may be channels-last."""

    def compute(edit: Edit, node: ir.Node, operands: list[ir.Value]) -> ir.Value:
        last, rank = bool(node.attributes.get_int("channels_last", 0)), len(edit.shape(node))
        order = [0, rank - 1, *range(1, rank - 1)]
        x, *others = operands
        if last:
            x = edit.op("Transpose", [x], {"perm": order})
        y = edit.op(operator, [x, *others], _attributes(node, names))
        return edit.op("Transpose", [y], {"perm": [order.index(axis) for axis in range(len(order))]}) if last else y

    return compute


def _softmax(edit: Edit, node: ir.Node, operands: list[ir.Value]) -> ir.Value:
    dims = edit.shape(node)
    axis = node.attributes.get_int("axis", -1) % max(len(dims), 1)
    if node.attributes.get_int("opset", 13) >= 13 or axis == len(dims) - 1:
        return edit.op("Softmax", operands, {"axis": axis})
    flat = [math.prod(dims[:axis]), math.prod(dims[axis:])]  # before opset 13: all axes from this one on
    y = edit.op("Softmax", [edit.reshape_or_fold(operands[0], flat)], {"axis": 1})
    return edit.reshape_or_fold(y, dims)


def _reduce_mean(edit: Edit, node: ir.Node, operands: list[ir.Value]) -> ir.Value:
    axes = list(node.attributes.get_ints("axes", []))
    return edit.op("ReduceMean", [*operands, *([edit.index(axes)] if axes else [])], _attributes(node, ["keepdims"]))


_WINDOW = ("auto_pad", "ceil_mode", "count_include_pad", "kernel_shape", "pads", "strides")
_CONV = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")
_FORMS: dict[str, _Form] = {
    "QLinearMatMul": _Form((0, 3), 6, _plain("MatMul")),
    "QLinearConv": _Form((0, 3), 6, _spatial("Conv", *_CONV)),
    "QLinearAdd": _Form((0, 3), 6, _plain("Add")),
    "QLinearMul": _Form((0, 3), 6, _plain("Mul")),
    "QLinearSigmoid": _Form((0,), 3, _plain("Sigmoid")),
    "QLinearLeakyRelu": _Form((0,), 3, _plain("LeakyRelu", "alpha")),
    "QLinearSoftmax": _Form((0,), 3, _softmax),
    "QLinearAveragePool": _Form((0,), 3, _spatial("AveragePool", *_WINDOW)),
    "QLinearGlobalAveragePool": _Form((0,), 3, _spatial("GlobalAveragePool")),
    "QLinearReduceMean": _Form((0,), 3, _reduce_mean),
    "QLinearWhere": _Form((1, 4), 7, lambda edit, node, operands: edit.op("Where", [node.inputs[0], *operands])),
}
_PRODUCTS = {"QLinearMatMul", "QLinearConv", "QGemm"}
OPERATORS = (
    *("QLinearMatMul", "QLinearConv", "com.microsoft.QLinearConcat", "com.microsoft.QGemm"),
    *(f"com.microsoft.{name}" for name in _FORMS),
)
"""The operators with quantized inputs and outputs."""
PRODUCTS = ("com.microsoft.DynamicQuantizeMatMul", "com.microsoft.MatMulIntegerToFloat")
"""The products of integers with float results."""


def quantized_operator(node: ir.Node, edit: Edit) -> Replacement:
    """Dequantize, compute one of `OPERATORS` in float, and quantize."""
    scope = edit.scope
    for value in filter(None, node.inputs):
        if scope.static_shape(value) is None:
            return Skip(UNKNOWN_SHAPE)
        if scope.dtype(value) is None:
            return Skip(UNKNOWN_DTYPE)
    first_scale = {"QLinearConcat": 0, "QLinearWhere": 2}.get(node.op_type, 1)
    if scope.dtype(given(node, first_scale)) != _NUMBER:
        return Skip("the scales are not float32")
    for index in _parameters(node):
        shape = scope.shape(given(node, index))
        if shape is not None and any(size != 1 for size in shape):
            if node.op_type not in _PRODUCTS or len(shape) > 1 or index not in (4, 5):
                return Skip("a scale other than that of the weights is not per tensor")
            if scope.opset() < 13 and not _has_one_zero(node, scope):
                raise OpsetTooOld("DequantizeLinear with scales per axis", 13, scope.opset())
    if node.op_type == "QLinearConcat":
        parts = [_dequantize(edit, node, index) for index in range(2, len(node.inputs), 3)]
        return _quantize(edit, node, edit.op("Concat", parts, {"axis": node.attributes.get_int("axis", 0)}), 0, 2)
    if node.op_type == "QGemm":
        return _gemm(edit, node)
    form, axis = _FORMS[node.op_type], 0 if node.op_type == "QLinearConv" else -1
    operands = [_dequantize(edit, node, form.inputs[0])]
    operands += [_dequantize(edit, node, index, axis) for index in form.inputs[1:]]
    is_scaled_after = _is_scaled_after(node, scope)
    bias = _bias(edit, node, 8) if node.op_type == "QLinearConv" and given(node, 8) is not None else None
    if bias is not None and not is_scaled_after:
        operands.append(bias)
    y = form.compute(edit, node, operands)
    if is_scaled_after:
        y = _scaled(edit, node, y, bias)
    rescale = _whole_steps if node.op_type == "QLinearSoftmax" else _per_tensor
    return _quantize(edit, node, y, form.output, form.inputs[0], rescale)


def _parameters(node: ir.Node) -> list[int]:
    """Return the indices of all scales and zero points."""
    if node.op_type == "QLinearConcat":
        return [index for index in range(len(node.inputs)) if index < 2 or index % 3 != 2]
    form = _FORMS.get(node.op_type, _Form((0, 3), 7, _plain("")))
    starts = [*(index + 1 for index in form.inputs), form.output]
    return [index + offset for index in starts for offset in (0, 1)]


def _per_tensor(edit: Edit, value: ir.Value) -> ir.Value:
    """Return a scale or zero point, reshaped to rank 0 if it has one element."""
    shape = edit.scope.shape(value)
    if shape is None or not len(shape) or any(size != 1 for size in shape):
        return value
    return edit.reshape_or_fold(value, [])


def _is_scaled_after(node: ir.Node, scope: Scope) -> bool:
    """Return whether the product is scaled by its weight's scales, because DequantizeLinear does not support them."""
    shape = scope.shape(given(node, 4)) if node.op_type in _PRODUCTS else None
    return scope.opset() < 13 and shape is not None and any(size != 1 for size in shape)


def _has_one_zero(node: ir.Node, scope: Scope) -> bool:
    """Return whether all zero points of a weight are equal."""
    tensor = scope.constant(given(node, 5))
    return given(node, 5) is None or (tensor is not None and np.unique(tensor.numpy()).size == 1)


def _scaled(edit: Edit, node: ir.Node, y: ir.Value, bias: ir.Value | None) -> ir.Value:
    """Return the product of a weight that was dequantized with the scale 1, times its scales, plus the bias."""
    first = node.op_type == "QLinearConv" and not node.attributes.get_int("channels_last", 0)
    along = [-1, *[1] * (len(edit.shape(node)) - 2)] if first else [-1]
    y = edit.op("Mul", [y, edit.reshape_or_fold(edit.input(node, 4), along)])
    return y if bias is None else edit.op("Add", [y, edit.reshape_or_fold(bias, along)])


def _dequantize(edit: Edit, node: ir.Node, index: int, axis: int = 0) -> ir.Value:
    """Return one of the inputs in float32, with the scale 1 if the product is scaled afterwards."""
    x, scale, zero = (given(node, index + offset) for offset in range(3))
    assert x is not None and scale is not None
    if index == 3 and _is_scaled_after(node, edit.scope):
        scale, tensor = edit.scalar(1.0, _NUMBER), edit.scope.constant(zero)
        inputs = [x, scale, *([] if tensor is None else [edit.constant(tensor.numpy().reshape(-1)[0])])]
        return edit.op("DequantizeLinear", inputs)
    inputs = [x, _per_tensor(edit, scale), *([] if zero is None else [_per_tensor(edit, zero)])]
    shape = edit.scope.shape(scale)
    several = shape is not None and any(size != 1 for size in shape)
    rank = len(edit.scope.shape(x) or ())
    return edit.op("DequantizeLinear", inputs, {"axis": axis % max(rank, 1)} if several else {})


def _bias(edit: Edit, node: ir.Node, index: int) -> ir.Value:
    """Return an int32 bias, whose scale is the product of the others, in float32."""
    both = edit.op("Mul", [_per_tensor(edit, edit.input(node, scale)) for scale in (1, 4)])
    return edit.op("Mul", [edit.cast(edit.input(node, index), _NUMBER), both])


def _quantize(
    edit: Edit,
    node: ir.Node,
    y: ir.Value,
    index: int,
    like: int,
    rescale: Callable[[Edit, ir.Value], ir.Value] = _per_tensor,
) -> ir.Value:
    """Return the output with the scale at ``index``; without a zero point, in the dtype of the input at ``like``."""
    zero = given(node, index + 1) or edit.scalar(0, edit.scope.dtype(node.inputs[like]) or ir.DataType.UINT8)
    return edit.op("QuantizeLinear", [y, rescale(edit, edit.input(node, index)), _per_tensor(edit, zero)])


def _whole_steps(edit: Edit, scale: ir.Value) -> ir.Value:
    """Return a scale with an integer inverse: 1 / ⌊1/s⌋; for s > 1, it is 4, which rounds all probabilities to 0."""
    one = edit.scalar(1.0, _NUMBER)
    steps = edit.op("Floor", [edit.op("Div", [one, _per_tensor(edit, scale)])])
    return edit.op("Div", [one, edit.op("Max", [steps, edit.scalar(0.25, _NUMBER)])])


def _gemm(edit: Edit, node: ir.Node) -> ir.Value:
    """Return QGemm, in float if it has no output scale."""
    a = _dequantize(edit, node, 0)
    b = _dequantize(edit, node, 3, 0 if node.attributes.get_int("transB", 0) else 1)
    alpha = node.attributes.get_float("alpha", 1.0)
    nothing = [edit.scalar(0.0, _NUMBER)] if edit.scope.opset() < 11 else []  # C was required
    y = edit.op("Gemm", [a, b, *nothing], {"alpha": alpha, **_attributes(node, ("transA", "transB"))})
    if _is_scaled_after(node, edit.scope):
        y = _scaled(edit, node, y, None)
    if given(node, 6) is not None:  # its scale includes alpha
        y = edit.op("Add", [y, edit.op("Mul", [_bias(edit, node, 6), edit.scalar(alpha, _NUMBER)])])
    return _quantize(edit, node, y, 7, 0) if given(node, 7) is not None else y


def quantized_product(node: ir.Node, edit: Edit) -> Replacement:
    """Write one of `PRODUCTS`, an integer product with a float result, as MatMulInteger, scales and bias."""
    if node.op_type == "DynamicQuantizeMatMul" and edit.scope.opset() < 11:
        raise OpsetTooOld("DynamicQuantizeLinear", 11, edit.scope.opset())
    if edit.scope.dtype(given(node, 3 if node.op_type == "MatMulIntegerToFloat" else 2)) != _NUMBER:
        return Skip("the scales are not known to be float32")
    if node.op_type == "MatMulIntegerToFloat":
        a, b, a_scale, b_scale, a_zero, b_zero, bias = (given(node, index) for index in range(7))
    else:
        dynamic = edit.node("DynamicQuantizeLinear", [node.inputs[0]], outputs=3)
        a, a_scale, a_zero = dynamic.outputs
        b, b_scale, b_zero, bias = (given(node, index) for index in range(1, 5))
    total = edit.op("MatMulInteger", [a, b, a_zero, b_zero])
    y = edit.op("Mul", [edit.cast(total, _NUMBER), edit.op("Mul", [a_scale, b_scale])])
    return edit.op("Add", [y, bias]) if bias is not None else y
