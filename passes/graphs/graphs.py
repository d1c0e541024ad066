"""Graph helpers on top of `onnx_ir`: scopes, constants, unique names, provenance of nodes, removal and replacement."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import msgspec
import numpy as np
import onnx
import onnx_ir as ir

_T = TypeVar("_T")

PASS = "onnx_bridge.pass"
"""The node property that names the pass that made a node."""
ORIGIN = "onnx_bridge.origin"
"""The node property that lists, as JSON, the names of the nodes of the source model that a node replaces."""
MAX_ORIGINS = 1000
"""The most names that `ORIGIN` lists: each of ten thousand nodes may replace all before it."""
DISPUTED = "onnx_bridge.disputed"
"""Set in the ``meta`` of a value of which a script declared what inference cannot confirm: passes do not rely on it."""

CLAIMED = "onnx_bridge.claimed"
"""In the ``meta`` of a value whose shape is declared, and depends on data: the part of it that inference proves."""


class Names:
    """The names of all values and nodes of a scope, to make unique new ones."""

    def __init__(self, scope: Scope) -> None:
        self._values: dict[str, int] = {}
        self._nodes: dict[str, int] = {}
        for graph in scope.graphs():
            self._values |= dict.fromkeys((value.name for value in graph.inputs if value.name), 1)
            self._values |= dict.fromkeys(graph.initializers, 1)
            for node in graph:
                self._nodes[node.name or ""] = 1
                self._values |= dict.fromkeys((value.name for value in node.outputs if value.name), 1)

    def value(self, base: str) -> str:
        """``base``, or the first free one of ``base_2``, ``base_3``, …"""
        return _unique(base, self._values)

    def node(self, base: str) -> str:
        """``base``, or the first free one of ``base_2``, ``base_3``, …"""
        return _unique(base, self._nodes)


def _unique(base: str, taken: dict[str, int]) -> str:
    """``base`` or a numbered name that is free; ``taken`` holds the highest number of each base."""
    if base not in taken:
        taken[base] = 1
        return base
    count = taken[base] + 1
    while (name := f"{base}_{count}") in taken:
        count += 1
    taken[base], taken[name] = count, 1
    return name


@dataclass(eq=False)
class Scope:
    """The main graph or a function, with all its subgraphs: what shares opset imports and unique names.

    Attributes:
        model: the model.
        graph: the main graph, or the function's.
        function: the function; None for the main graph. Functions have no initializers.
    """

    model: ir.Model
    graph: ir.Graph
    function: ir.Function | None = None

    @cached_property
    def names(self) -> Names:
        """All names of the scope, collected at first use; every new name must come from here."""
        return Names(self)

    @property
    def opset_imports(self) -> Mapping[str, int]:
        """Versions by domain; the standard domain is always ``""``."""
        imports = self.graph.opset_imports
        return {"" if domain == "ai.onnx" else domain: version for domain, version in imports.items()}

    def opset(self, domain: str = "") -> int:
        """The version of a domain; 1 if it is not imported."""
        return self.opset_imports.get(domain, 1)

    def nodes(self) -> Iterator[ir.Node]:
        """All nodes, each followed by those of its subgraphs."""
        return with_nested(self.graph)

    def graphs(self) -> Iterator[ir.Graph]:
        """The graph and all its subgraphs."""
        found = [self.graph]
        for graph in found:  # grows meanwhile
            yield graph
            for node in graph:
                if has_subgraphs(node):
                    found += subgraphs(node)

    def is_parameter(self, value: ir.Value) -> bool:
        """Whether it is an initializer that callers cannot override.

        Before IR version 4 every initializer had to be an input as well.
        """
        return value.is_initializer() and (not value.is_graph_input() or self.model.ir_version < 4)

    def constant(self, value: ir.Value | None) -> ir.TensorProtocol | None:
        """The tensor of a parameter or of a Constant node's output; None for all other values."""
        if value is None:
            return None
        if self.is_parameter(value):
            return value.const_value
        node = value.producer()
        return constant_of(node) if node is not None else None

    def shape(self, value: ir.Value | None) -> ir.Shape | None:
        """The shape of a value; None if it is unknown, disputed, or in a function, whose calls differ."""
        tensor = self.constant(value)
        if tensor is not None:
            return ir.Shape(tensor.shape.numpy())
        return value.shape if value is not None and self._is_reliable(value) else None

    def proven_shape(self, value: ir.Value | None) -> ir.Shape | None:
        """The shape of a value as far as inference proves it, where no run will show that a declaration is false."""
        shape = self.shape(value)
        if shape is None or value is None or self.constant(value) is not None:
            return shape
        proven: ir.Shape | None = value.meta.get(CLAIMED, shape)
        return proven

    def static_shape(self, value: ir.Value | None) -> tuple[int, ...] | None:
        """The shape of a value, if all its dimensions are known numbers."""
        shape = self.shape(value)
        return shape.numpy() if shape is not None and shape.is_static() else None

    def proven_sizes(self, value: ir.Value | None) -> tuple[int, ...] | None:
        """The shape of a value, if all its dimensions are numbers that inference proves (`proven_shape`)."""
        shape = self.proven_shape(value)
        return shape.numpy() if shape is not None and shape.is_static() else None

    def dtype(self, value: ir.Value | None) -> ir.DataType | None:
        """The dtype of a value; None if it is unknown, disputed, or in a function."""
        tensor = self.constant(value)
        if tensor is not None:
            return tensor.dtype
        return value.dtype if value is not None and self._is_reliable(value) else None

    def has_identity(self, value: ir.Value) -> bool:
        """Whether Identity takes a value: sequences since opset 14, optionals since 16."""
        since = 1 if value.type is None or isinstance(value.type, ir.TensorType) else 14
        return self.opset() >= (16 if isinstance(value.type, ir.OptionalType) else since)

    def _is_reliable(self, value: ir.Value) -> bool:
        return self.function is None and DISPUTED not in value.meta

    def new_constant(self, graph: ir.Graph, tensor: ir.TensorProtocol, name: str) -> ir.Value:
        """Add an initializer to ``graph``, which must not be that of a function.

        Before IR version 4 a subgraph has none, and the main graph gets it, under another name.
        """
        if self.model.ir_version < 4 and graph is not self.graph:
            graph, name = self.graph, self.names.value(name)
        value = ir.Value(
            name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(tensor.shape.numpy()), const_value=tensor
        )
        graph.initializers.add(value)
        if self.model.ir_version < 4 and graph is self.graph:
            graph.inputs.append(value)
        return value

    def drop_constant(self, value: ir.Value) -> bool:
        """Remove a parameter that nothing uses; False if it is not a parameter, or is used."""
        graph = value.graph
        if graph is None or not self.is_parameter(value) or value.is_graph_output() or value.uses():
            return False
        del graph.initializers[str(value.name)]
        if value.is_graph_input():
            graph.inputs.remove(value)
        return True


