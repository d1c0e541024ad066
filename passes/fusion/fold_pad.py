"""Fold a Pad into the convolution or pooling after it.

    Conv(Pad(x, p, 0), w), pads=q               →  Conv(x, w), pads=p+q
    AveragePool(Pad(x, p, 0)), pads=q           →  AveragePool(x), pads=p+q, count_include_pad=1
    MaxPool(Pad(x, p, −∞)), pads=q              →  MaxPool(x), pads=p+q

MIGraphX does the same, but ignores a convolution's own pads, batch and channel pads, and the padding value. A Pad with
other uses is kept for them.

Skips: pads that are negative, not constant, or of batch or channels; other modes and values (for MaxPool, 0 is as good
as −∞ if x cannot be negative); for pooling, dilations, ceil_mode, pads as large as the window, and averages that
count the one padding but not the other; integer convolutions, whose own padding is the zero point; MaxPool's indices.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import onnx_ir as ir

from passes.builders.operands import given
from passes.builders.windows import windows
from passes.graphs.matching import operand
from passes.graphs.scopes import Scope
from passes.graphs.tensors import ints
from passes.graphs.traversal import is_used
from passes.rewriting.base import Exactness, NotApplicable, Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import Replacement, rewrite

_NEVER_NEGATIVE = {"Abs", "Exp", "Relu", "Sigmoid", "Softmax"}


@rewrite("AveragePool", "Conv", "ConvInteger", "MaxPool", "QLinearConv", exactness=Exactness.ROUNDING, absorbs=("Pad",))
def fold_pad(node: ir.Node, edit: Edit) -> Replacement:
    """Fold a Pad into the pads of the convolution or pooling after it."""
    pad = edit.producer(node, 0, "Pad")
    if pad is None:
        return None
    if node.op_type in ("ConvInteger", "QLinearConv"):
        return Skip(f"{node.op_type} pads by its zero point")
    rank = _rank(node, edit.scope)
    if rank is None:
        return Skip("the number of dimensions is unknown")
    before, own = _pads_of(pad, rank, edit.scope), _own_pads(node, rank, edit.scope)
    pads = [outer + inner for outer, inner in zip(before, own, strict=True)]
    _check_padding(node, pad, own, pads, edit)
    edit.absorb(pad)
    attributes: dict[str, Any] = dict(node.attributes)
    attributes.pop("auto_pad", None)
    attributes["pads"] = pads
    if node.op_type == "AveragePool":
        attributes["count_include_pad"] = 1
    return [edit.op(node.op_type, [pad.inputs[0], *node.inputs[1:]], attributes)]


def _rank(node: ir.Node, scope: Scope) -> int | None:
    """Return the rank of the input; None if it is unknown."""
    if "kernel_shape" in node.attributes:
        return 2 + len(node.attributes.get_ints("kernel_shape", []))
    shape = scope.shape(given(node, 1))
    return len(shape) if shape is not None else None


def _pads_of(pad: ir.Node, rank: int, scope: Scope) -> list[int]:
    """Return what a Pad adds: the begins of the spatial axes, then the ends."""
    mode = pad.attributes.get_string("mode", "constant")
    if mode != "constant":
        raise NotApplicable(f"the Pad has mode {mode}")
    pads = operand(pad, 1, "pads", scope)
    if pads is None:
        raise NotApplicable("the pads are not constant")
    axes: list[int] | None = list(range(rank))
    if given(pad, 3) is not None:
        axes = ints(scope.constant(pad.inputs[3]))
    if axes is None:
        raise NotApplicable("the axes of the Pad are not constant")
    if len(pads) != 2 * len(axes):
        raise NotApplicable("the pads do not fit the dimensions")
    begins, ends = [0] * rank, [0] * rank
    for axis, begin, end in zip(axes, pads[: len(axes)], pads[len(axes) :], strict=True):
        begins[axis], ends[axis] = begin, end
    if any(size < 0 for size in begins + ends):
        raise NotApplicable("the Pad crops: a pad is negative")
    if any(begins[:2] + ends[:2]):
        raise NotApplicable("the Pad pads the batch or the channels")
    return begins[2:] + ends[2:]


def _own_pads(node: ir.Node, rank: int, scope: Scope) -> list[int]:
    """Return the pads of a convolution or pooling itself."""
    spatial = rank - 2
    auto = node.attributes.get_string("auto_pad", "NOTSET")
    if auto in ("NOTSET", "VALID"):
        pads = node.attributes.get_ints("pads", ()) if auto == "NOTSET" else ()
        return list(pads or [0] * (2 * spatial))
    kernel = scope.shape(node.inputs[1]) if node.op_type == "Conv" else None
    if kernel is None or not all(isinstance(size, int) for size in kernel[2:]):
        raise NotApplicable(f"how much auto_pad={auto} pads is unknown")
    strides = node.attributes.get_ints("strides", ()) or [1] * spatial
    known = [*(scope.shape(node.inputs[0]) or [None] * rank)][2:]
    sizes = [1 if stride == 1 else size for size, stride in zip(known, strides, strict=True)]  # then it does not matter
    if not all(isinstance(size, int) for size in sizes):
        raise NotApplicable(f"how much auto_pad={auto} pads depends on the size of the input, which is unknown")
    axes = windows(node, sizes, kernel.numpy()[2:])
    return [axis.begin for axis in axes] + [axis.end for axis in axes]


def _check_padding(node: ir.Node, pad: ir.Node, own: Sequence[int], pads: Sequence[int], edit: Edit) -> None:
    """Raise NotApplicable if the operator with all ``pads`` differs from that with its ``own`` after the Pad."""
    scope = edit.scope
    value = _number(pad, 2, "value", 0.0, scope)
    if value is None:
        raise NotApplicable("the value of the Pad is not constant")
    if node.op_type == "Conv":
        if value != 0:
            raise NotApplicable(f"the Pad pads with {value:g}, a convolution with 0")
        return
    kernel = list(node.attributes.get_ints("kernel_shape", []))
    if 0 in (scope.shape(pad.inputs[0]) or ()):
        raise NotApplicable(f"the input of the Pad may be empty, which {node.op_type} rejects")
    if any(dilation != 1 for dilation in node.attributes.get_ints("dilations", [])):
        raise NotApplicable(f"{node.op_type} has dilations")
    if node.attributes.get_int("ceil_mode", 0):
        raise NotApplicable(
            f"{node.op_type} has ceil_mode=1: where its last window begins depends on whose padding it is"
        )
    if any(before >= size for before, size in zip(pads, kernel * 2, strict=True)):
        raise NotApplicable("the pads would be as large as the window")
    if node.op_type == "AveragePool":
        _check_average(node, value, own, scope)
        return
    if any(map(is_used, node.outputs[1:])):
        raise NotApplicable("the indices of MaxPool are used, which count the padding")
    if value == -math.inf or _is_lowest(value, pad, scope) or (value == 0 and _is_never_negative(pad, edit)):
        return
    raise NotApplicable(f"the Pad pads with {value:g}, MaxPool with −∞, and the input may be smaller")


def _check_average(node: ir.Node, value: float, own: Sequence[int], scope: Scope) -> None:
    if value != 0:
        raise NotApplicable(f"the Pad pads with {value:g}, AveragePool with 0")
    if any(own) and not node.attributes.get_int("count_include_pad", 0):
        raise NotApplicable("AveragePool does not count its own padding")


def _is_lowest(value: float, pad: ir.Node, scope: Scope) -> bool:
    dtype = scope.dtype(pad.inputs[0])
    if dtype is None and len(pad.inputs) > 2:
        dtype = scope.dtype(pad.inputs[2])
    return dtype is not None and value == float(dtype.min)


def _is_never_negative(pad: ir.Node, edit: Edit) -> bool:
    node = edit.producer(pad, 0, "Clip", *_NEVER_NEGATIVE)
    if node is None:
        return False
    if node.op_type == "Abs":  # of the smallest number of a signed integer, it is negative
        dtype = edit.scope.dtype(node.outputs[0])
        return dtype is not None and (dtype.is_floating_point() or not dtype.is_signed())
    if node.op_type != "Clip":
        return True
    low, high = _number(node, 1, "min", -math.inf, edit.scope), _number(node, 2, "max", math.inf, edit.scope)
    return low is not None and low >= 0 and high is not None and high >= 0


def _number(node: ir.Node, index: int, name: str, default: float, scope: Scope) -> float | None:
    """Return a number that is an input or, in older opsets, an attribute; None if it is not constant."""
    if name in node.attributes:
        return node.attributes[name].as_float()
    if given(node, index) is None:
        return default
    tensor = scope.constant(node.inputs[index])
    return float(tensor.numpy().item()) if tensor is not None and tensor.size == 1 else None
