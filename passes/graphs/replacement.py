"""Removal of nodes, and replacement of values by others that are visible by their names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from weakref import WeakKeyDictionary

import onnx_ir as ir

from passes.graphs.scopes import CLAIMED, Scope
from passes.graphs.traversal import subgraphs, with_nested

_name_counts: WeakKeyDictionary[Scope, Counter[str]] = WeakKeyDictionary()


def can_stand_for(new: ir.Value, old: ir.Value, graph: ir.Graph | None, scope: Scope) -> bool:
    """Return whether ``new`` is visible by its name wherever ``old`` is used.

    Values are objects in memory and names in a file, where a subgraph may use a name again. A name that only one value
    has cannot be shadowed; all names that passes make are unique.

    Args:
        new: the replacement; if ``old`` is an output of its graph, ``new`` takes its name.
        graph: a graph in which ``new`` is visible.
    """
    if old.is_graph_output() and graph is not None and _is_within(str(old.name), graph, scope):
        return False
    uses = [*old.uses(), *(new.uses() if old.is_graph_output() else ())]
    if all(use.node.graph is graph for use in uses):
        return True
    names = [new.name, old.name] if old.is_graph_output() else [new.name]
    return all(_is_unique(name, scope) for name in names)


def _is_within(name: str, graph: ir.Graph, scope: Scope) -> bool:
    """Return whether a subgraph has a value of a name, which must then have no meaning around it."""
    if _is_unique(name, scope):
        return False
    return any(name in _names(inner) for node in with_nested(graph) for inner in subgraphs(node))


def is_visible(value: ir.Value, graph: ir.Graph | ir.Function | None, scope: Scope) -> bool:
    """Return whether ``value`` is visible by its name in ``graph``, which is its own graph or a subgraph of it."""
    return value.graph is graph or _is_unique(value.name, scope)


def _is_unique(name: str | None, scope: Scope) -> bool:
    if scope not in _name_counts:
        _name_counts[scope] = Counter(name for graph in scope.graphs() for name in _names(graph))
    return _name_counts[scope][str(name)] < 2


def _names(graph: ir.Graph) -> set[str]:
    values = [*graph.inputs, *graph.initializers.values(), *(value for node in graph for value in node.outputs)]
    return {value.name for value in values if value.name}


def detach_nodes(nodes: Iterable[ir.Node]) -> None:
    """Disconnect nodes, and those of their subgraphs, from their inputs."""
    for node in nodes:
        for index in range(len(node.inputs)):
            node.replace_input_with(index, None)
        for graph in subgraphs(node):
            remove_nodes(graph, list(graph))


def remove_nodes(graph: ir.Graph, nodes: Iterable[ir.Node]) -> None:
    """Remove nodes from a graph, with their subgraphs, of which nothing can be used afterwards."""
    nodes = list(nodes)
    detach_nodes(nodes)
    graph.remove(nodes)


def replace_value(old: ir.Value, new: ir.Value) -> None:
    """Replace ``old`` by ``new``, which has the same contents, in all nodes and graph outputs.

    If ``old`` is a graph output, ``new`` takes its name, for which `can_take_name` must hold. Types and shapes are
    merged.
    """
    if new.type is None:
        new.type = old.type
    if old.shape is not None and not new.is_initializer():
        if CLAIMED in old.meta:
            new.meta.setdefault(CLAIMED, new.shape)
        new.shape = merge_shapes(new.shape, old.shape)
    if old.is_graph_output():
        take_name(new, old)
    old.replace_all_uses_with(new, replace_graph_outputs=True)


def can_take_name(value: ir.Value, graph: ir.Graph | None) -> bool:
    """Return whether ``value`` can become an output of ``graph`` under another name.

    Graph inputs and initializers cannot, since their names are part of the interface; nor values of an outer graph;
    nor those that are outputs already.
    """
    producer = value.producer()
    return producer is not None and producer.graph is graph and not value.is_graph_output()


def take_name(new: ir.Value, old: ir.Value) -> None:
    """Let ``new`` have the name of ``old``, and what is recorded of the value of that name."""
    new.name = old.name
    new.metadata_props.update(old.metadata_props)


def inherit(new: ir.Value, old: ir.Value) -> None:
    """Let ``new`` have the documentation, the metadata and the notes of ``old``."""
    new.doc_string = old.doc_string or new.doc_string
    new.metadata_props.update(old.metadata_props)
    new.meta.update(old.meta)


def merge_shapes(shape: ir.Shape | None, other: ir.Shape) -> ir.Shape:
    """Return ``shape``, with dimensions that only ``other`` knows; ``shape`` itself if their ranks differ."""
    if shape is None:
        return ir.Shape(other)
    if len(shape) != len(other):
        return shape
    return ir.Shape([_better(dim, other_dim) for dim, other_dim in zip(shape, other, strict=True)])


def _better(dim: int | ir.SymbolicDim, other: int | ir.SymbolicDim) -> int | ir.SymbolicDim:
    if isinstance(dim, int):
        return dim
    return other if isinstance(other, int) or dim.value is None else dim
