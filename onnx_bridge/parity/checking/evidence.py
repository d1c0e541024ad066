"""The evidence behind a check's verdict: all outputs, and the graphs before and after cleaning.

It is not part of the report's JSON, and takes memory: a check keeps it only if a page or a file is to be written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir

from onnx_bridge.core.values import Value
from onnx_bridge.model.provenance import operator
from onnx_bridge.parity.checking.error_histogram import Sketch
from passes.graphs import lineage
from passes.graphs.scopes import Scope, name_nodes, required_names
from passes.graphs.tensors import constant_of
from passes.graphs.traversal import operands_of


@dataclass(frozen=True)
class NetworkNode:
    """A node without its weights and attributes.

    Attributes:
        operator: the operator, with its domain unless that is ONNX's own.
        inputs: its operands, those that its subgraphs capture included; without constants.
        made_by: the pass that made it; empty if none did.
        origin: the nodes of the source model that it was made from.
    """

    name: str
    operator: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    made_by: str = ""
    origin: tuple[str, ...] = ()


@dataclass(frozen=True)
class Network:
    """The nodes of a model's main graph without constants, in order, and the graph's inputs and outputs."""

    nodes: tuple[NetworkNode, ...]
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()

    @classmethod
    def of(cls, model: ir.Model) -> Network:
        """Return the network of a model; nodes without a name get one, as they do in `onnx_bridge.clean`."""
        name_nodes(Scope(model, model.graph))
        nodes, constants = [], set(model.graph.initializers.values())
        for node in model.graph:
            if constant_of(node) is None:
                nodes.append(node)
            else:
                constants.update(node.outputs)
        inputs = required_names(model)
        return cls(
            tuple(_node(node, constants) for node in nodes),
            tuple(inputs),
            tuple(str(value.name) for value in model.graph.outputs),
        )


def _node(node: ir.Node, constants: set[ir.Value]) -> NetworkNode:
    return NetworkNode(
        str(node.name),
        operator(node),
        tuple(str(value.name) for value in operands_of(node) if value not in constants),
        tuple(str(value.name) for value in node.outputs if value.name),
        node.metadata_props.get(lineage.PASS, ""),
        tuple(lineage.origin(node)),
    )


@dataclass(frozen=True)
class Evidence:
    """The outputs and graphs of a check.

    Attributes:
        results: the outputs of each sample, by leg; the reference comes first.
        before: the original's network.
        after: the cleaned model's network.
        passes: what each pass did (`passes.rewriting.pipeline.Step.to_json`).
        sketches: the sketches of MIGraphX's layers against the reference's, by tensor.
    """

    results: Mapping[str, Sequence[Mapping[str, Value]]] = field(default_factory=dict)
    before: Network | None = None
    after: Network | None = None
    passes: Sequence[Mapping[str, Any]] = ()
    sketches: Mapping[str, Sketch] = field(default_factory=dict)

    def pairs(self, leg: str, sample: int) -> Iterator[tuple[str, Value, Value]]:
        """Yield the name, expected and actual value of each output that both the reference and a leg have."""
        reference = next(iter(self.results), None)
        if reference is None or leg == reference or sample >= len(self.results.get(leg, ())):
            return
        expected, actual = self.results[reference][sample], self.results[leg][sample]
        for name in expected:
            if name in actual:
                yield name, expected[name], actual[name]
