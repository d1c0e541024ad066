"""Cutting a model: how large the values at a cut are, and the submodel between two cuts.

A value that depends on shapes and constants alone becomes a constant of the submodel, which is what a runtime makes of
it in the whole model.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from onnx_bridge.core.values import Value
from passes.graphs.traversal import operands_of
from passes.probing.partition import extract


def estimated_bytes(value: ir.Value) -> int:
    """Return the bytes that a value takes; unknown sizes count as 1."""
    if value.dtype is None or value.dtype in (ir.DataType.UNDEFINED, ir.DataType.STRING) or value.shape is None:
        return 8
    sizes = [dim if isinstance(dim, int) else 1 for dim in value.shape]
    return math.ceil(math.prod(sizes) * value.dtype.bitwidth / 8)


def dependents(nodes: Iterable[ir.Node], sources: Collection[ir.Node]) -> set[str]:
    """Return the names of the outputs of ``nodes``, in topological order, that depend on ``sources`` among them."""
    values: set[ir.Value] = set()
    for node in nodes:
        if node in sources or any(value in values for value in operands_of(node)):
            values.update(node.outputs)
    return {str(value.name) for value in values}


def submodel(
    model: ir.Model,
    inputs: Sequence[str],
    outputs: Iterable[str],
    values: Mapping[str, Value],
    constant: Collection[str],
) -> ir.Model:
    """Return the submodel that computes some values of a model from others.

    Args:
        model: the model, which is not changed.
        inputs: the names of values of the main graph to compute from.
        outputs: the names of values of the main graph to compute.
        constant: the names of the values that depend on shapes and constants alone.
    """
    part = extract(model, inputs, outputs)
    fix_inputs(part, values, constant)
    return part


def fix_inputs(model: ir.Model, values: Mapping[str, Value], constant: Collection[str]) -> None:
    """Give a submodel's inputs the types and shapes of their arrays, in place, and make ``constant`` ones initializers.

    Sequences, optionals and strings keep the types that they have.
    """
    graph = model.graph
    for value in list(graph.inputs):
        name = str(value.name)
        array = values[name]
        if not isinstance(array, np.ndarray) or array.dtype.kind in "OUST":
            continue
        value.type = ir.TensorType(ir.DataType.from_numpy(array.dtype))
        value.shape = ir.Shape(array.shape)
        if name in constant:
            graph.inputs.remove(value)
            value.const_value = ir.Tensor(array, name=name)
            graph.initializers.add(value)
