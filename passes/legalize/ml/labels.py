"""Write a LabelEncoder of numbers as a table.

    integers:  Gather([default, …, default], Min(Max(x, least − 1), greatest + 1) − (least − 1))
    floats:    Gather([default, values…], Σₖ k·(x = keyₖ)), k from 1

Skips: strings; keys that occur twice, or are not numbers; integers far apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from passes.builders.arithmetic import Arithmetic
from passes.legalize.ml import common as ml
from passes.legalize.ml.common import DOMAIN, FLOAT, Features
from passes.rewriting.base import Exactness, Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import NodeContext, NodeRewrite

_OLDEST = 12
"""The first opset whose Min and Max take integers."""
_MOST_KEYS, _WIDEST = 4096, 1 << 20
"""The most keys that are floats, and the largest difference of integers."""


@dataclass(frozen=True)
class _Labels(Features):
    keys: np.ndarray
    values: np.ndarray
    default: np.ndarray


class LabelEncoder(NodeRewrite[_Labels]):
    """Write a LabelEncoder of numbers as a table."""

    name = "label-encoder"
    exactness = Exactness.BITWISE
    operators = frozenset({(DOMAIN, "LabelEncoder")})

    def match(self, node: ir.Node, context: NodeContext) -> _Labels | Skip | None:
        """Match numbers whose keys are unique."""
        found = ml.read(node, context.scope, rank=None, oldest=_OLDEST)
        if not isinstance(found, Features):
            return found
        keys, values = _numbers(node, "keys"), _numbers(node, "values")
        if keys is None or values is None or len(keys) != len(values) or not len(keys):
            return Skip("its labels are strings, which run on the host")
        if len(np.unique(keys)) != len(keys) or np.isnan(keys.astype(np.float64)).any():
            return Skip("some of its keys are the same, or not numbers")
        if keys.dtype != found.dtype.numpy():
            return Skip(f"its keys are {keys.dtype}, and its input is not")
        if keys.dtype.kind == "i" and int(keys.max()) - int(keys.min()) > _WIDEST:
            return Skip(f"its keys are up to {int(keys.max()) - int(keys.min())} apart")
        if keys.dtype.kind == "f" and len(keys) > _MOST_KEYS:
            return Skip(f"it has {len(keys)} keys; the limit is {_MOST_KEYS}")
        return _Labels(node, found.dtype, found.shape, keys, values, _default(node, values.dtype))

    def rewrite(self, match: _Labels, edit: Edit) -> Sequence[ir.Value | None]:
        """The entry of each number, or the default."""
        ml.begin(edit)
        x, keys = match.node.inputs[0], match.keys
        assert x is not None
        if keys.dtype.kind == "f":
            a = Arithmetic(edit, FLOAT)
            equal = a("Equal", a.unsqueeze(x, [len(match.shape)]), edit.constant(keys))
            places = a("MatMul", a.cast(equal), np.arange(1, len(keys) + 1)[:, None])
            index = a.cast(a.squeeze(places, [len(match.shape)]), ir.DataType.INT64)
            table = np.concatenate([match.default[None], match.values])
        else:
            a = Arithmetic(edit, match.dtype)
            below, above = keys.min() - 1, keys.max() + 1
            index = a("Sub", a("Min", a("Max", x, below), above), below)
            table = np.full(above - below + 1, match.default, match.values.dtype)
            table[keys - below] = match.values
        return [edit.op("Gather", [edit.constant(table), index], {"axis": 0})]


def _numbers(node: ir.Node, what: str) -> np.ndarray | None:
    """The keys or values, if they are numbers."""
    if f"{what}_int64s" in node.attributes:
        return ml.integers(node, f"{what}_int64s")
    return ml.floats(node, f"{what}_floats") if f"{what}_floats" in node.attributes else None


def _default(node: ir.Node, dtype: np.dtype[Any]) -> np.ndarray:
    if dtype == np.int64:
        return np.array(node.attributes.get_int("default_int64", -1), dtype)
    return np.array(node.attributes.get_float("default_float", -0.0), dtype)


RULES: tuple[NodeRewrite[Any], ...] = (LabelEncoder(),)
"""The rule for LabelEncoder."""
