"""A model in segments: runs of nodes whose values fit into memory together, each a model of its own.

    x ─ A ─ B ─┊─ C ─ D ─► y         the segment (C, D) in its place:   b ─► C ─► D ─►  c, d
                                     its nodes apart:                   b ─► C ─► c   and   c ─► D ─► d

*In its place* a segment takes what the segments before it gave. *Apart*, each of its nodes takes what it is given, so
that the error of one is not fed to the next.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import onnx_ir as ir

from onnx_bridge.core.values import Kind, Value
from onnx_bridge.reference.cuts import can_feed, fix, is_quantizer, size
from passes.analysis import zero_point_shifts
from passes.core import graphs
from passes.target.partition import Plan, Side, extract, is_constant, needed
from passes.target.probes import RANDOM, fixed_values

COPIES = 4
"""How often a segment's values are there at a time: of the original, the reference, in their place, and apart."""
_APART = "/apart"


@dataclass(frozen=True)
class Segment:
    """Nodes that are run together.

    Attributes:
        side: where.
        nodes: in topological order, without constants.
    """

    side: Side
    nodes: tuple[ir.Node, ...]


@dataclass
class Segments:
    """A model to be cut into segments.

    Args:
        model: names of its values are unique; it is not changed.
        plan: its partitions.
    """

    model: ir.Model
    plan: Plan
    _values: dict[str, ir.Value] = field(init=False)

    def __post_init__(self) -> None:
        graph = self.model.graph
        self._values = {str(each.name): each for each in (*graph.inputs, *graph.initializers.values())}
        self._values |= {str(each.name): each for node in graph for each in node.outputs if each.name}

    def cut(self, limit: int) -> Iterator[Segment]:
        """The segments, in order; their values, in `COPIES`, take no more than ``limit`` bytes where that can be.

        What later segments need of earlier ones counts twice: of the reference, and in its place. A node alone is
        never cut, nor is where something would have to be handed over that MIGraphX does not take.
        """
        for partition in self.plan.partitions:
            start: list[ir.Node] = []
            taken = 0
            for index, node in enumerate(partition.nodes):
                room = COPIES * sum(map(size, node.outputs))
                if start and taken + room > limit and self._can_cut(partition.side, partition.nodes[index:]):
                    yield Segment(partition.side, tuple(start))
                    start, taken = [], 0
                if not start:
                    taken = 2 * sum(map(size, self._held(node)))
                start.append(node)
                taken += room
            if start:
                yield Segment(partition.side, tuple(start))

    def made(self, nodes: Sequence[ir.Node]) -> list[str]:
        """The values of nodes that anything uses, and that can be looked at."""
        values = (value for node in nodes for value in node.outputs if value.name)
        return [
            str(value.name)
            for value in values
            if (value.uses() or value.is_graph_output()) and (value.type is None or Kind.of(value.type) is not None)
        ]

    def taken(self, nodes: Sequence[ir.Node]) -> list[str]:
        """The values that nodes take from others and from the caller, without initializers and constant nodes."""
        inside = {value for node in nodes for value in node.outputs}
        return [name for name in self._used(nodes) if self._values[name] not in inside]

    def last_uses(self) -> dict[str, ir.Node]:
        """For each value the last node, in the order of the partitions, that uses it."""
        return {
            name: node for partition in self.plan.partitions for node in partition.nodes for name in self._used([node])
        }

    def in_place(self, nodes: Sequence[ir.Node], values: Mapping[str, Value], outputs: Sequence[str]) -> ir.Model:
        """The model of a segment, or a part of one, that takes the values that it needs of ``values``."""
        part = extract(self.model, self.taken(nodes), outputs)
        fix(part, values, self.constant)
        return part

    def apart(self, nodes: Sequence[ir.Node], values: Mapping[str, Value], outputs: Sequence[str]) -> ir.Model:
        """The model of nodes that each take ``values``; its outputs are in order, their names may be others."""
        part = extract(self.model, self.taken(nodes), outputs)
        graph = part.graph
        wanted = list(graph.outputs)
        graph.outputs.clear()  # which stay what they are, when those that use them get twins
        made = {str(value.name): value for node in graph for value in node.outputs if value.name}
        for name in self._used(nodes):
            if name in made:
                old = made[name]
                old.name = f"{name}{_APART}"
                while old.name in self._values:
                    old.name += "_"
                twin = ir.Value(name=name, type=old.type, shape=old.shape)
                old.replace_all_uses_with(twin)
                graph.inputs.append(twin)
        graph.outputs.extend(wanted)
        alive = needed(graph)
        graphs.remove(graph, [node for node in reversed(graph) if node not in alive])
        fix(part, values, self.constant)
        return part

    def source(self, name: str) -> tuple[str, int]:
        """The name that a value has in the original, and what was added to it since."""
        return zero_point_shifts.relation(self._values[name]) or (name, 0)

    @cached_property
    def random(self) -> frozenset[str]:
        """The values that depend on chance."""
        return frozenset(self._reached({node for node in self.model.graph if (node.domain, node.op_type) in RANDOM}))

    @cached_property
    def quantized(self) -> dict[str, str]:
        """The values that depend on quantized ones, and to what: ``int8`` or ``fp8``."""
        coarse = {node for node in self.model.graph if is_quantizer(node) and _is_float8(node.outputs[0])}
        fine = {node for node in self.model.graph if is_quantizer(node)} - coarse
        return dict.fromkeys(self._reached(fine), "int8") | dict.fromkeys(self._reached(coarse), "fp8")

    def _reached(self, starts: Collection[ir.Node]) -> set[str]:
        found: set[str] = set()
        for node in self.model.graph:
            if node in starts or any(value.name in found for value in _operands(node)):
                found |= {str(value.name) for value in node.outputs}
        return found

    @cached_property
    def constant(self) -> frozenset[str]:
        """The values that depend on shapes and constants alone."""
        return frozenset(str(value.name) for value in fixed_values(self.model.graph))

    def _used(self, nodes: Sequence[ir.Node]) -> list[str]:
        values = dict.fromkeys(value for node in nodes for value in _operands(node))
        return [str(value.name) for value in values if not _is_fixed(value)]

    def _held(self, node: ir.Node) -> list[ir.Value]:
        """The values that are there before a node, and are used by it or later."""
        return self._alive[node]

    @cached_property
    def _alive(self) -> dict[ir.Node, list[ir.Value]]:
        last, found = self.last_uses(), {}
        alive: dict[ir.Value, None] = {}
        for partition in self.plan.partitions:
            for node in partition.nodes:
                found[node] = list(alive)
                for value in node.outputs:
                    if str(value.name) in last:
                        alive[value] = None
                for value in _operands(node):
                    if last.get(str(value.name)) is node:
                        alive.pop(value, None)
        return found

    def _can_cut(self, side: Side, rest: Sequence[ir.Node]) -> bool:
        return side is Side.HOST or all(value.name in self.constant or can_feed(value) for value in self._held(rest[0]))


def _operands(node: ir.Node) -> list[ir.Value]:
    return [value for value in dict.fromkeys((*node.inputs, *graphs.captures(node))) if value is not None]


def _is_fixed(value: ir.Value) -> bool:
    producer = value.producer()
    return value.is_initializer() or (producer is not None and is_constant(producer))


def _is_float8(value: ir.Value) -> bool:
    return value.dtype is not None and value.dtype.name.startswith("FLOAT8")
