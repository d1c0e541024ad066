"""Inference through Casts, of which ONNX takes that they keep the values of shapes, whatever the type.

    s: int64[1] = [300]   c = Cast<to = uint8>(s)   y = ConstantOfShape(c)   →  ONNX says [300], and the size is 44

While ONNX propagates values, each Cast to a type that does not hold them all is an operator of the same shape and type
whose values are not propagated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import onnx

from passes.shapes.corrections.proto_nodes import nodes_of

_KEEP = (onnx.TensorProto.INT32, onnx.TensorProto.INT64)
"""The types that are as good as the one of sizes: no tensor has 2³¹ elements along an axis."""
OPERATORS = frozenset(("Cast",))
_LIKE = "RandomUniformLike"


def infer(model: onnx.ModelProto, run: Callable[[onnx.ModelProto], onnx.ModelProto]) -> onnx.ModelProto:
    """Infer a model that may have such Casts.

    Args:
        model: not changed.
        run: ONNX's inference, which propagates values.
    """
    if not any(_loses(node) for node in nodes_of(model)):
        return run(model)
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    for node, attribute in _casts(changed, changed):
        node.op_type, attribute.name = _LIKE, "dtype"
    found = run(changed)
    for node, attribute in _casts(model, found):
        node.op_type, attribute.name = "Cast", "to"
    return found


def _casts(model: onnx.ModelProto, same: onnx.ModelProto) -> Iterator[tuple[onnx.NodeProto, onnx.AttributeProto]]:
    """Such Casts, each in another model with the same nodes, and its attribute there."""
    for node, other in zip(nodes_of(model), nodes_of(same), strict=True):
        if _loses(node):
            yield other, next(each for each in other.attribute if each.name in ("to", "dtype"))


def _loses(node: onnx.NodeProto) -> bool:
    if node.op_type != "Cast" or node.domain not in ("", "ai.onnx"):
        return False
    given = [each for each in node.attribute if each.name == "to"]
    return any(each.ref_attr_name or (each.type == onnx.AttributeProto.INT and each.i not in _KEEP) for each in given)
