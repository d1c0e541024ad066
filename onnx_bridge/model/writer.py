"""Serialization of an onnx_ir model without copying its weights.

onnx_ir's own serialization copies every tensor in memory, writes the types of initializers twice, duplicates the
metadata of tensors, and drops trailing optional outputs; so the containers are serialized here, and their parts by
onnx_ir.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

import onnx
import onnx_ir as ir
from onnx_ir import serde

from onnx_bridge.core.errors import InputError
from onnx_bridge.model.reader import CARRIED
from onnx_bridge.model.storage import elements, packed_size
from onnx_bridge.model.wire_format import BIG, Rope
from passes.graphs.tensors import write_info

Placement = Callable[[ir.Value, ir.TensorProtocol], Mapping[str, str] | None]
"""Returns the ``external_data`` of an initializer, or None to put its elements into the message.

MIGraphX reads ``external_data`` by position, so its entries are location, offset, length, in this order.
"""

_VALUE_INFO_IN_FUNCTIONS = 10
"""The first IR version in which functions have a ``value_info``; before, exporters use that of the graph."""
_QUANTIZATION = "quant_parameter_tensor_names"
"""The key in the ``meta`` of a value under which onnx_ir keeps its quantization annotation."""


def inline(value: ir.Value, tensor: ir.TensorProtocol) -> None:
    """Place everything into the message (`Placement`)."""


def serialize(model: ir.Model, placement: Placement = inline) -> Rope:
    """Serialize a model as a ModelProto; the model is not changed.

    Raises InputError if an initializer has no value, or a string is not UTF-8.
    """
    try:
        return _model(model, placement)
    except UnicodeError as error:
        text = error.object if isinstance(error, UnicodeDecodeError) else error
        what = f"a doc string or other text in the model is not UTF-8, and cannot be written: {text!r}"
        raise InputError(what, where=model.graph.name, hint="remove or replace it") from error


def _model(model: ir.Model, placement: Placement) -> Rope:
    names = ("ir_version", "producer_name", "producer_version", "domain", "model_version", "doc_string")
    proto = onnx.ModelProto(**{name: getattr(model, name) for name in names})
    _opset_imports(proto.opset_import, model.opset_imports)
    _entries(proto.metadata_props, model.metadata_props)
    for configuration in model.device_configurations:
        proto.configuration.append(serde.serialize_model_configuration(configuration))

    infos: list[onnx.ValueInfoProto] = []
    functions = []
    for function in model.functions.values():
        functions.append(_function(function, placement, infos, model.ir_version >= _VALUE_INFO_IN_FUNCTIONS))
    rope = Rope(proto.SerializeToString())
    rope.field(7, _graph(model.graph, placement, infos))
    for written in functions:
        rope.field(25, written)
    for span in model.graph.meta.get(CARRIED, ()):
        rope.add(span.view().tobytes())
    return rope


def _graph(graph: ir.Graph, placement: Placement, infos: list[onnx.ValueInfoProto] | None = None) -> Rope:
    rope = Rope()
    for node in graph:
        rope.field(1, _node(node, placement))
    for value in graph.initializers.values():
        if value.const_value is None:
            raise InputError("the initializer has no value", where=f"initializer {value.name!r}")
        external = placement(value, value.const_value)
        rope.field(5, _tensor(value.const_value, value.name, external))

    proto = onnx.GraphProto(name=graph.name, doc_string=graph.doc_string)
    for value in graph.inputs:
        write_info(value, proto.input.add())
    for value in graph.outputs:
        write_info(value, proto.output.add())
    inner = [value for value in graph.initializers.values() if not _is_redundant(value)]
    inner += [value for node in graph for value in node.outputs]
    for value in inner:
        if not value.is_graph_input() and not value.is_graph_output() and _has_info(value):
            write_info(value, proto.value_info.add())
    proto.value_info.extend(infos or ())
    every = [*graph.inputs, *graph.initializers.values(), *(value for node in graph for value in node.outputs)]
    for value in dict.fromkeys(every):
        if parameters := value.meta.get(_QUANTIZATION):
            annotation = proto.quantization_annotation.add(tensor_name=value.name)
            _entries(annotation.quant_parameter_tensor_names, parameters)
    _entries(proto.metadata_props, graph.metadata_props)
    rope.add(proto.SerializeToString())
    return rope


def _function(function: ir.Function, placement: Placement, infos: list[onnx.ValueInfoProto], own_infos: bool) -> Rope:
    """Serialize a function; the types of its values go into it, or into ``infos`` under qualified names."""
    overload, note = function.overload or None, function.doc_string
    proto = onnx.FunctionProto(name=function.name, domain=function.domain, overload=overload, doc_string=note)
    proto.input.extend(value.name for value in function.inputs)
    proto.output.extend(value.name for value in function.outputs)
    _opset_imports(proto.opset_import, function.opset_imports)
    _entries(proto.metadata_props, function.metadata_props)
    for value in (*function.inputs, *(value for node in function for value in node.outputs)):
        if _has_info(value):
            name = "" if own_infos else f"{function.domain}::{function.name}/{value.name}"
            info = onnx.ValueInfoProto()
            write_info(value, info, name)
            (proto.value_info if own_infos else infos).append(info)
    rope = Rope()
    for attribute in function.attributes.values():
        if attribute.value is None and not attribute.is_ref():
            proto.attribute.append(attribute.name)
        else:
            rope.field(11, _attribute(attribute, placement))
    for node in function:
        rope.field(7, _node(node, placement))
    rope.add(proto.SerializeToString())
    return rope


def _node(node: ir.Node, placement: Placement) -> Rope:
    given = {name: getattr(node, name) or None for name in ("domain", "name", "overload")}
    proto = onnx.NodeProto(op_type=node.op_type, doc_string=node.doc_string, **given)
    proto.input.extend("" if value is None else value.name for value in node.inputs)
    proto.output.extend(value.name for value in node.outputs)
    _entries(proto.metadata_props, node.metadata_props)
    for configuration in node.device_configurations:
        proto.device_configurations.append(serde.serialize_node_device_configuration(configuration))
    rope = Rope(proto.SerializeToString())
    for attribute in node.attributes.values():
        rope.field(5, _attribute(attribute, placement))
    return rope


def _attribute(attribute: ir.Attr, placement: Placement) -> Rope | bytes:
    if attribute.is_ref():
        return bytes(serde.serialize_reference_attribute(attribute).SerializeToString())
    kind, value = attribute.type, attribute.value
    parts: list[tuple[int, Rope]] = []
    if kind == ir.AttributeType.TENSOR:
        parts = [(5, _tensor(value, value.name))]
    elif kind == ir.AttributeType.TENSORS:
        parts = [(10, _tensor(tensor, tensor.name)) for tensor in value]
    elif kind == ir.AttributeType.GRAPH:
        parts = [(6, _graph(value, placement))]
    elif kind == ir.AttributeType.GRAPHS:
        parts = [(11, _graph(graph, placement)) for graph in value]
    else:
        return bytes(serde.serialize_attribute(attribute).SerializeToString())
    proto = onnx.AttributeProto(name=attribute.name, type=onnx.AttributeProto.AttributeType.Name(int(kind)))
    if attribute.doc_string is not None:
        proto.doc_string = attribute.doc_string
    rope = Rope(proto.SerializeToString())
    for number, part in parts:
        rope.field(number, part)
    return rope


def _tensor(tensor: ir.TensorProtocol, name: str | None, external: Mapping[str, str] | None = None) -> Rope:
    proto = onnx.TensorProto()
    large = None
    if isinstance(tensor, ir.TensorProtoTensor) and external is None and not _has_numbers(tensor.raw):
        proto.CopyFrom(tensor.raw)
        del proto.metadata_props[:]
    else:
        proto.dims.extend(tensor.shape.numpy())
        proto.data_type = tensor.dtype.value
        if tensor.doc_string is not None:
            proto.doc_string = tensor.doc_string
        if external is not None:
            proto.data_location = onnx.TensorProto.EXTERNAL
            _entries(proto.external_data, external)
        elif isinstance(tensor, ir.StringTensor):
            proto.string_data.extend(tensor.string_data())
        elif packed_size(tensor.dtype, tensor.size) < BIG:
            proto.raw_data = elements(tensor).view().tobytes()
        else:
            large = elements(tensor)
    if name:
        proto.name = name
    _entries(proto.metadata_props, tensor.metadata_props)
    rope = Rope(proto.SerializeToString())
    if large is not None:
        rope.field(9, large)
    return rope


def _has_numbers(proto: onnx.TensorProto) -> bool:
    """Return whether the elements are a list of numbers, which are written as bytes, as in probes.

    If the entries of ``int32_data`` are bit patterns, MIGraphX takes them for numbers (float8e4m3fnuz) or refuses
    them (bfloat16).
    """
    return proto.data_type != onnx.TensorProto.STRING and not proto.HasField("raw_data")


def _is_redundant(value: ir.Value) -> bool:
    """Return whether the value info of an initializer only repeats the type of its tensor."""
    tensor = value.const_value
    return (
        tensor is not None
        and value.type == ir.TensorType(tensor.dtype)
        and value.shape == tensor.shape
        and not value.doc_string
        and not value.metadata_props
    )


def _has_info(value: ir.Value) -> bool:
    known = value.type is not None or value.shape is not None or value.doc_string or value.metadata_props
    return bool(value.name and known)


def _opset_imports(imports: Any, versions: Mapping[str, int]) -> None:
    for domain, version in versions.items():
        imports.add(domain=domain, version=version)


def _entries(entries: Any, mapping: Mapping[str, str] | MutableMapping[str, str]) -> None:
    for key, value in mapping.items():
        entries.add(key=key, value=value)
