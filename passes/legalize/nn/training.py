"""What training leaves in models: Dropout, and the steps of optimizers.

    Dropout(x), inference or ratio 0    →  x, and a mask of ones                  (of zeros before opset 12)
    BiasDropout(x, b, r), likewise      →  x + b + r, and a mask of ones
    BitmaskDropout(x), BitmaskBiasDropout(x, b, r)    likewise, without the mask
    Adagrad(R, T, X, G, H)              →  g = norm_coefficient · X + G,  H' = H + g²,
                                           X' = X − R / (1 + T · decay_factor) · g / (√H' + epsilon)
    Adam(R, T, X, G, V, H)              →  V' = alpha · V + (1 − alpha) · g,  H' = beta · H + (1 − beta) · g²,
                                           r = R · √(1 − beta^T) / (1 − alpha^T), or R where T is 0,
                                           X' = (1 − norm_coefficient_post) · (X − r · V' / (√H' + epsilon))
    Momentum(R, T, X, G, V)             →  V' = alpha · V + b · g,  b = beta, or 1 where T is 0,
                                           X' = X − R · V', or X − R · (g + alpha · V') for Nesterov's

An optimizer's node takes several tensors at once: X1, X2, …, G1, G2, … The mask of an inference was never said before
opset 12; zeros are what ONNX Runtime gives.

Skips: Dropout that drops, which is random; a training mode or ratio that is not constant; masks in bits; optimizers in
models that import no standard operators.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from passes.analysis.randomness import FUSED_DROPOUTS, is_random
from passes.build.arithmetic import Arithmetic, wide
from passes.build.operands import (
    UNKNOWN_DTYPE,
    UNKNOWN_SHAPE,
    given,
    is_output_used,
    not_constant,
    scalar,
    sizes_of,
    too_old,
)
from passes.core.base import Exactness, Skip
from passes.core.edit import Edit
from passes.core.matching import is_plain
from passes.core.rewrite import Match, NodeContext, NodeRewrite

_DOMAIN = "ai.onnx.preview.training"
_CONTRIB = "com.microsoft"


@dataclass(frozen=True)
class _Dropout(Match):
    mask: np.ndarray[Any, np.dtype[Any]] | None


@dataclass(frozen=True)
class RemoveDropout(NodeRewrite[_Dropout]):
    """Replace a Dropout that drops nothing by its input and a constant mask."""

    name = "remove-dropout"
    operators = frozenset({("", "Dropout")})

    def match(self, node: ir.Node, context: NodeContext) -> _Dropout | Skip | None:
        """Whether it drops nothing, and how large the mask is if there is one."""
        scope = context.scope
        if not is_plain(node, scope):
            return None
        if scope.opset() < 7 and not node.attributes.get_int("is_test", 0):
            return Skip("it is in training mode, and drops at random")
        ratio, training = given(node, 1), given(node, 2)
        if training is not None and scalar(training, scope) != 0:
            if scalar(training, scope) is None:
                return Skip(not_constant(training, "training_mode"))
            share = scope.constant(ratio)
            if ratio is not None and share is None:
                return Skip(not_constant(ratio, "ratio"))
            if share is None or float(share.numpy().item()) != 0:
                return Skip("it is in training mode, and drops at random")
        if not is_output_used(node, 1):
            return _Dropout(node, None)
        shape, dtype = sizes_of(node.inputs[0], scope), scope.dtype(node.inputs[0])
        if shape is None:
            return Skip(UNKNOWN_SHAPE)
        if dtype is None:
            return Skip(UNKNOWN_DTYPE)
        kind = bool if scope.opset() >= 10 else dtype.numpy()
        return _Dropout(node, np.full(shape, scope.opset() >= 12, kind))

    def rewrite(self, match: _Dropout, edit: Edit) -> Sequence[ir.Value | None]:
        """Nothing is computed."""
        mask = None if match.mask is None else edit.constant(match.mask)
        return [match.node.inputs[0], mask][: len(match.node.outputs)]


@dataclass(frozen=True)
class RemoveFusedDropout(NodeRewrite[_Dropout]):
    """Replace com.microsoft's Dropout with a bias and a residual, which drops nothing, by a sum."""

    name = "remove-fused-dropout"
    exactness = Exactness.ROUNDING
    operators = frozenset((_CONTRIB, name) for name in FUSED_DROPOUTS)

    def match(self, node: ir.Node, context: NodeContext) -> _Dropout | Skip | None:
        """Whether it drops nothing, and how large the mask is if there is one."""
        scope = context.scope
        if not is_plain(node, scope):
            return None
        if is_random(node, scope):
            return Skip("it is in training mode, or may be, and drops at random")
        if not is_output_used(node, 1):
            return _Dropout(node, None)
        if node.op_type != "BiasDropout":
            return Skip("what the bits of its mask beyond the last element are, nobody says")
        shape = sizes_of(node.inputs[0], scope)
        return Skip(UNKNOWN_SHAPE) if shape is None else _Dropout(node, np.ones(shape, bool))

    def rewrite(self, match: _Dropout, edit: Edit) -> Sequence[ir.Value | None]:
        """The sum of what there is."""
        terms = match.node.inputs[: FUSED_DROPOUTS[match.node.op_type][0]]
        result = terms[0]
        for term in terms[1:]:
            result = result if term is None else edit.op("Add", [result, term])
        mask = None if match.mask is None else edit.constant(match.mask)
        return [result, mask][: len(match.node.outputs)]


