"""Merge nodes that compute the same.

    y1 = f(x), y2 = f(x)        the same operator, inputs, attributes and outputs        →  y1 for both

Each graph is processed by itself. An output of the graph keeps its name: of two that are equal, one becomes an Identity
of the other.

Not merged: nodes with subgraphs, calls of functions, and operators outside of ONNX, which may have side effects. Skips:
random operators, each of which draws its own numbers.
"""

from __future__ import annotations

import struct
from collections.abc import Hashable
from dataclasses import replace

import onnx_ir as ir

from passes.graphs import lineage
from passes.graphs.randomness import is_random
from passes.graphs.replacement import can_stand_for, can_take_name
from passes.graphs.scopes import Scope, name_nodes, scopes
from passes.graphs.tensors import TensorKey
from passes.rewriting.base import Context, Pass, Result, Skip
from passes.rewriting.edit import Proposal

_CHEAP = {"Constant", "Identity"}
"""Not worth an Identity in their place."""


class EliminateCommonSubexpressions(Pass):
    """Merge nodes that compute the same."""

    name = "eliminate-common-subexpressions"
    declares = False

    def run(self, model: ir.Model, context: Context) -> Result:
        """Process each graph in topological order, so that equal consumers of merged nodes are merged as well."""
        result = Result(model)
        for scope in map(name_nodes, scopes(model)):
            for graph in list(scope.graphs()):
                seen: dict[Hashable, ir.Node] = {}
                for node in list(graph):
                    key = _key(node, scope)
                    twin = seen.setdefault(key, node) if key is not None else node
                    if twin is node:
                        continue
                    obstacle = _obstacle(node, twin, scope)
                    if obstacle is not None:
                        if obstacle:
                            result.skips.append(Skip(obstacle, node.name or ""))
                        continue
                    if not context.budget.take():
                        return result
                    outputs = [*twin.outputs, *(None for _ in range(len(node.outputs) - len(twin.outputs)))]
                    proposal = Proposal(scope, node, outputs[: len(node.outputs)])
                    twin.metadata_props[lineage.ORIGIN] = lineage.common_origin([twin, node])
                    rewrite = proposal.commit(self.name)
                    result.rewrites.append(replace(rewrite, note=f"the same as {twin.name}"))
        return result


def _key(node: ir.Node, scope: Scope) -> Hashable | None:
    """Return a key that is equal for nodes that compute the same; None for a node that must not be merged."""
    if node.domain not in ("", "ai.onnx.ml") or node.op_identifier() in scope.model.functions:
        return None
    attributes: list[Hashable] = []
    for name in sorted(node.attributes):
        value = _attribute(node.attributes[name])
        if value is None:
            return None
        attributes.append((name, value))
    inputs, outputs = list(node.inputs), [bool(value.name) for value in node.outputs]
    while inputs and inputs[-1] is None:
        inputs.pop()
    while outputs and not outputs[-1]:
        outputs.pop()
    return node.op_identifier(), tuple(inputs), tuple(outputs), tuple(attributes)


def _attribute(attribute: ir.Attr) -> Hashable | None:
    """Return a key of an attribute's exact value; None for graphs, types and sparse tensors."""
    kind = attribute.type
    if attribute.is_ref():
        return kind, "of the caller", attribute.ref_attr_name
    match kind:
        case ir.AttributeType.INT | ir.AttributeType.STRING:
            return kind, attribute.value
        case ir.AttributeType.INTS | ir.AttributeType.STRINGS:
            return kind, tuple(attribute.value)
        case ir.AttributeType.FLOAT:
            return kind, struct.pack("<d", attribute.as_float())
        case ir.AttributeType.FLOATS:
            floats = attribute.as_floats()
            return kind, struct.pack(f"<{len(floats)}d", *floats)
        case ir.AttributeType.TENSOR:
            return kind, TensorKey(attribute.as_tensor())
        case ir.AttributeType.TENSORS:
            return kind, tuple(map(TensorKey, attribute.as_tensors()))
    return None


def _obstacle(node: ir.Node, twin: ir.Node, scope: Scope) -> str | None:
    """Return why a node cannot be replaced by its twin; empty if that needs no report."""
    if is_random(node, scope):
        return "it may be random"
    for old, new in zip(node.outputs, twin.outputs, strict=False):
        if not can_stand_for(new, old, node.graph, scope):
            return f"{new.name} is the name of another value in a subgraph that would use it"
        if old.is_graph_output() and not can_take_name(new, node.graph):
            if not scope.has_identity(new):
                return f"opset {scope.opset()} has no Identity for the output {old.name}"
            if node.op_type in _CHEAP:
                return ""
    return None
