"""Computing constants with ONNX Runtime: many nodes in one session, without copying weights."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
from onnxruntime.capi.onnxruntime_pybind11_state import NotImplemented as NotImplementedByRuntime

from passes.core import graphs
from passes.core.graphs import Scope
from passes.core.inference import first_line

_INLINE = 4096
"""Constants up to this many bytes are part of the session's model; larger ones are its inputs."""
_DOMAINS = ("", "ai.onnx.ml", "com.microsoft")
_RELEASED_ONLY = "ALLOW_RELEASED_ONNX_OPSET_ONLY"
_UNKNOWN_TO_NUMPY = re.compile("BFLOAT16|FLOAT8.*")


class EvaluationError(Exception):
    """ONNX Runtime could not compute a value; the message is its own, cleaned.

    Attributes:
        no_kernel: ONNX Runtime has no implementation of an operator for these dtypes.
    """

    def __init__(self, message: str, *, no_kernel: bool = False) -> None:
        super().__init__(message)
        self.no_kernel = no_kernel


@contextlib.contextmanager
def unreleased_opsets() -> Iterator[None]:
    """Let ONNX Runtime accept opsets that it supports only provisionally, which exporters write."""
    before = os.environ.get(_RELEASED_ONLY)
    os.environ[_RELEASED_ONLY] = "0"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_RELEASED_ONLY]
        else:
            os.environ[_RELEASED_ONLY] = before


def evaluate(
    nodes: Sequence[ir.Node], constants: Mapping[ir.Value, ir.TensorProtocol], targets: Sequence[ir.Value], scope: Scope
) -> list[ir.TensorProtocol]:
    """Compute values from constants, with all optimizations off.

    Args:
        nodes: the nodes to run, in topological order.
        constants: their inputs from outside.
        targets: the values to return, outputs of the nodes.
        scope: the scope of the nodes.

    Raises:
        EvaluationError: a node fails, has no kernel, or is invalid, or a target is not a tensor.
    """
    names: dict[ir.Value, str] = {}
    for value in (*constants, *(value for node in nodes for value in node.outputs)):
        names[value] = f"island/{len(names)}"  # since values of different subgraphs may have the same name
    proto = onnx.ModelProto(ir_version=min(max(scope.model.ir_version, 4), onnx.IR_VERSION))
    proto.opset_import.extend(
        onnx.helper.make_opsetid(*each) for each in scope.opset_imports.items() if each[0] in _DOMAINS
    )
    proto.graph.name = "island"
    feeds = {}
    for value, tensor in constants.items():
        fed = _feed(tensor) if tensor.nbytes > _INLINE else None
        if fed is None:
            proto.graph.initializer.append(graphs.tensor_proto(tensor, names[value]))
        else:
            feeds[names[value]] = fed
            kind = onnx.helper.make_tensor_type_proto(tensor.dtype.value, tensor.shape.numpy())
            proto.graph.input.add(name=names[value], type=kind)
    for node in nodes:
        proto.graph.node.append(_rename(node, names))
    proto.graph.output.extend(onnx.ValueInfoProto(name=names[value]) for value in targets)

    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.enable_cpu_mem_arena = False
    try:
        with unreleased_opsets():
            session = ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
        found = session.run_with_ort_values([names[value] for value in targets], feeds)
    except Exception as error:  # ONNX Runtime's exceptions have no common base class
        raise EvaluationError(_clean(error), no_kernel=isinstance(error, NotImplementedByRuntime)) from None
    return [_tensor(each) for each in found]


def _rename(node: ir.Node, names: Mapping[ir.Value, str]) -> onnx.NodeProto:
    proto = ir.serde.serialize_node(node)
    proto.ClearField("metadata_props")
    proto.input[:] = ["" if value is None else names[value] for value in node.inputs]
    proto.output[:] = [names[value] if value.name else "" for value in node.outputs]
    captured = {str(value.name): names[value] for value in graphs.captures(node)}
    if captured:
        _rename_inner(proto, captured)
    return proto


def _rename_inner(node: onnx.NodeProto, names: Mapping[str, str]) -> None:
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            for inner in graph.node:
                inner.input[:] = [names.get(name, name) for name in inner.input]
                _rename_inner(inner, names)


def _feed(tensor: ir.TensorProtocol) -> ort.OrtValue | None:
    """A tensor as an input of ONNX Runtime that shares its memory; None if that is not possible."""
    if tensor.dtype == ir.DataType.STRING or tensor.dtype.bitwidth < 8:
        return None
    array = np.ascontiguousarray(tensor.numpy())
    return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array, tensor.dtype.value)


def _tensor(value: ort.OrtValue) -> ir.TensorProtocol:
    if not value.is_tensor():
        raise EvaluationError("its result is not a tensor")
    dtype = ir.DataType(value.element_type())
    if dtype == ir.DataType.STRING:
        strings = value.numpy()
        return ir.StringTensor([str(each).encode() for each in strings.ravel()], shape=ir.Shape(strings.shape))
    if dtype.bitwidth < 8:
        raise EvaluationError(f"results of {dtype.name} cannot be read from ONNX Runtime")
    if not _UNKNOWN_TO_NUMPY.fullmatch(dtype.name):
        return ir.Tensor(np.asarray(value.numpy()))
    shape = value.shape()
    raw = ctypes.string_at(value.data_ptr(), value.tensor_size_in_bytes()) if 0 not in shape else b""
    return ir.Tensor(np.frombuffer(raw, dtype.numpy()).reshape(shape), dtype=dtype)


def _clean(error: Exception) -> str:
    """ONNX Runtime's message, without its codes and source locations."""
    text = first_line(error)
    text = re.sub(r"^\[ONNXRuntimeError\] : \d+ : [A-Z_]+ : ", "", text)
    return re.sub(r"\S*/(onnxruntime|onnx)/\S+:\d+ ?", "", text)
