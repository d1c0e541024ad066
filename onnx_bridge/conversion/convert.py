"""The main job: one model in, one bundle out."""

from __future__ import annotations

import contextlib
import datetime
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import onnx_ir as ir

from onnx_bridge.bundle.bundle import Bundle, manifest_path
from onnx_bridge.bundle.manifest import FileInfo, Manifest, TensorInfo
from onnx_bridge.conversion.clean import clean
from onnx_bridge.conversion.describe import output_infos, partition_infos, program_names, required_inputs, versions
from onnx_bridge.conversion.keys import cleaning_key, conversion_key
from onnx_bridge.conversion.partition import completed, partition
from onnx_bridge.conversion.precision import KEPT, Precision, Quantizer, loads_back
from onnx_bridge.conversion.precision import recorded as calibration_of
from onnx_bridge.conversion.publish import aside, keep_off, publish
from onnx_bridge.conversion.request import ConvertRequest, as_json, as_shapes
from onnx_bridge.conversion.retry import Ladder
from onnx_bridge.conversion.reuse import CleanModel, earlier, recorded
from onnx_bridge.conversion.tuning_results import ENDING, Origin, TuningResults
from onnx_bridge.core.errors import InputError
from onnx_bridge.core.progress import Progress, Stage, silent
from onnx_bridge.core.values import Array
from onnx_bridge.migraphx import runtime as runtimes
from onnx_bridge.migraphx import worker as workers
from onnx_bridge.migraphx.compile_options import CompileOptions
from onnx_bridge.migraphx.limits import Limits
from onnx_bridge.migraphx.targets import gpu_architecture, resolve_target
from onnx_bridge.migraphx.worker import Worker
from onnx_bridge.model import io as models
from onnx_bridge.model.int8_forecast import forecast
from onnx_bridge.samples.files import SampleSource
from onnx_bridge.verdicts.probed_runtime import SECONDS, ProbedRuntime
from passes.analysis.quantization import is_quantized
from passes.target.partition import Partition, Side


def convert(
    model: str | os.PathLike[str] | ir.Model,
    out: str | os.PathLike[str],
    *,
    target: str = "auto",
    pipeline: str = "default",
    dims: Mapping[str, int] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    freeze: Mapping[str, Array | str] | None = None,
    host: bool = True,
    cache: bool = True,
    precision: str = "fp32",
    calibration: SampleSource | None = None,
    keep_fp32: Sequence[str] = (),
    options: Mapping[str, bool | str] | None = None,
    timeout: float | None = None,
    memory: float | None = None,
    runtime: str | None = None,
    reuse: bool = True,
    progress: Progress | None = None,
) -> Bundle:
    """Clean a model, compile it with MIGraphX, and write the bundle.

    What MIGraphX cannot run becomes partitions of the bundle that ONNX Runtime runs; a note says which nodes and why.
    What is in ``out`` changes only once everything is there; an earlier bundle there is replaced as a whole.

    Args:
        model: an ONNX file, or a model in memory, which is left as it is.
        out: a folder, or a name ending in ``.mxr`` for the program alone (the manifest goes beside it).
        target: ``gpu``, ``ref``, or ``auto``: gpu where there is one.
        pipeline: the passes, as a specification or the name of a pipeline.
        dims: sizes of symbolic dimensions by name; those left open become 1, as MIGraphX reads them.
        shapes: whole shapes by input name.
        freeze: inputs that become constant, by name: an array, or a value as JSON.
        host: whether nodes may run on ONNX Runtime; if not, one that would have to is an error.
        cache: whether to use what MIGraphX said of nodes in earlier runs.
        precision: what to compute in: fp32, fp16, bf16, int8 or fp8 (see `onnx_bridge.conversion.precision`).
        calibration: for int8 and fp8, the data that ranges are measured on (see `onnx_bridge.samples.calibration`);
        default:
            seeded samples, which a note says.
        keep_fp32: operators, and for fp16 and bf16 nodes, that stay in float32.
        options: of compiling, by name (see `onnx_bridge.migraphx.compile_options`).
        timeout: most seconds that MIGraphX may take for each of parsing, compiling and saving.
        memory: most GiB that MIGraphX's process may take.
        runtime: which MIGraphX (see `onnx_bridge.migraphx.runtime.find`).
        reuse: whether to take the cleaned model of an earlier bundle in ``out``, where nothing that cleaning depends
            on has changed; without ``cache`` it is not taken either.
        progress: told each stage as it begins.

    Raises:
        InputError: the model or an argument is wrong, or ``out`` cannot be written.
        RuntimeFailure: there is no MIGraphX, or it ran into a limit; or a node can be run neither by it nor, if that
            is allowed, by ONNX Runtime.
    """
    request = ConvertRequest(
        target=target,
        pipeline=pipeline,
        dims=dict(dims or {}),
        shapes=as_shapes(shapes),
        freeze=as_json(freeze),
        host=host,
        cache=cache,
        precision=precision,
        calibration=calibration,
        keep_fp32=tuple(keep_fp32),
        options=dict(options or {}),
        timeout=timeout,
        memory=memory,
        runtime=runtime,
        reuse=reuse,
    )
    return run(model, Path(out), request, progress)


