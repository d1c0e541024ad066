"""Write a LabelEncoder of numbers as a table.

    integers:  Gather([default, …, default], Min(Max(x, least − 1), greatest + 1) − (least − 1))
    floats:    Gather([default, values…], Σₖ k·(x = keyₖ)), k from 1

Skips: strings; keys that occur twice, or are not numbers; integers far apart.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from passes.builders.arithmetic import Arithmetic
from passes.legalize.ml import common as ml
from passes.legalize.ml.common import FLOAT
from passes.rewriting.base import Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import Replacement, rewrite

_MOST_KEYS, _WIDEST = 4096, 1 << 20
"""The most keys that are floats, and the largest difference of integers."""


@rewrite(
    "ai.onnx.ml.LabelEncoder",
    since_opset=12,  # Min and Max of integers
    needs_shape=(0,),
    needs_dtype=(0,),
)
def look_up_labels(node: ir.Node, edit: Edit) -> Replacement:
    """Write a LabelEncoder of numbers as a table."""
    features, keys, values = ml.read(node, edit, rank=None), _numbers(node, "keys"), _numbers(node, "values")
    if keys is None or values is None or len(keys) != len(values) or not len(keys):
        return Skip("the labels are strings, which run on the host")
    if len(np.unique(keys)) != len(keys) or np.isnan(keys.astype(np.float64)).any():
        return Skip("some keys are the same, or not numbers")
    if keys.dtype != features.dtype.numpy():
        return Skip(f"the keys are {keys.dtype}, and the input is not")
    if keys.dtype.kind == "i" and int(keys.max()) - int(keys.min()) > _WIDEST:
        return Skip(f"the keys are up to {int(keys.max()) - int(keys.min())} apart")
    if keys.dtype.kind == "f" and len(keys) > _MOST_KEYS:
        return Skip(f"there are {len(keys)} keys; the limit is {_MOST_KEYS}")
    default, rank = _default(node, values.dtype), len(features.shape)
    if keys.dtype.kind == "f":
        a = Arithmetic(edit, FLOAT)
        is_key = a("Equal", a.unsqueeze(features.value, [rank]), edit.constant(keys))
        places = a("MatMul", a.cast(is_key), np.arange(1, len(keys) + 1)[:, None])
        index = a.cast(a.squeeze(places, [rank]), ir.DataType.INT64)
        table = np.concatenate([default[None], values])
    else:
        a = Arithmetic(edit, features.dtype)
        below, above = keys.min() - 1, keys.max() + 1
        index = a("Sub", a("Min", a("Max", features.value, below), above), below)
        table = np.full(above - below + 1, default, values.dtype)
        table[keys - below] = values
    return edit.op("Gather", [edit.constant(table), index], {"axis": 0})


def _numbers(node: ir.Node, what: str) -> np.ndarray | None:
    if f"{what}_int64s" in node.attributes:
        return ml.integers(node, f"{what}_int64s")
    return ml.floats(node, f"{what}_floats") if f"{what}_floats" in node.attributes else None


def _default(node: ir.Node, dtype: np.dtype[Any]) -> np.ndarray:
    if dtype == np.int64:
        return np.array(node.attributes.get_int("default_int64", -1), dtype)
    return np.array(node.attributes.get_float("default_float", -0.0), dtype)
