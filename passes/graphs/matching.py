"""Helpers to find and compare nodes: operators with their domain, neighbours in one graph, constant operands.

A fusion that reached into an outer graph would move work from there to where it may run many times, so neighbours are
nodes of the same graph only.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator

import onnx_ir as ir

from passes.graphs.scopes import Scope
from passes.graphs.tensors import ints

Graph = ir.Graph | ir.Function | ir.GraphView | None


def is_op(node: ir.Node, *operators: str, domain: str = "") -> bool:
    """Return whether a node is one of ``operators`` of ``domain``."""
    return node.domain == domain and node.op_type in operators


def is_redefined(node: ir.Node, scope: Scope) -> bool:
    """Return whether a function of the model defines the node's operator, so that its name says nothing about it."""
    return node.op_identifier() in scope.model.functions


def has_references(node: ir.Node) -> bool:
    """Return whether the caller of a function supplies some of the node's attributes."""
    return any(attribute.is_ref() for attribute in node.attributes.values())


def is_plain(node: ir.Node, scope: Scope) -> bool:
    """Return whether a node is what the standard says: no function has its name, and all attributes are given."""
    return not is_redefined(node, scope) and not has_references(node)


def producer(value: ir.Value | None, graph: Graph, scope: Scope, *operators: str, domain: str = "") -> ir.Node | None:
    """Return the node that computes ``value``, if it is in ``graph``, plain, and one of ``operators``."""
    node = value.producer() if value is not None else None
    if node is None or node.graph is not graph or not is_op(node, *operators, domain=domain):
        return None
    return node if is_plain(node, scope) else None


def consumer(value: ir.Value, scope: Scope, *operators: str) -> ir.Node | None:
    """Return the node of the value's graph that uses ``value``, if exactly one is one of ``operators``."""
    consumers = {use.node for use in value.uses() if is_op(use.node, *operators)}
    consumers = {node for node in consumers if node.graph is value.graph and is_plain(node, scope)}
    return consumers.pop() if len(consumers) == 1 else None


def sole_consumer(value: ir.Value, scope: Scope, *operators: str) -> ir.Node | None:
    """Return the `consumer` of ``value``, if there is no other use of it."""
    return consumer(value, scope, *operators) if len(value.uses()) == 1 and not value.is_graph_output() else None


def origin(value: ir.Value | None, through: Callable[[ir.Node], bool]) -> ir.Node | None:
    """Return the node that a value comes from, behind those that it passes ``through`` by their first inputs."""
    node = value.producer() if value is not None else None
    while node is not None and through(node):
        value = node.inputs[0] if node.inputs else None
        node = value.producer() if value is not None else None
    return node


def takers(value: ir.Value, through: Callable[[ir.Node], bool]) -> Iterator[tuple[ir.Value, ir.Node | None]]:
    """Yield what takes a value, itself or behind nodes that it passes ``through``.

    Yields:
        The value as it is taken, and the node that takes it; None for a graph output, and if nothing takes it.
    """
    pending, seen = [value], {value}
    while pending:
        value = pending.pop()
        if value.is_graph_output() or not value.uses():
            yield value, None
        for node in value.consumers():
            if through(node):
                pending.extend(output for output in node.outputs if output not in seen)
                seen.update(node.outputs)
            else:
                yield value, node


def nodes_between(last: ir.Node, ends: Collection[ir.Value]) -> tuple[ir.Node, ...]:
    """Return the nodes that compute the inputs of ``last`` from ``ends`` and constants, users first."""
    done: dict[ir.Node, None] = {}
    begun: set[ir.Node] = set()
    pending = [(last, False)]
    while pending:
        node, finished = pending.pop()
        if finished:
            done[node] = None
        elif node not in begun:
            begun.add(node)
            pending.append((node, True))
            for value in node.inputs:
                before = value.producer() if value is not None and value not in ends else None
                if before is not None and before.graph is last.graph and before.inputs:
                    pending.append((before, False))
    return tuple(node for node in reversed(done) if node is not last)


def used_elsewhere(nodes: Iterable[ir.Node], last: ir.Node) -> ir.Value | None:
    """Return an output of one of ``nodes`` that other nodes use; otherwise None."""
    nodes = list(nodes)
    within = {*nodes, last}
    for node in nodes:
        for value in node.outputs:
            if value.is_graph_output() or any(use.node not in within for use in value.uses()):
                return value
    return None


def scalar(value: ir.Value | None, like: ir.Value, scope: Scope) -> float | None:
    """Return the number in a constant of one element; None if its rank could extend the shape of ``like``."""
    tensor = scope.constant(value)
    if tensor is None or tensor.size != 1 or not (tensor.dtype.is_floating_point() or tensor.dtype.is_integer()):
        return None
    shape = scope.shape(like)
    return float(tensor.numpy().item()) if len(tensor.shape) <= (len(shape) if shape is not None else 0) else None


def operand(node: ir.Node, index: int, name: str, scope: Scope) -> list[int] | None:
    """Return integers that are an input or, in older opsets, an attribute; None if absent or not constant."""
    if name in node.attributes:
        return list(node.attributes.get_ints(name, []))
    return ints(scope.constant(node.inputs[index])) if index < len(node.inputs) else None
