"""A builder of expressions in one dtype, and the choice of the dtype to compute in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from passes.rewriting.edit import Edit
from passes.rewriting.expressions import Array, Attribute, Expressions

__all__ = ["HALVES", "Arithmetic", "Array", "wide", "wide_float"]

Operand = ir.Value | float | Array

HALVES = frozenset({ir.DataType.FLOAT16, ir.DataType.BFLOAT16})
"""The 16-bit floats. ONNX Runtime's CPU kernels compute in float32 and round once, at the end of each operator."""


def wide(dtype: ir.DataType) -> ir.DataType:
    """Return the dtype to compute in: 32 bits wide if ``dtype`` is narrower, else ``dtype``.

    Sums and products of integers are the same after truncation to the original width.
    """
    if not dtype.is_integer() or dtype.bitwidth >= 32:
        return wide_float(dtype)
    return ir.DataType.INT32 if dtype.is_signed() else ir.DataType.UINT32


def wide_float(dtype: ir.DataType) -> ir.DataType:
    """Return float32 for float16 and bfloat16, else ``dtype``."""
    return ir.DataType.FLOAT if dtype in HALVES else dtype


class Arithmetic(Expressions):
    """Builds expressions of one dtype.

    ``a("Mul", x, 0.5)`` is the output of a new node. Numbers and arrays among the operands become constants of that
    dtype. Indices, shapes and axes are int64 whatever the dtype is.

    Args:
        dtype: the dtype of constants among the operands.
    """

    def __init__(self, edit: Edit, dtype: ir.DataType) -> None:
        self.edit = edit
        self.dtype = dtype

    def __call__(self, op_type: str, *operands: Operand | None, **attributes: Attribute) -> ir.Value:
        """Add a node, and return its first output."""
        return self.op(op_type, [None if operand is None else self.value(operand) for operand in operands], attributes)

    def node(self, op_type: str, inputs: Sequence[ir.Value | None], *args: Any, **options: Any) -> ir.Node:
        return self.edit.node(op_type, inputs, *args, **options)

    def constant(self, array: Array | np.generic | ir.TensorProtocol, name: str | None = None) -> ir.Value:
        return self.edit.constant(array, name)

    def value(self, operand: Operand) -> ir.Value:
        """Return an operand as a value; a number or array becomes a constant of this dtype."""
        if isinstance(operand, ir.Value):
            return operand
        return self.edit.constant(np.asarray(operand).astype(self.dtype.numpy()))

    def cast(self, x: ir.Value, to: ir.DataType | None = None) -> ir.Value:
        """Cast ``x`` to ``to``, by default to this builder's dtype, unless it is of that dtype already."""
        return super().cast(x, self.dtype if to is None else to)
