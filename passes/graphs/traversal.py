"""Walks through graphs, and through the subgraphs within them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import onnx_ir as ir

_GRAPHS = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)


def is_used(value: ir.Value) -> bool:
    """Return whether a node takes a value, or a graph returns it."""
    return bool(value.uses()) or value.is_graph_output()


def has_subgraphs(node: ir.Node) -> bool:
    """Return whether a node has `subgraphs`; most have none, which this tells faster."""
    for attribute in node.attributes.data.values():  # noqa: SIM110  (the mapping itself goes by way of its keys)
        if attribute.type in _GRAPHS and not attribute.is_ref():
            return True
    return False


def subgraphs(node: ir.Node) -> Iterator[ir.Graph]:
    """Yield the graphs that are attributes of a node, without those nested in them."""
    for attribute in node.attributes.data.values():
        kind = attribute.type
        if kind is ir.AttributeType.GRAPH and not attribute.is_ref():
            yield attribute.as_graph()
        elif kind is ir.AttributeType.GRAPHS and not attribute.is_ref():
            yield from attribute.as_graphs()


def graphs_within(graph: ir.Graph) -> Iterator[ir.Graph]:
    """Yield a graph and all its subgraphs, outer ones first."""
    graphs = [graph]
    for outer in graphs:  # grows meanwhile
        yield outer
        for node in outer:
            if has_subgraphs(node):
                graphs += subgraphs(node)


def with_nested(nodes: Iterable[ir.Node]) -> Iterator[ir.Node]:
    """Yield nodes, each followed by the nodes of its subgraphs."""
    for node in nodes:
        yield node
        if has_subgraphs(node):
            for graph in subgraphs(node):
                yield from with_nested(graph)


def leading_to(values: Iterable[ir.Value], is_given: Callable[[ir.Value], bool] = lambda _: False) -> set[ir.Node]:
    """Return the nodes that compute values, and their operands, from those that are given."""
    leading: set[ir.Node] = set()
    pending = [value.producer() for value in values]
    while pending:
        node = pending.pop()
        if node is not None and node not in leading:
            leading.add(node)
            pending += [value.producer() for value in operands_of(node) if not is_given(value)]
    return leading


def ancestors_of_last(nodes: Sequence[ir.Node]) -> list[ir.Node]:
    """Return the last of some nodes, and the nodes among them that it depends on, in their order."""
    inside, ancestors, pending = set(nodes), set(), list(nodes[-1:])
    while pending:
        node = pending.pop()
        ancestors.add(node)
        pending += [before for before in node.predecessors() if before in inside and before not in ancestors]
    return [node for node in nodes if node in ancestors]


def captures(node: ir.Node) -> dict[ir.Value, None]:
    """Return the values of outer graphs that a node's subgraphs use, at any depth, in order."""
    inner: set[ir.Graph | None] = set()
    used: dict[ir.Value, None] = {}
    pending = list(subgraphs(node))
    while pending:
        graph = pending.pop()
        inner.add(graph)
        for nested in graph:
            used.update(dict.fromkeys(value for value in nested.inputs if value is not None))
            pending.extend(subgraphs(nested))
    return {value: None for value in used if value.graph not in inner}


def operands_of(node: ir.Node) -> dict[ir.Value, None]:
    """Return the inputs of a node and the values that its subgraphs capture, each once, in order."""
    values = dict.fromkeys([value for value in node.inputs if value is not None])
    if has_subgraphs(node):
        values |= captures(node)
    return values
