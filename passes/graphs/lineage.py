"""The origin of nodes and values, which passes record in their metadata.

A pass that shifts a quantized value by a constant, together with its zero point, renames it, since its contents differ,
and records the shift with the value, so that the two can still be compared:

    q′ = q + offset        with the zero point z′ = z + offset, so that (q′ − z′)·s = (q − z)·s
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

import msgspec
import numpy as np
import onnx_ir as ir

from passes.graphs.traversal import with_nested

_T = TypeVar("_T")

PASS = "onnx_bridge.pass"
"""The node property that names the pass that made a node."""
ORIGIN = "onnx_bridge.origin"
"""The node property that lists, as JSON, the names of the nodes of the source model that a node replaces."""
MAX_ORIGINS = 1000
"""The most names that `ORIGIN` lists: each of ten thousand nodes may replace all before it."""
SHIFT = "onnx_bridge.shift"
"""The value property with the original name of a value and the offset that was added to it, as JSON."""


def stamp(nodes: Iterable[ir.Node], maker: str, sources: Iterable[ir.Node]) -> None:
    """Record in new nodes which pass made them and which nodes of the source model they replace."""
    text = common_origin(sources)
    for node in with_nested(nodes):
        node.metadata_props[PASS] = maker
        node.metadata_props[ORIGIN] = text


def common_origin(nodes: Iterable[ir.Node]) -> str:
    """Return the property `ORIGIN` of what replaces some nodes: the first `MAX_ORIGINS` names of `origin` of each."""
    names = dict.fromkeys(name for node in nodes for name in origin(node))
    return json.dumps([*names][:MAX_ORIGINS])


def origin(node: ir.Node) -> list[str]:
    """Return the names of the nodes of the source model that a node replaces; its own name if no pass made it."""
    names = replaced(node)
    return [node.name or ""] if names is None else names


def sole_origin(node: ir.Node) -> str | None:
    """Return the name of the only node of the source model that a node replaces, or is; None if there are several."""
    names = origin(node)
    return names[0] if len(names) == 1 else None


def replaced(node: ir.Node) -> list[str] | None:
    """Return the names of the nodes of the source model that a node replaces; None if no pass made it."""
    return recorded(node.metadata_props.get(ORIGIN), list[str])


def recorded(text: str | None, kind: type[_T]) -> _T | None:
    """Return a JSON value of metadata; None for another type, since not only passes write there."""
    try:
        return msgspec.json.decode(text or "", type=kind)
    except (msgspec.MsgspecError, RecursionError):
        return None


@dataclass(frozen=True)
class _Shift:
    value: str
    offset: int


def record_shift(value: ir.Value, before: str, offset: int) -> None:
    """Record that a value is another one plus an offset; successive shifts are added up."""
    earlier = shift_of(value)
    name, offset = (before, offset) if earlier is None else (earlier[0], earlier[1] + offset)
    value.metadata_props[SHIFT] = json.dumps({"value": name, "offset": offset})


def shift_of(value: ir.Value) -> tuple[str, int] | None:
    """Return the original name of a value and the offset added to it; None if it was not shifted."""
    shift = recorded(value.metadata_props.get(SHIFT), _Shift)
    return None if shift is None else (shift.value, shift.offset)


def shifted(array: np.ndarray, offset: int, dtype: np.dtype) -> np.ndarray:
    """Return integers plus an offset, converted to a dtype that can hold them."""
    return (array.astype(np.int64) + offset).astype(dtype)


def unshifted(array: np.ndarray, offset: int) -> np.ndarray:
    """Return the 8-bit integers before a shift; their signedness differs if there is an offset."""
    dtype = array.dtype if not offset else np.dtype(np.uint8 if offset < 0 else np.int8)
    return shifted(array, -offset, dtype)
