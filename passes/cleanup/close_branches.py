"""Make a branch of an If one that cannot be taken, and compute the other one ahead.

    y = If(c){ then: f(x)   else: g(x) }  →  t = f(x)   y = If(c){ then: Identity(t)   else: an error }

A branch for other sizes than those that a model was given is not valid with these, and no runtime takes the model with
it, although it is never taken. An If that is left checks the condition in a run: ONNX Runtime fails in a node whose
name tells the branch, since it casts a text to a number.

Skips: results without a known type, opsets before 9 (Where), and Ifs of functions.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from passes.cleanup.inline_constant_if import inline_constant_ifs
from passes.graphs import lineage
from passes.graphs.scopes import Scope
from passes.graphs.traversal import subgraphs, with_nested
from passes.rewriting.base import Context

NAME = "close-branches"
CLOSED = "onnx_bridge.closed"
"""The property of the node that fails: why the branch was closed."""
BRANCHES = {"then_branch": "else_branch", "else_branch": "then_branch"}
"""The other branch of each."""
SINCE = 9
"""The first opset with Where, and with Casts of texts."""


def closed_branch(node: ir.Node) -> str | None:
    """Return which branch of an If is closed; None if it takes both."""
    branches = {str(name): node.attributes[name].as_graph() for name in BRANCHES if name in node.attributes}
    return next(
        (name for name, graph in branches.items() if any(CLOSED in each.metadata_props for each in graph)), None
    )


def is_if(node: ir.Node) -> bool:
    """Return whether a node is ONNX's If."""
    return (node.domain, node.op_type) == ("", "If")


def ifs_around(model: ir.Model, node: ir.Node) -> Iterator[tuple[ir.Node, str]]:
    """Yield the Ifs that a node is in, the innermost first, with the branch."""
    owners = {graph: owner for owner in with_nested(model.graph) for graph in subgraphs(owner)}
    while (graph := node.graph) in owners:
        node = owners[graph]
        if is_if(node):
            yield node, next(branch for branch in BRANCHES if node.attributes[branch].as_graph() is graph)


def force_branch(model: ir.Model, node: ir.Node, branch: str) -> None:
    """Replace an If of the main graph or its subgraphs by one of its branches, whatever its condition is."""
    assert node.graph is not None
    scope = Scope(model, model.graph)
    constant = _constant(ir.Tensor(np.array(branch == "then_branch")), scope.names.value(f"{node.name}/{branch}"))
    node.graph.insert_before(node, constant)
    node.replace_input_with(0, constant.outputs[0])
    inline_constant_ifs(scope, Context(), NAME)


def close_branch(model: ir.Model, node: ir.Node, closed: str, why: str) -> bool:
    """Close a branch of an If of the main graph or its subgraphs, in place; return whether that is possible."""
    scope, graph, kept = Scope(model, model.graph), node.graph, BRANCHES[closed]
    assert graph is not None
    branch = node.attributes[kept].as_graph()
    if scope.opset() < SINCE or all(value.dtype is None for value in branch.outputs):
        return False
    taken = [
        ir.Value(name=scope.names.value(f"{out.name}/taken"), type=value.type, shape=value.shape)
        for out, value in zip(node.outputs, branch.outputs, strict=True)
    ]
    node.attributes[kept] = ir.AttrGraph(kept, _passing(taken, node, scope))
    node.attributes[closed] = ir.AttrGraph(closed, _failing(taken, node, closed, why, scope))
    attribute = ir.AttrGraph("then_branch", branch)
    ahead = ir.Node("", "If", [node.inputs[0]], [attribute], outputs=taken, name=scope.names.node(f"{node.name}/ahead"))
    graph.insert_before(node, ahead)
    lineage.stamp([node], NAME, [node])
    force_branch(model, ahead, "then_branch")
    return True


def _passing(taken: list[ir.Value], node: ir.Node, scope: Scope) -> ir.Graph:
    nodes = [_node("Identity", [value], node, scope) for value in taken]
    return ir.Graph([], [each.outputs[0] for each in nodes], nodes=nodes, name=scope.names.value(f"{node.name}/open"))


def _failing(taken: list[ir.Value], node: ir.Node, closed: str, why: str, scope: Scope) -> ir.Graph:
    """Return a graph with results of the same types that fails: what it casts to a number depends on the condition."""
    nodes: list[ir.Node] = []

    def op(operator: str, inputs: list[ir.Value | None], **attributes: int) -> ir.Value:
        nodes.append(_node(operator, inputs, node, scope, **attributes))
        return nodes[-1].outputs[0]

    def constant(tensor: ir.TensorProtocol) -> ir.Value:
        nodes.append(_constant(tensor, scope.names.value(f"{node.name}/{closed}")))
        return nodes[-1].outputs[0]

    texts = [constant(ir.StringTensor([text], shape=ir.Shape([]))) for text in (b"no number", b"0")]
    text = op("Where", [node.inputs[0], *(texts if closed == "then_branch" else reversed(texts))])
    number = op("Cast", [text], to=int(ir.DataType.FLOAT))
    nodes[-1].metadata_props[CLOSED] = why
    nodes[-1].name = scope.names.node(f"{closed} of {node.name}, which does not fit the sizes of the inputs")
    scalar = op("Reshape", [number, constant(ir.Tensor(np.array([], np.int64)))])
    outputs = []
    for value in taken:
        is_tensor, dtype = not isinstance(value.type, ir.SequenceType), value.dtype
        if dtype is None or isinstance(value.type, ir.OptionalType):
            outputs.append(op("Identity", [value]))
            continue
        result = op("Expand", [scalar, op("Shape", [value])]) if is_tensor else scalar
        if dtype != ir.DataType.FLOAT:
            result = op("Cast", [result], to=int(dtype))
        outputs.append(result if is_tensor else op("SequenceInsert", [value, result]))
    return ir.Graph([], outputs, nodes=nodes, name=scope.names.value(f"{node.name}/closed"))


def _node(operator: str, inputs: list[ir.Value | None], origin: ir.Node, scope: Scope, **attributes: int) -> ir.Node:
    base = f"{origin.name}/{operator}"
    made = ir.node(operator, inputs, attributes, name=scope.names.node(base))
    made.outputs[0].name = scope.names.value(base)
    return made


def _constant(tensor: ir.TensorProtocol, name: str) -> ir.Node:
    value = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(tensor.shape.numpy()))
    return ir.Node("", "Constant", [], [ir.AttrTensor("value", tensor)], outputs=[value], name=name)
