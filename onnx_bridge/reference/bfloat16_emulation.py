"""Emulation of bfloat16 for ONNX Runtime's CPU provider: nodes compute in float32 and round their results.

    y = Op(x, …)    →    Cast<bfloat16>(Op(Cast<float>(x), …))

The provider casts to bfloat16 but has almost no kernels for it. A good bfloat16 kernel rounds each result once, to the
nearest; any error of a node beyond that is the device's own.

Skips: Cast, nodes with subgraphs (the nodes in these are rewritten), and nodes with the dtype of outputs as attribute.
"""

from __future__ import annotations

import onnx_ir as ir

from passes.graphs.scopes import Names, Scope
from passes.graphs.traversal import subgraphs

_ATTRIBUTES = ("dtype", "output_dtype", "to")


def has_bfloat16(model: ir.Model) -> bool:
    """Return whether an input of a node is known to be bfloat16."""
    scope = Scope(model, model.graph)
    return any(_is_bfloat16(value, scope) for node in scope.nodes() for value in node.inputs)


def emulate_bfloat16(model: ir.Model) -> ir.Model:
    """Return a copy of a model that computes in float32 instead of bfloat16, except for its inputs and outputs."""
    copy = model.clone()
    scope = Scope(copy, copy.graph)
    names = scope.names
    for graph in scope.graphs():
        for node in list(graph):
            if not any(subgraphs(node)) and not any(name in node.attributes for name in _ATTRIBUTES):
                _widen(node, graph, scope, names)
    return copy


def _widen(node: ir.Node, graph: ir.Graph, scope: Scope, names: Names) -> None:
    indices = [index for index, value in enumerate(node.inputs) if _is_bfloat16(value, scope)]
    if not indices:
        return
    outputs = [value for value in node.outputs if value.name and value.dtype in (ir.DataType.BFLOAT16, None)]
    for index in indices:
        value = node.inputs[index]
        assert value is not None
        cast = _cast(value, ir.DataType.FLOAT, names, f"{node.name}/widened_{index}")
        graph.insert_before(node, [cast])
        node.replace_input_with(index, cast.outputs[0])
    for value in outputs:
        cast = _cast(value, ir.DataType.BFLOAT16, names, f"{node.name}/rounded")
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


def _is_bfloat16(value: ir.Value | None, scope: Scope) -> bool:
    return value is not None and (scope.dtype(value) or value.dtype) == ir.DataType.BFLOAT16
