"""Rewrite scatters that MIGraphX does not support, and remove those without updates.

    TensorScatter(past, u, w)       →  ScatterElements(past, (w + [0, 1, …]) mod size, u) along the axis
    Scatter…(x, i, u)               without indices  →  x
    Scatter…(x, i, u), reduction=…  in half precision  →  Cast(Scatter…(Cast<float32>(x), i, Cast<float32>(u)))

Skips: dynamic shapes.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from passes.builders.arithmetic import Arithmetic
from passes.builders.operands import given
from passes.rewriting.base import Exactness
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import Replacement, rewrite


@rewrite("Scatter", "ScatterElements", "ScatterND", "TensorScatter")
def drop_empty_scatter(node: ir.Node, edit: Edit) -> Replacement:
    """Remove a scatter without updates."""
    updates = edit.scope.static_shape(node.inputs[1 if node.op_type == "TensorScatter" else 2])
    return edit.input(node) if updates is not None and 0 in updates else None


@rewrite("ScatterElements", "ScatterND", exactness=Exactness.ROUNDING, needs_dtype=(0,))
def widen_scatter_reduction(node: ir.Node, edit: Edit) -> Replacement:
    """Add, multiply or compare updates in float32, since GPUs have no such atomic operation in half precision."""
    dtype = edit.dtype(node)
    if dtype not in (ir.DataType.FLOAT16, ir.DataType.BFLOAT16) or "reduction" not in node.attributes:
        return None
    x, updates = (edit.cast(edit.input(node, index), ir.DataType.FLOAT) for index in (0, 2))
    return edit.cast(edit.op(node.op_type, [x, node.inputs[1], updates], dict(node.attributes)), dtype)


@rewrite("TensorScatter", needs_shape=(0, 1))
def scatter_tensor(node: ir.Node, edit: Edit) -> Replacement:
    """Rewrite TensorScatter with the index of each element along the sequence axis."""
    past, update = edit.shape(node, 0), edit.shape(node, 1)
    axis, begin = node.attributes.get_int("axis", -2) % len(past), given(node, 2)
    a = Arithmetic(edit, ir.DataType.INT64)
    # indices are equal along all axes but the batch and the sequence
    ones = [1] * len(update)
    indices = a.value(np.arange(update[axis]).reshape([*ones[:axis], -1, *ones[axis + 1 :]]))
    if begin is not None:
        indices = a("Add", a.reshape(begin, [update[0], *ones[1:]]), indices)
    if node.attributes.get_string("mode", "linear") == "circular":
        indices = a("Mod", indices, past[axis])
    return a("ScatterElements", node.inputs[0], a("Expand", indices, a.index(update)), node.inputs[1], axis=axis)
