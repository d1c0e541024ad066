"""The model as a graph of graphsurgeon, whose parts know where they came from.

graphsurgeon's own importer takes a protobuf with all weights and forgets most of what it does not show. Here each of
its nodes and tensors is tagged with the one of the model that it stands for, so that what it does not show can be put
back, and what a script did not touch stays the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import onnx
import onnx_graphsurgeon as gs
import onnx_ir as ir
from onnx_graphsurgeon.util.misc import convert_from_onnx_attr_type

from passes.core.errors import InputError
from passes.core.graphs import Scope
from passes.surgeon.values import Loaded, TensorValues, surgeon_dtype

_TAG = "_onnx_bridge"
_HIDDEN = {
    ir.AttributeType.SPARSE_TENSOR,
    ir.AttributeType.SPARSE_TENSORS,
    ir.AttributeType.TENSORS,
    ir.AttributeType.TYPE_PROTO,
    ir.AttributeType.TYPE_PROTOS,
    ir.AttributeType.UNDEFINED,
}
"""Attributes that graphsurgeon has no form for."""
_KINDS = {ir.SequenceType: "sequence_type", ir.OptionalType: "optional_type", ir.SparseTensorType: "sparse_tensor_type"}


class _Tag:
    """What a part of graphsurgeon's graph stands for; scripts that copy the part deeply copy no tag."""

    def __deepcopy__(self, memo: dict[int, object]) -> _Tag:
        return self


@dataclass(frozen=True)
class TensorTag(_Tag):
    """A tensor, and what it looked like.

    Attributes:
        value: the model's.
        owner: the graph where it was defined.
        dtype: graphsurgeon's, or None.
        shape: likewise.
        kind: the name of its type.
    """

    value: ir.Value
    owner: ir.Graph | None
    dtype: object
    shape: tuple[int | str | None, ...] | None
    kind: str


@dataclass(frozen=True)
class NodeTag(_Tag):
    """A node, and what it looked like.

    Attributes:
        node: the model's.
        name: its name in graphsurgeon's graph, where no two nodes bear the same.
        attributes: its attributes as graphsurgeon shows them.
    """

    node: ir.Node
    name: str
    attributes: Mapping[str, Any]


@dataclass(frozen=True)
class GraphTag(_Tag):
    """A graph, or the graph of a function, and what it looked like.

    Attributes:
        model: the whole.
        loaded: what was read of it.
        graph: the model's.
        function: the function; None for other graphs.
        name: the name that graphsurgeon shows.
        opset: likewise.
        producer: likewise, name and version.
        ir_version: likewise.
    """

    model: ir.Model
    loaded: Loaded
    graph: ir.Graph
    function: ir.Function | None
    name: str
    opset: int
    producer: tuple[str, str] = ("", "")
    ir_version: int | None = None


class SurgeonNode(gs.Node):  # type: ignore[misc]
    """A node that equals itself only, so that no list confuses it with another, and none takes long to find it."""

    __eq__ = object.__eq__
    __hash__ = object.__hash__


def tag_of(part: object) -> Any:
    """The tag of a part of graphsurgeon's graph; None for a part that a script made."""
    return vars(part).get(_TAG)  # not getattr, which graphs answer with an error in the log


def tag(part: object, what: object) -> None:
    """Tag a part of graphsurgeon's graph."""
    vars(part)[_TAG] = what


