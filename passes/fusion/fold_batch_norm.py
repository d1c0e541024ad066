"""Fold a BatchNormalization into the weight and bias of the linear operator before it.

    BatchNormalization(Conv(x, w, c))           →  Conv(x, w · a, (c − mean) · a + b)        a = scale / √(var + ε)
    BatchNormalization(ConvTranspose(x, w, c))  →  ConvTranspose(…)     a along the output channels
    BatchNormalization(Gemm(x, w, c))           →  Gemm(x, w · a, ((β · c − mean) · a + b)), β = 1
    BatchNormalization(MatMul(x, w))            →  Gemm(x, w · a, b − mean · a)

The arithmetic is done in float64 and rounded once, to the dtype of the weight.

Skips: training; a result that is used before it is normalized; weight, bias or statistics that are not constant; a
quantized weight, whose grid would be lost; a large weight with other uses, which would be duplicated; a result
that the weight's dtype cannot represent; MatMul of other than matrices, where the channels are not the columns.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from passes.builders.operands import given
from passes.graphs.scopes import Scope
from passes.rewriting.base import Exactness, NotApplicable, Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import Replacement, rewrite

_LINEAR = ("Conv", "ConvTranspose", "Gemm", "MatMul")
_MAX_DUPLICATED = 1 << 20
"""The most bytes of a weight that may be duplicated."""


@rewrite("BatchNormalization", exactness=Exactness.ROUNDING, absorbs=_LINEAR)
def fold_batch_norm(node: ir.Node, edit: Edit) -> Replacement:
    """Fold a BatchNormalization into the weight and bias of the Conv, ConvTranspose, Gemm or MatMul before it."""
    linear = edit.producer(node, 0, *_LINEAR)
    if linear is None:
        return None
    _check_inference(node, edit.scope)
    _check_product(linear, edit.scope)
    result = linear.outputs[0]
    if result.is_graph_output() or len(result.uses()) > 1:
        return Skip(f"{result.name}, which it normalizes, is used elsewhere")
    weight, bias = _parameters(linear, edit)
    statistics = [tensor for value in node.inputs[1:5] if (tensor := edit.scope.constant(value)) is not None]
    if len(statistics) < 4:
        return Skip("the scale, bias, mean or variance is not constant")
    if weight.size == 0:
        return Skip(f"the weight of {linear.name} has no elements")
    if {tensor.size for tensor in statistics} != {_channels(linear, weight)}:
        return Skip(f"the statistics do not fit the channels of {linear.name}")
    scale, shift, mean, variance = (_float64(tensor).ravel() for tensor in statistics)
    attributes: dict[str, Any] = dict(linear.attributes)
    if linear.op_type == "Gemm":
        bias = bias * linear.attributes.get_float("beta", 1.0)
        attributes["beta"] = 1.0
    with np.errstate(all="ignore"):  # the result is checked
        factor = scale / np.sqrt(variance + node.attributes.get_float("epsilon", 1e-5))
        folded = _scaled(linear, weight, factor)
        bias = ((bias - mean) * factor + shift).astype(weight.numpy().dtype)
    if folded is None or not np.isfinite(bias).all():
        return Skip(f"{weight.dtype.name} cannot represent the folded weight or bias")
    edit.absorb(linear)
    operator = "Gemm" if linear.op_type == "MatMul" else linear.op_type
    name = f"{edit.input(linear, 1).name}/folded"
    inputs = [linear.inputs[0], edit.constant(folded, name), edit.constant(bias, f"{linear.name}/bias")]
    return edit.op(operator, inputs, attributes)


def _check_inference(node: ir.Node, scope: Scope) -> None:
    """Raise NotApplicable unless a BatchNormalization uses the given statistics, one per channel."""
    opset = scope.opset()
    if opset >= 14 and node.attributes.get_int("training_mode", 0) != 0:
        raise NotApplicable("the node is in training mode (training_mode=1)")
    if len(node.outputs) > 1:
        raise NotApplicable("the node has more than one output, as in training")
    if opset < 9 and node.attributes.get_int("spatial", 1) == 0:
        raise NotApplicable("the node has statistics for every element, not for every channel (spatial=0)")


def _check_product(linear: ir.Node, scope: Scope) -> None:
    """Raise NotApplicable if the columns of a matrix product are not the channels, or it cannot have a bias."""
    if linear.op_type == "MatMul":
        shapes = [scope.shape(value) for value in linear.inputs]
        if any(shape is None or len(shape) != 2 for shape in shapes):
            raise NotApplicable(f"{linear.name} is not known to multiply two matrices")


def _parameters(linear: ir.Node, edit: Edit) -> tuple[ir.TensorProtocol, NDArray[np.float64]]:
    """Return the weight, which is not read yet, and the bias, ``[0]`` if there is none."""
    value = edit.input(linear, 1)
    weight = edit.scope.constant(value)
    if weight is None:
        producer = value.producer()
        quantized = producer is not None and producer.op_type == "DequantizeLinear"
        raise NotApplicable(f"the weight of {linear.name} is {'quantized' if quantized else 'not constant'}")
    if weight.nbytes > _MAX_DUPLICATED and len(value.uses()) > 1:
        raise NotApplicable(f"the weight of {linear.name} is used elsewhere and would be duplicated")
    if given(linear, 2) is None:
        return weight, np.zeros(1)
    bias = edit.scope.constant(linear.inputs[2])
    if bias is None:
        raise NotApplicable(f"the bias of {linear.name} is not constant")
    return weight, _float64(bias)


def _channels(linear: ir.Node, weight: ir.TensorProtocol) -> int | None:
    """Return the number of output channels; None if the weight has no such axis."""
    shape = weight.shape.numpy()
    if len(shape) < 2:
        return None
    match linear.op_type:
        case "Conv":
            return shape[0]
        case "ConvTranspose":
            return shape[1] * linear.attributes.get_int("group", 1)
    return shape[0 if linear.attributes.get_int("transB", 0) else 1]


def _scaled(linear: ir.Node, weight: ir.TensorProtocol, factor: NDArray[np.float64]) -> NDArray[Any] | None:
    """Return the weight times one factor for each output channel; None if its dtype cannot represent the result.

    The dtype cannot if rounding moves an element by more than the dtype's precision of the largest of its channel:
    beyond the largest number, and below the smallest normal one, where half precision soon has no digits left.
    """
    array = weight.numpy()
    groups = linear.attributes.get_int("group", 1) if linear.op_type == "ConvTranspose" else 1
    leading = linear.op_type == "Conv" or linear.attributes.get_int("transB", 0) != 0
    # (groups, inputs, outputs, rest), of which inputs or rest are 1 where the outputs lead
    outputs = len(factor) // groups
    view = array.reshape((1, 1, outputs, -1) if leading else (groups, array.shape[0] // groups, outputs, -1))
    exact = view.astype(np.float64) * factor.reshape(groups, 1, outputs, 1)
    rounded = exact.astype(array.dtype)
    largest = np.abs(exact).max(axis=(1, 3), keepdims=True, initial=0.0)
    good = np.abs(rounded.astype(np.float64) - exact) <= float(weight.dtype.eps) * largest
    return rounded.reshape(array.shape) if good.all() else None


def _float64(tensor: ir.TensorProtocol) -> NDArray[np.float64]:
    return tensor.numpy().astype(np.float64)
