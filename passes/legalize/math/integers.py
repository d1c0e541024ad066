"""Integers that a runtime computes as signed, or as floats that do not hold them.

    Abs(x)     →  x                                           for unsigned integers
    Pow(x, y)  →  Cast<T>(Pow(Cast<double>(x), Cast<double>(y)))    for integers x of type T

ONNX Runtime computes powers of integers in float64, too. Float32 holds integers up to 2²⁴ only.

Skips: unknown dtypes.
"""

from __future__ import annotations

import onnx_ir as ir

from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import Replacement, rewrite


@rewrite("Abs", needs_dtype=(0,))
def unsigned_abs(node: ir.Node, edit: Edit) -> Replacement:
    """Remove Abs of unsigned integers."""
    dtype = edit.dtype(node)
    if not dtype.is_integer() or dtype.is_signed():
        return None
    return edit.op("Identity", node.inputs)


@rewrite("Pow", needs_dtype=(0, 1))
def integer_power(node: ir.Node, edit: Edit) -> Replacement:
    """Compute powers of integers in float64."""
    dtype = edit.dtype(node)
    if not dtype.is_integer():
        return None
    x, y = (edit.cast(edit.input(node, index), ir.DataType.DOUBLE) for index in (0, 1))
    return edit.cast(edit.op("Pow", [x, y]), dtype)
