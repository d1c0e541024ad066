"""Rewrite Trilu with a computed diagonal.

    Trilu(x, k)   →   Where(column − row < k, 0, x)  for the upper triangle,  > k  for the lower one

Bools use And, because ONNX Runtime has no Where for them.

Skips: dynamic shapes; unknown dtypes.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from passes.builders.operands import given
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import Replacement, rewrite


@rewrite("Trilu", needs_shape=(0,), needs_dtype=(0,))
def select_triangle(node: ir.Node, edit: Edit) -> Replacement:
    """Select the elements of a triangle by comparing row and column."""
    x, dtype, diagonal = edit.input(node), edit.dtype(node), given(node, 1)
    *_, rows, columns = edit.shape(node)
    above = edit.index(np.arange(columns) - np.arange(rows)[:, None])
    k = edit.index([0]) if diagonal is None else edit.reshape(diagonal, [1])
    outside = edit.op("Less" if node.attributes.get_int("upper", 1) else "Greater", [above, k])
    if dtype == ir.DataType.BOOL:
        return edit.op("And", [x, edit.op("Not", [outside])])
    return edit.op("Where", [outside, edit.scalar(0, dtype), x])