@dataclass(frozen=True)
class _Step(Match):
    dtypes: tuple[ir.DataType, ...]


@dataclass(frozen=True)
class DecomposeOptimizer(NodeRewrite[_Step]):
    """Write the step of an optimizer out, tensor by tensor."""

    name = "decompose-optimizer"
    exactness = Exactness.ROUNDING
    operators = frozenset((_DOMAIN, name) for name in ("Adagrad", "Adam", "Momentum"))

    def match(self, node: ir.Node, context: NodeContext) -> _Step | Skip | None:
        """Whether all dtypes are known."""
        if not is_plain(node, context.scope):
            return None
        if "" not in context.scope.opset_imports:
            return Skip("the model imports no standard operators to write it in")
        if (reason := too_old(context.scope, 9)) is not None:
            return Skip(reason)
        dtypes = [context.scope.dtype(value) for value in node.inputs]
        known = tuple(dtype for dtype in dtypes if dtype is not None)
        return _Step(node, known) if len(known) == len(dtypes) else Skip(UNKNOWN_DTYPE)

    def rewrite(self, match: _Step, edit: Edit) -> Sequence[ir.Value | None]:
        """All new X1, X2, …, then all new states of a kind, then those of the next."""
        step, states = _STEPS[match.node.op_type]
        rate, count, *tensors = (value for value in match.node.inputs if value is not None)
        groups = len(tensors) // states
        columns = []
        for index in range(groups):
            dtype = match.dtypes[2 + index]
            a = Arithmetic(edit, wide(dtype))
            own = [a.cast(value, dtype) for value in tensors[index::groups]]
            r, t = a.cast(rate, match.dtypes[0]), a.cast(count, match.dtypes[1])
            columns.append([a.cast(value, a.dtype, dtype) for value in step(a, match.node, r, t, *own)])
        return [value for row in zip(*columns, strict=True) for value in row]


def _regularized(a: Arithmetic, node: ir.Node, x: ir.Value, g: ir.Value) -> ir.Value:
    """The gradient with that of the penalty on X."""
    return a("Add", a("Mul", x, node.attributes.get_float("norm_coefficient", 0.0)), g)


def _adagrad(
    a: Arithmetic, node: ir.Node, r: ir.Value, t: ir.Value, x: ir.Value, g: ir.Value, h: ir.Value
) -> Iterator[ir.Value]:
    g = _regularized(a, node, x, g)
    h = a("Add", h, a("Mul", g, g))
    rate = a("Div", r, a("Add", a("Mul", t, node.attributes.get_float("decay_factor", 0.0)), 1))
    root = a("Add", a("Sqrt", h), node.attributes.get_float("epsilon", 0.0))
    yield a("Sub", x, a("Div", a("Mul", rate, g), root))
    yield h


def _adam(
    a: Arithmetic, node: ir.Node, r: ir.Value, t: ir.Value, x: ir.Value, g: ir.Value, v: ir.Value, h: ir.Value
) -> Iterator[ir.Value]:
    alpha, beta = node.attributes.get_float("alpha", 0.9), node.attributes.get_float("beta", 0.999)
    g = _regularized(a, node, x, g)
    v = a("Add", a("Mul", v, alpha), a("Mul", g, 1 - alpha))
    h = a("Add", a("Mul", h, beta), a("Mul", a("Mul", g, g), 1 - beta))
    begun = a("Greater", t, 0)
    past = a("Where", begun, t, 1)
    bias = a("Div", a("Sqrt", a("Sub", 1, a("Pow", beta, past))), a("Sub", 1, a("Pow", alpha, past)))
    rate = a("Mul", r, a("Where", begun, bias, 1))
    root = a("Add", a("Sqrt", h), node.attributes.get_float("epsilon", 0.0))
    x = a("Sub", x, a("Div", a("Mul", rate, v), root))
    yield a("Mul", x, 1 - node.attributes.get_float("norm_coefficient_post", 0.0))
    yield v
    yield h


def _momentum(
    a: Arithmetic, node: ir.Node, r: ir.Value, t: ir.Value, x: ir.Value, g: ir.Value, v: ir.Value
) -> Iterator[ir.Value]:
    alpha, beta = node.attributes["alpha"].as_float(), node.attributes["beta"].as_float()
    g = _regularized(a, node, x, g)
    v = a("Add", a("Mul", v, alpha), a("Mul", g, a("Where", a("Greater", t, 0), beta, 1)))
    nesterov = node.attributes["mode"].as_string() == "nesterov"
    yield a("Sub", x, a("Mul", r, a("Add", g, a("Mul", v, alpha)) if nesterov else v))
    yield v


_STEPS: Mapping[str, tuple[Callable[..., Iterator[ir.Value]], int]] = {
    "Adagrad": (_adagrad, 3),
    "Adam": (_adam, 4),
    "Momentum": (_momentum, 3),
}
"""How each optimizer steps, and how many tensors it takes for each that it changes."""


RULES: tuple[NodeRewrite[Any], ...] = (RemoveDropout(), RemoveFusedDropout(), DecomposeOptimizer())
