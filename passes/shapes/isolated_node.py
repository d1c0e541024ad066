"""A node as a model of its own, which depends on nothing but the node, its types and its small constants."""

from __future__ import annotations

import onnx
import onnx_ir as ir

from passes.graphs.scopes import Scope
from passes.graphs.tensors import tensor_proto
from passes.shapes.skeleton import SMALL


def input_name(index: int) -> str:
    """Return the name of an input in the model; an operand that is given twice has that of its first place."""
    return f"input_{index}"


def output_name(index: int) -> str:
    """Return the name of an output in the model."""
    return f"output_{index}"


def isolated(node: ir.Node, scope: Scope) -> onnx.ModelProto:
    """Return a model of the node, without the opsets that it imports."""
    proto = ir.serde.serialize_node(node)
    for name in ("name", "doc_string", "metadata_props", "device_configurations"):
        proto.ClearField(name)
    names = {value: input_name(index) for index, value in reversed(list(enumerate(node.inputs))) if value is not None}
    proto.input[:] = ["" if value is None else names[value] for value in node.inputs]
    proto.output[:] = [output_name(index) if value.name else "" for index, value in enumerate(node.outputs)]
    graph = onnx.GraphProto(name="node", node=[proto])
    for value, name in names.items():
        tensor = scope.constant(value)
        if tensor is not None and tensor.nbytes <= SMALL:
            graph.initializer.append(tensor_proto(tensor, name))
        else:
            graph.input.append(_info(value, name, scope))
    for value, name in zip(node.outputs, proto.output, strict=True):
        if name:
            graph.output.append(_info(value, name, scope))
    return onnx.ModelProto(ir_version=max(scope.model.ir_version, 8), graph=graph)


def _info(value: ir.Value, name: str, scope: Scope) -> onnx.ValueInfoProto:
    dtype = scope.dtype(value)
    kind = ir.TensorType(dtype) if value.type is None and dtype is not None else value.type
    return ir.serde.serialize_value(ir.Value(name=name, type=kind, shape=scope.shape(value)))
