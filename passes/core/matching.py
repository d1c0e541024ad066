"""What patterns of several nodes are found with: neighbours within one graph, and constants of one element."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

import onnx_ir as ir

from passes.core.graphs import Scope, ints


@dataclass(frozen=True)
class Surroundings:
    """What is around a node: standard operators, in the same graph.

    A pattern that reached into an outer graph would move work from there to where it may be done many times.

    Attributes:
        scope: where the graph is.
        graph: the node's.
    """

    scope: Scope
    graph: ir.Graph

    @classmethod
    def of(cls, node: ir.Node, scope: Scope) -> Surroundings:
        """Those of a node in a graph."""
        assert isinstance(node.graph, ir.Graph)
        return cls(scope, node.graph)

    def maker(self, value: ir.Value | None, *operators: str) -> ir.Node | None:
        """The node that makes ``value``, if it is one of ``operators``."""
        node = value.producer() if value is not None else None
        return node if node is not None and self._is(node, operators) else None

    def reader(self, value: ir.Value, *operators: str) -> ir.Node | None:
        """The node that uses ``value``, if exactly one of those that do is one of ``operators``."""
        found = {use.node for use in value.uses() if self._is(use.node, operators)}
        return found.pop() if len(found) == 1 else None

    def scalar(self, value: ir.Value | None, like: ir.Value) -> float | None:
        """The number in a constant of one element; None where, by its rank, it could extend the shape of ``like``."""
        tensor = self.scope.constant(value)
        if tensor is None or tensor.size != 1 or not (tensor.dtype.is_floating_point() or tensor.dtype.is_integer()):
            return None
        shape = self.scope.shape(like)
        if len(tensor.shape) > (len(shape) if shape is not None else 0):
            return None
        return float(tensor.numpy().item())

    def between(self, last: ir.Node, ends: Collection[ir.Value]) -> tuple[ir.Node, ...]:
        """The nodes that ``last`` is computed by from ``ends`` and constants, each before those that it uses."""
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

    def _is(self, node: ir.Node, operators: Collection[str]) -> bool:
        standard = node.domain == "" and node.op_type in operators
        return standard and node.graph is self.graph and is_plain(node, self.scope)


def wanted_elsewhere(nodes: Iterable[ir.Node], last: ir.Node) -> ir.Value | None:
    """A value that one of ``nodes`` makes and that others than these and ``last`` use; None where there is none."""
    nodes = list(nodes)
    within = {*nodes, last}
    for node in nodes:
        for value in node.outputs:
            if value.is_graph_output() or any(use.node not in within for use in value.uses()):
                return value
    return None


def is_op(node: ir.Node, *operators: str, domain: str = "") -> bool:
    """Whether a node is one of ``operators`` of ``domain``."""
    return node.domain == domain and node.op_type in operators


def is_redefined(node: ir.Node, scope: Scope) -> bool:
    """Whether a function of the model defines the node's operator, so that its name says nothing about it."""
    return node.op_identifier() in scope.model.functions


def has_references(node: ir.Node) -> bool:
    """Whether the caller of a function supplies some of the node's attributes."""
    return any(attribute.is_ref() for attribute in node.attributes.values())


def is_plain(node: ir.Node, scope: Scope) -> bool:
    """Whether a node is what the standard says: no function of the model has its name, and all attributes are given."""
    return not is_redefined(node, scope) and not has_references(node)


def operand(node: ir.Node, index: int, name: str, scope: Scope) -> list[int] | None:
    """Integers that are an input or, in older opsets, an attribute; None where they are absent or not constant."""
    if name in node.attributes:
        return list(node.attributes.get_ints(name, []))
    return ints(scope.constant(node.inputs[index])) if index < len(node.inputs) else None
