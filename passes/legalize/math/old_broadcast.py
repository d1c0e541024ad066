"""Make the broadcasting of opset 6 explicit, which differs from numpy's.

    Add<broadcast=1, axis=k>(a, b)   →   Add(a, Tile(Reshape(b)))       b from axis k of a on; from the right without k
    PRelu(x, slope)                  →   Relu(x) − slope' · Relu(−x)    slope', the slopes by channel, tiled to x

Before opset 7 an operand is broadcast only if ``broadcast`` is set, and the slope of PRelu belongs to axis 1.

Skips: other opsets; dynamic shapes, or shapes that do not fit.
"""

from __future__ import annotations

import math

import onnx_ir as ir

from passes.builders.arithmetic import Arithmetic
from passes.rewriting.base import Exactness, Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import UNKNOWN_SHAPE, Replacement, rewrite

_OPSET = 6
"""In older opsets Tile and other operators have different inputs."""
_BINARY = ("Add", "And", "Div", "Equal", "Greater", "Less", "Mul", "Or", "Pow", "Sub", "Xor")


@rewrite(*_BINARY, "PRelu", exactness=Exactness.ROUNDING)
def tile_old_broadcast(node: ir.Node, edit: Edit) -> Replacement:
    """Tile the second operand of an operator of opset 6 to the shape of the first."""
    if edit.scope.opset() != _OPSET:
        return None
    x, other = edit.input(node, 0), edit.input(node, 1)
    shape, sizes = edit.scope.static_shape(x), edit.scope.static_shape(other)
    if shape is None or sizes is None:
        return Skip(UNKNOWN_SHAPE)
    is_prelu = node.op_type == "PRelu"
    if shape == sizes or (not is_prelu and node.attributes.get_int("broadcast", 0) == 0):
        return None
    before = len(shape) - len(sizes)
    if is_prelu and math.prod(sizes) > 1:
        before = 1
    elif not is_prelu and "axis" in node.attributes:
        axis = node.attributes["axis"].as_int()
        before = axis + len(shape) if axis < 0 else axis
    after = len(shape) - before - len(sizes)
    aligned = (1,) * before + sizes + (1,) * after
    if min(before, after) < 0 or any(size not in (1, wanted) for size, wanted in zip(aligned, shape, strict=True)):
        return Skip(f"{list(sizes)} cannot be broadcast to {list(shape)}")
    a = Arithmetic(edit, ir.DataType.FLOAT)
    repeats = [wanted // size for size, wanted in zip(aligned, shape, strict=True)]
    tiled = a("Tile", a.reshape(other, aligned), a.index(repeats))
    if not is_prelu:
        return a(node.op_type, x, tiled)
    return a("Sub", a("Relu", x), a("Mul", tiled, a("Relu", a("Neg", x))))
