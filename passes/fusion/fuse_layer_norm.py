"""Fuse a decomposed layer normalization.

    d / Sqrt(mean(d²) + ε) · scale + bias,   d = x − mean(x)     →  LayerNormalization(x, scale, bias)
                                                                    (ONNX operator, since 17)

d² may be a power or a product; the square root a divisor or, as its reciprocal, a factor; the scale may be applied
before the division. Without a scale, it is a constant of ones. A scale or bias that does not fit the normalized axes
is not fused.

Skips: opsets before 17; other than the last axes; axes of unknown size; float64, since LayerNormalization computes the
mean in float32; fewer than two dimensions, which MIGraphX does not take; an intermediate result that is used
elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from passes.graphs.matching import operand, scalar, sole_consumer, used_elsewhere
from passes.graphs.scopes import Scope
from passes.rewriting.base import Exactness, NotApplicable, Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import Replacement, rewrite

_ABSORBED = ("Add", "Div", "Mul", "Pow", "ReduceMean", "Reciprocal", "Reshape", "Sqrt", "Sub", "Unsqueeze")


@rewrite("Div", "Mul", exactness=Exactness.ROUNDING, absorbs=_ABSORBED)
def fuse_layer_norm(node: ir.Node, edit: Edit) -> Replacement:
    """Fuse a decomposed layer normalization."""
    scope = edit.scope
    normal = _normalization(node, edit)
    if normal is None:
        return None
    sizes = _normalized_sizes(normal, scope)
    shape = scope.shape(normal.x)
    assert shape is not None
    last, scale = node, normal.scale
    if scale is None:
        last, scale = _operand(last, "Mul", sizes, shape, scope)
    elif not _fits(scale, sizes, shape, scope):
        return None
    after_scale = last
    last, bias = _operand(last, "Add", sizes, shape, scope)
    absorbed = dict.fromkeys(inner for inner in (after_scale, *normal.nodes) if inner is not last)
    shared = used_elsewhere(absorbed, last)
    if shared is not None:
        return Skip(f"{shared.name}, an intermediate result, is used elsewhere")
    edit.root = last
    edit.absorb(*absorbed)
    inputs = [normal.x, _parameter(scale, sizes, normal.x, edit)]
    if bias is not None:
        inputs.append(_parameter(bias, sizes, normal.x, edit))
    return edit.op("LayerNormalization", inputs, {"axis": -len(sizes), "epsilon": normal.epsilon})


@dataclass(frozen=True)
class _Part:
    """A value that is computed of x and its mean.

    Attributes:
        x: the value that is normalized.
        axes: the axes of its mean, as negative numbers.
        nodes: the nodes that compute the part, each before those that it takes inputs from.
        epsilon: the number that is added to the variance, if it is in the part.
        scale: the factor of the deviation, if it is in the part.
    """

    x: ir.Value
    axes: tuple[int, ...]
    nodes: tuple[ir.Node, ...]
    epsilon: float = 0.0
    scale: ir.Value | None = None

    def after(self, *nodes: ir.Node) -> _Part:
        """Return the part with other nodes before its own."""
        return replace(self, nodes=tuple(dict.fromkeys((*nodes, *self.nodes))))

    def is_like(self, other: _Part | None) -> bool:
        """Return whether both normalize the same axes of the same value."""
        return other is not None and self.x is other.x and self.axes == other.axes


def _normalization(node: ir.Node, edit: Edit) -> _Part | None:
    """Match the deviation, which may be scaled, divided by the square root or multiplied by its reciprocal."""
    for index in (0,) if node.op_type == "Div" else (0, 1):
        divide = node.op_type == "Div"
        root = _root(node, 1, edit) if divide else _inverse(node, 1 - index, edit)
        deviation = _scaled_deviation(node, index, root, edit) if root is not None else None
        if root is not None and deviation is not None:
            nodes = (node, *deviation.nodes, *root.nodes)
            return replace(root, nodes=tuple(dict.fromkeys(nodes)), scale=deviation.scale)
    return None


def _scaled_deviation(user: ir.Node, index: int, root: _Part, edit: Edit) -> _Part | None:
    """Match the deviation that ``root`` is the root of, alone or times a scale."""
    deviation = _deviation(user, index, edit)
    if deviation is not None and deviation.is_like(root):
        return deviation
    product = edit.producer(user, index, "Mul")
    if product is None:
        return None
    for factor in (0, 1):
        deviation = _deviation(product, factor, edit)
        if deviation is not None and deviation.is_like(root):
            return replace(deviation.after(product), scale=product.inputs[1 - factor])
    return None


def _inverse(user: ir.Node, index: int, edit: Edit) -> _Part | None:
    """Match the reciprocal of a root, which may be written as 1 / root."""
    node = edit.producer(user, index, "Reciprocal", "Div")
    if node is None or (node.op_type == "Div" and _number(node, 0, edit) != 1.0):
        return None
    root = _root(node, len(node.inputs) - 1, edit)
    return root.after(node) if root is not None else None


def _root(user: ir.Node, index: int, edit: Edit) -> _Part | None:
    """Match Sqrt(variance + ε)."""
    root = edit.producer(user, index, "Sqrt")
    add = edit.producer(root, 0, "Add") if root is not None else None
    if root is None or add is None:
        return None
    for term in (0, 1):
        variance, epsilon = _variance(add, term, edit), _number(add, 1 - term, edit)
        if variance is not None and epsilon is not None:
            return replace(variance.after(root, add), epsilon=epsilon)
    return None


def _variance(user: ir.Node, index: int, edit: Edit) -> _Part | None:
    """Match the mean of the squares, with the axes kept by the reduction or restored after it."""
    mean = edit.producer(user, index, "ReduceMean")
    if mean is not None:
        square, axes = _square(mean, edit), _kept_axes(mean, edit.scope)
        return square.after(mean) if square is not None and square.axes == axes else None
    reshape = edit.producer(user, index, "Reshape", "Unsqueeze")
    mean = edit.producer(reshape, 0, "ReduceMean") if reshape is not None else None
    if reshape is None or mean is None:
        return None
    square, axes = _square(mean, edit), _restored_axes(reshape, mean, edit.scope)
    return square.after(reshape, mean) if square is not None and square.axes == axes else None


def _square(user: ir.Node, edit: Edit) -> _Part | None:
    """Match the square of a deviation of either sign, as a power or as a product."""
    node = edit.producer(user, 0, "Pow", "Mul")
    if node is None:
        return None
    for negated in (False, True):
        base = _deviation(node, 0, edit, negated=negated)
        if base is None:
            continue
        if node.op_type == "Pow":
            return base.after(node) if _number(node, 1, edit) == 2.0 else None
        factor = _deviation(node, 1, edit, negated=negated)
        if factor is not None and base.is_like(factor):
            return factor.after(node, *base.nodes)
    return None


def _deviation(user: ir.Node, index: int, edit: Edit, *, negated: bool = False) -> _Part | None:
    """Match x − mean(x), or mean(x) − x, as an input of ``user``."""
    difference = edit.producer(user, index, "Sub")
    mean = edit.producer(difference, 0 if negated else 1, "ReduceMean") if difference is not None else None
    if difference is None or mean is None:
        return None
    x, axes = difference.inputs[1 if negated else 0], _kept_axes(mean, edit.scope)
    if x is None or x is not mean.inputs[0] or axes is None:
        return None
    return _Part(x, axes, (difference, mean))


def _number(node: ir.Node, index: int, edit: Edit) -> float | None:
    """Return the number that is one of two operands, if it does not extend the shape of the other."""
    return scalar(node.inputs[index], edit.input(node, 1 - index), edit.scope)


def _axes(reduce: ir.Node, scope: Scope) -> tuple[int, ...] | None:
    """Return the axes of a reduction as negative numbers; None if they or the rank are unknown, or there are none."""
    axes = operand(reduce, 1, "axes", scope)
    shape = scope.shape(reduce.inputs[0])
    if not axes or shape is None:
        return None
    return tuple(sorted({axis - len(shape) if axis >= 0 else axis for axis in axes}))


def _kept_axes(reduce: ir.Node, scope: Scope) -> tuple[int, ...] | None:
    """Return the axes of a reduction that keeps them; otherwise None."""
    return _axes(reduce, scope) if reduce.attributes.get_int("keepdims", 1) == 1 else None


def _restored_axes(reshape: ir.Node, reduce: ir.Node, scope: Scope) -> tuple[int, ...] | None:
    """Return the axes of a reduction if the node after it gives the shape that it would have with its axes kept."""
    axes, before, after = _axes(reduce, scope), scope.shape(reduce.inputs[0]), scope.shape(reshape.outputs[0])
    if axes is None or before is None or after is None or before.has_unknown_dim():
        return None
    kept = [1 if axis - len(before) in axes else size for axis, size in enumerate(before)]
    return axes if kept == list(after) else None


def _normalized_sizes(normal: _Part, scope: Scope) -> tuple[int, ...]:
    """Return the sizes of the normalized axes."""
    shape, dtype = scope.shape(normal.x), scope.dtype(normal.x)
    count = len(normal.axes)
    if normal.axes != tuple(range(-count, 0)):
        raise NotApplicable(f"the normalized axes {', '.join(map(str, normal.axes))} are not the last ones")
    sizes = shape[len(shape) - count :] if shape is not None else (None,)
    if shape is None or not all(isinstance(size, int) for size in sizes):
        raise NotApplicable("the size of the normalized axes is unknown")
    if 0 in sizes:
        raise NotApplicable(f"{normal.x.name} has no elements; ONNX Runtime's LayerNormalization wants some")
    if len(shape) < 2:
        raise NotApplicable(f"{normal.x.name} has one dimension; MIGraphX wants two or more")
    if dtype is None or dtype == ir.DataType.DOUBLE:
        raise NotApplicable(f"{normal.x.name} is of {'unknown dtype' if dtype is None else 'float64'}")
    if not 0.0 < normal.epsilon < float("inf"):
        raise NotApplicable(f"epsilon is {normal.epsilon}")
    if scope.opset() < 17:
        raise NotApplicable(f"opset {scope.opset()} has no LayerNormalization; it came with 17")
    return tuple(size for size in sizes if isinstance(size, int))


def _operand(
    last: ir.Node, operator: str, sizes: Sequence[int], shape: ir.Shape, scope: Scope
) -> tuple[ir.Node, ir.Value | None]:
    """Return the next node and its other operand, if that may be scale or bias; else the same node and None."""
    value = last.outputs[0]
    node = sole_consumer(value, scope, operator)
    if node is None:
        return last, None
    other = node.inputs[1] if node.inputs[0] is value else node.inputs[0]
    return (node, other) if other is not None and _fits(other, sizes, shape, scope) else (last, None)


def _fits(value: ir.Value, sizes: Sequence[int], shape: ir.Shape, scope: Scope) -> bool:
    """Return whether ``value`` has the shape of the normalized axes, or is a constant that can be broadcast to it."""
    mine = scope.shape(value)
    if mine is None or len(mine) > len(shape):
        return False
    if scope.constant(value) is None:
        return tuple(mine) == tuple(sizes)
    aligned = [1] * (len(shape) - len(mine)) + list(mine)
    wanted = [1] * (len(shape) - len(sizes)) + list(sizes)
    return all(have in (1, want) for have, want in zip(aligned, wanted, strict=True))


def _parameter(value: ir.Value | None, sizes: tuple[int, ...], x: ir.Value, edit: Edit) -> ir.Value:
    """Return a scale or bias in the shape of the normalized axes; ones if there is none."""
    if value is None:
        dtype = edit.scope.dtype(x)
        assert dtype is not None
        return edit.constant(np.ones(sizes, dtype.numpy()))
    tensor = edit.scope.constant(value)
    if tensor is None or tuple(tensor.shape) == sizes:
        return value
    array = tensor.numpy()
    rest = array.reshape(array.shape[max(array.ndim - len(sizes), 0) :])
    return edit.constant(np.ascontiguousarray(np.broadcast_to(rest, sizes)))
