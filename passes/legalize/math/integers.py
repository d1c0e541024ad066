"""Operators that are nothing on some integers: a runtime may compute them as if these were signed.

    Abs(x)  →  x    of unsigned integers

Skips: dtypes that are unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from passes.core.base import Exactness, Skip
from passes.core.edit import Edit
from passes.core.rewrite import Match, NodeContext, NodeRewrite


@dataclass(frozen=True)
class UnsignedAbs(NodeRewrite[Match]):
    """Leave unsigned integers as they are."""

    name = "unsigned-abs"
    exactness = Exactness.BITWISE
    operators = frozenset({("", "Abs")})

    def match(self, node: ir.Node, context: NodeContext) -> Match | Skip | None:
        """Whether they are unsigned."""
        dtype = context.scope.dtype(node.inputs[0])
        if dtype is None:
            return Skip("the dtype of its input is unknown")
        return Match(node) if dtype.is_integer() and not dtype.is_signed() else None

    def rewrite(self, match: Match, edit: Edit) -> Sequence[ir.Value]:
        """The input, in a value of its own."""
        return [edit.op("Identity", [match.node.inputs[0]])]


RULES: tuple[NodeRewrite[Any], ...] = (UnsignedAbs(),)
