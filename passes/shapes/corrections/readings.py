"""Operators that ONNX's inference reads in another way than ONNX Runtime does.

    Squeeze(x) of an empty list of axes            ONNX squeezes no axis, and ONNX Runtime all of size 1
    axes, before opset 11, negative or unsorted    ONNX ignores or confuses them, and ONNX Runtime counts from the end
    axes of Resize that are negative               ONNX keeps no aspect ratio along them
    Slice with a negative step to the number that  ONNX says that there is nothing before it, and ONNX Runtime
    stands for the end                             goes to the beginning
    Slice and Expand of more axes than there can   ONNX makes a list of them, and ONNX Runtime refuses it
    be
    Slice in opset 10 of a size that has a name    ONNX says that the size stays: [n, 4][1:3] has size n
    pooling with pads and with auto_pad            ONNX takes the pads, and ONNX Runtime chooses its own
    noop_with_empty_axes of 2 or -1                ONNX takes it for 1, and ONNX Runtime for 0
    STFT without onesided                          ONNX takes it for 0, and its definition says 1
    Cast to a type that does not hold all sizes    ONNX says that the values stay: 300 as uint8 is 300, and not 44
    EyeLike(h) and others, h of an unknown type    ONNX 1.23 reads the type of h, and crashes

A node says the same in a way that both read alike. If that needs a rank, only its dtype is inferred; if nothing can be
inferred, the node is hidden until the types of its operands are known.
"""

from __future__ import annotations

import numpy as np
import onnx

from passes.graphs.limits import MAX_RANK
from passes.operators import REDUCTIONS
from passes.shapes.corrections.nodes import Node, subgraphs
from passes.shapes.corrections.protocol import DETACHED, HIDDEN, STAND_INS, rewrites

_ENDS, _STEPS = 2, 4
_END = tuple(np.iinfo(dtype).max for dtype in (np.int32, np.int64))
_COUNTED = 11
"""Since this opset, ONNX knows negative axes of Squeeze and Unsqueeze."""
_RENAMING = 10
"""The opset in which ONNX keeps the name of a size that Slice changes; in the next, the operator is the same."""
_AGREEING = 11
"""Since this opset, ONNX infers of an If what both branches have in common."""
_HOLD_SIZES = (onnx.TensorProto.INT32, onnx.TensorProto.INT64)
"""The dtypes that hold all sizes: no tensor has 2³¹ elements along an axis."""
_OPERANDS = ("data", "starts", "ends", "axes", "steps")
STAND_INS["Slice"] = onnx.helper.make_function(
    HIDDEN,
    "Slice",
    _OPERANDS,
    ["result"],
    [onnx.helper.make_node("Slice", _OPERANDS, ["result"])],
    [onnx.helper.make_opsetid("", _RENAMING + 1)],
)


@rewrites("Slice")
def _slice(node: Node) -> None:
    if _has_long_list(node) or _goes_to_the_beginning(node):
        _open(node)
    elif node.around.opset == _RENAMING:
        node.message.domain = HIDDEN


def _goes_to_the_beginning(node: Node) -> bool:
    steps = node.constant(_STEPS) or ()
    if len(steps) > MAX_RANK or min(steps, default=0) >= 0:
        return False
    return any(step < 0 and end in _END for step, end in zip(steps, node.constant(_ENDS) or (), strict=False))


@rewrites("Expand")
def _expand(node: Node) -> None:
    if _has_long_list(node):
        _open(node)


def _has_long_list(node: Node) -> bool:
    """Return whether a list of sizes or axes has more elements than there are axes, which inference would read."""
    shapes = [node.dims(index) or () for index in range(1, len(node.message.input))]
    return any(isinstance(size, int) and size > MAX_RANK for shape in shapes for size in shape)


@rewrites("Squeeze", "Unsqueeze")
def _axes(node: Node) -> None:
    squeezes, axes = node.message.op_type == "Squeeze", node.given("axes")
    if len(node.message.input) > 1:
        if squeezes and axes is None and node.constant(1) == []:
            del node.message.input[1:]
        return
    if axes is None:
        return
    ordered = sorted(axes.ints)
    if squeezes and not ordered:
        node.message.attribute.remove(axes)
    elif ordered and ordered[0] < 0 and node.around.opset < _COUNTED:
        _open(node)
    else:
        axes.ints[:] = ordered


@rewrites("Resize")
def _resize(node: Node) -> None:
    if min(node.attribute("axes").ints, default=0) < 0 and node.given("keep_aspect_ratio_policy") is not None:
        _open(node)


@rewrites("AveragePool", "LpPool", "MaxPool")
def _pool(node: Node) -> None:
    pads = node.given("pads")
    if pads is not None and node.attribute("auto_pad").s not in (b"", b"NOTSET"):
        node.message.attribute.remove(pads)


@rewrites(*REDUCTIONS)
def _reduction(node: Node) -> None:
    keeps = node.given("noop_with_empty_axes")
    if keeps is not None:
        keeps.i = int(keeps.i == 1)


@rewrites("STFT")
def _stft(node: Node) -> None:
    if all(attribute.name != "onesided" for attribute in node.message.attribute):
        node.message.attribute.append(onnx.helper.make_attribute("onesided", 1))


@rewrites("Cast", propagated=True)
def _cast(node: Node) -> None:
    for attribute in node.message.attribute:
        is_number = attribute.type == onnx.AttributeProto.INT
        if attribute.name == "to" and (attribute.ref_attr_name or (is_number and attribute.i not in _HOLD_SIZES)):
            node.message.op_type, attribute.name = "RandomUniformLike", "dtype"  # of the same shape and dtype


@rewrites("DictVectorizer", "EyeLike", "LabelEncoder", "RegexFullMatch", "TreeEnsemble")
def _crashing(node: Node) -> None:
    """Hide the node: inference crashes on operands of unknown type."""
    if any(node.around.type(name) is None for name in node.message.input):
        node.message.domain = HIDDEN


@rewrites("If")
def _if(node: Node) -> None:
    """Let the results of the branches have no shape, if it cannot be corrected (`passes.shapes.corrections.sizes`)."""
    if not node.around.is_function or node.around.opset >= _AGREEING:
        return
    for branch in subgraphs(node.message):
        for output in branch.output:
            branch.node.append(onnx.helper.make_node("Reshape", [output.name, ""], [output.name + DETACHED]))
            output.name += DETACHED
            output.ClearField("type")


def _open(node: Node) -> None:
    """Make it a node of which only the dtype is inferred: a Reshape to nothing."""
    node.message.op_type, node.message.input[1:] = "Reshape", [""]
    del node.message.attribute[:]
