"""The verb ``run``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from onnx_bridge.bundle.run import run_files
from onnx_bridge.cli.options import OutputFile, takes
from onnx_bridge.cli.terminal import Json, progress, show
from onnx_bridge.requests.conversion import RuntimeRequest


@takes(RuntimeRequest)
def run(
    bundle: Annotated[Path, typer.Argument(metavar="BUNDLE", help="What `convert` wrote.", show_default=False)],
    inputs: Annotated[Path, typer.Option("--inputs", metavar="X.npz", help="One array an input.", show_default=False)],
    out: Annotated[
        Path,
        OutputFile("-o", "--output", metavar="Y.npz", help="One array an output.", show_default=False),
    ],
    request: RuntimeRequest,
    as_json: Json = False,
) -> None:
    """Run a bundle on arrays from a file."""
    with progress(as_json) as tell:
        result = run_files(bundle, inputs, out, timeout=request.timeout, memory=request.memory, progress=tell)
    show(result, as_json)
