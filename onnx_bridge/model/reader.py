"""Making an onnx_ir model of a checked file: weights mapped, nodes named and in order."""

from __future__ import annotations

import graphlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx_ir as ir
from onnx_ir import serde

from onnx_bridge.core.errors import InputError
from onnx_bridge.model.file import ModelFile
from onnx_bridge.model.storage import MappedTensor

CARRIED = "onnx_bridge.carried"
"""Where a graph's ``meta`` keeps the parts of its model file that onnx_ir has no place for, as spans."""


class _Undecodable(str):
    """A string attribute that is not UTF-8: its text has surrogate escapes, and it is written as the bytes it was."""

    __slots__ = ()

    def encode(self, encoding: str = "utf-8", errors: str = "surrogateescape") -> bytes:
        return super().encode(encoding, errors)


def build(file: ModelFile) -> ir.Model:
    """The model of a file.

    Every node has a name, and nodes come after those that they need.

    Raises:
        InputError: onnx_ir does not take it, or its nodes wait for each other.
    """
    try:
        model: ir.Model = ir.from_proto(file.proto)
    except Exception as error:  # onnx_ir wraps whatever comes
        cause: BaseException = error
        while cause.__cause__:
            cause = cause.__cause__
        raise InputError(f"this model cannot be read: {cause}", where=str(file.path)) from error
    if file.carried:
        model.graph.meta[CARRIED] = file.carried
    for function, proto in zip(model.functions.values(), file.proto.functions, strict=True):
        infos = {info.name: info for info in proto.value_info}
        for value in function.inputs:  # onnx_ir reads the others
            if info := infos.get(str(value.name)):
                serde.deserialize_value_info_proto(info, value)
        for attribute in list(function.attributes.values()):
            if (mended := _mended(attribute, file)) is not attribute:
                function.attributes[attribute.name] = mended
    for scope in _scopes(model):
        if isinstance(scope, ir.Graph):
            for value in scope.initializers.values():
                if isinstance(value.const_value, ir.ExternalTensor):
                    value.const_value = _mapped(value.const_value, file)
        for node in scope:
            for attribute in list(node.attributes.values()):
                if (mended := _mended(attribute, file)) is not attribute:
                    node.attributes[attribute.name] = mended
    _name_nodes(model)
    if file.unsorted:
        _sort(model, file.path)
    return model


def _mended(attribute: ir.Attr, file: ModelFile) -> ir.Attr:
    """An attribute with its own tensors and strings in place of those that stood for them."""
    if attribute.is_ref() or attribute.value is None:
        return attribute
    many = attribute.type in (ir.AttributeType.TENSORS, ir.AttributeType.STRINGS)
    items: list[Any] = list(attribute.value) if many else [attribute.value]
    if attribute.type in (ir.AttributeType.TENSOR, ir.AttributeType.TENSORS):
        mended = [_mapped(item, file) if isinstance(item, ir.ExternalTensor) else item for item in items]
    elif attribute.type in (ir.AttributeType.STRING, ir.AttributeType.STRINGS):
        mended = [_unescaped(item, file.token) for item in items]
    else:
        return attribute
    if all(new is old for new, old in zip(mended, items, strict=True)):
        return attribute
    value = mended if many else mended[0]
    return ir.Attr(attribute.name, attribute.type, value, doc_string=attribute.doc_string)


def _unescaped(text: str, token: str) -> str:
    if not text.startswith(token):
        return text
    return _Undecodable(bytes.fromhex(text[len(token) :]).decode("utf-8", "surrogateescape"))


def _mapped(tensor: ir.ExternalTensor, file: ModelFile) -> MappedTensor:
    return MappedTensor(
        file.spans[int(str(tensor.location))],
        tensor.dtype,
        tensor.shape,
        name=tensor.name,
        doc_string=tensor.doc_string,
        metadata_props=tensor.metadata_props,
    )


def _scopes(model: ir.Model) -> Iterator[ir.Graph | ir.Function]:
    """Everything that has nodes."""
    yield from model.graphs()
    for function in model.functions.values():
        yield function
        yield from function.subgraphs()


def _name_nodes(model: ir.Model) -> None:
    """Give each unnamed node a name of its own: ``Conv_3``."""
    scopes = list(_scopes(model))
    taken = {node.name for scope in scopes for node in scope}
    counts: Counter[str] = Counter()
    for scope in scopes:
        for node in scope:
            while not node.name:
                name = f"{node.op_type}_{counts[node.op_type]}"
                counts[node.op_type] += 1
                if name not in taken:
                    node.name = name


def _sort(model: ir.Model, path: Path) -> None:
    scopes: list[ir.Graph | ir.Function] = [model.graph, *model.functions.values()]
    for scope in scopes:
        try:
            scope.sort()
        except ValueError:
            raise InputError(f"its nodes form a cycle: {_cycle(scope)}", where=str(path)) from None


def _cycle(scope: ir.Graph | ir.Function) -> str:
    """A few nodes, each of which needs the one before."""
    needs: dict[ir.Node, list[ir.Node]] = {}
    for node in ir.traversal.RecursiveGraphIterator(scope):
        needed = [value.producer() for value in node.inputs if value is not None]
        for attribute in node.attributes.values():
            if attribute.type == ir.AttributeType.GRAPH:
                needed += attribute.as_graph()
            elif attribute.type == ir.AttributeType.GRAPHS:
                needed += [inner for graph in attribute.as_graphs() for inner in graph]
        needs[node] = [each for each in needed if each is not None]
    try:
        graphlib.TopologicalSorter(needs).prepare()
    except graphlib.CycleError as error:
        return " → ".join(f"{node.op_type} {node.name!r}" for node in error.args[1][:5])
    return ""
