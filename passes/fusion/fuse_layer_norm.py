"""Fuse a decomposed layer normalization.

    d / Sqrt(mean(d²) + ε) · scale + bias,   d = x − mean(x)     →  LayerNormalization(x, scale, bias)
                                                                    (ONNX operator, since 17)

d² may be a power or a product; the square root a divisor or, as its reciprocal, a factor; the scale may be applied
before the division. Without a scale, it is a constant of ones. A scale or bias that does not fit the normalized axes
is not fused.

Skips: opsets before 17; other than the last axes; axes of unknown size; float64, since LayerNormalization computes the
mean in float32, and MIGraphX takes no other; fewer than two dimensions, likewise; an intermediate result that is used
elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from passes.graphs.matching import operand, sole_consumer, used_elsewhere
from passes.graphs.scopes import Scope
from passes.rewriting.base import Exactness, Skip
from passes.rewriting.edit import Edit
from passes.rewriting.pattern import Found, Number, Op, Var, match
from passes.rewriting.rewrite import Match, NodeContext, NodeRewrite


def _axes(reduce: ir.Node, scope: Scope) -> tuple[int, ...] | None:
    """The axes of a reduction, as negative numbers; None if they or the rank are unknown, or there are none."""
    axes = operand(reduce, 1, "axes", scope)
    shape = scope.shape(reduce.inputs[0])
    if not axes or shape is None:
        return None
    return tuple(sorted({axis - len(shape) if axis >= 0 else axis for axis in axes}))


def _kept_axes(reduce: ir.Node, scope: Scope) -> tuple[int, ...] | None:
    """The same, of a reduction that keeps its axes."""
    return _axes(reduce, scope) if reduce.attributes.get_int("keepdims", 1) == 1 else None


def _restored_axes(reshape: ir.Node, scope: Scope) -> tuple[int, ...] | None:
    """The axes of the reduction before a Reshape or Unsqueeze that gives the shape that it would have with its axes."""
    reduce = reshape.inputs[0].producer() if reshape.inputs[0] is not None else None
    if reduce is None or reduce.op_type != "ReduceMean":
        return None
    axes, before, after = _axes(reduce, scope), scope.shape(reduce.inputs[0]), scope.shape(reshape.outputs[0])
    if axes is None or before is None or after is None or before.has_unknown_dim():
        return None
    kept = [1 if axis - len(before) in axes else size for axis, size in enumerate(before)]
    return axes if kept == list(after) else None


_X = Var("x")
_MEAN = Op("ReduceMean", _X, ..., axes=_kept_axes)
_DEVIATION, _NEGATED = Op("Sub", _X, _MEAN), Op("Sub", _MEAN, _X)
_SQUARE = (
    Op("Pow", _DEVIATION | _NEGATED, Number(2.0)) | Op("Mul", _DEVIATION, _DEVIATION) | Op("Mul", _NEGATED, _NEGATED)
)
_VARIANCE = Op("ReduceMean", _SQUARE, ..., axes=_kept_axes) | Op(
    ("Reshape", "Unsqueeze"), Op("ReduceMean", _SQUARE, ...), ..., axes=_restored_axes
)
_ROOT = Op("Sqrt", Op("Add", _VARIANCE, Number(name="epsilon")))
_SCALED = Op("Mul", _DEVIATION, Var("scale"))
_INVERSE = Op("Reciprocal", _ROOT) | Op("Div", Number(1.0), _ROOT)
_NORMALIZED = Op("Div", _DEVIATION | _SCALED, _ROOT) | Op("Mul", _DEVIATION | _SCALED, _INVERSE)


@dataclass(frozen=True)
class _LayerNorm(Match):
    x: ir.Value
    epsilon: float
    sizes: tuple[int, ...]
    """Of the normalized axes."""
    scale: ir.Value | None
    bias: ir.Value | None


class FuseLayerNorm(NodeRewrite[_LayerNorm]):
    """Fuse a decomposed layer normalization."""

    name = "fuse-layer-norm"
    exactness = Exactness.ROUNDING
    operators = frozenset({("", "Div"), ("", "Mul")})
    absorbs = frozenset(
        ("", each)
        for each in ("Add", "Div", "Mul", "Pow", "ReduceMean", "Reciprocal", "Reshape", "Sqrt", "Sub", "Unsqueeze")
    )

    def match(self, node: ir.Node, context: NodeContext) -> _LayerNorm | Skip | None:
        """Match the division by the deviation, then look for the scale and the bias after it."""
        scope = context.scope
        found = match(_NORMALIZED, node, scope)
        if found is None:
            return None
        reason = _refusal(found, scope)
        if reason is not None:
            return Skip(reason)
        shape = scope.shape(found["x"])
        assert shape is not None
        sizes = tuple(size for size in shape[len(shape) - len(found["axes"]) :] if isinstance(size, int))
        scale = found.get("scale")
        if scale is not None and not _fits(scale, sizes, shape, scope):
            return None
        last = node
        if scale is None:
            last, scale = _operand(last, "Mul", sizes, shape, scope)
        after_scale = last
        last, bias = _operand(last, "Add", sizes, shape, scope)
        absorbed = tuple(dict.fromkeys(each for each in (after_scale, *found.nodes) if each is not last))
        shared = used_elsewhere(absorbed, last)
        if shared is not None:
            return Skip(f"{shared.name}, an intermediate result, is used elsewhere")
        return _LayerNorm(last, found["x"], found["epsilon"], sizes, scale, bias, absorbed=absorbed)

    def rewrite(self, match: _LayerNorm, edit: Edit) -> Sequence[ir.Value | None]:
        """One LayerNormalization, with scale and bias in the shape of the normalized axes."""
        inputs = [match.x, _parameter(match.scale, match, edit)]
        if match.bias is not None:
            inputs.append(_parameter(match.bias, match, edit))
        attributes = {"axis": -len(match.sizes), "epsilon": match.epsilon}
        return [edit.op("LayerNormalization", inputs, attributes)]


def _refusal(found: Found, scope: Scope) -> str | None:
    """Why a normalization cannot be one LayerNormalization; None if it can."""
    x, axes, epsilon = found["x"], found["axes"], found["epsilon"]
    shape, dtype = scope.shape(x), scope.dtype(x)
    count = len(axes)
    if axes != tuple(range(-count, 0)):
        return f"it normalizes axes {', '.join(map(str, axes))}, which are not the last ones"
    if shape is None or not all(isinstance(size, int) for size in shape[len(shape) - count :]):
        return "the size of the axes that it normalizes is unknown"
    if 0 in shape[len(shape) - count :]:
        return f"{x.name} has no elements; ONNX Runtime's LayerNormalization wants some"
    if len(shape) < 2:
        return f"{x.name} has one dimension; MIGraphX wants two or more"
    if dtype is None or dtype == ir.DataType.DOUBLE:
        return f"{x.name} is of {'unknown dtype' if dtype is None else 'float64'}"
    if not 0.0 < epsilon < float("inf"):
        return f"its epsilon is {epsilon}"
    if scope.opset() < 17:
        return f"opset {scope.opset()} has no LayerNormalization; it came with 17"
    return None


def _operand(
    last: ir.Node, operator: str, sizes: Sequence[int], shape: ir.Shape, scope: Scope
) -> tuple[ir.Node, ir.Value | None]:
    """The next node and its other operand, if that may be scale or bias; else the same node and None."""
    value = last.outputs[0]
    node = sole_consumer(value, scope, operator)
    if node is None:
        return last, None
    other = node.inputs[1] if node.inputs[0] is value else node.inputs[0]
    return (node, other) if other is not None and _fits(other, sizes, shape, scope) else (last, None)


def _fits(value: ir.Value, sizes: Sequence[int], shape: ir.Shape, scope: Scope) -> bool:
    """Whether ``value`` has the shape of the normalized axes, or is a constant that can be broadcast to it."""
    mine = scope.shape(value)
    if mine is None or len(mine) > len(shape):
        return False
    if scope.constant(value) is None:
        return tuple(mine) == tuple(sizes)
    aligned = [1] * (len(shape) - len(mine)) + list(mine)
    wanted = [1] * (len(shape) - len(sizes)) + list(sizes)
    return all(have in (1, want) for have, want in zip(aligned, wanted, strict=True))


def _parameter(value: ir.Value | None, match: _LayerNorm, edit: Edit) -> ir.Value:
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
