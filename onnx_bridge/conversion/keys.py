"""Content keys: digests of everything that a cleaned model, a bundle, or its comparison was made from.

Two conversions have the same key if and only if nothing that matters differs: the bytes of the model and of its
weights, shapes, frozen values, the pipeline, the code that decides (of users' passes, of the project, and the versions
of the libraries that it computes with), the version of MIGraphX, the variables that MIGraphX reads, the target and the
GPU's architecture, and, for a GPU elsewhere, the packages of the compiler and the stub. Names, dates and limits do not
matter.

Keys are a chain: the key of a comparison includes that of the conversion, which includes that of the cleaning. A change
of an outer one leaves the inner ones as they are, so that only the stages behind it are repeated.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from onnx_bridge.conversion.precision.precision import BY_PASS, samples_digest
from onnx_bridge.core.files.code_digest import code_digest
from onnx_bridge.core.files.digest import file_digest, json_digest
from onnx_bridge.migraphx import runtime as runtimes
from onnx_bridge.migraphx.architectures import named_architecture
from onnx_bridge.migraphx.machine import Machine
from onnx_bridge.migraphx.runtime import Runtime
from onnx_bridge.migraphx.targets import resolve_target
from onnx_bridge.provider import environment as environments
from onnx_bridge.reference import ops_libraries
from onnx_bridge.requests.conversion import ConvertRequest
from onnx_bridge.samples.calibration import Calibration
from onnx_bridge.samples.files import SampleSource
from passes.rewriting.pipeline import Pipeline
from passes.rewriting.spec import options_of

_CLEANING = ("passes", "onnx_bridge.conversion.steps.clean")
_CONVERSION = "onnx_bridge.conversion"
"""The code that decides on each result, with all that it imports."""


def cleaning_key(
    source: str | None, request: ConvertRequest, runtime: Runtime | Machine, pipeline: Pipeline | None = None
) -> str | None:
    """Return the key of a cleaned model; raises InputError if the pipeline is wrong.

    Args:
        source: the model's digest (`onnx_bridge.model.io.digest`); None for a model in memory, which has no key.
        runtime: the MIGraphX whose verdicts legalization follows; or the machine with it.
        pipeline: the pipeline of the request, parsed; default: it is parsed here.
    """
    passes, machine = pipeline or Pipeline.parse(request.pipeline), Machine.of(runtime)
    if source is None:
        return None
    return json_digest(
        {
            "model": source,
            "pipeline": str(passes),
            "files": [file_digest(path) for path in _user_files(passes)],
            "dims": dict(request.dims),
            "dim_default": request.dim_default,
            "shapes": {name: list(shape) for name, shape in request.shapes.items()},
            "freeze": dict(request.freeze),
            "precision": _precision(request) if request.precision in BY_PASS else None,
            "probe budget": request.probe_budget,
            "rehearse": request.rehearsed,
            **({"compiler": machine.compiler} if named_architecture(request.target) else {}),
            **(_application(request) if request.application else {}),
            **({"libraries": libraries} if (libraries := ops_libraries.recorded()) else {}),
            "code": code_digest(*_CLEANING),
            "runtime": machine.identity,
            "environment": machine.environment,
        }
    )


def _application(request: ConvertRequest) -> dict[str, Any]:
    """Return the application, and the wheel that answers for it, as parts of a key."""
    wheels = [environment.identity for environment in environments.installed()[:1]]
    return {"for": request.application, "layout": request.layout, "wheel": wheels}


def conversion_key(
    cleaning: str | None,
    request: ConvertRequest,
    runtime: Runtime | Machine,
    *,
    target: str,
    calibration: Calibration | None = None,
) -> str | None:
    """Return the key of a conversion; None if the cleaned model has no key."""
    if cleaning is None:
        return None
    return json_digest(
        {
            "cleaned": cleaning,
            "code": code_digest(_CONVERSION),
            "host": request.host,
            "precision": {**_precision(request), **calibration_key(request.calibration, calibration)},
            "options": dict(request.options),
            "buckets": {name: list(sizes) for name, sizes in request.buckets.items()},
            "ties": dict(request.ties) if request.buckets else {},
            "pad": dict(request.pad) if request.buckets else {},
            "pad_before": sorted(request.pad_before) if request.buckets else [],
            **({} if (sizes := request.decoder_sizes) is None else {"decoder": asdict(sizes)}),
            "target": target,
            "architecture": Machine.of(runtime).architecture if target == "gpu" else None,
        }
    )


def content_key(source: str | None, request: ConvertRequest) -> str | None:
    """Return the key of a conversion on this machine; None for calibration samples in memory."""
    if not isinstance(request.calibration, (str, os.PathLike, type(None))):
        return None
    runtime = runtimes.find(request.runtime)
    target = resolve_target(request.target, runtime)
    return conversion_key(cleaning_key(source, request, runtime), request, runtime, target=target)


def check_key(
    conversion: str,
    *,
    seed: int,
    samples: int | None,
    rtol: float | None,
    atol: float | None,
    tolerance: str | None,
    data: Path | None,
) -> str:
    """Return the key of a comparison with the reference, from the key of the conversion and `check`'s options."""
    return json_digest(
        {
            "conversion": conversion,
            "seed": seed,
            "samples": samples,
            "rtol": rtol,
            "atol": atol,
            "tolerance": tolerance,
            "data": data and {str(path.relative_to(data)): file_digest(path) for path in _files_in(data)},
            "code": code_digest(),
        }
    )


def _precision(request: ConvertRequest) -> dict[str, Any]:
    kept = {"keep_fp32": list(request.keep_fp32)} if request.keep_fp32 else {}
    return {"precision": request.precision, **kept}


def calibration_key(given: SampleSource | None, used: Calibration | None = None) -> dict[str, Any]:
    """Return calibration data for a key: the digests of files, or one digest of the used samples in memory."""
    if isinstance(given, (str, os.PathLike)):
        path = Path(given)
        digests = sorted(file_digest(file) for file in _files_in(path) if file.exists())
        return {"calibration": {"given": path.name, "files": digests}}
    return {"calibration": samples_digest(used)} if given is not None and used is not None else {}


def _user_files(pipeline: Pipeline) -> Iterator[Path]:
    """Yield the files of users' passes in a pipeline, and the files that options name."""
    for step in pipeline.items:
        if isinstance(step, str):
            continue
        own = type(step).__module__.partition(".")[0] == "passes"
        if not own and (file := inspect.getsourcefile(type(step))) is not None:
            yield Path(file)
        for value in options_of(step).values():
            if isinstance(value, str):
                names = (value, value.rpartition(":")[0])
                yield from (Path(name) for name in names if name and os.path.isfile(name))  # noqa: PTH113


def _files_in(path: Path) -> list[Path]:
    return sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
