"""The verb ``run``."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from onnx_bridge.bundle.bundle import is_bundle
from onnx_bridge.bundle.run import run_files
from onnx_bridge.cli.options import ModelOrBundle, OutputFile, takes
from onnx_bridge.cli.terminal import Json, progress, show
from onnx_bridge.core.errors import InputError
from onnx_bridge.core.progress import Progress
from onnx_bridge.requests.conversion import RuntimeRequest

_INPUTS = "One array an input, or an .npy for a single one; default: generated arrays."


@takes(RuntimeRequest)
def run(
    model: ModelOrBundle,
    request: RuntimeRequest,
    sample: Annotated[Path | None, typer.Argument(metavar="X.npz", help=_INPUTS, show_default=False)] = None,
    inputs: Annotated[Path | None, typer.Option("--inputs", metavar="X.npz", help="The same.")] = None,
    out: Annotated[
        Path | None, OutputFile("-o", "--output", metavar="Y.npz", help="One array an output; default: print them.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Run a bundle on arrays from a file; a model is converted first, into the cache, for the sizes of the arrays."""
    if sample is not None and inputs is not None:
        raise InputError("there are two files of inputs", where=f"--inputs {inputs}", hint=f"leave out {sample}")
    given = sample or inputs
    with progress(as_json) as tell:
        bundle = model if is_bundle(model) or model.suffix != ".onnx" else _converted(model, given, request, tell)
        result = run_files(bundle, given, out, timeout=request.timeout, memory=request.memory, progress=tell)
    show(result, as_json)


def _converted(model: Path, sample: Path | None, request: RuntimeRequest, progress: Progress | None) -> Path:
    """Return the bundle of a model in the cache, which is made for the sizes of a sample if it is not up to date."""
    from onnx_bridge.conversion import convert
    from onnx_bridge.core.files.user_cache import cache_dir
    from onnx_bridge.model import io as models
    from onnx_bridge.requests.conversion import ConvertRequest
    from onnx_bridge.samples import files
    from onnx_bridge.samples import inputs as samplers

    shapes = {}
    if sample is not None:
        values = files.load(sample, samplers.specs(models.load(model)))[0]
        shapes = {name: value.shape for name, value in values.items() if isinstance(value, np.ndarray)}
    wanted = ConvertRequest(shapes=shapes, timeout=request.timeout, memory=request.memory, runtime=request.runtime)
    made_of = repr((str(model.resolve()), sorted(shapes.items()), request.runtime))
    out = cache_dir() / "bundles" / hashlib.sha256(made_of.encode()).hexdigest()
    convert.run(model, out, wanted, progress)
    return out
