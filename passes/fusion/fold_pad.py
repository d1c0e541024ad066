"""Fold a Pad into the convolution or pooling after it.

    Conv(Pad(x, p, 0), w), pads=q               →  Conv(x, w), pads=p+q
    AveragePool(Pad(x, p, 0)), pads=q           →  AveragePool(x), pads=p+q, count_include_pad=1
    MaxPool(Pad(x, p, −∞)), pads=q              →  MaxPool(x), pads=p+q

MIGraphX does the same, but ignores a convolution's own pads, batch and channel pads, and the padding value. A Pad with
other uses is kept for them.

Skips: pads that are negative, not constant, or of batch or channels; other modes and values (for MaxPool, 0 is as good
as −∞ where x cannot be negative); for pooling, dilations, ceil_mode, pads as large as the window, and averages that
count the one padding but not the other; integer convolutions, whose own padding is the zero point; MaxPool's indices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from passes.graphs.matching import operand
from passes.graphs.scopes import Scope
from passes.graphs.tensors import ints
from passes.rewriting.base import Exactness, Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import Match, NodeContext, NodeRewrite

_NEVER_NEGATIVE = {"Abs", "Exp", "Relu", "Sigmoid", "Softmax"}


@dataclass(frozen=True)
class _Found(Match):
    pad: ir.Node
    pads: tuple[int, ...]
    """All pads: the begins of the spatial axes, then the ends."""


class FoldPad(NodeRewrite[_Found]):
    """Fold a Pad into the pads of the convolution or pooling after it."""

    name = "fold-pad"
    exactness = Exactness.ROUNDING
    operators = frozenset(("", each) for each in ("AveragePool", "Conv", "ConvInteger", "MaxPool", "QLinearConv"))
    absorbs = frozenset({("", "Pad")})

    def match(self, node: ir.Node, context: NodeContext) -> _Found | Skip | None:
        """Add the pads of both nodes, if both pad with the same value."""
        scope = context.scope
        pad = context.producer(node, 0, "Pad")
        if pad is None:
            return None
        if node.op_type in ("ConvInteger", "QLinearConv"):
            return Skip(f"{node.op_type} pads by its zero point")
        rank = _rank(node, scope)
        if rank is None:
            return Skip("the number of dimensions is unknown")
        before, own = _pads_of(pad, rank, scope), _own_pads(node, rank, scope)
        if isinstance(before, str):
            return Skip(before)
        if isinstance(own, str):
            return Skip(own)
        pads = tuple(one + other for one, other in zip(before, own, strict=True))
        refusal = _refusal(node, pad, own, pads, context)
        return Skip(refusal) if refusal else _Found(node, pad, pads, absorbed=(pad,))

    def rewrite(self, match: _Found, edit: Edit) -> Sequence[ir.Value | None]:
        """The operator with the pads of both nodes, on the input of Pad."""
        node = match.node
        attributes: dict[str, Any] = dict(node.attributes)
        attributes.pop("auto_pad", None)
        attributes["pads"] = match.pads
        if node.op_type == "AveragePool":
            attributes["count_include_pad"] = 1
        made = edit.op(node.op_type, [match.pad.inputs[0], *node.inputs[1:]], attributes)
        return [made, *[None for _ in node.outputs[1:]]]


def _rank(node: ir.Node, scope: Scope) -> int | None:
    """The rank of the input."""
    if "kernel_shape" in node.attributes:
        return 2 + len(node.attributes.get_ints("kernel_shape", []))
    shape = scope.shape(node.inputs[1]) if len(node.inputs) > 1 else None
    return len(shape) if shape is not None else None


def _pads_of(pad: ir.Node, rank: int, scope: Scope) -> list[int] | str:
    """The begins of the spatial axes, then the ends; or why a Pad cannot be folded."""
    mode = pad.attributes.get_string("mode", "constant")
    if mode != "constant":
        return f"its Pad has mode {mode}"
    pads = operand(pad, 1, "pads" if scope.opset() > 1 else "paddings", scope)
    if pads is None:
        return "its pads are not constant"
    axes: list[int] | None = list(range(rank))
    if len(pad.inputs) > 3 and pad.inputs[3] is not None:
        axes = ints(scope.constant(pad.inputs[3]))
    if axes is None or len(pads) != 2 * len(axes):
        return "the axes that it pads are not constant" if axes is None else "its pads do not fit its dimensions"
    begins, ends = [0] * rank, [0] * rank
    for axis, begin, end in zip(axes, pads[: len(axes)], pads[len(axes) :], strict=True):
        begins[axis], ends[axis] = begin, end
    if any(each < 0 for each in begins + ends):
        return "it crops: a pad is negative"
    if any(begins[:2] + ends[:2]):
        return "it pads the batch or the channels"
    return begins[2:] + ends[2:]


def _own_pads(node: ir.Node, rank: int, scope: Scope) -> list[int] | str:
    """The pads of a convolution or pooling itself; or why they are unknown."""
    spatial = rank - 2
    auto = node.attributes.get_string("auto_pad", "NOTSET")
    if auto == "NOTSET":
        return list(node.attributes.get_ints("pads", ()) or [0] * (2 * spatial))
    if auto == "VALID":
        return [0] * (2 * spatial)
    shape = scope.shape(node.inputs[0])
    kernel_shape = scope.shape(node.inputs[1]) if node.op_type == "Conv" else None
    if kernel_shape is None or not all(isinstance(each, int) for each in kernel_shape[2:]):
        return f"how much auto_pad={auto} pads is unknown"
    begins, ends = [], []
    strides, dilations = (
        node.attributes.get_ints("strides", ()) or [1] * spatial,
        node.attributes.get_ints("dilations", ()) or [1] * spatial,
    )
    for axis in range(spatial):
        reach = (int(kernel_shape[2 + axis]) - 1) * dilations[axis] + 1  # type: ignore[arg-type]
        size = shape[2 + axis] if shape is not None else None
        if strides[axis] == 1:
            total = reach - 1
        elif isinstance(size, int):
            total = max((-(-size // strides[axis]) - 1) * strides[axis] + reach - size, 0)
        else:
            return f"how much auto_pad={auto} pads depends on the size of the input, which is unknown"
        less, more = total // 2, total - total // 2
        begins.append(less if auto == "SAME_UPPER" else more)
        ends.append(more if auto == "SAME_UPPER" else less)
    return begins + ends


def _refusal(node: ir.Node, pad: ir.Node, own: Sequence[int], pads: Sequence[int], context: NodeContext) -> str | None:
    """Why an operator's own padding differs from that of a Pad before it; None if it does not."""
    scope = context.scope
    value = _value_of(pad, scope)
    if value is None:
        return "the value that it pads with is not constant"
    if node.op_type == "Conv":
        return f"it pads with {value:g}, a convolution with 0" if value != 0 else None
    kernel = list(node.attributes.get_ints("kernel_shape", []))
    if 0 in (scope.shape(pad.inputs[0]) or ()):
        return f"what it pads may be empty, which {node.op_type} rejects"
    if any(each != 1 for each in node.attributes.get_ints("dilations", [])):
        return f"{node.op_type} has dilations"
    if node.attributes.get_int("ceil_mode", 0):
        return f"{node.op_type} has ceil_mode=1: where its last window begins depends on whose padding it is"
    if any(each >= size for each, size in zip(pads, kernel * 2, strict=True)):
        return "its pads would be as large as the window"
    if node.op_type == "AveragePool":
        return _average_refusal(node, value, own, scope)
    if any(each.uses() or each.is_graph_output() for each in node.outputs[1:]):
        return "the indices of MaxPool are used, which count the padding"
    if value == float("-inf") or _is_lowest(value, pad, scope):
        return None
    if value == 0 and _is_never_negative(pad, context):
        return None
    return f"it pads with {value:g}, MaxPool with −∞, and its input may be smaller"


