"""Convert attributes from graphsurgeon.

A script writes them as plain Python values, whose type may be ambiguous: an empty list, or an integer where the
operator takes a float. Then the previous attribute decides, or else the operator's schema.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import onnx_ir as ir
from onnx_graphsurgeon.util.misc import convert_to_onnx_attr_type

from passes.core.errors import InputError
from passes.core.schemas import schema_of
from passes.surgeon.tensors import ArraySources, TensorValues, data_type, tensor_of

_LISTS = {ir.AttributeType.FLOATS, ir.AttributeType.INTS, ir.AttributeType.STRINGS, ir.AttributeType.TENSORS}
_Kind = ir.AttributeType


def unchanged(value: Any, shown: Any, attribute: ir.Attr) -> bool:
    """Return whether a script left the value of an attribute as it was shown.

    Args:
        value: the value now.
        shown: the value as it was shown.
        attribute: the attribute of the model.
    """
    if isinstance(value, gs.Constant):
        return (
            value is shown
            and isinstance(value._values, TensorValues)
            and value._values.source is attribute.value
            and value._export_dtype is None
        )
    if type(value) is not type(shown) or isinstance(value, gs.Graph):
        return False
    if isinstance(value, list) and isinstance(shown, list):
        return list(map(type, value)) == list(map(type, shown)) and value == shown
    return bool(value == shown)


def attribute_of(
    name: str,
    value: Any,
    node: gs.Node,
    before: ir.Attr | None,
    *,
    opset: int,
    sources: ArraySources,
    graph_of: Callable[[gs.Graph], ir.Graph],
) -> ir.Attr:
    """Return the attribute that a script wrote.

    Args:
        value: what the script wrote.
        before: the previous attribute of this name.
        opset: the version of the node's domain.
        graph_of: converts subgraphs.

    Raises:
        InputError: the value has no type that an attribute can have, or an ambiguous one.
    """
    if isinstance(value, gs.Node.AttributeRef):
        return ir.RefAttr(name, value.name, _Kind(convert_to_onnx_attr_type(value.type)))
    if isinstance(value, gs.Graph):
        return ir.AttrGraph(name, graph_of(value))
    if isinstance(value, gs.Constant):
        return ir.AttrTensor(name, tensor_of(value, sources))
    if isinstance(value, onnx.TensorProto):
        return ir.AttrTensor(name, ir.serde.deserialize_tensor(value))
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, np.dtype | type):
        value = data_type(value).value
    wanted = before.type if before is not None else _declared(name, node, opset)
    if isinstance(value, list | tuple):
        kind = _list_kind(value, wanted)
        values = [tensor_of(element, sources) for element in value] if kind == _Kind.TENSORS else list(value)
        attribute = None if kind is None else ir.Attr(name, kind, _plain(values, kind))
    else:
        kind = _kind(value, wanted)
        attribute = None if kind is None else ir.Attr(name, kind, _plain([value], kind)[0])
    if attribute is None:
        raise InputError(f"the attribute {name}={value!r} of {node.name} ({node.op}) has no ONNX attribute type")
    return attribute


def _declared(name: str, node: gs.Node, opset: int) -> ir.AttributeType | None:
    schema = schema_of(node.op, opset, node.domain or "")
    if schema is None or name not in schema.attributes:
        return None
    kind: Any = schema.attributes[name].type
    return _Kind(int(kind))


def _kind(value: object, wanted: ir.AttributeType | None) -> ir.AttributeType | None:
    if isinstance(value, bool | int | np.integer | np.bool_):
        return _Kind.FLOAT if wanted == _Kind.FLOAT else _Kind.INT
    if isinstance(value, float | np.floating):
        return _Kind.FLOAT
    return _Kind.STRING if isinstance(value, str | bytes) else None


def _list_kind(value: list[Any] | tuple[Any, ...], wanted: ir.AttributeType | None) -> ir.AttributeType | None:
    if not value:
        return wanted if wanted in _LISTS else None
    if all(isinstance(element, gs.Constant) for element in value):
        return _Kind.TENSORS
    kinds = {_kind(element, _Kind.FLOAT if wanted == _Kind.FLOATS else None) for element in value}
    if kinds == {_Kind.INT}:
        return _Kind.INTS
    if kinds == {_Kind.STRING}:
        return _Kind.STRINGS
    return _Kind.FLOATS if kinds <= {_Kind.INT, _Kind.FLOAT} else None


def _plain(values: list[Any], kind: ir.AttributeType) -> list[Any]:
    """Return values as built-in Python types; bytes become str if they are UTF-8."""
    if kind in (_Kind.FLOAT, _Kind.FLOATS):
        return [float(element) for element in values]
    if kind in (_Kind.INT, _Kind.INTS):
        return [int(element) for element in values]
    if kind in (_Kind.STRING, _Kind.STRINGS):
        return [_text(value) for value in values]
    return values


def _text(value: str | bytes) -> str | bytes:
    if isinstance(value, str):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value
