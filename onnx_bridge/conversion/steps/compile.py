"""Step 3: partition the cleaned model, compile the device partitions, and save the programs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from onnx_bridge.bundle.manifest.entries import FileInfo, GpuProgramInfo, SessionInfo
from onnx_bridge.bundle.manifest.text import manifest_path
from onnx_bridge.bundle.requantize import KEPT
from onnx_bridge.conversion.compiling.compiler import Compiler
from onnx_bridge.conversion.compiling.partition import Partitioned, partition
from onnx_bridge.conversion.compiling.tuning_results import ENDING
from onnx_bridge.conversion.precision.precision import BY_CALIBRATION
from onnx_bridge.conversion.precision.quantizer import Quantizer, loads_back
from onnx_bridge.conversion.staging import refuse_to_overwrite
from onnx_bridge.conversion.steps.clean import CleanedModel
from onnx_bridge.conversion.steps.resolve import Plan
from onnx_bridge.core.errors import InputError, MigraphxError
from onnx_bridge.core.files.atomic_write import write_problem
from onnx_bridge.core.progress import Stage
from onnx_bridge.migraphx.gpu.stub import has_all_kernels, stub_version
from onnx_bridge.provider.provider import Session
from onnx_bridge.samples.calibration import Calibration
from passes.builders.arithmetic import HALVES
from passes.probing.partition import Side

WIDENED = (
    "`ref` truncates numbers of 16 bits, which adds up in deep models: its program computes in float32. In 16 bits the "
    "model is compared on ONNX Runtime, rounded after each node"
)
"""The note on a bundle that is widened."""


@dataclass(frozen=True)
class Compiled:
    """A compiled model, whose files are in the staging folder.

    Attributes:
        programs: the files of the device partitions, in order.
        calibration: the samples that it was quantized on; None if it was not quantized.
        samples: the file of the samples, kept if MIGraphX cannot read back a program.
        tuning: the archive of tuning results.
        session: how ONNX Runtime's provider runs the whole; None for programs of MIGraphX.
        served: the session itself.
        gpu_programs: the programs for a GPU elsewhere; empty unless the request names its architecture.
        widened: whether the programs for ``ref`` compute in float32 what the model computes in 16 bits.
    """

    cleaned: CleanedModel
    partitioned: Partitioned
    programs: tuple[FileInfo, ...]
    calibration: Calibration | None
    samples: FileInfo | None
    tuning: FileInfo | None
    notes: tuple[str, ...]
    session: SessionInfo | None = None
    served: Session | None = None
    gpu_programs: tuple[GpuProgramInfo, ...] = ()
    widened: bool = False


def can_widen(cleaned: CleanedModel) -> bool:
    """Return whether a model computes in 16 bits on ``ref``, which truncates each result, and is not quantized there.

    So all errors have one sign, and those of a deep model add up to more than its tolerance. A GPU rounds.
    """
    plan = cleaned.plan
    if plan.target != "ref" or plan.provider is not None or plan.request.precision in BY_CALIBRATION:
        return False
    return any(value.dtype in HALVES for node in cleaned.model.graph for value in node.outputs)


def partition_and_compile(cleaned: CleanedModel, *, widened: bool = False) -> Compiled:
    """Partition, compile and save, within the limits of the request for a GPU elsewhere as well.

    Args:
        cleaned: the model.
        widened: whether the programs for ``ref`` compute in float32 what the model computes in 16 bits.

    Raises:
        InputError: the calibration samples are wrong, or the model does not fit into a single program.
        RuntimeFailure: MIGraphX failed, or a node can be run neither by it nor, if allowed, by ONNX Runtime.
    """
    with contextlib.ExitStack() as limits:
        return _partition_and_compile(cleaned, widened, limits)


def _partition_and_compile(cleaned: CleanedModel, widened: bool, limits: contextlib.ExitStack) -> Compiled:
    plan = cleaned.plan
    with plan.stopwatch(Stage.START):
        plan.worker.start()
    quantizer = None if cleaned.products else plan.precision.quantizer(cleaned.model, plan.target)
    compiler = Compiler(
        cleaned.model,
        plan.worker,
        plan.target,
        cleaned.path,
        quantizer,
        plan.options.compile,
        plan.stopwatch,
        widened=widened,
    )
    partitioned = partition(
        cleaned.model,
        cleaned.verdicts,
        host=plan.request.host,
        one_program=plan.program_only,
        compiler=compiler,
        ladder=plan.ladder,
        elsewhere=_elsewhere(plan, compiler, limits),
    )
    if partitioned.error is not None:
        raise partitioned.error
    if plan.program_only and not partitioned.plan.wholly_on_device:
        what = f"the model does not fit into a single program: {partitioned.notes[0]}"
        raise InputError(what, where=str(plan.out), hint="give a folder")
    names = _program_names(plan, partitioned)
    archive = f"{plan.out.stem if plan.program_only else plan.source.name}{ENDING}"
    parent = manifest_path(plan.out).parent
    files = (*names.values(), *_gpu_names(plan, names), archive)
    refuse_to_overwrite([parent / name for name in files], plan.source.given, plan.out)
    with plan.stopwatch(Stage.SAVE):
        for program, name in zip(filter(None, partitioned.programs), names.values(), strict=True):
            try:
                program.save(plan.folder / name)
            except MigraphxError as error:  # which says no more than that it could not write
                if (problem := write_problem(plan.folder)) is None:
                    raise
                raise InputError(f"the program cannot be written: {problem}", where=str(plan.out)) from error
        programs = tuple(FileInfo.of(plan.folder / name) for name in names.values())
        samples = _keep_samples(plan, partitioned, names, quantizer) if quantizer else None
        tuning = plan.tuning.keep(plan.folder / archive)
    gpu_programs = _save_for_gpu(partitioned, _gpu_names(plan, names), plan)
    by_model = cleaned.products.calibration if cleaned.products else None
    calibration = quantizer.calibration if quantizer else by_model
    notes = [*(quantizer.notes if quantizer else ()), *partitioned.notes, *plan.tuning.notes]
    notes += [program.note for program in gpu_programs] + [WIDENED] * widened
    return Compiled(
        cleaned,
        partitioned,
        programs,
        calibration,
        samples,
        tuning,
        tuple(notes),
        gpu_programs=gpu_programs,
        widened=widened,
    )


def _gpu_names(plan: Plan, names: Mapping[int, str]) -> list[str]:
    """Return the files of the programs for a GPU elsewhere: ``NAME.gfx942.mxr`` beside ``NAME.mxr``."""
    if plan.gpu_compiler is None:
        return []
    return [str(Path(name).with_suffix(f".{plan.gpu_compiler.architecture.name}.mxr")) for name in names.values()]


def _elsewhere(
    plan: Plan, compiler: Compiler, limits: contextlib.ExitStack
) -> Callable[[Mapping[str, str]], Compiler] | None:
    """Return what makes the compiler for a GPU elsewhere; None if none is wanted."""
    gpu = plan.gpu_compiler
    if gpu is None:
        return None

    def made(environment: Mapping[str, str]) -> Compiler:
        other = compiler.elsewhere(gpu, environment)
        limits.enter_context(other.worker.limited(plan.request.limits))
        return other

    return made


def _save_for_gpu(partitioned: Partitioned, names: list[str], plan: Plan) -> tuple[GpuProgramInfo, ...]:
    """Save the programs for a GPU elsewhere."""
    gpu, programs = plan.gpu_compiler, []
    for program, name in zip(partitioned.elsewhere, names, strict=gpu is not None):
        assert gpu is not None
        assert program is not None
        program.save(plan.folder / name)
        info, complete = FileInfo.of(plan.folder / name), has_all_kernels(plan.folder / name)
        programs.append(GpuProgramInfo(info, gpu.architecture.name, gpu.made_by, stub_version(), complete))
    return tuple(programs)


def _program_names(plan: Plan, partitioned: Partitioned) -> dict[int, str]:
    """Return the files of the device partitions, by index: ``NAME.mxr``, or, if several, ``NAME.partition0.mxr``, …."""
    indices = [index for index, partition in enumerate(partitioned.plan.partitions) if partition.side is Side.DEVICE]
    if plan.program_only:
        return {indices[0]: plan.out.name}
    name = plan.source.name
    if len(indices) == 1:
        return {indices[0]: f"{name}.mxr"}
    return {index: f"{name}.partition{index}.mxr" for index in indices}


def _keep_samples(
    plan: Plan, partitioned: Partitioned, names: Mapping[int, str], quantizer: Quantizer
) -> FileInfo | None:
    """Write the samples of the programs that MIGraphX cannot read back, to quantize them again."""
    lost = {
        index: [str(value.name) for value in partitioned.plan.partitions[index].inputs]
        for index, name in names.items()
        if not loads_back(plan.worker, plan.folder / name)
    }
    if not lost:
        return None
    if plan.program_only:
        what = f"MIGraphX cannot read back its own {quantizer.precision} program, which needs the model to be remade"
        raise InputError(what, where=plan.out.name, hint="give a folder")
    path: Path = plan.folder / KEPT
    quantizer.save_samples(path, lost)
    return FileInfo.of(path)
