"""Recognize the layer normalization that exporters spell out.

    d / Sqrt(mean(d²) + ε) · scale + bias,   d = x − mean(x)     →  LayerNormalization(x, scale, bias)
                                                                    (ONNX operator, since 17)

d² may be a power or a product; the square root a divisor or, as its reciprocal, a factor; the scale may be applied
before the division. Without a scale, ones are made. Scale and bias must fit the normalized axes, else they stay.

Skips: opsets before 17; other than the last axes; axes of unknown size; float64, since LayerNormalization computes the
mean in float32, and MIGraphX takes no other; fewer than two dimensions, likewise; an intermediate result that is used
elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from passes.core.base import Exactness, Skip
from passes.core.edit import Edit
from passes.core.graphs import Scope
from passes.core.matching import Surroundings, is_plain, operand, wanted_elsewhere
from passes.core.rewrite import Match, NodeContext, NodeRewrite


@dataclass(frozen=True)
class _Found(Match):
    x: ir.Value
    epsilon: float
    sizes: tuple[int, ...]
    """Of the normalized axes."""
    scale: ir.Value | None
    bias: ir.Value | None


@dataclass(frozen=True)
class FuseLayerNorm(NodeRewrite[_Found]):
    """Recognize the layer normalization that exporters spell out."""

    name = "fuse-layer-norm"
    exactness = Exactness.ROUNDING
    operators = frozenset({("", "Sqrt")})
    absorbs = frozenset(
        ("", each)
        for each in ("Add", "Div", "Mul", "Pow", "ReduceMean", "Reciprocal", "Reshape", "Sqrt", "Sub", "Unsqueeze")
    )

    def match(self, node: ir.Node, context: NodeContext) -> _Found | Skip | None:
        """Go from the square root back to x, then on to the division, the scale and the bias."""
        scope = context.scope
        if not is_plain(node, scope):
            return None
        near = Surroundings.of(node, scope)
        add = near.maker(node.inputs[0], "Add")
        if add is None:
            return None
        for variance, constant in (add.inputs, add.inputs[::-1]):
            spread = _spread(variance, near)
            epsilon = near.scalar(constant, spread.x) if spread is not None else None
            if spread is not None and epsilon is not None:
                break
        else:
            return None
        found = _normalized(node.outputs[0], spread, near)
        if found is None:
            return None
        last, factor = found
        refusal = _refusal(spread, epsilon, scope)
        if refusal is not None:
            return Skip(refusal)
        shape = scope.shape(spread.x)
        assert shape is not None
        sizes = tuple(size for size in shape[len(shape) - len(spread.axes) :] if isinstance(size, int))
        if factor is not None and not _fits(factor, sizes, shape, scope):
            return None
        last, scale = (last, factor) if factor is not None else _operand(last, "Mul", sizes, shape, near)
        last, bias = _operand(last, "Add", sizes, shape, near)
        ends = {spread.x, *(value for value in (scale, bias) if value is not None)}
        absorbed = near.between(last, ends)
        shared = wanted_elsewhere(absorbed, last)
        if shared is not None:
            return Skip(f"{shared.name}, an intermediate result, is used elsewhere")
        return _Found(last, spread.x, epsilon, sizes, scale, bias, absorbed=absorbed)

    def rewrite(self, match: _Found, edit: Edit) -> Sequence[ir.Value | None]:
        """One LayerNormalization, with scale and bias in the shape of the normalized axes."""
        inputs = [match.x, _parameter(match.scale, match, edit)]
        if match.bias is not None:
            inputs.append(_parameter(match.bias, match, edit))
        attributes = {"axis": -len(match.sizes), "epsilon": match.epsilon}
        return [edit.op("LayerNormalization", inputs, attributes)]


@dataclass(frozen=True)
class _Spread:
    """A variance: of what, over which axes (as they are written; those of the two means are the same)."""

    x: ir.Value
    axes: tuple[int, ...]


def _spread(variance: ir.Value | None, near: Surroundings) -> _Spread | None:
    """What ``variance`` is the mean over (x − mean(x))² of."""
    node = near.maker(variance, "ReduceMean", "Reshape", "Unsqueeze")
    if node is not None and node.op_type != "ReduceMean":  # the axes are dropped and put back
        assert variance is not None
        node = near.maker(node.inputs[0], "ReduceMean") if _keeps_rank(variance, node.inputs[0], near) else None
    elif node is not None and node.attributes.get_int("keepdims", 1) == 0:
        return None
    square = near.maker(node.inputs[0], "Pow", "Mul") if node is not None else None
    if node is None or square is None or len(square.inputs) != 2:
        return None
    deviation, other = square.inputs
    if deviation is None or (other is not deviation if square.op_type == "Mul" else near.scalar(other, deviation) != 2):
        return None
    axes = _axes(node, near.scope)
    sub = near.maker(deviation, "Sub")
    if axes is None or sub is None:
        return None
    for x, mean in (sub.inputs, sub.inputs[::-1]):
        if x is not None and _is_mean(mean, _Spread(x, axes), near):
            return _Spread(x, axes)
    return None


def _keeps_rank(variance: ir.Value, reduced: ir.Value | None, near: Surroundings) -> bool:
    """Whether a reduction without its axes is reshaped to what it would be with them."""
    node = near.maker(reduced, "ReduceMean")
    before = near.scope.shape(node.inputs[0]) if node is not None else None
    after = near.scope.shape(variance)
    axes = _axes(node, near.scope) if node is not None else None
    if before is None or after is None or axes is None or len(before) != len(after) or before.has_unknown_dim():
        return False
    positions = {axis % len(before) for axis in axes}
    return all(
        new == (1 if axis in positions else old) for axis, (old, new) in enumerate(zip(before, after, strict=True))
    )


def _axes(reduce: ir.Node, scope: Scope) -> tuple[int, ...] | None:
    """The axes of a reduction: negative ones where the rank is known; None where they are not constant, or none."""
    axes = operand(reduce, 1, "axes", scope)
    shape = scope.shape(reduce.inputs[0])
    if not axes or shape is None:
        return None
    return tuple(sorted({axis - len(shape) if axis >= 0 else axis for axis in axes}))


def _is_mean(value: ir.Value | None, spread: _Spread, near: Surroundings) -> bool:
    """Whether ``value`` is the mean of x over the same axes, which it keeps."""
    node = near.maker(value, "ReduceMean")
    return (
        node is not None
        and node.inputs[0] is spread.x
        and node.attributes.get_int("keepdims", 1) == 1
        and _axes(node, near.scope) == spread.axes
    )


def _is_deviation(value: ir.Value | None, spread: _Spread, near: Surroundings) -> bool:
    """Whether ``value`` is x − mean(x)."""
    sub = near.maker(value, "Sub")
    return sub is not None and sub.inputs[0] is spread.x and _is_mean(sub.inputs[1], spread, near)


def _normalized(root: ir.Value, spread: _Spread, near: Surroundings) -> tuple[ir.Node, ir.Value | None] | None:
    """The node at which the deviation is divided by ``root``, and what the deviation was multiplied by before."""
    node = near.reader(root, "Div", "Reciprocal")
    if node is None:
        return None
    if node.op_type == "Reciprocal" or (node.inputs[1] is root and near.scalar(node.inputs[0], root) == 1.0):
        inverse = node.outputs[0]
        node = near.reader(inverse, "Mul")
        if node is None:
            return None
        deviation = node.inputs[1] if node.inputs[0] is inverse else node.inputs[0]
    elif node.inputs[1] is root:
        deviation = node.inputs[0]
    else:
        return None
    if _is_deviation(deviation, spread, near):
        return node, None
    scaled = near.maker(deviation, "Mul")
    for value, scale in (scaled.inputs, scaled.inputs[::-1]) if scaled is not None else ():
        if _is_deviation(value, spread, near):
            return node, scale
    return None


def _refusal(spread: _Spread, epsilon: float, scope: Scope) -> str | None:
    """Why a normalization cannot be one LayerNormalization; None where it can."""
    shape, dtype = scope.shape(spread.x), scope.dtype(spread.x)
    count = len(spread.axes)
    if spread.axes != tuple(range(-count, 0)):
        return f"it normalizes axes {', '.join(map(str, spread.axes))}, which are not the last ones"
    if shape is None or not all(isinstance(size, int) for size in shape[len(shape) - count :]):
        return "the size of the axes that it normalizes is unknown"
    if len(shape) < 2:
        return f"{spread.x.name} has one dimension; MIGraphX wants two or more"
    if dtype is None or dtype == ir.DataType.DOUBLE:
        return f"{spread.x.name} is of {'unknown dtype' if dtype is None else 'float64'}"
    if not 0.0 < epsilon < float("inf"):
        return f"its epsilon is {epsilon}"
    if scope.opset() < 17:
        return f"opset {scope.opset()} has no LayerNormalization; it came with 17"
    return None


def _operand(
    last: ir.Node, operator: str, sizes: Sequence[int], shape: ir.Shape, near: Surroundings
) -> tuple[ir.Node, ir.Value | None]:
    """The next node and its other operand, if that may be scale or bias; else the node as it is, and None."""
    value = last.outputs[0]
    node = near.reader(value, operator)
    if node is None or len(value.uses()) != 1 or value.is_graph_output():
        return last, None
    other = node.inputs[1] if node.inputs[0] is value else node.inputs[0]
    return (node, other) if other is not None and _fits(other, sizes, shape, near.scope) else (last, None)


def _fits(value: ir.Value, sizes: Sequence[int], shape: ir.Shape, scope: Scope) -> bool:
    """Whether ``value`` has the shape of the normalized axes or is a constant that can be brought to it."""
    mine = scope.shape(value)
    if mine is None or len(mine) > len(shape):
        return False
    if scope.constant(value) is None:
        return tuple(mine) == tuple(sizes)
    aligned = [1] * (len(shape) - len(mine)) + list(mine)
    wanted = [1] * (len(shape) - len(sizes)) + list(sizes)
    return all(have in (1, want) for have, want in zip(aligned, wanted, strict=True))


def _parameter(value: ir.Value | None, match: _Found, edit: Edit) -> ir.Value:
    """Scale or bias in the shape of the normalized axes; ones for none."""
    if value is None:
        dtype = edit.scope.dtype(match.x)
        assert dtype is not None
        return edit.constant(np.ones(match.sizes, dtype.numpy()))
    tensor = edit.scope.constant(value)
    if tensor is None or tuple(tensor.shape) == match.sizes:
        return value
    array = tensor.numpy()
    rest = array.reshape(array.shape[max(array.ndim - len(match.sizes), 0) :])
    return edit.constant(np.ascontiguousarray(np.broadcast_to(rest, match.sizes)))
