"""Where the windows of convolutions and poolings lie."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from passes.build.arithmetic import Array


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
