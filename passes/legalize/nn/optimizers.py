"""Decompose the steps of optimizers into arithmetic, tensor by tensor. ONNX Runtime has no kernels for them.

    Adagrad(R, T, X, G, H)              →  g = norm_coefficient · X + G,  H' = H + g²,
                                           X' = X − R / (1 + T · decay_factor) · g / (√H' + epsilon)
    Adam(R, T, X, G, V, H)              →  V' = alpha · V + (1 − alpha) · g,  H' = beta · H + (1 − beta) · g²,
                                           r = R · √(1 − beta^T) / (1 − alpha^T), or R if T is 0,
                                           X' = (1 − norm_coefficient_post) · (X − r · V' / (√H' + epsilon))
    Momentum(R, T, X, G, V)             →  V' = alpha · V + b · g,  b = beta, or 1 if T is 0,
                                           X' = X − R · V', or X − R · (g + alpha · V') for Nesterov's

A node updates several tensors at once: X1, X2, …, G1, G2, …

Skips: unknown dtypes; models without the standard operators of opset 9.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import onnx_ir as ir

from passes.builders.arithmetic import Arithmetic, wide
from passes.rewriting.base import Exactness
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import EVERY_INPUT, Replacement, rewrite


@rewrite(
    "ai.onnx.preview.training.Adagrad",
    "ai.onnx.preview.training.Adam",
    "ai.onnx.preview.training.Momentum",
    exactness=Exactness.ROUNDING,
    since_opset=9,
    needs_dtype=EVERY_INPUT,
)
def decompose_optimizer(node: ir.Node, edit: Edit) -> Replacement:
    """Decompose the step of an optimizer, tensor by tensor."""
    step, states = _STEPS[node.op_type]
    rate, count, *tensors = (value for value in node.inputs if value is not None)
    groups = len(tensors) // states
    columns = []
    for index in range(groups):
        dtype = edit.dtype(node, 2 + index)
        a = Arithmetic(edit, wide(dtype))
        operands = [a.cast(value) for value in (rate, count, *tensors[index::groups])]
        columns.append([a.cast(value, dtype) for value in step(a, node, *operands)])
    # all updated X1, X2, …, then all states of the first kind, then those of the next
    return [value for row in zip(*columns, strict=True) for value in row]


def _regularized(a: Arithmetic, node: ir.Node, x: ir.Value, g: ir.Value) -> ir.Value:
    """Return the gradient plus that of the penalty on X."""
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
    started = a("Greater", t, 0)
    steps = a("Where", started, t, 1)
    bias = a("Div", a("Sqrt", a("Sub", 1, a("Pow", beta, steps))), a("Sub", 1, a("Pow", alpha, steps)))
    rate = a("Mul", r, a("Where", started, bias, 1))
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
"""The step of each optimizer, and how many inputs it has for each updated tensor."""
