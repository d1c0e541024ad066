"""What a check saw besides its verdict: the arrays, and the graphs before and after.

It is no part of the verdict's JSON, and costs memory: only a check that is to be reported on keeps it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir

from onnx_bridge.core.values import Value
from onnx_bridge.parity.error_histogram import Sketch
from passes.core import graphs


@dataclass(frozen=True)
class NetworkNode:
    """A node without its weights and attributes.

    Attributes:
        name: its name.
        operator: with its domain, where that is not ONNX's own.
        inputs: the values it takes, those that its subgraphs capture included; without constants.
        outputs: the values it makes.
        made_by: the pass that made it; empty where none did.
        origin: the nodes of the source model that it stands for.
    """

    name: str
    operator: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    made_by: str = ""
    origin: tuple[str, ...] = ()


@dataclass(frozen=True)
class Network:
    """The nodes of a model's main graph but constants, in order, and what they take from outside."""

    nodes: tuple[NetworkNode, ...]
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()

    @classmethod
    def of(cls, model: ir.Model) -> Network:
        """The network of a model; nodes without a name get one, as they do in `onnx_bridge.clean`."""
        graphs.name_nodes(graphs.Scope(model, model.graph))
        nodes, constants = [], set(model.graph.initializers.values())
        for node in model.graph:
            if graphs.constant_of(node) is None:
                nodes.append(node)
            else:
                constants.update(node.outputs)
        inputs = [str(value.name) for value in model.graph.inputs if not value.is_initializer()]
        return cls(
            tuple(_node(node, constants) for node in nodes),
            tuple(inputs),
            tuple(str(value.name) for value in model.graph.outputs),
        )


def _node(node: ir.Node, constants: set[ir.Value]) -> NetworkNode:
    taken = dict.fromkeys((*filter(None, node.inputs), *graphs.captures(node)))
    return NetworkNode(
        str(node.name),
        f"{node.domain}::{node.op_type}" if node.domain else node.op_type,
        tuple(str(value.name) for value in taken if value not in constants),
        tuple(str(value.name) for value in node.outputs if value.name),
        node.metadata_props.get(graphs.PASS, ""),
        tuple(graphs.origin(node)),
    )


@dataclass(frozen=True)
class Evidence:
    """What a check saw.

    Attributes:
        results: by who computed them, the outputs of each sample, in order; the reference comes first.
        before: the original's network.
        after: the cleaned model's.
        passes: what each pass did (`passes.core.pipeline.Step.to_json`).
        sketches: of layers, by tensor, what MIGraphX made of it against the reference.
    """

    results: Mapping[str, Sequence[Mapping[str, Value]]] = field(default_factory=dict)
    before: Network | None = None
    after: Network | None = None
    passes: Sequence[Mapping[str, Any]] = ()
    sketches: Mapping[str, Sketch] = field(default_factory=dict)

    def pairs(self, leg: str, sample: int) -> Iterator[tuple[str, Value, Value]]:
        """Name, expected and actual value of each output that both the reference and a leg gave."""
        reference = next(iter(self.results), None)
        if reference is None or leg == reference or sample >= len(self.results.get(leg, ())):
            return
        expected, actual = self.results[reference][sample], self.results[leg][sample]
        for name in expected:
            if name in actual:
                yield name, expected[name], actual[name]
