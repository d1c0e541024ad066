"""Nodes of models as protobuf messages, with what is known of the values around them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property

import onnx

_GRAPH, _GRAPHS = onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS
Dim = int | str | None
"""A size, its name, or None if neither is known."""
STANDARD = ("", "ai.onnx", "ai.onnx.ml")
"""The domains that ONNX defines."""


class Surroundings:
    """The known types and values of a graph, or of a function, in which nothing can be declared."""

    def __init__(
        self,
        graph: onnx.GraphProto,
        opset: int,
        *,
        is_function: bool = False,
        outer: Surroundings | None = None,
        types: Mapping[str, onnx.TypeProto] | None = None,
    ) -> None:
        """Look at a graph with the value infos of known types, and further ``types`` of values, by name."""
        self.opset, self.is_function = opset, is_function
        self._graph, self._outer, self._given = graph, outer, types or {}

    def type(self, name: str) -> onnx.TypeProto | None:
        """Return the type of a value; None if it is unknown."""
        tensor = self._constants.get(name)
        if tensor is not None:
            return tensor_type(tensor.data_type, list(tensor.dims))
        kind = self._types.get(name)
        if kind is not None and kind.WhichOneof("value"):
            return kind
        return self._outer.type(name) if self._outer is not None else None

    def constant(self, name: str) -> onnx.TensorProto | None:
        """Return the elements of an initializer; None for other values."""
        tensor = self._constants.get(name)
        return self._outer.constant(name) if tensor is None and self._outer is not None else tensor

    def declare(self, name: str, kind: onnx.TypeProto) -> None:
        """Replace what the graph declares of a value."""
        infos = (*self._graph.value_info, *self._graph.output)
        info = next((info for info in infos if info.name == name), None) or self._graph.value_info.add(name=name)
        info.type.CopyFrom(kind)

    def forget(self, names: Collection[str]) -> None:
        """Remove what the graph declares of results of nodes."""
        kept = [info for info in self._graph.value_info if info.name not in names]
        self._graph.ClearField("value_info")
        self._graph.value_info.extend(kept)

    def nodes(self) -> Iterator[Node]:
        """Yield the nodes of the graph, each followed by the nodes of its subgraphs."""
        for message in self._graph.node:
            yield Node(message, self)
            for graph in subgraphs(message):
                yield from Surroundings(graph, self.opset, outer=self).nodes()

    @cached_property
    def _types(self) -> Mapping[str, onnx.TypeProto]:
        graph = self._graph
        return {**self._given, **{info.name: info.type for info in (*graph.input, *graph.value_info, *graph.output)}}

    @cached_property
    def _constants(self) -> Mapping[str, onnx.TensorProto]:
        return {tensor.name: tensor for tensor in self._graph.initializer}


class Node:
    """The message of a node, and what is known of the values that it can refer to."""

    __slots__ = ("around", "message")

    def __init__(self, message: onnx.NodeProto, around: Surroundings) -> None:
        self.message, self.around = message, around

    def dims(self, index: int) -> list[Dim] | None:
        """Return the dimensions of an input; None if it is left out or its rank is unknown."""
        return dims(self.around.type(self.message.input[index])) if index < len(self.message.input) else None

    def constant(self, index: int) -> list[int | float] | None:
        """Return the elements of an input; None if it is left out or is not constant."""
        tensor = self.around.constant(self.message.input[index]) if index < len(self.message.input) else None
        return None if tensor is None else list(onnx.numpy_helper.to_array(tensor).ravel().tolist())

    def given(self, name: str) -> onnx.AttributeProto | None:
        """Return an attribute that has a value."""
        attributes = self.message.attribute
        return next(
            (attribute for attribute in attributes if attribute.name == name and not attribute.ref_attr_name), None
        )

    def attribute(self, name: str) -> onnx.AttributeProto:
        """Return an attribute, whose fields are all empty if it is not given."""
        return self.given(name) or onnx.AttributeProto()


def dims(kind: onnx.TypeProto | None) -> list[Dim] | None:
    """Return the dimensions of a tensor; None if its rank is unknown."""
    if kind is None or not kind.tensor_type.HasField("shape"):
        return None
    return [dim_of(dim) for dim in kind.tensor_type.shape.dim]


def dim_of(dim: onnx.TensorShapeProto.Dimension) -> Dim:
    """Return a size, or its name, unless inference made that up: then it has no meaning, and differs in each run."""
    if dim.HasField("dim_value"):
        return int(dim.dim_value)
    return dim.dim_param if dim.dim_param and not dim.dim_param.startswith("unk__") else None


def tensor_type(dtype: int, shape: Sequence[Dim] | None) -> onnx.TypeProto:
    """Return the type of a tensor, whose rank may be unknown."""
    kind = onnx.TypeProto(tensor_type=onnx.TypeProto.Tensor(elem_type=dtype))
    if shape is not None:
        kind.tensor_type.shape.SetInParent()
    for size in shape or ():
        dim = kind.tensor_type.shape.dim.add()
        if isinstance(size, int):
            dim.dim_value = size
        elif size is not None:
            dim.dim_param = size
    return kind


def subgraphs(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    """Return the subgraphs of a node, without those within them."""
    graphs: list[onnx.GraphProto] = []
    for attribute in node.attribute:
        kind = attribute.type
        if kind == _GRAPH:
            graphs.append(attribute.g)
        elif kind == _GRAPHS:
            graphs += attribute.graphs
    return graphs


def with_nested(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """Yield nodes and the nodes of their subgraphs."""
    pending = [nodes]
    while pending:
        for node in pending.pop():
            yield node
            pending += [graph.node for graph in subgraphs(node)]
