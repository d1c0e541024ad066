"""A builder of expressions in one dtype, and the choice of the dtype to compute in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from passes.rewriting.edit import Attribute, Edit

Array = np.ndarray[Any, np.dtype[Any]]
Operand = ir.Value | float | Array

HALVES = frozenset({ir.DataType.FLOAT16, ir.DataType.BFLOAT16})
"""The 16-bit floats. ONNX Runtime's CPU kernels compute in float32 and round once, at the end of each operator."""


def wide(dtype: ir.DataType) -> ir.DataType:
    """The dtype to compute in: 32 bits wide if ``dtype`` is narrower, else ``dtype``.

    Sums and products of integers are the same after truncation to the original width.
    """
    if dtype in HALVES:
        return ir.DataType.FLOAT
    if not dtype.is_integer() or dtype.bitwidth >= 32:
        return dtype
    return ir.DataType.INT32 if dtype.is_signed() else ir.DataType.UINT32


class Arithmetic:
    """Builds expressions of one dtype.

    ``a("Mul", x, 0.5)`` is the output of a new node. Numbers and arrays among the operands become constants of that
    dtype. Indices, shapes and axes are int64 whatever the dtype is.

    Args:
        edit: receives the new nodes.
        dtype: of constants among the operands.
    """

    def __init__(self, edit: Edit, dtype: ir.DataType) -> None:
        self.edit = edit
        self.dtype = dtype

    def __call__(self, op_type: str, *operands: Operand | None, **attributes: Attribute) -> ir.Value:
        """The output of a new node."""
        return self.edit.op(op_type, [None if each is None else self.value(each) for each in operands], attributes)

    def value(self, operand: Operand) -> ir.Value:
        """An operand as a value; a number or array becomes a constant of this dtype."""
        if isinstance(operand, ir.Value):
            return operand
        return self.edit.constant(np.asarray(operand).astype(self.dtype.numpy()))

    def index(self, numbers: int | Sequence[int] | Array) -> ir.Value:
        return self.edit.constant(np.array(numbers, np.int64))

    def cast(self, x: ir.Value, source: ir.DataType, to: ir.DataType | None = None) -> ir.Value:
        """``x``, whose dtype is ``source``, cast to ``to``; by default, to this builder's dtype."""
        to = self.dtype if to is None else to
        return x if source == to else self("Cast", x, to=int(to))

    def reshape(self, x: ir.Value, shape: Sequence[int]) -> ir.Value:
        """``x`` reshaped to a static shape without zeros."""
        return self("Reshape", x, self.index(shape)) if shape else self("Squeeze", x)

    def squeeze(self, x: ir.Value, axes: Sequence[int]) -> ir.Value:
        """``x`` without some axes of length 1."""
        return self("Squeeze", x, self.index(axes)) if axes else x

    def unsqueeze(self, x: ir.Value, axes: Sequence[int]) -> ir.Value:
        """``x`` with new axes of length 1."""
        return self("Unsqueeze", x, self.index(axes)) if axes else x

    def slice(self, x: ir.Value, axis: int, start: int, stop: int) -> ir.Value:
        """``x[..., start:stop, ...]`` along an axis."""
        return self("Slice", x, self.index([start]), self.index([stop]), self.index([axis]))

    def reduce(self, kind: str, x: ir.Value, axes: Sequence[int], *, keepdims: bool = True) -> ir.Value:
        """``ReduceSum``, ``ReduceMax`` or another reduction over a non-empty list of axes."""
        return self(f"Reduce{kind}", x, self.index(list(axes)), keepdims=int(keepdims))

    def concat(self, parts: Sequence[ir.Value], axis: int) -> ir.Value:
        """``parts`` concatenated along an axis."""
        return parts[0] if len(parts) == 1 else self("Concat", *parts, axis=axis)
