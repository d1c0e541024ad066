"""A summary of a model or a bundle: the verb ``inspect``."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx_ir as ir

from onnx_bridge.bundle.bundle import Bundle, is_bundle
from onnx_bridge.core.schema import JsonRecord
from onnx_bridge.core.values import dtype_name
from onnx_bridge.model import io as models
from onnx_bridge.model.int8_forecast import forecast
from onnx_bridge.model.provenance import operator
from passes.graphs.quantization import is_quantized
from passes.graphs.scopes import nodes_of, required_inputs
from passes.operators import QUANTIZED


@dataclass(frozen=True)
class ModelView(JsonRecord):
    """A summary of a model.

    Attributes:
        path: its file; None for a model in memory.
        ir_version, opsets, producer: the fields of the file.
        inputs, outputs: name, dtype, and shape (a symbolic size is its name, an unknown one None).
        nodes: the number of nodes in all graphs and functions.
        operators: the number of nodes of each operator, the most frequent first; with the domain, unless it is ONNX's.
        parameters: the number of elements of all weights.
        parameter_bytes: the size of the weights by dtype.
        quantization: the number of nodes of each quantizing or integer operator.
        functions: names of the model's functions.
        forecast: the kernels that a GPU would run a quantized model with if it were not cleaned
            (`onnx_bridge.model.int8_forecast.Forecast`); empty for others.
    """

    in_json = ("kind",)
    kind = "model"

    path: str | None
    ir_version: int
    opsets: dict[str, int]
    producer: str
    inputs: list[dict[str, Any]]
    outputs: list[dict[str, Any]]
    nodes: int
    operators: dict[str, int]
    parameters: int
    parameter_bytes: dict[str, int]
    quantization: dict[str, int]
    functions: list[str]
    forecast: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class BundleView:
    """A summary of a bundle: its manifest and its paths."""

    bundle: Bundle

    def to_json(self) -> dict[str, Any]:
        """Return the manifest and the path as JSON values, and whether a conversion kept it as it was."""
        kept = {"kept": True} if self.bundle.is_kept else {}
        return {"kind": "bundle", "path": str(self.bundle.path), **kept, **self.bundle.manifest.to_json()}


def inspect(model: str | os.PathLike[str] | ir.Model) -> ModelView | BundleView:
    """Summarize a model or a bundle; raises InputError if it cannot be read."""
    if isinstance(model, ir.Model):
        return describe_model(model)
    if is_bundle(model):
        return BundleView(Bundle(model))
    return describe_model(models.load(model), Path(model))


def describe_model(model: ir.Model, path: Path | None = None) -> ModelView:
    """Summarize a model; the only weights that are read are quantization parameters."""
    graph = model.graph
    operators = Counter(map(operator, nodes_of(model)))
    parameters, sizes = 0, Counter[str]()
    for tensor in _weights(model):
        parameters += tensor.size
        sizes[dtype_name(tensor.dtype.numpy())] += tensor.nbytes
    quantization = {name: count for name, count in operators.most_common() if name.rpartition("::")[2] in QUANTIZED}
    return ModelView(
        path=str(path) if path else None,
        ir_version=model.ir_version,
        opsets=dict(model.opset_imports),
        producer=" ".join(filter(None, (model.producer_name, model.producer_version))),
        inputs=list(map(_value, required_inputs(model))),
        outputs=[_value(output) for output in graph.outputs],
        nodes=operators.total(),
        operators=dict(operators.most_common()),
        parameters=parameters,
        parameter_bytes=dict(sizes.most_common()),
        quantization=quantization,
        functions=sorted(f"{function.domain}::{function.name}" for function in model.functions.values()),
        forecast=forecast(model.clone()).to_json() if is_quantized(model) else {},
    )


def _weights(model: ir.Model) -> Iterator[ir.TensorProtocol]:
    for graph in (model.graph, *model.graph.subgraphs()):
        for value in graph.initializers.values():
            if value.const_value is not None:
                yield value.const_value
    for node in nodes_of(model):
        if node.op_type == "Constant" and (attribute := node.attributes.get("value")) is not None:
            yield attribute.as_tensor()


def _value(value: ir.Value) -> dict[str, Any]:
    shape = None
    if value.shape is not None:
        shape = [dim if isinstance(dim, int) else dim.value for dim in value.shape]
    return {"name": value.name, "dtype": dtype_name(value.dtype.numpy()) if value.dtype else None, "shape": shape}
