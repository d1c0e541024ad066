"""Decompose com.microsoft's GroupNorm and SkipGroupNorm, which ONNX Runtime uses in diffusion models.

    GroupNorm(x, γ, β)               →  activation(γ · (x − mean) / √(variance + ε) + β)   per group of channels
    SkipGroupNorm(x, γ, β, skip, b)  →  GroupNorm(s, γ, β), s = x + skip + b

Channels are the last axis, unless ``channels_last`` is 0. The activation is none or SiLU. 16-bit floats are computed in
float32 and rounded at the end, as in ONNX Runtime.

Skips: unknown shapes; other activations.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from passes.builders.arithmetic import Arithmetic, wide
from passes.builders.operands import given
from passes.rewriting.base import Exactness, Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import Match, NodeContext, NodeRewrite

_DOMAIN = "com.microsoft"


@dataclass(frozen=True)
class _Found(Match):
    shape: tuple[int, ...]
    dtype: ir.DataType
    """Shape and dtype of x."""
    weights: ir.DataType
    """The dtype of γ and β."""
    axis: int
    """The axis of the channels."""


class DecomposeGroupNorm(NodeRewrite[_Found]):
    """Write GroupNorm and SkipGroupNorm as means and products."""

    name = "decompose-group-norm"
    exactness = Exactness.ROUNDING
    operators = frozenset({(_DOMAIN, "GroupNorm"), (_DOMAIN, "SkipGroupNorm")})
    needs_shape = (0, 3)
    needs_dtype = (0, 1)

    def match(self, node: ir.Node, context: NodeContext) -> _Found | Skip | None:
        activation = node.attributes.get_int("activation", 0)
        if activation not in (0, 1):
            return Skip(f"its activation {activation} is neither none nor SiLU")
        axis = -1 if node.attributes.get_int("channels_last", 1) else 1
        return _Found(node, context.shape(node), context.dtype(node), context.dtype(node, 1), axis)

    def rewrite(self, match: _Found, edit: Edit) -> Sequence[ir.Value | None]:
        """Add, normalize per group, scale, and activate."""
        node, a = match.node, Arithmetic(edit, wide(match.dtype))
        x, gamma, beta = (value for value in node.inputs[:3] if value is not None)
        total = a.cast(x)
        skip, bias = given(node, 3), given(node, 4)
        if skip is not None:
            total = a("Add", total, self._spread(a, a.cast(skip), skip, match))
        if bias is not None:
            total = a("Add", total, self._by_channel(a, bias, match.dtype, match))
        y = a.reshape(_normalized(a, total, match), match.shape)
        y = a("Mul", y, self._by_channel(a, gamma, match.weights, match))
        y = a("Add", y, self._by_channel(a, beta, match.weights, match))
        if node.attributes.get_int("activation", 0):
            y = a("Mul", y, a("Sigmoid", y))
        results = [a.cast(each, match.dtype) for each in (y, total)]
        return results[: len(node.outputs)]

    @staticmethod
    def _spread(a: Arithmetic, x: ir.Value, skip: ir.Value, match: _Found) -> ir.Value:
        """A skip connection of shape (batch, channels), with spatial axes of size 1."""
        shape = a.edit.scope.static_shape(skip) or ()
        if len(shape) != 2:
            return x
        ones = [1] * (len(match.shape) - 2)
        return a.reshape(x, [shape[0], *ones, shape[1]] if match.axis == -1 else [*shape, *ones])

    @staticmethod
    def _by_channel(a: Arithmetic, x: ir.Value, dtype: ir.DataType, match: _Found) -> ir.Value:
        x = a.cast(x)
        return x if match.axis == -1 else a.reshape(x, [match.shape[1], *[1] * (len(match.shape) - 2)])


def _normalized(a: Arithmetic, x: ir.Value, match: _Found) -> ir.Value:
    """``x`` normalized per group, reshaped so that its groups have an axis of their own."""
    batch, groups = match.shape[0], match.node.attributes["groups"].as_int()
    size = match.shape[match.axis] // groups
    places = math.prod(match.shape[1:]) // (groups * size)
    last = match.axis == -1
    x = a.reshape(x, [batch, places, groups, size] if last else [batch, groups, size * places])
    axes = [1, 3] if last else [2]
    centred = a("Sub", x, a.reduce("Mean", x, axes))
    variance = a.reduce("Mean", a("Mul", centred, centred), axes)
    return a("Div", centred, a("Sqrt", a("Add", variance, match.node.attributes.get_float("epsilon", 1e-5))))


RULES: tuple[NodeRewrite[Any], ...] = (DecomposeGroupNorm(),)
