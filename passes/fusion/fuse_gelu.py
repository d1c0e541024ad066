"""Fuse a decomposed GELU.

    x · ½ · (1 + Erf(x / √2))                            →  Gelu(x)                        (ONNX operator, since 20)
    x · ½ · (1 + Tanh(√(2/π) · (x + 0.044715 · x³)))     →  Gelu(x), approximate="tanh"

The factors may come in any order and grouping, x³ as a power or as products, and √2 as divisor or as factor: the input
of Erf or Tanh, and the factors of its result, are read as polynomials of x. Their coefficients must be those above
within the rounding of the constants' dtype.

Skips: opsets before 20; float64 by Tanh, since ONNX defines that Gelu with constants of float32; an intermediate result
that is used elsewhere and would be computed twice.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from passes.graphs.matching import Graph, consumer, nodes_between, producer, scalar, used_elsewhere
from passes.graphs.scopes import Scope
from passes.rewriting.base import Exactness, Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import Replacement, rewrite

_INNER = {
    "Erf": [0.0, math.sqrt(0.5)],
    "Tanh": [0.0, math.sqrt(2.0 / math.pi), 0.0, math.sqrt(2.0 / math.pi) * 0.044715],
}
"""The input of the function, as coefficients of 1, x, x², …"""
_OUTER = [0.0, 0.5]
"""The factor of its result plus one."""
_ROUNDINGS = 4
"""The number of roundings of constants that a coefficient may contain."""
_DEPTH = 8
"""The greatest nesting of a polynomial, in operators."""


@rewrite(*_INNER, exactness=Exactness.ROUNDING, absorbs=("Add", "Div", "Erf", "Mul", "Pow", "Tanh"))
def fuse_gelu(node: ir.Node, edit: Edit) -> Replacement:
    """Fuse a GELU that is decomposed into Erf or Tanh."""
    scope, result = edit.scope, node.outputs[0]
    add = consumer(result, scope, "Add")
    if add is None:
        return None
    one = next((value for value in add.inputs if scalar(value, result, scope) == 1.0), None)
    tensor = scope.constant(one)
    if tensor is None or not tensor.dtype.is_floating_point():
        return None
    tolerance = _ROUNDINGS * float(tensor.dtype.eps)
    end = _end(node, add, tolerance, scope)
    if end is None:
        return None
    last, x = end
    if not _is_close(_polynomial(node.inputs[0], x, node.graph, scope), _INNER[node.op_type], tolerance):
        return None
    absorbed = nodes_between(last, {x})
    shared = used_elsewhere(absorbed, last)
    if shared is not None:
        return Skip(f"{shared.name}, an intermediate result, is used elsewhere")
    if tensor.dtype == ir.DataType.DOUBLE and node.op_type == "Tanh":
        return Skip("ONNX defines Gelu by Tanh with constants of float32, and the model computes in float64")
    if scope.opset() < 20:
        return Skip(f"opset {scope.opset()} has no Gelu; it came with 20")
    edit.root = last
    edit.absorb(*absorbed)
    return edit.op("Gelu", [x], {"approximate": "tanh"} if node.op_type == "Tanh" else {})


def _end(node: ir.Node, add: ir.Node, tolerance: float, scope: Scope) -> tuple[ir.Node, ir.Value] | None:
    """Return the last product after the addition of 1, and x, if the factors up to there are x · ½."""
    for last, factors in _products(add.outputs[0], scope):
        for x in _candidates(factors, node.graph, scope):
            if _is_close(_product(factors, x, node.graph, scope), _OUTER, tolerance):
                return last, x
    return None


@dataclass(frozen=True)
class _Factor:
    """A factor or divisor."""

    value: ir.Value
    divisor: bool = False


def _products(value: ir.Value, scope: Scope) -> Iterator[tuple[ir.Node, list[_Factor]]]:
    """Yield the successive nodes that multiply ``value``, each with all factors up to it."""
    factors: list[_Factor] = []
    while len(factors) < 3 and (node := consumer(value, scope, "Mul", "Div")) is not None:
        left, right = node.inputs
        if left is None or right is None or left is right or (node.op_type == "Div" and right is value):
            return
        factors.append(_Factor(right if left is value else left, node.op_type == "Div"))
        yield node, factors
        value = node.outputs[0]


def _candidates(factors: Sequence[_Factor], graph: Graph, scope: Scope) -> Iterator[ir.Value]:
    """Yield the candidates for x: a factor, or an operand of the product that computes a factor."""
    for factor in factors:
        yield factor.value
        node = producer(factor.value, graph, scope, "Mul", "Div")
        yield from (value for value in node.inputs if value is not None) if node is not None else ()


def _product(factors: Sequence[_Factor], x: ir.Value, graph: Graph, scope: Scope) -> np.polynomial.Polynomial | None:
    product = np.polynomial.Polynomial([1.0])
    for factor in factors:
        polynomial = _polynomial(factor.value, x, graph, scope)
        if polynomial is None or (factor.divisor and not _is_number(polynomial)):
            return None
        product = product / polynomial.coef[0] if factor.divisor else product * polynomial
    return product


def _polynomial(
    value: ir.Value | None, x: ir.Value, graph: Graph, scope: Scope, depth: int = _DEPTH
) -> np.polynomial.Polynomial | None:
    """Return ``value`` as a polynomial of ``x``; None if it is not one, or of a degree above 3."""
    if value is x:
        return np.polynomial.Polynomial([0.0, 1.0])
    number = scalar(value, x, scope)
    if number is not None:
        return np.polynomial.Polynomial([number])
    node = producer(value, graph, scope, "Add", "Mul", "Div", "Pow") if depth else None
    if node is None or len(node.inputs) != 2:
        return None
    left = _polynomial(node.inputs[0], x, graph, scope, depth - 1)
    right = _polynomial(node.inputs[1], x, graph, scope, depth - 1) if left is not None else None
    if left is None or right is None:
        return None
    match node.op_type:
        case "Add":
            result = left + right
        case "Mul":
            result = left * right
        case "Div" if _is_number(right):
            result = left / right.coef[0]
        case "Pow" if _is_number(right) and right.coef[0] in (2.0, 3.0):
            result = left ** int(right.coef[0])
        case _:
            return None
    return result if result.degree() <= 3 else None


def _is_number(polynomial: np.polynomial.Polynomial) -> bool:
    """Return whether a polynomial is a constant other than 0."""
    return polynomial.degree() == 0 and polynomial.coef[0] != 0.0


def _is_close(polynomial: np.polynomial.Polynomial | None, wanted: Sequence[float], tolerance: float) -> bool:
    if polynomial is None:
        return False
    coefficients = np.zeros(max(len(wanted), len(polynomial.coef)))
    coefficients[: len(polynomial.coef)] = polynomial.coef
    target = np.zeros_like(coefficients)
    target[: len(wanted)] = wanted
    return bool(np.all(np.abs(coefficients - target) <= tolerance * np.abs(target)))