class Importer:
    """Makes graphsurgeon's graph of a model.

    Args:
        model: it is not changed.
        loaded: will know what was read.
        graph_class: what to make of the main graph and of subgraphs.
    """

    def __init__(self, model: ir.Model, loaded: Loaded, graph_class: type[gs.Graph] = gs.Graph) -> None:
        self.model, self.loaded, self.graph_class = model, loaded, graph_class
        self._tensors: dict[ir.Value, gs.Tensor] = {}
        self._names: Counter[str] = Counter()

    def run(self) -> gs.Graph:
        """The main graph.

        Raises:
            InputError: a node has an attribute that is a list of graphs, which cannot be carried along.
        """
        functions = [self._function(function) for function in self.model.functions.values()]
        model = self.model
        about: dict[str, Any] = {
            "producer_name": model.producer_name or "",
            "producer_version": model.producer_version or "",
            "ir_version": model.ir_version,
        }
        scope = Scope(model, model.graph)
        return self._graph(model.graph, scope, {**about, "functions": functions})

    def _graph(self, graph: ir.Graph, scope: Scope, about: Mapping[str, Any]) -> gs.Graph:
        made = self.graph_class(**self._parts(graph, scope), name=graph.name, **about)
        producer = (made.producer_name, made.producer_version)
        tag(made, GraphTag(self.model, self.loaded, graph, None, made.name, made.opset, producer, made.ir_version))
        return made

    def _function(self, function: ir.Function) -> gs.Function:
        attributes = {}
        for name, attribute in function.attributes.items():
            hidden = attribute.type in _HIDDEN
            attributes[name] = (
                None if hidden else self._attribute(attribute, Scope(self.model, function.graph, function))
            )
        scope = Scope(self.model, function.graph, function)
        parts = self._parts(function.graph, scope)
        made = gs.Function(function.name, domain=function.domain, attrs=attributes, **parts)
        tag(made, GraphTag(self.model, self.loaded, function.graph, function, made.name, made.opset))
        return made

    def _parts(self, graph: ir.Graph, scope: Scope) -> dict[str, Any]:
        for value in graph.initializers.values():
            self._tensor(value)
        return {
            "nodes": [self._node(node, scope) for node in graph],
            "inputs": [self._tensor(value) for value in graph.inputs if not value.is_initializer()],
            "outputs": [self._tensor(value) for value in graph.outputs],
            "doc_string": graph.doc_string,
            "opset": scope.opset(),
            "import_domains": [onnx.helper.make_opsetid(*each) for each in scope.graph.opset_imports.items()],
        }

    def _node(self, node: ir.Node, scope: Scope) -> gs.Node:
        attributes = {
            name: self._attribute(attribute, scope)
            for name, attribute in node.attributes.items()
            if attribute.type not in _HIDDEN or attribute.is_ref()
        }
        name = self._unique(node.name or node.op_type)
        made = SurgeonNode(
            node.op_type,
            name,
            dict(attributes),
            inputs=[gs.Variable.empty() if value is None else self._tensor(value) for value in node.inputs],
            outputs=[self._tensor(value) if value.name else gs.Variable.empty() for value in node.outputs],
            domain=node.domain or None,
        )
        shown = {key: list(value) if isinstance(value, list) else value for key, value in attributes.items()}
        tag(made, NodeTag(node, name, shown))
        return made

    def _unique(self, name: str) -> str:
        """A name that no other node bears, since graphsurgeon takes nodes that look the same for the same."""
        found = name
        while self._names[found]:
            self._names[name] += 1
            found = f"{name}_{self._names[name]}"
        self._names[found] += 1
        return found

    def _attribute(self, attribute: ir.Attr, scope: Scope) -> Any:
        if attribute.is_ref():
            return gs.Node.AttributeRef(attribute.ref_attr_name, convert_from_onnx_attr_type(attribute.type.value))
        match attribute.type:
            case ir.AttributeType.TENSOR:
                tensor = attribute.as_tensor()
                return gs.Constant(tensor.name or "", TensorValues(tensor, self.loaded))
            case ir.AttributeType.GRAPH:
                return self._graph(attribute.as_graph(), scope, {})
            case ir.AttributeType.GRAPHS:
                raise InputError(f"graphsurgeon cannot carry the list of graphs {attribute.name}")
            case ir.AttributeType.INTS | ir.AttributeType.FLOATS | ir.AttributeType.STRINGS:
                return list(attribute.value)
        return attribute.value

    def _tensor(self, value: ir.Value) -> gs.Tensor:
        if value not in self._tensors:
            self._tensors[value] = self._new_tensor(value)
        return self._tensors[value]

    def _new_tensor(self, value: ir.Value) -> gs.Tensor:
        if value.is_initializer() and value.const_value is not None:
            made = gs.Constant(value.name, TensorValues(value.const_value, self.loaded))
            tag(made, TensorTag(value, value.graph, None, None, ""))
            return made
        kind, name = value.type, "tensor_type"
        if kind is not None:
            name = _KINDS.get(type(kind), name)
            while isinstance(kind, ir.SequenceType | ir.OptionalType):
                kind = kind.elem_type
        dtype = surgeon_dtype(kind.dtype) if kind is not None else None
        shape = None
        if value.shape is not None:
            shape = [dim if isinstance(dim, int) else dim.value for dim in value.shape]
        made = gs.Variable(value.name, dtype, shape, name)
        tag(made, TensorTag(value, value.graph, dtype, None if shape is None else tuple(shape), name))
        return made
