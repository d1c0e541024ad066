"""A model in segments: runs of nodes whose values fit into memory together, each a model of its own.

    x ─ A ─ B ─┊─ C ─ D ─► y         the segment (C, D) in context:     b ─► C ─► D ─►  c, d
                                     its nodes in isolation:            b ─► C ─► c   and   c ─► D ─► d

*In context* a segment takes what the segments before it computed. *In isolation* each of its nodes takes given values,
so that the error of one is not fed to the next.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import onnx_ir as ir

from onnx_bridge.bundle.device import can_feed
from onnx_bridge.core.values import Kind, Value
from onnx_bridge.parity.submodels.cuts import dependents, estimated_bytes, fix_inputs, submodel
from passes.graphs import lineage
from passes.graphs.dependencies import fixed_values
from passes.graphs.randomness import RANDOM
from passes.graphs.replacement import remove_nodes
from passes.graphs.traversal import is_used, operands_of
from passes.operators import is_quantizer
from passes.probing.partition import Partitioning, Side, extract, is_constant, needed

COPIES = 4
"""The copies of a segment's values at a time: of the original, the reference, in context, in isolation."""
_ISOLATED = "/isolated"


@dataclass(frozen=True)
class Segment:
    """Nodes that one side runs together, in topological order, without constants."""

    side: Side
    nodes: tuple[ir.Node, ...]


@dataclass
class SegmentedModel:
    """A model to be cut into segments; it is not changed, and the names of its values are unique."""

    model: ir.Model
    plan: Partitioning
    _values: dict[str, ir.Value] = field(init=False)

    def __post_init__(self) -> None:
        graph = self.model.graph
        self._values = {str(value.name): value for value in (*graph.inputs, *graph.initializers.values())}
        self._values |= {str(output.name): output for node in graph for output in node.outputs if output.name}

    def segments(self, limit: int) -> Iterator[Segment]:
        """Yield the segments, in order; `COPIES` of their values take no more than ``limit`` bytes if possible.

        Values that later segments need count twice: the reference's, and those in context. A single node is never cut,
        nor is a value that MIGraphX does not take.
        """
        for partition in self.plan.partitions:
            start: list[ir.Node] = []
            used = 0
            for index, node in enumerate(partition.nodes):
                needed_bytes = COPIES * sum(map(estimated_bytes, node.outputs))
                if start and used + needed_bytes > limit and self._can_cut(partition.side, partition.nodes[index:]):
                    yield Segment(partition.side, tuple(start))
                    start, used = [], 0
                if not start:
                    used = 2 * sum(map(estimated_bytes, self._alive[node]))
                start.append(node)
                used += needed_bytes
            if start:
                yield Segment(partition.side, tuple(start))

    def outputs(self, nodes: Sequence[ir.Node]) -> list[str]:
        """Return the values of nodes that anything uses, and that can be fetched."""
        values = (value for node in nodes for value in node.outputs if value.name)
        return [
            str(value.name)
            for value in values
            if is_used(value) and (value.type is None or Kind.of(value.type) is not None)
        ]

    def inputs(self, nodes: Sequence[ir.Node]) -> list[str]:
        """Return the values that nodes take from others and from the caller, without constants."""
        inside = {value for node in nodes for value in node.outputs}
        return [name for name in self._used(nodes) if self._values[name] not in inside]

    def last_uses(self) -> dict[str, ir.Node]:
        """Return for each value the last node, in the order of the partitions, that uses it."""
        nodes = (node for partition in self.plan.partitions for node in partition.nodes)
        return {name: node for node in nodes for name in self._used([node])}

    def in_context(self, nodes: Sequence[ir.Node], values: Mapping[str, Value], outputs: Sequence[str]) -> ir.Model:
        """Return the model of consecutive nodes, whose inputs are among ``values``."""
        return submodel(self.model, self.inputs(nodes), outputs, values, self.constant)

    def in_isolation(self, nodes: Sequence[ir.Node], values: Mapping[str, Value], outputs: Sequence[str]) -> ir.Model:
        """Return the model of nodes that each take ``values``; its outputs are in order, their names may differ."""
        part = extract(self.model, self.inputs(nodes), outputs)
        graph = part.graph
        wanted = list(graph.outputs)
        graph.outputs.clear()  # they stay the nodes' own outputs when their users get new inputs
        computed = {str(value.name): value for node in graph for value in node.outputs if value.name}
        for name in self._used(nodes):
            if name in computed:
                old = computed[name]
                old.name = f"{name}{_ISOLATED}"
                while old.name in self._values:
                    old.name += "_"
                given = ir.Value(name=name, type=old.type, shape=old.shape)
                old.replace_all_uses_with(given)
                graph.inputs.append(given)
        graph.outputs.extend(wanted)
        alive = needed(graph)
        remove_nodes(graph, [node for node in reversed(graph) if node not in alive])
        fix_inputs(part, values, self.constant)
        return part

    def source(self, name: str) -> tuple[str, int]:
        """Return the name that a value has in the original, and what was added to it since."""
        return lineage.shift_of(self._values[name]) or (name, 0)

    @cached_property
    def random(self) -> frozenset[str]:
        """The values that depend on random numbers."""
        graph = self.model.graph
        return frozenset(dependents(graph, {node for node in graph if (node.domain, node.op_type) in RANDOM}))

    @cached_property
    def quantized(self) -> dict[str, str]:
        """The tolerance preset of each value that depends on a quantized one: ``int8`` or ``fp8``."""
        graph = self.model.graph
        quantizers = {node for node in graph if is_quantizer(node)}
        fp8 = {node for node in quantizers if (dtype := node.outputs[0].dtype) and dtype.name.startswith("FLOAT8")}
        presets = dict.fromkeys(dependents(graph, quantizers - fp8), "int8")
        return presets | dict.fromkeys(dependents(graph, fp8), "fp8")

    @cached_property
    def constant(self) -> frozenset[str]:
        """The values that depend on shapes and constants alone."""
        return frozenset(str(value.name) for value in fixed_values(self.model.graph))

    def _used(self, nodes: Sequence[ir.Node]) -> list[str]:
        values = dict.fromkeys(value for node in nodes for value in operands_of(node))
        return [str(value.name) for value in values if not _is_constant(value)]

    @cached_property
    def _alive(self) -> dict[ir.Node, list[ir.Value]]:
        """For each node the values that exist before it, and that it or a later node uses."""
        last, before = self.last_uses(), {}
        alive: dict[ir.Value, None] = {}
        for partition in self.plan.partitions:
            for node in partition.nodes:
                before[node] = list(alive)
                for value in node.outputs:
                    if str(value.name) in last:
                        alive[value] = None
                for value in operands_of(node):
                    if last.get(str(value.name)) is node:
                        alive.pop(value, None)
        return before

    def _can_cut(self, side: Side, rest: Sequence[ir.Node]) -> bool:
        alive = self._alive[rest[0]]
        return side is Side.HOST or all(value.name in self.constant or can_feed(value) for value in alive)


def _is_constant(value: ir.Value) -> bool:
    producer = value.producer()
    return value.is_initializer() or (producer is not None and is_constant(producer))
