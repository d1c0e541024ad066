"""Give every value and every node a unique name.

    Loop<body = (i, x) { … }>(n, c, x)  →  Loop<body = (i, loop/x) { … }>(n, c, x)

Subgraphs may reuse names of an outer graph or of another subgraph. MIGraphX has one table for all: it rejects a
parameter whose name an earlier graph has ("existing in parent graph!"), and of two values with one name, uses the
first. The first value keeps its name, outer graphs before inner ones; all others are named after the node of their
graph. Inputs and outputs of the model keep their names; functions have their own name space.

Skips: an initializer of a subgraph with the name of an outer value: ONNX does not define which of the two a node uses,
and ONNX Runtime is not consistent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import onnx_ir as ir

from passes.graphs import lineage
from passes.graphs.scopes import ANNOTATION, Scope, name_nodes, scopes
from passes.graphs.traversal import subgraphs
from passes.rewriting.base import Context, Pass, Result, Rewrite, Skip


class UnshadowNames(Pass):
    """Give every value and every node a unique name."""

    name = "unshadow-names"
    declares = False

    def run(self, model: ir.Model, context: Context) -> Result:
        """Rename in the main graph with its subgraphs, then in each function."""
        result = Result(model)
        for scope in map(name_nodes, scopes(model)):
            _rename_values(scope, context, result)
            _rename_nodes(scope, context, result)
        return result


def _rename_values(scope: Scope, context: Context, result: Result) -> None:
    owners = {graph: node for node in scope.nodes() for graph in subgraphs(node)}
    names: dict[ir.Graph, dict[str, ir.Value]] = {}
    clashes: list[tuple[ir.Value, ir.Graph]] = []
    taken: set[str] = set()
    for graph in scope.graphs():
        own = names[graph] = {}
        for value in dict.fromkeys(_values(graph)):
            name = value.name
            if name and name in taken:
                clashes.append((value, graph))
            elif name:
                taken.add(name)
            if name:
                own.setdefault(name, value)
    if not clashes:
        return
    annotations = list(_annotations(names, owners))
    promised = {*scope.graph.inputs, *scope.graph.outputs}
    for value, graph in clashes:
        owner, name = owners.get(graph), str(value.name)
        label = (owner.name or "") if owner is not None else ""
        if value in promised:
            result.skips.append(Skip(f"{name} is the name of an input and of an output of the model"))
        elif value.is_initializer() and any(name in names[outer] for outer in _outside(graph, owners)):
            result.skips.append(Skip(f"{name} may mean its initializer or the value outside", label))
        elif context.budget.take():
            value.name = scope.names.value(f"{label}/{name}" if label else name)
            node = value.producer() or owner
            result.rewrites.append(Rewrite((node.name or "",) if node else (), note=f"{name} is called {value.name}"))
    for annotation, key, value in annotations:
        annotation[key] = str(value.name)


def _rename_nodes(scope: Scope, context: Context, result: Result) -> None:
    taken: set[str] = set()
    for graph in scope.graphs():
        for node in graph:
            name = str(node.name)
            if name in taken and context.budget.take():
                node.metadata_props[lineage.ORIGIN] = lineage.common_origin([node])
                node.name = scope.names.node(name)
                result.rewrites.append(Rewrite((name,), (node.name,)))
            taken.add(name)


def _values(graph: ir.Graph) -> Iterator[ir.Value]:
    """Yield the values of a graph, those whose names must be kept first."""
    yield from graph.inputs
    yield from (value for value in graph.outputs if value.graph is graph)
    yield from graph.initializers.values()
    for node in graph:
        yield from node.outputs


def _outside(graph: ir.Graph, owners: Mapping[ir.Graph, ir.Node]) -> Iterator[ir.Graph]:
    """Yield the outer graphs of a graph, from the inside out."""
    while graph in owners:
        outer = owners[graph].graph
        assert outer is not None
        yield outer
        graph = outer


def _annotations(
    names: Mapping[ir.Graph, Mapping[str, ir.Value]], owners: Mapping[ir.Graph, ir.Node]
) -> Iterator[tuple[dict[str, str], str, ir.Value]]:
    """Yield the names in quantization annotations: the annotation, its key, and the value."""
    for graph, own in names.items():
        for value in dict.fromkeys(_values(graph)):
            annotation: dict[str, str] = value.meta.get(ANNOTATION) or {}
            for key, name in annotation.items():
                around = [own, *(names[outer] for outer in _outside(graph, owners))]
                named = next((table[name] for table in around if name in table), None)
                if named is not None:
                    yield annotation, key, named
