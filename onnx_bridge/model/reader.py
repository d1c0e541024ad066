"""Conversion of a validated file to an onnx_ir model: weights mapped, nodes named and sorted."""

from __future__ import annotations

import graphlib
import logging
from collections import Counter
from collections.abc import Iterable, MutableMapping
from pathlib import Path
from typing import Any

import onnx_ir as ir
from onnx_ir import serde

from onnx_bridge.core.errors import InputError
from onnx_bridge.model.file import ModelFile
from onnx_bridge.model.storage import MappedTensor, MessageTensor
from passes.graphs import byte_strings
from passes.graphs.limits import check_limits
from passes.graphs.scopes import scopes
from passes.rewriting.invented import define_invented
from passes.rewriting.old_signatures import raise_opset
from passes.shapes.declarations import forget_impossible_sizes

logging.getLogger("onnx_ir").addHandler(logging.NullHandler())  # it would print names of the file as they are

CARRIED = "onnx_bridge.carried"
"""The key in the ``meta`` of a graph of the fields that onnx_ir cannot represent, as spans of the file."""
_PLACEHOLDERS = (
    ir.AttributeType.TENSOR,
    ir.AttributeType.TENSORS,
    ir.AttributeType.STRING,
    ir.AttributeType.STRINGS,
)
"""The types of attributes that may have placeholders."""


def build_model(file: ModelFile) -> ir.Model:
    """Return the model of a file, with every node named, and after those that it depends on.

    Raises InputError if onnx_ir rejects the file, its nodes form a cycle, or it exceeds the limits of
    `passes.graphs.limits`, or a node of an opset before 7 has no equivalent in it.
    """
    try:
        model: ir.Model = ir.from_proto(file.proto)
    except Exception as error:  # onnx_ir wraps any exception
        cause: BaseException = error
        while cause.__cause__:
            cause = cause.__cause__
        raise InputError(f"this model cannot be read: {cause}", where=str(file.path)) from error
    check_limits(model, str(file.path))
    if file.carried:
        model.graph.meta[CARRIED] = file.carried
    for info, value in zip(file.proto.graph.input, model.graph.inputs, strict=True):
        if value.is_graph_output():  # onnx_ir has read what the output declares, which may be less
            serde.deserialize_value_info_proto(info, value)
    for function, proto in zip(model.functions.values(), file.proto.functions, strict=True):
        infos = {info.name: info for info in proto.value_info}
        for value in function.inputs:  # onnx_ir reads the infos of other values itself
            if info := infos.get(str(value.name)):
                serde.deserialize_value_info_proto(info, value)
        _restore_attributes(function.attributes, file)
    every = [graph for scope in scopes(model) for graph in scope.graphs()]
    for graph in every:
        for value in graph.initializers.values():
            value.const_value = _tensor(value.const_value, file)
        for node in graph:
            _restore_attributes(node.attributes, file)
    _name_nodes(every)
    forget_impossible_sizes(model)
    if file.unsorted:
        _sort(model, file.path)
    raise_opset(model, str(file.path))
    define_invented(model)
    return model


def _restore_attributes(attributes: MutableMapping[str, ir.Attr], file: ModelFile) -> None:
    for attribute in [candidate for candidate in attributes.values() if candidate.type in _PLACEHOLDERS]:
        if (restored := _restored(attribute, file)) is not attribute:
            attributes[attribute.name] = restored


def _restored(attribute: ir.Attr, file: ModelFile) -> ir.Attr:
    """Return the attribute with its tensors and strings in place of their placeholders."""
    if attribute.is_ref() or attribute.value is None:
        return attribute
    many = attribute.type in (ir.AttributeType.TENSORS, ir.AttributeType.STRINGS)
    items: list[Any] = list(attribute.value) if many else [attribute.value]
    restored: list[Any]
    if attribute.type in (ir.AttributeType.TENSOR, ir.AttributeType.TENSORS):
        restored = [_tensor(item, file) for item in items]
    else:
        restored = [byte_strings.restored(item, file.token) for item in items]
    if all(new is old for new, old in zip(restored, items, strict=True)):
        return attribute
    value = restored if many else restored[0]
    return ir.Attr(attribute.name, attribute.type, value, doc_string=attribute.doc_string)


def _tensor(tensor: ir.TensorProtocol | None, file: ModelFile) -> ir.TensorProtocol | None:
    """Return a tensor of the message, or mapped from its file in place of its placeholder."""
    if isinstance(tensor, ir.TensorProtoTensor) and tensor.dtype != ir.DataType.STRING:
        return MessageTensor(tensor)
    if not isinstance(tensor, ir.ExternalTensor):
        return tensor
    return MappedTensor(
        file.spans[int(str(tensor.location))],
        tensor.dtype,
        tensor.shape,
        name=tensor.name,
        doc_string=tensor.doc_string,
        metadata_props=tensor.metadata_props,
    )


def _name_nodes(every: Iterable[ir.Graph]) -> None:
    """Give each unnamed node of some graphs a unique name: ``Conv_3``."""
    nodes = [node for graph in every for node in graph]
    taken = {node.name for node in nodes}
    counts: Counter[str] = Counter()
    for node in nodes:
        while not node.name:
            name = f"{node.op_type}_{counts[node.op_type]}"
            counts[node.op_type] += 1
            if name not in taken:
                node.name = name


def _sort(model: ir.Model, path: Path) -> None:
    bodies: list[ir.Graph | ir.Function] = [model.graph, *model.functions.values()]
    for scope in bodies:
        try:
            scope.sort()
        except ValueError:
            raise InputError(f"the model's nodes form a cycle: {_cycle(scope)}", where=str(path)) from None


def _cycle(scope: ir.Graph | ir.Function) -> str:
    """Return the first nodes of a cycle, in words."""
    needs: dict[ir.Node, list[ir.Node]] = {}
    for node in ir.traversal.RecursiveGraphIterator(scope):
        needed = [value.producer() for value in node.inputs if value is not None]
        for attribute in node.attributes.values():
            if attribute.type == ir.AttributeType.GRAPH:
                needed += attribute.as_graph()
            elif attribute.type == ir.AttributeType.GRAPHS:
                needed += [inner for graph in attribute.as_graphs() for inner in graph]
        needs[node] = [value for value in needed if value is not None]
    try:
        graphlib.TopologicalSorter(needs).prepare()
    except graphlib.CycleError as error:
        return " → ".join(f"{node.op_type} {node.name!r}" for node in error.args[1][:5])
    return ""