def scopes(model: ir.Model) -> Iterator[Scope]:
    """The main graph, then every function."""
    yield Scope(model, model.graph)
    for function in list(model.functions.values()):
        yield Scope(model, function.graph, function)


def values(model: ir.Model) -> Iterator[ir.Value]:
    """All values of the main graph and its subgraphs."""
    for graph in Scope(model, model.graph).graphs():
        yield from graph.inputs
        yield from (value for value in graph.initializers.values() if not value.is_graph_input())
        for node in graph:
            yield from node.outputs


def weight_bytes(model: ir.Model) -> int:
    """The bytes of the initializers of the main graph."""
    return sum(value.const_value.nbytes for value in model.graph.initializers.values() if value.const_value)


_GRAPHS = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)


def has_subgraphs(node: ir.Node) -> bool:
    """Whether a node has `subgraphs`: most have none, which this tells faster."""
    for attribute in node.attributes.data.values():  # noqa: SIM110  (the mapping itself goes by way of its keys)
        if attribute.type in _GRAPHS and not attribute.is_ref():
            return True
    return False


def subgraphs(node: ir.Node) -> Iterator[ir.Graph]:
    """The graphs that are attributes of a node, without those nested in them."""
    for attribute in node.attributes.data.values():
        kind = attribute.type
        if kind is ir.AttributeType.GRAPH and not attribute.is_ref():
            yield attribute.as_graph()
        elif kind is ir.AttributeType.GRAPHS and not attribute.is_ref():
            yield from attribute.as_graphs()


