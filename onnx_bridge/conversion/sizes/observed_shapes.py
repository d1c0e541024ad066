"""Shapes that inference does not find, taken from runs of the reference.

Neither ONNX nor ONNX Runtime infers the results of some operators outside of ONNX's main domain (CDist, the operators
of ``ai.onnx.ml``). The reference runs on two generated samples, and shows them. A size that differs between the samples
is unknown. Operators are left out if sizes that inference does not find depend on elements, as those of ONNX's main
domain do: the samples may have the same size, and other inputs another one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from onnx_bridge.conversion.sizes.refusals import is_quick
from onnx_bridge.core.errors import InputError
from onnx_bridge.reference.reference import Reference
from onnx_bridge.samples import inputs as samplers
from passes.graphs.scopes import Scope, required_inputs
from passes.isolation.failure import NativeFailure
from passes.isolation.limits import at_most, limited
from passes.probing.partition import can_cross, extract
from passes.rewriting.base import Context
from passes.shapes.declarations import contradiction, settle, unproven
from passes.shapes.inference import infer
from passes.shapes.steered_sizes import may_be_steered

_SECONDS, _MEMORY = 30.0, 4 << 30
"""The limits of loading it and of each run: a loop may have no end."""


def observe_shapes(model: ir.Model, context: Context) -> None:
    """Set the shapes in a model that inference does not find, if all inputs have fixed shapes; note contradictions."""
    required = required_inputs(model)
    if not all(can_cross(value) or (value.dtype == ir.DataType.STRING and _is_static(value)) for value in required):
        return
    scope = Scope(model, model.graph)
    wanted = [value for value in unproven(model) if not may_be_steered(_producer(value), scope)]
    if not wanted or not is_quick(model):
        return
    observed = _observed(model, required, wanted)
    for value in wanted:  # in topological order: a known shape may tell the inputs of the next node
        inputs = [operand for operand in _producer(value).inputs if operand is not None]
        if value not in observed or any(scope.static_shape(tensor) is None for tensor in inputs):
            continue
        reason = contradiction(value, observed[value])
        if reason is not None:
            context.contradictions[str(value.name)] = reason
        value.type, value.shape = observed[value]
        settle(model, context)
        infer(model)


def _is_static(value: ir.Value) -> bool:
    return value.shape is not None and value.shape.is_static()


def _producer(value: ir.Value) -> ir.Node:
    node = value.producer()
    assert node is not None
    return node


def _observed(
    model: ir.Model, required: Sequence[ir.Value], wanted: Sequence[ir.Value]
) -> dict[ir.Value, tuple[ir.TypeProtocol, ir.Shape]]:
    """Return the types and shapes of values in two runs; nothing if ONNX Runtime does not run the model in time."""
    names = [[str(value.name) for value in values] for values in (required, wanted)]
    try:
        with limited(at_most(_SECONDS, _MEMORY)):
            reference = Reference(extract(model, *names))
            runs = [reference.run(sample) for sample in samplers.generate(model, samples=2)]
    except (InputError, NativeFailure):
        return {}
    types: dict[ir.Value, tuple[ir.TypeProtocol, ir.Shape]] = {}
    for value in wanted:
        first, second = (run[str(value.name)] for run in runs)
        if not isinstance(first, np.ndarray) or not isinstance(second, np.ndarray):
            continue
        if first.ndim == second.ndim and first.dtype != object:
            sizes = [size if size == again else None for size, again in zip(first.shape, second.shape, strict=True)]
            types[value] = ir.TensorType(ir.DataType.from_numpy(first.dtype)), ir.Shape(sizes)
    return types
