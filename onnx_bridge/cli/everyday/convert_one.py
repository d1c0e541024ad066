"""The conversion of one model on the command line.

`convert` imports this while its processes start, `run` only if a model is to be converted.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import typer

from onnx_bridge.bundle.inspect import BundleView
from onnx_bridge.cli.terminal import progress, show
from onnx_bridge.conversion import convert as conversion
from onnx_bridge.core.errors import NOT_DETERMINED
from onnx_bridge.core.files.user_cache import cache_dir
from onnx_bridge.core.progress import Progress
from onnx_bridge.model import io as models
from onnx_bridge.requests.batch import JobRequest
from onnx_bridge.requests.conversion import RunRequest
from onnx_bridge.samples import files
from onnx_bridge.samples import inputs as samplers


def convert_one(source: Path, out: Path, request: JobRequest, as_json: bool) -> None:
    """Convert a model, compare it if asked to, and show the results; raises `typer.Exit` if nothing proves it."""
    with progress(as_json) as tell:
        bundle = conversion.run(source, out, request.conversion, tell)
        report = None
        if request.check:
            from onnx_bridge.parity.checking import check as parity

            report = parity.run(bundle, request.check_request(source), tell)
    if report is None or not as_json:
        then: tuple[object, ...] = ()
        if bundle.manifest.decoder is not None and bundle.manifest.decoder.batch == 1:
            then = ("generate", out, *bundle.decoder.example)
        elif bundle.proof.comparable:
            target = request.conversion.rehearsed
            then = ("check", out, *(("--target", target) if target else ()))
        show(BundleView(bundle), as_json, then if report is None else ())
    if report is not None:
        show(report, as_json, code=report.exit_code)
    elif not bundle.proof.comparable:
        raise typer.Exit(NOT_DETERMINED)


def into_cache(model: Path, sample: Path | None, request: RunRequest, progress: Progress | None) -> Path:
    """Return the bundle of a model in the cache, which is made for the sizes of a sample if it is not up to date."""
    shapes = dict(request.conversion.shapes)
    if sample is not None:
        values = files.load(sample, samplers.specs(models.load(model)))[0]
        shapes |= {name: value.shape for name, value in values.items() if isinstance(value, np.ndarray)}
    sizes, timeout, memory = replace(request.conversion, shapes=shapes), request.timeout, request.memory
    wanted = replace(sizes, timeout=timeout, memory=memory, runtime=request.runtime)
    made_of = repr((str(model.resolve()), wanted.to_json()))
    out = cache_dir() / "bundles" / hashlib.sha256(made_of.encode()).hexdigest()
    conversion.run(model, out, wanted, progress)
    return out
