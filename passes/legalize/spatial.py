"""What rules for images share: static shapes, constants, windows along an axis, and linear maps along an axis.

A map that works on each axis by itself (interpolation, averaging) is one constant matrix per axis:

    y = (M_1 ⊗ M_2 ⊗ …) x    →    MatMul(M_k, x) along axis k, one after the other
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from passes.edit import Edit
from passes.graphs import Scope, ints

Array = np.ndarray[Any, np.dtype[Any]]

UNKNOWN_SHAPE = "the shape of its input is unknown: freeze the dimensions that are open"
_NARROW = {ir.DataType.FLOAT16, ir.DataType.BFLOAT16}


def sizes_of(value: ir.Value | None, scope: Scope) -> tuple[int, ...] | None:
    """The shape of a value, if all of it is known."""
    shape = scope.shape(value)
    if shape is None or not all(isinstance(each, int) for each in shape):
        return None
    return tuple(int(each) for each in shape)  # type: ignore[arg-type]


def given(node: ir.Node, index: int) -> ir.Value | None:
    """An optional input; None where it is left out."""
    return node.inputs[index] if index < len(node.inputs) else None


def not_constant(value: ir.Value, what: str) -> str:
    """Why a rule stops at an operand that must be known, and what helps."""
    if value.is_graph_input():
        return f"{what} is not constant: freeze it with --freeze {value.name}=VALUE"
    return f"{what} is not constant: {value.name} is computed while the model runs"


def integers(value: ir.Value | None, what: str, scope: Scope) -> list[int] | str | None:
    """The elements of an optional input; None where it is left out, a reason where it is not constant."""
    if value is None:
        return None
    found = ints(scope.constant(value))
    return not_constant(value, what) if found is None else found


def reshape(edit: Edit, x: ir.Value, shape: Sequence[int]) -> ir.Value:
    """``x`` with another static shape."""
    return edit.op("Reshape", [x, edit.constant(np.array(shape, np.int64))])


def wide(dtype: ir.DataType | None) -> ir.DataType | None:
    """The dtype to compute in: what ONNX Runtime does in float16 and bfloat16 it does in float32, and rounds once."""
    return ir.DataType.FLOAT if dtype in _NARROW else dtype


def cast(edit: Edit, x: ir.Value, dtype: ir.DataType | None, to: ir.DataType | None) -> ir.Value:
    """``x`` of ``dtype`` as ``to``; ``x`` itself where they are the same."""
    return x if dtype == to or to is None else edit.op("Cast", [x], {"to": to.value})


def number(edit: Edit, value: float, dtype: ir.DataType) -> ir.Value:
    """A scalar constant."""
    return edit.constant(np.array(value, dtype.numpy()))


def apply_along(edit: Edit, x: ir.Value, shape: Sequence[int], axis: int, matrix: Array) -> ir.Value:
    """A constant matrix times every line of ``x`` along an axis.

    Args:
        edit: where to build.
        x: of the matrix's dtype, with the static ``shape``.
        shape: its sizes.
        axis: which.
        matrix: (out, shape[axis]).

    Returns:
        ``x`` with ``out`` elements along the axis.
    """
    last = len(shape) - 1
    if axis == last:
        return edit.op("MatMul", [x, edit.constant(np.ascontiguousarray(matrix.T))])
    left = edit.constant(np.ascontiguousarray(matrix))
    if axis == last - 1:
        return edit.op("MatMul", [left, x])
    before, after = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
    flat = reshape(edit, x, (before, shape[axis], after))
    return reshape(edit, edit.op("MatMul", [left, flat]), (*shape[:axis], len(matrix), *shape[axis + 1 :]))


@dataclass(frozen=True)
class Window:
    """Where the windows of a convolution or pooling lie along one axis.

    Attributes:
        size: of the input.
        kernel: elements in a window.
        stride: from one window to the next.
        dilation: from one element of a window to the next.
        begin: padding before the input.
        end: padding after it.
        count: how many windows there are.
    """

    size: int
    kernel: int
    stride: int
    dilation: int
    begin: int
    end: int
    count: int

    @property
    def reach(self) -> int:
        """From the first element of a window to just after its last."""
        return (self.kernel - 1) * self.dilation + 1

    @property
    def overhang(self) -> int:
        """How far the last window reaches beyond the end of the input; negative where elements are left over."""
        return (self.count - 1) * self.stride + self.reach - self.begin - self.size

    def positions(self) -> Array:
        """The place in the input of each element of each window, (count, kernel); outside of it in the padding."""
        starts = np.arange(self.count)[:, None] * self.stride - self.begin
        return starts + np.arange(self.kernel)[None] * self.dilation


def windows(node: ir.Node, sizes: Sequence[int], kernel: Sequence[int]) -> list[Window]:
    """The windows of a convolution or pooling.

    With ``ceil_mode`` a last window may reach beyond the padding, but does not begin in the padding behind the input.

    Args:
        node: with auto_pad, pads, strides, dilations and ceil_mode.
        sizes: of the spatial axes.
        kernel: likewise.
    """
    rank = len(sizes)
    strides = node.attributes.get_ints("strides", None) or [1] * rank
    dilations = node.attributes.get_ints("dilations", None) or [1] * rank
    pads = node.attributes.get_ints("pads", None) or [0] * (2 * rank)
    auto = node.attributes.get_string("auto_pad", "NOTSET")
    ceil = bool(node.attributes.get_int("ceil_mode", 0))
    found = []
    for axis, (size, length, stride, dilation) in enumerate(zip(sizes, kernel, strides, dilations, strict=True)):
        reach = (length - 1) * dilation + 1
        begin, end = (pads[axis], pads[axis + rank]) if auto == "NOTSET" else (0, 0)
        if auto.startswith("SAME"):
            total = max((-(-size // stride) - 1) * stride + reach - size, 0)
            begin = total // 2 if auto == "SAME_UPPER" else total - total // 2
            end = total - begin
        room = size + begin + end - reach
        count = (-(-room // stride) if ceil else room // stride) + 1
        if ceil and (count - 1) * stride >= size + begin:
            count -= 1
        found.append(Window(size, length, stride, dilation, begin, end, count))
    return found
