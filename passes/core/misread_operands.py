"""Operands that ONNX's inference reads otherwise than ONNX Runtime does.

    Squeeze(x) of an empty list of axes            ONNX squeezes none of them, and ONNX Runtime all of size 1
    axes, before opset 11, negative or unsorted    ONNX ignores or confuses them, and ONNX Runtime counts from the end
    Slice with a negative step to the number that  ONNX says that there is nothing before it, and ONNX Runtime
    stands for the end                             goes to the beginning

A node that inference is given says the same in a way that both read alike; where that needs a rank, its shape is open.
"""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir

from passes.core.graphs import Scope, ints

_OPERATORS = frozenset(("Slice", "Squeeze", "Unsqueeze"))
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
    if node.op_type not in _OPERATORS or node.domain != "":
        return
    if node.op_type != "Slice":
        _write_axes(node, proto, scope)
    elif len(node.inputs) > _STEPS:
        steps = ints(scope.constant(node.inputs[_STEPS])) or ()
        if min(steps, default=0) < 0:
            ends = ints(scope.constant(node.inputs[_ENDS])) or ()
            if any(step < 0 and end in _END for step, end in zip(steps, ends, strict=False)):
                _open(proto)


def _write_axes(node: ir.Node, proto: onnx.NodeProto, scope: Scope) -> None:
    if len(node.inputs) > 1 and node.op_type == "Unsqueeze":
        return
    attribute = next((each for each in proto.attribute if each.name == "axes" and not each.ref_attr_name), None)
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


def _open(proto: onnx.NodeProto) -> None:
    """Make it one of which only the dtype is known: a Reshape to nothing."""
    proto.op_type, proto.input[1:] = "Reshape", [""]
    del proto.attribute[:]
