"""Models as inference is given them: structure, types, and the constants that are small enough to be shapes or axes.

`onnx.shape_inference` takes a serialized model, so that weights would be copied; ONNX Runtime is given the same.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Set
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count

import onnx
import onnx_ir as ir

from passes.graphs.scopes import DISPUTED, Scope, values_of
from passes.graphs.tensors import constant_of, tensor_proto, write_info
from passes.shapes.corrections.nodes import dim_of, tensor_type
from passes.shapes.corrections.protocol import DETACHED

SMALL = 1024
"""The most bytes of a constant that inference may read."""
DOMAINS = ("", "ai.onnx.ml")
"""The domains whose operators ONNX infers; of others, what is declared is taken."""
Known = tuple[ir.TypeProtocol | None, ir.Shape | None]
"""A type and a shape; None for what is not known."""
Info = onnx.ValueInfoProto | ir.TensorProtocol
"""The inferred type and shape of a value; of a constant, the tensor itself. See `read`."""


def message(model: ir.Model) -> onnx.ModelProto:
    """Return a model with the opsets and functions of another, and an empty graph."""
    proto = onnx.ModelProto(ir_version=max(model.ir_version, 4))  # so that initializers need not be inputs
    imports = Scope(model, model.graph).opset_imports.items()
    proto.opset_import.extend(onnx.helper.make_opsetid(*entry) for entry in imports)
    for function in model.functions.values():
        ir.serde.serialize_function_into(proto.functions.add(), function)
    return proto


@contextmanager
def distinct_names(model: ir.Model) -> Iterator[set[str]]:
    """Give values of subgraphs that have the names of others their own for a while.

    ONNX knows one type, and one list of elements, for each name. Yields the names that only initializers share, which
    keep them.
    """
    taken: set[str | None] = set()
    shared: set[str] = set()
    renamed: dict[ir.Value, str] = {}
    for value in values_of(model):
        if value.name and value.name in taken:
            if value.is_initializer():
                shared.add(value.name)
            else:
                renamed[value] = value.name
        taken.add(value.name)
    for value in values_of(model) if shared else ():
        if value.name in shared and not value.is_initializer():
            renamed[value] = str(value.name)
    numbers = count()
    for value, name in renamed.items():
        value.name = next(new for number in numbers if (new := f"{name} {number}") not in taken)
    try:
        yield shared
    finally:
        for value, name in renamed.items():
            value.name = name


def overridable(model: ir.Model) -> set[str]:
    """Return the names of initializers that callers may replace, whose elements are no constants."""
    scope = Scope(model, model.graph)
    return {str(value.name) for value in model.graph.inputs if value.is_initializer() and not scope.is_parameter(value)}


@dataclass(frozen=True)
class Skeleton:
    """A writer of models for inference.

    Attributes:
        declared: include known types and shapes of results.
        variable: names of initializers of which only the type is written (`overridable`).
        functions: functions of the model, through which ONNX infers.
        for_onnx: whether it is ONNX that infers.
    """

    declared: bool
    variable: Set[str]
    functions: Collection[ir.OperatorIdentifier] = ()
    for_onnx: bool = False

    def write(self, graph: ir.Graph, proto: onnx.GraphProto) -> None:
        proto.name = graph.name or "graph"
        for value in graph.inputs:
            write_info(value, proto.input.add())
        for value in graph.initializers.values():
            if value.const_value is None or (value.is_graph_input() and value.name in self.variable):
                continue
            _constant(value, value.const_value, proto, most=-1 if value.name in self.variable else SMALL)
        for value, constant in self._captured(graph):
            _constant(value, constant, proto)
        for node in graph:
            tensor = constant_of(node)
            if tensor is not None:
                _constant(node.outputs[0], tensor, proto)
                continue
            self._write_node(node, proto.node.add())
            for value in node.outputs:
                known = value.name and value.type is not None and not value.is_graph_output() and is_undisputed(value)
                if known and (self.declared or self._is_beyond_onnx(value, node)):
                    ir.serde.serialize_value_into(proto.value_info.add(), value)
        for value in graph.outputs:
            self._write_output(value, graph, proto.output.add())

    def _captured(self, graph: ir.Graph) -> Iterator[tuple[ir.Value, ir.TensorProtocol]]:
        """Yield the small constants that a subgraph takes from outside, of which ONNX sees only the types there."""
        taken = (value for node in graph for value in node.inputs if value is not None and value.graph is not graph)
        for value in dict.fromkeys(taken) if self.for_onnx else ():
            producer = value.producer()
            tensor = constant_of(producer) if producer is not None else value.const_value
            if tensor is not None and value.name not in self.variable and tensor.nbytes <= SMALL:
                yield value, tensor

    def _write_output(self, value: ir.Value, graph: ir.Graph, info: onnx.ValueInfoProto) -> None:
        write_info(value, info)
        producer = value.producer()
        tensor = value.const_value or (constant_of(producer) if producer is not None else None)
        if tensor is not None and not value.is_graph_input():
            info.type.CopyFrom(tensor_type(tensor.dtype.value, tensor.shape.numpy()))
            return
        known = self.declared or value.is_graph_input()  # ONNX would take an input for what its output says
        known |= producer is not None and producer.graph is graph and self._is_beyond_onnx(value, producer)
        if info.type.HasField("tensor_type") and not (known and is_undisputed(value)):
            info.type.tensor_type.ClearField("shape")

    def _is_beyond_onnx(self, value: ir.Value, node: ir.Node) -> bool:
        """Return whether ONNX does not infer a shape: after foreign operators, and of what a loop carries."""
        foreign = node.domain not in DOMAINS and node.op_identifier() not in self.functions
        return foreign or value in carried_outputs(node)

    def _write_node(self, node: ir.Node, proto: onnx.NodeProto) -> None:
        proto.op_type, proto.domain, proto.overload = node.op_type, node.domain, node.overload
        if node.domain == "com.microsoft" and node.op_type in ("QuantizeLinear", "DequantizeLinear"):
            proto.domain = ""  # inference is the same as for ONNX's, and ONNX does not have these
        proto.input.extend("" if value is None else str(value.name) for value in node.inputs)
        proto.output.extend(value.name or "" for value in node.outputs)
        for attribute in node.attributes.values():
            if attribute.type == ir.AttributeType.GRAPH and not attribute.is_ref():
                graph = proto.attribute.add(name=attribute.name, type=onnx.AttributeProto.GRAPH).g
                self.write(attribute.as_graph(), graph)
            else:
                proto.attribute.append(ir.serde.serialize_attribute(attribute))
        for index, value in enumerate(carried_outputs(node) if self.for_onnx else ()):
            if value.name and not isinstance(value.type, ir.TensorType | None):
                proto.output[index] += DETACHED  # ONNX says that the elements of sequences stay as they enter


def is_undisputed(value: ir.Value) -> bool:
    """Return whether inference can rely on what a script declared of a value."""
    return DISPUTED not in value.meta


def _constant(value: ir.Value, tensor: ir.TensorProtocol, proto: onnx.GraphProto, *, most: int = SMALL) -> None:
    """Add a constant: with its elements if these are at most so many bytes, otherwise by its type."""
    name, dtype, dims = value.name or "", tensor.dtype, tensor.shape.numpy()  # which is slow, and so read once
    is_text = dtype == ir.DataType.STRING
    if (tensor.nbytes if is_text else math.prod(dims) * dtype.bitwidth // 8) > most:
        proto.value_info.add(name=name, type=tensor_type(dtype.value, dims))
    elif is_text:
        proto.initializer.append(tensor_proto(tensor, name))
    else:
        proto.initializer.add(name=name, data_type=dtype.value, dims=dims, raw_data=tensor.tobytes())


def inferred(graph: ir.Graph, proto: onnx.GraphProto) -> Iterator[tuple[ir.Value, Info]]:
    """Yield the values of a graph and of its subgraphs with what was inferred of them in the message."""
    infos = {info.name: info for info in (*proto.value_info, *proto.output)}
    messages = iter(proto.node)
    for node in graph:
        tensor = constant_of(node)
        if tensor is not None:
            yield node.outputs[0], tensor
            continue
        inner = next(messages)
        for value in node.outputs:
            if value.name in infos:
                yield value, infos[value.name]
        for attribute in inner.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from inferred(node.attributes[attribute.name].as_graph(), attribute.g)


def read(info: Info) -> Known:
    """Return the inferred type and shape; None for what is not inferred."""
    if not isinstance(info, onnx.ValueInfoProto):
        return ir.TensorType(info.dtype), ir.Shape(info.shape.numpy())
    if info.type.WhichOneof("value") == "tensor_type":  # onnx_ir's own way takes three times as long
        tensor, denotation = info.type.tensor_type, info.type.denotation or None
        kind = ir.TensorType(ir.DataType(tensor.elem_type), denotation=denotation) if tensor.elem_type else None
        return kind, ir.Shape(map(dim_of, tensor.shape.dim)) if tensor.HasField("shape") else None
    other = ir.serde.deserialize_type_proto_for_type(info.type)
    shape = ir.serde.deserialize_type_proto_for_shape(info.type)
    if shape is not None:
        shape = ir.Shape([None if str(dim).startswith("unk__") else dim for dim in shape])
    return None if other is None or other.dtype == ir.DataType.UNDEFINED else other, shape


_TURN = 2
"""The inputs of a Loop's body before the carried ones: the number of the iteration, and the condition."""