def run(
    model: str | os.PathLike[str] | ir.Model, out: Path, request: ConvertRequest, progress: Progress | None = None
) -> Bundle:
    """Convert a model as a request says; errors are those of `convert`."""
    found = runtimes.find(request.runtime)
    target = resolve_target(request.target, found)
    wanted = Precision(request.precision, request.keep_fp32, request.calibration)
    settings = CompileOptions.of(request.options, found, target)
    tuned = TuningResults(
        settings.tuning, Origin(target, gpu_architecture() if target == "gpu" else None, found.version)
    )
    given_environment = settings.environment
    settings = replace(settings, environment={**given_environment, **tuned.environment})
    worker = workers.shared(found, settings.environment)
    worker.launch()  # it gets ready while the model is cleaned
    limits = Limits.of(request.timeout, request.memory)
    timed = _Clock(progress)
    name, alone = _name(model), out.suffix == ".mxr"
    files = [out] if alone else [out / f"{name}{ending}" for ending in (".mxr", ".onnx", ".onnx.data")]
    with (
        aside(out) as folder,
        tuned,
        contextlib.closing(worker) if tuned.environment else contextlib.nullcontext(),  # nobody shares it
        worker.limited(limits),
        Ladder(found, target, limits, settings.environment) as ladder,
        ThreadPoolExecutor(1) as beside,  # hashing goes on beside MIGraphX's work
    ):
        keep_off([*files, manifest_path(out)], model, out)
        if request.precision != "fp32":
            wanted.check_runtime(worker)
        source = beside.submit(_source, model)
        patience = {} if request.timeout is None or request.timeout >= SECONDS else {"timeout": request.timeout}
        verdicts = ProbedRuntime(found, cache=request.cache, progress=progress, compile_for=target, **patience)

        def cleaning() -> str | None:
            return cleaning_key(
                source.result()["sha256"],
                pipeline=request.pipeline,
                dims=request.dims,
                shapes=request.shapes,
                freeze=request.freeze,
                runtime=found,
                precision=wanted.to_json(),
            )

        cleaned = None
        if request.reuse and request.cache and recorded(out) is not None:
            with timed(Stage.REUSE):
                cleaned = earlier(out, name, cleaning())
        if cleaned is None:
            timed.seconds.pop(Stage.REUSE.value, None)
            with timed(Stage.CLEAN):
                made = clean(
                    model,
                    pipeline=_with_precision(request.pipeline, wanted, model),
                    dims=request.dims,
                    shapes=request.shapes,
                    freeze=request.freeze,
                    default_dim=1,
                    target=verdicts,
                    progress=progress,
                )
                cleaned = CleanModel.of(made, request.precision)
                _check_ranks(cleaned.model)
        products = wanted.quantized_products(cleaned.model)
        if products is not None:
            cleaned = replace(cleaned, model=products.model, files=(), notes=[*cleaned.notes, *products.notes])
        with timed(Stage.WRITE):
            onnx_path = folder / f"{name}.onnx"
            completed(cleaned.model)
            try:
                cleaned.write(onnx_path)
            except InputError as error:  # names the file that was not to be
                raise InputError(error.what, where=str(out), hint=error.hint) from error
            onnx_files = sorted(folder.iterdir())  # the model sorts before its data
            infos = [beside.submit(FileInfo.of, each) for each in onnx_files if not alone]
        with timed(Stage.START):
            worker.start()
        quantizer = None if products else wanted.quantizer(cleaned.model, target)
        calibrated = products or quantizer
        partitioned = partition(
            cleaned.model,
            verdicts,
            host=request.host,
            compile_for=target,
            path=onnx_path,
            timed=timed,
            ladder=ladder,
            quantize=quantizer,
            options=settings,
        )
        if partitioned.error is not None:
            raise partitioned.error
        whole = partitioned.plan.wholly_on_device
        if not whole and alone:
            what = f"the model does not fit into a program alone: {partitioned.notes[0]}"
            raise InputError(what, where=str(out), hint="give a folder, or --no-host")
        names = [out.name] if alone else program_names(name, partitioned.plan.partitions)
        archive = f"{out.stem if alone else name}{ENDING}"
        keep_off([(out.parent if alone else out) / each for each in (*names, archive)], model, out)
        with timed(Stage.SAVE):
            for program, file in zip(filter(None, partitioned.programs), names, strict=True):
                program.save(folder / file)
            programs = [FileInfo.of(folder / file) for file in names]
            kept = _kept(quantizer, partitioned.plan.partitions, folder, names, worker, alone)
            results = tuned.keep(folder / archive)
        timed.tell(Stage.FINISH)
        key = conversion_key(
            cleaning(),
            host=request.host,
            target=target,
            runtime=found,
            precision=wanted.to_key(calibrated.calibration if calibrated else None),
            options=dict(settings.given),
        )
        environment = {**given_environment, **partitioned.environment}
        manifest = Manifest(
            name=name,
            created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            source=source.result(),
            program=programs[0] if whole else None,
            model=tuple(info.result() for info in infos),
            target=target,
            architecture=gpu_architecture() if target == "gpu" else None,
            options={
                "pipeline": cleaned.pipeline,
                "dims": dict(request.dims),
                "shapes": {key: list(value) for key, value in request.shapes.items()},
                **({"freeze": dict(request.freeze)} if request.freeze else {}),
                "timeout": request.timeout,
                "memory": request.memory,
                **({"environment": environment} if environment else {}),
                **({"compile": dict(settings.given)} if settings.given else {}),
                **({"tuning": results} if results else {}),
                **(wanted.to_json() if request.precision != "fp32" else {}),
                **({"calibration": {**calibration_of(calibrated.calibration), **kept}} if calibrated else {}),
                **({"key": key} if key else {}),
                # with quantized products it is no cleaned model to begin with again
                **({"cleaned": {"key": cleaning(), "notes": cleaned.notes}} if key and not products else {}),
            },
            versions=versions(worker),
            passes=cleaned.passes,
            inputs=tuple(map(TensorInfo.of, required_inputs(cleaned.model))),
            outputs=output_infos(cleaned.model.graph.outputs, partitioned),
            timings=timed.seconds,
            notes=[
                *cleaned.notes,
                *(quantizer.notes if quantizer else ()),
                *partitioned.notes,
                *([_offer(out / f"{name}.onnx")] if partitioned.environment and not alone else []),
                *tuned.notes,
            ],
            partitions=() if whole else tuple(partition_infos(partitioned, programs)),
            forecast=forecast(cleaned.model).as_dict() if is_quantized(cleaned.model) else {},
        )
        publish(out, folder, manifest)
    return Bundle(out, runtime=request.runtime, timeout=request.timeout, memory=request.memory)


