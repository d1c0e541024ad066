"""ONNX translations of operators that torch.onnx's dynamo exporter translates wrongly, or not in all their forms.

    aten::nll_loss_forward      its second output: the sum of the weights of all targets that count
    aten::linalg_vector_norm    without dimensions, with all of them kept
    aten::scatter…              an index that is smaller than the source: the rest of the source is not used
    aten::scatter_reduce        mean; not including what is written to

Skips: means of integers, which PyTorch rounds down.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import onnx_ir as ir
from onnxscript import opset18

op: Any = opset18
"""Operators in a form that later opsets still have, without type checks."""
_LOSS_REDUCTIONS = ("none", "mean", "sum")
_SCATTER_REDUCTIONS = {"sum": "add", "mean": "add", "prod": "mul", "amin": "min", "amax": "max"}
"""ONNX's names; a mean is a sum that is divided."""


def _nll_loss_forward(scores: Any, target: Any, weight: Any, reduction: int, ignore_index: int) -> Any:
    how = _LOSS_REDUCTIONS[reduction]
    single = len(scores.shape) == 1
    if single:
        scores, target = op.Unsqueeze(scores, _ints([0])), op.Reshape(target, _ints([1]))
    loss = op.NegativeLogLikelihoodLoss(scores, target, weight, ignore_index=ignore_index, reduction=how)
    loss = op.Squeeze(loss) if single else loss
    if how == "none":
        return loss, op.CastLike(op.Constant(value_float=0.0), scores)
    counts = op.Not(op.Equal(target, op.CastLike(_ints(ignore_index), target)))
    weights = op.CastLike(counts, scores)
    if weight is not None:
        chosen = op.Where(counts, target, op.CastLike(_ints(0), target))
        weights = op.Mul(weights, op.Gather(weight, chosen))
    return loss, op.ReduceSum(weights, keepdims=0)


def _vector_norm(
    x: Any, ord: float = 2.0, dim: int | Sequence[int] | None = None, keepdim: bool = False, dtype: int = -1
) -> Any:
    if dtype != -1:
        x = op.Cast(x, to=dtype)
    every = range(len(x.shape))
    given = every if dim is None else [dim] if isinstance(dim, int) else dim
    axes = list(given) or list(every)
    options = {"keepdims": int(keepdim), "noop_with_empty_axes": 1}
    if math.isinf(ord):
        reduced = op.ReduceMax if ord > 0 else op.ReduceMin
        return reduced(op.Abs(x), _ints(axes), **options)
    if ord == 0:
        zero = op.CastLike(op.Constant(value_float=0.0), x)
        return op.ReduceSum(op.CastLike(op.Not(op.Equal(x, zero)), x), _ints(axes), **options)
    if ord == 1:
        return op.ReduceSum(op.Abs(x), _ints(axes), **options)
    if ord == 2:
        return op.Sqrt(op.ReduceSum(op.Mul(x, x), _ints(axes), **options))
    power, root = (op.CastLike(op.Constant(value_float=float(value)), x) for value in (ord, 1 / ord))
    return op.Pow(op.ReduceSum(op.Pow(op.Abs(x), power), _ints(axes), **options), root)


def _scatter(x: Any, dim: int, index: Any, source: Any) -> Any:
    return _scattered(x, dim, index, source, "none")


def _scatter_add(x: Any, dim: int, index: Any, source: Any) -> Any:
    return _scattered(x, dim, index, source, "add")


def _scattered(x: Any, dim: int, index: Any, source: Any, reduction: str) -> Any:
    result = op.ScatterElements(_vector(x), _vector(index), _updates(source, index), axis=dim, reduction=reduction)
    return _like(x, result)


def _scatter_reduce(x: Any, dim: int, index: Any, source: Any, reduce: str, include_self: bool = True) -> Any:
    if reduce == "mean" and not x.dtype.is_floating_point():
        raise ValueError("the mean of integers, which is rounded down, cannot be expressed")
    reduction = _SCATTER_REDUCTIONS[reduce]
    base, indices, updates = _vector(x), _vector(index), _updates(source, index)
    if not include_self:
        neutral = op.Expand(op.CastLike(_neutral(reduction, x.dtype), x), op.Shape(indices))
        base = op.ScatterElements(base, indices, neutral, axis=dim)
    result = op.ScatterElements(base, indices, updates, axis=dim, reduction=reduction)
    if reduce == "mean":
        one, zero = (op.CastLike(op.Constant(value_float=value), x) for value in (1.0, 0.0))
        own = op.Expand(one if include_self else zero, op.Shape(base))
        counts = op.ScatterElements(own, indices, op.Expand(one, op.Shape(indices)), axis=dim, reduction="add")
        result = op.Div(result, op.Max(counts, one))
    return _like(x, result)


def _updates(source: Any, index: Any) -> Any:
    """Return the part of the source that an index uses, since ONNX takes updates of the shape of the indices only."""
    rank = len(index.shape)
    if rank == 0 or index.shape == source.shape:
        return _vector(source)
    return op.Slice(source, _ints([0] * rank), op.Shape(index), _ints(list(range(rank))))


def _like(x: Any, result: Any) -> Any:
    return op.Squeeze(result, _ints([0])) if len(x.shape) == 0 else result


def _vector(x: Any) -> Any:
    return op.Reshape(x, _ints([1])) if len(x.shape) == 0 else x


def _neutral(reduction: str, dtype: ir.DataType) -> Any:
    """Return what a reduction makes nothing of."""
    if reduction in ("add", "mul"):
        return op.Constant(value_float=float(reduction == "mul"))
    if dtype.is_floating_point():
        return op.Constant(value_float=math.inf if reduction == "min" else -math.inf)
    return op.Constant(value_int=dtype.max if reduction == "min" else dtype.min)


def _ints(values: int | list[int]) -> Any:
    return op.Constant(value_int=values) if isinstance(values, int) else op.Constant(value_ints=values)


TRANSLATIONS: Mapping[str, Callable[..., Any]] = {
    "aten::nll_loss_forward.default": _nll_loss_forward,
    "aten::linalg_vector_norm.default": _vector_norm,
    "aten::scatter.src": _scatter,
    "aten::scatter_add.default": _scatter_add,
    "aten::scatter_reduce.two": _scatter_reduce,
}
