"""Files for viewers of graphs: overlays for Google's Model Explorer, and the partitions as a graph for Netron.

An overlay (Model Explorer's *node data*) gives a value and a colour to nodes by their names in an ONNX file.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

import onnx
import onnx_ir as ir
from onnx import helper

from onnx_bridge.bundle.bundle import Bundle, is_bundle
from onnx_bridge.bundle.manifest.entries import PartitionInfo, TensorInfo
from onnx_bridge.bundle.manifest.manifest import Manifest
from onnx_bridge.conversion.diagnosis.diagnosis import Diagnosis, PlannedAction
from onnx_bridge.conversion.diagnosis.doctor import doctor
from onnx_bridge.core.files.atomic_write import write_bytes, write_text
from onnx_bridge.core.progress import Progress
from onnx_bridge.core.values import Kind
from onnx_bridge.parity.checking.check import run
from onnx_bridge.parity.layers.report import LayerReport
from onnx_bridge.requests.parity import CheckRequest

_GOOD, _CHANGED, _HOST, _BAD = "#b7e1c0", "#bcd6f5", "#f5dfa6", "#f5b5ba"
_ACTIONS = {PlannedAction.REWRITTEN: _CHANGED, PlannedAction.REMOVED: _CHANGED, PlannedAction.HOST: _HOST}
_MOST = 1e30
"""The error, as a multiple of the tolerance, of what differs by more, or by no number."""


def model_explorer(
    model: str | os.PathLike[str] | ir.Model, folder: str | os.PathLike[str], *, progress: Progress | None = None
) -> list[Path]:
    """Write overlays for Model Explorer, and a bundle's partitions for Netron.

    MIGraphX is asked about every node of a model, as by `doctor`, or for the error of every node of a bundle, as by
    `check` with ``layers``.

    Args:
        model: an ONNX file, a bundle, or a model in memory.
        folder: the folder of the files.
        progress: is called with each stage.

    Returns:
        The files.

    Raises:
        InputError: the model cannot be read, or a file cannot be written.
        RuntimeFailure: as for `doctor` and `check`.
    """
    if isinstance(model, ir.Model) or not is_bundle(model):
        return _write_diagnosis(Path(folder), doctor(model, progress=progress))
    bundle = Bundle(model)
    single = not bundle.manifest.dims and bundle.manifest.decoder is None
    layers = run(bundle, CheckRequest(layers=True), progress).layers if single else None
    return _write_bundle(Path(folder), bundle.manifest, layers)


def _write_diagnosis(folder: Path, diagnosis: Diagnosis) -> list[Path]:
    """Write overlays of a model: the verdict on each node, and the planned action."""
    verdicts = {node.name: (node.verdict, _GOOD if node.passed else _BAD) for node in diagnosis.nodes}
    actions = {node.name: (str(node.action), _ACTIONS.get(node.action, _GOOD)) for node in diagnosis.nodes}
    return [_overlay(folder, "verdict", verdicts), _overlay(folder, "planned action", actions)]


def _write_bundle(folder: Path, manifest: Manifest, layers: LayerReport | None) -> list[Path]:
    """Write the partitions of a bundle, and overlays of its ONNX file: the side and the errors of each node."""
    partitions = folder / "partitions.onnx"
    folder.mkdir(exist_ok=True)
    write_bytes(partitions, _partitions(manifest).SerializeToString())
    if layers is None:
        return [partitions]
    sides = {row.node: (row.runs_on, _GOOD if row.runs_on == "MIGraphX" else _HOST) for row in layers.rows}
    overlays = [_overlay(folder, "runs on", sides)]
    for kind in ("local", "accumulated"):
        errors: dict[str, float] = {}
        for row in layers.rows:
            error = getattr(row, kind)
            if error is not None:
                severity = error.severity if math.isfinite(error.severity) else _MOST
                errors[row.node] = max(errors.get(row.node, 0.0), min(severity, _MOST))
        judged = {node: (error, _GOOD if error <= 1 else _BAD) for node, error in errors.items()}
        overlays.append(_overlay(folder, f"{kind} error of tolerance", judged))
    return [partitions, *overlays]


def _overlay(folder: Path, name: str, values: Mapping[str, tuple[str | float, str]]) -> Path:
    """Write one overlay: a value and a colour by node."""
    results = {node: {"value": value, "bgColor": colour} for node, (value, colour) in values.items()}
    folder.mkdir(exist_ok=True)
    path = folder / f"{name.replace(' ', '-')}.json"
    write_text(path, json.dumps({"name": name, "results": results}, indent=1))
    return path


def _partitions(manifest: Manifest) -> onnx.ModelProto:
    """Return a model with a node for each partition, whose operator is what runs it."""
    nodes = [_node(partition, number) for number, partition in enumerate(manifest.partitions)]
    inner = (info for partition in manifest.partitions for info in partition.outputs)
    inputs, outputs = _values(manifest.inputs), _values(manifest.outputs)
    graph = helper.make_graph(nodes, f"partitions of {manifest.name}", inputs, outputs, value_info=_values(inner))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("onnx_bridge", 1)])


def _node(partition: PartitionInfo, number: int) -> onnx.NodeProto:
    inputs, outputs = ([info.name for info in tensors] for tensors in (partition.inputs, partition.outputs))
    node = helper.make_node(partition.runs_on, inputs, outputs, name=f"partition {number}", domain="onnx_bridge")
    reasons = [f"{host.operator} {host.node}: {host.reason}" for host in partition.host]
    facts = {"nodes": partition.nodes, "multiply_adds": partition.work, **({"reasons": reasons} if reasons else {})}
    node.attribute.extend(helper.make_attribute(name, fact) for name, fact in facts.items())
    return node


def _values(tensors: Iterable[TensorInfo]) -> list[onnx.ValueInfoProto]:
    """Return the types of tensors; only the names of what is no tensor, or has no known type."""
    values = []
    for info in tensors:
        if info.kind == Kind.TENSOR.value and info.dtype != "unknown":
            dtype = helper.np_dtype_to_tensor_dtype(info.numpy)
            values.append(helper.make_tensor_value_info(info.name, dtype, info.shape))
        else:
            values.append(helper.make_empty_tensor_value_info(info.name))
    return values
