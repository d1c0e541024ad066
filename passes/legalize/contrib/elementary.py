"""Write simple operators of com.microsoft with standard operators.

    ExpandDims(x, axis)               →  Unsqueeze(x, axis)
    Range(start, limit)               →  Range(start, limit, 1)
    UnfoldTensor<dim, size, step>(x)  →  Transpose(Gather(x, windows))
    CDist<metric>(A, B)               →  |a|² + |b|² − 2 · a · b for all pairs of rows, or its square root
    GatedAdd(x, y, g)                 →  x + y · g
    ScaledSiLU<alpha>(x, s)           →  z · Sigmoid(z),  z = s · x, or alpha · x
    BranchwiseRMSNorm(x, s)           →  x / √(mean(x²) + ε) · s  per branch
    GatedRMSNorm(x, s, g)             →  the same per row as long as s, times activation(g)

Skips: unknown shapes; an axis that is not constant.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from passes.builders.arithmetic import Arithmetic, wide
from passes.builders.operands import constant_integer, given, not_constant
from passes.legalize.contrib.normalization import rms_norm
from passes.rewriting.base import Exactness, Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import EVERY_INPUT, Match, NodeContext, NodeRewrite

_DOMAIN = "com.microsoft"


@dataclass(frozen=True)
class _Found(Match):
    shape: tuple[int, ...]
    dtype: ir.DataType
    """Shape and dtype of the first input."""


def _expand_dims(a: Arithmetic, match: _Found) -> ir.Value | Skip:
    x, axis = match.node.inputs
    assert x is not None and axis is not None
    place = constant_integer(axis, a.edit.scope)
    return Skip(not_constant(axis, "axis")) if place is None else a.unsqueeze(x, [place])


def _range(a: Arithmetic, match: _Found) -> ir.Value:
    start, limit = (
        None if each is None else a.squeeze(each, range(len(match.shape))) for each in match.node.inputs[:2]
    )
    delta = given(match.node, 2)
    return a("Range", start, limit, 1 if delta is None else a.squeeze(delta, range(len(match.shape))))


def _unfold(a: Arithmetic, match: _Found) -> ir.Value:
    attributes, rank = match.node.attributes, len(match.shape)
    axis, size, step = attributes.get_int("dim", -1) % rank, attributes["size"].as_int(), attributes.get_int("step", 1)
    starts = np.arange(0, match.shape[axis] - size + 1, step)
    windows = a("Gather", match.node.inputs[0], a.index(starts[:, None] + np.arange(size)), axis=axis)
    order = [*range(axis + 1), *range(axis + 2, rank + 1), axis + 1]
    return windows if order == sorted(order) else a("Transpose", windows, perm=order)


def _distances(a: Arithmetic, match: _Found) -> ir.Value:
    one, other = match.node.inputs
    squares = [a.reduce("Sum", a("Mul", each, each), [1]) for each in (one, other)]
    products = a("MatMul", one, a("Transpose", other, perm=[1, 0]))
    total = a("Add", squares[0], a("Transpose", squares[1], perm=[1, 0]))
    found = a("Max", a("Sub", total, a("Mul", products, 2)), 0)
    return a("Sqrt", found) if match.node.attributes.get_string("metric", "sqeuclidean") == "euclidean" else found


def _gated_add(a: Arithmetic, match: _Found) -> ir.Value:
    x, y, gate = match.node.inputs
    return a("Add", x, a("Mul", y, gate))


def _scaled_silu(a: Arithmetic, match: _Found) -> ir.Value:
    x, scale = match.node.inputs[0], given(match.node, 1)
    factor: ir.Value | float = match.node.attributes.get_float("alpha", 1.0)
    if scale is not None:
        factor = a("Cast", scale, to=int(match.dtype))
    z = a("Mul", x, factor)
    return a("Mul", z, a("Sigmoid", z))


def _normalized(a: Arithmetic, match: _Found) -> ir.Value:
    """Both RMS normalizations, each with its own rows."""
    node, x, scale = match.node, match.node.inputs[0], given(match.node, 1)
    assert x is not None
    inner = Arithmetic(a.edit, wide(match.dtype))
    width = match.shape[-1]
    scales = a.edit.scope.static_shape(scale) or ()
    if node.op_type == "GatedRMSNorm":
        rows: tuple[int, ...] = (width // scales[0], scales[0])
    elif branches := node.attributes.get_int("num_branches", 0):
        rows = (branches, width // branches)
    else:
        rows = match.shape[-2:]
    flat = inner.reshape(inner.cast(x), [-1, *rows])
    factors: ir.Value | None = None
    if scale is not None:
        factors = inner("Cast", scale, to=int(inner.dtype))
        factors = inner.reshape(factors, rows) if scales == (rows[0] * rows[1],) else factors
    y, _ = rms_norm(
        inner, flat, inner.value(1.0) if factors is None else factors, [2], node.attributes.get_float("epsilon", 1e-5)
    )
    if node.op_type == "GatedRMSNorm":
        gate = given(node, 2)
        assert gate is not None
        gate = inner.reshape(inner.cast(gate), [-1, *rows])
        opened = inner("Sigmoid", gate)
        silu = node.attributes.get_string("activation", "silu") != "sigmoid"
        y = inner("Mul", y, inner("Mul", gate, opened) if silu else opened)
    return inner.cast(inner.reshape(y, match.shape), match.dtype)


_FORMS: Mapping[str, Callable[[Arithmetic, _Found], ir.Value | Skip]] = {
    "ExpandDims": _expand_dims,
    "Range": _range,
    "UnfoldTensor": _unfold,
    "CDist": _distances,
    "GatedAdd": _gated_add,
    "ScaledSiLU": _scaled_silu,
    "BranchwiseRMSNorm": _normalized,
    "GatedRMSNorm": _normalized,
}


class SpellOut(NodeRewrite[_Found]):
    """Write a simple operator of com.microsoft with standard operators."""

    name = "spell-out"
    exactness = Exactness.ROUNDING
    operators = frozenset((_DOMAIN, name) for name in _FORMS)
    needs_shape = EVERY_INPUT
    needs_dtype = (0,)

    def match(self, node: ir.Node, context: NodeContext) -> _Found | Skip | None:
        """Match every node whose shapes are known."""
        return _Found(node, context.shape(node), context.dtype(node))

    def rewrite(self, match: _Found, edit: Edit) -> Sequence[ir.Value | None] | Skip:
        found = _FORMS[match.node.op_type](Arithmetic(edit, match.dtype), match)
        return found if isinstance(found, Skip) else [found]


RULES: tuple[NodeRewrite[Any], ...] = (SpellOut(),)
