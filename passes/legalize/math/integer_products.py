"""Products of 8-bit integers, exactly, by matrix products and convolutions of float32.

    MatMulInteger(a, b)    →  Σᵢ 2^(n·i) · Cast<int32>(MatMul(dᵢ, b − z_b))      dᵢ: the digits of a − z_a, of n bits
    ConvInteger(x, w)      →  likewise, with Conv: what it pads with is the zero point of x, and so 0
    QLinearMatMul, QLinearConv  →  QuantizeLinear(that · (s_a·s_b / s_y), 1, z_y)

A sum of integers is exact in float32 while it stays below 2²⁴: with factors below 256, that is 258 terms. Longer sums
take one factor apart into digits of 5, 3, 2 or 1 bits, the last of which keeps the sign.

Runtimes that multiply integers of 8 bits do so fast, but have been seen to lose the zero points, or to save programs
that they cannot load again.

Skips: dtypes other than int8 and uint8; sums that are not known to be shorter than 65,793 terms.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from passes.build.operators import reshape_or_fold
from passes.build.small_dtypes import cast, scalar
from passes.core.base import Exactness, Skip
from passes.core.edit import Edit
from passes.core.graphs import Scope
from passes.core.rewrite import Match, NodeContext, NodeRewrite

_NUMBER, _SUM = ir.DataType.FLOAT, ir.DataType.INT32
_BYTES = (ir.DataType.INT8, ir.DataType.UINT8)
_EXACT = 2**24
_LARGEST = 255
"""The largest difference of two integers of 8 bits."""
_DIGITS = (9, 5, 3, 2, 1)
"""How many bits a digit may have; the difference of two integers of 8 bits has nine with its sign."""


def centered(edit: Edit, value: ir.Value, zero_point: ir.Value | None, shape: Sequence[int] | None = None) -> ir.Value:
    """Integers of 8 bits less their zero point, as float32.

    Args:
        edit: where to build it.
        value: the integers.
        zero_point: one, or several; None for zero.
        shape: what several are reshaped to.
    """
    x = edit.op("Cast", [value], {"to": _NUMBER.value})
    if zero_point is None:
        return x
    return edit.op("Sub", [x, edit.op("Cast", [fitted(edit, zero_point, shape)], {"to": _NUMBER.value})])


def fitted(edit: Edit, parameter: ir.Value, shape: Sequence[int] | None) -> ir.Value:
    """A scale or zero point: one as a scalar, several along one axis in ``shape``, others as they are."""
    given = edit.scope.shape(parameter)
    assert given is not None
    dims = list(given.numpy())
    if all(each == 1 for each in dims):
        return reshape_or_fold(edit, parameter, []) if dims else parameter
    return reshape_or_fold(edit, parameter, shape) if len(dims) == 1 and shape is not None else parameter


def digits_of(length: int) -> int | None:
    """How many bits the digits of one factor may have for sums of ``length`` terms; None where even one is too many."""
    for bits in _DIGITS:
        largest = _LARGEST if bits == 9 else 2**bits - 1  # the last digit, which has the sign, is smaller
        if length * largest * _LARGEST < _EXACT:
            return bits
    return None


def exact_sum(edit: Edit, x: ir.Value, bits: int, multiply: Callable[[ir.Value], ir.Value]) -> ir.Value:
    """What ``multiply`` makes of ``x`` in integers, as int32: the sum over its digits of ``bits`` bits."""
    base = scalar(edit, 2.0**bits, _NUMBER)
    total: ir.Value | None = None
    for index in range(pieces := -(-9 // bits)):
        digit = x
        if index < pieces - 1:
            rest = edit.op("Floor", [edit.op("Div", [x, base])])
            digit, x = edit.op("Sub", [x, edit.op("Mul", [rest, base])]), rest
        product = edit.op("Cast", [multiply(digit)], {"to": _SUM.value})
        if total is None:
            total = product
        else:
            total = edit.op("Add", [total, edit.op("Mul", [product, scalar(edit, 2 ** (bits * index), _SUM)])])
    assert total is not None
    return total


@dataclass(frozen=True)
class _Found(Match):
    bits: int
    rank: int


class _Operands:
    """Where the inputs are: of MatMulInteger and ConvInteger, and of QLinearMatMul and QLinearConv."""

    def __init__(self, node: ir.Node) -> None:
        inputs = [*node.inputs, *[None] * (9 - len(node.inputs))]
        self.scales: tuple[ir.Value, ir.Value, ir.Value] | None = None
        self.output_zero: ir.Value | None = None
        self.bias: ir.Value | None = None
        if node.op_type.startswith("QLinear"):
            self.x, x_scale, self.x_zero, self.w, w_scale, self.w_zero, y_scale, self.output_zero, self.bias = inputs
            assert x_scale is not None and w_scale is not None and y_scale is not None
            self.scales = x_scale, w_scale, y_scale
        else:
            self.x, self.w, self.x_zero, self.w_zero = inputs[:4]


@dataclass(frozen=True)
class ExactIntegerProduct(NodeRewrite[_Found]):
    """Multiply integers of 8 bits in float32, exactly."""

    name = "exact-integer-product"
    exactness = Exactness.BITWISE
    operators = frozenset(("", each) for each in ("MatMulInteger", "ConvInteger", "QLinearMatMul", "QLinearConv"))

    def match(self, node: ir.Node, context: NodeContext) -> _Found | Skip | None:
        """Read dtypes, and how many terms a sum has."""
        scope, given = context.scope, _Operands(node)
        for value in (given.x, given.w):
            if scope.dtype(value) not in _BYTES:
                return Skip("its factors are not known to be integers of 8 bits")
        for value in node.inputs:
            if value is not None and not _is_static(value, scope):
                return Skip(f"the shape of {value.name} is unknown: freeze it with freeze-shapes")
        if given.scales is not None and _several(given.scales[2], scope):
            return Skip("the output has more than one scale")
        shape = list(scope.shape(given.w).numpy())  # type: ignore[union-attr]
        conv = node.op_type.endswith(("ConvInteger", "Conv"))
        length = int(np.prod(shape[1:])) if conv else shape[max(len(shape) - 2, 0)]
        bits = digits_of(length)
        if bits is None:
            return Skip(f"a sum of {length} products is not exact in float32")
        return _Found(node, bits, len(shape))

    def rewrite(self, match: _Found, edit: Edit) -> Sequence[ir.Value]:
        """The sum of integers, and its scaling where it has one."""
        node, given = match.node, _Operands(match.node)
        conv = "Conv" in node.op_type
        columns = [-1, *[1] * (match.rank - 1)] if conv else None
        assert given.x is not None and given.w is not None
        x = centered(edit, given.x, given.x_zero, [-1, 1])
        w = centered(edit, given.w, given.w_zero, columns)
        attributes: dict[str, Any] = dict(node.attributes) if conv else {}
        operator = "Conv" if conv else "MatMul"
        total = exact_sum(edit, x, match.bits, lambda digit: edit.op(operator, [digit, w], attributes))
        if given.scales is None:
            return [total]
        along = [-1, *[1] * (match.rank - 2)] if conv else None
        if given.bias is not None:
            total = edit.op("Add", [total, fitted(edit, given.bias, along)])
        x_scale, w_scale, y_scale = given.scales
        both = edit.op("Mul", [_scale(edit, x_scale, [-1, 1]), _scale(edit, w_scale, along)])
        factor = edit.op("Div", [both, _scale(edit, y_scale, None)])
        y = edit.op("Mul", [cast(edit, total, _NUMBER, _SUM), factor])
        zero = scalar(edit, 0, ir.DataType.UINT8) if given.output_zero is None else given.output_zero
        return [edit.op("QuantizeLinear", [y, scalar(edit, 1, _NUMBER), fitted(edit, zero, None)])]


def _scale(edit: Edit, value: ir.Value, shape: Sequence[int] | None) -> ir.Value:
    return cast(edit, fitted(edit, value, shape), _NUMBER, edit.scope.dtype(value))


def _is_static(value: ir.Value, scope: Scope) -> bool:
    shape = scope.shape(value)
    return shape is not None and shape.is_static()


def _several(value: ir.Value, scope: Scope) -> bool:
    shape = scope.shape(value)
    return shape is None or any(each != 1 for each in shape)


RULES: tuple[NodeRewrite[Any], ...] = (ExactIntegerProduct(),)
