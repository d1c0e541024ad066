"""What a manifest says of a conversion: its inputs, outputs, partitions and versions."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from importlib import metadata

import onnx_ir as ir

from onnx_bridge.bundle.manifest import FileInfo, HostNode, PartitionInfo, TensorInfo
from onnx_bridge.conversion.partition import Partitioned
from onnx_bridge.core.version import VERSION
from onnx_bridge.migraphx.program import Shape
from onnx_bridge.migraphx.worker import Worker
from passes.target.partition import Partition, Side


def required_inputs(model: ir.Model) -> list[ir.Value]:
    """Those without a default."""
    return [value for value in model.graph.inputs if value.name not in model.graph.initializers]


def output_infos(values: Iterable[ir.Value], partitioned: Partitioned) -> tuple[TensorInfo, ...]:
    """Dtypes and shapes as the model declares them; what it leaves open of MIGraphX's, as that will give it."""
    given: dict[ir.Value, Shape] = {}
    for each, program in zip(partitioned.plan.partitions, partitioned.programs, strict=True):
        if program is not None:
            given |= dict(zip(each.outputs, program.get_output_shapes(), strict=True))
    infos = []
    for value in values:
        info, shape = TensorInfo.of(value), given.get(value)
        if shape is not None and info.dtype == "unknown":
            info = replace(info, dtype=shape.dtype.name)
        if shape is not None and (info.shape is None or None in info.shape):
            info = replace(info, shape=shape.lens)
        infos.append(info)
    return tuple(infos)


def partition_infos(partitioned: Partitioned, programs: Iterable[FileInfo]) -> Iterator[PartitionInfo]:
    """The partitions; ``programs`` are the files of those of MIGraphX, in order."""
    plan, files = partitioned.plan, iter(programs)
    for each in plan.partitions:
        yield PartitionInfo(
            inputs=tuple(map(TensorInfo.of, each.inputs)),
            outputs=output_infos(each.outputs, partitioned),
            nodes=len(each.nodes),
            work=sum(plan.work[node] for node in each.nodes),
            program=next(files) if each.side is Side.DEVICE else None,
            host=tuple(
                HostNode(str(node.name), f"{node.domain}::{node.op_type}" if node.domain else node.op_type, reason)
                for node in each.nodes
                if (reason := plan.reasons.get(node)) is not None
            ),
        )


def program_names(name: str, partitions: Sequence[Partition]) -> list[str]:
    """``NAME.mxr``, or, of several programs, ``NAME.partition0.mxr``, ``NAME.partition2.mxr``, by their places."""
    places = [index for index, each in enumerate(partitions) if each.side is Side.DEVICE]
    return [f"{name}.mxr"] if len(places) == 1 else [f"{name}.partition{index}.mxr" for index in places]


def versions(worker: Worker) -> dict[str, str]:
    """Of all that took part."""
    libraries = {name: metadata.version(name) for name in ("onnx", "onnx-ir", "onnxruntime", "numpy")}
    return {
        "onnx_bridge": VERSION,
        "migraphx": worker.version,
        "runtime": worker.runtime.identity,
        "python": platform.python_version(),
        **libraries,
    }