def with_nested(nodes: Iterable[ir.Node]) -> Iterator[ir.Node]:
    """Nodes, each followed by those of its subgraphs."""
    for node in nodes:
        yield node
        if has_subgraphs(node):
            for graph in subgraphs(node):
                yield from with_nested(graph)


def ancestors_of_last(nodes: Sequence[ir.Node]) -> list[ir.Node]:
    """The last of some nodes, and those of them that it depends on, in their order."""
    inside, found, pending = set(nodes), set(), list(nodes[-1:])
    while pending:
        node = pending.pop()
        found.add(node)
        pending += [each for each in node.predecessors() if each in inside and each not in found]
    return [node for node in nodes if node in found]


def captures(node: ir.Node) -> dict[ir.Value, None]:
    """The values of outer graphs that a node's subgraphs use, at any depth, in order."""
    inner: set[ir.Graph | None] = set()
    used: dict[ir.Value, None] = {}
    pending = list(subgraphs(node))
    while pending:
        graph = pending.pop()
        inner.add(graph)
        for each in graph:
            used.update(dict.fromkeys(value for value in each.inputs if value is not None))
            pending.extend(subgraphs(each))
    return {value: None for value in used if value.graph not in inner}


def constant_of(node: ir.Node) -> ir.TensorProtocol | None:
    """The tensor of a Constant node; None for other nodes, sparse tensors, and attributes of a function's caller."""
    if node.op_type != "Constant" or node.domain != "" or len(node.attributes) != 1:
        return None
    attribute = next(iter(node.attributes.data.values()))
    if attribute.is_ref():
        return None
    match attribute.name:
        case "value":
            tensor: ir.TensorProtocol = attribute.value  # as_tensor() would check the protocol, which is slow
            return tensor
        case "value_float" | "value_floats":
            return ir.Tensor(np.array(attribute.value, np.float32))
        case "value_int" | "value_ints":
            return ir.Tensor(np.array(attribute.value, np.int64))
        case "value_string":
            return ir.StringTensor([attribute.as_string().encode()], shape=ir.Shape([]))
        case "value_strings":
            strings = [each.encode() for each in attribute.as_strings()]
            return ir.StringTensor(strings, shape=ir.Shape([len(strings)]))
    return None


def tensor_proto(tensor: ir.TensorProtocol, name: str) -> onnx.TensorProto:
    """A tensor with its elements, including external ones."""
    if tensor.dtype == ir.DataType.STRING:
        proto = ir.serde.serialize_tensor(tensor)
        proto.name = name
        return proto
    return onnx.TensorProto(
        name=name, data_type=tensor.dtype.value, dims=tensor.shape.numpy(), raw_data=tensor.tobytes()
    )


def write_info(value: ir.Value, proto: onnx.ValueInfoProto, name: str = "") -> None:
    """Write what is known of a value; a shape without a type is not, since ONNX Runtime refuses it.

    Args:
        value: has a name, or ``name`` is given.
        proto: an empty message, which is written to.
        name: in place of that of the value.
    """
    if value.type is None and value.shape is not None:
        value = ir.Value(name=value.name, doc_string=value.doc_string, metadata_props=value.metadata_props)
    ir.serde.serialize_value_into(proto, value, name=name)


def ints(tensor: ir.TensorProtocol | None) -> list[int] | None:
    """The elements of a small integer tensor; None for no tensor, floats, and more than 64 elements."""
    if tensor is None or tensor.size > 64 or not tensor.dtype.is_integer():
        return None
    return [int(each) for each in tensor.numpy().ravel()]


