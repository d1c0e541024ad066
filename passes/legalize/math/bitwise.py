"""Rewrite bitwise operators as arithmetic.

    BitwiseAnd(x, y)   →  Σᵢ 2ⁱ · xᵢ · yᵢ,  xᵢ = x / 2ⁱ − 2 · (x / 2ⁱ⁺¹), rounded down;  the sign bit apart
    BitwiseNot(x)      →  −1 − x
    BitwiseOr(x, y)    →  (x − (x & y)) + y
    BitwiseXor(x, y)   →  (x − (x & y)) + (y − (x & y))
    BitShift(x, n)     →  x · 2ⁿ, or x / 2ⁿ rounded down; 0 if n is at least the number of bits

Bits are taken of int64, from which the lowest number is subtracted if it is negative: then all quotients are of numbers
that are not, and no sum overflows. The bits of ``x & y`` are set in both operands, so no difference borrows and no sum
carries. The results stay in range, signed or not, and unsigned integers may be computed as signed ones of at least
their width and cast back.

Shifts are computed in uint64. A shift of 64-bit integers takes two steps, each by half the amount.

Skips: unknown dtypes; shifts of signed integers, which the standard does not define.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from passes.builders.arithmetic import Arithmetic
from passes.rewriting.base import NotApplicable, Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import Replacement, rewrite


@rewrite("BitwiseNot", "BitwiseOr", "BitwiseXor")
def bitwise_by_arithmetic(node: ir.Node, edit: Edit) -> Replacement:
    """Rewrite bitwise Or, Xor and Not as And, sums and differences."""
    dtype = _integer_dtype(node, edit)
    a = Arithmetic(edit, ir.DataType.INT64 if dtype.bitwidth == 64 else ir.DataType.INT32)
    x, *others = (a.cast(value) for value in node.inputs if value is not None)
    if node.op_type == "BitwiseNot":
        return a.cast(a("Sub", -1, x), dtype)
    (y,) = others
    both = a("BitwiseAnd", x, y)
    only = a("Sub", x, both)
    rest = a("Sub", y, both) if node.op_type == "BitwiseXor" else y
    return a.cast(a("Add", only, rest), dtype)


@rewrite("BitwiseAnd")
def and_by_bits(node: ir.Node, edit: Edit) -> Replacement:
    """Add the bits that are set in both operands of BitwiseAnd."""
    dtype = _integer_dtype(node, edit)
    a = Arithmetic(edit, ir.DataType.INT64)
    signed = dtype.is_signed() or dtype.bitwidth == 64
    count = dtype.bitwidth - signed
    powers = np.array([2**bit for bit in range(count)])
    lowest = -(2**count)
    signs, bits = [], []
    for operand in range(2):
        x = a.cast(edit.input(node, operand))
        if signed:
            signs.append(a("Less", x, 0))
            x = a("Where", signs[-1], a("Sub", x, lowest), x)
        quotients = a("Div", a.unsqueeze(x, [-1]), powers)
        bits.append(a("Sub", quotients, a("Mul", a("Div", quotients, 2), 2)))
    terms = a("Mul", a("Mul", *bits), powers)
    parts = [terms] if count < 53 else [a.slice(terms, -1, 0, 32), a.slice(terms, -1, 32, count)]
    sums = [a.reduce("Sum", part, [-1], keepdims=False) for part in parts]  # of doubles in some runtimes
    result = sums[0] if len(sums) == 1 else a("Add", *sums)
    if signed:
        result = a("Add", result, a("Where", a("And", *signs), lowest, 0))
    return a.cast(result, dtype)


@rewrite("BitShift")
def shift_by_arithmetic(node: ir.Node, edit: Edit) -> Replacement:
    """Multiply or divide by powers of two instead of shifting."""
    dtype = _integer_dtype(node, edit)
    if dtype.is_signed():
        return Skip("BitShift is defined for unsigned integers only")
    bits, a = dtype.bitwidth, Arithmetic(edit, ir.DataType.UINT64)  # which overflows like a shift
    # double represents amounts up to the number of bits exactly, and larger ones stay larger
    count = edit.cast(edit.input(node, 1), ir.DataType.DOUBLE)
    count = edit.op("Min", [count, edit.scalar(bits, ir.DataType.DOUBLE)])
    index = edit.cast(count, ir.DataType.INT64)
    amounts = np.arange(bits + 1)
    steps = [amounts] if bits < 64 else [amounts // 2, amounts - amounts // 2]
    operator = "Mul" if node.attributes.get_string("direction", "") == "LEFT" else "Div"
    y = a.cast(edit.input(node))
    for step in steps:  # 2⁶⁴ is out of range for uint64, but is a product of two factors in range
        powers = a.value(np.array([2 ** int(amount) for amount in step], np.uint64))
        y = a(operator, y, a("Gather", powers, index))
    return a.cast(y, dtype)


def _integer_dtype(node: ir.Node, edit: Edit) -> ir.DataType:
    dtype = next(filter(None, map(edit.scope.dtype, (*node.inputs, *node.outputs))), None)
    if dtype is None or not dtype.is_integer():
        raise NotApplicable("the integer dtype is unknown")
    return dtype
