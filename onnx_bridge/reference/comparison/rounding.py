"""The rounding of what an output is computed from, which the output's own magnitude may not show.

    y = Sigmoid(x) = 1 / (1 + exp(−x))        1 + exp(−x) is rounded at 1.0, however small y is
    y = a − b                                 a and b are rounded at their magnitudes, however close they are
    y = w · Sigmoid(x)                        that of the sigmoid, times w

An error of one unit in the last place of these numbers, on either side, is no fault. Errors are followed back from an
output through what moves, scales or adds numbers, to the operator that computes them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onnx_bridge.core.errors import BridgeError
from onnx_bridge.core.values import Value
from onnx_bridge.reference.comparison.tolerances import default_tolerance, is_float, largest
from onnx_bridge.reference.reference import Reference
from passes.operators import operators
from passes.probing.partition import extract

_UNIT = 2.0**-23
"""The unit in the last place of 1.0 in float32."""
_SIDES = 2
"""Both sides round."""
_GIVEN, _BY_ONE, _SUMS = operators("given"), operators("unit"), operators("sums")
_FOLLOWED = _GIVEN | _SUMS | {"Mul", "Div"}
_PRODUCTS = frozenset(["MatMul", "Gemm", "Conv", "ConvTranspose", "Einsum"])
_DEPTH = 32
"""The most operators that are followed back."""

Fetch = Callable[[Sequence[str]], Mapping[str, Value]]


def floors(model: ir.Model, outputs: Sequence[str], fetch: Fetch) -> dict[str, float]:
    """Return the error of float32 outputs that one rounding of what they are computed from causes, by name.

    Args:
        fetch: returns values of the reference by name.
    """
    by_name = {str(value.name): value for value in model.graph.outputs}
    chosen = [by_name[name] for name in outputs if name in by_name]
    wanted: dict[ir.Value, None] = {}
    for value in chosen:
        _collect(value, wanted, _DEPTH)
    names = [str(value.name) for value in wanted if value.producer() is not None]
    magnitudes = {name: _largest(array) for name, array in fetch(names).items()} if names else {}
    rounding = _Rounding(magnitudes)
    return {str(value.name): _SIDES * _UNIT * rounding.of(value, _DEPTH) for value in chosen}


def is_rounding(node: ir.Node, value: Value, right: Value, model: ir.Model, values: Mapping[str, Value]) -> bool:
    """Return whether the terms of each sum of a node are so large that a rounding of them explains its difference.

    A sum Σ aᵢ·bᵢ is rounded as coarsely as Σ |aᵢ|·|bᵢ|, however small it is (Higham, Accuracy and Stability of
    Numerical Algorithms, 2nd edition, section 3.1); here by one unit in the last place on either side.
    """
    if not isinstance(value, np.ndarray) or not isinstance(right, np.ndarray) or value.shape != right.shape:
        return False
    if node.op_type not in operators("many") or value.dtype != np.float32:
        return False
    given = [str(operand.name) for operand in node.inputs if operand is not None and operand.name in values]
    try:
        part = extract(model, given, [str(node.outputs[0].name)])
        for constant in part.graph.initializers.values():
            if constant.const_value is not None and is_float(constant.const_value.dtype.numpy()):
                constant.const_value = ir.tensor(np.abs(constant.const_value.numpy()))
        (terms,) = Reference(part).run({name: _magnitude(values[name]) for name in given}).values()
    except BridgeError:
        return False
    limit = default_tolerance(right)
    allowed = limit.atol + limit.rtol * np.abs(right) + _SIDES * _UNIT * np.asarray(terms)
    return bool((np.abs(value - right) <= allowed).all())


def _magnitude(value: Value) -> Value:
    return np.abs(value) if isinstance(value, np.ndarray) and is_float(value.dtype) else value


def _collect(value: ir.Value, collected: dict[ir.Value, None], depth: int) -> None:
    """Collect the values whose magnitudes count."""
    node = value.producer()
    if value in collected or node is None or (value.graph is not None and node.graph is not value.graph):
        return
    collected[value] = None
    if not depth or node.op_type in _BY_ONE:
        return
    followed = node.op_type in _FOLLOWED
    for operand in node.inputs:
        if operand is not None and (followed or node.op_type in _PRODUCTS):
            if followed:
                _collect(operand, collected, depth - 1)
            elif operand.producer() is not None:
                collected[operand] = None


@dataclass(frozen=True)
class _Rounding:
    """The magnitudes at which values are rounded, from the largest magnitude of each, by name."""

    magnitudes: Mapping[str, float]

    def of(self, value: ir.Value | None, depth: int) -> float:
        node = None if value is None else value.producer()
        if value is None or node is None or not depth:
            return 0.0
        inputs = [operand for operand in node.inputs if operand is not None]
        below = [self.of(operand, depth - 1) for operand in inputs] if node.op_type in _FOLLOWED else []
        sizes = [self._size(operand) for operand in inputs]
        own = self._size(value)
        if node.op_type in _BY_ONE:
            return 1.0
        if node.op_type in _GIVEN:
            return max(below, default=0.0)
        if node.op_type in _SUMS:
            return max([own, *below, *sizes])
        if node.op_type in ("Mul", "Div") and len(inputs) == 2:
            divided = node.op_type == "Div"
            scale = (1 / sizes[1] if sizes[1] else 0.0) if divided else sizes[1]
            return max(own, below[0] * scale, 0.0 if divided else below[1] * sizes[0])
        if node.op_type in _PRODUCTS:
            return max(own, sizes[0] * sizes[1] if len(sizes) > 1 else 0.0)
        return own

    def _size(self, value: ir.Value) -> float:
        if value.const_value is not None:
            return _largest(np.asarray(value.const_value.numpy()))
        return self.magnitudes.get(str(value.name), 0.0)


def _largest(value: Value) -> float:
    return largest(value) if isinstance(value, np.ndarray) and value.dtype.kind == "f" else 0.0