def _average_refusal(node: ir.Node, value: float, own: Sequence[int], scope: Scope) -> str | None:
    if value != 0:
        return f"it pads with {value:g}, AveragePool with 0"
    if scope.opset() < 7:
        return "before opset 7, AveragePool does not count its padding"
    if any(own) and not node.attributes.get_int("count_include_pad", 0):
        return "AveragePool does not count its own padding"
    return None


def _value_of(pad: ir.Node, scope: Scope) -> float | None:
    """The value of a Pad; None if it is not constant."""
    if "value" in pad.attributes:
        return float(pad.attributes["value"].as_float())
    if len(pad.inputs) < 3 or pad.inputs[2] is None:
        return 0.0
    tensor = scope.constant(pad.inputs[2])
    return float(tensor.numpy().item()) if tensor is not None and tensor.size == 1 else None


def _is_lowest(value: float, pad: ir.Node, scope: Scope) -> bool:
    dtype = scope.dtype(pad.inputs[0])
    if dtype is None and len(pad.inputs) > 2:
        dtype = scope.dtype(pad.inputs[2])
    return dtype is not None and value == float(dtype.min)


def _is_never_negative(pad: ir.Node, context: NodeContext) -> bool:
    node = context.producer(pad, 0, "Clip", *_NEVER_NEGATIVE)
    if node is None:
        return False
    if node.op_type == "Abs":  # of the smallest number of a signed integer, it is negative
        dtype = context.scope.dtype(node.outputs[0])
        return dtype is not None and (dtype.is_floating_point() or not dtype.is_signed())
    if node.op_type != "Clip":
        return True
    low, high = (_limit(node, name, index, context.scope) for index, name in enumerate(("min", "max"), 1))
    return low is not None and low >= 0 and high is not None and high >= 0


def _limit(clip: ir.Node, name: str, index: int, scope: Scope) -> float | None:
    """A limit of a Clip, −∞ or ∞ where there is none; None if it is not constant."""
    if name in clip.attributes:
        return clip.attributes[name].as_float()
    value = clip.inputs[index] if len(clip.inputs) > index else None
    if value is None:
        return float("-inf" if name == "min" else "inf")
    tensor = scope.constant(value)
    return float(tensor.numpy().item()) if tensor is not None and tensor.size == 1 else None