@dataclass(frozen=True)
class Parameter:
    """An input of a body that a value is passed to.

    Attributes:
        source: what is passed in the first iteration; of a scanned value, the whole of it.
        removed: the axes of the source that the input does not have.
        result: what is passed in the next iteration, if the input is carried.
        final: the output of the node that is the last of these values, if the input is carried.
    """

    value: ir.Value
    source: ir.Value | None
    removed: tuple[int, ...] = ()
    result: ir.Value | None = None
    final: ir.Value | None = None


def body_of(node: ir.Node) -> ir.Graph | None:
    """Return the body of a Loop, Scan or SequenceMap; None for other nodes."""
    if node.domain != "" or node.op_type not in ("Loop", "Scan", "SequenceMap"):
        return None
    body = node.attributes.get("body")
    return None if body is None or body.is_ref() else body.as_graph()


def carried_outputs(node: ir.Node) -> tuple[ir.Value, ...]:
    """Return the outputs of a Loop or Scan that are the last of what it carries."""
    body = body_of(node)
    return () if body is None else tuple(node.outputs[: _carried_count(node, body)])


def parameters(scope: Scope) -> Iterator[Parameter]:
    """Yield the inputs of all bodies of a scope, those of outer bodies first."""
    for node in scope.nodes():
        body = body_of(node)
        if body is None:
            continue
        count = _carried_count(node, body)
        batched = node.op_type == "Scan" and scope.opset() < 9
        given = node.inputs[1 if batched else 0 :]
        if node.op_type == "Loop":
            pairs, results = list(zip(body.inputs[_TURN:], given[_TURN:], strict=False)), body.outputs[1:]
        else:
            pairs, results = list(zip(body.inputs, given, strict=False)), body.outputs
        for index, (value, source) in enumerate(pairs):
            lead = (0,) if batched else ()
            if index >= count:
                scanned = node.op_type == "Scan"
                yield Parameter(value, source, (*lead, _scanned_axis(node, index - count, batched)) if scanned else ())
            elif index < min(len(results), len(node.outputs)):
                yield Parameter(value, source, lead, results[index], node.outputs[index])


def _carried_count(node: ir.Node, body: ir.Graph) -> int:
    if node.op_type == "SequenceMap":
        return 0
    others = _TURN if node.op_type == "Loop" else node.attributes.get_int("num_scan_inputs", 0)
    return max(len(body.inputs) - others, 0)


def _scanned_axis(node: ir.Node, index: int, batched: bool) -> int:
    axes = node.attributes.get_ints("scan_input_axes", [])
    return 1 if batched else axes[index] if index < len(axes) else 0
