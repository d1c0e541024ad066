"""Whether a value is visible by its name: a subgraph may shadow it with a value of its own."""

from __future__ import annotations

from collections import Counter
from weakref import WeakKeyDictionary

import onnx_ir as ir

from passes.graphs import graphs
from passes.graphs.graphs import Scope

_name_counts: WeakKeyDictionary[Scope, Counter[str]] = WeakKeyDictionary()


def can_stand_for(new: ir.Value, old: ir.Value, graph: ir.Graph | None, scope: Scope) -> bool:
    """Whether ``new`` is visible by its name wherever ``old`` is used.

    Values are objects in memory and names in a file, where a subgraph may use a name again. A name that only one value
    has cannot be shadowed; all names that passes make are unique.

    Args:
        new: the replacement; if ``old`` is an output of its graph, ``new`` takes its name.
        old: the value to be replaced.
        graph: a graph in which ``new`` is visible.
        scope: the scope of both.
    """
    if old.is_graph_output() and graph is not None and _is_within(str(old.name), graph, scope):
        return False
    uses = [*old.uses(), *(new.uses() if old.is_graph_output() else ())]
    if all(use.node.graph is graph for use in uses):
        return True
    names = [new.name, old.name] if old.is_graph_output() else [new.name]
    return all(_is_unique(name, scope) for name in names)


def _is_within(name: str, graph: ir.Graph, scope: Scope) -> bool:
    """Whether a subgraph has a value of a name, which must then have no meaning around it."""
    if _is_unique(name, scope):
        return False
    return any(name in _names(each) for node in graphs.with_nested(graph) for each in graphs.subgraphs(node))


def is_visible(value: ir.Value, graph: ir.Graph | ir.Function | None, scope: Scope) -> bool:
    """Whether ``value`` is visible by its name in ``graph``, which is its own graph or a subgraph of it."""
    return value.graph is graph or _is_unique(value.name, scope)


def _is_unique(name: str | None, scope: Scope) -> bool:
    if scope not in _name_counts:
        _name_counts[scope] = Counter(name for each in scope.graphs() for name in _names(each))
    return _name_counts[scope][str(name)] < 2


def _names(graph: ir.Graph) -> set[str]:
    values = [*graph.inputs, *graph.initializers.values(), *(value for node in graph for value in node.outputs)]
    return {value.name for value in values if value.name}
