"""Refusals of ONNX Runtime to run a model with its sizes, and the blame of the sizes."""

from __future__ import annotations

import math

import onnx_ir as ir

from onnx_bridge.core.errors import BridgeError
from onnx_bridge.reference.onnxruntime_errors import OnnxRuntimeError, Reason
from onnx_bridge.reference.reference import Reference
from onnx_bridge.samples import inputs as samplers
from passes.graphs.cost import estimate
from passes.graphs.scopes import Scope, required_inputs
from passes.graphs.structural_inputs import OPERANDS
from passes.graphs.traversal import operands_of
from passes.operators import operators
from passes.probing.partition import can_cross
from passes.shapes.declarations import forget_sizes
from passes.shapes.steered_sizes import steered_outputs

_MOST_WORK = 10_000_000_000
"""Multiply-adds of a model that is run to see whether it runs, a few seconds."""
_MOST_ELEMENTS = 1 << 25
"""Elements of all inputs of such a model, about a second to generate."""
_CHOICES = 4
"""The number of samples of a model that compares an input with numbers."""
_PRODUCTS = "Conv ConvInteger ConvTranspose Einsum Gemm GRU LSTM MatMul MatMulInteger QLinearConv QLinearMatMul RNN"
_OTHERS = "AveragePool BatchNormalization Concat InstanceNormalization LayerNormalization MaxPool Split Squeeze"
_BY_SIZES_ALONE = operators("broadcasts").union(_PRODUCTS.split(), _OTHERS.split())
"""Operators for which the values of their operands do not matter to whether they run."""
_STEERING = {**OPERANDS, "If": (0,)}
"""The operands whose elements select sizes of the results, by operator."""


def is_quick(model: ir.Model) -> bool:
    """Return whether a model with sizes is run by ONNX Runtime in a few seconds."""
    shapes = [
        value.shape.numpy() for value in model.graph.inputs if value.shape is not None and value.shape.is_static()
    ]
    return sum(map(math.prod, shapes)) <= _MOST_ELEMENTS and sum(map(estimate, model.graph)) <= _MOST_WORK


def refusal(model: ir.Model, *, every: bool = False) -> OnnxRuntimeError | None:
    """Return why ONNX Runtime does not run a model on generated values; None if it does, or if that is not known.

    Args:
        model: a model with sizes.
        every: whether it must run on all values that the model compares an input with, which select branches.
    """
    if not all(map(can_cross, required_inputs(model))) or not is_quick(model):
        return None
    error = _error(model, model, every)
    if error is not None and error.reason is Reason.OTHER:  # its own inference of fixed sizes may be to blame
        loose = model.clone()
        forget_sizes(loose.graph.inputs)
        error = _error(loose, model, every)
    return error if error is not None and error.reason in (Reason.RUN_FAILED, Reason.OTHER) else None


def _error(model: ir.Model, sized: ir.Model, every: bool) -> OnnxRuntimeError | None:
    """Return why ONNX Runtime does not run a model on values for its sized form; None if it does, or cannot tell."""
    refused: OnnxRuntimeError | None = None
    try:
        reference, specs = Reference(model), samplers.specs(sized)
        chosen = any(spec.may_select for spec in specs)  # the other branch may run
        for sample in samplers.generate(specs, samples=_CHOICES if chosen else 1):
            try:
                reference.run(sample)
            except OnnxRuntimeError as error:
                refused = refused or error
                if every:
                    break
            else:
                if not every:
                    return None
    except OnnxRuntimeError as error:
        return error
    except BridgeError:
        return None
    return refused


def is_by_sizes(error: OnnxRuntimeError, model: ir.Model) -> bool:
    """Return whether a refusal is due to sizes, and not to the elements of inputs."""
    return error.operator in _BY_SIZES_ALONE and not is_steered(error, model)


def is_steered(error: OnnxRuntimeError, model: ir.Model) -> bool:
    """Return whether the elements of inputs select sizes at the node that fails, or before it."""
    scope = Scope(model, model.graph)
    steered: set[ir.Value] = set()
    elements = set(required_inputs(model))  # values whose elements depend on those of inputs
    for node in model.graph:
        operands = set(operands_of(node))
        selecting = {value for index, value in enumerate(node.inputs) if index in _STEERING.get(node.op_type, ())}
        by_data = operands if node.op_type in operators("by data") or steered_outputs(node, scope) else set()
        if not elements.isdisjoint(selecting | by_data) or not steered.isdisjoint(operands):
            steered.update(node.outputs)
        if error.node and node.name == error.node:
            return not steered.isdisjoint(node.outputs)
        if not steered.isdisjoint(node.outputs) or (
            node.op_type not in ("Shape", "Size") and not elements.isdisjoint(operands)
        ):
            elements.update(node.outputs)
    return bool(steered)
