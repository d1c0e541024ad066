"""Step 1: resolve a request on this machine, and acquire the resources of the conversion."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from onnx_bridge.bundle.manifest.text import manifest_path
from onnx_bridge.conversion.compiling.retry import Ladder
from onnx_bridge.conversion.compiling.tuning_results import Origin, TuningResults
from onnx_bridge.conversion.keys import cleaning_key
from onnx_bridge.conversion.precision.precision import Precision
from onnx_bridge.conversion.source import Source
from onnx_bridge.conversion.staging import refuse_to_overwrite, staging_folder
from onnx_bridge.conversion.stopwatch import Stopwatch
from onnx_bridge.core.background import Background
from onnx_bridge.core.errors import InputError
from onnx_bridge.core.progress import Progress
from onnx_bridge.migraphx import runtime as runtimes
from onnx_bridge.migraphx import worker as workers
from onnx_bridge.migraphx.compile_options import CompileOptions
from onnx_bridge.migraphx.gpu.compiler import GpuCompiler
from onnx_bridge.migraphx.gpu.rehearse import rehearsal
from onnx_bridge.migraphx.rehearsal.depth import Rehearsal
from onnx_bridge.migraphx.runtime import Runtime
from onnx_bridge.migraphx.targets import resolve_target, target_architecture
from onnx_bridge.migraphx.worker import Worker
from onnx_bridge.provider import provider as providers
from onnx_bridge.provider.provider import Provider
from onnx_bridge.reference import evaluations
from onnx_bridge.requests.conversion import ConvertRequest
from passes.core.doubts import Doubts
from passes.rewriting.pipeline import Pipeline


@dataclass(frozen=True)
class Plan:
    """A conversion that is ready to run.

    Attributes:
        out: the folder of the bundle, or its program (``.mxr``).
        folder: the staging folder, whose files become the bundle.
        target: ``ref`` or ``gpu``.
        rehearsal: a rehearsal of the gpu target in which nodes must be right as well.
        provider: ONNX Runtime's provider, if the model is for it.
        pipeline: the pipeline of the request, without the passes for shapes and precision.
        options: compile options, with the variables of MIGraphX's process.
        tuning: the tuning results to start from and to keep.
        worker: MIGraphX's process.
        ladder: the attempts after MIGraphX crashes, hangs or runs out of memory.
        stopwatch: announces and times the stages.
        background: a thread for hashing.
        doubts: whether anything has failed since for the state of the machine.
    """

    request: ConvertRequest
    source: Source
    out: Path
    folder: Path
    runtime: Runtime
    target: str
    rehearsal: Rehearsal | None
    provider: Provider | None
    pipeline: Pipeline
    precision: Precision
    options: CompileOptions
    tuning: TuningResults
    worker: Worker
    ladder: Ladder
    stopwatch: Stopwatch
    background: Background
    doubts: Doubts = field(default_factory=Doubts)

    @property
    def program_only(self) -> bool:
        """True if the bundle is a single program with its manifest."""
        return self.out.suffix == ".mxr"

    @property
    def gpu_compiler(self) -> GpuCompiler | None:
        """The compiler for a GPU elsewhere, if the request names its architecture."""
        return self.rehearsal if isinstance(self.rehearsal, GpuCompiler) else None

    @property
    def environment(self) -> Mapping[str, str]:
        """The variables of MIGraphX's process."""
        return self.worker.environment

    @cached_property
    def cleaning_key(self) -> str | None:
        """The content key of the cleaned model; waits until the source is hashed."""
        return cleaning_key(self.source.digest, self.request, self.runtime, self.pipeline)


@contextlib.contextmanager
def resolve(source: Source, out: Path, request: ConvertRequest, progress: Progress | None) -> Iterator[Plan]:
    """Find the runtime, check the request against it, and start the worker.

    Raises:
        InputError: the model or the request is wrong, or ``out`` cannot be written.
        RuntimeNotFound: there is no MIGraphX for the target, or the gpu target cannot be rehearsed here.
    """
    doubts, runtime = Doubts(), runtimes.find(request.runtime)
    target = resolve_target(request.target, runtime)
    passes = rehearsal(request.rehearsed, runtime)
    if isinstance(passes, GpuCompiler) and out.suffix == ".mxr":
        what = f"a program for {passes.architecture.name} is proven by one for ref beside it"
        raise InputError(what, where=str(out), hint="give a folder")
    provider = providers.shared(runtime=runtime) if request.application else None
    options = CompileOptions.of(request.options, runtime, target)
    origin = Origin(target, target_architecture(target), runtime.version)
    in_model = request.quantizes_model(origin.architecture)
    precision = Precision(request.precision, request.keep_fp32, request.calibration, in_model)
    tuning = TuningResults(options.tuning, origin)
    worker = workers.shared(runtime, {**options.environment, **tuning.environment})
    worker.launch()  # it starts while the model is cleaned
    if provider is not None:
        provider.launch()
    if request.prove != "never":
        evaluations.launch()
    limits = request.limits
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(staging_folder(out))
        stack.enter_context(tuning)
        if tuning.environment:
            stack.callback(worker.close)  # its environment is of no use to other conversions
        stack.enter_context(worker.limited(limits))
        ladder = stack.enter_context(Ladder(runtime, target, limits, worker.environment))
        background = stack.enter_context(Background())
        folder_files = [out / f"{source.name}{ending}" for ending in (".mxr", ".onnx", ".onnx.data")]
        files = [out] if out.suffix == ".mxr" else folder_files
        refuse_to_overwrite([*files, manifest_path(out)], source.given, out)
        if provider is not None and out.suffix == ".mxr":
            raise InputError("a model for ONNX Runtime needs a folder", where=str(out), hint="give -o a folder")
        if request.precision != "fp32":
            precision.check_runtime(worker)
        pipeline = Pipeline.parse(request.pipeline)
        source.hash(background)
        yield Plan(
            request=request,
            source=source,
            out=out,
            folder=folder,
            runtime=runtime,
            target=target,
            rehearsal=passes,
            provider=provider,
            pipeline=pipeline,
            precision=precision,
            options=options,
            tuning=tuning,
            worker=worker,
            ladder=ladder,
            stopwatch=Stopwatch(progress),
            background=background,
            doubts=doubts,
        )
