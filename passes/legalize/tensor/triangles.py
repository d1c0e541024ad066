"""Rewrite Trilu with a computed diagonal.

    Trilu(x, k)   →   Where(column − row < k, 0, x)  for the upper triangle,  > k  for the lower one

Bools use And, because ONNX Runtime has no Where for them.

Skips: dynamic shapes; unknown dtypes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from passes.builders.operands import given
from passes.rewriting.base import Exactness
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import Match, NodeContext, NodeRewrite


@dataclass(frozen=True)
class _Matrix(Match):
    rows: int
    columns: int
    dtype: ir.DataType


class SelectTriangle(NodeRewrite[_Matrix]):
    """Select the elements of a triangle by comparing row and column."""

    name = "select-triangle"
    exactness = Exactness.BITWISE
    operators = frozenset({("", "Trilu")})
    needs_shape = (0,)
    needs_dtype = (0,)

    def match(self, node: ir.Node, context: NodeContext) -> _Matrix:
        *_, rows, columns = context.shape(node)
        return _Matrix(node, rows, columns, context.dtype(node))

    def rewrite(self, match: _Matrix, edit: Edit) -> Sequence[ir.Value | None]:
        """Mask the elements on the other side of the diagonal."""
        x, diagonal = match.node.inputs[0], given(match.node, 1)
        above = edit.constant(np.arange(match.columns, dtype=np.int64) - np.arange(match.rows, dtype=np.int64)[:, None])
        k = edit.constant(np.zeros(1, np.int64)) if diagonal is None else edit.reshape(diagonal, [1])
        outside = edit.op("Less" if match.node.attributes.get_int("upper", 1) else "Greater", [above, k])
        if match.dtype == ir.DataType.BOOL:
            return [edit.op("And", [x, edit.op("Not", [outside])])]
        return [edit.op("Where", [outside, edit.constant(np.zeros((), match.dtype.numpy())), x])]


RULES: tuple[NodeRewrite[Any], ...] = (SelectTriangle(),)
