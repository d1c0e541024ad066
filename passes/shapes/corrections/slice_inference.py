"""Inference through Slice as it was in opset 10, of which ONNX takes a size that has a name to be kept.

    x: [n, 4]   y = Slice(x, [1], [3], [0])   →  ONNX says [n, 4], though n is what is left out

The Slice of the next opset means the same, and its inference does not say so. While ONNX infers, each such Slice calls
a function which has that Slice as its body.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

import onnx

from passes.shapes.corrections.proto_nodes import detach, of_opsets, within

OPERATORS = frozenset(("Slice",))
_WRONG = 10
_RIGHT = 11
_DOMAIN = "onnx_bridge.slice"
_OPERANDS = ("data", "starts", "ends", "axes", "steps")
_T = TypeVar("_T")


def infer(model: onnx.ModelProto, run: Callable[[onnx.ModelProto], onnx.ModelProto]) -> onnx.ModelProto:
    """Infer a model that may have such Slices.

    Args:
        model: not changed.
        run: ONNX's inference.
    """
    if not any(True for _ in _slices(model)):
        return run(model)
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    for node in _slices(changed):
        node.domain = _DOMAIN
    for scope in (changed, *changed.functions):
        scope.opset_import.append(onnx.helper.make_opsetid(_DOMAIN, 1))
    body = [onnx.helper.make_node("Slice", _OPERANDS, ["result"])]
    imports = [onnx.helper.make_opsetid("", _RIGHT)]
    changed.functions.append(onnx.helper.make_function(_DOMAIN, "Slice", _OPERANDS, ["result"], body, imports))
    found = run(changed)
    del found.functions[-1]
    for scope in (found, *found.functions):
        del scope.opset_import[-1]
    for graph in (found.graph, *found.functions):
        for _, node in within(graph, "Slice", _DOMAIN):
            node.domain = ""
    return found


def infer_node(
    node: onnx.NodeProto,
    schema: onnx.defs.OpSchema,
    opset: int,
    run: Callable[[onnx.defs.OpSchema, onnx.NodeProto], _T],
) -> _T:
    """Infer the types of the outputs of one node; of what such Slices within it give, no shape is known.

    Args:
        node: not changed.
        schema: its own.
        opset: of ONNX.
        run: ONNX's inference, by a schema.
    """
    if opset != _WRONG:
        return run(schema, node)
    if (node.domain, node.op_type) == ("", "Slice"):
        return run(onnx.defs.get_schema("Slice", _RIGHT), node)
    detached = onnx.GraphProto(node=[node])
    for graph, each in list(within(detached, "Slice")):
        detach(graph, each)
    return run(schema, detached.node[0])


def _slices(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """All such Slices, with those of functions."""
    return (node for _, node in of_opsets(model, "Slice", lambda version: version == _WRONG))
