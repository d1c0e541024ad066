"""Operands and attributes that ONNX's inference reads otherwise than ONNX Runtime does.

    Squeeze(x) of an empty list of axes            ONNX squeezes none of them, and ONNX Runtime all of size 1
    axes, before opset 11, negative or unsorted    ONNX ignores or confuses them, and ONNX Runtime counts from the end
    axes of Resize that are negative               ONNX keeps no aspect ratio along them
    Slice with a negative step to the number that  ONNX says that there is nothing before it, and ONNX Runtime
    stands for the end                             goes to the beginning
    Slice and Expand of more axes than there can   ONNX makes a list of them, and ONNX Runtime refuses it
    be
    pooling with pads and with auto_pad            ONNX takes the pads, and ONNX Runtime chooses its own
    noop_with_empty_axes of 2 or -1                ONNX takes it for 1, and ONNX Runtime for 0
    STFT without onesided                          ONNX takes it for 0, and its definition says 1

A node that inference is given says the same in a way that both read alike; where that needs a rank, its shape is open.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import onnx_ir as ir

from passes.graphs.limits import MAX_RANK
from passes.graphs.scopes import Scope
from passes.graphs.tensors import ints
from passes.operators import REDUCTIONS

_ENDS, _STEPS = 2, 4
_END = tuple(np.iinfo(dtype).max for dtype in (np.int32, np.int64))
_COUNTED = 11
"""Since this opset, ONNX knows negative axes of Squeeze and Unsqueeze."""


def write(node: ir.Node, proto: onnx.NodeProto, scope: Scope) -> None:
    """Change a node that is to be inferred.

    Args:
        node: of the scope.
        proto: the same, and is changed.
        scope: has the constants.
    """
    change = _CHANGES.get(node.op_type)
    if change is not None and node.domain == "":
        change(node, proto, scope)


def _write_slice(node: ir.Node, proto: onnx.NodeProto, scope: Scope) -> None:
    if _has_long_list(node):
        _open(proto)
        return
    steps = (ints(scope.constant(node.inputs[_STEPS])) or ()) if len(node.inputs) > _STEPS else ()
    if min(steps, default=0) < 0:
        ends = ints(scope.constant(node.inputs[_ENDS])) or ()
        if any(step < 0 and end in _END for step, end in zip(steps, ends, strict=False)):
            _open(proto)


def _write_expand(node: ir.Node, proto: onnx.NodeProto, scope: Scope) -> None:
    if _has_long_list(node):
        _open(proto)


def _has_long_list(node: ir.Node) -> bool:
    """Whether a list of sizes or axes has more elements than there are axes, which inference would read."""
    shapes = (value.shape for value in node.inputs[1:] if value is not None and value.shape is not None)
    return any(isinstance(size, int) and size > MAX_RANK for shape in shapes for size in shape)


def _write_axes(node: ir.Node, proto: onnx.NodeProto, scope: Scope) -> None:
    if len(node.inputs) > 1 and node.op_type == "Unsqueeze":
        return
    attribute = _attribute(proto, "axes")
    if attribute is None:
        given = scope.constant(node.inputs[1]) if len(node.inputs) > 1 else None
        if node.op_type == "Squeeze" and given is not None and given.size == 0:
            del proto.input[1:]
        return
    axes = sorted(attribute.ints)
    if node.op_type == "Squeeze" and not axes:
        proto.attribute.remove(attribute)
    elif axes and axes[0] < 0 and scope.opset() < _COUNTED:
        _open(proto)
    else:
        attribute.ints[:] = axes


def _write_resize(node: ir.Node, proto: onnx.NodeProto, scope: Scope) -> None:
    axes = _attribute(proto, "axes")
    if axes is not None and min(axes.ints, default=0) < 0 and _attribute(proto, "keep_aspect_ratio_policy") is not None:
        _open(proto)


def _write_pool(node: ir.Node, proto: onnx.NodeProto, scope: Scope) -> None:
    auto, pads = _attribute(proto, "auto_pad"), _attribute(proto, "pads")
    if auto is not None and auto.s != b"NOTSET" and pads is not None:
        proto.attribute.remove(pads)


def _write_reduction(node: ir.Node, proto: onnx.NodeProto, scope: Scope) -> None:
    keeps = _attribute(proto, "noop_with_empty_axes")
    if keeps is not None:
        keeps.i = int(keeps.i == 1)


def _write_stft(node: ir.Node, proto: onnx.NodeProto, scope: Scope) -> None:
    if "onesided" not in node.attributes:
        proto.attribute.append(onnx.helper.make_attribute("onesided", 1))


def _attribute(proto: onnx.NodeProto, name: str) -> onnx.AttributeProto | None:
    """An attribute that has a value."""
    return next((each for each in proto.attribute if each.name == name and not each.ref_attr_name), None)


def _open(proto: onnx.NodeProto) -> None:
    """Make it one of which only the dtype is known: a Reshape to nothing."""
    proto.op_type, proto.input[1:] = "Reshape", [""]
    del proto.attribute[:]


_CHANGES: dict[str, Callable[[ir.Node, onnx.NodeProto, Scope], None]] = {
    "Expand": _write_expand,
    "Slice": _write_slice,
    "Squeeze": _write_axes,
    "Unsqueeze": _write_axes,
    "Resize": _write_resize,
    "STFT": _write_stft,
    **dict.fromkeys(("AveragePool", "LpPool", "MaxPool"), _write_pool),
    **dict.fromkeys(REDUCTIONS, _write_reduction),
}
