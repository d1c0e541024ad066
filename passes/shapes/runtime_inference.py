"""Inference by ONNX Runtime, of what comes after operators that ONNX does not define.

ONNX's inference stops at operators of other domains. ONNX Runtime infers through those that it implements, mainly of
``com.microsoft``. It is given the structure of the model and small constants, but no weights.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence, Set
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from passes.isolation import limits, value_messages, worker
from passes.isolation.failure import NativeFailure
from passes.isolation.process import Reason
from passes.shapes.skeleton import DOMAINS, Skeleton, message, overridable

_SECONDS = 30.0
"""The default time limit in seconds."""
_ELEMENTS = {
    **{name: ir.DataType[name.upper()] for name in ("float", "double", "float16", "bfloat16", "bool", "string")},
    **{f"{sign}int{bits}": ir.DataType[f"{sign.upper()}INT{bits}"] for sign in ("", "u") for bits in (8, 16, 32, 64)},
}

_Known = tuple[ir.TypeProtocol, ir.Shape | None]


def ask(model: ir.Model, values: Sequence[ir.Value], *, declared: bool = True) -> dict[ir.Value, _Known]:
    """Return what ONNX Runtime infers of some values of the main graph, if there are foreign operators.

    Args:
        model: not changed.
        values: outputs of nodes.
        declared: whether to build on what the model declares of ``values``.
    """
    if not values or all(node.domain in DOMAINS for node in model.graph):
        return {}
    proto = message(model)
    proto.ir_version = min(proto.ir_version, 10)
    Skeleton(declared=True, variable=overridable(model)).write(model.graph, proto.graph)
    _hide_sizes(proto.graph.node, {tensor.name for tensor in proto.graph.initializer})
    for function in proto.functions:
        _hide_sizes(function.node, set())
    computed = {name for node in proto.graph.node for name in node.output}
    proto.graph.input.extend(info for info in proto.graph.value_info if info.name not in computed)  # the weights
    names = {str(value.name): value for value in values}
    if not declared:
        kept = [info for info in proto.graph.value_info if info.name not in names]
        del proto.graph.value_info[:]
        proto.graph.value_info.extend(kept)
    del proto.graph.output[:]
    proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    inferred = {names[name]: known for name, known in _inferred(proto).items()}
    return inferred | _scalars(proto, [value for value, (_, shape) in inferred.items() if shape is None])


def _hide_sizes(nodes: Any, constants: Set[str]) -> None:
    """Hide sizes from which ONNX Runtime infers wrong ones.

    Each Size becomes the product of a Shape: of the Size of a shape, ONNX Runtime infers that of the tensor. Caches
    of an open total length become ones with an open number of rows: it infers that they do not grow.
    """
    given = list(nodes)
    if any(_is_size(node) or _is_open_cache(node, constants) for node in given):
        given = [copy.deepcopy(node) for node in given]
        del nodes[:]
        for node in given:
            if _is_size(node):
                (result,) = node.output
                nodes.append(onnx.helper.make_node("Shape", node.input, [f"{result}/shape"]))
                nodes.append(onnx.helper.make_node("ReduceProd", [f"{result}/shape"], [result], keepdims=0))
                continue
            caches = (3, 4) if _is_open_cache(node, constants) else ()
            for index in (index for index in caches if node.input[index]):
                past, node.input[index] = node.input[index], f"{node.output[0]}/past/{index}"
                rows = f"{node.input[index]}/rows"  # of a length that is not inferred
                nodes.append(onnx.helper.make_node("Shape", [past], [f"{rows}/shape"]))
                nodes.append(onnx.helper.make_node("Cast", [f"{rows}/shape"], [rows], to=onnx.TensorProto.BOOL))
                nodes.append(onnx.helper.make_node("Compress", [past, rows], [node.input[index]], axis=2))
            nodes.append(node)
    for attribute in (attribute for node in nodes for attribute in node.attribute):
        for graph in (attribute.g, *attribute.graphs):
            _hide_sizes(graph.node, constants | {tensor.name for tensor in graph.initializer})


def _is_size(node: onnx.NodeProto) -> bool:
    return node.op_type == "Size" and node.domain == ""


def _is_open_cache(node: onnx.NodeProto, constants: Set[str]) -> bool:
    """Return whether a node has a past and a total length that is not constant, and keeps all rows."""
    if node.op_type != "GroupQueryAttention" or len(node.input) < 7 or node.input[6] in constants:
        return False
    evicts = any(attribute.name == "sliding_window_cache" and attribute.i for attribute in node.attribute)
    return not evicts


def _scalars(proto: onnx.ModelProto, values: Sequence[ir.Value]) -> dict[ir.Value, _Known]:
    """Return those of some values that are scalars, which ONNX Runtime reports like values of unknown rank.

    It reports them otherwise with an axis of size 1 in front.
    """
    if not values:
        return {}
    opset = next((entry.version for entry in proto.opset_import if entry.domain == ""), 0)
    if opset == 0:
        return {}
    names = {f"{value.name}/with_axis": value for value in values}
    axes = onnx.numpy_helper.from_array(np.array([0]), "axes/of_scalars")
    proto.graph.initializer.append(axes)
    for name, value in names.items():
        inputs = [str(value.name), *([axes.name] if opset >= 13 else [])]
        node = proto.graph.node.add(op_type="Unsqueeze", input=inputs, output=[name])
        if opset < 13:
            node.attribute.append(onnx.helper.make_attribute("axes", [0]))
    del proto.graph.output[:]
    proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    inferred = _inferred(proto)
    return {names[name]: (kind, ir.Shape([])) for name, (kind, shape) in inferred.items() if shape == ir.Shape([1])}


def _inferred(proto: onnx.ModelProto) -> dict[str, _Known]:
    """Return the inferred types and shapes of a model's outputs that are tensors; a scalar's shape is None.

    Raises NativeFailure if a limit of time or memory was exceeded.
    """
    arrays = {"model": value_messages.from_bytes(proto.SerializeToString())}
    try:
        (answer, _), _ = worker.shared().call(
            "passes.evaluation.output_types", {}, arrays, limits=limits.current(_SECONDS)
        )
    except NativeFailure as failure:
        if failure.reason is not Reason.DIED:
            raise
        return {}
    inferred: dict[str, _Known] = {}
    for name, kind, shape in answer["outputs"]:
        element = re.fullmatch(r"tensor\((\w+)\)", kind)
        if element and element[1] in _ELEMENTS:
            dims = [dim if isinstance(dim, int) and dim != 0 else None for dim in shape]  # 0 is said of open sizes, too
            inferred[name] = ir.TensorType(_ELEMENTS[element[1]]), ir.Shape(dims) if dims else None
    return inferred
