"""Computing constants with ONNX Runtime: many nodes in one session, without copying weights.

What is bounded beforehand (`passes.evaluation.bounded_work`) is computed in this process. Where the size of a result
depends on values that are computed as well, these come first. All else is computed in a process with limits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import onnx_ir as ir

from passes.evaluation import constant_session
from passes.evaluation.bounded_work import is_bounded_kind, unbounded
from passes.evaluation.constant_session import EvaluationError
from passes.graphs.scopes import Scope
from passes.graphs.tensors import tensor_proto
from passes.graphs.traversal import captures, leading_to, operands_of, with_nested
from passes.isolation import limits, value_messages, worker
from passes.isolation.failure import NativeFailure
from passes.isolation.messages import Array
from passes.isolation.process import Reason
from passes.operators import WEIGHTS

_SECONDS = 30.0
"""The default time limit of one session, in seconds."""
_INLINE = 4096
"""Constants up to this many bytes are part of the session's model; larger ones are its inputs."""
_DOMAINS = ("", "ai.onnx.ml", "com.microsoft")
_UNWRITTEN = frozenset(
    ["Conv", "ConvInteger", "GRU", "LSTM", "MatMul", "MatMulInteger", "QLinearConv", "QLinearMatMul"]
)
"""The operators whose sums ONNX Runtime 1.31 leaves unwritten if they have no terms, because the weight is empty: their
results would be what the memory of this process happens to hold.
"""

Tensors = Mapping[ir.Value, ir.TensorProtocol]


def evaluate(
    nodes: Sequence[ir.Node], constants: Tensors, targets: Sequence[ir.Value], scope: Scope
) -> list[ir.TensorProtocol]:
    """Compute values from constants, with all optimizations off.

    Args:
        nodes: the nodes to run, in topological order.
        constants: their inputs from outside.
        targets: the values to return, outputs of the nodes.

    Raises:
        EvaluationError: a node fails, has no kernel, is invalid, crashes or does not write its result, or a target is
            not a tensor.
        NativeFailure: a limit of time or memory was exceeded.
    """
    known = dict(constants)
    if any(_is_left_unwritten(node, known, scope) for node in with_nested(nodes)):
        raise EvaluationError("it leaves sums without terms unwritten")
    while needed := unbounded(_cone(nodes, targets, known), known):
        known |= _run(_cone(nodes, needed, known), known, needed, scope)
    rest = [value for value in targets if value not in known]
    known |= _run(_cone(nodes, rest, known), known, rest, scope, isolated=needed is None)
    return [known[value] for value in targets]


def _is_left_unwritten(node: ir.Node, known: Tensors, scope: Scope) -> bool:
    if node.domain != "" or node.op_type not in _UNWRITTEN:
        return False
    index = WEIGHTS.get(node.op_type, 1)
    weight = node.inputs[index] if index < len(node.inputs) else None
    if weight is None:
        return False
    shape = known[weight].shape if weight in known else scope.shape(weight)
    return shape is not None and 0 in shape and (node.op_type != "MatMul" or len(shape) != 2)


def _cone(nodes: Sequence[ir.Node], targets: Sequence[ir.Value], known: Tensors) -> list[ir.Node]:
    """Return the nodes that compute targets from known values, in their order."""
    cone = leading_to((value for value in targets if value not in known), known.__contains__)
    return [node for node in nodes if node in cone]


def _run(
    nodes: Sequence[ir.Node], known: Tensors, targets: Sequence[ir.Value], scope: Scope, *, isolated: bool = False
) -> dict[ir.Value, ir.TensorProtocol]:
    """Return the tensors of some values, computed in one session."""
    if not targets:
        return {}
    names: dict[ir.Value, str] = {}
    operands = {value: None for node in nodes for value in operands_of(node)}
    constants = {value: known[value] for value in operands if value in known}
    for value in (*constants, *(value for node in nodes for value in node.outputs)):
        names[value] = f"island/{len(names)}"  # since values of different subgraphs may have the same name
    model = onnx.ModelProto(ir_version=min(max(scope.model.ir_version, 4), onnx.IR_VERSION))
    model.opset_import.extend(
        onnx.helper.make_opsetid(*entry) for entry in scope.opset_imports.items() if entry[0] in _DOMAINS
    )
    model.graph.name = "island"
    feeds: dict[str, Array] = {}
    for value, tensor in constants.items():
        if tensor.nbytes > _INLINE and tensor.dtype != ir.DataType.STRING and tensor.dtype.bitwidth >= 8:
            feeds[names[value]] = np.ascontiguousarray(tensor.numpy()).reshape(tensor.shape.numpy())
            kind = onnx.helper.make_tensor_type_proto(tensor.dtype.value, tensor.shape.numpy())
            model.graph.input.add(name=names[value], type=kind)
        else:
            model.graph.initializer.append(tensor_proto(tensor, names[value]))
    for node in nodes:
        model.graph.node.append(_rename(node, names))
    wanted = [names[value] for value in targets]
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in wanted)
    if isolated:
        doubted = next((node for node in nodes if not is_bounded_kind(node)), nodes[-1])
        arrays = _run_isolated(model.SerializeToString(), wanted, feeds, f"node {doubted.name}")
    else:
        arrays = constant_session.compute(model.SerializeToString(), wanted, feeds)
    return {value: _tensor(each) for value, each in zip(targets, arrays, strict=True)}


def _run_isolated(model: bytes, outputs: Sequence[str], feeds: Mapping[str, Array], where: str) -> list[Array]:
    """Run `constant_session.compute` in a process with limits; ``where`` is what probably exceeds them."""
    arrays = {**feeds, "model": value_messages.from_bytes(model)}
    bounds = limits.current(_SECONDS)
    try:
        (answer, computed), _ = worker.shared().call(
            "passes.evaluation.constant_session", {"outputs": list(outputs)}, arrays, limits=bounds
        )
    except NativeFailure as failure:
        if failure.reason is Reason.DIED:
            raise EvaluationError(failure.what, unsupported=True) from None
        failure.where = where
        raise
    if "error" in answer:
        raise EvaluationError(answer["error"], unsupported=answer["unsupported"])
    (results,) = value_messages.unpack([answer["outputs"]], computed)
    return [array for array in results.values() if isinstance(array, np.ndarray)]


def _rename(node: ir.Node, names: Mapping[ir.Value, str]) -> onnx.NodeProto:
    proto = ir.serde.serialize_node(node)
    proto.ClearField("metadata_props")
    proto.input[:] = ["" if value is None else names[value] for value in node.inputs]
    proto.output[:] = [names[value] if value.name else "" for value in node.outputs]
    captured = {str(value.name): names[value] for value in captures(node)}
    if captured:
        _rename_inner(proto, captured)
    return proto


def _rename_inner(node: onnx.NodeProto, names: Mapping[str, str]) -> None:
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            for inner in graph.node:
                inner.input[:] = [names.get(name, name) for name in inner.input]
                _rename_inner(inner, names)


def _tensor(array: Array) -> ir.TensorProtocol:
    if array.dtype == np.dtype(object):
        return ir.StringTensor([str(text).encode() for text in array.ravel()], shape=ir.Shape(array.shape))
    return ir.Tensor(array, ir.DataType.from_numpy(array.dtype))
