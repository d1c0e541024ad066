"""Remove operators that are the identity on unsigned integers, which a runtime may compute as signed.

    Abs(x)  →  x    for unsigned integers

Skips: unknown dtypes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from passes.core.base import Exactness
from passes.core.edit import Edit
from passes.core.rewrite import Match, NodeContext, NodeRewrite


@dataclass(frozen=True)
class UnsignedAbs(NodeRewrite[Match]):
    """Remove Abs of unsigned integers."""

    name = "unsigned-abs"
    exactness = Exactness.BITWISE
    operators = frozenset({("", "Abs")})
    needs_dtype = (0,)

    def match(self, node: ir.Node, context: NodeContext) -> Match | None:
        dtype = context.dtype(node)
        return Match(node) if dtype.is_integer() and not dtype.is_signed() else None

    def rewrite(self, match: Match, edit: Edit) -> Sequence[ir.Value]:
        """An Identity of the input."""
        return [edit.op("Identity", [match.node.inputs[0]])]


RULES: tuple[NodeRewrite[Any], ...] = (UnsignedAbs(),)
