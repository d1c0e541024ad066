"""Rewrite selections that MIGraphX does not support, or supports for constants only, as Gather; correct indices.

    Compress(x, condition)      condition constant  →  Gather(x, indices of what is true)
    ReverseSequence(x, n)       source(t, b) = n_b − 1 − t if t < n_b, else t
                                →  Gather(x with time and batch as one axis, source(t, b) in it)
    GatherElements(x, i)        i < 0, axis > 0: MIGraphX reads from the row before     →  GatherElements(x, i mod size)
    ScatterND(x, i, u)          i < 0: MIGraphX writes outside of the tensor            →  ScatterND(x, i mod sizes, u)

The result of ONNX's Mod has the sign of the divisor, so for −size ≤ i < size it is the non-negative index.

Skips: dynamic shapes; conditions that are not constant, because the output's size depends on them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from passes.builders.arithmetic import Arithmetic
from passes.graphs.scopes import Scope
from passes.rewriting.base import Skip
from passes.rewriting.edit import Edit, not_constant
from passes.rewriting.rewrite import Replacement, rewrite


@rewrite("Compress", needs_shape=(0,))
def gather_compress(node: ir.Node, edit: Edit) -> Replacement:
    """Gather what a constant condition selects."""
    x, shape = edit.input(node), edit.shape(node)
    condition, dtype = edit.scope.constant(node.inputs[1]), edit.scope.dtype(x)
    if condition is None:
        return Skip(f"the size of the output is unknown: {not_constant(edit.input(node, 1), 'the condition')}")
    if "axis" in node.attributes:
        axis = node.attributes["axis"].as_int() % len(shape)
    else:
        x, shape, axis = edit.reshape(x, [-1]), (math.prod(shape),), 0
    indices = np.flatnonzero(condition.numpy().ravel()[: shape[axis]])
    if len(indices):
        return edit.op("Gather", [x, edit.index(indices)], {"axis": axis})
    if dtype is None or dtype == ir.DataType.STRING:
        return Skip("the condition selects nothing, and the dtype of the input is unknown")
    return edit.constant(np.zeros([*shape[:axis], 0, *shape[axis + 1 :]], dtype.numpy()))


@rewrite("ReverseSequence", needs_shape=(0,))
def gather_reverse_sequence(node: ir.Node, edit: Edit) -> Replacement:
    """Gather sequences in reverse, each up to its length."""
    x, shape = edit.input(node), edit.shape(node)
    time, batch = node.attributes.get_int("time_axis", 0), node.attributes.get_int("batch_axis", 1)
    if {time, batch} != {0, 1}:
        return None
    a = Arithmetic(edit, ir.DataType.INT64)
    first, second, *rest = shape
    times = a.value(np.expand_dims(np.arange(shape[time]), batch))
    lengths = a.reshape(edit.input(node, 1), [-1, 1] if time == 1 else [1, -1])
    reversed_times = a("Sub", a("Sub", lengths, 1), times)
    source = a("Where", a("Less", times, lengths), reversed_times, times)
    if time == 0:
        source = a("Add", a("Mul", source, second), np.arange(second)[None])
    else:
        source = a("Add", source, np.arange(first)[:, None] * second)
    flat = a.reshape(x, [first * second, *rest])
    return a.reshape(a("Gather", flat, a.reshape(source, [first * second]), axis=0), shape)


@rewrite("GatherElements", "ScatterND", needs_shape=(0, 1))
def count_from_start(node: ir.Node, edit: Edit) -> Replacement:
    """Make negative indices non-negative."""
    scope, data = edit.scope, edit.shape(node)
    x, indices, *rest = node.inputs
    if node.op_type == "ScatterND":
        sizes = data[: edit.shape(node, 1)[-1]]  # of the axes that the elements of an index refer to
    else:
        sizes = (data[node.attributes.get_int("axis", 0)],)
    tensor = scope.constant(indices)
    divisor = np.array(sizes, (scope.dtype(indices) or ir.DataType.INT64).numpy())
    if tensor is None:
        if _is_remainder(indices, sizes, scope):
            return None
        remainders = edit.op("Mod", [indices, edit.constant(divisor)])
    else:
        if not np.any(tensor.numpy() < 0):
            return None
        remainders = edit.constant(np.mod(tensor.numpy(), divisor))
    return edit.op(node.op_type, [x, remainders, *rest], node.attributes)


def _is_remainder(value: ir.Value | None, sizes: Sequence[int], scope: Scope) -> bool:
    """Return whether a value is the remainder modulo ``sizes``, as this rule writes it."""
    node = value.producer() if value is not None else None
    if node is None or node.domain != "" or node.op_type != "Mod" or node.attributes.get_int("fmod", 0) != 0:
        return False
    divisor = scope.constant(node.inputs[1])
    return divisor is not None and divisor.numpy().ravel().tolist() == list(sizes)
