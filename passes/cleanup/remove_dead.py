"""Remove what does not contribute to the outputs of the model.

    nodes none of whose outputs is used, initializers, functions and opset imports
    y, m = MaxPool(x)  →  y = MaxPool(x)        where m, an optional last output, is not used

Inputs and outputs of graphs are kept. So are unused outputs of BatchNormalization: before opset 14 their number says
whether it is in training mode; and those of an Attention that is given a past, without which ONNX Runtime rejects it.

Without its indices, ONNX Runtime's MaxPool is another kernel. It may return another one of −0 and +0, and has another
maximum of windows with NaN or with −∞ alone.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from passes.core.schemas import Option, schema_of
from passes.graphs.limits import called_functions
from passes.graphs.replacement import remove_nodes
from passes.graphs.scopes import Scope, name_nodes, scopes
from passes.graphs.traversal import is_used, subgraphs
from passes.rewriting.base import Context, Pass, Result, Rewrite

_PAST = 4
"""The first input of an Attention that belongs to its past."""


class RemoveDead(Pass):
    """Remove unused nodes, initializers, functions and opset imports."""

    name = "remove-dead"
    declares = False

    def run(self, model: ir.Model, context: Context) -> Result:
        """Remove in reverse topological order, then what is unused because of that."""
        return Result(model, list(_removals(model, context)))


def _removals(model: ir.Model, context: Context) -> Iterator[Rewrite]:
    take = context.budget.take
    for scope in map(name_nodes, scopes(model)):
        yield from _nodes(scope, scope.graph, context)
        for graph in list(scope.graphs()):
            for value in list(graph.initializers.values()):
                unused = scope.is_parameter(value) and not is_used(value)
                if unused and take() and scope.drop_constant(value):
                    yield Rewrite((), note=f"initializer {value.name}")
    used = called_functions(model.graph, model)
    for identifier in [unused for unused in model.functions if unused not in used]:
        if take():
            del model.functions[identifier]
            yield Rewrite((), note=f"function {'::'.join(filter(None, identifier))}")
    for scope in scopes(model):
        imports = scope.graph.opset_imports
        needed = {"", "ai.onnx", *(node.domain for node in scope.nodes())}
        if scope.function is None:
            needed.update(domain for function in model.functions.values() for domain in function.opset_imports)
        for domain in [unused for unused in imports if unused not in needed]:
            if take():
                del imports[domain]
                yield Rewrite((), note=f"opset import {domain}")


def _nodes(scope: Scope, graph: ir.Graph, context: Context) -> Iterator[Rewrite]:
    for node in reversed(graph):
        if not any(map(_used, node.outputs)):
            if context.budget.take():
                remove_nodes(graph, [node])
                yield Rewrite((node.name or "",))
            continue
        kept = _needed_outputs(node, scope)
        if kept < len(node.outputs) and context.budget.take():
            node.resize_outputs(kept)
            yield Rewrite((node.name or "",), (node.name or "",), note="unused last outputs")
        for subgraph in subgraphs(node):
            yield from _nodes(scope, subgraph, context)


def _used(value: ir.Value) -> bool:
    return bool(value.uses()) or value.is_graph_output()


def _needed_outputs(node: ir.Node, scope: Scope) -> int:
    """Return the number of outputs that a node needs: up to the last one that is used or required."""
    count = len(node.outputs)
    if count == 1 or _used(node.outputs[-1]) or node.op_type == "BatchNormalization":
        return count
    if node.op_type == "Attention" and any(node.inputs[_PAST:]):
        return count
    if node.domain not in ("", "ai.onnx.ml") or node.op_identifier() in scope.model.functions:
        return count
    schema = schema_of(node.op_type, scope.opset(node.domain), node.domain)
    outputs = [] if schema is None else schema.outputs
    while count <= len(outputs) and outputs[count - 1].option == Option.Optional and not _used(node.outputs[count - 1]):
        count -= 1
    return count
