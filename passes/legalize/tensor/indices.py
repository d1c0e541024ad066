"""Make negative indices, which count from the end, non-negative.

    GatherElements(x, i)     i < 0, axis > 0: MIGraphX reads from the row before     →  GatherElements(x, i mod size)
    ScatterND(x, i, u)       i < 0: MIGraphX writes outside of the tensor            →  ScatterND(x, i mod sizes, u)

The result of ONNX's Mod has the sign of the divisor, so for −size ≤ i < size it is the non-negative index.

Skips: dynamic shapes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from passes.graphs.scopes import Scope
from passes.rewriting.base import Exactness
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import Match, NodeContext, NodeRewrite


@dataclass(frozen=True)
class _Sizes(Match):
    sizes: tuple[int, ...]
    """The sizes of the axes that the elements of an index refer to; for GatherElements, of the only axis."""


class CountFromStart(NodeRewrite[_Sizes]):
    """Make negative indices non-negative."""

    name = "count-from-start"
    exactness = Exactness.BITWISE
    operators = frozenset({("", "GatherElements"), ("", "ScatterND")})
    needs_shape = (0, 1)

    def match(self, node: ir.Node, context: NodeContext) -> _Sizes | None:
        """Match negative indices, and computed ones."""
        scope = context.scope
        data, indices = context.shape(node, 0), context.shape(node, 1)
        sizes = data[: indices[-1]] if node.op_type == "ScatterND" else (data[node.attributes.get_int("axis", 0)],)
        tensor = scope.constant(node.inputs[1])
        is_normal = _is_remainder(node.inputs[1], sizes, scope) if tensor is None else not np.any(tensor.numpy() < 0)
        return None if is_normal else _Sizes(node, sizes)

    def rewrite(self, match: _Sizes, edit: Edit) -> Sequence[ir.Value | None]:
        """The same operator with the remainders of its indices."""
        data, indices, *rest = match.node.inputs
        attributes: dict[str, Any] = dict(match.node.attributes)
        tensor, dtype = edit.scope.constant(indices), edit.scope.dtype(indices) or ir.DataType.INT64
        sizes = np.array(match.sizes, dtype.numpy())
        if tensor is not None:
            remainders = edit.constant(np.mod(tensor.numpy(), sizes))
        else:
            remainders = edit.op("Mod", [indices, edit.constant(sizes)])
        return [edit.op(match.node.op_type, [data, remainders, *rest], attributes)]


def _is_remainder(value: ir.Value | None, sizes: Sequence[int], scope: Scope) -> bool:
    """Whether a value is the remainder modulo ``sizes``, as this rule writes it."""
    node = value.producer() if value is not None else None
    if node is None or node.domain != "" or node.op_type != "Mod" or node.attributes.get_int("fmod", 0) != 0:
        return False
    divisor = scope.constant(node.inputs[1])
    return divisor is not None and divisor.numpy().ravel().tolist() == list(sizes)


RULES: tuple[NodeRewrite[Any], ...] = (CountFromStart(),)
