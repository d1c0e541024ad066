"""A summary of a model or a bundle: the verb ``inspect``."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from onnx_bridge.bundle.buckets import Buckets, has_buckets
from onnx_bridge.bundle.bundle import Bundle, is_bundle
from onnx_bridge.bundle.decoding.decoder import open_buckets
from onnx_bridge.bundle.manifest.entries import TensorInfo
from onnx_bridge.bundle.pass_table import pass_table
from onnx_bridge.core.console import plain_table
from onnx_bridge.core.values import Kind
from onnx_bridge.model import io as models
from onnx_bridge.model.int8_forecast import forecast
from passes.graphs.quantized import is_quantized

if TYPE_CHECKING:
    from rich.console import RenderableType

_QUANTIZING = ("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear")
_INTEGER = ("QLinear", "QGemm", "QAttention", "MatMulInteger", "ConvInteger", "MatMulNBits", "GatherBlockQuantized")


@dataclass(frozen=True)
class ModelView:
    """A summary of a model.

    Attributes:
        path: its file; None for a model in memory.
        ir_version, opsets, producer: those of the file.
        inputs, outputs: name, dtype, and shape (a symbolic size is its name, an unknown one None).
        nodes: the number of nodes in all graphs and functions.
        operators: the number of nodes of each, the most frequent first; with the domain, unless it is ONNX's.
        parameters: the number of elements of all weights.
        parameter_bytes: the size of the weights by dtype.
        quantization: the number of nodes of each quantizing or integer operator.
        functions: names of the model's functions.
        forecast: of a quantized model, the kernels that a GPU would run it with if it were not cleaned
            (`onnx_bridge.model.int8_forecast.Forecast`); empty for others.
    """

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

    def to_json(self) -> dict[str, Any]:
        return {"kind": "model", **vars(self)}

    def render(self) -> RenderableType:
        from rich.console import Group

        opsets = ", ".join(f"{domain or 'ai.onnx'} {version}" for domain, version in self.opsets.items())
        size = _size(sum(self.parameter_bytes.values()))
        widths = ", ".join(f"{_size(count)} {dtype}" for dtype, count in self.parameter_bytes.items())
        facts: dict[str, RenderableType] = {
            "file": self.path or "(in memory)",
            "opsets": f"{opsets} (IR version {self.ir_version})",
            "producer": self.producer or "unknown",
            "parameters": f"{self.parameters:,} in {size}" + (f" ({widths})" if widths else ""),
            "nodes": f"{self.nodes:,}",
            "operators": ", ".join(f"{name} {count}" for name, count in self.operators.items()),
            "quantization": ", ".join(f"{name} {count}" for name, count in self.quantization.items()) or "none",
        }
        if self.forecast:
            facts["on a GPU, as it is"] = _forecast(self.forecast)
        if self.functions:
            facts["functions"] = ", ".join(self.functions)
        return Group(_facts(facts), _tensors(self.inputs, self.outputs))


@dataclass(frozen=True)
class BundleView:
    """A summary of a bundle: its manifest and its paths."""

    bundle: Bundle

    def to_json(self) -> dict[str, Any]:
        """As JSON values: the manifest, and the paths."""
        program = self.bundle.program_path
        paths = {"path": str(self.bundle.path), "program_path": str(program) if program else None}
        return {"kind": "bundle", **paths, **self.bundle.manifest.to_json()}

    def render(self, *, verbose: bool = False) -> RenderableType:
        """As lists; with the passes that rewrote something if ``verbose``."""
        from rich.console import Group

        manifest = self.bundle.manifest
        architecture = f" ({manifest.architecture})" if manifest.architecture else ""
        rewrites = sum(each["rewrites"] for each in manifest.passes)
        files = zip(self.bundle.program_paths, manifest.programs, strict=True)
        programs = [f"{path} ({_size(info.bytes)})" for path, info in files]
        facts: dict[str, RenderableType] = {
            "program": Group(*programs or ["none"]),
            "model": str(self.bundle.model_path or "not kept"),
            "source": manifest.source["path"] or "(in memory)",
            "target": f"{manifest.target}{architecture}, MIGraphX {manifest.versions['migraphx']}",
            "passes": f"{len(manifest.passes)}, with {rewrites} rewrites",
            "seconds": ", ".join(f"{stage} {seconds:.3g}" for stage, seconds in manifest.timings.items()),
            manifest.proof.label: manifest.proof.line,
            "made": f"{manifest.created} by onnx-bridge {manifest.versions['onnx_bridge']}",
        }
        facts |= {"partitions": manifest.partition_line} if manifest.partitions else {}
        facts |= {"on a GPU": _forecast(manifest.forecast)} if manifest.forecast else {}
        facts |= {"note": Group(*manifest.notes)} if manifest.notes else {}
        table = ["", pass_table(manifest.passes)] if verbose else []
        return Group(_facts(facts), _tensors(*map(_plain, (manifest.inputs, manifest.outputs))), *table)


def inspect(model: str | os.PathLike[str] | ir.Model) -> ModelView | BundleView | Buckets:
    """Summarize a model or a bundle.

    Raises:
        InputError: it cannot be read.
    """
    if isinstance(model, ir.Model):
        return describe_model(model)
    if has_buckets(model):
        return open_buckets(model)
    if is_bundle(model):
        return describe_bundle(Bundle(model))
    return describe_model(models.load(model), Path(model))


def describe_bundle(bundle: Bundle) -> BundleView:
    """Summarize a bundle."""
    return BundleView(bundle)


def describe_model(model: ir.Model, path: Path | None = None) -> ModelView:
    """Summarize a model; of its weights, only quantization parameters are read."""
    graph = model.graph
    operators = Counter(f"{node.domain}::{node.op_type}" if node.domain else node.op_type for node in _nodes(model))
    parameters, sizes = 0, Counter[str]()
    for tensor in _weights(model):
        parameters += tensor.size
        sizes[_dtype(tensor.dtype)] += tensor.nbytes
    quantization = {
        name: count
        for name, count in operators.most_common()
        if name.rpartition("::")[2] in _QUANTIZING or name.rpartition("::")[2].startswith(_INTEGER)
    }
    return ModelView(
        path=str(path) if path else None,
        ir_version=model.ir_version,
        opsets=dict(model.opset_imports),
        producer=" ".join(filter(None, (model.producer_name, model.producer_version))),
        inputs=[_value(each) for each in graph.inputs if each.name not in graph.initializers],
        outputs=[_value(each) for each in graph.outputs],
        nodes=operators.total(),
        operators=dict(operators.most_common()),
        parameters=parameters,
        parameter_bytes=dict(sizes.most_common()),
        quantization=quantization,
        functions=sorted(f"{each.domain}::{each.name}" for each in model.functions.values()),
        forecast=forecast(model.clone()).to_json() if is_quantized(model) else {},
    )


def _nodes(model: ir.Model) -> Iterator[ir.Node]:
    yield from model.graph.all_nodes()
    for function in model.functions.values():
        yield from function.all_nodes()


def _weights(model: ir.Model) -> Iterator[ir.TensorProtocol]:
    for graph in (model.graph, *model.graph.subgraphs()):
        for value in graph.initializers.values():
            if value.const_value is not None:
                yield value.const_value
    for node in _nodes(model):
        if node.op_type == "Constant" and (attribute := node.attributes.get("value")) is not None:
            yield attribute.as_tensor()


def _value(value: ir.Value) -> dict[str, Any]:
    shape = None
    if value.shape is not None:
        shape = [dim if isinstance(dim, int) else dim.value for dim in value.shape]
    return {"name": value.name, "dtype": _dtype(value.dtype) if value.dtype else None, "shape": shape}


def _dtype(dtype: ir.DataType) -> str:
    """Its name in numpy or ml_dtypes."""
    return "string" if dtype == ir.DataType.STRING else dtype.numpy().name


def _plain(tensors: tuple[TensorInfo, ...]) -> list[dict[str, Any]]:
    return [
        {
            "name": each.name,
            "dtype": each.dtype if each.kind == Kind.TENSOR.value else f"{each.kind} of {each.dtype}",
            "shape": None if each.shape is None else list(each.shape),
        }
        for each in tensors
    ]


def _facts(facts: Mapping[str, RenderableType]) -> RenderableType:
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in facts.items():
        table.add_row(name, value)
    return table


def _tensors(inputs: list[dict[str, Any]], outputs: list[dict[str, Any]]) -> RenderableType:
    table = plain_table("", "name", "dtype", "shape")
    for kind, tensors in (("input", inputs), ("output", outputs)):
        for each in tensors:
            shape = (
                "unknown"
                if each["shape"] is None
                else " × ".join("?" if dim is None else str(dim) for dim in each["shape"])
            )
            table.add_row(kind, each["name"], each["dtype"] or "unknown", shape or "scalar")
    return table


def _forecast(found: dict[str, Any]) -> RenderableType:
    """The kernels, and why quantized products run in float: each reason with the number of products."""
    from rich.console import Group

    lines = [found["summary"]]
    in_float = [each for each in found["products"] if each["quantized"] and each["kernel"] == "float"]
    reasons = Counter(each["condition"] for each in in_float)
    lines += [f"in float: {count} for {condition}" for condition, count in reasons.most_common()]
    lines += [f"wrong: {each['node']}: {each['wrong']}" for each in found["products"] if each["wrong"]]
    return Group(*lines)


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.3g} {unit}" if unit != "B" else f"{count:.0f} B"
        count /= 1024
    return f"{count:.3g} GiB"
