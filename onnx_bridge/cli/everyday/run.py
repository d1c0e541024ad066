"""The verb ``run``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from onnx_bridge.cli.options import ModelOrBundle, OutputFile, takes
from onnx_bridge.cli.terminal import Json, progress, show
from onnx_bridge.core.errors import InputError
from onnx_bridge.requests.conversion import RunRequest

_INPUTS = "One array an input, or an .npy for a single one; default: generated arrays."


@takes(RunRequest)
def run(
    model: ModelOrBundle,
    request: RunRequest,
    sample: Annotated[Path | None, typer.Argument(metavar="X.npz", help=_INPUTS, show_default=False)] = None,
    inputs: Annotated[Path | None, typer.Option("--inputs", metavar="X.npz", help="The same file.")] = None,
    out: Annotated[
        Path | None, OutputFile("-o", "--output", metavar="Y.npz", help="One array an output; default: print them.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Run a bundle on arrays from a file; a model is converted first, into the cache, for the sizes of the arrays.

    Example: onnx-bridge run bert --inputs tokens.npz -o outputs.npz
    """
    from onnx_bridge.bundle.bundle import is_bundle
    from onnx_bridge.bundle.run import run_files
    from onnx_bridge.model.folder import is_model_folder

    if sample is not None and inputs is not None:
        raise InputError("there are two files of inputs", where=f"--inputs {inputs}", hint=f"leave out {sample}")
    given = sample or inputs
    with progress(as_json) as tell:
        bundle = model
        if not is_bundle(model) and (model.suffix == ".onnx" or model.is_file() or is_model_folder(model)):
            from onnx_bridge.cli.everyday.convert_one import into_cache

            bundle = into_cache(model, given, request, tell)
        elif request.conversion != RunRequest().conversion:
            raise InputError("the sizes of a bundle are its own", where=str(model), hint="give sizes to a model alone")
        result = run_files(bundle, given, out, timeout=request.timeout, memory=request.memory, progress=tell)
    show(result, as_json)
