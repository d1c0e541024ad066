"""Make a graphsurgeon graph of a model.

graphsurgeon's own importer takes a protobuf with all weights, and drops most of what it does not show. Here each node
and tensor is tagged with the one of the model that it stands for, so that the exporter can restore what graphsurgeon
does not show, and keep what a script did not change.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import onnx
import onnx_graphsurgeon as gs
import onnx_ir as ir
from onnx_graphsurgeon.util.misc import convert_from_onnx_attr_type

from passes.core.errors import InputError
from passes.graphs.scopes import Scope
from passes.surgeon.graph import SurgeonGraph, SurgeonNode
from passes.surgeon.tags import GraphTag, NodeTag, TensorTag, tag
from passes.surgeon.tensors import ArraySources, TensorValues, surgeon_dtype

_HIDDEN = {
    ir.AttributeType.SPARSE_TENSOR,
    ir.AttributeType.SPARSE_TENSORS,
    ir.AttributeType.TENSORS,
    ir.AttributeType.TYPE_PROTO,
    ir.AttributeType.TYPE_PROTOS,
    ir.AttributeType.UNDEFINED,
}
"""Attributes that graphsurgeon cannot represent."""
_KINDS = {ir.SequenceType: "sequence_type", ir.OptionalType: "optional_type", ir.SparseTensorType: "sparse_tensor_type"}


class Importer:
    """Makes a graphsurgeon graph of a model, which is not changed; ``sources`` records the arrays that are read."""

    def __init__(self, model: ir.Model, sources: ArraySources) -> None:
        self.model, self.sources = model, sources
        self._tensors: dict[ir.Value, gs.Tensor] = {}
        self._names: Counter[str] = Counter()

    def run(self) -> gs.Graph:
        """Return the main graph.

        Raises InputError if a node has an attribute that is a list of graphs, which graphsurgeon cannot represent.
        """
        functions = [self._function(function) for function in self.model.functions.values()]
        model = self.model
        metadata: dict[str, Any] = {
            "producer_name": model.producer_name or "",
            "producer_version": model.producer_version or "",
            "ir_version": model.ir_version,
        }
        scope = Scope(model, model.graph)
        return self._graph(model.graph, scope, {**metadata, "functions": functions})

    def _graph(self, graph: ir.Graph, scope: Scope, metadata: Mapping[str, Any]) -> gs.Graph:
        shown = SurgeonGraph(**self._parts(graph, scope), name=graph.name, **metadata)
        producer = (shown.producer_name, shown.producer_version)
        tag(shown, GraphTag(self.model, self.sources, graph, None, shown.name, shown.opset, producer, shown.ir_version))
        return shown

    def _function(self, function: ir.Function) -> gs.Function:
        attributes, scope = {}, Scope(self.model, function.graph, function)
        for name, attribute in function.attributes.items():
            hidden = attribute.type in _HIDDEN
            attributes[name] = None if hidden else self._attribute(attribute, scope)
        parts = self._parts(function.graph, scope)
        imported = gs.Function(function.name, domain=function.domain, attrs=attributes, **parts)
        tag(imported, GraphTag(self.model, self.sources, function.graph, function, imported.name, imported.opset))
        return imported

    def _parts(self, graph: ir.Graph, scope: Scope) -> dict[str, Any]:
        for value in graph.initializers.values():
            self._tensor(value)
        return {
            "nodes": [self._node(node, scope) for node in graph],
            "inputs": [self._tensor(value) for value in graph.inputs if not value.is_initializer()],
            "outputs": [self._tensor(value) for value in graph.outputs],
            "doc_string": graph.doc_string,
            "opset": scope.opset(),
            "import_domains": [onnx.helper.make_opsetid(*entry) for entry in scope.graph.opset_imports.items()],
        }

    def _node(self, node: ir.Node, scope: Scope) -> gs.Node:
        attributes = {
            name: self._attribute(attribute, scope)
            for name, attribute in node.attributes.items()
            if attribute.type not in _HIDDEN or attribute.is_ref()
        }
        name = self._unique(node.name or node.op_type)
        imported = SurgeonNode(
            node.op_type,
            name,
            dict(attributes),
            inputs=[gs.Variable.empty() if value is None else self._tensor(value) for value in node.inputs],
            outputs=[self._tensor(value) if value.name else gs.Variable.empty() for value in node.outputs],
            domain=node.domain or None,
        )
        shown = {key: list(value) if isinstance(value, list) else value for key, value in attributes.items()}
        tag(imported, NodeTag(node, name, shown))
        return imported

    def _unique(self, name: str) -> str:
        """Return a unique name, since graphsurgeon takes nodes with the same contents for the same node."""
        unique = name
        while self._names[unique]:
            self._names[name] += 1
            unique = f"{name}_{self._names[name]}"
        self._names[unique] += 1
        return unique

    def _attribute(self, attribute: ir.Attr, scope: Scope) -> Any:
        if attribute.is_ref():
            return gs.Node.AttributeRef(attribute.ref_attr_name, convert_from_onnx_attr_type(attribute.type.value))
        match attribute.type:
            case ir.AttributeType.TENSOR:
                tensor = attribute.as_tensor()
                return gs.Constant(tensor.name or "", TensorValues(tensor, self.sources))
            case ir.AttributeType.GRAPH:
                return self._graph(attribute.as_graph(), scope, {})
            case ir.AttributeType.GRAPHS:
                raise InputError(f"graphsurgeon cannot represent the list of graphs {attribute.name}")
            case ir.AttributeType.INTS | ir.AttributeType.FLOATS | ir.AttributeType.STRINGS:
                return list(attribute.value)
        return attribute.value

    def _tensor(self, value: ir.Value) -> gs.Tensor:
        if value not in self._tensors:
            self._tensors[value] = self._new_tensor(value)
        return self._tensors[value]

    def _new_tensor(self, value: ir.Value) -> gs.Tensor:
        if value.is_initializer() and value.const_value is not None:
            imported = gs.Constant(value.name, TensorValues(value.const_value, self.sources))
            tag(imported, TensorTag(value, value.graph, None, None, ""))
            return imported
        kind, name = value.type, "tensor_type"
        if kind is not None:
            name = _KINDS.get(type(kind), name)
            while isinstance(kind, ir.SequenceType | ir.OptionalType):
                kind = kind.elem_type
        dtype = surgeon_dtype(kind.dtype) if kind is not None else None
        shape = None
        if value.shape is not None:
            shape = [dim if isinstance(dim, int) else dim.value for dim in value.shape]
        imported = gs.Variable(value.name, dtype, shape, name)
        tag(imported, TensorTag(value, value.graph, dtype, None if shape is None else tuple(shape), name))
        return imported
