"""Writes a probe as an ONNX model, with names of its own, so that equal probes give equal bytes.

Constants that can steer an operator keep their elements. Others, weights above all, become inputs of the probe: what a
parser says rarely depends on them, and they need not be copied.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import onnx
import onnx_ir as ir

from passes.graphs.dependencies import Dependencies
from passes.graphs.limits import called_functions
from passes.graphs.tensors import tensor_proto

_IR_VERSION = 10
_INTEGER_BYTES = 1024
"""Integers and bools of up to this many bytes may be shapes, axes, indices: they keep their elements."""
_FLOAT_BYTES = 64
"""Floats of up to this many bytes may be scales, limits, fill values: they keep their elements."""
_INPUT_DTYPES = "FLOAT DOUBLE FLOAT16 BFLOAT16 INT8 INT16 INT32 INT64 UINT8 UINT16 UINT32 UINT64 BOOL"
INPUT_DTYPES = frozenset(ir.DataType[name] for name in _INPUT_DTYPES.split())
"""Dtypes that a runtime takes as inputs if it takes them as constants."""

SAMPLED = "onnx_bridge.sampled"
"""Set in the ``meta`` of a tensor that is a sample of a larger one, which would not keep its elements."""


def keeps_elements(tensor: ir.TensorProtocol) -> bool:
    """Return whether a probe has the elements of a constant, unless it is written in full."""
    if SAMPLED in tensor.meta:
        return False
    if tensor.dtype == ir.DataType.STRING:
        return True
    is_integer = tensor.dtype.is_integer() or tensor.dtype == ir.DataType.BOOL
    return tensor.nbytes <= (_INTEGER_BYTES if is_integer else _FLOAT_BYTES)


@lru_cache(4096)
def _tensor_type(dtype: int, dims: tuple[int | None, ...] | None) -> onnx.TypeProto:
    return onnx.helper.make_tensor_type_proto(dtype, dims)


class ProbeWriter:
    """Writes a probe as a model; values are named in the order in which they occur.

    Args:
        dependencies: the probe's nodes and what they depend on.
        unusual: whether constants keep their elements if they are of dtypes that runtimes do not take as inputs.
        full: whether all constants keep their elements.
    """

    def __init__(
        self, dependencies: Dependencies, outputs: Sequence[ir.Value], *, unusual: bool, full: bool = False
    ) -> None:
        self.dependencies, self.unusual, self.full = dependencies, unusual, full
        self.model = onnx.ModelProto(ir_version=_IR_VERSION)
        self.model.graph.name = "probe"
        self._names: dict[ir.Value, str] = {}
        self._domains = {""}
        for value in dependencies.inputs:
            self._value(value, self.model.graph.input.add())
        for value, tensor in dependencies.constants.items():
            self._constant(value, tensor, self.model.graph)
        nodes = list(dependencies.ordered())
        for node in nodes:
            self._node(node, self.model.graph.node.add())
        for function in reversed(called_functions(nodes, dependencies.scope.model).values()):
            ir.serde.serialize_function_into(self.model.functions.add(), function)
        for value in outputs:
            self._value(value, self.model.graph.output.add())
        self._imports()

    def _name(self, value: ir.Value | None) -> str:
        if value is None or value.name == "":
            return ""
        name = self._names.get(value)
        if name is None:
            name = self._names[value] = f"v{len(self._names)}"
        return name

    def _constant(self, value: ir.Value, tensor: ir.TensorProtocol, graph: onnx.GraphProto) -> None:
        is_unusual = self.unusual and tensor.dtype not in INPUT_DTYPES
        if self.full or is_unusual or keeps_elements(tensor):
            graph.initializer.append(tensor_proto(tensor, self._name(value)))
            return
        name = self._names[value] = f"w{len(self._names)}"  # tells it from inputs that are not constant
        kind = _tensor_type(tensor.dtype.value, tensor.shape.numpy())
        self.model.graph.input.add(name=name, type=kind)

    def _node(self, node: ir.Node, proto: onnx.NodeProto) -> None:
        proto.op_type, proto.domain, proto.overload = node.op_type, node.domain, node.overload
        proto.input.extend([self._name(value) for value in node.inputs])
        proto.output.extend([self._name(value) for value in node.outputs])
        self._domains.add(node.domain)
        for name in sorted(node.attributes):
            attribute = node.attributes[name]
            if attribute.is_ref():
                proto.attribute.append(ir.serde.serialize_attribute(attribute))
                continue
            match attribute.type:
                case ir.AttributeType.TENSOR:
                    tensor = tensor_proto(attribute.value, "")
                    proto.attribute.add(name=name, type=onnx.AttributeProto.TENSOR, t=tensor)
                case ir.AttributeType.GRAPH:
                    self._graph(attribute.value, proto.attribute.add(name=name, type=onnx.AttributeProto.GRAPH).g)
                case ir.AttributeType.GRAPHS:
                    inner = proto.attribute.add(name=name, type=onnx.AttributeProto.GRAPHS)
                    for graph in attribute.value:
                        self._graph(graph, inner.graphs.add())
                case _:
                    proto.attribute.append(ir.serde.serialize_attribute(attribute))

    def _graph(self, graph: ir.Graph, proto: onnx.GraphProto) -> None:
        proto.name = "subgraph"
        for value in graph.inputs:
            self._value(value, proto.input.add())
        for value in graph.initializers.values():
            if value.const_value is not None and not value.is_graph_input():
                self._constant(value, value.const_value, proto)
        for node in graph:
            self._node(node, proto.node.add())
        for value in graph.outputs:
            self._value(value, proto.output.add())

    def _value(self, value: ir.Value, proto: onnx.ValueInfoProto) -> None:
        name = self._name(value)
        scope = self.dependencies.scope
        if value.type is not None and not isinstance(value.type, ir.TensorType):
            ir.serde.serialize_value_into(proto, value)
        elif (dtype := scope.dtype(value)) is not None:
            shape = scope.shape(value)
            dims = None if shape is None else tuple([dim if isinstance(dim, int) else None for dim in shape])
            proto.type.CopyFrom(_tensor_type(dtype.value, dims))
        proto.name = name

    def _imports(self) -> None:
        """Import the domains in use, and the highest opset of all, which some runtimes apply to every domain."""
        imports: Mapping[str, int] = self.dependencies.scope.opset_imports
        highest = max(imports, key=imports.__getitem__, default="")
        for domain in sorted({*self._domains, highest}):
            self.model.opset_import.add(domain=domain, version=imports.get(domain, 1))
