"""Nodes of models as protobuf messages: where they are, and how their outputs are hidden from ONNX's inference."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import onnx

ProtoGraph = onnx.GraphProto | onnx.FunctionProto
DETACHED = "/detached_for_inference"
"""The end of the names of such outputs."""


def within(graph: ProtoGraph, op_type: str, domain: str = "") -> Iterator[tuple[ProtoGraph, onnx.NodeProto]]:
    """The nodes of an operator in a graph or function and in its subgraphs, each with the graph that it is in."""
    pending = [graph]
    while pending:
        graph = pending.pop()
        for node in graph.node:
            if (node.domain, node.op_type) == (domain, op_type):
                yield graph, node
            pending += [each.g for each in node.attribute if each.type == onnx.AttributeProto.GRAPH]


def of_opsets(
    model: onnx.ModelProto, op_type: str, included: Callable[[int], bool]
) -> Iterator[tuple[ProtoGraph, onnx.NodeProto]]:
    """The nodes of an operator of ONNX in a model and its functions, where the opset is one of those ``included``."""
    for scope, graph in ((model, model.graph), *((each, each) for each in model.functions)):
        if any(each.domain == "" and included(each.version) for each in scope.opset_import):
            yield from within(graph, op_type)


def detach(graph: ProtoGraph, node: onnx.NodeProto) -> None:
    """Put a Reshape to an unknown shape behind each output; what the model declares is of its result."""
    index = list(graph.node).index(node)
    for position, name in enumerate(node.output):
        if name:
            node.output[position] = name + DETACHED
            reshape = onnx.helper.make_node("Reshape", [name + DETACHED, ""], [name])
            graph.node.insert(index + 1, reshape)


def attach(graph: ProtoGraph, node: onnx.NodeProto) -> None:
    """Undo `detach`."""
    node.output[:] = [name.removesuffix(DETACHED) for name in node.output]
    for index in reversed(range(len(graph.node))):
        if any(name.endswith(DETACHED) for name in graph.node[index].input):
            del graph.node[index]
    if isinstance(graph, onnx.GraphProto):
        for index in reversed(range(len(graph.value_info))):
            if graph.value_info[index].name.endswith(DETACHED):
                del graph.value_info[index]