def name_nodes(scope: Scope) -> None:
    """Give a name to every node that has none: reports and origins need them."""
    for node in scope.nodes():
        if not node.name:
            node.name = scope.names.node(node.op_type)


def stamp(nodes: Iterable[ir.Node], maker: str, sources: Iterable[ir.Node]) -> None:
    """Record in new nodes which pass made them and which nodes of the source model they replace."""
    text = common_origin(sources)
    for node in with_nested(nodes):
        node.metadata_props[PASS] = maker
        node.metadata_props[ORIGIN] = text


def common_origin(nodes: Iterable[ir.Node]) -> str:
    """The property `ORIGIN` of what replaces some nodes: the first `MAX_ORIGINS` names of `origin` of each."""
    names = dict.fromkeys(name for node in nodes for name in origin(node))
    return json.dumps([*names][:MAX_ORIGINS])


def recorded(text: str | None, kind: type[_T]) -> _T | None:
    """A JSON value that a pass wrote into metadata; None where there is none of this type: others may write there."""
    try:
        return msgspec.json.decode(text or "", type=kind)
    except (msgspec.MsgspecError, RecursionError):
        return None


def origin(node: ir.Node) -> list[str]:
    """The names of the nodes of the source model that a node replaces; its own name if no pass made it."""
    found = recorded(node.metadata_props.get(ORIGIN), list[str])
    return [node.name or ""] if found is None else found


def detach(nodes: Iterable[ir.Node]) -> None:
    """Disconnect nodes, and those of their subgraphs, from their inputs."""
    for node in nodes:
        for index in range(len(node.inputs)):
            node.replace_input_with(index, None)
        for graph in subgraphs(node):
            remove(graph, list(graph))


def remove(graph: ir.Graph, nodes: Iterable[ir.Node]) -> None:
    """Remove nodes from a graph, with their subgraphs, of which nothing can be used afterwards."""
    nodes = list(nodes)
    detach(nodes)
    graph.remove(nodes)


def can_take_name(value: ir.Value, graph: ir.Graph | None) -> bool:
    """Whether ``value`` can become an output of ``graph`` under another name.

    Graph inputs and initializers cannot, since their names are part of the interface; nor values of an outer graph;
    nor those that are outputs already.
    """
    producer = value.producer()
    return producer is not None and producer.graph is graph and not value.is_graph_output()


def replace(old: ir.Value, new: ir.Value) -> None:
    """Replace ``old`` by ``new``, which has the same contents, in all nodes and graph outputs.

    If ``old`` is a graph output, ``new`` takes its name, for which `can_take_name` must hold. Types and shapes are
    merged.
    """
    if new.type is None:
        new.type = old.type
    if old.shape is not None and not new.is_initializer():
        if CLAIMED in old.meta:
            new.meta.setdefault(CLAIMED, new.shape)
        new.shape = merge_shapes(new.shape, old.shape)
    if old.is_graph_output():
        take_name(new, old)
    old.replace_all_uses_with(new, replace_graph_outputs=True)


def take_name(new: ir.Value, old: ir.Value) -> None:
    """Let ``new`` have the name of ``old``, and what is recorded of the value of that name."""
    new.name = old.name
    new.metadata_props.update(old.metadata_props)


def merge_shapes(shape: ir.Shape | None, other: ir.Shape) -> ir.Shape:
    """``shape``, with dimensions that only ``other`` knows; ``shape`` itself if their ranks differ."""
    if shape is None:
        return ir.Shape(other)
    if len(shape) != len(other):
        return shape
    return ir.Shape([_better(mine, theirs) for mine, theirs in zip(shape, other, strict=True)])


def _better(mine: int | ir.SymbolicDim, theirs: int | ir.SymbolicDim) -> int | ir.SymbolicDim:
    if isinstance(mine, int):
        return mine
    if isinstance(theirs, int) or mine.value is None:
        return theirs
    return mine
