"""LabelEncoder from numbers to numbers, as a search among its keys.

    y = LabelEncoder(x)  →  hit = (x = keys);  y = values[Where(any(hit), ArgMax(hit), n)]

where values[n], behind all others, is the default.

Where the keys are integers that lie close together, a table is read instead: values[x − least]. Of equal keys, the
first counts. A key that is not a number stands for all that are none.

Skips: strings, as keys or as values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from passes.core.base import Skip
from passes.core.edit import Edit
from passes.core.matching import is_plain
from passes.core.rewrite import Match, NodeContext, NodeRewrite
from passes.legalize.ml import scores as ml
from passes.legalize.ml.scores import DOMAIN, FLOAT

_DENSE = 4
"""A table is read where it has at most so many entries for each key."""
_NUMPY = {"int64s": np.int64, "floats": np.float32}
_DEFAULTS = {"int64s": ("default_int64", -1), "floats": ("default_float", -0.0)}


@dataclass(frozen=True)
class _Encoding(Match):
    keys: np.ndarray
    values: np.ndarray
    default: np.ndarray
    """Of the values' dtype."""


class LabelEncoder(NodeRewrite[_Encoding]):
    """Write a LabelEncoder as a search."""

    name = "label-encoder"
    operators = frozenset({(DOMAIN, "LabelEncoder")})

    def match(self, node: ir.Node, context: NodeContext) -> _Encoding | Skip | None:
        """Read what is mapped to what."""
        scope = context.scope
        if not is_plain(node, scope) or not node.inputs or node.inputs[0] is None:
            return None
        if scope.opset_imports.get("", 13) < 11:
            return Skip(f"opset {scope.opset()} is too old: use convert-opset")
        keys, values = _read(node, "keys"), _read(node, "values")
        if keys is None or values is None:
            return Skip("its keys or values are strings, which are for the host")
        if len(keys) != len(values) or not len(keys):
            return Skip(f"it has {len(keys)} keys and {len(values)} values")
        dtype, shape = scope.dtype(node.inputs[0]), scope.shape(node.inputs[0])
        if dtype is None or dtype.numpy() != keys.dtype or shape is None:
            return Skip(f"it takes {dtype} of a shape that is unknown, or that its keys, {keys.dtype}, do not have")
        return _Encoding(node, *_distinct(keys, values), _default(node, values))

    def rewrite(self, match: _Encoding, edit: Edit) -> Sequence[ir.Value | None]:
        """The value of the key that is found, or the default."""
        ml.begin(edit)
        value = match.node.inputs[0]
        assert value is not None
        span = int(match.keys.max()) - int(match.keys.min()) + 1 if match.keys.dtype.kind == "i" else 0
        if 0 < span <= max(_DENSE * len(match.keys), 16):
            return [self._look_up(match, value, span, edit)]
        shape = edit.scope.shape(value)
        assert shape is not None
        axis = edit.constant(np.array([len(shape)]))
        column = edit.op("Unsqueeze", [value, axis])
        hits = edit.op("Equal", [column, edit.constant(match.keys)])
        if np.isnan(match.keys.astype(np.float64)).any():
            is_key = edit.constant(np.isnan(match.keys))
            hits = edit.op("Or", [hits, edit.op("And", [edit.op("IsNaN", [column]), is_key])])
        score = edit.op("Cast", [hits], {"to": FLOAT.value})
        best = edit.op("ArgMax", [score], {"axis": len(shape), "keepdims": 0})
        hit = edit.op("Greater", [edit.op("ReduceMax", [score, axis], {"keepdims": 0}), ml.number(0.5, score, edit)])
        index = edit.op("Where", [hit, best, edit.constant(np.array(len(match.keys), np.int64))])
        return [edit.op("Gather", [edit.constant(np.append(match.values, match.default)), index], {"axis": 0})]

    def _look_up(self, match: _Encoding, value: ir.Value, span: int, edit: Edit) -> ir.Value:
        """A table of all numbers from the least key to the greatest, and one entry for those beyond."""
        least = int(match.keys.min())
        table = np.full(span + 1, match.default, match.values.dtype)
        table[match.keys.astype(np.int64) - least] = match.values
        number = ml.cast(value, ir.DataType.INT64, edit)
        first, last = (edit.constant(np.array(each, np.int64)) for each in (least, least + span - 1))
        beyond = edit.op("Or", [edit.op("Less", [number, first]), edit.op("Greater", [number, last])])
        inside = edit.op("Sub", [edit.op("Where", [beyond, first, number]), first])
        index = edit.op("Where", [beyond, edit.constant(np.array(span, np.int64)), inside])
        return edit.op("Gather", [edit.constant(table), index], {"axis": 0})


def _read(node: ir.Node, side: str) -> np.ndarray | None:
    """Keys or values; None for strings."""
    for kind, dtype in _NUMPY.items():
        if f"{side}_{kind}" in node.attributes:
            return np.array(node.attributes[f"{side}_{kind}"].value, dtype)
    attribute = node.attributes.get(f"{side}_tensor")
    if attribute is None or attribute.as_tensor().dtype == ir.DataType.STRING:
        return None
    return attribute.as_tensor().numpy().ravel()


def _default(node: ir.Node, values: np.ndarray) -> np.ndarray:
    """What stands for what no key is."""
    attribute = node.attributes.get("default_tensor")
    if attribute is not None and attribute.as_tensor().dtype.numpy() == values.dtype:
        return attribute.as_tensor().numpy().reshape(())
    name, otherwise = _DEFAULTS["floats" if values.dtype.kind == "f" else "int64s"]
    given = node.attributes.get(name)
    return np.array(otherwise if given is None else given.value, values.dtype)


def _distinct(keys: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Keys without those that came before."""
    _, first = np.unique(keys, return_index=True)
    first.sort()
    return keys[first], values[first]


RULES: tuple[NodeRewrite[Any], ...] = (LabelEncoder(),)
