"""Nodes of models as protobuf messages: where they are, and how their outputs are hidden from ONNX's inference."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

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


def nodes_of(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """All nodes of a model, with those of subgraphs and functions."""
    for nodes in (model.graph.node, *(each.node for each in model.functions)):
        yield from with_nested(nodes)


def with_nested(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """Nodes, and those of their subgraphs."""
    pending = [nodes]
    while pending:
        for node in pending.pop():
            yield node
            for attribute in node.attribute:
                if attribute.type == onnx.AttributeProto.GRAPH:
                    pending.append(attribute.g.node)
                elif attribute.type == onnx.AttributeProto.GRAPHS:
                    pending += [graph.node for graph in attribute.graphs]


def subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """The subgraphs of a node."""
    for attribute in node.attribute:
        yield from [attribute.g] if attribute.HasField("g") else attribute.graphs


@dataclass(frozen=True)
class Placed:
    """A node of a graph, with what is known there.

    Attributes:
        graph: that the node is in.
        node: the node.
        types: of values, by name.
        constants: initializers, by name.
    """

    graph: onnx.GraphProto
    node: onnx.NodeProto
    types: Mapping[str, onnx.TypeProto]
    constants: Mapping[str, onnx.TensorProto]


def placed(graph: onnx.GraphProto, around: Placed | None = None) -> Iterator[Placed]:
    """The nodes of a graph and of its subgraphs, each with what is known of the values that it can refer to."""
    types = {each.name: each.type for each in (*graph.input, *graph.value_info, *graph.output)}
    types = {name: kind for name, kind in types.items() if kind.WhichOneof("value")}
    constants = {each.name: each for each in graph.initializer}
    for name, each in constants.items():
        types[name] = onnx.helper.make_tensor_type_proto(each.data_type, list(each.dims))
    outer = ({}, {}) if around is None else (around.types, around.constants)
    known = {**outer[0], **types}, {**outer[1], **constants}
    for node in graph.node:
        here = Placed(graph, node, *known)
        yield here
        for inner in subgraphs(node):
            yield from placed(inner, here)
