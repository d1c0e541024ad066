"""The positions of convolution and pooling windows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from passes.builders.arithmetic import Array


@dataclass(frozen=True)
class Window:
    """The windows of a convolution or pooling along one axis.

    Attributes:
        size: the size of the input.
        kernel: number of elements in a window.
        stride: distance between windows.
        dilation: distance between elements of a window.
        begin: padding before the input; negative if it is cropped.
        end: padding after the input; negative if it is cropped.
        count: number of windows.
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
        """The distance from the first element of a window to the one after its last."""
        return (self.kernel - 1) * self.dilation + 1

    @property
    def overhang(self) -> int:
        """The number of elements from the input's end to that of the last window; negative if elements are unused."""
        return (self.count - 1) * self.stride + self.reach - self.begin - self.size

    def positions(self) -> Array:
        """Return the input index of each element of each window, (count, kernel); out of range in the padding."""
        starts = np.arange(self.count)[:, None] * self.stride - self.begin
        return starts + np.arange(self.kernel)[None] * self.dilation


def windows(node: ir.Node, sizes: Sequence[int], kernel: Sequence[int]) -> list[Window]:
    """Return the windows of a convolution or pooling, one for each axis.

    With ``ceil_mode`` the last window may extend beyond the padding, but does not start in the padding after the input.

    ``sizes`` are those of the spatial axes of the input, and ``kernel`` those of the kernel along them.
    """
    rank = len(sizes)
    strides = node.attributes.get_ints("strides", None) or [1] * rank
    dilations = node.attributes.get_ints("dilations", None) or [1] * rank
    pads = node.attributes.get_ints("pads", None) or [0] * (2 * rank)
    auto = node.attributes.get_string("auto_pad", "NOTSET")
    ceil = node.attributes.get_int("ceil_mode", 0) == 1
    axes = []
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
        axes.append(Window(size, length, stride, dilation, begin, end, count))
    return axes
