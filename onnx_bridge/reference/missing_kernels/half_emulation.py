"""Emulation of 16-bit floats for ONNX Runtime's CPU provider: nodes compute in float32 and round their results.

    y = Op(x, …)    →    Cast<bfloat16>(Op(Cast<float>(x), …))

The provider casts to bfloat16 but has almost no kernels for it. float16 it computes in float32 from one Cast of the
model to the next, rounding nothing in between, even without optimizations; the Casts made here it keeps. A good kernel
rounds each result once, to the nearest; any error of a node beyond that is the device's own.

Skips: Cast, nodes with subgraphs (the nodes in these are rewritten), and nodes with the dtype of outputs as attribute.
"""

from __future__ import annotations

from collections.abc import Collection

import onnx_ir as ir

from passes.builders.arithmetic import HALVES
from passes.graphs.scopes import Names, Scope
from passes.graphs.traversal import subgraphs

_ATTRIBUTES = ("dtype", "output_dtype", "to")


def takes(model: ir.Model, dtypes: Collection[ir.DataType]) -> bool:
    """Return whether an input of a node is known to be of one of some dtypes."""
    scope = Scope(model, model.graph)
    return any(_dtype(value, scope) in dtypes for node in scope.nodes() for value in node.inputs)


def emulate_halves(model: ir.Model, dtypes: Collection[ir.DataType] = HALVES) -> ir.Model:
    """Return a model that computes in float32 instead of some dtypes, except for its inputs and outputs.

    It is the model itself if no node takes them, else a copy.
    """
    if not takes(model, dtypes):
        return model
    copy = model.clone()
    scope = Scope(copy, copy.graph)
    names = scope.names
    for graph in scope.graphs():
        for node in list(graph):
            if not any(subgraphs(node)) and not any(name in node.attributes for name in _ATTRIBUTES):
                _widen(node, graph, dtypes, scope, names)
    return copy


def _widen(node: ir.Node, graph: ir.Graph, dtypes: Collection[ir.DataType], scope: Scope, names: Names) -> None:
    known = {index: _dtype(value, scope) for index, value in enumerate(node.inputs)}
    halves = {index: dtype for index, dtype in known.items() if dtype is not None and dtype in dtypes}
    if not halves:
        return
    results = [(value, value.dtype or next(iter(halves.values()))) for value in node.outputs if value.name]
    outputs = [(value, dtype) for value, dtype in results if dtype in dtypes]
    for index in halves:
        value = node.inputs[index]
        assert value is not None
        cast = _cast(value, ir.DataType.FLOAT, names, f"{node.name}/widened_{index}")
        graph.insert_before(node, [cast])
        node.replace_input_with(index, cast.outputs[0])
    for value, dtype in outputs:
        cast = _cast(value, dtype, names, f"{node.name}/rounded")
        graph.insert_after(node, [cast])
        (rounded,) = cast.outputs
        value.replace_all_uses_with(rounded, replace_graph_outputs=True)
        cast.replace_input_with(0, value)
        value.type = ir.TensorType(ir.DataType.FLOAT)
        name, value.name = value.name, names.value(f"{value.name}/wide")
        rounded.name = name


def _cast(value: ir.Value, to: ir.DataType, names: Names, name: str) -> ir.Node:
    cast = ir.node("Cast", [value], {"to": int(to)}, name=names.node(name))
    (result,) = cast.outputs
    result.name, result.type, result.shape = names.value(name), ir.TensorType(to), value.shape
    return cast


def _dtype(value: ir.Value | None, scope: Scope) -> ir.DataType | None:
    return None if value is None else scope.dtype(value) or value.dtype
