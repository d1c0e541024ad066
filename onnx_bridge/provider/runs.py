"""Runs of nodes between those that ONNX Runtime's MIGraphX provider does not claim: it takes or drops each as a whole.

If it does not claim all nodes of a model, it drops every run without a product of matrices or a recurrent operator,
also one of a hundred convolutions. So such a run gets a product of two constants, which changes nothing and which
MIGraphX folds; ONNX Runtime folds it, too, and the run is on the CPU again, unless its graph optimization is off:

    y = Op(…)   →   y = Mul(MatMul([1], [1]), Op(…))
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import onnx_ir as ir

from onnx_bridge.provider.hidden import is_tensor
from passes.graphs.replacement import replace_value
from passes.graphs.scopes import Scope
from passes.graphs.traversal import operands_of
from passes.probing.partition import is_constant


def runs(graph: ir.Graph, is_claimed: Callable[[ir.Node], bool]) -> Iterator[list[ir.Node]]:
    """Yield the runs of a graph, in ONNX Runtime's order, between the nodes that are not claimed."""
    run: list[ir.Node] = []
    for node in _ordered(graph):
        if is_claimed(node):
            run.append(node)
        elif run:
            yield run
            run = []
    if run:
        yield run


def keep(run: list[ir.Node], scope: Scope) -> bool:
    """Give a run a product of matrices, behind its last node that has numbers; return whether it has such a node."""
    for node in reversed(run):
        for value in node.outputs:
            if value.name and is_tensor(value) and value.dtype is not ir.DataType.BOOL:
                _multiply(value, node, scope)
                return True
    return False


def _multiply(value: ir.Value, node: ir.Node, scope: Scope) -> None:
    one, product, factor, result = (ir.Value(name=scope.names.value("kept")) for _ in range(4))
    made = [
        _node("Constant", [], one, scope, ir.AttrTensor("value", ir.tensor(np.ones(1, np.float32)))),
        _node("MatMul", [one, one], product, scope),
    ]
    if value.dtype != ir.DataType.FLOAT:
        made.append(_node("Cast", [product], factor, scope, ir.AttrInt64("to", int(value.dtype or 0))))
        product = factor
    graph = scope.graph
    graph.insert_before(node, made)  # then ONNX Runtime orders them behind the node
    result.type, result.shape = value.type, value.shape
    name, is_output = value.name, value.is_graph_output()
    replace_value(value, result)
    if is_output:
        value.name, result.name = scope.names.value(f"{name}_kept"), name
    graph.insert_after(node, _node("Mul", [product, value], result, scope))


def _node(op_type: str, inputs: list[ir.Value], output: ir.Value, scope: Scope, *attributes: ir.Attr) -> ir.Node:
    return ir.Node("", op_type, inputs, attributes, outputs=[output], name=scope.names.node(f"kept_{op_type}"))


def _ordered(graph: ir.Graph) -> list[ir.Node]:
    """Return the nodes in ONNX Runtime's order: from the last leaf backwards, the last of a node's operands first."""
    nodes = [node for node in graph if not is_constant(node)]
    places = {node: place for place, node in enumerate(nodes)}
    before = [sorted({places[p] for value in operands_of(n) if (p := value.producer()) in places}) for n in nodes]
    used = {place for places_before in before for place in places_before}
    stack = [(place, False) for place in range(len(nodes)) if place not in used]
    seen: set[int] = set()
    ordered = []
    while stack:
        place, leaves = stack.pop()
        if leaves:
            ordered.append(nodes[place])
        elif place not in seen:
            seen.add(place)
            stack.append((place, True))
            stack += [(other, False) for other in before[place] if other not in seen]
    return ordered
