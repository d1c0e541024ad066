"""Bounds of the elements of a value that follow from the operators that compute it.

    Clip, Relu, Sigmoid, Softmax, Tanh, …       bounds of their own
    DequantizeLinear                            (qmin − z)·s … (qmax − z)·s
    Reshape, Transpose, MaxPool, Concat, …      the bounds of the input

The bounds hold for real numbers: rounding may exceed them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import onnx_ir as ir

from passes.graphs.quantization import parameters, plain
from passes.graphs.scopes import Scope
from passes.operators import is_dequantize, operators

Range = tuple[float, float]
ANY: Range = (-math.inf, math.inf)
"""The range of a value without known bounds."""

_DEPTH = 32
_OWN: dict[str, Range] = {
    "Sigmoid": (0.0, 1.0),
    "HardSigmoid": (0.0, 1.0),
    "Softmax": (0.0, 1.0),
    "Tanh": (-1.0, 1.0),
    "Sin": (-1.0, 1.0),
    "Cos": (-1.0, 1.0),
    "Softsign": (-1.0, 1.0),
    "Erf": (-1.0, 1.0),
    "Abs": (0.0, math.inf),
    "Exp": (0.0, math.inf),
    "Sqrt": (0.0, math.inf),
    "Softplus": (0.0, math.inf),
}


def value_range(value: ir.Value | None, scope: Scope) -> Range:
    """Return the least and the largest number that ``value`` may hold; infinite if unknown."""
    return _Search(scope).range(value, _DEPTH)


@dataclass(frozen=True)
class _Search:
    """A search along a number of nodes; a value that is reached in several ways is visited once for each number."""

    scope: Scope
    ranges: dict[tuple[ir.Value | None, int], Range] = field(default_factory=dict)

    def range(self, value: ir.Value | None, depth: int) -> Range:
        if (value, depth) not in self.ranges:
            node = value.producer() if value is not None and depth else None
            self.ranges[value, depth] = ANY if node is None else self._of(node, depth - 1)
        return self.ranges[value, depth]

    def _of(self, node: ir.Node, depth: int) -> Range:
        scope = self.scope
        if is_dequantize(node):
            params = parameters(node, scope)
            if isinstance(params, str):
                return ANY
            least, most = params.bounds()
            return float(least.min()), float(most.max())
        if node.domain != "":
            return ANY
        first = node.inputs[0] if node.inputs else None
        if node.op_type in _OWN and plain(node, scope, node.op_type):
            return _OWN[node.op_type]
        if plain(node, scope, *operators("within")):
            return self.range(first, depth)
        if plain(node, scope, "Relu"):
            low, high = self.range(first, depth)
            return max(low, 0.0), max(high, 0.0)
        if plain(node, scope, "Clip"):
            low, high = self.range(first, depth)
            return max(low, _limit(node, 1, "min", scope, -math.inf)), min(
                high, _limit(node, 2, "max", scope, math.inf)
            )
        if plain(node, scope, "Max", "Min", "Concat"):
            ranges = [_constant(value, scope) or self.range(value, depth) for value in node.inputs]
            lows, highs = zip(*ranges, strict=True)
            if node.op_type == "Concat":
                return min(lows), max(highs)
            choose = max if node.op_type == "Max" else min
            return choose(lows), choose(highs)
        if plain(node, scope, "AveragePool", "Pad"):  # the padding value is zero
            if node.op_type == "Pad" and (len(node.inputs) > 2 or node.attributes.get_float("value", 0.0) != 0.0):
                return ANY
            low, high = self.range(first, depth)
            return min(low, 0.0), max(high, 0.0)
        return ANY


def _limit(node: ir.Node, index: int, name: str, scope: Scope, none: float) -> float:
    """Return a limit of Clip, an input or an attribute; ``none`` if it has none, or one that is computed."""
    if name in node.attributes:
        return float(node.attributes.get_float(name, none))
    tensor = scope.constant(node.inputs[index]) if index < len(node.inputs) else None
    return float(tensor.numpy().item()) if tensor is not None and tensor.size == 1 else none


def _constant(value: ir.Value | None, scope: Scope) -> Range | None:
    """Return the range of a constant; None for other values, and for large constants, which are not read."""
    tensor = scope.constant(value)
    if tensor is None or not tensor.size or tensor.nbytes > 65536:
        return None
    array = tensor.numpy()
    return float(array.min()), float(array.max())
