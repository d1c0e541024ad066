"""Comparison of the decisions of two conversions: their rewrites, and their nodes on the host.

A witness proves something of a model only if it was rewritten and partitioned in the same way. What MIGraphX gets wrong
at real size alone is therefore rewritten in the witness as well. Every node says which pass made it and which nodes it
replaces, so that the cleaned models show what was decided, however they were obtained.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from onnx_bridge.conversion.compiling.partition import Partitioned
from passes.core.text import counted
from passes.graphs import lineage
from passes.graphs.scopes import nodes_of, scopes
from passes.probing.node_verdicts import made_by_rule
from passes.probing.partition import Side

Conversion = tuple[ir.Model, Partitioned]
"""A cleaned model, and its partitions."""
Node = tuple[str, str, str, tuple[str, ...], tuple[str, ...]]
"""Domain, operator, the pass that made a node, the nodes that it replaces, and where its inputs come from."""


def different_decision(original: Conversion, witness: Conversion) -> str | None:
    """Return the first decision that differs between a model and its witness, as a sentence; None if all are equal."""
    nodes, witness_nodes = list(_nodes(original[0])), list(_nodes(witness[0]))
    for node, witness_node in zip(nodes, witness_nodes, strict=False):
        if node != witness_node:
            return f"the witness has {_shown(witness_node)}, the model {_shown(node)}"
    if len(nodes) != len(witness_nodes):
        return f"the witness has {counted(len(witness_nodes), 'node')} after cleaning, the model {len(nodes)}"
    if _sides(original[1]) != _sides(witness[1]):
        return "other nodes of the witness run on the host"
    if original[1].environment != witness[1].environment:
        return "MIGraphX needed other settings to compile the witness"
    return None


def rewritten_alone(model: ir.Model) -> frozenset[str]:
    """Return the names of the nodes of the source model that legalization has rewritten, each by itself."""
    sources = map(lineage.sole_origin, filter(made_by_rule, nodes_of(model)))
    return frozenset(name for name in sources if name)


def _nodes(model: ir.Model) -> Iterator[Node]:
    for scope in scopes(model):
        numbers = {node: index for index, node in enumerate(scope.nodes())}
        for node in numbers:
            made_by = node.metadata_props.get(lineage.PASS, "")
            sources = tuple(_source(value, numbers) for value in node.inputs)
            origins = tuple(lineage.origin(node)) if made_by else ()
            yield node.domain, node.op_type, made_by, origins, sources


def _source(value: ir.Value | None, numbers: dict[ir.Node, int]) -> str:
    if value is None:
        return ""
    producer = value.producer()
    if producer is None:
        return "constant" if value.is_initializer() else str(value.name)
    return f"{numbers.get(producer)}:{value.index()}"


def _shown(node: Node) -> str:
    _, operator, made_by, origins, _ = node
    return f"{operator} for {', '.join(origins)} (by {made_by})" if made_by else operator


def _sides(partitioned: Partitioned) -> list[tuple[Side, tuple[str, ...]]]:
    return [
        (partition.side, tuple(node.op_type for node in partition.nodes)) for partition in partitioned.plan.partitions
    ]
