"""Rewrite casts between integers that a runtime saturates: ONNX keeps the low bits.

    Cast(x → intN)    →  Cast(r + {−2ᴺ, 0, 2ᴺ}),  whichever is in range,  r = x − (x / 2ᴺ)·2ᴺ
    Cast(x → uint64)  →  (h·2³² + l) + (2⁶³ if x < 0),  h and l: the upper and lower bits of x or x + 2⁶³

The arithmetic is in int32 or int64; r in uint64 if that is the dtype of x. Integer division cuts off, so r has the sign
of x and nothing overflows. The remaining Casts change no number, and none of those to uint64 is of more than 32 bits,
which MIGraphX 2.16 casts by way of float64.

Skips: integers narrower than a byte; targets that hold all numbers of the source.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from passes.builders.small_dtypes import SMALL, is_already_corrected
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import Replacement, rewrite

_INT32, _INT64, _UINT64 = ir.DataType.INT32, ir.DataType.INT64, ir.DataType.UINT64


@rewrite("Cast", since_opset=9, needs_dtype=(0,))
def cast_keeping_low_bits(node: ir.Node, edit: Edit) -> Replacement:
    """Compute the number that the low bits represent; the remaining Casts change none."""
    source, target = edit.dtype(node), ir.DataType(node.attributes.get_int("to", 0))
    are_integers = all(dtype.is_integer() and dtype not in SMALL for dtype in (source, target))
    if not are_integers or _holds(target, source) or is_already_corrected(node, "cast-keeping-low-bits"):
        return None
    x = edit.input(node)
    if target == _UINT64:
        return _to_uint64(edit, edit.cast(x, _INT64))
    if source == _UINT64 and target == _INT64:
        return _uint64_to_int64(edit, x)
    work = _INT32 if max(source.bitwidth, target.bitwidth) < 32 else _INT64
    if source == _UINT64:
        x = edit.cast(_remainder(edit, x, target.bitwidth, _UINT64), _INT64)
    else:
        x = edit.cast(x, work)
        if source.bitwidth > target.bitwidth:
            x = _remainder(edit, x, target.bitwidth, work)
    limits = np.iinfo(target.numpy())
    size = edit.scalar(1 << target.bitwidth, work)
    if target.is_signed():
        above = edit.op("Greater", [x, edit.scalar(int(limits.max), work)])
        x = edit.op("Where", [above, edit.op("Sub", [x, size]), x])
    if source.is_signed():
        below = edit.op("Less", [x, edit.scalar(int(limits.min), work)])
        x = edit.op("Where", [below, edit.op("Add", [x, size]), x])
    return edit.cast(x, target)


def _holds(target: ir.DataType, source: ir.DataType) -> bool:
    """Return whether a dtype has all numbers of another one."""
    wide, narrow = np.iinfo(target.numpy()), np.iinfo(source.numpy())
    return bool(wide.min <= narrow.min and narrow.max <= wide.max)


def _remainder(edit: Edit, x: ir.Value, bits: int, dtype: ir.DataType) -> ir.Value:
    """Return the remainder of the division by 2^bits, with the sign of ``x``."""
    size = edit.scalar(1 << bits, dtype)
    return edit.op("Sub", [x, edit.op("Mul", [edit.op("Div", [x, size]), size])])


def _to_uint64(edit: Edit, x: ir.Value) -> ir.Value:
    """Return the low bits of int64 numbers as uint64."""
    negative = edit.op("Less", [x, edit.scalar(0, _INT64)])
    x = edit.op("Where", [negative, edit.op("Sub", [x, edit.scalar(-(1 << 63), _INT64)]), x])
    upper = edit.op("Div", [x, edit.scalar(1 << 32, _INT64)])
    lower = _remainder(edit, x, 32, _INT64)
    upper, lower = (edit.cast(each, _UINT64) for each in (upper, lower))
    y = edit.op("Add", [edit.op("Mul", [upper, edit.scalar(1 << 32, _UINT64)]), lower])
    return edit.op("Where", [negative, edit.op("Add", [y, edit.scalar(1 << 63, _UINT64)]), y])


def _uint64_to_int64(edit: Edit, x: ir.Value) -> ir.Value:
    """Return the low bits of uint64 numbers as int64."""
    half = edit.scalar(1 << 63, _UINT64)
    above = edit.op("Not", [edit.op("Less", [x, half])])
    y = edit.cast(edit.op("Where", [above, edit.op("Sub", [x, half]), x]), _INT64)
    return edit.op("Where", [above, edit.op("Add", [y, edit.scalar(-(1 << 63), _INT64)]), y])
