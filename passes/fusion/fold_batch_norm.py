"""Fold a BatchNormalization into the weight and bias of the linear operator before it.

    BatchNormalization(Conv(x, w, c))           →  Conv(x, w · a, (c − mean) · a + b)        a = scale / √(var + ε)
    BatchNormalization(ConvTranspose(x, w, c))  →  ConvTranspose(…)     likewise, a along the output channels
    BatchNormalization(Gemm(x, w, c))           →  Gemm(x, w · a, ((β · c − mean) · a + b)), β = 1
    BatchNormalization(MatMul(x, w))            →  Gemm(x, w · a, b − mean · a)

The arithmetic is done in float64 and rounded once, to the dtype of the weight.

Skips: training; a result that is used before it is normalized; weight, bias or statistics that are not constant; a
quantized weight, whose grid would be lost; a large weight with other uses, which would be duplicated; a result
that the weight's dtype cannot represent; MatMul of other than matrices, where the channels are not the columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from passes.graphs.scopes import Scope
from passes.rewriting.base import Exactness, Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import Match, NodeContext, NodeRewrite

_LINEAR = ("Conv", "ConvTranspose", "Gemm", "MatMul")
_MAX_DUPLICATED = 1 << 20
"""The most bytes of a weight that may be duplicated."""


@dataclass(frozen=True)
class _Found(Match):
    linear: ir.Node
    weight: ir.TensorProtocol
    bias: ir.TensorProtocol | None
    statistics: tuple[ir.TensorProtocol, ...]
    """Scale, bias, mean, variance."""


class FoldBatchNorm(NodeRewrite[_Found]):
    """Fold a BatchNormalization into the weight and bias of the Conv, ConvTranspose, Gemm or MatMul before it."""

    name = "fold-batch-norm"
    exactness = Exactness.ROUNDING
    operators = frozenset({("", "BatchNormalization")})
    absorbs = frozenset(("", each) for each in _LINEAR)

    def match(self, node: ir.Node, context: NodeContext) -> _Found | Skip | None:
        """Check that all operands are constant; no weight is read yet."""
        scope = context.scope
        linear = context.producer(node, 0, *_LINEAR)
        if linear is None:
            return None
        refusal = _training(node, scope) or _unfit(linear, scope)
        if refusal is not None:
            return Skip(refusal)
        result = linear.outputs[0]
        if result.is_graph_output() or len(result.uses()) > 1:
            return Skip(f"{result.name}, which it normalizes, is used elsewhere")
        weight = scope.constant(linear.inputs[1])
        if weight is None:
            producer = linear.inputs[1].producer() if linear.inputs[1] is not None else None
            quantized = producer is not None and producer.op_type == "DequantizeLinear"
            return Skip(f"the weight of {linear.name} is {'quantized' if quantized else 'not constant'}")
        if weight.nbytes > _MAX_DUPLICATED and len(linear.inputs[1].uses()) > 1:  # type: ignore[union-attr]
            return Skip(f"the weight of {linear.name} is used elsewhere and would be duplicated")
        given = linear.inputs[2] if len(linear.inputs) > 2 else None
        bias = scope.constant(given)
        if given is not None and bias is None:
            return Skip(f"the bias of {linear.name} is not constant")
        statistics = tuple(tensor for value in node.inputs[1:5] if (tensor := scope.constant(value)) is not None)
        if len(statistics) < 4:
            return Skip("its scale, bias, mean or variance is not constant")
        if weight.size == 0:
            return Skip(f"the weight of {linear.name} has no elements")
        if {tensor.size for tensor in statistics} != {_channels(linear, weight)}:
            return Skip(f"its statistics do not fit the channels of {linear.name}")
        return _Found(node, linear, weight, bias, statistics, absorbed=(linear,))

    def rewrite(self, match: _Found, edit: Edit) -> Sequence[ir.Value | None] | Skip:
        """The linear operator with another weight and bias."""
        linear = match.linear
        scale, shift, mean, variance = (_float64(tensor).ravel() for tensor in match.statistics)
        attributes: dict[str, Any] = dict(linear.attributes)
        given = np.zeros(1) if match.bias is None else _float64(match.bias)
        if linear.op_type == "Gemm":
            given = given * linear.attributes.get_float("beta", 1.0)
            attributes["beta"] = 1.0
        with np.errstate(all="ignore"):  # the result is checked
            factor = scale / np.sqrt(variance + match.node.attributes.get_float("epsilon", 1e-5))
            weight = _scaled(linear, match.weight, factor)
            bias = ((given - mean) * factor + shift).astype(match.weight.numpy().dtype)
        if weight is None or not np.isfinite(bias).all():
            return Skip(f"{match.weight.dtype.name} cannot represent the folded weight or bias")
        operator = "Gemm" if linear.op_type == "MatMul" else linear.op_type
        assert linear.inputs[1] is not None
        name = f"{linear.inputs[1].name}/folded"
        inputs = [linear.inputs[0], edit.constant(weight, name), edit.constant(bias, f"{linear.name}/bias")]
        return [edit.op(operator, inputs, attributes)]


def _training(node: ir.Node, scope: Scope) -> str | None:
    """Why a BatchNormalization does not use the given statistics, one per channel; None if it does."""
    opset = scope.opset()
    if opset < 7 and node.attributes.get_int("is_test", 0) == 0:
        return "it is in training mode (is_test=0)"
    if opset >= 14 and node.attributes.get_int("training_mode", 0) != 0:
        return "it is in training mode (training_mode=1)"
    if len(node.outputs) > 1:
        return "it has more than one output, as in training"
    if opset < 9 and node.attributes.get_int("spatial", 1) == 0:
        return "it has statistics for every element, not for every channel (spatial=0)"
    return None


def _unfit(linear: ir.Node, scope: Scope) -> str | None:
    """Why the columns of a matrix product are not the channels, or it cannot have a bias; None if that is fine."""
    if linear.op_type in ("Gemm", "MatMul") and scope.opset() < 7:
        return f"before opset 7, {linear.op_type} does not broadcast"
    if linear.op_type == "MatMul":
        shapes = [scope.shape(value) for value in linear.inputs]
        if any(shape is None or len(shape) != 2 for shape in shapes):
            return f"{linear.name} is not known to multiply two matrices"
    return None


def _channels(linear: ir.Node, weight: ir.TensorProtocol) -> int | None:
    """The number of output channels."""
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
    """The weight times one factor for each output channel; None if its dtype cannot represent the result.

    That is where the rounding moves an element by more than the dtype's precision of the largest of its channel:
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
