"""The changes of a script to a model, and the consequences: origins of new nodes, and invalidated types and shapes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import onnx_ir as ir

from passes.graphs import lineage
from passes.graphs.scopes import DISPUTED
from passes.graphs.traversal import subgraphs
from passes.rewriting.base import Context
from passes.shapes.declarations import settle
from passes.shapes.inference import infer


@dataclass
class Changes:
    """The changes of a script.

    Attributes:
        new: nodes that are new (mapped to None) or compute something else (mapped to the previous node).
        rewired: nodes with other inputs or outputs, mapped to the previous node.
        kept: the nodes of the model that still exist.
        values: constants and inputs that have changed.
        declared: values whose dtype or shape the script set.
        other: descriptions of other changes.
        was: the previous values, by the values that stand for them now.
    """

    new: dict[ir.Node, ir.Node | None] = field(default_factory=dict)
    rewired: dict[ir.Node, ir.Node] = field(default_factory=dict)
    kept: set[ir.Node] = field(default_factory=set)
    values: set[ir.Value] = field(default_factory=set)
    declared: set[ir.Value] = field(default_factory=set)
    other: list[str] = field(default_factory=list)
    was: dict[ir.Value, ir.Value] = field(default_factory=dict)

    def count(self) -> int:
        return len(self.new) + len(self.rewired) + len(self.values) + len(self.declared) + len(self.other)


def stamp(nodes: Iterable[ir.Node], changes: Changes, removed: set[ir.Node], maker: str) -> None:
    """Record in new nodes the pass that made them, and the removed nodes that they replace.

    A new node replaces the removed node whose output it now computes, and the removed nodes before that one. The new
    nodes before it replace the same ones. A node inserted between existing nodes replaces none.

    Args:
        nodes: all nodes of a scope, in order.
        changes: what the script changed.
    """
    new = [node for node in nodes if node in changes.new]
    sources: dict[ir.Node, dict[ir.Node, None]] = {}
    claimed: set[ir.Node] = set()
    for node in new:
        before = changes.new[node]
        sources[node] = {before: None} if before is not None else {}
        pending = [changes.was[value].producer() for value in node.outputs if value in changes.was]
        while pending:
            gone = pending.pop()
            if gone in removed and gone not in claimed:
                claimed.add(gone)
                sources[node][gone] = None
                pending.extend(value.producer() for value in gone.inputs if value is not None)
    for node in reversed(new):
        if not sources[node]:
            for value in node.outputs:
                for consumer in value.consumers():
                    sources[node].update(sources.get(consumer, {}))
        lineage.stamp([node], maker, sources[node])


def invalidate(model: ir.Model, changes: Changes) -> tuple[int, str]:
    """Infer again the types and shapes that depend on a change.

    graphsurgeon does not update the types and shapes of other tensors. Those that inference cannot determine are kept,
    but marked as disputed, so that no pass relies on them.

    Returns:
        The number of disputed values, and why inference failed (empty if it did not).
    """
    touched = set(changes.values)
    _spread(model.graph, touched, changes)
    stale = {}
    for value in touched - changes.declared:
        if not value.is_initializer() and not (value.is_graph_input() and value.graph is model.graph):
            stale[value] = (value.type, value.shape)
            value.type, value.shape = None, None
            value.meta.pop(DISPUTED, None)
    if not stale and not changes.declared:
        return 0, ""
    count = settle(model, Context())
    inferred = infer(model)
    for value, (kind, shape) in stale.items():
        if (value.type is None and kind is not None) or (value.shape is None and shape is not None):
            value.type = value.type if value.type is not None else kind
            value.shape = value.shape if value.shape is not None else shape
            value.meta[DISPUTED] = True
            count += 1
    return count, inferred.error


def _spread(graph: ir.Graph, touched: set[ir.Value], changes: Changes) -> bool:
    """Add all values that depend on ``touched``; whether the graph has any."""
    spread = False
    for node in graph:
        hit = node in changes.new or node in changes.rewired or any(value in touched for value in node.inputs)
        for inner in subgraphs(node):
            if hit:
                touched.update(inner.inputs)
            hit = _spread(inner, touched, changes) or hit
        if hit:
            touched.update(node.outputs)
        spread = spread or hit
    return spread
