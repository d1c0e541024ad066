"""Merge initializers that are bitwise equal.

    w1 = w2 (dtype, shape, bytes)  →  whatever uses w2 uses w1

In a subgraph, an equal initializer of an outer graph is used. Weights are read in place, and only as far as is needed
to tell them apart.

Not merged: initializers that are inputs (a caller may override them) or outputs of a graph, and those with a
quantization annotation, or named by one. Skips: an initializer that a subgraph shadows.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from passes.graphs.replacement import can_stand_for
from passes.graphs.scopes import ANNOTATION, Scope, values_of
from passes.graphs.tensors import TensorKey, dtype_and_shape
from passes.graphs.traversal import subgraphs
from passes.rewriting.base import Context, Pass, Result, Rewrite, Skip


class ShareConstants(Pass):
    """Merge initializers that are bitwise equal."""

    name = "share-constants"
    declares = False

    def run(self, model: ir.Model, context: Context) -> Result:
        """Share the initializers of the main graph and its subgraphs; functions have none."""
        result = Result(model)
        scope = Scope(model, model.graph)
        outer = {graph: node.graph for node in scope.nodes() for graph in subgraphs(node)}
        for equals in _groups(scope):
            kept: list[ir.Value] = []
            for value in equals:
                around = set(_around(value.graph, outer))
                other = next((candidate for candidate in kept if candidate.graph in around), None)
                if other is None:
                    kept.append(value)
                elif not can_stand_for(other, value, other.graph, scope):
                    result.skips.append(Skip(f"{value.name} equals {other.name}, whose name other values have as well"))
                elif not context.budget.take():
                    return result
                else:
                    value.replace_all_uses_with(other)
                    scope.drop_constant(value)
                    result.rewrites.append(Rewrite((), note=f"{value.name} is {other.name}"))
        return result


def _groups(scope: Scope) -> Iterator[list[ir.Value]]:
    """Yield initializers with equal contents, those of outer graphs first."""
    annotated = _annotated(scope)
    kinds: dict[object, list[tuple[ir.Value, ir.TensorProtocol]]] = {}
    for graph in scope.graphs():
        for value in graph.initializers.values():
            tensor = value.const_value
            if tensor is not None and _is_free(value, scope) and value.name not in annotated:
                kinds.setdefault(dtype_and_shape(tensor), []).append((value, tensor))
    for members in kinds.values():
        if len(members) > 1:
            groups: dict[TensorKey, list[ir.Value]] = {}
            for value, tensor in members:
                groups.setdefault(TensorKey(tensor), []).append(value)
            yield from (group for group in groups.values() if len(group) > 1)


def _is_free(value: ir.Value, scope: Scope) -> bool:
    if not scope.is_parameter(value) or value.is_graph_output():
        return False
    return not value.is_graph_input() or value.graph is scope.graph  # the inputs of a subgraph are set by its node


def _annotated(scope: Scope) -> set[str]:
    """Return the names of all values that have, or are named by, a quantization annotation."""
    names: set[str] = set()
    for value in values_of(scope.model):
        annotation: dict[str, str] | None = value.meta.get(ANNOTATION)
        if annotation:
            names.update(annotation.values(), [str(value.name)])
    return names


def _around(graph: ir.Graph | None, outer: dict[ir.Graph, ir.Graph | None]) -> Iterator[ir.Graph]:
    """Yield a graph and its outer graphs."""
    while graph is not None:
        yield graph
        graph = outer.get(graph)
