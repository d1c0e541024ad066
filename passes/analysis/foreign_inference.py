"""Types and shapes after operators that ONNX does not define, inferred by ONNX Runtime.

ONNX's inference stops at operators of other domains. ONNX Runtime infers through those that it implements, mainly of
``com.microsoft``. It is given the structure of the model and small constants, but no weights.
"""

from __future__ import annotations

import re

import onnx
import onnx_ir as ir
import onnxruntime as ort

from passes.analysis.evaluation import unreleased_opsets
from passes.core.graphs import Scope
from passes.core.inference import skeleton

_ELEMENTS = {
    **{name: ir.DataType[name.upper()] for name in ("float", "double", "float16", "bfloat16", "bool", "string")},
    **{f"{sign}int{bits}": ir.DataType[f"{sign.upper()}INT{bits}"] for sign in ("", "u") for bits in (8, 16, 32, 64)},
}
_ONNX = ("", "ai.onnx.ml")


def infer_foreign(model: ir.Model) -> list[ir.Value]:
    """Set unknown types and shapes of values of the main graph to those that ONNX Runtime infers.

    Returns:
        The changed values; none if there is no foreign operator, or ONNX Runtime rejects the model.
    """
    unknown = {
        str(value.name): value
        for node in model.graph
        for value in node.outputs
        if value.name and (value.type is None or value.shape is None)
    }
    if not unknown or all(node.domain in _ONNX for node in model.graph):
        return []
    proto = onnx.ModelProto(ir_version=min(max(model.ir_version, 4), 10))
    for domain, version in Scope(model, model.graph).opset_imports.items():
        proto.opset_import.add(domain=domain, version=version)
    for function in model.functions.values():
        ir.serde.serialize_function_into(proto.functions.add(), function)
    skeleton(model.graph, proto.graph, declared=True)
    made = {name for node in proto.graph.node for name in node.output}
    proto.graph.input.extend(each for each in proto.graph.value_info if each.name not in made)  # the weights
    del proto.graph.output[:]
    proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in unknown)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    try:
        with unreleased_opsets():
            session = ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except Exception:  # ONNX Runtime's exceptions have no common base class
        return []
    return [unknown[each.name] for each in session.get_outputs() if _learn(unknown[each.name], each.type, each.shape)]


def _learn(value: ir.Value, kind: str, dims: list[int | str | None]) -> bool:
    element = re.fullmatch(r"tensor\((\w+)\)", kind)
    dtype = _ELEMENTS.get(element[1]) if element else None
    if dtype is None:
        return False
    before = value.type, value.shape
    if value.type is None:
        value.type = ir.TensorType(dtype)
    if value.shape is None and dims:  # it reports unknown shapes as scalars
        value.shape = ir.Shape([dim if isinstance(dim, int) else None for dim in dims])
    return (value.type, value.shape) != before
