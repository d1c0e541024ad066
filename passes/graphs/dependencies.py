"""The dependencies of nodes: constants, the nodes that compute constants (their *constant cone*), and inputs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from graphlib import TopologicalSorter

import onnx_ir as ir

from passes.graphs.randomness import RANDOM, is_random
from passes.graphs.scopes import Scope
from passes.graphs.traversal import has_subgraphs, operands_of

_CONE_ELEMENTS = 256
"""Computed constants with more elements than this are not followed: they become inputs."""
_CONE_NODES, _FULL_CONE_NODES = 64, 4096
"""The number of nodes that are searched for constants, by default and in full."""


_varying: ContextVar[dict[ir.Value, bool] | None] = ContextVar("varying", default=None)


@contextmanager
def unchanged_graphs() -> Iterator[None]:
    """Find out only once which values vary; no graph changes within the block."""
    token = _varying.set({} if _varying.get() is None else _varying.get())
    try:
        yield
    finally:
        _varying.reset(token)


class Dependencies:
    """The dependencies of some nodes.

    Attributes:
        constants: tensors by value.
        cone: nodes that compute constants.
        inputs: all other values, in order.
        full: whether constants of any size were followed.
        cut_off: whether a value that may be constant became an input.
    """

    def __init__(self, nodes: Sequence[ir.Node], scope: Scope, *, full: bool) -> None:
        self.nodes, self.scope, self.full = nodes, scope, full
        self.constants: dict[ir.Value, ir.TensorProtocol] = {}
        self.cone: dict[ir.Node, None] = {}
        self.inputs: dict[ir.Value, None] = {}
        self.cut_off = False
        self._within = set(nodes)
        self._proven: set[ir.Value] = set()
        self._nodes_left = _CONE_NODES if not full else _FULL_CONE_NODES
        for node in nodes:
            for value in operands_of(node):
                self._add(value)

    def ordered(self) -> Iterable[ir.Node]:
        """Return the cone and the nodes, in topological order; a cone may use the shapes of outputs of the nodes."""
        if not self.cone:
            return self.nodes
        chosen = {*self.cone, *self.nodes}
        producers = {
            node: [producer for value in operands_of(node) if (producer := value.producer()) in chosen]
            for node in (*self.cone, *self.nodes)
        }
        return TopologicalSorter(producers).static_order()

    def _add(self, value: ir.Value) -> None:
        """Classify a value, and what it is computed from if it is constant."""
        pending = [value]
        while pending:
            value = pending.pop()
            if value.producer() in self._within or value in self.constants or value in self.inputs:
                continue
            tensor = self._tensor(value)
            if tensor is not None:
                self.constants[value] = tensor
            elif self._is_constant(value):
                node = value.producer()
                if node is not None and node not in self.cone:
                    self.cone[node] = None
                    pending.extend(operands_of(node))
            else:
                self.inputs[value] = None

    def _tensor(self, value: ir.Value) -> ir.TensorProtocol | None:
        tensor = self.scope.constant(value)
        if tensor is None and value.producer() is None and not value.is_graph_input() and value.graph is None:
            return value.const_value  # of a proposal, which is in no graph yet
        return tensor

    def _is_constant(self, value: ir.Value) -> bool:
        """Return whether a value that no tensor is known for is computed from constants and fixed shapes alone."""
        known = _varying.get()
        if self._varies(value, {} if known is None else known):
            return False
        pending, seen = [value], {value}
        while pending:
            current = pending.pop()
            if current in self._proven or self._tensor(current) is not None:
                continue
            needed = self._needed(current)
            if needed is None:
                return False
            pending.extend(operand for operand in needed if operand not in seen)
            seen.update(needed)
        self._proven |= seen
        return True

    def _varies(self, value: ir.Value, known: dict[ir.Value, bool]) -> bool:
        """Return whether a value depends on inputs of the graph, or on random numbers; ``known`` is added to."""
        pending = [value]
        while pending:
            current = pending[-1]
            if current not in known:
                operands = [] if self._tensor(current) is not None else self._operands(current)
                known[current] = operands is None or any(known.get(operand, False) for operand in operands)
                new = [] if known[current] else [operand for operand in operands or () if operand not in known]
                if new:
                    del known[current]
                    pending += new
                    continue
            pending.pop()
        return known[value]

    def _needed(self, value: ir.Value) -> list[ir.Value] | None:
        """Return what must be constant for a value to be constant in the probe; None if it cannot or is cut off."""
        operands = self._operands(value) if value.producer() not in self._within else None
        if not operands:
            return operands
        self._nodes_left -= 1
        shape = self.scope.shape(value)
        large = shape is not None and shape.is_static() and math.prod(shape.numpy()) > _CONE_ELEMENTS
        if self._nodes_left < 0 or (large and not self.full):
            self.cut_off = True
            return None
        return operands

    def _operands(self, value: ir.Value) -> list[ir.Value] | None:
        """Return what must be constant for a value to be constant; None if it cannot be."""
        node = value.producer()
        if node is None or is_random(node, self.scope):
            return None
        if node.domain == "" and node.op_type in ("Shape", "Size"):
            shape = self.scope.shape(node.inputs[0])
            return [] if shape is not None and shape.is_static() else None
        if has_subgraphs(node) or not node.inputs:
            return None
        return [operand for operand in node.inputs if operand is not None]


def fixed_values(graph: ir.Graph) -> set[ir.Value]:
    """Return the outputs of a graph's nodes that depend on shapes and constants only."""
    fixed: set[ir.Value] = set()
    for node in graph:
        reads_shape = node.domain == "" and node.op_type in ("Shape", "Size")
        known = all(value in fixed or value.is_initializer() for value in operands_of(node))
        if reads_shape or (known and (node.domain, node.op_type) not in RANDOM):
            fixed.update(node.outputs)
    return fixed
