"""Step 4: describe the bundle in its manifest."""

from __future__ import annotations

import datetime
import platform
from collections.abc import Iterable, Iterator
from dataclasses import replace
from importlib import metadata
from typing import Any

import onnx_ir as ir

from onnx_bridge.bundle.manifest.entries import (
    CalibrationInfo,
    CleaningInfo,
    HostNode,
    PartitionInfo,
    ProgramInfo,
    TensorInfo,
)
from onnx_bridge.bundle.manifest.manifest import Manifest
from onnx_bridge.conversion.compiling.partition import Partitioned
from onnx_bridge.conversion.keys import conversion_key
from onnx_bridge.conversion.precision.quantized_products import with_pairs
from onnx_bridge.conversion.steps.compile import Compiled
from onnx_bridge.core.files.code_digest import LIBRARIES
from onnx_bridge.core.progress import Stage
from onnx_bridge.core.version import VERSION
from onnx_bridge.migraphx.compile_options import recorded
from onnx_bridge.migraphx.program import Shape
from onnx_bridge.migraphx.targets import target_architecture
from onnx_bridge.migraphx.worker import Worker
from onnx_bridge.model.classes import classes_of
from onnx_bridge.model.int8_forecast import forecast
from onnx_bridge.reference import ops_libraries
from onnx_bridge.samples.dimensions import Dim, dims_of
from onnx_bridge.samples.inferred_roles import index_bounds
from passes.cleanup.inline_functions import inlined
from passes.graphs.cost import has_known_work
from passes.graphs.quantization import is_quantized
from passes.graphs.scopes import required_inputs
from passes.probing.partition import Side

_LISTED = 10
"""The number of classes that a note lists."""


def describe(compiled: Compiled) -> Manifest:
    """Return the manifest of a compiled model."""
    cleaned, partitioned = compiled.cleaned, compiled.partitioned
    plan, model, calibration = cleaned.plan, cleaned.model, compiled.calibration
    plan.stopwatch.progress(Stage.FINISH)
    key = conversion_key(plan.cleaning_key, plan.request, plan.runtime, target=plan.target, calibration=calibration)
    # the cleaned model cannot be reused if its products were quantized, without a key, or if it may be better next time
    reusable = plan.cleaning_key if key and not (cleaned.products or plan.doubts or plan.provider) else None
    inputs = _inputs(model, plan.source.view())
    classes = classes_of(model.metadata_props)
    infos = _outputs(model.graph.outputs, partitioned)
    outputs = tuple(replace(info, classes=tuple(classes.get(info.name, ()))) for info in infos)
    program = ProgramInfo(
        dims={},
        inputs=inputs,
        outputs=outputs,
        partitions=tuple(_partitions(compiled, inputs, outputs)),
        model=tuple(file.result() for file in cleaned.files),
        pipeline=cleaned.results.pipeline,
        passes=cleaned.results.passes,
        environment=recorded({**plan.options.environment, **partitioned.environment}),
        forecast=_forecast(compiled),
        calibration=CalibrationInfo(calibration.source, calibration.count, compiled.samples) if calibration else None,
        tuning=compiled.tuning,
        cleaning=CleaningInfo(reusable, cleaned.results.notes) if reusable else None,
        widened=compiled.widened,
    )
    return Manifest(
        name=plan.source.name,
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        source=plan.source.to_json(),
        key=key,
        request=plan.request,
        model=program.model,
        target=plan.target,
        architecture=target_architecture(plan.target),
        versions=_versions(plan.worker)
        | ({} if plan.provider is None else {"onnxruntime-migraphx": plan.provider.environment.version}),
        inputs=inputs,
        outputs=outputs,
        programs=(program,),
        timings=plan.stopwatch.seconds,
        notes=_notes(compiled),
        chosen=cleaned.results.chosen,
    )


def _notes(compiled: Compiled) -> list[str]:
    plan = compiled.cleaned.plan
    notes = [*compiled.cleaned.notes, *compiled.notes]
    for name, classes in classes_of(compiled.cleaned.model.metadata_props).items():
        listed = ", ".join(map(str, classes[:_LISTED])) + (", …" if len(classes) > _LISTED else "")
        notes.append(f"{name}: the scores of the classes {listed}, as columns of an array instead of maps")
    if plan.rehearsal is not None and plan.provider is None and not compiled.gpu_programs:
        notes.append(plan.rehearsal.note)
    if compiled.partitioned.environment and not plan.program_only:
        model = plan.out / f"{plan.source.name}.onnx"
        command = f"onnx-bridge reduce {model} -o reduced --pipeline none"
        notes.append(f"`{command}` reduces the model to what MIGraphX fails on, for a bug report")
    return notes


