"""Types and shapes after operators that ONNX does not define, inferred by ONNX Runtime.

ONNX's inference stops at operators of other domains. ONNX Runtime infers through those that it implements, mainly of
``com.microsoft``. It is given the structure of the model and small constants, but no weights.
"""

from __future__ import annotations

import contextlib
import copy
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from passes.graphs.replacement import merge_shapes
from passes.isolation import limits, value_messages, worker
from passes.isolation.failure import NativeFailure
from passes.isolation.process import Reason
from passes.shapes.declarations import contradiction, settle
from passes.shapes.inference import FAILURES, run
from passes.shapes.settled import Settled
from passes.shapes.skeleton import DOMAINS, Skeleton, message, overridable

_SECONDS = 30.0
"""The time limit, where the user gives none."""
_ELEMENTS = {
    **{name: ir.DataType[name.upper()] for name in ("float", "double", "float16", "bfloat16", "bool", "string")},
    **{f"{sign}int{bits}": ir.DataType[f"{sign.upper()}INT{bits}"] for sign in ("", "u") for bits in (8, 16, 32, 64)},
}


def infer_foreign(model: ir.Model) -> list[ir.Value]:
    """Complete types and shapes of values of the main graph by what ONNX Runtime infers.

    Returns:
        The changed values; none if there is no foreign operator, or ONNX Runtime rejects the model.
    """
    unknown = [
        value
        for node in model.graph
        for value in node.outputs
        if value.name and (value.type is None or value.shape is None or not value.shape.is_static())
    ]
    return [value for value, known in _ask(model, unknown).items() if _learn(value, *known)]


def settle_foreign(model: ir.Model, context: Settled) -> int:
    """Correct what a model declares of its values (`settle`), also of the results of foreign operators.

    Returns:
        How many values were declared otherwise.
    """
    count = settle(model, context) if context.settled is not model else 0
    foreign = [value for node in model.graph if node.domain not in DOMAINS for value in node.outputs if value.name]
    wrong = 0
    for value, (kind, shape) in _ask(model, foreign, declared=False).items():
        reason = contradiction(value, (kind, shape))
        if reason is not None:
            context.contradictions[str(value.name)] = reason
            value.type, value.shape = kind, shape
            wrong += 1
    return count + wrong + (settle(model, context) if wrong else 0)


def unproven(model: ir.Model) -> list[ir.Value]:
    """The results of operators outside of ONNX's main domain whose shapes neither ONNX nor ONNX Runtime infers."""
    functions = model.functions
    values = [
        value
        for node in model.graph
        if node.domain != "" and node.op_identifier() not in functions
        for value in node.outputs
        if value.name and (value.type is None or isinstance(value.type, ir.TensorType))
    ]
    if not values:
        return []
    found = {value: shape for value, (_, shape) in _ask(model, values, declared=False).items()}
    if any(node.domain == "ai.onnx.ml" for node in model.graph):
        with contextlib.suppress(*FAILURES):
            own = run(model, declared=False, propagate=False)
            ml = [value for value in values if _producer_domain(value) == "ai.onnx.ml"]
            found |= {value: own.get(value, (None, None))[1] for value in ml}
    shapes = [found.get(value) for value in values]
    return [value for value, shape in zip(values, shapes, strict=True) if shape is None or not shape.is_static()]


def _producer_domain(value: ir.Value) -> str:
    node = value.producer()
    return "" if node is None else node.domain


_Known = tuple[ir.TypeProtocol, ir.Shape | None]


def _ask(model: ir.Model, values: Sequence[ir.Value], *, declared: bool = True) -> dict[ir.Value, _Known]:
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
    for nodes in (proto.graph.node, *(function.node for function in proto.functions)):
        _hide_sizes(nodes)
    made = {name for node in proto.graph.node for name in node.output}
    proto.graph.input.extend(each for each in proto.graph.value_info if each.name not in made)  # the weights
    names = {str(value.name): value for value in values}
    if not declared:
        kept = [each for each in proto.graph.value_info if each.name not in names]
        del proto.graph.value_info[:]
        proto.graph.value_info.extend(kept)
    del proto.graph.output[:]
    proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    found = {names[name]: known for name, known in _inferred(proto).items()}
    return found | _scalars(proto, [value for value, (_, shape) in found.items() if shape is None])


def _hide_sizes(nodes: Any) -> None:
    """Replace each Size by the product of a Shape: of the Size of a shape, ONNX Runtime infers that of the tensor.

    Args:
        nodes: of a protobuf message, with their subgraphs.
    """
    given = list(nodes)
    if any(node.op_type == "Size" and node.domain == "" for node in given):
        given = [copy.deepcopy(node) for node in given]
        del nodes[:]
        for node in given:
            if node.op_type == "Size" and node.domain == "":
                (result,) = node.output
                nodes.append(onnx.helper.make_node("Shape", node.input, [f"{result}/shape"]))
                nodes.append(onnx.helper.make_node("ReduceProd", [f"{result}/shape"], [result], keepdims=0))
            else:
                nodes.append(node)
    for attribute in (attribute for node in nodes for attribute in node.attribute):
        for graph in (attribute.g, *attribute.graphs):
            _hide_sizes(graph.node)


def _scalars(proto: onnx.ModelProto, values: Sequence[ir.Value]) -> dict[ir.Value, _Known]:
    """Return those of some values that are scalars, which ONNX Runtime reports like values of unknown rank.

    It reports them otherwise with an axis of size 1 in front.
    """
    if not values:
        return {}
    opset = next((each.version for each in proto.opset_import if each.domain == ""), 0)
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
    found = _inferred(proto)
    return {names[name]: (kind, ir.Shape([])) for name, (kind, shape) in found.items() if shape == ir.Shape([1])}


def _inferred(proto: onnx.ModelProto) -> dict[str, _Known]:
    """What ONNX Runtime infers of the outputs of a model that are tensors; a scalar's shape is reported as unknown.

    Raises:
        NativeFailure: a limit of time or memory was exceeded.
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
    found: dict[str, _Known] = {}
    for name, kind, shape in answer["outputs"]:
        element = re.fullmatch(r"tensor\((\w+)\)", kind)
        if element and element[1] in _ELEMENTS:
            dims = [dim if isinstance(dim, int) and dim != 0 else None for dim in shape]  # 0 is said of open sizes, too
            found[name] = ir.TensorType(_ELEMENTS[element[1]]), ir.Shape(dims) if dims else None
    return found


def _learn(value: ir.Value, kind: ir.TypeProtocol, shape: ir.Shape | None) -> bool:
    before = value.type, value.shape
    value.type = value.type or kind
    if shape is not None:
        value.shape = merge_shapes(value.shape, shape)
    return (value.type, value.shape) != before
