"""Make negative indices, which count from the end, non-negative.

    GatherElements(x, i)     i < 0, axis > 0: MIGraphX reads from the row before     →  GatherElements(x, i mod size)
    ScatterND(x, i, u)       i < 0: MIGraphX writes outside of the tensor            →  ScatterND(x, i mod sizes, u)

The result of ONNX's Mod has the sign of the divisor, so for −size ≤ i < size it is the non-negative index.

Skips: dynamic shapes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from passes.graphs.scopes import Scope
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import Replacement, rewrite


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
