"""Make the broadcasting of opset 6 explicit, which differs from numpy's.

    Add<broadcast=1, axis=k>(a, b)   →   Add(a, Tile(Reshape(b)))       b from axis k of a on; from the right without k
    PRelu(x, slope)                  →   Relu(x) − slope' · Relu(−x)    slope', the slopes by channel, tiled to x

Before opset 7 an operand is broadcast only if ``broadcast`` is set, and the slope of PRelu belongs to axis 1.

Skips: other opsets; dynamic shapes, or shapes that do not fit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir

from passes.builders.arithmetic import Arithmetic
from passes.builders.operands import UNKNOWN_SHAPE
from passes.rewriting.base import Exactness, Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import Match, NodeContext, NodeRewrite

_OPSET = 6
"""In older opsets Tile and other operators have different inputs."""
_BINARY = ("Add", "And", "Div", "Equal", "Greater", "Less", "Mul", "Or", "Pow", "Sub", "Xor")


@dataclass(frozen=True)
class _BroadcastMatch(Match):
    shape: tuple[int, ...]
    aligned: tuple[int, ...]


class TileOldBroadcast(NodeRewrite[_BroadcastMatch]):
    """Tile the second operand of an operator of opset 6 to the shape of the first."""

    name = "tile-old-broadcast"
    exactness = Exactness.ROUNDING
    operators = frozenset(("", name) for name in (*_BINARY, "PRelu"))

    def match(self, node: ir.Node, context: NodeContext) -> _BroadcastMatch | Skip | None:
        """Match a second operand that is smaller and fits."""
        scope = context.scope
        if scope.opset() != _OPSET:
            return None
        shape, other = scope.static_shape(node.inputs[0]), scope.static_shape(node.inputs[1])
        if shape is None or other is None:
            return Skip(UNKNOWN_SHAPE)
        is_prelu = node.op_type == "PRelu"
        if shape == other or (not is_prelu and node.attributes.get_int("broadcast", 0) == 0):
            return None
        before = len(shape) - len(other)
        if is_prelu and math.prod(other) > 1:
            before = 1
        elif not is_prelu and "axis" in node.attributes:
            axis = node.attributes["axis"].as_int()
            before = axis + len(shape) if axis < 0 else axis
        after = len(shape) - before - len(other)
        aligned = (1,) * before + other + (1,) * after
        if min(before, after) < 0 or any(mine not in (1, size) for mine, size in zip(aligned, shape, strict=True)):
            return Skip(f"{list(other)} cannot be broadcast to {list(shape)}")
        return _BroadcastMatch(node, shape, aligned)

    def rewrite(self, match: _BroadcastMatch, edit: Edit) -> Sequence[ir.Value | None]:
        """The same operator on equal shapes."""
        x, other = match.node.inputs
        assert x is not None and other is not None
        a = Arithmetic(edit, ir.DataType.FLOAT)
        repeats = [size // mine for mine, size in zip(match.aligned, match.shape, strict=True)]
        tiled = a("Tile", a("Reshape", other, a.index(match.aligned)), a.index(repeats))
        if match.node.op_type != "PRelu":
            return [a(match.node.op_type, x, tiled)]
        return [a("Sub", a("Relu", x), a("Mul", tiled, a("Relu", a("Neg", x))))]


RULES: tuple[NodeRewrite[_BroadcastMatch], ...] = (TileOldBroadcast(),)