def _forecast(compiled: Compiled) -> dict[str, Any]:
    """Return the kernels of a model that is quantized, or whose programs MIGraphX has quantized; empty for others."""
    model, request = compiled.cleaned.model, compiled.cleaned.plan.request
    architecture = target_architecture(request.target)
    if is_quantized(model):
        return forecast(model, _on_gpu(compiled), architecture).to_json()
    if compiled.calibration is None:
        return {}
    quantized = with_pairs(model, request.precision)
    return replace(forecast(quantized, _on_gpu(compiled), architecture), lost=()).to_json()


def _on_gpu(compiled: Compiled) -> set[str]:
    """Return the names of the nodes that a GPU computes; in sessions, of those that ONNX Runtime's provider takes."""
    plan = compiled.partitioned.plan
    if compiled.session is None:
        return plan.on_device
    return {str(node.name) for node in plan.work.keys() - plan.reasons.keys()}


def _inputs(model: ir.Model, source: ir.Model) -> tuple[TensorInfo, ...]:
    """Return the inputs of the cleaned model, with the bounds that the operators of the source give them."""
    infos = {str(value.name): TensorInfo.of(value) for value in required_inputs(model)}
    values = [value for value in inlined(source).graph.inputs if value.name in infos]
    sizes: dict[Dim, int] = {}
    for value in values:
        pairs = zip(dims_of(value) or (), infos[str(value.name)].shape or (), strict=False)
        sizes |= {dim: size for dim, size in pairs if isinstance(size, int)}
    bounds = {str(value.name): index_bounds(value, sizes) for value in values}
    return tuple(replace(info, bounds=bounds.get(name, ())) for name, info in infos.items())


def _outputs(values: Iterable[ir.Value], partitioned: Partitioned) -> tuple[TensorInfo, ...]:
    """Return dtypes and shapes as the model declares them; otherwise as MIGraphX infers them."""
    inferred: dict[ir.Value, Shape] = {}
    for partition, program in zip(partitioned.plan.partitions, partitioned.programs, strict=True):
        if program is not None:
            inferred |= dict(zip(partition.outputs, program.get_output_shapes(), strict=True))
    infos = []
    for value in values:
        info, shape = TensorInfo.of(value), inferred.get(value)
        if shape is not None and info.dtype == "unknown":
            info = replace(info, dtype=shape.dtype.name)
        if shape is not None and (info.shape is None or None in info.shape):
            info = replace(info, shape=shape.lens)
        infos.append(info)
    return tuple(infos)


def _partitions(
    compiled: Compiled, inputs: tuple[TensorInfo, ...], outputs: tuple[TensorInfo, ...]
) -> Iterator[PartitionInfo]:
    """Yield the partitions; a single program has the inputs and outputs of the model, the unused ones as well."""
    partitioned, plan, files = compiled.partitioned, compiled.partitioned.plan, iter(compiled.programs)
    gpu_programs = iter(compiled.gpu_programs)
    whole = plan.is_one_program
    for partition in plan.partitions:
        yield PartitionInfo(
            inputs=inputs if whole else tuple(map(TensorInfo.of, partition.inputs)),
            outputs=outputs if whole else _outputs(partition.outputs, partitioned),
            nodes=len(partition.nodes),
            work=sum(plan.work[node] for node in partition.nodes),
            unknown=sum(not has_known_work(node) for node in partition.nodes),
            session=compiled.session,
            program=next(files) if partition.side is Side.DEVICE else None,
            gpu=next(gpu_programs, None) if partition.side is Side.DEVICE else None,
            host=tuple(
                HostNode(str(node.name), f"{node.domain}::{node.op_type}" if node.domain else node.op_type, reason)
                for node in partition.nodes
                if (reason := plan.reasons.get(node)) is not None
            ),
        )


def _versions(worker: Worker) -> dict[str, str]:
    libraries = {name: metadata.version(name) for name in LIBRARIES}
    return {
        "onnx_bridge": VERSION,
        "migraphx": worker.version,
        "runtime": worker.runtime.identity,
        "python": platform.python_version(),
        **libraries,
        **ops_libraries.recorded(),
    }