class _Clock:
    """Tells each stage as it begins, and keeps how long it takes.

    Attributes:
        seconds: by stage.
    """

    def __init__(self, progress: Progress | None) -> None:
        self.tell = progress or silent
        self.seconds: dict[str, float] = {}

    @contextlib.contextmanager
    def __call__(self, name: Stage) -> Iterator[None]:
        self.tell(name)
        started = time.perf_counter()
        yield
        self.seconds[name.value] = round(self.seconds.get(name.value, 0) + time.perf_counter() - started, 4)


def _with_precision(pipeline: str, wanted: Precision, model: str | os.PathLike[str] | ir.Model) -> str:
    """The passes of a pipeline, with those that a precision needs."""
    if wanted.name == "fp32":
        return pipeline
    return wanted.pipeline(pipeline, model if isinstance(model, ir.Model) else models.load(model))


def _kept(
    quantizer: Quantizer | None,
    partitions: Sequence[Partition],
    folder: Path,
    names: Sequence[str],
    worker: Worker,
    alone: bool,
) -> dict[str, Any]:
    """Keep the data of those programs that MIGraphX will not read back: they are quantized again then."""
    if quantizer is None:
        return {}
    places = [index for index, each in enumerate(partitions) if each.side is Side.DEVICE]
    lost = {
        place: [str(value.name) for value in partitions[place].inputs]
        for place, name in zip(places, names, strict=True)
        if not loads_back(worker, folder / name)
    }
    if not lost:
        return {}
    if alone:
        what = f"MIGraphX does not read back its own {quantizer.precision} program, which cannot be made again alone"
        raise InputError(what, where=names[0], hint="give a folder")
    quantizer.keep_data(folder / KEPT, lost)
    return asdict(FileInfo.of(folder / KEPT))


def _offer(model: Path) -> str:
    """What to do with a failure of MIGraphX that other settings took away."""
    command = f"onnx-bridge reduce {model} -o reduced --pipeline none"
    return f"`{command}` cuts the model down to what MIGraphX fails on, for a report of it"


def _name(model: str | os.PathLike[str] | ir.Model) -> str:
    if isinstance(model, ir.Model):
        return re.sub(r"[^\w.-]+", "_", model.graph.name or "") or "model"
    return Path(model).stem


def _check_ranks(model: ir.Model) -> None:
    """MIGraphX needs to know every size of what it takes."""
    for value in required_inputs(model):
        if value.shape is None and isinstance(value.type, ir.TensorType) and value.dtype != ir.DataType.STRING:
            hint = f"give its shape with --shape {value.name}:[…]"
            raise InputError("its number of dimensions is unknown", where=f"input {value.name!r}", hint=hint)


def _source(model: str | os.PathLike[str] | ir.Model) -> dict[str, str | None]:
    if isinstance(model, ir.Model):
        return {"path": None, "sha256": None}
    return {"path": str(Path(model).absolute()), "sha256": models.digest(model)}
