"""Decompose com.microsoft's GroupNorm and SkipGroupNorm, which ONNX Runtime uses in diffusion models.

    GroupNorm(x, γ, β)               →  activation(γ · (x − mean) / √(variance + ε) + β)   per group of channels
    SkipGroupNorm(x, γ, β, skip, b)  →  GroupNorm(s, γ, β), s = x + skip + b

Channels are the last axis, unless ``channels_last`` is 0. The activation is none or SiLU. 16-bit floats are computed in
float32 and rounded at the end, as in ONNX Runtime.

Skips: unknown shapes; other activations.
"""

from __future__ import annotations

import math

import onnx_ir as ir

from passes.builders.arithmetic import Arithmetic, wide
from passes.builders.operands import given
from passes.rewriting.base import Exactness, Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import Replacement, rewrite


@rewrite(
    "com.microsoft.GroupNorm",
    "com.microsoft.SkipGroupNorm",
    exactness=Exactness.ROUNDING,
    needs_shape=(0, 3),
    needs_dtype=(0,),
)
def decompose_group_norm(node: ir.Node, edit: Edit) -> Replacement:
    """Write GroupNorm and SkipGroupNorm as means and products."""
    activation = node.attributes.get_int("activation", 0)
    if activation not in (0, 1):
        return Skip(f"the activation {activation} is neither none nor SiLU")
    shape, dtype = edit.shape(node), edit.dtype(node)
    a, is_last = Arithmetic(edit, wide(dtype)), bool(node.attributes.get_int("channels_last", 1))
    ones = [1] * (len(shape) - 2)

    def spread(value: ir.Value, *before: int) -> ir.Value:
        """Give a value of shape (…, channels) spatial axes of size 1."""
        value, channels = a.cast(value), shape[-1 if is_last else 1]
        if not before and is_last:
            return value
        return a.reshape(value, [*before, *ones, channels] if is_last else [*before, channels, *ones])

    total, skip, bias = a.cast(edit.input(node)), given(node, 3), given(node, 4)
    if skip is not None:
        sizes = edit.shape(node, 3)
        total = a("Add", total, spread(skip, sizes[0]) if len(sizes) == 2 else a.cast(skip))
    if bias is not None:
        total = a("Add", total, spread(bias))
    y = a.reshape(_normalize(a, total, node, shape, is_last), shape)
    y = a("Add", a("Mul", y, spread(edit.input(node, 1))), spread(edit.input(node, 2)))
    if activation:
        y = a("Mul", y, a("Sigmoid", y))
    return [a.cast(y, dtype), a.cast(total, dtype)]


def _normalize(a: Arithmetic, x: ir.Value, node: ir.Node, shape: tuple[int, ...], is_last: bool) -> ir.Value:
    """Return ``x`` normalized per group, reshaped so that the groups have an axis of their own."""
    batch, groups = shape[0], node.attributes["groups"].as_int()
    size = shape[-1 if is_last else 1] // groups
    places = math.prod(shape[1:]) // (groups * size)
    x = a.reshape(x, [batch, places, groups, size] if is_last else [batch, groups, size * places])
    axes = [1, 3] if is_last else [2]
    centred = a("Sub", x, a.reduce("Mean", x, axes))
    variance = a.reduce("Mean", a("Mul", centred, centred), axes)
    return a("Div", centred, a("Sqrt", a("Add", variance, node.attributes.get_float("epsilon", 1e-5))))
